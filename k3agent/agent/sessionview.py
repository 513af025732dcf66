"""What front ends ask of a session without changing it, what they answer it, and its background commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from k3agent.agent import foreign
from k3agent.agent.approvals import Answer, Approvals
from k3agent.agent.compaction import Compactor
from k3agent.agent.options import SessionOptions
from k3agent.agent.transcript import History, Transcript
from k3agent.events import AnyEvent, Decision
from k3agent.store.sessions import SessionStore
from k3agent.types import JsonObject, Message, SessionId, ToolSpec

if TYPE_CHECKING:  # tools bring pydantic, 0.1 s
    from k3agent.tools.base import ToolContext
    from k3agent.tools.jobs import JobTable
    from k3agent.tools.sandbox.base import Sandbox


class SessionView:
    """The base of `Session`, which sets what is declared here."""

    id: SessionId
    specs: tuple[ToolSpec, ...]
    compactor: Compactor
    _approvals: Approvals
    _options: SessionOptions
    _store: SessionStore
    _transcript: Transcript
    _tool_ctx: ToolContext
    _jobs: JobTable

    @property
    def messages(self) -> Sequence[Message]:
        """The whole conversation. Its newest part is in memory, the rest is read when it is asked for."""
        return History(self._transcript)

    @property
    def tool_names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.specs)

    @property
    def mcp_servers(self) -> list[JsonObject]:
        """{name, status, detail, tools} of each server of foreign tools."""
        return foreign.states_of(self._options.fleet)

    @property
    def sandbox(self) -> Sandbox:
        return self._tool_ctx.sandbox

    @property
    def draft(self) -> str | None:
        """What a killed process had received of an answer (JSON); it is no part of the conversation."""
        return self._store.draft(self.id)

    @property
    def has_open_turn(self) -> bool:
        """A killed process left the last turn without an end: `continue_turn` goes on with it."""
        last = self._store.last_turn(self.id)
        return last is not None and last.outcome is None

    @property
    def compacts_at(self) -> int | None:
        """The size in tokens at which the context is made short; None: never by itself."""
        return self.compactor.limit

    @property
    def todo(self) -> Sequence[dict[str, Any]]:
        """The model's steps: {text, status}; status is pending, active or done."""
        return tuple(self._tool_ctx.todo)

    @property
    def jobs(self) -> Sequence[Any]:
        """Background commands (tools/jobs.py)."""
        return tuple(self._jobs.background.values())

    async def kill_job(self, job_id: str) -> None:
        """End a background command and all that it started. Raises ToolError for an unknown id."""
        job = self._jobs.find(job_id)
        if job.ended is None:
            job.note = "killed"
            await self._jobs.end(job)

    def answer(
        self, call_id: str, decision: Decision, *, arguments: str | None = None, reason: str = ""
    ) -> None:
        """A person's answer to `ApprovalAsked`. `arguments`: run the call with these instead; `reason`: words
        for the model.
        """
        self._approvals.answer(call_id, Answer(decision=decision, arguments=arguments, reason=reason))

    @property
    def standing_events(self) -> Sequence[AnyEvent]:
        """What who begins to watch now has to be told, too: the questions that wait for a person's answer."""
        return tuple(self._approvals.asked.values())

    def reply(self, call_id: str, text: str) -> None:
        """A person's answer, in words, to `ApprovalAsked` of the tool `ask`."""
        self._approvals.reply(call_id, text)
