"""Windows of any size, also without room for anything: the UI is still there when there is room again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text
from support.agents import call, step
from support.screens import Screen, running

from k3agent.config.settings import Settings
from k3agent.providers.scripted import Step
from k3agent.tui.widgets.markdown import wrap_code

TEXT = """Some `code`, **bold**, [a link](https://example.org), and a long_word_without_any_space_in_it.

| a | b |
| - | - |
| 1 | 漢字 |

```python
def f(x):
    return "👩‍👩‍👧" * x
```

1. one
   - two
> quoted
"""
SIZES = ((1, 1), (2, 1), (1, 40), (200, 1), (3, 3), (4, 2), (5, 9), (7, 4), (12, 3), (20, 60), (2, 24))


@pytest.mark.parametrize("width", [-3, 0, 1, 2, 3])
def test_code_is_broken_into_rows_of_any_width(width: int) -> None:
    rows = wrap_code(Text("ab漢字cd"), width)
    assert "".join(segment.text for row in rows for segment in row) == "ab漢字cd"
    assert all(sum(segment.cell_length for segment in row) <= max(width, 2) for row in rows)


@given(
    st.lists(
        st.tuples(st.text("abc 漢é\u0301😀", max_size=40), st.sampled_from(["bold", "red"])), max_size=6
    ),
    st.integers(2, 17),
)
def test_rows_of_code_are_full_and_keep_every_letter_and_style(
    parts: list[tuple[str, str]], width: int
) -> None:
    line = Text()
    for text, style in parts:
        line.append(text, style)
    rows = wrap_code(line, width)
    assert "".join(segment.text for row in rows for segment in row) == line.plain
    styles = [style for text, style in parts for _ in text]
    assert [str(segment.style) for row in rows for segment in row for _ in segment.text] == styles
    lengths = [sum(segment.cell_length for segment in row) for row in rows]
    # Only where a wide letter does not fit any more is a cell left.
    assert all(width - 1 <= length <= width for length in lengths[:-1])
    assert lengths[-1] <= width


def test_a_line_of_a_million_letters_is_broken_up_once() -> None:
    rows = wrap_code(Text("x = 1; " * 150_000), 100)
    assert len(rows) == 10_500


async def squeeze(screen: Screen) -> None:
    for width, height in SIZES:
        await screen.pilot.resize_terminal(width, height)
        await screen.pilot.pause()
        assert screen.rows is not None
    await screen.pilot.resize_terminal(100, 30)
    await screen.pilot.pause()


async def test_an_empty_chat(tmp_path: Path) -> None:
    async with running(tmp_path, [Step(text="Hello.")]) as screen:
        await squeeze(screen)
        await screen.submit("hi")
        await screen.until("Hello.")


async def test_a_chat_with_all_kinds_of_blocks(tmp_path: Path) -> None:
    answers = [
        step(call("write", path="a.py", content="x = 1\n"), text=TEXT, reasoning="Thinking. " * 20),
        step(call("edit", path="a.py", old="x = 1", new="x = '漢字'"), call("grep", pattern="x")),
        Step(text=f"{TEXT} The end."),
    ]
    async with running(tmp_path, answers, settings=Settings(permission_mode="auto")) as screen:
        await screen.submit("go")
        await screen.until("done · 3 steps")
        await squeeze(screen)
        assert "The end." in screen.shown
        await screen.press("ctrl+r")
        await screen.type("draft")
        await squeeze(screen)
        assert "draft" in screen.shown


async def test_a_question_that_waits(tmp_path: Path) -> None:
    answers = [step(call("write", path="a.py", content="x = 1\n" * 40)), Step(text="Written.")]
    async with running(tmp_path, answers, settings=Settings(permission_mode="default")) as screen:
        await screen.submit("go")
        await screen.until("a.py")
        await squeeze(screen)
        await screen.press("y")
        await screen.until("Written.")
