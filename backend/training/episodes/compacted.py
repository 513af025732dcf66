"""What is left of a long conversation after k3agent has made it short: its record of the beginning, the last
messages as they were, and what came after. For a small model the record is made without a model.
"""

import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime

from k3agent.agent import digest
from k3agent.backend.training.episodes.session import Message
from k3agent.types import Message as Stored
from k3agent.types import MessageId, Origin, Part, Role, TextPart, ToolCall, ToolResult

TAIL_SHARE, WORDS_SHARE, SUMMARY_SHARE, STATE_SHARE = 0.25, 0.15, 0.15, 0.05
"""Of the conversation's length: as the product does where a conversation fills its room."""
LEAST_CHARS = 5_000
"""Shorter conversations are never made short."""
_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def stored(messages: Sequence[Message]) -> list[Stored]:
    """The messages of an episode as the product keeps them."""
    found: list[Stored] = []
    for number, message in enumerate(messages):
        parts: list[Part] = []
        role, origin = Role(message["role"]), Origin.HUMAN
        text = message["content"]
        if role is Role.TOOL:
            is_error = text.startswith("Error: ")
            content = (TextPart(text=text.removeprefix("Error: ") if is_error else text),)
            parts.append(ToolResult(call_id=message["tool_call_id"], content=content, is_error=is_error))
        elif text:
            parts.append(TextPart(text=text))
        if role is Role.ASSISTANT:
            origin = Origin.MODEL
            parts += [
                ToolCall(
                    id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"]
                )
                for call in message.get("tool_calls", ())
            ]
        found.append(
            Stored(
                id=MessageId(str(number)),
                parent=None,
                role=role,
                origin=origin if role is not Role.TOOL else Origin.TOOL,
                parts=tuple(parts),
                created_at=_NOW,
            )
        )
    return found


def size_of(message: Message) -> int:
    """About how many characters a message takes."""
    calls = sum(len(call["function"]["arguments"]) + 24 for call in message.get("tool_calls", ()))
    return len(message["content"]) + len(message.get("reasoning_content", "")) + calls + 16


def changed_files(messages: Sequence[Message]) -> list[str]:
    """The files that calls changed, those changed last first."""
    results = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
    found: list[str] = []
    for message in messages:
        for call in message.get("tool_calls", ()):
            done = results.get(call["id"], "Error: ")
            if call["function"]["name"] in ("edit", "write") and not done.startswith("Error: "):
                found.append(json.loads(call["function"]["arguments"])["path"])
    return list(dict.fromkeys(reversed(found)))


def _tail(messages: Sequence[Message], end: int, most: int) -> int:
    """Where the part before `end` that is kept begins: never between a call and its result, at a prompt if
    that is not much shorter.
    """
    start, total = end, 0
    for at in range(end - 1, -1, -1):
        total += size_of(messages[at])
        if total > most:
            break
        if messages[at]["role"] != "tool":
            start = at
    sizes = [size_of(message) for message in messages[:end]]
    prompt = next((at for at in range(start, end) if messages[at]["role"] == "user"), start)
    return prompt if 2 * sum(sizes[prompt:]) >= sum(sizes[start:]) else start


def compacted(
    messages: list[Message], unlearned: set[int], rng: random.Random
) -> tuple[list[Message], set[int]] | None:
    """The conversation as it goes on after a compaction before one of its later prompts; what was said before
    that is not learned once more. None where it is too short.
    """
    prompts = [at for at, message in enumerate(messages) if message["role"] == "user" and at]
    ends = [at for at in prompts if sum(map(size_of, messages[:at])) >= LEAST_CHARS]
    if not ends:
        return None
    end = rng.choice(ends)
    room = sum(map(size_of, messages[:end]))
    cut = _tail(messages, end, int(TAIL_SHARE * room))
    dropped = stored(messages[:cut])
    if not any(message.role is Role.ASSISTANT for message in dropped):
        return None
    summary = digest.steps(dropped, int(SUMMARY_SHARE * room))
    words = digest.user_words(dropped, int(WORDS_SHARE * room))
    files = changed_files(messages[:end])
    state = digest.state(facts="", todo=(), jobs=(), files=files, num_chars=int(STATE_SHARE * room))
    head: Message = {"role": "user", "content": digest.head(summary, words, (), state)}
    kept = [head, *messages[cut:]]
    shift = 1 - cut
    before = {at + shift for at in range(cut, end) if messages[at]["role"] == "assistant"}
    return kept, before | {at + shift for at in unlearned if at >= end}
