"""One chat request from messages to answer events: render, generate, parse."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from k3agent.backend.chat.answers import SampledAnswers
from k3agent.backend.chat.images import PreparedImage
from k3agent.backend.chat.template import (
    Json,
    ReadImage,
    Rendered,
    compact_json,
    reasoning_text,
    render,
)
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.engine.client import EngineClient
from k3agent.backend.engine.grammar import GrammarSpec
from k3agent.backend.engine.messages import Add, Failed, Finished, Generated, Prefilled
from k3agent.backend.errors import BackendError, BadRequestError
from k3agent.backend.server.assembly import AnswerEvent, Assembly, Done, Progress
from k3agent.backend.server.errors import OverloadedError
from k3agent.backend.server.files import SCHEME, Uploads
from k3agent.backend.server.metrics import Metrics
from k3agent.backend.server.schema import ChatRequest, schema_text

Report = Prefilled | Generated | Finished | Failed

DEFAULT_MAX_TOKENS = 131_072


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


class ChatService:
    """Answers chat requests with one engine. `stopping` is set when the server wants to end."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        engine: EngineClient,
        max_model_len: int,
        *,
        use_grammar: bool = True,
        read_image: ReadImage | None = None,
        answers: SampledAnswers | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.max_model_len = max_model_len
        self.metrics = metrics or Metrics()
        self.reads_images = read_image is not None
        self.uploads = Uploads()
        self._read_image = read_image
        self.stopping = asyncio.Event()
        self._tokenizer = tokenizer
        self._engine = engine
        self._use_grammar = use_grammar
        self._answers = answers or SampledAnswers(tokenizer)

    async def prepare(self, request: ChatRequest) -> Prepared:
        """Render; raises BadRequestError if the prompt and the wanted answer do not fit the window."""
        self._check_size(request)
        rendered = await asyncio.to_thread(self._render, request)
        num_prompt = len(rendered.token_ids)
        room = self.max_model_len - num_prompt
        if room < 1 or (request.max_tokens or 0) > room:
            raise BadRequestError(
                f"Your request exceeded the context length of {self.max_model_len} tokens: the prompt has"
                f" {num_prompt}, max_completion_tokens asks for {request.max_tokens or 1} more."
            )
        grammar = None
        if self._use_grammar and not request.params.ignore_eos:
            grammar = GrammarSpec(
                tools=tuple(request.all_tools),
                channel=rendered.channel,
                tool_choice=request.tool_choice,
                parallel_calls=request.parallel_calls,
                json_schema=schema_text(request.response_format),
            )
        elif request.response_format:
            request.notes.append("response_format is asked of the model, but not enforced")
        add = Add(
            request_id=uuid.uuid4().hex,
            token_ids=rendered.token_ids,
            params=replace(request.params, max_tokens=min(request.max_tokens or DEFAULT_MAX_TOKENS, room)),
            grammar=grammar,
            channel=rendered.channel,
            checkpoint_at=tuple(rendered.anchors),
            images=tuple(rendered.images),
        )
        return Prepared(request=request, rendered=rendered, add=add)

    def _check_size(self, request: ChatRequest) -> None:
        """A text that cannot fit whatever its tokens are is refused before it is cut into tokens."""
        size = sum(len(text) for message in request.messages for text in _texts(message))
        size += len(compact_json(request.all_tools))
        least = size // self._tokenizer.max_token_bytes
        if least > self.max_model_len:
            raise BadRequestError(
                f"Your request exceeded the context length of {self.max_model_len} tokens: messages"
                f" and tools have {size} characters, which are at least {least} tokens."
            )

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
            read_image=self._image if self._read_image else None,
        )

    def _image(self, url: str) -> PreparedImage:
        assert self._read_image is not None
        return self._read_image(self.uploads.data_url(url) if url.startswith(SCHEME) else url)

    async def run(self, prepared: Prepared) -> AsyncGenerator[AnswerEvent, None]:
        """Events of the answer; the last one is Done. Leaving early aborts the generation."""
        request = prepared.request
        answer = Assembly(self._tokenizer, request, prepared.rendered.channel)
        finished: Finished | None = None
        num_cached = 0
        last: float | None = None
        async with aclosing(self._reports(prepared.add)) as reports:
            async for report in reports:
                match report:
                    case Prefilled():
                        num_cached = report.num_cached
                        yield Progress(report.num_computed, report.num_prompt, report.num_cached)
                    case Generated() if answer.is_over:
                        # the engine knows the stop strings, too, and should have ended
                        break
                    case Generated():
                        now = time.perf_counter()
                        if last is not None:
                            self.metrics.between_tokens_s.add((now - last) / len(report.token_ids))
                        last = now
                        for event in answer.feed(report):
                            yield event
                    case Finished():
                        finished = report
                    case Failed():
                        raise _failure(report)
        for event in answer.end():
            yield event
        if answer.is_whole and not request.messages[-1].get("partial"):
            message = answer.parser.message()
            self._answers.remember(prepared.add.token_ids, message, answer.sampled, request.thinking)
        yield answer.done(prepared.prompt_tokens, num_cached, finished)

    async def _reports(self, add: Add) -> AsyncGenerator[Report, None]:
        """Reports of the engine until the end of the request, or until the server wants to stop."""
        stopping = asyncio.create_task(self.stopping.wait())
        async with aclosing(self._engine.generate(add)) as reports:
            following: asyncio.Future[Report | None] | None = None
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


def _failure(report: Failed) -> BackendError:
    match report.kind:
        case "bad_request":
            return BadRequestError(report.message)
        case "overloaded":
            return OverloadedError(report.message)
    return BackendError(report.message)


def completion(prepared: Prepared, done: Done, created: int, also_reasoning: bool = False) -> dict[str, Any]:
    """The body of a non-streaming answer."""
    choice: Json = {"index": 0, "message": done.message, "finish_reason": done.finish_reason}
    if done.logprobs is not None:
        choice["logprobs"] = done.logprobs
    if also_reasoning and "reasoning_content" in done.message:
        choice["message"] = {**done.message, "reasoning": done.message["reasoning_content"]}
    return {
        "id": f"chatcmpl-{prepared.add.request_id}",
        "object": "chat.completion",
        "created": created,
        "model": prepared.request.model,
        "choices": [choice],
        "usage": done.usage,
    }


def _texts(message: Json) -> Iterator[str]:
    """The texts of a message that make it long; images are not among them."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            yield text
    yield reasoning_text(message)
