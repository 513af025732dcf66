"""A subagent's session as the one that started it sees it, and the questions that come from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from k3agent.agent.approvals import Approvals
from k3agent.agent.emitter import Emitter
from k3agent.agent.options import Receipt
from k3agent.agent.tasks import TaskNode
from k3agent.errors import ProviderError
from k3agent.events import AnyEvent, ApprovalAnswered, ApprovalAsked, Decision, TurnEnded
from k3agent.types import Message, SessionId


class Child(Protocol):
    """A subagent's session, as far as it is used here."""

    id: SessionId
    receipt: Receipt

    @property
    def messages(self) -> Sequence[Message]: ...
    def subscribe(self, reader: Callable[[AnyEvent], None]) -> None: ...
    async def submit(self, text: str) -> TurnEnded: ...
    async def continue_turn(self, *, reopen: bool = False) -> TurnEnded | None: ...
    def interrupt(self, reason: str) -> None: ...
    def pause(self, failure: ProviderError) -> bool: ...
    def answer(
        self, call_id: str, decision: Decision, *, arguments: str | None = None, reason: str = ""
    ) -> None: ...
    def reply(self, call_id: str, text: str) -> None: ...
    async def aclose(self) -> None: ...


class Questions:
    """What subagents ask, put to whoever answers the session that started them."""

    def __init__(self, approvals: Approvals, emitter: Emitter) -> None:
        self._approvals = approvals
        self._emitter = emitter
        # Those that are open, by the number of the node.
        self._open: dict[int, set[asyncio.Task[None]]] = {}

    def put(self, node: TaskNode, child: Child, event: ApprovalAsked) -> None:
        question = asyncio.get_running_loop().create_task(self._ask(node, child, event))
        self._open.setdefault(node.number, set()).add(question)

    def withdraw(self, node: TaskNode) -> None:
        """The subagent's turn has ended."""
        for question in self._open.pop(node.number, ()):
            question.cancel()

    async def _ask(self, node: TaskNode, child: Child, event: ApprovalAsked) -> None:
        """A subagent's question goes to whoever answers the session that started it."""
        summary = f"{node.title}: {event.summary}"
        call_id = f"{child.id}/{event.call_id}"
        try:
            if event.tool == "ask":
                options = tuple(event.reason.splitlines())
                child.reply(event.call_id, await self._approvals.question(call_id, summary, options))
                return
            answer = await self._approvals.ask(
                call_id, event.tool, summary, event.reason, preview=event.preview
            )
        except asyncio.CancelledError:
            # Its turn has ended: whoever was asked need not answer any more.
            self._emitter.emit(
                ApprovalAnswered, call_id=call_id, decision=Decision.DENY, reason="the subagent has ended"
            )
            raise
        if answer is not None:
            child.answer(event.call_id, answer.decision, arguments=answer.arguments, reason=answer.reason)
