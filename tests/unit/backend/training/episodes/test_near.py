"""Near matches: which names and files fit what was asked for, and what is said about it."""

import random

import pytest

from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.policy import chosen_name, fits, near_file, other_path, root
from k3agent.backend.training.episodes.session import Report, Session


@pytest.mark.parametrize(
    ("wanted", "name", "is_near"),
    [
        ("limit", "OVERDRAFT_LIMIT", True),
        ("overdraft limits", "OVERDRAFT_LIMIT", True),
        ("limit for overdrafts", "overdraftLimit", True),
        ("retry", "MAX_RETRIES", True),
        ("classes", "CLASS_NAMES", True),
        ("upper_limit", "LIMIT", False),
        ("limit", "DELIMITER", False),
    ],
)
def test_a_name_fits_when_it_has_all_words(wanted: str, name: str, is_near: bool) -> None:
    assert fits(wanted, name) == is_near


@pytest.mark.parametrize(
    ("wanted", "found", "is_near"),
    [
        ("README", "README.md", True),
        ("docs/readme", "README.md", True),
        ("config.yml", "config.yaml", True),
        ("orders.py", "app/order.py", True),
        ("text-tools.py", "text_tools.py", True),
        ("config.json", "config.yaml", False),
        ("order_two.py", "order.py", False),
    ],
)
def test_a_file_is_near(wanted: str, found: str, is_near: bool) -> None:
    assert near_file(wanted, found) == is_near


def test_the_word_to_search_for_is_in_singular_and_plural() -> None:
    assert root(["max", "retries"]) == "retr"
    assert all(root(["retries"]) in word for word in ("retry", "retries"))


def test_one_near_match_is_taken_and_said_and_several_are_asked_about() -> None:
    player = Player(1, 0, strict=True)
    session = Session(player.box, random.Random(1))
    try:
        assert (
            chosen_name(session, "limit", ["OVERDRAFT_LIMIT", "test_limit_is_kept"], "") == "OVERDRAFT_LIMIT"
        )
        assert session.notes == ["There is no `limit`; I took `OVERDRAFT_LIMIT`, the only one like it."]
        with pytest.raises(Report, match=r"Which one"):
            chosen_name(session, "limit", ["LOW_LIMIT", "HIGH_LIMIT"], "")
        with pytest.raises(Report, match=r"Similar names"):
            chosen_name(session, "upper_limit", ["LOW_LIMIT"], "")
        assert other_path(session, "README", "README does not exist. Similar: README.md") == "README.md"
        assert "README.md" in session.notes[-1]
    finally:
        player.close()
