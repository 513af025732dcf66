"""Which tokens of an answer count for more: those that decide.

Nearly all of an edit is copied from the file, so a model that copies all of it errs in few tokens and changes
nothing; few words of the thought before it say why, and in which line; and what the first thought of a turn
begins with says which task it is, as do the words behind "Task 2 of 3:". The loss weighs all these more.
"""

import json
import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import accumulate

from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.training.episodes.session import Message

CHANGE_WEIGHT = 4.0
"""Of the tokens in which an edit's new text differs from its old one, and a thought's `old -> new`."""
REASON_WEIGHT = 3.0
"""Of the sentence before "Line 3 has": what decides for an edit there."""
CHOICE_WEIGHT, CHOICE_TOKENS = 3.0, 10
"""Of the first tokens after a request, and behind the number of a task."""
_LEAST = 4
"""Bytes of a new text that is looked for in the thought as well."""
_LONGEST = 1500
"""Bytes of texts that are compared part by part; of longer ones all between the differences counts."""
_NEW = b'key="new" type="string"<|sep|>'
_PART = re.compile(rb"\w+|\s|[^\w\s]")
_TASK = re.compile(rb"(?:\d+ tasks\. The first|Task \d+ of \d+):")
_ARROW = re.compile(rb"(\S+) (?:->|becomes) (\S+?)[:.;]?(?=\s|$)")
"""A change that is announced."""
_LINE = re.compile(
    rb"\S+ stands only in line \d+; line \d+ (?:also )?has \S+: [^.]+\."
    rb"|Line \d+ has \S+: (?:\S+ is missing|\S+ is too much|\S+ for \S+)\.|\b(?i:line) (\d+)"
)
"""A line's number; a word that is written wrongly, with the letters that are."""
_REASON = re.compile(rb"(?:^|(?<=[.?] ))(?:[^.?]|[.?](?! ))+[.?] (?=Line \d+ has )")


def answer_weights(
    tokenizer: Tokenizer, message: Message, token_ids: Sequence[int], is_first: bool
) -> list[float]:
    """Loss weights of an assistant message as rendered, at least 1; `is_first`: it answers a request."""
    weights = [1.0] * len(token_ids)
    if is_first:
        weights[:CHOICE_TOKENS] = [CHOICE_WEIGHT] * min(CHOICE_TOKENS, len(weights))
    edits = [
        json.loads(call["function"]["arguments"])
        for call in message.get("tool_calls", ())
        if call["function"]["name"] == "edit"
    ]
    thought = message.get("reasoning_content", "")
    if not edits and not any(sign in thought for sign in (" -> ", " becomes ", "Task ", " tasks. ")):
        return weights
    pieces = [tokenizer.token_bytes(i) for i in token_ids]
    text, ends = b"".join(pieces), list(accumulate(map(len, pieces)))
    for match in _TASK.finditer(text[: text.find(b"<|close|>")]):
        first = next(place for place, at in enumerate(ends) if at >= match.end())
        for place in range(first + 1, min(first + 1 + CHOICE_TOKENS, len(weights))):
            weights[place] = CHOICE_WEIGHT
    spans = [(*span, CHANGE_WEIGHT) for span in _changes(text, edits)]
    if edits:
        spans = [*_decisions(text), *spans]
    for begin, end, weight in spans:
        for place, at in enumerate(ends):
            if at > begin and at - len(pieces[place]) < end:
                weights[place] = weight
    return weights


def _decisions(text: bytes) -> Iterator[tuple[int, int, float]]:
    """Where the thought before an edit says in which line it is and why: begin, end and weight."""
    thought = text[: text.find(b"<|close|>")]
    for match in _REASON.finditer(thought):
        yield match.start(), match.end(), REASON_WEIGHT
    for match in _LINE.finditer(thought):
        group = 1 if match[1] else 0
        yield match.start(group), match.end(group), CHANGE_WEIGHT


def _changes(text: bytes, edits: list[dict[str, str]]) -> Iterator[tuple[int, int]]:
    """Where the rendered message says what is changed: in the thought and in the arguments."""
    thought = text[: text.find(b"<|close|>")]
    for match in _ARROW.finditer(thought):
        for begin, end in _differences(match[1], match[2]):
            yield match.start(2) + begin, match.start(2) + end
    at = 0
    for edit in edits:
        old, new = edit.get("old", "").encode(), edit.get("new", "").encode()
        at = text.find(_NEW, at) + len(_NEW)
        said = thought.rfind(new) if len(new) >= _LEAST else -1
        for begin, end in _differences(old, new):
            yield at + begin, at + end
            if said >= 0:
                yield said + begin, said + end


def _differences(old: bytes, new: bytes) -> Iterator[tuple[int, int]]:
    """The parts of `new` that `old` has not there; where something is only left out, the byte behind it."""
    if len(old) + len(new) > _LONGEST:
        yield _outer(old, new)
        return
    one, two = _PART.findall(old), _PART.findall(new)
    starts = [0, *accumulate(map(len, two))]
    for kind, first, last, begin, end in SequenceMatcher(None, one, two, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        before, after = b"".join(one[first:last]), b"".join(two[begin:end])
        inner = _outer(before, after)
        yield starts[begin] + inner[0], starts[begin] + inner[1]


def _outer(old: bytes, new: bytes) -> tuple[int, int]:
    """The part of `new` without what is the same at both ends, at least one byte."""
    shorter = min(len(old), len(new))
    begin = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    tail = next((i for i in range(shorter - begin) if old[-1 - i] != new[-1 - i]), shorter - begin)
    return begin, max(len(new) - tail, begin + 1)
