"""Earlier sessions: search, preview, go on, fork, rename, export, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.binding import Binding, BindingType
from textual.timer import Timer
from textual.worker import get_current_worker

from k3agent.errors import K3AgentError
from k3agent.store.records import SessionRow
from k3agent.store.sessions import SessionStore
from k3agent.tui.safe import safe, safe_line
from k3agent.tui.screens.dialog import AskScreen, ListScreen
from k3agent.tui.sessionfiles import export_to
from k3agent.types import Message, Origin, Role

PREVIEWED = 12
PREVIEW_CHARS = 600
MAX_SAID = 120
# What was said is searched after a pause in typing, from so many letters on.
MIN_LETTERS, PAUSE_S, MAX_HITS = 3, 0.3, 60


class SessionsScreen(ListScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+f", "fork", "fork", priority=True),
        Binding("ctrl+r", "rename", "rename", priority=True),
        Binding("ctrl+e", "export", "export", priority=True),
        Binding("ctrl+d", "delete", "delete", priority=True),
        Binding("tab", "scope", "scope", priority=True),
    ]
    heading = "Sessions of this folder"
    hint = "Enter opens · ^F fork · ^R rename · ^E export · ^D delete · Tab all · Esc"
    empty = "no session yet"

    def on_mount(self) -> None:
        self._is_everywhere = False
        self.store = SessionStore(self.app.options.home)
        self._rows: dict[str, SessionRow] = {}
        #: the words that were looked for in what was said, and what was found: a piece of text by session
        self._said: tuple[str, dict[str, str]] = ("", {})
        self._waiting: Timer | None = None
        self._reload()
        super().on_mount()

    def on_unmount(self) -> None:
        self.store.close()

    def _reload(self) -> None:
        where = None if self._is_everywhere else self.app.options.cwd
        current = self.app.chat.driver.session
        rows = self.store.list_sessions(where)
        self._rows = {
            row.id: row
            for row in rows
            if row.num_messages and not row.owner and (current is None or row.id != current.id)
        }
        self.empty = "no session yet" if current is None else "the open session is the only one"

    def entries(self, words: str) -> Sequence[tuple[str, Text]]:
        terms = words.casefold().split()
        found: list[tuple[str, Text]] = []
        for row in self._rows.values():
            hay = f"{row.title} {row.cwd} {row.model} {row.id}".casefold()
            if all(term in hay for term in terms):
                found.append((row.id, self._line(row)))
        self._search_later(words)
        if self._said[0] == words:
            known = {entry for entry, _ in found}
            for entry, said in self._said[1].items():
                if entry not in known and entry in self._rows:
                    found.append((entry, self._line(self._rows[entry], said)))
        return found

    def _search_later(self, words: str) -> None:
        if self._waiting is not None:
            self._waiting.stop()
        if len(words) >= MIN_LETTERS and words != self._said[0]:
            self._waiting = self.set_timer(PAUSE_S, lambda: self._search(words))

    @work(thread=True, exclusive=True, group="search")
    def _search(self, words: str) -> None:
        """In what was said in these sessions."""
        from k3agent.store.search import MARKS, search  # lazy: only for a search

        root = "" if self._is_everywhere else str(self.app.options.cwd.resolve())
        found: dict[str, str] = {}
        try:
            for hit in search(self.app.options.home, words, root=root, limit=MAX_HITS, marks=MARKS).hits:
                found.setdefault(hit.session_id, hit.excerpt)
        except K3AgentError as error:
            self.app.call_from_thread(self.say, str(error))
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._take_found, words, found)

    def _take_found(self, words: str, found: dict[str, str]) -> None:
        if self.is_running and self.filter.value.strip() == words:
            self._said = (words, found)
            self.refill(self.chosen)

    def _line(self, row: SessionRow, said: str = "") -> Text:
        palette = self.app.palette
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{_ago(row.updated_at):>9}  ", palette.style("dim"))
        text.append(safe_line(row.title, 90) or "(no title)", palette.style("text"))
        text.append(f"  {row.num_messages} messages", palette.style("faint"))
        if said:
            text.append_text(self._excerpt(said))
        if row.parent_id:
            text.append("  fork", palette.style("accent"))
        if self._is_everywhere and row.cwd:
            text.append(f"  {safe_line(Path(row.cwd).name)}", palette.style("accent"))
        return text

    def _excerpt(self, said: str) -> Text:
        """What was found stands out of it."""
        from k3agent.store.search import pieces  # lazy: as above

        palette = self.app.palette
        text = Text()
        for part, is_hit in pieces(said):
            text.append(safe(part), palette.style("text" if is_hit else "dim", bold=is_hit, italic=True))
        text.truncate(MAX_SAID, overflow="ellipsis")
        quote = palette.style("dim", italic=True)
        return Text.assemble(("  “", quote), text, ("”", quote))

    def describe(self, entry: str) -> Text:
        self._preview(entry)
        return self._head(self._rows[entry])

    def _head(self, row: SessionRow) -> Text:
        about = f"{row.id} · {safe_line(row.model)} · {safe_line(row.cwd)}\n\n"
        return Text.assemble((about, self.app.palette.style("faint")))

    @work(thread=True, exclusive=True, group="preview")
    def _preview(self, entry: str) -> None:
        """Reading a long session takes a moment: the list must not wait for it."""
        row = self._rows[entry]
        try:
            # A connection belongs to its thread.
            with closing(SessionStore(self.app.options.home)) as store:
                text = self._text(row, store.messages(row.id))
        except K3AgentError as error:
            text = Text(safe(str(error)))
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._show_preview, entry, text)

    def _show_preview(self, entry: str, text: Text) -> None:
        if self.is_running and self.chosen == entry:
            self.preview.update(text)

    def _text(self, row: SessionRow, messages: Sequence[Message]) -> Text:
        palette, text = self.app.palette, self._head(row)
        shown = [
            message
            for message in messages
            if message.text.strip() and message.role is not Role.TOOL and message.origin is not Origin.HARNESS
        ]
        for message in shown[-PREVIEWED:]:
            is_user = message.role is Role.USER
            text.append("❯ " if is_user else "  ", palette.style("accent"))
            text.append(
                safe(message.text[:PREVIEW_CHARS]).strip() + "\n\n",
                palette.style("text" if is_user else "dim"),
            )
        return text

    def take(self, entry: str) -> None:
        self.dismiss(lambda chat: chat.switch_session(entry))

    def action_scope(self) -> None:
        self._is_everywhere = not self._is_everywhere
        self._said = ("", {})
        self.body.border_title = "Sessions of all folders" if self._is_everywhere else self.heading
        self._reload()
        self.refill()

    def action_fork(self) -> None:
        entry = self.chosen
        if entry is not None:
            self.dismiss(lambda chat: chat.switch_session(entry, True))

    @work
    async def action_rename(self) -> None:
        entry = self.chosen
        if entry is None:
            return
        row = self._rows[entry]
        title = await self.app.push_screen_wait(AskScreen("The session's title", row.title))
        if title is None or not title.strip():
            return
        self._change(lambda: self.store.rename(row.id, title.strip()), entry)

    @work
    async def action_export(self) -> None:
        entry = self.chosen
        if entry is None:
            return
        name = await self.app.push_screen_wait(
            AskScreen("Export as a file ending in .md, .html or .json", f"session-{entry[:8]}.md")
        )
        if not name:
            return
        try:
            path = await asyncio.to_thread(export_to, self.app.options, self._rows[entry].id, name)
        except (K3AgentError, OSError) as error:
            self.say(str(error))
            return
        self.say(f"written to {path}")

    @work
    async def action_delete(self) -> None:
        entry = self.chosen
        if entry is None:
            return
        row = self._rows[entry]
        question = (
            f"Delete “{row.title}” with {row.num_messages} messages for good? Type yes and press Enter."
        )
        said = await self.app.push_screen_wait(AskScreen(question))
        if said is not None and said.strip().lower() == "yes":
            self._change(lambda: self.store.delete(row.id), entry)

    def _change(self, change: object, entry: str) -> None:
        try:
            change()  # type: ignore[operator]  # a call without arguments
        except K3AgentError as error:
            self.say(str(error))
        self._reload()
        self.refill(entry)


def _ago(at: datetime) -> str:
    seconds = (datetime.now(UTC) - at).total_seconds()
    if seconds < 90:
        return "just now"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 129_600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:.0f} days" if seconds < 86_400 * 60 else f"{at:%Y-%m-%d}"
