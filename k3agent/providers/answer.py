"""One streamed answer: chunks in, deltas out.

Content, reasoning and call fragments may come in any order and in every known dialect; usage is taken from
wherever it stands, the last one wins. Source: kimi-api.md sections 1.7 to 1.9.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from k3agent.providers.callreader import CallReader, whole_text
from k3agent.providers.inline import Found, TextWatcher, without_repeats
from k3agent.types import CallDelta, Delta, Finish, Finished, JsonObject, ReasoningDelta, TextDelta, Usage

_FINISH = {
    "stop": Finish.STOP,
    "length": Finish.LENGTH,
    "max_tokens": Finish.LENGTH,
    "tool_calls": Finish.TOOL_CALLS,
    "function_call": Finish.TOOL_CALLS,
    "content_filter": Finish.CONTENT_FILTER,
}
_BYTES_PER_TOKEN = 3.5
# More is nonsense; sums of it would not fit into the store's integers.
_MAX_TOKENS = 1 << 40


def parse_usage(raw: Any) -> Usage | None:
    """Usage in any dialect; cached tokens are part of the input, reasoning of the output."""
    if not isinstance(raw, dict):
        return None
    given = _first_int(raw, "prompt_tokens", "input_tokens")
    made = _first_int(raw, "completion_tokens", "output_tokens")
    if given is None and made is None:
        return None
    cached = _first_int(raw, "cached_tokens", "cache_read_input_tokens", "prompt_cache_hit_tokens")
    if cached is None:
        cached = _first_int(
            raw.get("prompt_tokens_details") or raw.get("input_tokens_details"), "cached_tokens"
        )
    details = raw.get("completion_tokens_details") or raw.get("output_tokens_details") or raw
    return Usage(
        input_tokens=given or 0,
        cached_tokens=min(cached or 0, given or 0),
        output_tokens=made or 0,
        reasoning_tokens=min(_first_int(details, "reasoning_tokens") or 0, made or 0),
    )


def _first_int(raw: Any, *names: str) -> int | None:
    if not isinstance(raw, dict):
        return None
    for name in names:
        value = raw.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MAX_TOKENS:
            return int(value)
    return None


@dataclass(slots=True)
class AnswerReader:
    """Feed it decoded chunks; `finish` closes the answer. One per attempt.

    `reasoning_field` becomes the field in which the endpoint sent reasoning. `is_whole` says whether the
    endpoint gave a finish reason: without one the answer was cut. `is_still_reading`: the newest word of the
    endpoint was how far it has read the prompt.
    """

    calls: CallReader
    tools: frozenset[str]
    is_lenient: bool
    model: str = ""
    reasoning_field: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    num_chars: int = 0
    has_empty_reasoning: bool = False
    has_reasoning: bool = False
    has_text: bool = False
    is_still_reading: bool = False
    notices: list[str] = field(default_factory=list)
    extra: dict[str, str] = field(default_factory=dict)
    leak: Found | None = None
    rest: list[Delta] = field(default_factory=list)
    _text: TextWatcher = field(init=False)
    _reasoning: TextWatcher = field(init=False)

    def __post_init__(self) -> None:
        self._text = TextWatcher(self.tools, is_lenient=self.is_lenient)
        self._reasoning = TextWatcher(self.tools, is_lenient=False)

    @property
    def is_whole(self) -> bool:
        return self.finish_reason is not None

    @property
    def is_empty(self) -> bool:
        """Neither text nor calls: an incomplete answer, unless it was filtered or cut by the limit."""
        return not self.has_text and not self.calls.calls

    def feed(self, chunk: JsonObject) -> list[Delta]:
        if isinstance(chunk.get("model"), str) and chunk["model"]:
            self.model = whole_text(chunk["model"])
        self.usage = parse_usage(chunk.get("usage")) or self.usage
        out: list[Delta] = []
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict) and choice.get("index") in {0, None}:
                out.extend(self._choice(choice))
        return out

    def _choice(self, choice: JsonObject) -> list[Delta]:
        self.usage = parse_usage(choice.get("usage")) or self.usage
        if isinstance(choice.get("finish_reason"), str) and choice["finish_reason"]:
            self.finish_reason = choice["finish_reason"]
        # A server that ignores `stream` answers with a whole message.
        delta = choice.get("delta") or choice.get("message")
        if not isinstance(delta, dict):
            return []
        out = self._reasoning_of(delta)
        text = _text_of(delta.get("content"))
        if text:
            self.num_chars += len(text)
            out.extend(self._show(self._text.feed(text)))
        fragments = delta.get("tool_calls")
        for fragment in fragments if isinstance(fragments, list) else []:
            if isinstance(fragment, dict):
                out.extend(self._count(self.calls.feed(fragment)))
        legacy = delta.get("function_call")
        if isinstance(legacy, dict):
            out.extend(self._count(self.calls.feed({"index": 0, "function": legacy})))
        return out

    def _reasoning_of(self, delta: JsonObject) -> list[Delta]:
        details = delta.get("reasoning_details")
        found: tuple[JsonObject, ...] | None = None
        if isinstance(details, list) and details:
            found = tuple(entry for entry in details if isinstance(entry, dict))
            self.extra["reasoning_details"] = "yes"
        text: str | None = None
        for name in ("reasoning_content", "reasoning"):
            value = delta.get(name)
            if isinstance(value, str) and (value or text is None):
                text = value
                if not found:
                    self.reasoning_field = name
                if value:
                    break
        if text is None and found:
            text = "".join(str(entry.get("text") or entry.get("summary") or "") for entry in found)
        if text is None:
            return []
        if not text and not found:
            self.has_empty_reasoning = True
            return []
        self.num_chars += len(text)
        shown = self._reasoning.feed(text)
        if not shown and not found:
            return []
        self.has_reasoning = True
        return [ReasoningDelta(text=shown, details=found)]

    def _show(self, text: str) -> list[Delta]:
        if not text:
            return []
        self.has_text = self.has_text or bool(text.strip())
        return [TextDelta(text=text)]

    def _count(self, deltas: list[CallDelta]) -> list[CallDelta]:
        self.num_chars += sum(len(delta.arguments) for delta in deltas)
        return deltas

    def close(self) -> None:
        """Judge what was held back: its deltas go to `rest`; `leak` tells of markers that could not be
        read.
        """
        out = self.rest
        in_reasoning = self._judge_reasoning(out)
        found = self._text.finish()
        calls = [*self._text.calls, *found.calls, *in_reasoning]
        if found.reasoning:
            self.has_reasoning = True
            out.append(ReasoningDelta(text=found.reasoning))
        if found.is_leak:
            self.leak = found
        else:
            out.extend(self._show(found.text))
        if found.had_markers and not found.is_leak:
            self.notices.append(
                "The server left the model's control markers in the text; they were read and removed."
            )
        if calls and not self.calls.calls:
            if not found.had_markers and not in_reasoning:
                calls = without_repeats(calls)
                self.notices.append(
                    "The server does not parse the model's calls; they were read from the text."
                )
            for name, arguments in calls:
                out.extend(self._count(self.calls.add(name, arguments)))
        out.extend(self.calls.finish())
        if self.has_empty_reasoning and not self.has_reasoning:
            out.insert(0, ReasoningDelta(text=""))

    def _judge_reasoning(self, out: list[Delta]) -> list[tuple[str, str]]:
        """Reasoning stays as it came, letter for letter, unless its markup holds the answer itself."""
        held = self._reasoning.held
        found = self._reasoning.finish()
        if not held:
            return []
        has_answer = found.calls or (found.had_markers and found.text.strip() and not found.is_leak)
        if has_answer and self.is_empty:
            if found.reasoning:
                out.append(ReasoningDelta(text=found.reasoning))
            if found.text.strip():
                out.extend(self._show(found.text))
            self.notices.append("The model's answer stood inside its reasoning; it was read from there.")
            return found.calls
        self.has_reasoning = True
        out.append(ReasoningDelta(text=held))
        return []

    def finished(self, asked_model: str, prompt_bytes: int) -> Finished:
        """The closing delta. Without a usage report the tokens are estimated, and `extra` says so."""
        usage = self.usage
        if usage is None:
            usage = Usage(
                input_tokens=int(prompt_bytes / _BYTES_PER_TOKEN),
                output_tokens=int(self.num_chars / _BYTES_PER_TOKEN),
            )
            self.extra["usage"] = "estimated"
        if self.notices:
            self.extra["notice"] = " ".join(self.notices)
        return Finished(finish=self._finish(), usage=usage, model=self.model or asked_model, extra=self.extra)

    def _finish(self) -> Finish:
        said = _FINISH.get(self.finish_reason or "", Finish.STOP)
        if not self.calls.calls or said is Finish.CONTENT_FILTER:
            return Finish.STOP if said is Finish.TOOL_CALLS else said
        if said is Finish.LENGTH and not all(
            _is_object("".join(call.arguments)) for call in self.calls.calls
        ):
            return Finish.LENGTH
        return Finish.TOOL_CALLS


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""
