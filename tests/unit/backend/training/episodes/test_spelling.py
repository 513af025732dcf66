"""Misspelled words for training: each is wrong, near to the right one, and differs from it."""

import random

import pytest

from k3agent.backend.training.episodes import spelling


def test_a_misspelled_word_is_near_to_the_right_one_and_no_word() -> None:
    rng = random.Random(1)
    drawn = [spelling.misspelled(rng) for _ in range(300)]
    for wrong, right in drawn:
        assert wrong != right and abs(len(wrong) - len(right)) <= 3 and wrong[0] == right[0]
    made = {wrong for wrong, _ in drawn} - set(spelling.TYPOS)
    assert len(made) > 120 and not made & set(spelling.common_words())


def test_lists_do_not_contradict_each_other() -> None:
    assert not spelling.PLAIN & spelling.TYPOS.keys()
    assert all(wrong != right for wrong, right in spelling.slipped().items())
    assert not spelling.PLAIN & spelling.slipped().keys()
    assert len(spelling.common_words()) > 1500 and len(spelling.TYPOS) > 400


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("receive", "recieve"),
        ("appearance", "appearence"),
        ("available", "availible"),
        ("across", "accross"),
        ("access", "acces"),
        ("directory", "direcotry"),
        ("separate", "seperate"),
        ("really", "realy"),
    ],
)
def test_all_kinds_of_slips_are_made(right: str, wrong: str) -> None:
    assert wrong in spelling.slips(right)


@pytest.mark.parametrize("word", ["angel", "exits", "licence", "cancelled", "though", "massage", "server"])
def test_a_right_word_is_never_taken_for_a_slip(word: str) -> None:
    assert word not in spelling.slipped()
