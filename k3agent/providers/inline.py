"""Tool calls and control markers that a server left in the text.

Two faults, one reader. K3's markers leak when a server's parser stumbles: they are never shown, and what
they hold is read. Servers that do not parse their models' calls deliver them as JSON in a fence or a
`<tool_call>` tag: read only where a dialect is lenient, only for tools that were offered, and disclosed.
Prose about markers or JSON stays prose.
"""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass, field
from typing import Any

_MARKER = re.compile(
    r"<\|(?:open|close)\|>\s*(?:think|response|tools|message|call|argument|json)\b"
    r"|<\|end_of_msg\|>|<\|tool_calls_section_begin\|>|<\|tool_call_begin\|>"
)
_LITERALS = (
    "<|open|>", "<|close|>", "<|end_of_msg|>",
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<tool_call>",
)  # fmt: skip
# Any language: small models write their calls under json, python, xml, plaintext or nothing.
_FENCE = re.compile(r"```[\w+-]{0,16}[ \t]*\r?\n")
_PARTIAL_FENCE = re.compile(r"`{1,3}[\w+-]{0,16}[ \t]*\r?\Z")
_FENCE_END = re.compile(r"\n[ \t]*```[ \t]*(?=\r?\n|\Z)")
_TAG_BODY = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_CALL_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=[{"])')
_BETWEEN = re.compile(r"[\s,;]*")
_CALL_KEYS = {"name", "arguments", "parameters", "function", "id", "type"}
_ELEMENT = re.compile(r"<\|(open|close)\|>(.*?)<\|sep\|>|<\|(end_of_msg)\|>", re.DOTALL)
_ATTRIBUTE = re.compile(r'(\w+)="([^"]*)"')
_ANY_MARKER = re.compile(r"<\|(?:open|close)\|>[^<]{0,80}<\|sep\|>|<\|[a-z_]{3,32}\|>")
_K2_CALL = re.compile(
    r"<\|tool_call_begin\|>\s*(?:functions\.)?([\w-]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>",
    re.DOTALL,
)


@dataclass(slots=True)
class Found:
    """What the held text was: plain `text`, `reasoning`, calls as (name, arguments).

    `is_leak`: markers that cannot be read. `had_markers`: markers were taken out.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    is_leak: bool = False
    had_markers: bool = False


class _Shown:
    """What was shown, as far as it tells what follows: the text itself would be copied with each piece."""

    def __init__(self) -> None:
        self.is_blank = True
        self._last = ""
        self._num_fences = 0
        # Of the run of backticks at the end: some may come to it.
        self._num_ticks = 0

    def add(self, text: str) -> None:
        self.is_blank = self.is_blank and text.isspace()
        self._last = text[-1]
        whole = "`" * self._num_ticks + text
        rest = whole.rstrip("`")
        self._num_fences += rest.count("```")
        self._num_ticks = len(whole) - len(rest)

    def in_fence(self, more: str) -> bool:
        """Whether a block of code is open after what was shown and `more`: an odd number of fences."""
        return (self._num_fences + ("`" * self._num_ticks + more).count("```")) % 2 == 1

    def last(self, more: str) -> str:
        return more[-1:] or self._last


class TextWatcher:
    """Passes text through until something begins that may be a call or a marker; that is held until it is
    clear.
    """

    def __init__(self, tools: frozenset[str], *, is_lenient: bool) -> None:
        self._tools = tools
        self._is_lenient = is_lenient and bool(tools)
        self._shown = _Shown()
        self._held = ""
        # What came after `_held` while it could change nothing: joined each time, it would take for ever.
        self._more: list[str] = []
        self._mode = ""
        # In a fence: whether it may have ended.
        self._may_end = True
        self.calls: list[tuple[str, str]] = []

    def feed(self, text: str) -> str:
        """The part of all text so far that can be shown now and was not before."""
        self._more.append(text)
        self._may_end = self._may_end or "`" in text
        if self._mode and not (self._mode == "fence" and self._may_end):
            return ""
        self._held = self.held
        self._more = []
        out: list[str] = []
        while self._advance(out):
            pass
        return "".join(out)

    @property
    def held(self) -> str:
        """What was fed and neither shown nor judged yet."""
        return "".join((self._held, *self._more))

    def finish(self) -> Found:
        """Judge what is still held; earlier finds are in `calls`."""
        held, mode, self._held, self._more = self.held, self._mode, "", []
        if mode == "marker":
            return parse_markers(held)
        if mode == "tag":
            return _parse_tags(held)
        if mode in {"bare", "fence"}:
            return self._judge_json(held, mode)
        return Found(text=held)

    def _judge_json(self, held: str, mode: str) -> Found:
        """The end of an answer that began like a call, in a fence or bare."""
        body = _FENCE.sub("", held, count=1).rstrip().removesuffix("```") if mode == "fence" else held
        calls = parse_json_calls(body, self._tools)
        if calls:
            return Found(calls=calls)
        values, rest = _leading_values(body)
        calls = _calls_in(values)
        if mode == "bare" and calls and all(name in self._tools for name, _ in calls):
            return Found(calls=calls, text=rest.strip())
        # An answer that ends in a call of a tool that is not there wants to be told so: it is no answer.
        is_plain = all(isinstance(value, dict) and value.keys() <= _CALL_KEYS for value in values)
        calls = _read_calls(body) if is_plain else []
        return Found(calls=calls) if calls else Found(text=held)

    def _advance(self, out: list[str]) -> bool:
        """One change of mode; True when there may be more to do."""
        if self._mode == "fence":
            return self._close_fence(out)
        if self._mode or not self._held:
            return False
        if self._is_lenient and self._shown.is_blank and self._held.lstrip()[:1] in {"{", "["}:
            self._mode = "bare"
            return False
        start, mode = self._trigger()
        if start is None:
            self._emit(self._held[: self._safe_length()], out)
            return False
        self._emit(self._held[:start], out)
        self._mode, self._may_end = mode, True
        return True

    def _emit(self, text: str, out: list[str]) -> None:
        if text:
            out.append(text)
            self._shown.add(text)
            self._held = self._held[len(text) :]

    def _trigger(self) -> tuple[int | None, str]:
        hits: list[tuple[int, str]] = []
        for match in _MARKER.finditer(self._held):
            if self._is_leak_at(match.start()):
                hits.append((match.start(), "marker"))
                break
        if self._is_lenient:
            at = self._held.find("<tool_call>")
            if at >= 0:
                hits.append((at, "tag"))
            for fence in _FENCE.finditer(self._held):
                # In a block, this one closes it, and the next may open another.
                if not self._shown.in_fence(self._held[: fence.start()]):
                    hits.append((fence.start(), "fence"))
                    break
        return min(hits) if hits else (None, "")

    def _is_leak_at(self, at: int) -> bool:
        """Not in quotes and not in a code block: there people write about markers."""
        before = self._held[:at]
        return self._shown.last(before) not in {"`", '"', "'"} and not self._shown.in_fence(before)

    def _safe_length(self) -> int:
        """How much of the held text cannot be the beginning of something."""
        cut = len(self._held)
        at = self._held.rfind("<")
        if at >= 0:
            tail = self._held[at:]
            is_name_open = tail.startswith(("<|open|>", "<|close|>")) and len(tail) < 24
            if is_name_open or any(literal.startswith(tail) for literal in _LITERALS):
                cut = at
        if self._is_lenient:
            partial = _PARTIAL_FENCE.search(self._held)
            if partial is not None:
                cut = min(cut, partial.start())
            if self._shown.is_blank and not self._held.strip():
                cut = 0
        return cut

    def _close_fence(self, out: list[str]) -> bool:
        head = _FENCE.match(self._held)
        assert head is not None
        body_at = head.end()
        first = self._held[body_at:].lstrip()[:1]
        if not first:
            return False
        end = None
        if first in {"{", "["}:
            end = _FENCE_END.search(self._held, body_at - 1)
            if end is None or end.end() == len(self._held):
                self._may_end = "`" in self._held[self._held.rfind("\n") :]
                return False
            calls = parse_json_calls(self._held[body_at : end.start()], self._tools)
            if calls:
                self.calls.extend(calls)
                self._held = self._held[end.end() :].lstrip("\n")
                self._mode = ""
                return True
        # A block of something else: shown as it is. Its end may not be here yet, so it is looked for later.
        self._mode = ""
        self._emit(self._held[: end.end() if end else body_at], out)
        return True


def parse_json_calls(text: str, tools: frozenset[str]) -> list[tuple[str, str]]:
    """Calls if the whole text is `{"name": offered tool, "arguments": {...}}`, once, in a list or one after
    the other; else nothing.
    """
    calls = _read_calls(text)
    return calls if all(name in tools for name, _ in calls) else []


def _read_calls(text: str) -> list[tuple[str, str]]:
    """Calls of whatever tools, if the text is nothing else.

    Line breaks inside strings are let pass. A call whose JSON is broken is a call all the same: its arguments
    go on as they are, for the reader of arguments to repair or to complain about.
    """
    values, rest = _leading_values(text)
    calls = _calls_in(values)
    rest = rest.strip("} \t\r\n") and rest.strip()
    # A model in a loop is cut off in the middle of what it has said already.
    if (values and not calls) or (values and text.lstrip().startswith(rest)) or not rest:
        return calls
    head = _CALL_HEAD.match(rest)
    return [*calls, (head.group(1), _broken_arguments(rest[head.end() :]))] if head else []


def _broken_arguments(text: str) -> str:
    """The arguments at the end of a call that is no JSON."""
    values, rest = _leading_values(text)
    if len(values) == 1 and not rest.strip("} \t\r\n"):
        # Only the braces around the arguments do not match.
        return text.removesuffix(rest)
    return text.removesuffix("}").rstrip()


def without_repeats(calls: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Calls that repeat the one before them, letter for letter, are a model in a loop: one is enough."""
    return [call for at, call in enumerate(calls) if at == 0 or call != calls[at - 1]]


def _leading_values(text: str) -> tuple[list[Any], str]:
    """The JSON values that `text` begins with, in a list or one after the other, and what follows."""
    decoder = json.JSONDecoder(strict=False)
    values: list[Any] = []
    at = 0
    while True:
        between = _BETWEEN.match(text, at)
        at = between.end() if between else at
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return values, text[at:]
        values.extend(value if isinstance(value, list) else [value])


def _calls_in(values: list[Any]) -> list[tuple[str, str]]:
    """Calls if every value is one."""
    calls = [_json_call(value) for value in values]
    return [] if None in calls else [call for call in calls if call is not None]


def _json_call(entry: Any) -> tuple[str, str] | None:
    if not isinstance(entry, dict):
        return None
    inner = entry.get("function")
    if isinstance(inner, dict):
        entry = inner
    name = entry.get("name")
    arguments = entry.get("arguments", entry.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return name, json.dumps(arguments, ensure_ascii=False)


def _parse_tags(held: str) -> Found:
    calls: list[tuple[str, str]] = []
    for match in _TAG_BODY.finditer(held):
        found = _read_calls(match.group(1))
        if not found:
            return Found(text=held)
        calls.extend(found)
    return Found(text=_TAG_BODY.sub("", held).strip(), calls=calls)


def parse_markers(held: str) -> Found:
    """Read K3's (or K2's) own markup; text that began with a marker."""
    if "<|tool_call" in held:
        calls = [(match.group(1), match.group(2).strip()) for match in _K2_CALL.finditer(held)]
        rest = _ANY_MARKER.sub("", _K2_CALL.sub("", held)).strip()
        is_whole = bool(calls) and not rest
        return Found(calls=calls if is_whole else [], text=rest, is_leak=not is_whole, had_markers=True)
    reader = _MarkupReader()
    at = 0
    for match in _ELEMENT.finditer(held):
        reader.text(held[at : match.start()])
        reader.marker(match.group(1) or "end", match.group(2) or "")
        at = match.end()
    reader.text(held[at:])
    return reader.result(held)


class _MarkupReader:
    """K3's elements with a stack; what closes without having been opened is let pass."""

    def __init__(self) -> None:
        self._found = Found(had_markers=True)
        self._stack: list[str] = []
        self._name = ""
        self._arguments: dict[str, Any] = {}
        self._raw_arguments: str | None = None
        self._key = ("", "string")
        self._value: list[str] = []
        self._is_broken = False

    def marker(self, kind: str, head: str) -> None:
        tag, _, rest = head.strip().partition(" ")
        attributes = {key: html.unescape(value) for key, value in _ATTRIBUTE.findall(rest)}
        if kind == "open":
            self._stack.append(tag)
            self._value = []
            if tag == "call":
                self._name, self._arguments, self._raw_arguments = attributes.get("tool", ""), {}, None
            elif tag == "argument":
                self._key = (attributes.get("key", ""), attributes.get("type", "string"))
        elif kind == "close":
            if tag in self._stack:
                while self._stack.pop() != tag:
                    self._is_broken = self._is_broken or tag in {"call", "argument"}
            self._closed(tag)

    def text(self, text: str) -> None:
        inside = self._stack[-1] if self._stack else ""
        if inside in {"argument", "json"}:
            self._value.append(text)
        elif inside == "think":
            self._found.reasoning += text
        elif inside in {"response", "message", ""}:
            self._found.text += text
        elif text.strip():
            self._is_broken = True

    def result(self, held: str) -> Found:
        if self._is_broken or {"call", "argument", "tools"} & set(self._stack) or "<|" in self._found.text:
            return Found(text=_ANY_MARKER.sub("", held).strip(), is_leak=True, had_markers=True)
        return self._found

    def _closed(self, tag: str) -> None:
        if tag == "argument":
            key, kind = self._key
            self._arguments[key] = _typed("".join(self._value), kind)
        elif tag == "json":
            self._raw_arguments = "".join(self._value)
        elif tag == "call" and self._name:
            raw = self._raw_arguments
            text = json.dumps(self._arguments, ensure_ascii=False) if raw is None else raw
            self._found.calls.append((self._name, text))
            self._name = ""
        if tag in {"argument", "json"}:
            self._value = []


def _typed(text: str, kind: str) -> Any:
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
