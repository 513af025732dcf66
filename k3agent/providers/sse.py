"""Server-sent events from bytes.

Lines end only at CR, LF or CRLF: U+2028 and its kin are text. Bytes are decoded line by line, so a UTF-8
sequence that was split between two reads is whole again by then.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_EVENT_BYTES = 64 * 1024 * 1024


class SseError(ValueError):
    """The bytes are no event stream that can be held in memory."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One dispatched event; a comment line (`: keep-alive`) comes as an event of its own with `comment`
    set.
    """

    data: str = ""
    name: str = "message"
    comment: str | None = None


class SseDecoder:
    """Feed it bytes as they arrive; it returns the events that became complete."""

    def __init__(self) -> None:
        # Of the line that has not ended, as they came: joined each time, a long one would take for ever.
        self._pieces: list[bytes] = []
        self._tail_bytes = 0
        self._after_cr = False
        self._at_start = True
        self._data: list[str] = []
        self._size_bytes = 0
        self._name = ""

    def feed(self, chunk: bytes) -> list[SseEvent]:
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        lines = self._whole_lines(chunk)
        if self._tail_bytes + self._size_bytes > MAX_EVENT_BYTES:
            raise SseError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        events: list[SseEvent] = []
        for line in lines:
            self._line(line.rstrip(b"\r\n"), events)
        return events

    def flush(self) -> list[SseEvent]:
        """The event that the end of the stream left without its blank line."""
        events: list[SseEvent] = []
        if self._pieces:
            self._line(b"".join(self._pieces), events)
            self._pieces, self._tail_bytes = [], 0
        self._dispatch(events)
        return events

    def _whole_lines(self, chunk: bytes) -> list[bytes]:
        if b"\n" not in chunk and b"\r" not in chunk:
            self._pieces.append(chunk)
            self._tail_bytes += len(chunk)
            return []
        # bytes.splitlines cuts at CR, LF and CRLF only; str.splitlines would cut at U+2028 as well.
        lines = b"".join((*self._pieces, chunk)).splitlines(keepends=True)
        self._pieces = [] if lines[-1].endswith((b"\r", b"\n")) else [lines.pop()]
        self._tail_bytes = sum(map(len, self._pieces))
        return lines

    def _line(self, raw: bytes, events: list[SseEvent]) -> None:
        if self._at_start:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
            self._at_start = False
        if not raw:
            self._dispatch(events)
            return
        line = raw.decode("utf-8", errors="replace")
        if line.startswith(":"):
            events.append(SseEvent(comment=line[1:].strip()))
            return
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
            self._size_bytes += len(raw)
        elif field == "event":
            self._name = value

    def _dispatch(self, events: list[SseEvent]) -> None:
        if self._data:
            events.append(SseEvent(data="\n".join(self._data), name=self._name or "message"))
        self._data = []
        self._size_bytes = 0
        self._name = ""
