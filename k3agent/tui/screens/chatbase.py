"""What all parts of the chat screen work on: its widgets, its session, and when it draws.

The screen is one class in four steps, each in its file: this one, questions (answers.py), the prompt
(typing.py), keys (chatkeys.py); chat.py connects them to the session.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual import events
from textual.app import ComposeResult
from textual.screen import UPDATE_PERIOD, Screen
from textual.widgets import Static

from k3agent.errors import K3AgentError
from k3agent.tui.driver import Driver
from k3agent.tui.files import FileIndex
from k3agent.tui.keymap import CHAT_KEYS, MODES, PROMPT_KEYS, TRANSCRIPT_KEYS, first_actions
from k3agent.tui.presenter import MAX_FPS, Presenter
from k3agent.tui.prompts import PromptHistory
from k3agent.tui.safe import safe_line
from k3agent.tui.widgets.approval import ApprovalPanel
from k3agent.tui.widgets.completion import CompletionList
from k3agent.tui.widgets.message import NoticeBlock, UserBlock
from k3agent.tui.widgets.prompt import Prompt
from k3agent.tui.widgets.status import StatusLine
from k3agent.tui.widgets.todo import TodoPanel
from k3agent.tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from k3agent.tui.app import K3App
    from k3agent.tui.theme import Palette

# The first that fits is shown.
PLACEHOLDER = (
    "What shall be done?   @ file   / command   ! shell   ? help",
    "What shall be done?   @  /  !  ? help",
    "What shall be done?   ? help",
    "What shall be done?",
)
BUSY_PLACEHOLDER = (
    "Enter queues   Ctrl+S says it into the running turn   Esc interrupts",
    "Enter queues   Ctrl+S steers   Esc interrupts",
    "Enter queues   Esc interrupts",
    "Esc interrupts",
)
DENIAL_PLACEHOLDER = (
    "What should be done instead? Enter sends it with the refusal, Esc goes back",
    "What instead? Enter sends it, Esc goes back",
    "What instead? Esc goes back",
)
MAX_QUEUE_ROWS = 4


class ChatBase(Screen[None]):
    """The widgets are there after `compose`, the rest after `on_mount` of chat.py."""

    app: K3App
    presenter: Presenter
    driver: Driver
    index: FileIndex

    def __init__(self) -> None:
        super().__init__()
        self._flushed_at = self._drawn_at = 0.0

    def compose(self) -> ComposeResult:
        palette = self.app.palette
        self.transcript = Transcript(palette, id="transcript")
        self.todos = TodoPanel(palette)
        self.panel = ApprovalPanel(palette)
        self.queue = Static("", id="queue", markup=False)
        self.completion = CompletionList(palette)
        self.prompt = Prompt(PromptHistory(self.app.options.home / "prompts.jsonl"))
        self.prompt.set_placeholder(PLACEHOLDER)
        self.line = StatusLine(palette, is_plain=self.app.is_plain)
        yield from (
            self.transcript,
            self.todos,
            self.panel,
            self.queue,
            self.completion,
            self.prompt,
            self.line,
        )

    def set_keys(self) -> None:
        """The user's keys, for what comes before the focused widget's own."""
        own = self.app.own_keys
        here = {key: f"screen.{action}" for key, action in first_actions(CHAT_KEYS, own).items()}
        self.prompt.first = {**here, **first_actions(PROMPT_KEYS, own)}
        chosen = {key: f"screen.{action}" for key, action in first_actions(TRANSCRIPT_KEYS, own).items()}
        self.transcript.first = {**here, **chosen}

    def start_clock(self) -> None:
        """Made stopped: an idle screen has nothing to time, and costs nothing."""
        self._clock = self.set_interval(1.0, self._tick, pause=True)

    # --- drawing ---

    async def _on_idle(self, event: events.Idle) -> None:
        """The first change after a pause is drawn at once. Textual would wait for its clock, which is felt
        with each key: 16 ms at worst. Further changes wait for it: Textual's own handler runs next.
        """
        now = time.monotonic()
        if now - self._drawn_at >= UPDATE_PERIOD and (self._dirty_widgets or self._layout_required):
            self._drawn_at = now
            self._on_timer_update()

    def schedule_flush(self) -> None:
        """Show what has come, at most `MAX_FPS` times a second; the first change after a pause at once."""
        wait = self._flushed_at + 1 / MAX_FPS - time.monotonic()
        if wait <= 0:
            self.call_later(self._flush)
        else:
            self.set_timer(wait, self._flush)

    def _flush(self) -> None:
        self._flushed_at = time.monotonic()
        self.presenter.flush()
        if self.line.status.activity:
            self._clock.resume()
        else:
            self._clock.pause()

    def _tick(self) -> None:
        self.presenter.tick()
        if not self.line.status.activity:
            self._clock.pause()

    def set_palette(self, palette: Palette) -> None:
        self.panel.set_palette(palette)
        self.transcript.set_palette(palette)
        self.line.palette = self.completion.palette = self.todos.palette = palette
        self.line.refresh()

    def redraw_images(self) -> None:
        """The terminal draws pictures in another way now."""
        for block in self.transcript.blocks:
            if isinstance(block, UserBlock) and block.has_images:
                self.presenter.touch(block)

    # --- small things that every part says or does ---

    def notice(self, text: str, level: str = "info") -> None:
        """Something k3agent itself says, in the transcript."""
        self.presenter.add(NoticeBlock(text, level))

    def hint(self, text: str) -> None:
        """A few words in the status line; empty takes them away."""
        self.line.status.hint = text
        self.line.changed()

    def set_mode(self, mode: str) -> None:
        if mode not in MODES:
            self.notice(f"modes: {', '.join(MODES)}", "warning")
            return
        session = self.driver.session
        try:
            if session is not None:
                session.set_permission_mode(mode)
        except K3AgentError as error:
            self.notice(str(error), "warning")
            return
        self.driver.mode = self.line.status.mode = mode
        self.line.changed()

    def say_briefly(self, text: str, seconds: float = 3.0) -> None:
        """A hint that goes away by itself."""
        self.hint(text)

        def clear() -> None:
            if self.line.status.hint == text:
                self.hint("")

        self.set_timer(seconds, clear)

    def focus_prompt(self) -> None:
        if self.is_current:
            self.prompt.focus()

    def toggle_todos(self) -> None:
        self.todos.is_wanted = not self.todos.is_wanted
        self.todos.update_shown()

    def show_queue(self) -> None:
        """Prompts that wait, above the prompt."""
        queue = self.driver.queue
        self.line.status.num_queued = len(queue)
        self.queue.set_class(bool(queue), "shown")
        rows = [f"⏎ next: {safe_line(item.text, 100)}" for item in queue[:MAX_QUEUE_ROWS]]
        if len(queue) > MAX_QUEUE_ROWS:
            rows.append(f"  and {len(queue) - MAX_QUEUE_ROWS} more")
        if queue and self.driver.session is not None and not self.driver.is_busy:
            rows.append(
                "  they wait because the turn did not end well: /send sends them, /unqueue takes them back"
            )
        self.queue.update("\n".join(rows))
        self.line.changed()
