"""Other shapes of training's wordings: moved files, hedges and reasons around a message."""

from random import Random

from k3agent.backend.training.wordings.grammar import Slot, compile_template
from k3agent.backend.training.wordings.reshape import add_aside, joined, reorder


def moved(template: str) -> set[str]:
    """What the template may become."""
    found = set()
    for seed in range(100):
        pieces = [piece for piece in compile_template(template) if isinstance(piece, (str, Slot))]
        reorder(pieces, Random(seed))
        found.add("".join(piece if isinstance(piece, str) else "{" + piece.name + "}" for piece in pieces))
    return found


def test_a_file_moves_to_the_other_end_of_a_command() -> None:
    assert moved("set {key} to {value} in {path}") == {
        "set {key} to {value} in {path}",
        "in {path}, set {key} to {value}",
        "in {path} set {key} to {value}",
    }
    assert moved("in {path}, set {key} to {value}") == {
        "in {path}, set {key} to {value}",
        "set {key} to {value} in {path}",
    }


def test_what_is_no_single_command_stays() -> None:
    for text in (
        "{key} should be {value} in {path}",
        "set {key} to {value}. It stands in {path}",
        "add {line} and {other} in {path}",
        "where is {key} in {path}?",
        "set {key} in {section}",
    ):
        assert moved(text) == {text}


def test_asides_leave_slots_alone_and_vary() -> None:
    seen = set()
    for seed in range(4000):
        texts, fixed = ["Delete ", "the_Value", " in the file"], [False, True, False]
        add_aside(texts, fixed, True, Random(seed))
        assert texts[1] == "the_Value" and len(texts) == len(fixed)
        seen.add("".join(texts))
    assert len(seen) > 150
    assert any(text.startswith("because") and "delete the_Value" in text for text in seen)
    assert any(text.endswith(", I guess") for text in seen)


def test_nothing_is_added_where_a_message_cannot_go_on() -> None:
    for seed in range(2000):
        texts, fixed = ["the line: ", "x = 1"], [False, True]
        add_aside(texts, fixed, False, Random(seed))
        assert texts[-1] == "x = 1" and len(texts) == 2
        texts, fixed = ["run this\n", "x"], [False, True]
        add_aside(texts, fixed, True, Random(seed))
        assert texts == ["run this\n", "x"]


def test_neighbouring_literals_become_one() -> None:
    slot = Slot("name", False)
    assert joined(["a", " b", slot, "", "c"]) == ["a b", slot, "c"]
