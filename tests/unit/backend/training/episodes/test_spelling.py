"""Misspelled words for training: each is wrong, near to the right one, and differs from it."""

import random

from k3agent.backend.training.episodes import spelling


def test_a_misspelled_word_is_near_to_the_right_one_and_no_word() -> None:
    rng = random.Random(1)
    drawn = [spelling.misspelled(rng) for _ in range(300)]
    for wrong, right in drawn:
        assert wrong != right and abs(len(wrong) - len(right)) <= 2 and wrong[0] == right[0]
    made = {wrong for wrong, _ in drawn} - set(spelling.TYPOS)
    assert len(made) > 100 and not made & set(spelling.common_words())


def test_words_known_for_it_are_listed() -> None:
    rng = random.Random(2)
    assert all(spelling.misspelled(rng, listed=True)[0] in spelling.TYPOS for _ in range(50))
