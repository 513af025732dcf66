"""Settles the calls that a killed process left open, by looking at what is there.

A call that never started, only reads, or whose files are still as they were before it, is run now: nothing
happened. A file that changed shows that the edit took place. What a command did cannot be seen as a whole:
the model is told so, with what its processes, its output and the repository show. A file in which changes
were tried is put back. Of a foreign tool nothing can be seen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from k3agent.agent import git_marks
from k3agent.agent.hashes import file_hashes
from k3agent.agent.repetition import digest
from k3agent.store.records import CallRow, CallState
from k3agent.types import Message, TextPart, ToolResult

if TYPE_CHECKING:  # tools bring pydantic, 0.1 s
    from k3agent.tools.jobs import Orphan

UNKNOWN = (
    "k3agent was stopped while this command ran. Its outcome is unknown: check what it did before"
    " repeating it."
)
DURING = "(k3agent was stopped during this call"
CAME_BACK = f"{DURING} and found the change when it came back; read the file before you change it again.)"
UNKNOWN_CALL = f"{DURING}. Its outcome is unknown: check what it did before repeating it.)"
MAX_OUTPUT_BYTES = 4000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """Where to look: the workspace, the folder of the outputs, the commands that the killed process
    ran, and what hides secrets.
    """

    cwd: Path
    outputs: Path
    orphans: Sequence[Orphan] = ()
    mask: Callable[[str], str] = str


def is_settled(text: str) -> bool:
    """Whether this is the result of a call whose process died during it."""
    return UNKNOWN in text or DURING in text


def settle(message: Message, rows: Iterable[CallRow], traces: Traces) -> dict[str, CallRow]:
    """The calls of `message` that are over, by id. Those that are missing may be run."""
    by_id = {row.call_id: row for row in rows}
    settled: dict[str, CallRow] = {}
    for call in message.calls:
        row = by_id.get(call.id)
        if row is None:
            continue
        if row.result is not None:
            settled[call.id] = row
        elif row.access.get("runs") is not None and row.access.get("writes"):
            settled[call.id] = _of_trial(row, traces)
        elif row.access.get("runs") is not None:
            text = traces.mask(_told_of_command(row, traces))
            settled[call.id] = _ended(row, text, CallState.INTERRUPTED)
        elif row.access.get("calls") is not None:
            settled[call.id] = _ended(row, UNKNOWN_CALL, CallState.INTERRUPTED)
        elif row.hashes:
            found = _of_edit(row, traces.cwd)
            if found is not None:
                settled[call.id] = found
    return settled


# --- edits --------------------------------------------------------------------------------------------------


def _of_edit(row: CallRow, cwd: Path) -> CallRow | None:
    """None: no file of it has changed, so it may be run."""
    from k3agent.tools.support.textio import remove_leftovers  # lazy: tools bring pydantic

    for folder in {Path(path).parent for path in row.hashes}:
        remove_leftovers(folder)
    now = file_hashes([Path(path) for path in row.hashes])
    changed = [_shown(path, cwd) for path, value in now.items() if value != row.hashes[path]]
    same = [_shown(path, cwd) for path, value in now.items() if value == row.hashes[path]]
    if not changed:
        return None
    if same:
        text = f"Done in part: {', '.join(changed)} changed, {', '.join(same)} did not. {CAME_BACK}"
    else:
        text = f"Done: {', '.join(changed)} changed. {CAME_BACK}"
    ended = _ended(row, text, CallState.INTERRUPTED if same else CallState.DONE)
    return dataclasses.replace(ended, files=tuple(changed))


def _of_trial(row: CallRow, traces: Traces) -> CallRow:
    """Its processes are gone by now. A change that was found is there to stay; one that was tried is not."""
    from k3agent.tools.support.originals import bring_back  # lazy: tools bring pydantic
    from k3agent.tools.support.textio import remove_leftovers

    places = [Path(path) for path in row.access["writes"]]
    for folder in {path.parent for path in places}:
        remove_leftovers(folder)
    outcomes = {path: bring_back(traces.outputs, path) for path in places}
    now = file_hashes(places)
    changed = [path for path in places if now[str(path)] != row.hashes.get(str(path))]
    names = [_shown(str(path), traces.cwd) for path in changed]
    if changed and set(outcomes.values()) == {"none"}:
        ended = _ended(row, f"Done: {', '.join(names)} changed. {CAME_BACK}", CallState.DONE)
        return dataclasses.replace(ended, files=tuple(names))
    if names:
        text = f"{DURING}. {', '.join(names)} may hold one of the changes that were tried: read it.)"
    else:
        back = next((path for path in places if outcomes[path] == "back"), places[0])
        text = f"{DURING}. {_shown(str(back), traces.cwd)} is as it was before it.)"
    return _ended(row, text, CallState.INTERRUPTED)


def _shown(path: str, cwd: Path) -> str:
    place = Path(path)
    return str(place.relative_to(cwd)) if place.is_relative_to(cwd) else path


# --- commands -----------------------------------------------------------------------------------------------


def _told_of_command(row: CallRow, traces: Traces) -> str:
    lines = [UNKNOWN]
    orphan = next((item for item in traces.orphans if item.command == str(row.access["runs"])[:200]), None)
    if orphan is not None and orphan.was_running:
        lines.append("Its processes were still running, and have been ended.")
    else:
        lines.append("None of its processes is running.")
    lines += _told_of_git(row.hashes, traces.cwd)
    said = "" if orphan is None else _tail(orphan.output)
    if said:
        lines.append(f"What it had printed:\n{said}")
    return "\n".join(lines)


def _told_of_git(before: Mapping[str, str], cwd: Path) -> list[str]:
    """Whether HEAD moved. A lock that came with the command goes with it: nobody else could take it away."""
    if not before:
        return []
    now = file_hashes([Path(path) for path in before])
    changed = [Path(path) for path, value in now.items() if value != before[path]]
    locks = [path for path in changed if path.suffix == ".lock" and before[str(path)] == "" and path.exists()]
    moved = "has moved since it began" if len(changed) > len(locks) else "has not moved"
    said = [f"HEAD of the repository {moved}."]
    is_in_use = bool(locks) and git_marks.is_in_use(cwd)
    for path in locks:
        if not is_in_use:
            path.unlink(missing_ok=True)
        said.append(f"It left the lock {path.name} of git{', still there' if is_in_use else ': removed'}.")
    return said


def _tail(output: Path) -> str:
    from k3agent.tools.support.truncate import clean  # lazy: tools bring pydantic

    try:
        with output.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - MAX_OUTPUT_BYTES))
            return clean(stream.read(MAX_OUTPUT_BYTES).decode("utf-8", "replace")).rstrip()
    except OSError:
        return ""


# ------------------------------------------------------------------------------------------------------------


def _ended(row: CallRow, text: str, state: CallState) -> CallRow:
    result = ToolResult(
        call_id=row.call_id, content=(TextPart(text=text),), is_error=state is not CallState.DONE
    )
    return dataclasses.replace(row, state=state, result=result, digest=digest(text))
