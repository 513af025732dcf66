"""Texts about a conversation that are made without a model: what was done, what the user said, where things
stand. Contents of files and outputs of commands are left out: they are not k3agent's words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from k3agent.prompts.loader import load
from k3agent.types import ImagePart, JsonObject, Message, Origin, Role, ToolResult

MAX_SAID = 400
MAX_ARGUMENTS = 200
MAX_ERROR = 200
MAX_FILES = 100
# Of the user's words; more than a compaction ever carries.
MAX_WORDS = 100_000
MARKS = {"done": "x", "active": ">", "pending": " "}


def shortened(text: str, most: int) -> str:
    """`text`, cut in its middle to about `most` characters, and saying so."""
    if len(text) <= most:
        return text
    half = max(most, 0) // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[len(text) - half :]}"


@dataclass(slots=True)
class EarlierWords:
    """What the user said in messages that are no longer in memory: as much as `user_words` may want."""

    first: str | None = None
    # Without the first; `num_later` counts also those that are not kept.
    newest: deque[str] = field(default_factory=deque)
    num_later: int = 0

    def add(self, messages: Iterable[Message]) -> None:
        """Newer ones than all before."""
        for message in messages:
            if message.origin is not Origin.HUMAN:
                continue
            text = shortened(_words(message), MAX_WORDS)
            if self.first is None:
                self.first = text
                continue
            self.newest.append(text)
            self.num_later += 1
        left = MAX_WORDS - sum(map(len, self.newest))
        while left < 0 and len(self.newest) > 1:
            left += len(self.newest.popleft())


NOTHING_EARLIER = EarlierWords()


def user_words(messages: Sequence[Message], most: int, earlier: EarlierWords = NOTHING_EARLIER) -> str:
    """What the user said: the first ask and the newest words whole, as far as `most` characters go."""
    said = [_words(message) for message in messages if message.origin is Origin.HUMAN]
    first = earlier.first
    if first is None:
        if not said:
            return ""
        first, said = said[0], said[1:]
    first = shortened(first, most // 2)
    later = [*earlier.newest, *said]
    left, kept = most - len(first), list[str]()
    for text in reversed(later):
        if len(text) > left:
            if not kept:
                kept.append(shortened(text, left))
            break
        kept.append(text)
        left -= len(text)
    missing = earlier.num_later + len(said) - len(kept)
    gap = [f"[{missing} messages of the user left out]"] if missing else []
    return "\n\n---\n\n".join([first, *gap, *reversed(kept)])


def head(summary: str, words: str, pinned: Sequence[str], state: str) -> str:
    """The message that stands for what was left out of a conversation."""
    sections = [
        load("compaction/head"),
        f"# Summary\n\n{summary}",
        words and f"# What the user said, word by word\n\n{words}",
        "# Pinned by the user\n\n" + "\n".join(f"- {fact}" for fact in pinned) if pinned else "",
        state and f"# Where things stand\n\n{state}",
    ]
    return "\n\n".join(section for section in sections if section)


def _words(message: Message) -> str:
    images = sum(isinstance(part, ImagePart) for part in message.parts)
    return message.text + (f"\n[{images} images, no longer shown]" if images else "")


def steps(messages: Sequence[Message], most: int) -> str:
    """One line for each call and each thing the model said; the oldest go first where room is short."""
    results = {result.call_id: result for message in messages for result in message.results}
    lines: list[str] = []
    for message in messages:
        if message.role is not Role.ASSISTANT:
            continue
        if message.text.strip():
            lines.append(f"- said: {_line(message.text, MAX_SAID)}")
        lines += [
            f"- {call.name} {_line(call.arguments, MAX_ARGUMENTS)}: {_outcome(results.get(call.id))}"
            for call in message.calls
        ]
    kept: list[str] = []
    left = most
    for line in reversed(lines):
        left -= len(line) + 1
        if left < 0:
            break
        kept.append(line)
    missing = len(lines) - len(kept)
    gap = [f"[{missing} earlier steps left out]"] if missing else []
    return "\n".join(["What was done, from k3agent's records (results are left out):", *gap, *reversed(kept)])


def _outcome(result: ToolResult | None) -> str:
    if result is None:
        return "no result"
    return f"failed: {_line(result.text, MAX_ERROR)}" if result.is_error else "ok"


def _line(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def state(
    *, facts: str, todo: Sequence[JsonObject], jobs: Sequence[str], files: Sequence[str], num_chars: int
) -> str:
    """What the store knows, as it is now. The list of files gives way where room is short."""
    parts = [facts] if facts else []
    if todo:
        items = [f"- [{MARKS.get(str(item['status']), ' ')}] {item['text']}" for item in todo]
        parts.append("Steps ([x] done, [>] active):\n" + "\n".join(items))
    if jobs:
        parts.append("Commands that still run in the background:\n" + "\n".join(f"- {job}" for job in jobs))
    left = num_chars - sum(map(len, parts))
    names: list[str] = []
    for path in files[:MAX_FILES]:
        left -= len(path) + 3
        if left < 0:
            break
        names.append(f"- {path}")
    if len(names) < len(files):
        names.append(f"- and {len(files) - len(names)} more")
    if files:
        parts.append("Files changed in this session:\n" + "\n".join(names))
    return "\n\n".join(parts)
