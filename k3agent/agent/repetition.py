"""Finds a model that goes in circles: the same call with the same result, with nothing changed in between.

What lies between two equal calls does not matter, only whether the work moved on: a file in a state that it
did not have before in this turn, or a command that was not run before in it (it may have changed anything).
Everything is worked out from rows, so a resumed turn is judged like one that never stopped.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from k3agent.agent.arguments import ArgumentsInvalid, canonical, parse_object
from k3agent.providers.base import Profile
from k3agent.store.records import CallRow, CallState
from k3agent.types import MessageId

NOTICE_AT = 3
REFUSE_AT = 5
# How often a call, or a kind of failure, is seen before the turn ends.
END_AT = {Profile.FULL: 8, Profile.COMPACT: 3}
END_AT_FAILURES = {Profile.FULL: 8, Profile.COMPACT: 4}
MAX_INVALID_STEPS = 3
# Calls that are farther apart than this many others are not the same circle.
WINDOW = 100
MAX_SHOWN = 100
TOLD_BY = ("path", "pattern", "command", "job")
# What differs between two runs of the same command without meaning anything.
VOLATILE = re.compile(
    r"0x[0-9a-f]{4,}|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|\d\d:\d\d:\d\d"
    r"|\d+(?:\.\d+)?\s?(?:ms|s|sec|seconds)\b"
)
UNSUCCESSFUL = (CallState.FAILED, CallState.INVALID, CallState.DENIED, CallState.REFUSED)
FAILED = (CallState.FAILED, CallState.REFUSED, CallState.DENIED)
# What these do not find now they will not find by being asked again.
SEARCHING = ("try",)

Sign = tuple[str, str, str]


def digest(text: str) -> str:
    """Of a result, timings and dates left out: near-identical results count as identical."""
    return hashlib.sha256(VOLATILE.sub("#", text).encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """How often this has come since the work last moved on, the new one included."""

    same: int
    failures: int


class RepetitionPolicy:
    """Keeps count for one turn."""

    def __init__(self, profile: Profile, rows: Sequence[CallRow] = ()) -> None:
        self._profile = profile
        self._rows: list[CallRow] = []
        self._calls: deque[Sign] = deque(maxlen=WINDOW)
        self._failures: deque[Sign] = deque(maxlen=WINDOW)
        self._states: set[tuple[str, str]] = set()
        self._commands: set[str] = set()
        self._reasons: dict[MessageId, str] = {}
        for row in rows:
            self.add(row)

    def add(self, row: CallRow) -> None:
        self._rows.append(row)
        if self._moves_on(row):
            self._calls.clear()
            self._failures.clear()
        text = "" if row.result is None else row.result.text
        repeats = self.repeats(row.tool, row.arguments, row.digest, text, row.state)
        sign = self._sign(row.tool, row.arguments, row.digest, row.state)
        self._calls.append(sign)
        if row.state in UNSUCCESSFUL:
            self._failures.append(_failure(row.tool, row.arguments, text))
        reason = self._reason(row, repeats)
        if reason:
            self._reasons[row.message_id] = reason

    def restart(self) -> None:
        """Something new came from outside: what was done before it no longer counts."""
        self._calls.clear()
        self._failures.clear()

    def repeats(self, tool: str, arguments: str, result_digest: str, text: str, state: CallState) -> Repeats:
        """Counts a call that is not added yet."""
        sign = self._sign(tool, arguments, result_digest, state)
        failures = 0
        if state in UNSUCCESSFUL:
            failures = 1 + self._failures.count(_failure(tool, arguments, text))
        return Repeats(same=1 + self._calls.count(sign), failures=failures)

    def refusal_before(self, tool: str, arguments: str) -> str | None:
        """Compact profile: why this very call cannot help, if it failed before and nothing has changed
        since.
        """
        if self._profile is not Profile.COMPACT or not self._calls:
            return None
        wanted = canonical(arguments)
        # As many rows as there are calls since the work moved on.
        for row in reversed(self._rows[-len(self._calls) :]):
            if row.tool == tool and canonical(row.arguments) == wanted:
                if row.state in FAILED or _found_nothing(row):
                    return (
                        "this same call failed before, and nothing has changed since."
                        " Change the arguments, look again, or report what is wrong."
                    )
                return None
        return None

    def end_reason(self) -> str | None:
        """Why the turn has to end after the newest answer's calls, or None."""
        if not self._rows:
            return None
        reason = self._reasons.get(self._rows[-1].message_id)
        if reason is not None:
            return reason
        steps: dict[str, bool] = {}
        useless = {CallState.INVALID}
        if self._profile is Profile.COMPACT:
            useless.add(CallState.REFUSED)
        for row in self._rows:
            steps[row.message_id] = steps.get(row.message_id, True) and row.state in useless
        last_steps = list(steps.values())[-MAX_INVALID_STEPS:]
        if len(last_steps) == MAX_INVALID_STEPS and all(last_steps):
            return f"{MAX_INVALID_STEPS} answers in a row had only calls that could not be used"
        return None

    def account(self) -> str:
        """What was tried in this turn and which files changed, in a sentence each."""
        counts = Counter(row.tool for row in self._rows)
        tried = ", ".join(f"{tool} {count}x" for tool, count in counts.most_common())
        changed = list(dict.fromkeys(path for row in self._rows for path in row.files))
        files = f"Changed: {', '.join(changed)}." if changed else "No file was changed by its edits."
        return f"Tried: {tried}. {files}" if tried else files

    def was_blocked(self) -> bool:
        """Whether the newest call needed an answer or a permission that nobody gave, also when it was refused
        as the repeat of one that did.
        """
        if not self._rows:
            return False
        last = self._original(self._rows[-1])
        return last.state is CallState.DENIED or (last.tool == "ask" and last.state is CallState.FAILED)

    def _moves_on(self, row: CallRow) -> bool:
        """Whether this call may have brought the work into a state that it was not in before."""
        news = set(row.seen.items()) - self._states
        self._states |= news
        if row.state is not CallState.DONE:
            return False
        if row.tool == "shell":
            command = canonical(row.arguments)
            is_new = command not in self._commands
            self._commands.add(command)
            return is_new
        # A file without a state is one that was removed.
        return bool(row.files) and (bool(news) or not row.seen)

    def _sign(self, tool: str, arguments: str, result_digest: str, state: CallState) -> Sign:
        wanted = canonical(arguments)
        if state is CallState.REFUSED:
            # A refusal stands for the result that the call had before.
            earlier = (sign[2] for sign in reversed(self._calls) if sign[:2] == (tool, wanted))
            result_digest = next(earlier, result_digest)
        return tool, wanted, result_digest

    def _original(self, row: CallRow) -> CallRow:
        """Of a refused repeat the newest equal call with a result of its own; of others the call itself."""
        if row.state is not CallState.REFUSED:
            return row
        wanted = canonical(row.arguments)
        equal = (
            old for old in reversed(self._rows) if old.tool == row.tool and canonical(old.arguments) == wanted
        )
        return next((old for old in equal if old.state is not CallState.REFUSED), row)

    def _reason(self, row: CallRow, repeats: Repeats) -> str:
        if max(repeats.same, repeats.failures) < min(END_AT[self._profile], END_AT_FAILURES[self._profile]):
            return ""
        row = self._original(row)
        if repeats.same >= END_AT[self._profile]:
            return (
                f"the model made the same call with the same result {repeats.same} times,"
                f" and nothing changed in between: {_shown(row)}"
            )
        if repeats.failures >= END_AT_FAILURES[self._profile]:
            return f"the model failed {repeats.failures} times in the same way: {_shown(row)}"
        return ""


def _found_nothing(row: CallRow) -> bool:
    return row.tool in SEARCHING and row.state is CallState.DONE and not row.files


def _failure(tool: str, arguments: str, text: str) -> Sign:
    """The kind of a failure: tool, place, and the first line of what was said, without its numbers."""
    head = text.split("\n", 1)[0]
    return tool, str(_fields(arguments).get("path", "")), re.sub(r"\d+", "#", head)


def _fields(arguments: str) -> dict[str, object]:
    try:
        return parse_object(arguments)[0]
    except ArgumentsInvalid:
        return {}


def _shown(row: CallRow) -> str:
    """The call in a few words, and the head of its result."""
    fields = _fields(row.arguments)
    subject = next((str(fields[name]) for name in TOLD_BY if fields.get(name)), "")
    text = "" if row.result is None else row.result.text
    lines = text.strip().splitlines()
    # The last line of a command tells how it went; of the others the first one does.
    said = lines[-1 if row.tool == "shell" else 0].strip("[]") if lines else ""
    call = " ".join(f"{row.tool} {subject}".split())
    return f"{_short(call)} ({_short(said.rstrip('.'))})" if said else _short(call)


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
