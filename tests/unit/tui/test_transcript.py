"""A conversation of any length: what is laid out, where the view stays, searching and folding."""

from __future__ import annotations

from pathlib import Path

from support.agents import FULL, ReplayClient
from support.screens import running

from k3agent.tui.bench import long_session
from k3agent.tui.screens.search import SearchScreen
from k3agent.tui.widgets.answer import AnswerBlock
from k3agent.tui.widgets.message import NoticeBlock, UserBlock
from k3agent.tui.widgets.toolcall import ToolBlock
from k3agent.tui.widgets.transcript import Transcript

NUM = 2_000


def client() -> ReplayClient:
    return ReplayClient([], info=FULL)


async def test_a_long_session_lays_out_only_what_is_seen(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    session = long_session(tmp_path / "home", tmp_path / "ws", NUM)
    async with running(tmp_path, client=client(), resume_id=session) as screen:
        await screen.until(f"Answer {NUM - 1}")
        transcript = screen.chat.transcript
        assert len(transcript.blocks) > NUM
        assert sum(transcript._measured) < 60
        assert len(list(screen.app.screen.walk_children())) < 20
        # All the way up, page by page: never more lines kept than a few screens need.
        for _ in range(40):
            await screen.press("pageup")
        assert sum(block._lines is not None for block in transcript.blocks) <= 70


async def test_scrolling_back_moves_by_whole_pages_without_jumps(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    session = long_session(tmp_path / "home", tmp_path / "ws", 400)
    async with running(tmp_path, client=client(), resume_id=session) as screen:
        await screen.until("Answer 399")
        for _ in range(6):
            before = [row[:98] for row in screen.rows]
            await screen.press("shift+up")
            after = [row[:98] for row in screen.rows]
            # The line that was first is second now, although nothing above it had been laid out before.
            assert after[1:20] == before[0:19]


async def test_the_view_stays_when_lines_come_below(tmp_path: Path) -> None:
    async with running(tmp_path, client=client()) as screen:
        for number in range(80):
            screen.chat.notice(f"line {number}")
        await screen.until("line 79")
        for _ in range(3):
            await screen.press("pageup")
        await screen.until("scrolled back")
        before = [row[:90] for row in screen.rows[:30]]
        screen.chat.notice("a new one")
        await screen.pilot.pause(0.3)
        assert [row[:90] for row in screen.rows[:30]] == before
        await screen.press("ctrl+end")
        await screen.until("a new one")
        assert "scrolled back" not in screen.shown


async def test_a_resize_keeps_the_place(tmp_path: Path) -> None:
    async with running(tmp_path, client=client()) as screen:
        for number in range(60):
            screen.chat.notice(f"number {number} " + "word " * 40)
        await screen.until("number 59")
        for _ in range(4):
            await screen.press("pageup")
        top = next(row for row in screen.rows if "number" in row).split("word")[0].strip()
        await screen.pilot.resize_terminal(50, 30)
        await screen.until(lambda: top in "\n".join(screen.rows[:6]))
        assert all(len(row) <= 50 for row in screen.rows)


async def test_search_finds_marks_and_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path, client=client()) as screen:
        for number in range(100):
            screen.chat.notice("needle here" if number in (10, 50) else f"hay {number}")
        await screen.until("hay 99")
        await screen.press("ctrl+f")
        await screen.type("NEEDLE")
        await screen.until("hay 51")
        assert "in 2 places" in screen.shown
        await screen.press("enter")
        await screen.until("hay 11")
        await screen.press("escape")
        await screen.until_gone("in 2 places")


async def test_jumping_between_prompts(tmp_path: Path) -> None:
    async with running(tmp_path, client=client()) as screen:
        for number in range(5):
            screen.chat.presenter.add(UserBlock(f"prompt {number}"))
            for line in range(30):
                screen.chat.notice(f"{number}-{line}")
        await screen.until("4-29")
        await screen.press("alt+up")
        await screen.until("❯ prompt 4")
        await screen.press("alt+up")
        await screen.until("❯ prompt 3")
        await screen.press("alt+down")
        await screen.until("❯ prompt 4")


async def test_blocks_are_chosen_folded_and_copied_by_keys(tmp_path: Path) -> None:
    async with running(tmp_path, client=client()) as screen:
        block = ToolBlock("c", "shell", summary="$ make")
        block.end("done", "\n".join(f"row {number}" for number in range(40)), 1.0)
        screen.chat.presenter.add(block)
        screen.chat.presenter.add(AnswerBlock("Look:\n\n```\nthe code\n```\n"))
        await screen.until("the code")
        await screen.press("tab", "x")
        await screen.until("copied the code block")
        assert screen.app.clipboard == "the code\n"
        await screen.press("up", "enter")
        await screen.until("row 20")
        await screen.press("enter")
        await screen.until_gone("row 20")
        await screen.press("c")
        assert screen.app.clipboard.startswith("$ make\nrow 0")


async def test_a_click_unfolds(tmp_path: Path) -> None:
    async with running(tmp_path, client=client()) as screen:
        block = ToolBlock("c", "shell", summary="$ make")
        block.end("done", "\n".join(f"row {number}" for number in range(40)), 1.0)
        screen.chat.presenter.add(block)
        await screen.until("click to unfold")
        row = next(at for at, text in enumerate(screen.rows) if "click to unfold" in text)
        await screen.pilot.click("#transcript", offset=(10, row))
        await screen.until("row 20")


async def test_text_is_marked_with_the_mouse_and_copied(tmp_path: Path) -> None:
    async with running(tmp_path, client=client()) as screen:
        screen.chat.presenter.add(AnswerBlock("alpha beta\n\ndelta 日本語 end"))
        await screen.until("delta")
        row = next(at for at, text in enumerate(screen.rows) if "alpha" in text)
        await screen.pilot.mouse_down("#transcript", offset=(7, row))
        await screen.pilot.hover("#transcript", offset=(30, row + 2))
        await screen.pilot.mouse_up("#transcript", offset=(30, row + 2))
        await screen.press("ctrl+c")
        assert screen.app.clipboard == "beta\n\ndelta 日本語 end"


async def test_blocks_can_be_taken_away(tmp_path: Path) -> None:
    async with running(tmp_path, client=client()) as screen:
        blocks = [NoticeBlock(f"note {number}") for number in range(6)]
        for block in blocks:
            screen.chat.presenter.add(block)
        await screen.until("note 5")
        screen.chat.transcript.drop(blocks[2])
        screen.chat.presenter.flush()
        await screen.until_gone("note 2")
        assert "note 1" in screen.shown and "note 3" in screen.shown


async def test_a_key_in_the_prompt_draws_no_line_of_the_conversation(tmp_path: Path, monkeypatch) -> None:
    async with running(tmp_path, client=client()) as screen:
        screen.chat.notice("a line")
        await screen.until("a line")
        await screen.pilot.pause(0.1)
        drawn: list[int] = []
        draw = Transcript.render_line
        monkeypatch.setattr(Transcript, "render_line", lambda self, y: drawn.append(y) or draw(self, y))
        await screen.type("typed")
        await screen.until("typed")
        assert drawn == []
        screen.chat.notice("a second line")
        await screen.until("a second line")
        assert drawn


async def test_what_is_drawn_from_memory_is_what_would_be_drawn(tmp_path: Path) -> None:
    answer = AnswerBlock("one\n\ntwo\n\nthree")
    async with running(tmp_path, client=client(), size=(60, 20)) as screen:
        transcript = screen.chat.transcript
        screen.chat.presenter.add(answer)
        for number in range(30):
            screen.chat.notice(f"notice {number}")
        await screen.until("notice 29")
        await screen.press("pageup", "tab", "k", "enter", "k", "k", "pageup", "pageup", "ctrl+end")
        screen.app.set_theme("light")
        await screen.pilot.pause(0.1)
        await screen.pilot.resize_terminal(80, 24)
        await screen.pilot.pause(0.1)
        region = transcript.size.region
        assert [strip.text for strip in transcript.render_lines(region)] == [
            strip.text for strip in transcript._draw(region)
        ]
        assert transcript.render_lines(region) == transcript._draw(region)


async def test_a_long_conversation_is_searched_once_for_what_was_typed(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "ws").mkdir()
    session = long_session(tmp_path / "home", tmp_path / "ws", NUM)
    async with running(tmp_path, client=client(), resume_id=session) as screen:
        await screen.until(f"Answer {NUM - 1}")
        looked: list[str] = []
        find = Transcript.matches
        monkeypatch.setattr(Transcript, "matches", lambda self, text: looked.append(text) or find(self, text))
        await screen.press("ctrl+f")
        await screen.until("search in the conversation")
        dialog = screen.app.screen
        assert isinstance(dialog, SearchScreen)
        dialog.input.value = "Answer 7"
        dialog.input.value = "Answer 1003"
        await screen.until("in 1 place")
        assert "Answer 1003" in screen.shown and set(looked) == {"Answer 1003"}
        await screen.press("enter", "down", "escape")
        assert "Answer 1003" in screen.shown
