"""Names that a changed Python file uses and nothing defines: told at the end of a turn, old code is not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from support.agents import call, start, step

from k3agent.agent.remarks import Remarks
from k3agent.providers.scripted import Step
from k3agent.store.records import CallRow, CallState
from k3agent.tools.support.names import MAX_CHARS, undefined
from k3agent.types import MessageId

LEVELS = "class Levels:\n    def __init__(self):\n        self.levels = {}\n"


def row(*files: str) -> CallRow:
    return CallRow(
        turn=1, message_id=MessageId("m"), call_id="c", tool="edit", arguments="{}", state=CallState.DONE,
        files=files,
    )  # fmt: skip


async def told(tmp_path: Path, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    names = list(before.keys() | after.keys())
    remarks = Remarks(tmp_path, lambda name: None)
    await remarks.before([tmp_path / name for name in names])
    for name in before.keys() - after.keys():
        (tmp_path / name).unlink()
    for name, text in after.items():
        (tmp_path / name).write_text(text)
    found = await remarks.at_end([], [row(*sorted(names))], "do it", "")
    return [one.text for one in found]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{LEVELS}    def get(self):\n        return self.levels[name]\n", {"name": 5}),
        ("def f(value):\n    raise error | 'values'\n", {"error": 2}),
        ("class A:\n    def __init__(self):\n        self.level = level\n", {"level": 3}),
        ("def f(name):\n    return name\n\ndef g():\n    return name\n", {"name": 5}),
        ("from os.path import *\nprint(join)\n", {}),
        ("try:\n    unicode\nexcept NameError:\n    unicode = str\n", {}),
        ("print(_('a'), __file__, __path__, len([x for x in 'ab']))\n", {}),
        ("globals()['a'] = 1\nprint(a)\n", None),
        ("x = (", None),
        ("x\n" * MAX_CHARS, None),
        ("-" * 50_000 + "1", None),
    ],
)
def test_what_is_undefined(text: str, found: dict[str, int] | None) -> None:
    assert undefined(text) == found


async def test_new_ones_are_told(tmp_path: Path) -> None:
    after = f"{LEVELS}    def get(self):\n        return self.levels[name]\n"
    texts = await told(tmp_path, {"a.py": LEVELS}, {"a.py": after, "b.py": "print(x, y, x)\n"})
    assert texts == [
        "a.py uses a name that nothing defines: name (line 5).",
        "b.py uses names that nothing defines: x (line 1), y (line 1).",
    ]


async def test_of_very_many_the_first_are_told(tmp_path: Path) -> None:
    text = "".join(f"print(name{at})\n" for at in range(8))
    assert (await told(tmp_path, {}, {"a.py": text}))[0].endswith("name4 (line 5) and 3 more.")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a.py": "print(x)\n"}, {"a.py": "print(1)\nprint(x)\n"}),
        # Moved to another file.
        ({"a.py": "print(x)\n"}, {"b.py": "print(x)\n"}),
        # What was undefined in it before cannot be known.
        ({"a.py": "print(x\n"}, {"a.py": "print(x)\n"}),
        ({"a.txt": ""}, {"a.txt": "print(x)\n"}),
    ],
)
async def test_old_code_is_not_accused(tmp_path: Path, before: dict[str, str], after: dict[str, str]) -> None:
    assert await told(tmp_path, before, after) == []


async def test_a_file_that_was_never_seen_before_is_not_accused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print(x)\n")
    unknown, empty = Remarks(tmp_path, lambda name: None), Remarks(tmp_path, lambda name: "")
    assert await unknown.at_end(["a.py"], [], "", "") == []
    assert [one.kind for one in await empty.at_end(["a.py"], [], "", "")] == ["undefined"]


async def test_in_a_turn(tmp_path: Path) -> None:
    run = await start(tmp_path, [step(call("write", path="a.py", content="print(x)\n")), Step(text="ok")])
    await run.session.submit("make a.py")
    text = "a.py uses a name that nothing defines: x (line 1)."
    assert run.session.receipt.remarks[0] == {"kind": "undefined", "text": text}
    await run.session.aclose()
