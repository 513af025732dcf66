"""One chat request from messages to answer events: render, generate, parse.

Streaming and non-streaming answers are made from the same events, so that they cannot differ.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from k3agent.backend.chat.answers import SampledAnswers
from k3agent.backend.chat.parser import Event, OutputParser, ReasoningWasText, TextDelta
from k3agent.backend.chat.template import Json, ReadImage, Rendered, render
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.engine.client import EngineClient
from k3agent.backend.engine.grammar import GrammarSpec
from k3agent.backend.engine.messages import Add, Failed, Finished, Generated, Prefilled, SamplingParams
from k3agent.backend.errors import BackendError, BadRequestError
from k3agent.backend.server.schema import ChatRequest

DEFAULT_MAX_TOKENS = 131_072

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Tokens of the prompt that are computed, of how many, and how many came from the cache."""

    num_computed: int
    num_prompt: int
    num_cached: int


@dataclass(slots=True, kw_only=True)
class Done:
    """The end of an answer."""

    finish_reason: FinishReason
    message: Json
    usage: Json
    timings: dict[str, float] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)


AnswerEvent = Progress | Event | Done


@dataclass(slots=True, kw_only=True)
class Prepared:
    """A request ready for the engine."""

    request: ChatRequest
    rendered: Rendered
    add: Add

    @property
    def prompt_tokens(self) -> int:
        """As the vendor counts: without the generation prefix's open channel."""
        return len(self.rendered.token_ids) - self.rendered.num_stub


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


class ChatService:
    """Answers chat requests with one engine. `stopping` is set when the server wants to end."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        engine: EngineClient,
        max_model_len: int,
        use_grammar: bool = True,
        read_image: ReadImage | None = None,
    ) -> None:
        self.max_model_len = max_model_len
        self.reads_images = read_image is not None
        self._read_image = read_image
        self.stopping = asyncio.Event()
        self._tokenizer = tokenizer
        self._engine = engine
        self._use_grammar = use_grammar
        self._answers = SampledAnswers(tokenizer)

    async def prepare(self, request: ChatRequest) -> Prepared:
        """Render; raises BadRequestError if the prompt and the wanted answer do not fit the window."""
        rendered = await asyncio.to_thread(self._render, request)
        num_prompt = len(rendered.token_ids)
        room = self.max_model_len - num_prompt
        if room < 1 or (request.max_tokens or 0) > room:
            raise BadRequestError(
                f"Your request exceeded the context length of {self.max_model_len} tokens: the prompt has"
                f" {num_prompt}, max_completion_tokens asks for {request.max_tokens or 1} more."
            )
        grammar = None
        if self._use_grammar:
            grammar = GrammarSpec(
                tools=tuple(request.all_tools),
                channel=rendered.channel,
                tool_choice=request.tool_choice,
                parallel_calls=request.parallel_calls,
            )
        add = Add(
            request_id=uuid.uuid4().hex,
            token_ids=rendered.token_ids,
            params=SamplingParams(
                temperature=request.temperature,
                top_p=request.top_p,
                seed=request.seed,
                max_tokens=min(request.max_tokens or DEFAULT_MAX_TOKENS, room),
            ),
            grammar=grammar,
            checkpoint_at=tuple(rendered.anchors),
            images=tuple(rendered.images),
        )
        return Prepared(request=request, rendered=rendered, add=add)

    def count_text(self, text: str) -> list[int]:
        return self._tokenizer.encode(text)

    def _render(self, request: ChatRequest) -> Rendered:
        return render(
            self._tokenizer,
            request.messages,
            request.tools or None,
            effort=request.effort,
            tool_choice=request.tool_choice,
            response_format=request.response_format,
            thinking=request.thinking,
            substitute=self._answers.substitute(),
            read_image=self._read_image,
        )

    async def run(self, prepared: Prepared) -> AsyncGenerator[AnswerEvent, None]:
        """Events of the answer; the last one is Done. Leaving early aborts the generation."""
        request = prepared.request
        names = [tool["function"]["name"] for tool in request.all_tools]
        parser = OutputParser(self._tokenizer, prepared.rendered.channel, names)
        stops = StopStrings(request.stop)
        sampled: list[int] = []
        finished: Finished | None = None
        num_cached = 0
        async with aclosing(self._reports(prepared.add)) as reports:
            async for report in reports:
                match report:
                    case Prefilled(num_computed=computed, num_prompt=total, num_cached=cached):
                        num_cached = cached
                        yield Progress(computed, total, cached)
                    case Generated(token_ids=ids):
                        sampled += ids
                        for event in _without_stops(parser.feed(ids), stops):
                            yield event
                        if stops.is_hit:
                            break
                    case Finished():
                        finished = report
                    case Failed(message=message):
                        raise BackendError(message)
        for event in _without_stops(parser.finish(), stops):
            yield event
        held = "" if stops.is_hit else stops.flush()
        if held:
            yield TextDelta(held)
        if parser.is_ended and not request.messages[-1].get("partial"):
            self._answers.remember(prepared.add.token_ids, parser.message(), sampled, request.thinking)
        yield self._done(prepared, parser, stops, finished, len(sampled), num_cached)

    async def _reports(self, add: Add) -> AsyncGenerator[Prefilled | Generated | Finished | Failed, None]:
        """Reports of the engine until the end of the request, or until the server wants to stop."""
        stopping = asyncio.create_task(self.stopping.wait())
        async with aclosing(self._engine.generate(add)) as reports:
            following: asyncio.Future[Prefilled | Generated | Finished | Failed | None] | None = None
            try:
                while True:
                    following = asyncio.ensure_future(anext(reports, None))
                    await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
                    if not following.done():
                        return
                    report = following.result()
                    if report is None:
                        return
                    yield report
            finally:
                stopping.cancel()
                if following is not None and not following.done():
                    # the generator below may only be closed when nobody is inside it any more
                    following.cancel()
                    await asyncio.wait({following})

    def _done(
        self,
        prepared: Prepared,
        parser: OutputParser,
        stops: StopStrings,
        finished: Finished | None,
        num_sampled: int,
        num_cached: int,
    ) -> Done:
        message = parser.message()
        if prepared.request.stop and message["content"]:
            cut = StopStrings(prepared.request.stop)
            message["content"] = cut.feed(message["content"]) + ("" if cut.is_hit else cut.flush())
        if not prepared.request.thinking:
            del message["reasoning_content"]
        reason: FinishReason = "length"
        if parser.calls and not parser.is_call_open:
            reason = "tool_calls"
        elif stops.is_hit or (finished is not None and finished.reason == "stop"):
            reason = "stop"
        timings = {}
        if finished is not None:
            timings = {
                "queued_s": finished.queued_s,
                "prefill_s": finished.prefill_s,
                "decode_s": finished.decode_s,
            }
        usage = make_usage(prepared.prompt_tokens, num_sampled, num_cached, parser.num_reasoning_tokens)
        return Done(
            finish_reason=reason, message=message, usage=usage, timings=timings, damage=list(parser.damage)
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


def _without_stops(events: list[Event], stops: StopStrings) -> list[Event]:
    """The events with the content cut at the first stop string; nothing comes behind it."""
    if not stops._strings:
        return events
    kept: list[Event] = []
    for event in events:
        if stops.is_hit:
            break
        if isinstance(event, TextDelta | ReasoningWasText):
            text = stops.feed(event.text)
            if text:
                kept.append(type(event)(text))
        else:
            kept.append(event)
    return kept


def completion(prepared: Prepared, done: Done, created: int) -> dict[str, Any]:
    """The body of a non-streaming answer."""
    return {
        "id": f"chatcmpl-{prepared.add.request_id}",
        "object": "chat.completion",
        "created": created,
        "model": prepared.request.model,
        "choices": [{"index": 0, "message": done.message, "finish_reason": done.finish_reason}],
        "usage": done.usage,
    }
