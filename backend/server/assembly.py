"""From the ids of one answer to its events, its message and its usage.

Streaming and non-streaming answers are made from the same events, so that they cannot differ.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from k3agent.backend.chat.parser import Event, OutputParser, ReasoningDelta, ReasoningWasText, TextDelta
from k3agent.backend.chat.template import Channel, Json
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.engine.messages import Finished, Generated
from k3agent.backend.server.logprobs import AnswerLogprobs, LogprobsWriter, Scored
from k3agent.backend.server.schema import ChatRequest

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Tokens of the prompt that are computed, of how many, and how many came from the cache."""

    num_computed: int
    num_prompt: int
    num_cached: int


@dataclass(slots=True, kw_only=True)
class Done:
    """The end of an answer; `finished` is None when the server ended it."""

    finish_reason: FinishReason
    message: Json
    usage: Json
    logprobs: Json | None = None
    finished: Finished | None = None
    damage: list[str] = field(default_factory=list)


AnswerEvent = Progress | Event | Scored | Done


class StopStrings:
    """Finds the first stop string in text that comes in pieces; holds back what may be the beginning of
    one.
    """

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._strings = strings
        self._held = ""
        self.is_hit = False

    def feed(self, text: str) -> str:
        """The part of the text that is surely in front of any stop string."""
        self._held += text
        places = [self._held.find(s) for s in self._strings if s in self._held]
        if places:
            self.is_hit = True
            safe, self._held = self._held[: min(places)], ""
            return safe
        longest = max((_overlap(self._held, s) for s in self._strings), default=0)
        cut = len(self._held) - longest
        safe, self._held = self._held[:cut], self._held[cut:]
        return safe

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


def _overlap(text: str, string: str) -> int:
    """Length of the longest end of `text` that begins `string`."""
    return next((n for n in range(min(len(string) - 1, len(text)), 0, -1) if text.endswith(string[:n])), 0)


class Assembly:
    """One answer. `feed` what was generated, `end`, then ask for `done`."""

    def __init__(self, tokenizer: Tokenizer, request: ChatRequest, channel: Channel) -> None:
        names = [tool["function"]["name"] for tool in request.all_tools]
        self.parser = OutputParser(tokenizer, channel, names)
        self.sampled: list[int] = []
        self._request = request
        self._stops = StopStrings(request.params.stop)
        self._stop_ids = frozenset(request.params.stop_token_ids)
        self._is_stopped = False
        is_scored = request.params.logprobs is not None
        self._writer = LogprobsWriter(tokenizer, self.parser) if is_scored else None
        self._logprobs = AnswerLogprobs()
        self._entries: list[Json] = []

    @property
    def is_over(self) -> bool:
        """A stop string or token was met: nothing that follows belongs to the answer."""
        return self._stops.is_hit or self._is_stopped

    @property
    def is_whole(self) -> bool:
        """The model itself has ended the message."""
        return self.parser.is_ended

    def feed(self, report: Generated) -> list[AnswerEvent]:
        """Take generated tokens; returns what can be told now."""
        ids = report.token_ids
        self.sampled += ids
        shown = next((n for n, token_id in enumerate(ids) if token_id in self._stop_ids), None)
        self._is_stopped = self._is_stopped or shown is not None
        ids = ids[:shown]
        if self._writer is None or report.logprobs is None:
            return self._cut(self.parser.feed(ids))
        return self._cut(self._writer.feed(ids, report.logprobs[: len(ids)]))

    def end(self) -> list[AnswerEvent]:
        """No more tokens come: what was held back."""
        rest = self.parser.finish()
        events = self._cut(rest if self._writer is None else map(self._writer.scored, rest))
        held = "" if self._stops.is_hit else self._stops.flush()
        if held:
            events += self._told(TextDelta(held))
        return events

    def _cut(self, events: Iterable[Event | Scored]) -> list[AnswerEvent]:
        """The events with the content cut at the first stop string; nothing comes behind it."""
        kept: list[AnswerEvent] = []
        for event in events:
            if self._stops.is_hit:
                break
            inner = event.event if isinstance(event, Scored) else event
            if isinstance(event, Scored):
                self._entries += event.entries
            if isinstance(inner, TextDelta | ReasoningWasText) and self._request.params.stop:
                inner = replace(inner, text=self._stops.feed(inner.text))
                if self._stops.is_hit:
                    self._entries = _covering(self._entries, inner.text)
                if not inner.text:
                    continue
            kept += self._told(inner)
        return kept

    def _told(self, event: Event) -> list[AnswerEvent]:
        """The event, with the entries that wait for a text to go with."""
        if not self._entries or not isinstance(event, ReasoningDelta | TextDelta | ReasoningWasText):
            return [event]
        scored, self._entries = Scored(event, self._entries), []
        self._logprobs.add(scored)
        return [scored]

    def done(self, num_prompt: int, num_cached: int, finished: Finished | None) -> Done:
        """The end of the answer; `num_prompt` as the client is told."""
        parser = self.parser
        message = parser.message()
        if self._request.params.stop and message["content"]:
            cut = StopStrings(self._request.params.stop)
            message["content"] = cut.feed(message["content"]) + ("" if cut.is_hit else cut.flush())
        if not self._request.thinking:
            del message["reasoning_content"]
        reason: FinishReason = "length"
        if parser.calls and not parser.is_call_open:
            reason = "tool_calls"
        elif self.is_over or (finished is not None and finished.reason == "stop"):
            reason = "stop"
        usage = make_usage(num_prompt, len(self.sampled), num_cached, parser.num_reasoning_tokens)
        if finished is not None and finished.num_cached_by_tier:
            usage["prompt_tokens_details"]["cached_tokens_by_tier"] = finished.num_cached_by_tier
        return Done(
            finish_reason=reason,
            message=message,
            usage=usage,
            logprobs=self._logprobs.body() if self._writer is not None else None,
            finished=finished,
            damage=list(parser.damage),
        )


def make_usage(prompt: int, completion: int, cached: int, reasoning: int) -> Json:
    """The usage object, cached tokens in both places where clients look for them."""
    cached = min(cached, prompt)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "cached_tokens": cached,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def _covering(entries: Sequence[Json], text: str) -> list[Json]:
    """The first entries, as many as begin within `text`."""
    kept: list[Json] = []
    begin = 0
    for entry in entries:
        if begin >= len(text):
            break
        kept.append(entry)
        begin += len(entry["token"])
    return kept
