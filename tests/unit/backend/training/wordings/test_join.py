"""Joined requests and follow-ups keep both requests' slot values and end up as one readable message."""

from random import Random

import pytest

from k3agent.backend.training.wordings import steps
from k3agent.backend.training.wordings.catalog import goal
from k3agent.backend.training.wordings.grammar import phrase
from k3agent.backend.training.wordings.join import follow_up, join, lower_start

FIRST = {"name": "MAX_size", "value": "7.5"}
SECOND = {"old": "Load_rows", "new": "Read_rows"}


@pytest.mark.parametrize("noise", [False, True])
def test_all_values_survive_a_join(noise: bool) -> None:
    rng = Random(5)
    for _ in range(2000):
        first = phrase(goal("set_const"), FIRST, rng, noise=noise)
        second = phrase(goal("rename"), SECOND, rng, noise=noise)
        text = join(first, second, rng)
        assert all(value in text for value in (*FIRST.values(), *SECOND.values())), text


def test_the_first_request_comes_first() -> None:
    for seed in range(300):
        text = join("set A_B to 1", "rename c_d to e_f", Random(seed))
        assert text.index("A_B") < text.index("c_d")


def test_joins_vary() -> None:
    assert len({join("set A to 1", "run the tests", Random(seed)) for seed in range(2000)}) > 60


def test_multi_line_requests_are_joined_by_a_paragraph() -> None:
    for seed in range(20):
        text = join("create a.py:\nx = 1", "Run the tests", Random(seed))
        assert text.startswith("create a.py:\nx = 1\n\n") or text.startswith("Create a.py:\nx = 1\n\n")
        assert "run the tests" in text


def test_a_name_at_the_start_keeps_its_capital() -> None:
    assert lower_start("MAX_size should be 5") == "MAX_size should be 5"
    assert lower_start("Loader should be called Reader") == "Loader should be called Reader"
    assert lower_start("I want x") == "I want x"
    assert lower_start("Set x to 5") == "set x to 5"
    assert lower_start("") == ""


def test_follow_ups_keep_values_and_vary() -> None:
    rng = Random(2)
    seen = set()
    for _ in range(500):
        message = phrase(goal("set_it"), {"value": "Some.Value"}, rng)
        text = follow_up(message, rng)
        assert "Some.Value" in text
        seen.add(text.split("Some.Value")[0])
    assert len(seen) > 200


@pytest.mark.parametrize("part", ["train", "held_out", "hard"])
def test_lists_and_commits_hold_every_wish(part: str) -> None:
    wishes = ["set A to 1", "add `x = {2}` to b.py", "show c", "delete d"]
    for seed in range(200):
        rng = Random(seed)
        for count in (2, 3, 4):
            text = steps.listed(wishes[:count], rng, part)
            assert all(text.lower().count(wish.lower()) == 1 for wish in wishes[:count]), text
        text = steps.committed(wishes[1], 'fix: the "a" thing', rng, part)
        assert wishes[1] in text and 'fix: the "a" thing' in text


def test_lists_of_training_are_of_many_kinds() -> None:
    wishes = ["set A to 1", "add `x = {2}` to b.py", "is C used?", "delete d"]
    for count in (2, 3, 4):
        frames = set()
        for seed in range(600):
            text = steps.listed(wishes[:count], Random(seed), "train")
            assert all(wish[1:] in text for wish in wishes[:count]), text
            assert "?," not in text and "?;" not in text, text
            for number, wish in enumerate(wishes[:count]):
                text = text.replace(wish[1:], f"<{number}>")
            frames.add(text)
        assert len(frames) > 200


def test_no_frame_of_training_is_held_out() -> None:
    for frames in (steps.LISTS, steps.COMMITS, steps.COMMITS_OWN):
        assert not set(frames["train"]) & set(frames["held_out"])
