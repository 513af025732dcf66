"""Which tokens of an answer count for more: those that decide.

Nearly all of an edit is copied from the file, so a model that copies all of it errs in few tokens and changes
nothing; and what the first thought of a turn begins with says which task it is. The loss weighs both more.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import accumulate

from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.training.episodes.session import Message

CHANGE_WEIGHT = 4.0
"""Of the tokens in which an edit's new text differs from its old one."""
CHOICE_WEIGHT, CHOICE_TOKENS = 3.0, 10
"""Of the first tokens after a request."""
_LEAST = 4
"""Bytes of a new text that is looked for in the thought as well."""
_NEW = b'key="new"'


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
    if not edits:
        return weights
    pieces = [tokenizer.token_bytes(i) for i in token_ids]
    text, ends = b"".join(pieces), list(accumulate(map(len, pieces)))
    for edit in edits:
        for begin, end in _changes(text, edit.get("old", "").encode(), edit.get("new", "").encode()):
            for place, at in enumerate(ends):
                if at > begin and at - len(pieces[place]) < end:
                    weights[place] = CHANGE_WEIGHT
    return weights


def _changes(text: bytes, old: bytes, new: bytes) -> Iterator[tuple[int, int]]:
    """Where the rendered message says what is changed: in the argument, and at the end of the thought."""
    begin, end = _difference(old, new)
    argument = text.find(new, text.find(_NEW) + len(_NEW)) if _NEW in text else -1
    if argument >= 0:
        yield argument + begin, argument + end
    thought = text.rfind(new, 0, text.find(b"<|close|>"))
    if len(new) >= _LEAST and thought >= 0:
        yield thought + begin, thought + end


def _difference(old: bytes, new: bytes) -> tuple[int, int]:
    """The part of `new` without what is the same at both ends; where something is only left out, the byte
    behind it."""
    shorter = min(len(old), len(new))
    begin = next((i for i in range(shorter) if old[i] != new[i]), shorter)
    tail = next((i for i in range(shorter - begin) if old[-1 - i] != new[-1 - i]), shorter - begin)
    return begin, max(len(new) - tail, begin + 1)
