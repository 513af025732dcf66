"""The question before a call runs: what exactly, why it is asked, and the answers.

It never takes a key that was meant for something else: it arms only after a pause in typing, and answers
are single keys of its own, never Enter or Space.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rich.segment import Segment
from rich.text import Text
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from k3agent.tui.keymap import APPROVAL_KEYS, bindings
from k3agent.tui.safe import safe
from k3agent.tui.theme import Palette
from k3agent.tui.widgets.block import Row, indent, segments, strip_of, wrap
from k3agent.tui.widgets.code import highlight, language_of
from k3agent.tui.widgets.diff import Line, diff_rows, parse_diff
from k3agent.tui.widgets.markdown import wrap_code
from k3agent.tui.widgets.toolcall import pretty_arguments

MAX_PREVIEW = 1_000
# So many rows of what is asked about stay in view above the answers.
MIN_VIEW = 3
ASK = "ask"
PLAN = "plan"
RUN_ANSWERS = (
    ("y", "yes, once"),
    ("e", "edit first"),
    ("n", "no"),
    ("d", "no, and say what to do instead"),
)
PLAN_ANSWERS = (
    ("y", "yes, do it and ask before changes"),
    ("s", "yes, and edit files without asking"),
    ("e", "change the plan first"),
    ("n", "no, go on planning"),
)


@dataclass(frozen=True)
class Request:
    """What is asked. For the tool `ask`, `summary` is the question and `reason` its choices, one a line; for
    `plan` (the turn has ended in plan mode) `summary` is the plan. `preview`: what the call would change.
    """

    call_id: str
    tool: str
    summary: str
    reason: str
    arguments: str = "{}"
    rules: tuple[str, ...] = ()
    preview: str = ""

    @property
    def is_question(self) -> bool:
        return self.tool == ASK

    @property
    def is_plan(self) -> bool:
        return self.tool == PLAN

    @property
    def choices(self) -> list[str]:
        return [line for line in self.reason.split("\n") if line.strip()] if self.is_question else []

    @property
    def value(self) -> dict[str, object]:
        try:
            value = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}


class ApprovalPanel(ScrollView, can_focus=True):
    """Shows the oldest open request; the screen decides when it is armed and gets the focus."""

    DEFAULT_CSS = """
    ApprovalPanel {
        height: auto; max-height: 60%; border: round $warning; padding: 0 1; background: $background;
        overflow-y: auto; overflow-x: hidden; scrollbar-size-vertical: 1; display: none;
        border-title-color: $warning; border-subtitle-color: $k3-dim;
        &.shown { display: block; }
        &:focus { border: heavy $warning; }
    }
    """
    BINDINGS = bindings(APPROVAL_KEYS)

    class Answered(Message):
        """`how`: once, session, always, edit, deny, words; or choice with `text`."""

        def __init__(self, request: Request, how: str, text: str = "") -> None:
            super().__init__()
            self.request = request
            self.how = how
            self.text = text

    def __init__(self, palette: Palette) -> None:
        super().__init__(id="approval")
        self.palette = palette
        self.requests: list[Request] = []
        self.is_armed = False
        self._strips: list[Strip] = []
        #: why it is asked, and the answers: always in view, below what scrolls
        self._pinned: list[Strip] = []

    @property
    def current(self) -> Request | None:
        return self.requests[0] if self.requests else None

    def ask(self, request: Request) -> None:
        self.requests.append(request)
        if len(self.requests) == 1:
            self.is_armed = False
        self.show()

    def settle(self, call_id: str) -> None:
        """The request is answered, or its call is gone."""
        before = self.current
        self.requests = [request for request in self.requests if request.call_id != call_id]
        if self.current is not before:
            self.is_armed = False
        self.show()

    def clear(self) -> None:
        self.requests = []
        self.is_armed = False
        self.show()

    def arm(self) -> None:
        self.is_armed = True
        self.show()

    def show(self) -> None:
        """Lay out the current request."""
        request = self.current
        self.set_class(request is not None, "shown")
        if request is None:
            return
        more = f" (and {len(self.requests) - 1} more)" if len(self.requests) > 1 else ""
        title = "The model asks" if request.is_question else f"May {request.tool} do this?"
        title = "Shall this plan be carried out?" if request.is_plan else title
        self.border_title = f"{title}{more}".replace("[", "\\[")
        self._lay_out()
        self._tell_keys()

    def _tell_keys(self) -> None:
        if not self.is_armed:
            self.border_subtitle = "keys answer after a pause in typing"
        elif self._can_scroll:
            last = min(self.scroll_offset.y + self._room, len(self._strips))
            self.border_subtitle = f"line {last} of {len(self._strips)} · ↑ ↓ PgUp PgDn"
        else:
            self.border_subtitle = ""

    @property
    def _room(self) -> int:
        """Rows above the pinned ones."""
        return max(self.scrollable_content_region.height - len(self._pinned), 0)

    @property
    def _can_scroll(self) -> bool:
        return MIN_VIEW <= self._room < len(self._strips)

    def _lay_out(self) -> None:
        request = self.current
        width = self.scrollable_content_region.width or (self.app.size.width - 4)
        if request is None or width <= 0:
            return
        palette = self.palette
        rows, pinned = self.rows(request, width)
        base = palette.style("text", bg="background")
        self._strips = [strip_of(row, width, base) for row in rows]
        self._pinned = [strip_of(row, width, base) for row in pinned]
        self.virtual_size = Size(width, len(self._strips) + len(self._pinned))
        self.scroll_to(y=0, animate=False)
        self.refresh(layout=True)

    def on_resize(self, event: events.Resize) -> None:
        if self._strips and self._strips[0].cell_length != self.scrollable_content_region.width:
            self._lay_out()
        self._tell_keys()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._tell_keys()
        # The pinned rows do not move with the others.
        self.refresh()

    def set_palette(self, palette: Palette) -> None:
        self.palette = palette
        self.show()

    def render_line(self, y: int) -> Strip:
        at, room = y + self.scroll_offset.y, self._room
        if room >= MIN_VIEW and y >= room:
            at = len(self._strips) + y - room
        strips = [*self._strips, *self._pinned]
        if at < len(strips):
            return strips[at]
        return Strip.blank(self.size.width, self.palette.style("text", bg="background"))

    # --- what is shown ---

    def rows(self, request: Request, width: int) -> tuple[list[Row], list[Row]]:
        """What scrolls, and what stays below it."""
        palette = self.palette
        if request.is_question:
            return self._question(request, width), []
        if request.is_plan:
            # The plan itself stands above, in the conversation.
            return [], self._answers(PLAN_ANSWERS, width)
        why = Text(f"Why it asks: {safe(request.reason)}", style=palette.style("dim"))
        pinned: list[Row] = [[], *wrap(why, width)]
        answers = list(RUN_ANSWERS)
        if request.rules:
            rule = safe(" and ".join(request.rules))
            answers[1:1] = [("s", f"yes, and {rule} for this session"), ("a", "the same for good")]
        return _preview(request, width, palette), pinned + self._answers(answers, width)

    def _answers(self, entries: Sequence[tuple[str, str]], width: int) -> list[Row]:
        """The keys with their meaning; no entry is torn apart where it fits on a line."""
        palette = self.palette
        key = palette.style("warn" if self.is_armed else "faint", bold=True)
        words = palette.style("text" if self.is_armed else "dim")
        rows: list[Row] = []
        room = 0
        for letter, what in entries:
            entry = Text.assemble((letter, key), (f" {what}   ", words))
            if entry.cell_len - 3 > room:
                rows.append([])
                room = width
            if entry.cell_len - 3 > width:
                rows[-1:] = wrap(entry, width)
                room = 0
                continue
            rows[-1] += segments(entry)
            room -= entry.cell_len
        return rows

    def _question(self, request: Request, width: int) -> list[Row]:
        palette = self.palette
        rows = wrap(Text(safe(request.summary), style=palette.style("text", bold=True)), width)
        key = palette.style("warn" if self.is_armed else "faint", bold=True)
        for number, choice in enumerate(request.choices, 1):
            text = Text(safe(choice), style=palette.style("text"))
            rows += indent(wrap(text, width - 4), [Segment(f" {number}  ", key)])
        hint = "Type the answer below and press Enter"
        rows += wrap(
            Text(hint + (", or a number here." if request.choices else "."), palette.style("dim")), width
        )
        return rows

    # --- answers ---

    def action_answer(self, how: str) -> None:
        request = self.current
        if request is None or not self.is_armed or request.is_question:
            return
        known = ("once", "session", "edit", "deny") if request.is_plan else None
        if known is None and how in ("session", "always") and not request.rules:
            known = ()
        if known is not None and how not in known:
            self.app.bell()
            return
        self.post_message(self.Answered(request, how))

    def on_key(self, event: events.Key) -> None:
        request = self.current
        if request is None or not request.is_question or not self.is_armed or not event.character:
            return
        if event.character.isdigit() and 0 < int(event.character) <= len(request.choices):
            event.stop()
            self.post_message(self.Answered(request, "choice", request.choices[int(event.character) - 1]))


def _preview(request: Request, width: int, palette: Palette) -> list[Row]:
    """Exactly what would run or change."""
    value = request.value
    command, path = value.get("command"), value.get("path")
    rows: list[Row] = []
    if isinstance(command, str):
        for line in highlight(safe(command), "bash", palette).split("\n", allow_blank=True):
            rows += indent(
                wrap_code(line, width - 2), [Segment("$ " if not rows else "  ", palette.style("accent"))]
            )
        others = {name: entry for name, entry in value.items() if name != "command"}
        if others:
            text = safe(pretty_arguments(json.dumps(others, ensure_ascii=False)))
            rows += wrap(Text(text, style=palette.style("dim")), width)
        return rows
    rows += wrap(Text(safe(request.summary), style=palette.style("text", bold=True)), width)
    if request.preview:
        lines = parse_diff(request.preview)
        language = language_of(path) if isinstance(path, str) else ""
        rows += diff_rows(lines[:MAX_PREVIEW], width, palette, language)
        if len(lines) > MAX_PREVIEW:
            note = f"… {len(lines) - MAX_PREVIEW:,} more lines are not shown"
            rows += wrap(Text(note, style=palette.style("warn")), width)
        return rows
    old, new = value.get("old"), value.get("new", value.get("content"))
    if isinstance(path, str) and isinstance(new, str):
        lines = [Line("-", line) for line in safe(old).split("\n")] if isinstance(old, str) else []
        lines += [Line("+", line) for line in safe(new).rstrip("\n").split("\n")]
        return rows + diff_rows(lines[:MAX_PREVIEW], width, palette, language_of(path))
    patch = value.get("patch")
    if isinstance(patch, str):
        lines = [Line(line[:1] if line[:1] in "+- @" else "h", line[1:] if line[:1] in "+- " else line)
                 for line in safe(patch).split("\n")]  # fmt: skip
        return rows + diff_rows(lines[:MAX_PREVIEW], width, palette)
    return rows + wrap(Text(safe(pretty_arguments(request.arguments)), style=palette.style("dim")), width)
