"""Approvals and questions of a session, put to the user through the editor.

Permissions are the protocol's own. A question of the model with choices is put in the same form; one that
wants words needs an editor with forms (`elicitation`).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from k3agent.acp.fields import object_of
from k3agent.errors import K3AgentError
from k3agent.events import ApprovalAsked, Decision
from k3agent.jsonrpc import Peer, RpcClosed, RpcError
from k3agent.types import JsonObject

if TYPE_CHECKING:
    from k3agent.agent.session import Session

log = logging.getLogger(__name__)

ALLOW, ALWAYS, DENY, WORDS = "allow", "allow-session", "deny", "in-words"
NO_WORDS = (
    "(The user's editor cannot take an answer in words here. End your turn with the question: the user"
    " answers with the next message. Or decide for yourself and say what you assumed.)"
)


class Questions:
    """The open questions of one session: a task each, so that the session's events go on meanwhile."""

    def __init__(self, session: Session, peer: Peer, *, has_forms: bool) -> None:
        self._session = session
        self._peer = peer
        self._has_forms = has_forms
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def ask(self, event: ApprovalAsked, call: JsonObject) -> None:
        """Put the question; `call` is what the editor was shown of it."""
        put = self._question(event, call) if event.tool == "ask" else self._permission(event, call)
        task = asyncio.create_task(put)
        self._tasks[event.call_id] = task
        task.add_done_callback(lambda done: self._done(event.call_id, done))

    def _done(self, call_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(call_id) is task:
            del self._tasks[call_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a question to the editor failed", exc_info=error)

    def settle(self, call_id: str) -> None:
        """The call is over, or was answered elsewhere: the editor is told to take its question back, and a
        later answer of it is ignored.
        """
        task = self._tasks.pop(call_id, None)
        # The answer of the task itself may be what settles it.
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def close(self) -> None:
        for call_id in list(self._tasks):
            self.settle(call_id)

    # --- permissions --------------------------------------------------------------------------------------

    async def _permission(self, event: ApprovalAsked, call: JsonObject) -> None:
        options = [_option(ALLOW, "Allow", "allow_once")]
        if event.rules:
            rules = ", ".join(event.rules)
            options.append(_option(ALWAYS, f"Allow {rules} in this session", "allow_always"))
        options.append(_option(DENY, "Deny", "reject_once"))
        chosen = await self._choose(event, {**call, "title": f"{event.summary} ({event.reason})"}, options)
        if chosen == ALWAYS:
            try:
                for rule in event.rules:
                    self._session.allow_rule(rule)
            except K3AgentError as error:
                log.warning("a rule cannot be kept: %s", error)
        is_allowed = chosen in (ALLOW, ALWAYS)
        self._session.answer(event.call_id, Decision.ALLOW if is_allowed else Decision.DENY)

    async def _choose(self, event: ApprovalAsked, call: JsonObject, options: list[JsonObject]) -> str:
        """The id of the option that was chosen, '' for none; an editor that cannot ask denies."""
        params: JsonObject = {
            "sessionId": self._session.id,
            "toolCall": {"toolCallId": event.call_id, **call},
            "options": options,
        }
        try:
            answer = await self._peer.request("session/request_permission", params)
        except RpcClosed:
            return ""
        except RpcError as error:
            log.warning("the editor cannot ask: %s", error)
            return ""
        outcome = object_of(answer if isinstance(answer, dict) else {}, "outcome")
        known = {option["optionId"] for option in options}
        chosen: Any = outcome.get("optionId")
        return chosen if outcome.get("outcome") == "selected" and chosen in known else ""

    # --- questions of the model ---------------------------------------------------------------------------

    async def _question(self, event: ApprovalAsked, call: JsonObject) -> None:
        choices = [choice for choice in event.reason.split("\n") if choice]
        if choices:
            options = [
                _option(f"choice-{number}", choice, "allow_once") for number, choice in enumerate(choices, 1)
            ]
            if self._has_forms:
                options.append(_option(WORDS, "Answer in words", "reject_once"))
            else:
                options.append(_option(DENY, "None of these", "reject_once"))
            chosen = await self._choose(event, {**call, "title": event.summary}, options)
            if chosen.startswith("choice-"):
                number = int(chosen.removeprefix("choice-"))
                self._session.reply(event.call_id, choices[number - 1])
                return
            if chosen != WORDS:
                self._session.reply(event.call_id, f"(none of the choices) {NO_WORDS}")
                return
        words = await self._words(event, call) if self._has_forms else ""
        self._session.reply(event.call_id, words or NO_WORDS)

    async def _words(self, event: ApprovalAsked, call: JsonObject) -> str:
        params: JsonObject = {
            "mode": "form",
            "sessionId": self._session.id,
            "toolCallId": call.get("toolCallId", event.call_id),
            "message": event.summary,
            "requestedSchema": {
                "type": "object",
                "properties": {"answer": {"type": "string", "title": "Your answer"}},
                "required": ["answer"],
            },
        }
        try:
            answer = await self._peer.request("elicitation/create", params)
        except (RpcClosed, RpcError) as error:
            log.warning("the editor's form failed: %s", error)
            return ""
        if not isinstance(answer, dict) or answer.get("action") != "accept":
            return ""
        words = object_of(answer, "content").get("answer")
        return words.strip() if isinstance(words, str) else ""


def _option(option_id: str, name: str, kind: str) -> JsonObject:
    return {"optionId": option_id, "name": name, "kind": kind}
