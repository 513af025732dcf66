"""Changed files with their differences, and background jobs."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import work
from textual.binding import Binding, BindingType

from k3agent.errors import K3AgentError, StoreError
from k3agent.store.worktree import finished, harmless
from k3agent.tui.safe import safe, safe_line
from k3agent.tui.screens.dialog import ListScreen
from k3agent.tui.widgets.code import language_of
from k3agent.tui.widgets.diff import diff_rows, parse_diff

if TYPE_CHECKING:
    from k3agent.agent.session import Session
    from k3agent.agent.watched import WatchedSession
    from k3agent.tui.screens.chatbase import ChatBase

MAX_DIFF_CHARS = 400_000
TAIL_BYTES = 40_000
GIT_LIMIT_S = 20


def panel_screen(chat: ChatBase, name: str) -> ListScreen | None:
    """The dialog of that name; None for what is shown in the chat itself."""
    if name == "todos":
        chat.toggle_todos()
        return None
    return ChangesScreen() if name == "changes" else JobsScreen()


class ChangesScreen(ListScreen):
    """Files that this session or anybody else changed, and their differences to the last commit."""

    heading = "Changed files"
    hint = "^R brings back the chosen one as it was before this session · Esc closes"
    empty = "no file has been changed"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+r", "restore", "bring back", priority=True)]
    DEFAULT_CSS = (
        "ChangesScreen .preview { height: 75%; } ChangesScreen .dialog { max-width: 100%; width: 96%; }"
    )

    def on_mount(self) -> None:
        session = self.app.chat.driver.session
        self._ours = list(session.receipt.files_changed) if session is not None else []
        self._files = dict.fromkeys(self._ours, "this session")
        # The file whose restore has been asked for once.
        self._asked: str | None = None
        super().on_mount()
        self._ask_git()

    @work(thread=True)
    def _ask_git(self) -> None:
        said = _git(self.app.options.cwd, "status", "--porcelain", "-z", "--no-renames")
        found = {entry[3:]: entry[:2].strip() for entry in said.split("\0") if len(entry) > 3}
        self.app.call_from_thread(self._found, found)

    def _found(self, found: dict[str, str]) -> None:
        for path, state in found.items():
            ours = "this session, " if path in self._ours else ""
            self._files[path] = f"{ours}git: {'new' if state == '??' else state}"
        self.refill(self.chosen)

    def entries(self, words: str) -> Sequence[tuple[str, Text]]:
        palette = self.app.palette
        found: list[tuple[str, Text]] = []
        for path, state in self._files.items():
            if words.casefold() in path.casefold():
                text = Text(safe_line(path), palette.style("text"), no_wrap=True)
                text.append(f"  {state}", palette.style("faint"))
                found.append((path, text))
        return found

    def describe(self, entry: str) -> Text:
        self._show(entry)
        return Text("…")

    @work(thread=True, exclusive=True, group="diff")
    def _show(self, entry: str) -> None:
        cwd = self.app.options.cwd
        said = _git(cwd, "diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv", "--", entry)
        if not said:
            said = _git(
                cwd,
                "diff",
                "--no-index",
                "--no-color",
                "--no-ext-diff",
                "--no-textconv",
                "--",
                "/dev/null",
                entry,
            )
        self.app.call_from_thread(self._shown, entry, said[:MAX_DIFF_CHARS])

    def _shown(self, entry: str, said: str) -> None:
        if self.chosen != entry:
            return
        width = max(self.preview_box.scrollable_content_region.width - 1, 40)
        lines = [line for line in parse_diff(said) if line.kind != "h"]
        text = Text(no_wrap=True)
        for row in diff_rows(lines, width, self.app.palette, language_of(entry)):
            for part in row:
                text.append(part.text, part.style)
            text.append("\n")
        self.preview.update(text if lines else Text("no difference to the last commit, or no text file"))

    def take(self, entry: str) -> None:
        self.dismiss(None)

    @work(exclusive=True, group="restore")
    async def action_restore(self) -> None:
        """The chosen file as it was before the first step of this session; asked a second time."""
        session, entry = self.app.chat.driver.session, self.chosen
        if session is None or entry is None:
            return
        try:
            said = await self._restore(session, str(self.app.options.cwd.resolve() / entry), entry)
        except K3AgentError as error:
            said = str(error)
        self.say(said)

    async def _restore(self, session: Session | WatchedSession, path: str, entry: str) -> str:
        undo = session.undo
        first = undo.first()
        if first is None:
            return "no step of this session has changed files"
        preview = (await asyncio.to_thread(undo.preview, first)).reduced(path)
        if preview.is_empty:
            return f"{entry} is as it was before this session"
        if self._asked != entry:
            self._asked = entry
            what = preview.actions[0][0] if len(preview.actions) == 1 else "restore"
            return f"^R again: {what} {entry}"
        self._asked = None
        outcome = await undo.restore_aside(preview)
        self._show(entry)
        for failed, reason in outcome.failures.items():
            return f"not restored: {failed}: {reason}"
        return f"{entry} is restored; to take this back: k3agent undo --to {outcome.seq}"


class JobsScreen(ListScreen):
    """Background commands with the end of their output."""

    heading = "Background jobs"
    hint = "^K ends the chosen one · ^L looks again · Esc closes"
    empty = "no background jobs"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+k", "kill", "end it", priority=True),
        Binding("ctrl+l", "again", "look again", priority=True),
    ]
    DEFAULT_CSS = "JobsScreen .preview { height: 60%; }"

    def entries(self, words: str) -> Sequence[tuple[str, Text]]:
        session = self.app.chat.driver.session
        palette = self.app.palette
        found: list[tuple[str, Text]] = []
        for job in session.jobs if session is not None else ():
            text = Text(no_wrap=True)
            text.append(f"{job.id}  ", palette.style("accent"))
            text.append(f"{safe_line(job.command, 80)}  ", palette.style("text"))
            text.append(safe_line(job.status), palette.style("warn" if job.ended is None else "faint"))
            found.append((job.id, text))
        return found

    def describe(self, entry: str) -> str:
        session = self.app.chat.driver.session
        job = next((job for job in session.jobs if job.id == entry), None) if session is not None else None
        if job is None:
            return ""
        try:
            with Path(job.output).open("rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - TAIL_BYTES))
                return safe(file.read().decode("utf-8", "replace")) or "(no output yet)"
        except OSError as error:
            return f"its output cannot be read: {error}"

    def action_again(self) -> None:
        self.refill(self.chosen)

    @work
    async def action_kill(self) -> None:
        session, entry = self.app.chat.driver.session, self.chosen
        if session is None or entry is None:
            return
        try:
            await session.kill_job(entry)
        except K3AgentError as error:
            self.app.notify(safe_line(str(error)), severity="error", markup=False)
        self.refill(entry)

    def take(self, entry: str) -> None:
        self.action_again()


def _git(cwd: Path, *argv: str) -> str:
    """What git says; nothing where there is no repository."""
    try:
        done = finished(["git", *argv], cwd, {**os.environ, **harmless(cwd)}, limit_s=GIT_LIMIT_S)
    except (OSError, StoreError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")
