"""What a hook's process has said: exit codes and JSON that existing scripts use, as an `Outcome`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from k3agent.types import JsonObject

BLOCKING = 2
# What a shell says of a program that it cannot start, and from there on of one that a signal has ended.
NOT_STARTED = (126, 127)
# Where plain text on standard output is meant for the model.
TELLING = frozenset(("SessionStart", "UserPromptSubmit"))
MAX_TEXT = 10_000
_STRICTNESS = {"": 0, "allow": 1, "ask": 2, "deny": 3}
_WORDS = {"approve": "allow", "allow": "allow", "ask": "ask", "deny": "deny", "block": "deny"}


class HookFailed(Exception):
    """A hook that has neither agreed nor objected: it is told of, and the work goes on without it."""


class HookUnable(HookFailed):
    """It could not say anything: not started, not ended in time, killed. A guard that cannot look is no
    consent.
    """


class ScriptChanged(HookUnable):
    """It must not run, or may have been another one when it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`decision`: '', allow, ask or deny (also: do not stop, do not take the prompt). `context` is for the
    model, `message` for the user; `updated_input` takes the place of a call's arguments; `stop`: why the
    whole turn must end. `by`: the command that decided.
    """

    decision: str = ""
    reason: str = ""
    context: str = ""
    message: str = ""
    updated_input: JsonObject | None = None
    stop: str = ""
    by: str = ""

    @property
    def is_denial(self) -> bool:
        return self.decision == "deny"


def read_answer(event: str, command: str, exit_code: int, stdout: str, stderr: str) -> Outcome:
    """Raises HookFailed for an exit code other than 0 and 2, HookUnable where it did not run to its end."""
    stdout, stderr = stdout.strip(), stderr.strip()
    if exit_code == BLOCKING:
        return Outcome(decision="deny", reason=_short(stderr or stdout or "it gives no reason"), by=command)
    if exit_code != 0:
        said = _short((stderr or stdout).splitlines()[-1] if stderr or stdout else "it printed nothing", 300)
        is_unable = exit_code < 0 or exit_code > 128 or exit_code in NOT_STARTED
        raise (HookUnable if is_unable else HookFailed)(f"it ended with code {exit_code}: {said}")
    body = _json_object(stdout)
    if body is None:
        return Outcome(context=_short(stdout) if event in TELLING else "", by=command)
    special = body.get("hookSpecificOutput")
    special = special if isinstance(special, dict) else {}
    word = special.get("permissionDecision") or body.get("decision") or ""
    decision = _WORDS.get(str(word), "")
    if decision in ("allow", "ask") and event != "PreToolUse":
        decision = ""
    updated = special.get("updatedInput")
    stop = ""
    if body.get("continue") is False:
        stop = _text(body.get("stopReason")) or "a hook said so"
    return Outcome(
        decision=decision,
        reason=_text(special.get("permissionDecisionReason")) or _text(body.get("reason")),
        context=_text(special.get("additionalContext")) or _text(body.get("additionalContext")),
        message=_text(body.get("systemMessage")),
        updated_input=updated if isinstance(updated, dict) else None,
        stop=stop,
        by=command,
    )


def merged(outcomes: Sequence[Outcome]) -> Outcome:
    """The strictest decision with its reason, and what all have said. Hooks run side by side: of those that
    want other arguments, the first counts.
    """
    if not outcomes:
        return Outcome()
    strictest = max(outcomes, key=lambda outcome: _STRICTNESS[outcome.decision])
    return Outcome(
        decision=strictest.decision,
        reason=strictest.reason,
        context="\n\n".join(outcome.context for outcome in outcomes if outcome.context),
        message="\n".join(outcome.message for outcome in outcomes if outcome.message),
        updated_input=next((one.updated_input for one in outcomes if one.updated_input is not None), None),
        stop=next((outcome.stop for outcome in outcomes if outcome.stop), ""),
        by=strictest.by,
    )


def overridden(outcomes: Sequence[Outcome]) -> list[str]:
    """The commands whose arguments for the call do not count, because an earlier hook wants others."""
    wanted = [outcome for outcome in outcomes if outcome.updated_input is not None]
    return [outcome.by for outcome in wanted[1:] if outcome.updated_input != wanted[0].updated_input]


def _json_object(text: str) -> JsonObject | None:
    if not text.startswith("{"):
        return None
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _text(value: object) -> str:
    return _short(value.strip()) if isinstance(value, str) else ""


def _short(text: str, most: int = MAX_TEXT) -> str:
    return text if len(text) <= most else f"{text[:most]}\n[cut: {len(text) - most} more characters]"
