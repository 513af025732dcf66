"""Facts said without a path: the named file is taken of several, and asked about where none is named."""

import random

import pytest

from k3agent.backend.training.episodes.families.facts_said import named_in, play_place
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.session import Report, Session

FILES = {"docs/setup.md": "Use Rust 1.70 here.\n", "docs/first-steps.md": "Rust 1.70 is old.\n"}


def test_the_words_for_a_place_name_a_file() -> None:
    assert named_in("the setup docs", "docs/setup.md")
    assert named_in("our first steps page", "docs/first-steps.md")
    assert not named_in("the setup docs", "docs/first-steps.md")


def test_only_the_named_file_is_changed() -> None:
    player = Player(1, 0, strict=True)
    try:
        player.box.workspace.reset(dict(FILES))
        player.box.new_session()
        session = Session(player.box, random.Random(1))
        play_place(session, "the setup docs", "Rust 1.70", "Rust 1.82")
        after = player.box.workspace.snapshot()
        assert after == {**FILES, "docs/setup.md": "Use Rust 1.82 here.\n"}
        with pytest.raises(Report, match="Which file"):
            play_place(session, "the manual", "Rust", "Go")
        assert player.box.workspace.snapshot() == after
    finally:
        player.close()
