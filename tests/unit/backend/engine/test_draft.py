"""Guesses from the text itself: what is found, how long a guess is, when to rest."""

from hypothesis import given
from hypothesis import strategies as st

from k3agent.backend.engine.draft import MAX_DRAFT, MAX_MATCH, MAX_PAUSE, MIN_MATCH, PromptLookup

VOCAB = 100


def guess(ids: list[int], limit: int = MAX_DRAFT) -> list[int]:
    return PromptLookup(VOCAB).guess(ids, limit)


def test_what_followed_the_last_time() -> None:
    assert guess([1, 2, 3, 4, 5, 9, 1, 2]) == [3, 4]
    assert guess([1, 2, 3, 4, 5, 6, 9, 1, 2, 3]) == [4, 5, 6, 9]
    assert guess([1, 2, 3, 4, 9, 1, 2], 1) == [3]
    assert guess([1, 2, 3]) == guess([1]) == guess([]) == guess([1, 2, 3, 1, 2], 0) == []


def test_the_longest_agreement_wins_and_of_equals_the_latest() -> None:
    assert guess([7, 1, 2, 30, 8, 1, 2, 40, 7, 1, 2])[0] == 30
    assert guess([1, 2, 30, 1, 2, 40, 5, 1, 2])[0] == 40


def test_images_are_never_guessed() -> None:
    assert guess([1, 2, 3, VOCAB + 7, 9, 5, 1, 2]) == [3]
    assert guess([1, 2, VOCAB + 7, 9, 5, 1, 2]) == []


def test_it_rests_longer_and_longer_and_recovers() -> None:
    ids = [1, 2, 3, 4, 9, 1, 2]
    lookup = PromptLookup(VOCAB)
    pauses = []
    for _ in range(20):
        pause = 0
        while not lookup.guess(ids, 4):
            pause += 1
        pauses.append(pause)
        lookup.learn(0)
    assert pauses == sorted(pauses) and pauses[0] == 0 and 10 < pauses[-1] <= MAX_PAUSE
    while not lookup.guess(ids, 4):
        pass
    lookup.learn(1)
    assert lookup.guess(ids, 4)


def slow_guess(ids: list[int], limit: int) -> list[list[int]]:
    """All guesses that the definition allows, candidates without bound."""
    found: list[tuple[int, list[int]]] = []
    for place in range(MIN_MATCH, len(ids)):
        length = 0
        while length < min(MAX_MATCH, place) and ids[place - 1 - length] == ids[-1 - length]:
            length += 1
        if length >= MIN_MATCH:
            found.append((length, ids[place : place + min(2 * (length - 1), MAX_DRAFT, limit)]))
    best = max((length for length, _ in found), default=0)
    return [text for length, text in found if length == best]


@given(st.lists(st.integers(0, 3), max_size=20), st.integers(1, MAX_DRAFT))
def test_it_agrees_with_the_definition_as_the_text_grows(ids: list[int], limit: int) -> None:
    lookup = PromptLookup(VOCAB)
    for end in range(len(ids) + 1):
        found = lookup.guess(ids[:end], limit)
        if end <= 8:  # few enough places that none is left out
            assert found in (slow_guess(ids[:end], limit) or [[]])
