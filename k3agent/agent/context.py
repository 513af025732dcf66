"""The transcript as a `Request`. Law: request N+1 starts with the bytes of request N.

System prompt and tools are fixed when the session starts. Facts that change (date, branch, mode) are
messages of the harness, added when they differ from what was said last.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from k3agent import codec
from k3agent.agent.git_marks import git_folder
from k3agent.agent.instructions import HEAD, Instruction, render_instructions
from k3agent.config.paths import git_root
from k3agent.errors import ProviderError, ProviderErrorKind
from k3agent.prompts.loader import load
from k3agent.providers.base import ModelInfo, Profile
from k3agent.safety.paths import small_text
from k3agent.store.records import CompactionRow
from k3agent.store.snapshotrows import COMMIT
from k3agent.types import (
    Effort,
    ImagePart,
    JsonObject,
    Message,
    MessageId,
    Origin,
    ReasoningPart,
    Request,
    Role,
    SessionId,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
)

BRANCH = re.compile(r"[^\s~^:?*\[\\]{1,200}")
UNREADABLE_HEAD = "a repository whose HEAD cannot be read"
FACTS_HEAD = "Facts about this session (from k3agent, not from the user):"
# Text that a tokenizer has not seen yet: a cautious guess.
CHARS_PER_TOKEN = {Profile.FULL: 3.0, Profile.COMPACT: 2.2}
MIN_OUTPUT_TOKENS = 256
MARGIN_TOKENS = 64
IMAGE_TOKENS = 1500

MODE_FACTS = {
    "plan": "plan: look and propose; nothing may be changed. A plan begins with the line `Plan:`",
    "default": "default: changes and commands need the user's approval",
    "accept-edits": "accept-edits: files in the workspace may be changed; commands need approval",
    "auto": "auto: work freely inside the workspace; destructive or outside actions are denied",
}


def system_prompt(
    profile: Profile, instructions: list[Instruction], appended: str, known: Sequence[str] = ()
) -> str:
    """The text that opens every request of a session. Compact: a constant, so that one prefix serves all."""
    if profile is Profile.COMPACT:
        return load("system/compact").strip()
    parts = [load("system/main").strip(), render_instructions(instructions), *known, appended.strip()]
    return "\n\n".join(part for part in parts if part)


def facts(cwd: Path, mode: str, today: date) -> str:
    lines = [FACTS_HEAD, f"- workspace: {cwd}", f"- system: {os.uname().sysname} {os.uname().machine}"]
    lines.append(f"- date: {today.isoformat()}")
    lines.append(f"- git: {_git_fact(cwd)}")
    lines.append(f"- permission mode: {MODE_FACTS.get(mode, mode)}")
    return "\n".join(lines)


def _git_fact(cwd: Path) -> str:
    """Read from the files of the repository: starting git would cost more than the rest of a turn's start."""
    folder = git_folder(cwd)
    if folder is None:
        return "not a repository" if git_root(cwd) is None else UNREADABLE_HEAD
    try:
        head = small_text(folder / "HEAD").strip()
    except (OSError, ValueError):
        return UNREADABLE_HEAD
    branch = head.removeprefix("ref: refs/heads/")
    if branch == head:
        return f"detached at {head[:12]}" if COMMIT.fullmatch(head) else UNREADABLE_HEAD
    # Who packed the repository wrote the file: only what git takes for a name stands among the facts.
    return f"branch {branch}" if BRANCH.fullmatch(branch) and branch.isprintable() else UNREADABLE_HEAD


def last_facts(messages: Sequence[Message]) -> str:
    for message in reversed(messages):
        if message.origin is Origin.HARNESS and message.text.startswith((FACTS_HEAD, HEAD)):
            return message.text
    return ""


class _Places:
    """Where each message of a conversation stands, kept up as it grows: long ones are not looked through in
    every step.
    """

    def __init__(self) -> None:
        self._at: dict[MessageId, int] = {}
        self._last: MessageId | None = None

    def of(self, messages: Sequence[Message]) -> Mapping[MessageId, int]:
        count = len(self._at)
        # A rewind took messages away, or it is another conversation.
        if count > len(messages) or (count and messages[count - 1].id != self._last):
            self._at, count = {}, 0
        for at in range(count, len(messages)):
            self._at[messages[at].id] = at
        self._last = messages[-1].id if messages else None
        return self._at


class Context:
    """Builds the requests of one session and keeps count of their size."""

    def __init__(
        self,
        *,
        session_id: SessionId,
        info: ModelInfo,
        system: str,
        tools: tuple[ToolSpec, ...],
        effort: Effort,
        response_schema: JsonObject | None,
    ) -> None:
        self.system = system
        self.tools = tools
        self.effort = effort
        # What the endpoint said, until a request shows that it is less.
        self.window = info.context_window
        self.compactions: list[CompactionRow] = []
        self._places = _Places()
        self._session_id = session_id
        self._info = info
        self._schema = response_schema
        self._chars_per_token = CHARS_PER_TOKEN[info.profile]
        self.fixed_tokens = self._tokens(
            len(system) + sum(len(codec.dump(codec.spec_to_dict(spec))) for spec in tools)
        )

    def _tokens(self, num_chars: int) -> int:
        return int(num_chars / self._chars_per_token) + 1

    def num_chars(self, tokens: int) -> int:
        """How long a text of so many tokens may be."""
        return int(tokens * self._chars_per_token)

    def active(self, messages: Sequence[Message]) -> CompactionRow | None:
        """The newest compaction of this path that was not undone."""
        rows = [row for row in self.compactions if not row.is_undone]
        if not rows:
            return None
        places = self._places.of(messages)
        return next(
            (row for row in reversed(rows) if row.leaf in places and row.last_dropped in places), None
        )

    def view(self, messages: Sequence[Message]) -> list[Message]:
        """What a request holds of the conversation: all of it, or its short form and what came after."""
        row = self.active(messages)
        if row is None:
            return list(messages)
        start = self._places.of(messages)[row.last_dropped] + 1
        return [row.message, *messages[start:]]

    def num_tokens(self, view: Sequence[Message]) -> int:
        """About how long a request with these messages is: the last count of the endpoint plus a guess for
        the rest. What was counted before a compaction says nothing any more.
        """
        total = 0
        stale = next((row.leaf for row in self.compactions if view and row.message is view[0]), None)
        for message in reversed(view):
            if message.id == stale:
                break
            if message.role is Role.ASSISTANT and message.usage is not None and message.usage.input_tokens:
                return total + message.usage.input_tokens + message.usage.output_tokens
            total += self.message_tokens(message)
        else:
            return total + self.fixed_tokens
        return self.guess_tokens(view)

    def guess_tokens(self, view: Sequence[Message]) -> int:
        """As `num_tokens`, without any count of the endpoint."""
        return sum(map(self.message_tokens, view)) + self.fixed_tokens

    def message_tokens(self, message: Message) -> int:
        chars, images = 16, 0
        for part in message.parts:
            match part:
                case ToolCall():
                    chars += len(part.name) + len(part.arguments) + 16
                case ToolResult():
                    chars += len(part.text) + 16
                    images += sum(not isinstance(piece, TextPart) for piece in part.content)
                case ImagePart():
                    images += 1
                case TextPart() | ReasoningPart():
                    chars += len(part.text)
        return self._tokens(chars) + images * IMAGE_TOKENS

    def request(self, messages: Sequence[Message], *, max_output_tokens: int | None = None) -> Request:
        """The next request. Raises ProviderError(OVERFLOW) when no room is left for an answer."""
        return self.request_of(self.view(messages), max_output_tokens=max_output_tokens)

    def request_of(
        self, messages: Sequence[Message], *, max_output_tokens: int | None = None, is_live: bool = True
    ) -> Request:
        """A request with exactly these messages; `is_live`: they are what the endpoint has counted so far."""
        tokens = self.num_tokens(messages) if is_live else self.guess_tokens(messages)
        room = self.window - tokens - MARGIN_TOKENS
        limit = min(self._info.max_output_tokens, room)
        if max_output_tokens is not None:
            limit = min(limit, max_output_tokens)
        if room < MIN_OUTPUT_TOKENS:
            raise ProviderError(self._overflow_text(messages), kind=ProviderErrorKind.OVERFLOW)
        return Request(
            model=self._info.model,
            system=self.system,
            tools=self.tools,
            messages=tuple(messages),
            effort=self.effort,
            cache_key=self._session_id,
            max_output_tokens=max(limit, 1),
            response_schema=self._schema,
        )

    def _overflow_text(self, messages: Sequence[Message]) -> str:
        window = f"the model's window of {self.window:,} tokens"
        if any(message.role is Role.ASSISTANT for message in messages):
            return f"the conversation fills {window}; start a new session"
        return (
            f"the prompt takes about {self.num_tokens(messages):,} tokens with system prompt and tools,"
            f" too many for {window}; shorten it, or name a file that is to be read"
        )
