"""Finds stop strings in the text of a response as its tokens come, and ends the answer there.

Text is compared as bytes: a token may end inside a character. Reasoning, calls and markup are never searched,
so the watch follows which element of the answer a token stands in. The token that completes a stop string is
the last one; cutting the text in front of the string is up to who shows it.
"""

from k3agent.backend.chat.template import Channel
from k3agent.backend.chat.tokenizer import Tokenizer

_RESPONSE = b"response"


class StopWatch:
    """`channel` is the element that the prompt left open; None: plain text, searched everywhere."""

    def __init__(self, tokenizer: Tokenizer, strings: tuple[str, ...], channel: Channel | None) -> None:
        self._tokenizer = tokenizer
        self._strings = [(text, text.encode()) for text in strings if text]
        self._longest = max((len(data) for _, data in self._strings), default=0)
        self._markers = {
            tokenizer.special(name): name for name in ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
        }
        self._is_plain = channel is None
        self._is_response = channel is None or channel == "response"
        self._tag: bytes | None = None
        """What was read of a tag whose marker came, until its end."""
        self._opens = False
        self._tail = b""

    def feed(self, token_id: int) -> str | None:
        """The stop string that this token completes, the one that begins first."""
        marker = None if self._is_plain else self._markers.get(token_id)
        piece = self._tokenizer.token_bytes(token_id)
        if marker is not None:
            self._follow(marker)
        elif self._tag is not None:
            self._tag += piece
        elif self._is_response:
            return self._search(piece)
        return None

    def _follow(self, marker: str) -> None:
        if marker in ("<|open|>", "<|close|>"):
            self._tag, self._opens = b"", marker == "<|open|>"
        elif self._tag is not None:
            self._is_response = self._opens and self._tag.split(b" ")[0] == _RESPONSE
            self._tag = None
        self._tail = b""

    def _search(self, piece: bytes) -> str | None:
        text = self._tail + piece
        found = [(place, string) for string, data in self._strings if (place := text.find(data)) >= 0]
        # one byte less than the longest: what could still become a match
        self._tail = text[-(self._longest - 1) :] if self._longest > 1 else b""
        return min(found)[1] if found else None
