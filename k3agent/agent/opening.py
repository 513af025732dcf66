"""What a turn begins with: facts, what hooks add, and the user's words, which may name a command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from k3agent.agent.commands import find_command
from k3agent.agent.extensions import Extensions
from k3agent.agent.hookanswer import Outcome
from k3agent.agent.hooks import MAX_SUBJECT, START, Hooks, told
from k3agent.agent.permissions import Permissions
from k3agent.agent.transcript import Transcript
from k3agent.errors import BlockedError
from k3agent.providers.base import Profile
from k3agent.types import ImagePart, Message, MessageId

PROMPT = "UserPromptSubmit"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningParts:
    """`facts` gives what has changed since the model was last told, or ''. `is_task`: for a subagent, whose
    prompts are written by a model.
    """

    transcript: Transcript
    hooks: Hooks
    permissions: Permissions
    extensions: Extensions
    profile: Profile
    facts: Callable[[], str]
    is_task: bool


class Opening:
    """Makes the messages that open turns of one session."""

    def __init__(self, parts: OpeningParts) -> None:
        self._parts = parts
        self._source = "resume" if parts.transcript.messages else "startup"
        self._is_begun = False
        self._start: asyncio.Task[Outcome] | None = None
        self._waiting: asyncio.Task[list[str]] | None = None

    @property
    def is_busy(self) -> bool:
        return self._waiting is not None

    def begin(self) -> None:
        """Run the hooks of the session's start in the background, once; the first turn waits for them."""
        hooks = self._parts.hooks
        if not self._is_begun and hooks.has(START) and not self._parts.is_task:
            self._is_begun = True
            self._start = asyncio.create_task(hooks.run(START, (self._source,), source=self._source))

    def interrupt(self) -> None:
        """Give up waiting for hooks: the turn does not begin."""
        if self._waiting is not None:
            self._waiting.cancel()

    async def messages(self, text: str, images: Sequence[ImagePart]) -> list[Message]:
        """In their order, not stored yet. Raises BlockedError when a hook does not let the prompt pass, or
        the user did not want to wait.
        """
        # What a hook of the last turn wanted is over with it.
        self._parts.hooks.stop_reason = ""
        self.begin()
        said = [self._parts.facts()]
        if self._start is not None or self._parts.hooks.has(PROMPT):
            said += await self._waited_for(text)
        prompt, rules = self._prompt(text)
        self._parts.permissions.allow_for_turn(rules)
        transcript = self._parts.transcript
        opening: list[Message] = []
        parent: MessageId | None = None
        for words in filter(None, said):
            opening.append(transcript.harness(words, parent=parent))
            parent = opening[-1].id
        return [*opening, transcript.user(prompt, images, parent=parent)]

    async def _waited_for(self, text: str) -> list[str]:
        """What hooks say, unless the user interrupts."""
        self._waiting = asyncio.create_task(self._said_by_hooks(text))
        try:
            return await self._waiting
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self._waiting.cancel()
                raise
            raise BlockedError("interrupted while hooks were running; the prompt was not sent") from None
        finally:
            self._waiting = None

    async def aclose(self) -> None:
        if self._start is not None:
            self._start.cancel()
            await asyncio.wait((self._start,))

    def _prompt(self, text: str) -> tuple[str, tuple[str, ...]]:
        """(the prompt, the permission rules that come with it)"""
        parts = self._parts
        found = None if parts.is_task else find_command(text, parts.extensions.commands)
        if found is None:
            return text, ()
        command, words = found
        return command.expanded(words), command.rules

    async def _said_by_hooks(self, text: str) -> list[str]:
        hooks = self._parts.hooks
        contexts: list[str] = []
        if self._start is not None:
            contexts.append((await asyncio.shield(self._start)).context)
        if hooks.has(PROMPT) and not self._parts.is_task:
            outcome = await hooks.run(PROMPT, prompt=text)
            reason = outcome.reason if outcome.is_denial else outcome.stop
            if reason:
                hooks.note(PROMPT, outcome, text[:MAX_SUBJECT])
                raise BlockedError(f"a hook does not let this prompt pass: {reason}")
            contexts.append(outcome.context)
        # Once: later turns have it in the conversation.
        self._start = None
        if self._parts.profile is Profile.COMPACT:
            # A small model would take it for its task.
            return []
        return [told(context) for context in contexts if context]
