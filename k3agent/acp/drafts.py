"""Calls that the model is still writing: shown once that takes a moment, long files above all.

A call has no id before it is whole. One that was shown early keeps the id that it was shown under.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from k3agent.acp import toolcalls
from k3agent.types import JsonObject, ToolCall

SHOWN_AFTER_S = 0.5
# Where a call says early what it is about.
MAX_HEAD_CHARS = 2_000
_SUBJECT = re.compile(r'"(?:path|command|pattern|title|server)"\s*:\s*"((?:[^"\\]|\\.){1,200})"')


@dataclass(slots=True)
class _Draft:
    tool: str
    begun_at: float = field(default_factory=time.monotonic)
    head: str = ""
    shown_id: str = ""
    title: str = ""


class Drafts:
    """`send` takes one update."""

    def __init__(self, send: Callable[[JsonObject], None]) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._open: dict[int, _Draft] = {}
        self._ids: dict[str, str] = {}

    def id_of(self, call_id: str) -> str:
        """The id under which an editor knows the call."""
        return self._ids.get(call_id, call_id)

    def is_shown(self, call_id: str) -> bool:
        return call_id in self._ids

    def streamed(self, index: int, tool: str, text: str) -> None:
        """A piece of the arguments of the answer's call number `index`."""
        draft = self._open.setdefault(index, _Draft(tool))
        if len(draft.head) < MAX_HEAD_CHARS:
            draft.head += text[:MAX_HEAD_CHARS]
        if time.monotonic() - draft.begun_at < SHOWN_AFTER_S:
            return
        subject = _SUBJECT.search(draft.head)
        title = toolcalls.shown(f"{tool} {subject[1]}" if subject else tool)
        if not draft.shown_id:
            draft.shown_id, draft.title = f"draft-{next(self._numbers)}", title
            kind = toolcalls.kind_of(tool)
            self._send(
                {
                    "sessionUpdate": "tool_call",
                    "toolCallId": draft.shown_id,
                    "title": title,
                    "kind": kind,
                    "status": "pending",
                }
            )
        elif title != draft.title:
            draft.title = title
            self._send({"sessionUpdate": "tool_call_update", "toolCallId": draft.shown_id, "title": title})

    def settle(self, calls: Sequence[ToolCall]) -> None:
        """The answer is whole: its calls are those that were written, in their order."""
        for (_, draft), call in zip(sorted(self._open.items()), calls, strict=False):
            if draft.shown_id:
                self._ids[call.id] = draft.shown_id
                draft.shown_id = ""
        self.drop()

    def drop(self) -> None:
        """What was being written will not become a call."""
        for draft in self._open.values():
            if draft.shown_id:
                self._send(
                    {"sessionUpdate": "tool_call_update", "toolCallId": draft.shown_id, "status": "failed"}
                )
        self._open.clear()

    def forget(self) -> None:
        """The turn is over."""
        self.drop()
        self._ids.clear()
