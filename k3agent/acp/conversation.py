"""One session of an editor: the agent's session, what is told of it, and its turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k3agent.acp import updates
from k3agent.acp.questions import Questions
from k3agent.acp.updates import Updates
from k3agent.errors import BlockedError, ProviderError, ProviderErrorKind
from k3agent.events import (
    AnyEvent,
    ApprovalAnswered,
    ApprovalAsked,
    CallEnded,
    TurnEnded,
    TurnOutcome,
    TurnStarted,
)
from k3agent.jsonrpc import INTERNAL_ERROR, INVALID_REQUEST, Peer, RpcError
from k3agent.types import ImagePart, JsonObject

if TYPE_CHECKING:
    from k3agent.agent.live import Broadcast
    from k3agent.agent.session import Session
    from k3agent.providers.base import ModelClient

AUTH_REQUIRED = -32000
MODES = {
    "default": ("Ask", "Changes and commands need your approval"),
    "accept-edits": ("Accept edits", "Files in the workspace are changed freely; commands need approval"),
    "auto": ("Auto", "Works freely inside the workspace; what leaves it is asked about"),
    "plan": ("Plan", "Looks and proposes; changes nothing"),
}
MAX_TITLE = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What the editor can do, as it has said."""

    reads_files: bool = False
    writes_files: bool = False
    draws_terminals: bool = False
    has_forms: bool = False


class Conversation:
    """`session` is open and becomes this object's to close, `client` with it."""

    def __init__(
        self,
        session: Session,
        cwd: Path,
        client: ModelClient,
        broadcast: Broadcast,
        peer: Peer,
        abilities: Abilities,
    ) -> None:
        self.session = session
        self._client = client
        self._broadcast = broadcast
        self._peer = peer
        self.cwd = cwd
        self._questions = Questions(session, peer, has_forms=abilities.has_forms)
        self._updates = Updates(
            self._send,
            self.cwd,
            session.info.context_window,
            draws_terminals=abilities.draws_terminals,
        )
        self._is_named = bool(session.messages)
        self._is_cancelled = False
        self._turn: asyncio.Task[TurnEnded] | None = None

    def _send(self, update: JsonObject) -> None:
        self._peer.notify("session/update", {"sessionId": self.session.id, "update": update})

    def listen(self) -> None:
        """From now on the editor is told what happens, beginning with warnings of the start."""
        self.session.subscribe(self._event)
        if self.session.commands:
            self._updates.send(
                {"sessionUpdate": "available_commands_update", "availableCommands": self._commands}
            )
        if self.session.todo:
            self._updates.todo(self.session.todo)

    @property
    def _commands(self) -> list[JsonObject]:
        """The user's own, from files."""
        return [
            {
                "name": command.name,
                "description": command.description or f"commands/{command.name}.md",
                **({"input": {"hint": command.hint}} if command.hint else {}),
            }
            for command in self.session.commands.values()
        ]

    @property
    def modes(self) -> JsonObject:
        available = [{"id": mode, "name": name, "description": text} for mode, (name, text) in MODES.items()]
        return {"currentModeId": self.session.permission_mode, "availableModes": available}

    def set_mode(self, mode: str) -> None:
        self.session.set_permission_mode(mode)
        self._updates.send({"sessionUpdate": "current_mode_update", "currentModeId": mode})

    def replay(self) -> None:
        """Tell the editor all that was said before."""
        for update in updates.history(self.session.messages, self.cwd):
            self._send(update)

    async def prompt(self, text: str, images: Sequence[ImagePart]) -> JsonObject:
        """One turn; the protocol's answer to it. Raises RpcError for a turn that could not be run."""
        if self._turn is not None or self.session.is_running:
            raise RpcError(INVALID_REQUEST, "a turn is running: wait for its end, or cancel it")
        self._is_cancelled = False
        before = self.session.receipt.usage
        self._turn = asyncio.create_task(self.session.submit(text, images))
        try:
            ended = await self._turn
        except BlockedError as error:
            # It was not stored: the model will never read it.
            self._updates.say(str(error))
            return {"stopReason": "cancelled" if self._is_cancelled else "refusal"}
        except asyncio.CancelledError:
            if not self._is_cancelled:
                raise
            return {"stopReason": "cancelled"}
        finally:
            self._turn = None
        self._updates.flush()
        if ended.outcome not in (TurnOutcome.SUCCESS, TurnOutcome.INTERRUPTED):
            self._tell_end(ended)
        usage = self.session.receipt.usage - before
        reason = "cancelled" if self._is_cancelled else updates.stop_reason(ended.outcome)
        return {
            "stopReason": reason,
            "usage": {
                "inputTokens": usage.input_tokens - usage.cached_tokens,
                "cachedReadTokens": usage.cached_tokens,
                "outputTokens": usage.output_tokens,
                "thoughtTokens": usage.reasoning_tokens,
                "totalTokens": usage.input_tokens + usage.output_tokens,
            },
        }

    def _tell_end(self, ended: TurnEnded) -> None:
        """An end that is no answer: an error of the protocol where the model could not be reached, else
        words.
        """
        detail = ended.detail or ended.outcome.value
        error = self.session.error
        if isinstance(error, ProviderError) and error.kind is ProviderErrorKind.AUTH:
            hint = "run `k3agent login`, or set the provider's key in the editor's environment"
            raise RpcError(AUTH_REQUIRED, f"{detail}; {hint}")
        if ended.outcome in (TurnOutcome.PROVIDER, TurnOutcome.EXECUTION, TurnOutcome.CONTEXT):
            raise RpcError(INTERNAL_ERROR, detail)
        self._updates.say(f"The turn ended early: {detail}")

    def cancel(self) -> None:
        """End the turn that runs, or is about to."""
        if self._turn is None:
            return
        self._is_cancelled = True
        self._questions.close()
        if self.session.is_running:
            self.session.interrupt("the user cancelled the turn in the editor")
        else:
            # Nothing of the prompt is stored yet.
            self._turn.cancel()

    async def aclose(self) -> None:
        self._questions.close()
        await self.session.aclose()
        await self._broadcast.aclose()
        await self._client.aclose()

    # --- events -------------------------------------------------------------------------------------------

    def _event(self, event: AnyEvent) -> None:
        call = self._updates.calls.get(event.call_id, {}) if isinstance(event, ApprovalAsked) else {}
        self._updates.event(event)
        match event:
            case TurnStarted() if not self._is_named:
                self._is_named = True
                title = " ".join(event.prompt.split())[:MAX_TITLE]
                self._updates.send({"sessionUpdate": "session_info_update", "title": title})
            case ApprovalAsked():
                self._updates.flush()
                self._questions.ask(event, call or {"title": event.summary, "status": "pending"})
            case ApprovalAnswered():
                # Perhaps by somebody who watches the session elsewhere.
                self._questions.settle(event.call_id)
            case CallEnded():
                self._questions.settle(event.call_id)
                if event.tool == "todo" and not event.result.is_error:
                    self._updates.todo(self.session.todo)
            case _:
                pass
