"""Sampled token ids to reasoning, text and tool calls, as they come.

The state machine reads ids, not text: a marker is a special token, so an argument that spells one is just
text. Models damage their own markup now and then; each known form is mended here and noted in `damage`, and
no marker ever reaches the caller.
"""

import codecs
import json
import re
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from k3agent.backend.chat.template import Channel
from k3agent.backend.chat.tokenizer import Tokenizer

__all__ = [
    "ArgumentsDelta",
    "CallEnded",
    "CallStarted",
    "Event",
    "OutputParser",
    "ParsedCall",
    "ReasoningDelta",
    "ReasoningWasText",
    "TextDelta",
]

_OPENER = "<|open|>think<|sep|>"
_MAX_HEADER = 256
_ATTRIBUTE = re.compile(r'\s([^\s="]+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningWasText:
    """All reasoning so far was the answer itself: the model wrote it without leaving the think channel."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """A piece of the call's arguments; all pieces of a complete call joined are one JSON object."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    index: int


Event = ReasoningDelta | TextDelta | ReasoningWasText | CallStarted | ArgumentsDelta | CallEnded


@dataclass(slots=True)
class ParsedCall:
    call_id: str
    name: str
    arguments: str = ""
    is_complete: bool = False


_Place = Literal["think", "response", "message", "tools", "call", "argument", "json", "closed"]


@dataclass(slots=True)
class _Argument:
    is_string: bool
    raw: str = ""


@dataclass(slots=True)
class _Header:
    is_open: bool
    ids: list[int] = field(default_factory=list)


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


class OutputParser:
    """Reads one answer. `channel` is where the prompt left the model; `tools` are the declared names (None:
    any).

    With an empty `tools`, calls are dropped and noted: the client has not asked for any.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        channel: Channel = "think",
        tools: Collection[str] | None = None,
        new_call_id: Callable[[], str] = _new_call_id,
    ) -> None:
        self.calls: list[ParsedCall] = []
        self.damage: list[str] = []
        self.num_reasoning_tokens = 0
        self.is_ended = False
        self._tokenizer = tokenizer
        self._tools = tools
        self._new_call_id = new_call_id
        self._open = tokenizer.special("<|open|>")
        self._close = tokenizer.special("<|close|>")
        self._sep = tokenizer.special("<|sep|>")
        self._ends = {tokenizer.special("<|end_of_msg|>"), tokenizer.special_tokens.get("[EOS]", -1)}
        self._place: _Place = channel
        self._think_is_first = channel == "think"  # the prompt's think element is still open
        self._had_response = channel == "response"
        self._reasoning: list[str] = []
        self._text: list[str] = []
        self._header: _Header | None = None
        self._argument: _Argument | None = None
        self._call_is_dropped = False
        self._has_brace = False  # the call's arguments are an object that still wants its closing brace
        self._spelled_opener: str | None = "" if channel == "think" else None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._events: list[Event] = []

    # --- what came out

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def channel(self) -> Channel | None:
        """The channel that the next ordinary token is a part of; None inside markup and calls."""
        if self._header is not None:
            return None
        return self._place if self._place in ("think", "response") else None

    @property
    def is_call_open(self) -> bool:
        """A call has begun and not ended: its arguments must not be used."""
        return bool(self.calls) and not self.calls[-1].is_complete

    def message(self) -> dict[str, Any]:
        """The answer as an assistant message; `content` is None when the model never came to a response."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": self.text if self._had_response else None,
            "reasoning_content": self.reasoning,
        }
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.calls
            ]
        return message

    # --- what goes in

    def feed(self, ids: Iterable[int]) -> list[Event]:
        """Take further ids; returns what is certain now. Ids behind the end of the message are ignored."""
        for token_id in ids:
            if self.is_ended:
                break
            self._take(token_id)
        return self._drain()

    def finish(self) -> list[Event]:
        """No more ids will come: give out what was held back. Unfinished markup is dropped."""
        if self._header is not None:
            self._note("the answer was cut inside a marker")
            self._header = None
        self._flush_text()
        if not self.is_ended and self._argument is not None:
            # a cut non-string value stays cut, so that nobody takes the call for complete
            self._put_arguments(self._argument.raw)
            self._argument = None
        return self._drain()

    def _take(self, token_id: int) -> None:
        header = self._header
        if token_id in self._ends:
            self._end()
        elif token_id == self._open or token_id == self._close:
            if header is not None:
                self._note("a marker began inside a marker")
            self._flush_text()
            self._header = _Header(token_id == self._open)
        elif token_id == self._sep:
            if header is None:
                self._note("a separator without a marker")
            else:
                self._header = None
                self._apply(header)
        elif self._tokenizer.is_special(token_id):
            self._note(f"special token {token_id} in the answer")
        elif header is None:
            self._body(token_id)
        else:
            header.ids.append(token_id)
            if len(header.ids) > _MAX_HEADER:
                self._note("a marker without an end was taken as text")
                self._header = None
                for held in header.ids:
                    self._body(held)

    def _end(self) -> None:
        if self._header is not None:
            self._note("the message ended inside a marker")
            self._header = None
        self._flush_text()
        if self._place not in ("message", "closed"):
            self._note(f"the message ended inside {self._place}")
        self._end_call()
        self.is_ended = True

    # --- markers

    def _apply(self, header: _Header) -> None:
        text = self._tokenizer.decode(header.ids)
        tag, _, _ = text.partition(" ")
        attributes = {
            key: value.replace("&quot;", '"').replace("&amp;", "&") for key, value in _ATTRIBUTE.findall(text)
        }
        if header.is_open:
            self._apply_open(tag, attributes)
        else:
            self._apply_close(tag)

    def _apply_open(self, tag: str, attributes: dict[str, str]) -> None:
        match tag:
            case "think" | "response" | "tools":
                if self._place not in ("message", "closed"):
                    self._note(f"{tag} was opened inside {self._place}")
                self._end_call()
                self._leave_think()
                self._place = tag
                self._had_response = self._had_response or tag == "response"
            case "call":
                if self._place != "tools":
                    self._note(f"a call was opened inside {self._place}")
                self._leave_think()
                self._start_call(attributes.get("tool", ""))
            case "argument" | "json" if self._place in ("call", "argument"):
                self._end_argument()
                self._start_argument(tag, attributes)
            case _:
                self._note(f"unexpected element {tag!r} was opened inside {self._place}")

    def _apply_close(self, tag: str) -> None:
        place = self._place
        match tag:
            case "think" if place == "think":
                self._leave_think()
                self._place = "message"
            case "response" if place == "response":
                self._place = "message"
            case "response" if place == "think" and self._think_is_first:
                self._take_reasoning_as_text()
            case "argument" | "json" if place in ("argument", "json"):
                self._end_argument()
            case "call" if place in ("call", "argument", "json"):
                self._end_call()
            case "tools" if place in ("tools", "call", "argument", "json"):
                self._end_call()
                self._place = "message"
            case "message":
                if place != "message":
                    self._note(f"the message was closed inside {place}")
                self._end_call()
                self._place = "closed"
            case _:
                self._note(f"{tag!r} was closed inside {place}")

    def _leave_think(self) -> None:
        self._think_is_first = False

    def _take_reasoning_as_text(self) -> None:
        self._note("the answer was written into the think channel")
        text = self.reasoning
        self._reasoning.clear()
        self._text.append(text)
        self.num_reasoning_tokens = 0
        self._had_response = True
        self._leave_think()
        self._place = "message"
        if text:
            self._events.append(ReasoningWasText(text))

    # --- calls

    def _start_call(self, name: str) -> None:
        self._end_call()
        self._place = "call"
        self._has_brace = False
        self._call_is_dropped = self._tools is not None and not self._tools
        if self._call_is_dropped:
            self._note("a call was made though no tools are declared")
            return
        if not name:
            self._note("a call without a tool name")
            name = "unknown"
        elif self._tools is not None and name not in self._tools:
            self._note(f"a call of the undeclared tool {name!r}")
        call = ParsedCall(self._new_call_id(), name)
        self.calls.append(call)
        self._events.append(CallStarted(len(self.calls) - 1, call.call_id, call.name))

    def _start_argument(self, tag: str, attributes: dict[str, str]) -> None:
        begun = bool(not self._call_is_dropped and self.calls and self.calls[-1].arguments)
        if tag == "json":
            if begun:
                self._note("a json block after arguments was dropped")
                return
            self._place = "json"
            return
        key = attributes.get("key")
        if key is None:
            self._note("an argument without a key was dropped")
            return
        self._place = "argument"
        self._argument = _Argument(attributes.get("type", "string") == "string")
        self._has_brace = self._has_brace or not begun
        self._put_arguments((", " if begun else "{") + json.dumps(key, ensure_ascii=False) + ": ")
        if self._argument.is_string:
            self._put_arguments('"')

    def _end_argument(self) -> None:
        if self._place == "json":
            if not self._call_is_dropped and not self.calls[-1].arguments.strip():
                self._put_arguments("{}")
            self._place = "call"
        if self._argument is None:
            return
        if self._argument.is_string:
            self._put_arguments('"')
        else:
            self._put_arguments(_json_or_string(self._argument.raw))
        self._argument = None
        self._place = "call"

    def _end_call(self) -> None:
        if self._place not in ("call", "argument", "json"):
            return
        self._end_argument()
        self._place = "tools"
        if self._call_is_dropped:
            return
        call = self.calls[-1]
        if self._has_brace:
            self._put_arguments("}")
        elif not call.arguments:
            self._put_arguments("{}")
        call.is_complete = True
        self._events.append(CallEnded(len(self.calls) - 1))

    def _put_arguments(self, piece: str) -> None:
        if piece and not self._call_is_dropped:
            self.calls[-1].arguments += piece
            self._events.append(ArgumentsDelta(len(self.calls) - 1, piece))

    # --- bodies

    def _body(self, token_id: int) -> None:
        if self._place == "think":
            self.num_reasoning_tokens += 1
        text = self._decoder.decode(self._tokenizer.token_bytes(token_id))
        if text:
            self._put_text(text)

    def _flush_text(self) -> None:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        held, self._spelled_opener = self._spelled_opener, None
        if held or text:
            self._put_text((held or "") + text)

    def _put_text(self, text: str) -> None:
        match self._place:
            case "think":
                text = self._without_spelled_opener(text)
                if text:
                    self._reasoning.append(text)
                    self._events.append(ReasoningDelta(text))
            case "response":
                self._text.append(text)
                self._events.append(TextDelta(text))
            case "message" if text.strip():
                self._note("text outside of any channel was taken as response")
                self._place = "response"
                self._had_response = True
                self._put_text(text.lstrip())
            case "argument" if self._argument is not None and self._argument.is_string:
                self._put_arguments(json.dumps(text, ensure_ascii=False)[1:-1])
            case "argument" if self._argument is not None:
                self._argument.raw += text
            case "json":
                self._put_arguments(text)
            case _ if text.strip():
                self._note(f"text inside {self._place} was dropped")

    def _without_spelled_opener(self, text: str) -> str:
        """Take away a think opener that the model repeated in ordinary tokens at the very beginning."""
        if self._spelled_opener is None:
            return text
        text = self._spelled_opener + text
        if _OPENER.startswith(text) and text != _OPENER:
            self._spelled_opener = text
            return ""
        self._spelled_opener = None
        if text.startswith(_OPENER):
            self._note("the think opener was repeated as text")
            return text[len(_OPENER) :]
        return text

    def _note(self, what: str) -> None:
        self.damage.append(what)

    def _drain(self) -> list[Event]:
        """Give out the events, neighbours of one kind joined."""
        joined: list[Event] = []
        for event in self._events:
            match (joined[-1] if joined else None), event:
                case (ReasoningDelta() as last, ReasoningDelta()) | (TextDelta() as last, TextDelta()):
                    joined[-1] = type(last)(last.text + event.text)
                case ArgumentsDelta() as last, ArgumentsDelta(index=index) if last.index == index:
                    joined[-1] = ArgumentsDelta(index, last.text + event.text)
                case _:
                    joined.append(event)
        self._events.clear()
        return joined


def _reject_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _json_or_string(raw: str) -> str:
    """The value as it stands if it is JSON, else as a JSON string: damage must not break the object."""
    try:
        json.loads(raw, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return json.dumps(raw, ensure_ascii=False)
    return raw.strip()
