"""Questions to a person, and their answers. Where nobody is there, the answer is known at once: nobody."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from k3agent.agent.emitter import Emitter
from k3agent.errors import ToolError
from k3agent.events import ApprovalAnswered, ApprovalAsked, Decision
from k3agent.types import JsonObject

NO_WORDS = "(The user does not answer this in words. Decide for yourself and say what you assumed.)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a person said. `arguments`: run the call with these instead; `reason`: words for the model."""

    decision: Decision
    arguments: str | None = None
    reason: str = ""


class Approvals:
    """Open questions of a session, by call id."""

    def __init__(self, emitter: Emitter, *, is_interactive: bool, unanswered: list[JsonObject]) -> None:
        """`unanswered` takes the questions that nobody was there to answer."""
        self._emitter = emitter
        self.unanswered = unanswered
        self.is_interactive = is_interactive
        # What was asked and has no answer yet, by call: who begins to watch now sees it, too.
        self.asked: dict[str, ApprovalAsked] = {}
        self._approvals: dict[str, asyncio.Future[Answer]] = {}
        self._questions: dict[str, asyncio.Future[str]] = {}

    async def ask(
        self,
        call_id: str,
        tool: str,
        summary: str,
        reason: str,
        rules: tuple[str, ...] = (),
        preview: str = "",
    ) -> Answer | None:
        """What a person says; None where nobody can be asked. `rules` would allow the call from now on;
        `preview` is the difference that it would make.
        """
        if not self.is_interactive:
            return None
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._approvals[call_id] = future
        self.asked[call_id] = self._emitter.emit(
            ApprovalAsked,
            call_id=call_id,
            tool=tool,
            summary=summary,
            reason=reason,
            rules=rules,
            preview=preview,
        )
        try:
            answer = await future
        finally:
            del self._approvals[call_id], self.asked[call_id]
        self._emitter.emit(
            ApprovalAnswered,
            call_id=call_id,
            decision=answer.decision,
            reason=answer.reason or "the user's answer",
        )
        return answer

    def answer(self, call_id: str, answer: Answer) -> None:
        """Late or unknown answers are ignored: the call may have been interrupted meanwhile. To a question
        this is no answer in words, which the model is told.
        """
        self.reply(call_id, answer.reason or NO_WORDS)
        future = self._approvals.get(call_id)
        if future is not None and not future.done():
            future.set_result(answer)

    async def question(self, call_id: str, text: str, options: tuple[str, ...], default: str = "") -> str:
        """The user's own words. Where nobody can answer, the question is kept; its default is taken,
        or ToolError raised.
        """
        if not self.is_interactive:
            self.unanswered.append(
                {
                    "call_id": call_id,
                    "question": text,
                    "options": list(options),
                    "taken": default or None,
                }
            )
            if default:
                return f"(nobody is here to answer; your default is taken) {default}"
            raise ToolError("nobody can answer here. Decide for yourself and say what you assumed.")
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._questions[call_id] = future
        choices = "\n".join(options)
        self.asked[call_id] = self._emitter.emit(
            ApprovalAsked, call_id=call_id, tool="ask", summary=text, reason=choices
        )
        try:
            return await future
        finally:
            del self._questions[call_id], self.asked[call_id]

    def reply(self, call_id: str, text: str) -> None:
        future = self._questions.get(call_id)
        if future is not None and not future.done():
            future.set_result(text)
