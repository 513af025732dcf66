"""Links and pieces to copy: what may become a link of the terminal, and which piece the keys take."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agents import call, step
from support.screens import running
from textual.widgets import Input

from k3agent.providers.scripted import Step
from k3agent.tui.links import MAX_CHARS, all_links, link_of, urls
from k3agent.tui.theme import PALETTES
from k3agent.tui.widgets.answer import AnswerBlock

DARK = PALETTES["dark"]
ANSWER = """See [the docs](https://example.org/docs_(v2)) and https://example.com/a?b=c#d.

```python
first = 1
```

Then:

```sh
second
more
```
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see https://a.b/c.", ["https://a.b/c"]),
        ("(https://a.b/c_(d))", ["https://a.b/c_(d)"]),
        ("[x](http://a.b/c)", ["http://a.b/c"]),
        ("<https://a.b>, \"https://c.d\" and 'https://e.f'", ["https://a.b", "https://c.d", "https://e.f"]),
        ("HTTPS://A.B/C! twice https://x.y https://x.y", ["HTTPS://A.B/C", "https://x.y"]),
        ("https:// ftp://a.b javascript:alert(1) file:///etc/passwd", []),
        ("http://[::1]:80/x", ["http://[::1]:80/x"]),
        (f"https://a.b/{'x' * MAX_CHARS}", []),
    ],
)
def test_addresses_in_prose(text: str, found: list[str]) -> None:
    assert all_links(text) == found


@pytest.mark.parametrize(
    "target",
    ["", "x", "javascript:x", "https://a.b\x1b\\", "https://a.b\x07c", "https://a.b c", "https://pаypal.com", "https://a\u202eb"],
)  # fmt: skip
def test_what_is_no_plain_address_is_no_link(target: str) -> None:
    assert link_of(target) == ""


@given(st.text(alphabet=st.sampled_from("htps:/ab.[]()<>\x1b\x07\\\u202e _~%é'\""), max_size=60))
def test_no_address_can_leave_its_sequence(text: str) -> None:
    for words in (text, f"https://a{text}"):
        for start, end in urls(words):
            assert words[start:end].isascii() and words[start:end].isprintable()
            assert link_of(words[start:end])


def linked(text: str) -> list[tuple[str, str]]:
    """(words, target) of everything that is a link."""
    strips = AnswerBlock(text).lines(100, DARK)
    return [
        (part.text, part.style.link)
        for strip in strips
        for part in strip
        if part.style is not None and part.style.link
    ]


def test_links_are_links_and_say_where_they_lead() -> None:
    found = linked("[words](https://evil.example/x) and https://plain.example/y, [no](javascript:alert(1))")
    assert found == [
        ("words", "https://evil.example/x"),
        ("https://evil.example/x", "https://evil.example/x"),
        ("https://plain.example/y", "https://plain.example/y"),
    ]
    assert "javascript:alert(1)" in "".join(
        strip.text for strip in AnswerBlock("[no](javascript:alert(1))").lines(80, DARK)
    )


def test_an_address_in_code_is_no_link() -> None:
    assert linked("`https://a.b/c`\n\n```\nhttps://a.b/c\n```\n") == []


async def test_a_code_block_is_chosen_and_copied(tmp_path: Path) -> None:
    async with running(tmp_path, [Step(text=ANSWER)]) as screen:
        screen.chat.say("show")
        await screen.until("done · 1 step")
        await screen.submit("/copy code")
        await screen.until("Copy a code block")
        assert "first = 1" in screen.shown
        await screen.press("down")
        await screen.until("more")
        await screen.press("enter")
        await screen.until(lambda: screen.app.clipboard == "second\nmore\n")
        await screen.submit("/copy link")
        await screen.until("Copy a link")
        screen.app.screen.query_one(Input).value = "example.com"
        await screen.until_gone("docs_(v2)\n")
        await screen.press("enter")
        await screen.until(lambda: screen.app.clipboard == "https://example.com/a?b=c#d")
        await screen.submit("/copy nothing")
        await screen.until("of it also: code, link")


async def test_the_only_piece_is_copied_at_once(tmp_path: Path) -> None:
    answers = [step(call("shell", command="echo hi")), Step(text="Done: https://example.com/x")]
    async with running(tmp_path, answers, allow=("shell(echo:*)",)) as screen:
        screen.chat.say("do")
        await screen.until("done · 2 steps")
        await screen.press("tab", "l")
        await screen.until("copied the link")
        assert screen.app.clipboard == "https://example.com/x"
        await screen.press("up", "up")
        while "echo hi" not in screen.chat.transcript.chosen()[0].plain:
            await screen.press("up")
        await screen.press("x")
        await screen.until(lambda: screen.app.clipboard == "echo hi")
        await screen.press("l")
        await screen.until("nothing to copy: the link")


async def test_an_image_named_at_the_end_of_a_sentence_is_sent(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/shot.png").write_bytes(b"\x89PNG\r\n\x1a\n none")
    async with running(tmp_path, [Step(text="Seen.")]) as screen:
        screen.chat.say("What is wrong in @shot.png?")
        await screen.until("[image: PNG · ")
