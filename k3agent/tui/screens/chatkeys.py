"""The part of the chat screen behind its keys."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any

from textual import events, work

from k3agent.config.settings import Settings
from k3agent.errors import K3AgentError
from k3agent.tui.commands import Command
from k3agent.tui.keymap import MODE_HELP, MODES
from k3agent.tui.links import all_links
from k3agent.tui.presenter import USER_INTERRUPT
from k3agent.tui.screens.typing import TypingChat
from k3agent.tui.widgets.answer import AnswerBlock
from k3agent.tui.widgets.message import UserBlock, WelcomeBlock
from k3agent.tui.widgets.reasoning import ReasoningBlock
from k3agent.tui.widgets.toolcall import ToolBlock
from k3agent.tui.widgets.transcript import Transcript

if TYPE_CHECKING:
    from textual.screen import Screen

    from k3agent.agent.undo import Preview


TWICE_S = 1.5
MODE_HELP_S = 5.0


class ChatKeys(TypingChat):
    """Actions; their keys are in keymap.py."""

    welcome: WelcomeBlock
    _escaped_at = 0.0
    _quit_asked_at = 0.0

    def run_command(self, command: Command, rest: str) -> None:
        command.run(self, rest)

    def on_prompt_help_asked(self) -> None:
        self.action_help()

    def on_paste(self, event: events.Paste) -> None:
        """Pasted while something else has the keys: it goes into the prompt, where it is meant to go."""
        event.stop()
        self.focus_prompt()
        self.prompt.post_message(events.Paste(event.text))

    # --- Esc and leaving ---

    def action_escape(self) -> None:
        """What is nearest: a list, a refusal's words, a command, the turn; twice while idle: rewind."""
        if self.completion.is_shown:
            self.completion.close()
        elif self.cancel_denial():
            return
        elif self.transcript.query_text:
            self.transcript.query_text = ""
            self.transcript.refresh()
        elif self.stop_shell() or self.driver.interrupt(USER_INTERRUPT):
            self.line.status.begin("interrupting")
            self.line.changed()
        elif self.focused is not self.prompt:
            self.focus_prompt()
        elif time.monotonic() - self._escaped_at < TWICE_S:
            self._escaped_at = 0.0
            self.action_rewind()
        else:
            self._escaped_at = time.monotonic()

    def action_quit_or_clear(self) -> None:
        selected = self.get_selected_text()
        if selected:
            self.app.copy_to_clipboard(selected)
            self.clear_selection()
            self.say_briefly("copied")
        elif self.prompt.text:
            self.prompt.clear_all()
        elif time.monotonic() - self._quit_asked_at < TWICE_S:
            self.action_leave_now()
        else:
            self._quit_asked_at = time.monotonic()
            self.driver.interrupt(USER_INTERRUPT)
            self.say_briefly("Ctrl+C again to quit", TWICE_S)

    def action_leave(self) -> None:
        if self.prompt.text:
            self.prompt.action_delete_right()
        else:
            self.action_leave_now()

    def action_leave_now(self) -> None:
        self.app.run_worker(self.app.leave())

    # --- mode ---

    def action_cycle_mode(self) -> None:
        now = self.line.status.mode
        at = MODES.index(now) if now in MODES else 0
        mode = MODES[(at + 1) % len(MODES)]
        self.set_mode(mode)
        self.say_briefly(MODE_HELP[mode], MODE_HELP_S)

    # --- moving ---

    def action_switch_focus(self) -> None:
        if self.completion.is_shown and self.focused is self.prompt:
            self.take_key("tab")
        elif self.panel.current is not None and self.panel.is_armed and self.focused is not self.panel:
            self.panel.focus()
        elif self.focused is self.prompt:
            self.transcript.focus()
            self.transcript.move_cursor(0)
        else:
            self.prompt.focus()

    def action_page(self, step: int) -> None:
        height = self.transcript.scrollable_content_region.height
        self.transcript.scroll_relative(y=step * max(height - 2, 1), animate=False)

    def action_scroll(self, step: int) -> None:
        self.transcript.scroll_relative(y=step, animate=False)

    def action_to_end(self) -> None:
        self.transcript.to_end()

    def action_top(self) -> None:
        self.transcript.scroll_to(y=0, animate=False)

    def action_turn(self, step: int) -> None:
        if not self.transcript.next_turn(step):
            self.transcript.to_end() if step > 0 else self.action_top()

    def action_choose(self, step: int) -> None:
        self.transcript.move_cursor(step)

    def on_transcript_moved(self, event: Transcript.Moved) -> None:
        self.hint("" if event.is_at_end else "scrolled back: Ctrl+End for the newest")

    # --- folding and copying ---

    def action_unfold(self) -> None:
        if self.transcript.cursor is not None:
            self.transcript.fold(self.transcript.cursor)

    def action_fold(self) -> None:
        self._fold_newest(ToolBlock)

    def action_fold_reasoning(self) -> None:
        self._fold_newest(ReasoningBlock)

    def _fold_newest(self, kind: type) -> None:
        blocks = self.transcript.blocks
        at = next((at for at in range(len(blocks) - 1, -1, -1) if isinstance(blocks[at], kind)), None)
        if at is not None:
            self.transcript.fold(at)

    def action_copy_answer(self) -> None:
        block = self.transcript.block_of(AnswerBlock)
        self.copy(block.text if isinstance(block, AnswerBlock) else "", "the last answer")

    def action_copy_block(self) -> None:
        self.copy("\n".join(block.plain for block in self.transcript.chosen()), "the block")

    def action_copy_code(self) -> None:
        block = self._block_to_copy()
        found = block.code_blocks if block is not None else []
        self._copy_one(found, "command" if isinstance(block, ToolBlock) else "code block")

    def action_copy_link(self) -> None:
        block = self._block_to_copy()
        self._copy_one(all_links(block.text) if isinstance(block, AnswerBlock) else [], "link")

    def _block_to_copy(self) -> AnswerBlock | ToolBlock | None:
        """The chosen answer or call; else the last answer."""
        chosen = self.transcript.chosen() if self.transcript.has_focus else ()
        for block in (*chosen, self.transcript.block_of(AnswerBlock)):
            if isinstance(block, AnswerBlock | ToolBlock):
                return block
        return None

    def _copy_one(self, found: list[str], what: str) -> None:
        """The only one at once; of several the chosen one."""
        if len(found) < 2:
            self.copy(found[0] if found else "", f"the {what}")
            return
        from k3agent.tui.screens.copying import CopyScreen  # lazy: only when asked for

        self.open_dialog(CopyScreen(found, what))

    def copy(self, text: str, what: str) -> None:
        if not text:
            self.say_briefly(f"nothing to copy: {what}")
            return
        self.app.copy_to_clipboard(text)
        self.say_briefly(f"copied {what} ({len(text):,} characters)")

    # --- other screens ---

    @work(exclusive=True, group="dialog")
    async def open_dialog(self, screen: Screen[Any]) -> None:
        result = await self.app.push_screen_wait(screen)
        if callable(result):
            result(self)

    def action_help(self) -> None:
        from k3agent.tui.screens.help import HelpScreen  # lazy: only when asked for

        self.open_dialog(HelpScreen())

    def action_search(self) -> None:
        from k3agent.tui.screens.search import SearchScreen  # lazy: only when asked for

        self.open_dialog(SearchScreen(self.transcript))

    def action_match(self, step: int) -> None:
        if self.transcript.query_text:
            self.transcript.search(self.transcript.query_text, step)

    def action_sessions(self) -> None:
        from k3agent.tui.screens.sessions import SessionsScreen  # lazy: only when asked for

        self.open_dialog(SessionsScreen())

    def action_rewind(self) -> None:
        prompts = [
            block for block in self.transcript.blocks if isinstance(block, UserBlock) and block.message_id
        ]
        if not prompts or self.driver.is_busy:
            self.say_briefly("nothing to rewind" if not prompts else "interrupt the turn first (Esc)")
            return
        from k3agent.tui.screens.rewind import RewindScreen  # lazy: only when asked for

        self.open_dialog(RewindScreen(prompts))

    def action_settings(self) -> None:
        from k3agent.tui.screens.settings import SettingsScreen  # lazy: only when asked for

        self.open_dialog(SettingsScreen())

    def action_models(self) -> None:
        from k3agent.tui.screens.models import ModelsScreen  # lazy: only when asked for

        self.open_dialog(ModelsScreen())

    def action_doctor(self) -> None:
        from k3agent.tui.screens.doctor import DoctorScreen  # lazy: only when asked for

        self.open_dialog(DoctorScreen())

    def action_engine(self) -> None:
        from k3agent.tui.screens.engine import EngineScreen  # lazy: only when asked for

        self.open_dialog(EngineScreen())

    def action_panel(self, name: str) -> None:
        from k3agent.tui.screens.panels import panel_screen  # lazy: only when asked for

        screen = panel_screen(self, name)
        if screen is not None:
            self.open_dialog(screen)

    # --- sessions ---

    @work(group="export")
    async def export_session(self, session_id: str, name: str) -> None:
        from k3agent.tui.sessionfiles import export_to  # lazy: only when asked for

        try:
            path = await asyncio.to_thread(export_to, self.app.options, session_id, name)
        except (K3AgentError, OSError) as error:
            self.notice(f"not exported: {error}", "error")
            return
        self.notice(f"written to {path}", "good")

    @work(exclusive=True, group="start")
    async def switch_session(self, session_id: str | None, forks: bool = False) -> None:
        """Leave this session and open another in its place."""
        self.panel.clear()
        self.line.status.begin("starting")
        self.transcript.load([self.welcome])
        self.line.status.step = self.line.status.total = type(self.line.status.step)()
        self.line.status.cost_usd = 0.0
        await self.driver.switch(session_id, forks=forks)
        self.focus_prompt()

    @work(exclusive=True, group="start")
    async def change_model(self, settings: Settings) -> None:
        """A new session with another model."""
        await self.driver.drop_client(settings)
        self.switch_session(None)

    @work(exclusive=True, group="rewind")
    async def ask_rewind(self, block: UserBlock) -> None:
        """Back to before this prompt, and the files too, if the user wants: asked where some have changed."""
        session = self.driver.session
        if session is None or self.driver.is_busy:
            return
        ids = [message.id for message in session.messages]
        later = list(itertools.dropwhile(lambda name: name != block.message_id, ids))
        try:
            undo = session.undo
            row = undo.first_of(later)
            preview = None if row is None else await asyncio.to_thread(undo.preview, row)
        except K3AgentError as error:
            self.notice(f"files cannot be brought back: {error}", "error")
            preview = None
        if preview is None or preview.is_empty:
            self.rewind_to(block)
            return
        from k3agent.tui.screens.rewind import RewindWhatScreen  # lazy: only when asked for

        self.open_dialog(RewindWhatScreen(block, preview))

    @work(exclusive=True, group="rewind")
    async def rewind_files(self, block: UserBlock, preview: Preview, *, with_talk: bool) -> None:
        """Bring the files back to before this prompt."""
        session = self.driver.session
        if session is None or self.driver.is_busy:
            return
        try:
            outcome = await session.undo.restore_aside(preview, is_told=with_talk)
        except K3AgentError as error:
            self.notice(str(error), "error")
            return
        for path, reason in outcome.failures.items():
            self.notice(f"not restored: {path}: {reason}", "error")
        if with_talk:
            self.rewind_to(block)
        back = f"k3agent undo --session {session.id} --to {outcome.seq}"
        self.notice(f"{len(preview.paths)} files restored. To take this back: {back}")

    def rewind_to(self, block: UserBlock) -> None:
        """Back to before this prompt; its text is in the prompt again."""
        session = self.driver.session
        if session is None or self.driver.is_busy:
            return
        try:
            text = session.rewind(block.message_id)  # type: ignore[arg-type]  # an id from a message
        except K3AgentError as error:
            self.notice(str(error), "error")
            return
        blocks = self.transcript.blocks
        self.transcript.load(blocks[: blocks.index(block)])
        self.presenter.measure(session.messages)
        self.prompt.text = text
        self.prompt.move_cursor(self.prompt.document.end)
        self.notice("The conversation goes on from here.")
        self.focus_prompt()
