"""Edits that fail: the way out of each kind of error, and reports that say what the tool said."""

import random
from collections.abc import Iterator

import pytest

from k3agent.backend.training.episodes import editing
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.session import Report, Session
from k3agent.backend.training.episodes.toolbox import Result

TEXT = "".join(f"value_{number} = {number}\n" for number in range(60))


@pytest.fixture
def player() -> Iterator[Player]:
    made = Player(13, 0, strict=True)
    made.box.workspace.reset({"a.py": TEXT})
    made.box.new_session()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("old text not found in a.py.\nNearest, line 3:\nx", "not found"),
        ("old and new are the same.", "the same"),
        ("a.py does not exist.", "does not exist"),
        ("old text occurs 2 times in a.py (lines 1, 2). Add context.", "occurs 2 times"),
        ("permission denied: it would write a.py.", "permission denied"),
    ],
)
def test_each_error_has_its_own_report(error: str, said: str) -> None:
    report = editing.failed("a.py", Result(f"Error: {error}", True))
    assert said in report.answer and "could not change `a.py`" in report.answer
    assert ("denied" in report.answer) == ("denied" in error)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("return a - b", "return a + b", "- -> +"),
        ("return text", "return text.strip()", "add .strip()"),
        ("if not x:", "if x:", "drop not"),
        ("if a >= b:", "if a > b:", ">= -> >"),
        ("    return x", "return x", "mend the spaces"),
        ("return ' '.join(x)", "return ''.join(x)", "' ' -> ''"),
        ("v = 24.9.9", "v = 8.9.9", "24.9.9 -> 8.9.9"),
        ("import sys", "import re\nimport sys", "add import re"),
        ("a = 1\nb = 2", "a = 1\nb = 3", "b = 2 -> b = 3"),
    ],
)
def test_a_difference_names_what_changes(old: str, new: str, said: str) -> None:
    assert editing.difference(old, new) == said


@pytest.mark.parametrize(
    ("think", "said"),
    [
        ("It is line 41.", "It is line 41. 40 -> 43"),
        ("Line 41 becomes 43.", "Line 41 becomes 43. 40 -> 43"),
        ("40 -> 43", "40 -> 43"),
    ],
)
def test_a_thought_before_an_edit_says_what_changes(player: Player, think: str, said: str) -> None:
    player.box.workspace.reset({"a.py": TEXT})
    player.box.new_session()
    session = Session(player.box, random.Random(1))
    editing.edit_text(session, "a.py", "value_40 = 40", "value_40 = 43", think, line=41)
    assert session.messages[-2]["reasoning_content"] == said


def test_wrong_edits_are_not_learned_and_end_well_or_honestly(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(editing, "SLIPS", 1.0)
    ends = set()
    for seed in range(40):
        player.box.workspace.reset({"a.py": TEXT})
        player.box.new_session()
        session = Session(player.box, random.Random(seed), max_chars=10**6, slips=True)
        try:
            editing.edit_text(session, "a.py", "value_40 = 40", "value_40 = 41", "Edit it.", line=41)
            changed = TEXT.replace("= 40\n", "= 41\n")
            ends.add("done")
        except Report as report:
            assert session.gave_up and "denied" not in report.answer
            changed = TEXT
            ends.add("stopped")
        assert player.box.workspace.snapshot() == {"a.py": changed}
        results = [message["content"] for message in session.messages if message["role"] == "tool"]
        failures = sum(text.startswith("Error") for text in results)
        assert failures == len(session.unlearned) >= 1
    assert ends == {"done", "stopped"}


def test_a_refused_edit_is_not_tried_again(player: Player) -> None:
    player.box.machine.edits_denied = "permission denied: it would write {path}."
    session = Session(player.box, random.Random(1), slips=True)
    with pytest.raises(Report, match="permission denied"):
        editing.edit_text(session, "a.py", "value_40 = 40", "value_40 = 41", "Edit it.")
    assert len([message for message in session.messages if message["role"] == "tool"]) == 1


def test_lines_are_read_from_different_beginnings(player: Player) -> None:
    offsets = set()
    for seed in range(60):
        view = editing.around(Session(player.box, random.Random(seed)), "a.py", 41, "Read.")
        assert (41, "value_40 = 40") in view.lines
        offsets.add(view.lines[0][0])
    assert len(offsets) > 8


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("value_40 = 40", "value_40 = 40\nextra = 1", "Edit it. add extra = 1"),
        ("value_40 = 40\nvalue_41 = 41", "value_40 = 40", "Edit it. drop value_41 = 41"),
        ("value_40 = 40", "value_40 = 400", "Edit it. 40 -> 400"),
        ("value_40 = 40", "# value_40 = 40", "Edit it. add #"),
    ],
)
def test_what_is_added_or_dropped_is_said_too(player: Player, old: str, new: str, said: str) -> None:
    session = Session(player.box, random.Random(1))
    editing.edit_text(session, "a.py", old, new, "Edit it.")
    assert session.messages[-2]["reasoning_content"] == said
