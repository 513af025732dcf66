"""Settles the calls that a killed process left open, by looking at what is there.

A call that never started, only reads, or whose files are still as they were before it, is run now: nothing
happened. A file that changed shows that the edit took place. What a command did cannot be seen, and the
model is told so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

from k3agent.agent.dispatch import file_hashes
from k3agent.agent.repetition import digest
from k3agent.store.records import CallRow, CallState
from k3agent.types import Message, TextPart, ToolResult

UNKNOWN = (
    "k3agent was stopped while this command ran. Its outcome is unknown: check what it did before"
    " repeating it."
)


def settle(message: Message, rows: Iterable[CallRow], cwd: Path) -> dict[str, CallRow]:
    """The calls of `message` that are over, by id. Those that are missing may be run."""
    by_id = {row.call_id: row for row in rows}
    settled: dict[str, CallRow] = {}
    for call in message.calls:
        row = by_id.get(call.id)
        if row is None:
            continue
        if row.result is not None:
            settled[call.id] = row
        elif row.access.get("runs") is not None:
            settled[call.id] = _ended(row, UNKNOWN, CallState.INTERRUPTED)
        elif row.hashes:
            changed = _changed(row.hashes, cwd)
            if changed:
                text = (
                    f"Done: {', '.join(changed)} changed. (k3agent was stopped during this call and found"
                    " the change when it came back; read the file before you change it again.)"
                )
                settled[call.id] = dataclasses.replace(
                    _ended(row, text, CallState.DONE), files=tuple(changed)
                )
    return settled


def _changed(before: Mapping[str, str], cwd: Path) -> list[str]:
    now = file_hashes([Path(path) for path in before])
    changed = [Path(path) for path, value in now.items() if value != before[path]]
    return [str(path.relative_to(cwd)) if path.is_relative_to(cwd) else str(path) for path in changed]


def _ended(row: CallRow, text: str, state: CallState) -> CallRow:
    result = ToolResult(
        call_id=row.call_id, content=(TextPart(text=text),), is_error=state is not CallState.DONE
    )
    return dataclasses.replace(row, state=state, result=result, digest=digest(text))


def seen_files(rows: list[CallRow]) -> dict[str, str]:
    """What the model has seen of each file, put together from the calls of the session."""
    seen: dict[str, str] = {}
    for row in rows:
        seen.update(row.seen)
    return seen
