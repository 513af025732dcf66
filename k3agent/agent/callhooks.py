"""Hooks around one tool call: what they decide before it, and what they say of its result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k3agent.agent.hookanswer import Outcome
from k3agent.agent.hooknames import arguments_from, input_of, names_of
from k3agent.agent.hooks import Hooks
from k3agent.agent.permissions import Action, Verdict
from k3agent.types import JsonObject

if TYPE_CHECKING:  # tools bring pydantic, 0.1 s
    from k3agent.tools.base import Access, Args

BEFORE, AFTER, AFTER_FAILURE = "PreToolUse", "PostToolUse", "PostToolUseFailure"
MAX_RESPONSE = 20_000
HOOK_DENIES = "a hook denies it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call as hooks see it."""

    id: str
    tool: str
    args: Args
    access: Access
    cwd: Path

    @property
    def name(self) -> str:
        """A foreign tool's own name, whichever way it is called."""
        return self.access.calls or self.tool

    @property
    def told(self) -> JsonObject:
        told = input_of(self.tool, self.args.model_dump(mode="json"), self.access.writes, self.cwd)
        return {"tool_name": names_of(self.name)[0], "tool_input": told, "tool_use_id": self.id}


async def before_call(hooks: Hooks, call: Call) -> tuple[Outcome, JsonObject | None]:
    """(what the hooks say, the arguments that they want instead)"""
    if not hooks.has(BEFORE):
        return Outcome(), None
    outcome = await hooks.run(BEFORE, names_of(call.name), k3agent_tool=call.tool, **call.told)
    if outcome.updated_input is None:
        return outcome, None
    before = call.args.model_dump(mode="json")
    wanted = arguments_from(call.tool, outcome.updated_input, before)
    # What was told, absolute paths and stand-ins for secrets among it, and comes back as it was is no change.
    told = arguments_from(call.tool, hooks.masked(call.told["tool_input"]), before)
    changed = {name: value for name, value in wanted.items() if value != told[name]}
    return outcome, {**before, **changed} if changed else None


def overruled(verdict: Verdict, outcome: Outcome) -> Verdict:
    """What rules, mode and hooks say together. A hook can forbid anything, but allow no more than a rule
    could: neither what is denied nor what is protected.
    """
    said = f": {outcome.reason}" if outcome.reason else ""
    if outcome.stop:
        return Verdict(action=Action.DENY, reason=f"a hook ends the turn: {outcome.stop}", by="hook")
    if outcome.is_denial:
        return Verdict(action=Action.DENY, reason=f"{HOOK_DENIES}{said}", by="hook")
    if outcome.decision == "ask" and verdict.action is Action.ALLOW:
        return Verdict(action=Action.ASK, reason=f"a hook wants it asked{said}", by="hook")
    if outcome.decision == "allow" and verdict.action is Action.ASK and verdict.by == "mode":
        return Verdict(action=Action.ALLOW, reason=f"a hook allows it{said}", by="hook")
    return verdict


async def after_call(hooks: Hooks, call: Call, text: str, files: tuple[str, ...], *, is_error: bool) -> str:
    """What hooks have to say to the model about a call that has ended; '' for nothing."""
    event = AFTER_FAILURE if is_error else AFTER
    if not hooks.has(event):
        return ""
    shown = text[:MAX_RESPONSE]
    response: JsonObject = {"success": not is_error, "output": shown, "files": list(files)}
    told = call.told
    if "file_path" in told["tool_input"]:
        response["filePath"] = told["tool_input"]["file_path"]
    if call.tool == "shell":
        response["stdout"] = shown
    failure = {"error": shown} if is_error else {}
    outcome = await hooks.run(
        event, names_of(call.name), k3agent_tool=call.tool, tool_response=response, **failure, **told
    )
    if outcome.is_denial:
        hooks.note(event, outcome, call.tool, call.id)
    return said_by(outcome)


def said_by(outcome: Outcome) -> str:
    """A hook's words for the end of a tool's result."""
    texts = [outcome.reason if outcome.is_denial else "", outcome.context]
    return "\n".join(f"[a hook of the user's says: {text}]" for text in texts if text)
