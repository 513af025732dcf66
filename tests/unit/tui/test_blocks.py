"""Pieces of the transcript as lines: no line is wider than the screen, nothing in a text is markup."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3agent.tui.theme import PALETTES
from k3agent.tui.widgets.answer import AnswerBlock
from k3agent.tui.widgets.block import Block
from k3agent.tui.widgets.diff import parse_diff
from k3agent.tui.widgets.message import NoticeBlock, TurnEndBlock, UserBlock, WelcomeBlock
from k3agent.tui.widgets.reasoning import ReasoningBlock
from k3agent.tui.widgets.toolcall import ToolBlock
from k3agent.types import ImagePart

DARK = PALETTES["dark"]
WIDTHS = (40, 80, 200)
NASTY = [
    "漢字かな交じり文" * 30,
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 🇩🇪" * 20,
    "שלום עולם مرحبا بالعالم " * 10,
    "[red]not markup[/red] [bold [/] \\[x]",
    "a\x1b[31mred\x1b[0m\x00\u202eesrever\u2028next",
    "x" * 1_000_000,
    "| a | b |\n|---|---|\n| " + "漢" * 90 + " | " + "y" * 200 + " |",
    "> " * 30 + "deep\n\n" + "- " * 40 + "deeper",
    "```python\n" + "def f(): return '漢字' # " + "z" * 400 + "\n```",
    "1. one\n\n   more\n2. two\n\n   ```\n   code\n",
    "[text](http://example.com/" + "p" * 300 + ") ![img](x.png) <b>html</b> &amp;",
    "",
    "\n\n\n",
]


def texts(block: Block, width: int) -> list[str]:
    return [strip.text for strip in block.lines(width, DARK)]


def tool(text: str, name: str = "shell", state: str = "done") -> ToolBlock:
    block = ToolBlock("c", name, json.dumps({"command": text, "path": text}))
    block.end(state, text, 1.5)
    return block


def all_blocks(text: str) -> list[Block]:
    live = AnswerBlock(is_live=True)
    live.append(text)
    thinking = ReasoningBlock(is_live=True)
    thinking.append(text)
    unfolded = tool(text)
    unfolded.is_open = True
    return [
        UserBlock(text, images=[ImagePart(mime=text, data=b"none")]),
        NoticeBlock(text, "error"),
        TurnEndBlock(text, text, "error"),
        WelcomeBlock([("", text), ("name", text)]),
        ReasoningBlock(text, seconds=3),
        thinking,
        AnswerBlock(text),
        live,
        unfolded,
        *(tool(text, name) for name in ("shell", "edit", "todo", "read")),
        *(tool(text, "edit", state) for state in ("failed", "running", "waiting", "denied")),
    ]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_no_line_is_wider_than_the_screen(text: str, width: int) -> None:
    for block in all_blocks(text):
        for strip in block.lines(width, DARK):
            assert strip.cell_length == width
            assert sum(segment.cell_length for segment in strip) == width
            assert "\n" not in strip.text and "\x1b" not in strip.text


@given(st.text(max_size=300), st.integers(20, 120))
def test_any_text_can_be_laid_out(text: str, width: int) -> None:
    for block in all_blocks(text):
        assert all(strip.cell_length == width for strip in block.lines(width, DARK))


@given(
    st.lists(
        st.sampled_from(
            ["# h\n", "a *b* c\n", "\n", "- x\n", "```py\n", "x = 1\n", "```\n", "> q\n", "  y\n"]
        )
    )
)
def test_an_answer_ends_as_if_it_had_come_at_once(pieces: list[str]) -> None:
    live = AnswerBlock(is_live=True)
    for piece in pieces:
        live.append(piece)
        live.changed()
        live.lines(60, DARK)
    live.finish()
    assert texts(live, 60) == texts(AnswerBlock("".join(pieces)), 60)


def test_a_growing_code_block_keeps_its_lines() -> None:
    live = AnswerBlock(is_live=True)
    live.append("Look:\n\n```python\n")
    for number in range(200):
        live.append(f"x_{number} = {number}\n")
        live.changed()
        live.lines(80, DARK)
    shown = "\n".join(texts(live, 80))
    assert all(f"x_{number} = {number} " in shown for number in range(200))
    assert "```" not in shown


def test_markdown_reads_well() -> None:
    source = "# Title\n\nSome **bold** and `code`.\n\n1. one\n2. two\n\n"
    source += "| a | b |\n|---|---|\n| 1 | 22 |\n\n> quoted\n"
    assert [line.rstrip() for line in texts(AnswerBlock(source), 40)] == [
        "",
        " Title",
        "",
        " Some bold and code.",
        "",
        " 1. one",
        " 2. two",
        "",
        " a │ b",
        " ──┼───",
        " 1 │ 22",
        "",
        " ▎ quoted",
    ]


def test_a_links_target_is_said() -> None:
    shown = "".join(texts(AnswerBlock("[your bank](http://evil.example)"), 80))
    assert "your bank (http://evil.example)" in shown


def test_long_output_is_folded_and_unfolds() -> None:
    block = tool("\n".join(f"line {number}" for number in range(50)))
    shown = "\n".join(texts(block, 60))
    assert "line 0 " in shown and "line 49" in shown and "line 20" not in shown and "42 more lines" in shown
    assert block.toggle()
    assert "line 20" in "\n".join(texts(block, 60))


def test_a_difference_has_numbers_and_two_columns_where_there_is_room() -> None:
    diff = "Edited a.py.\n@@ line 9 @@\n before\n-old = 1\n+new = 2\n after"
    kinds = [(line.kind, line.number) for line in parse_diff(diff)]
    assert kinds == [("h", 0), ("@", 9), (" ", 9), ("-", 10), ("+", 10), (" ", 11)]
    for name in ("edit", "try"):
        narrow = [line.rstrip() for line in texts(tool(f"{diff}\n[exit code 0]", name), 80)]
        assert " │ 10 - old = 1" in narrow and " │ 10 + new = 2" in narrow
    wide = "\n".join(texts(tool(diff, "edit"), 200))
    assert any("old = 1" in row and "new = 2" in row for row in wide.split("\n"))


def test_states_are_told_without_colour() -> None:
    marks = {
        state: texts(tool("x", "shell", state), 60)[1] for state in ("done", "failed", "denied", "running")
    }
    assert (
        "✓" in marks["done"]
        and "✗" in marks["failed"]
        and "⊘ " in marks["denied"]
        and "●" in marks["running"]
    )
    assert "failed" in marks["failed"] and "denied" in marks["denied"]
