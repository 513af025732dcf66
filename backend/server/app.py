"""Routes of the OpenAI-style server: chat completions, models, tokenize, health, metrics."""

import asyncio
import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from k3agent.backend.engine.client import EngineClient
from k3agent.backend.errors import BadRequestError
from k3agent.backend.server.access import Access
from k3agent.backend.server.answer import ChatService, Prepared, completion
from k3agent.backend.server.assembly import AnswerEvent, Done, Progress
from k3agent.backend.server.body import BodyReader
from k3agent.backend.server.errors import HttpError, OverloadedError, error_body, status_of
from k3agent.backend.server.fields import shown
from k3agent.backend.server.files import parse_form
from k3agent.backend.server.metrics import Metrics
from k3agent.backend.server.sampling import Profile
from k3agent.backend.server.schema import parse_chat
from k3agent.backend.server.stream import STALL_S, Chunks, EventStream, answer_texts, begun, until_gone

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 100 << 20
MAX_TEXT_BODY_BYTES = 32 << 20
"""For models that read no images: no prompt is that long, and decoding it holds up everybody."""
Handler = Callable[[Request], Awaitable[Response]]


@dataclass(slots=True, kw_only=True)
class ServerState:
    """What the routes share."""

    model: str
    version: str
    service: ChatService
    engine: EngineClient
    profile: Profile
    api_key: str | None = None
    max_active: int = 64
    max_body_bytes: int = MAX_BODY_BYTES
    client_timeout_s: float = STALL_S
    """How long a client may be slow in sending its request or in reading its answer."""
    also_reasoning: bool = False
    agent: dict[str, Any] | None = None
    """What an agent should know of these weights; None: nothing special."""
    metrics: Metrics
    last_request: float = field(default_factory=time.monotonic)
    started: int = field(default_factory=lambda: int(time.time()))


def build_app(state: ServerState) -> ASGIApp:
    """The application; every route also answers without the `/v1` in front."""
    routes = Routes(state)
    table: list[tuple[str, str, Handler]] = [
        ("GET", "/health", routes.health),
        ("GET", "/metrics", routes.metrics),
        ("GET", "/models", routes.models),
        ("POST", "/chat/completions", routes.chat),
        ("POST", "/tokenize", routes.tokenize),
        ("POST", "/tokenizers/estimate-token-count", routes.estimate),
        ("POST", "/files", routes.upload),
        ("GET", "/files", routes.files),
        ("GET", "/files/{file_id}", routes.file),
        ("GET", "/files/{file_id}/content", routes.file_content),
        ("DELETE", "/files/{file_id}", routes.delete_file),
    ]
    app = Starlette(
        routes=[
            Route(prefix + path, routes.guarded(handler), methods=[method])
            for method, path, handler in table
            for prefix in ("/v1", "")
        ],
        exception_handlers={404: _not_found, 405: _not_found},
    )
    return Envelope(app, state)


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    text = f"{request.method} {request.url.path} is not served here"
    if request.url.path in ("/v1/completions", "/completions"):
        text += ": K3 answers messages; send the text as one to /v1/chat/completions"
    return Json(error_body(HttpError(status, "resource_not_found_error", text)), status)


class Json(Response):
    """A JSON body; what is no Unicode, such as half of a pair, is replaced."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class Envelope:
    """Around all routes: tidy paths, a trace id on every answer, counting."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace_id = uuid.uuid4().hex
        path = "/" + "/".join(part for part in scope["path"].split("/") if part)
        scope = {**scope, "path": path, "raw_path": path.encode(), "trace_id": trace_id}

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._state.metrics.answers[message["status"]] += 1
                message["headers"] = [*message["headers"], (b"x-trace-id", trace_id.encode())]
            await send(message)

        self._state.last_request = time.monotonic()
        self._state.metrics.active += 1
        try:
            await self._app(scope, receive, send_marked)
        finally:
            self._state.metrics.active -= 1
            self._state.last_request = time.monotonic()


class Routes:
    """The handlers."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._access = Access(state.api_key)
        self._bodies = BodyReader(state.max_body_bytes, state.client_timeout_s)

    def guarded(self, handler: Handler) -> Handler:
        """Check the key; turn every exception into an error body."""

        async def guard(request: Request) -> Response:
            try:
                if request.url.path.endswith("/health"):
                    self._access.check_name(request)
                else:
                    self._access.check(request)
                return await handler(request)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                if isinstance(error, RecursionError):
                    error = BadRequestError("the body, or a text of JSON in it, is nested too deeply")
                status = status_of(error)
                if status == 500:
                    log.exception("trace %s: %s failed", request.scope["trace_id"], request.url.path)
                headers = error.headers if isinstance(error, HttpError) else {}
                if not await self._bodies.discard(request):
                    headers = {**headers, "connection": "close"}
                return Json(error_body(error), status, headers)

        return guard

    # --- plain routes

    async def health(self, request: Request) -> Response:
        engine = self._state.engine
        is_stopping = self._state.service.stopping.is_set()
        body = {
            "status": "stopping" if is_stopping else {"ready": "ok"}.get(engine.state, engine.state),
            "model": self._state.model,
            "version": self._state.version,
            "active_requests": self._state.metrics.active - 1,
            "silent_s": round(engine.silent_s, 1),
        }
        return Json(body, 200 if body["status"] == "ok" else 503)

    async def metrics(self, request: Request) -> Response:
        engine = self._state.engine
        text = self._state.metrics.text(engine.counters, engine.num_restarts, engine.ready is not None)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        model = {
            "id": self._state.model,
            "object": "model",
            "created": self._state.started,
            "owned_by": "k3agent",
            "context_length": self._state.service.max_model_len,
            "supports_image_in": self._state.service.reads_images,
            "supports_video_in": False,
            "supports_reasoning": True,
            "supports_tool_use": True,
            "supports_thinking_type": "both" if self._state.profile.may_disable_thinking else "only",
            "think_efforts": {
                "support": True,
                "valid_efforts": ["low", "high", "max"],
                "default_effort": "max",
            },
        }
        if self._state.agent is not None:
            model["k3agent"] = self._state.agent
        return Json({"object": "list", "data": [model]})

    async def tokenize(self, request: Request) -> Response:
        """Ids of a `prompt` text, or of the rendered prompt of `messages`."""
        body = await self._bodies.read(request)
        service = self._state.service
        text = body.get("prompt", body.get("text"))
        if isinstance(text, str):
            ids = await asyncio.to_thread(service.count_text, text)
            count = len(ids)
        else:
            prepared = await self._prepare({"model": self._state.model, **body})
            ids, count = prepared.rendered.token_ids, prepared.prompt_tokens
        return Json({"count": count, "tokens": ids, "max_model_len": service.max_model_len})

    async def estimate(self, request: Request) -> Response:
        prepared = await self._prepare({"model": self._state.model, **await self._bodies.read(request)})
        return Json({"data": {"total_tokens": prepared.prompt_tokens}})

    # --- files

    async def upload(self, request: Request) -> Response:
        form = await self._bodies.read_bytes(request)
        upload = parse_form(request.headers.get("content-type", ""), form)
        if upload.purpose == "image" and not self._state.service.reads_images:
            raise BadRequestError("this model reads no images; use a model with vision")
        self._state.service.uploads.add(upload)
        return Json(upload.body())

    async def files(self, request: Request) -> Response:
        uploads = self._state.service.uploads.all()
        return Json({"object": "list", "data": [upload.body() for upload in uploads]})

    async def file(self, request: Request) -> Response:
        return Json(self._state.service.uploads.get(request.path_params["file_id"]).body())

    async def file_content(self, request: Request) -> Response:
        upload = self._state.service.uploads.get(request.path_params["file_id"])
        if upload.purpose != "file-extract":
            raise BadRequestError("only files with the purpose file-extract have a text")
        return PlainTextResponse(upload.data.decode("utf-8", "replace"))

    async def delete_file(self, request: Request) -> Response:
        file_id = request.path_params["file_id"]
        self._state.service.uploads.delete(file_id)
        return Json({"id": file_id, "object": "file", "deleted": True})

    # --- chat

    async def _prepare(self, body: dict[str, Any]) -> Prepared:
        chat = parse_chat(body, self._state.profile)
        if chat.model != self._state.model:
            raise HttpError(
                404,
                "resource_not_found_error",
                f"The model {shown(chat.model)} is not served here; this server has {self._state.model!r}.",
            )
        return await self._state.service.prepare(chat)

    async def chat(self, request: Request) -> Response:
        body = await self._bodies.read(request)
        if self._state.service.stopping.is_set():
            raise HttpError(503, "server_unavailable", "the server is stopping")
        metrics = self._state.metrics
        if metrics.open_chats >= self._state.max_active:
            raise OverloadedError(f"{metrics.open_chats} requests are open")
        metrics.open_chats += 1
        try:
            response = await self._answer(request, body)
        except BaseException:
            metrics.open_chats -= 1
            raise
        if not isinstance(response, EventStream):
            metrics.open_chats -= 1
        return response

    async def _answer(self, request: Request, body: dict[str, Any]) -> Response:
        prepared = await self._prepare(body)
        await self._state.engine.wait_ready()
        headers = {}
        if prepared.request.ignored:
            headers["x-k3agent-ignored"] = ", ".join(prepared.request.ignored)
        if prepared.request.notes:
            headers["x-k3agent-notes"] = "; ".join(prepared.request.notes)[:1000]
        created = int(time.time())
        if prepared.request.stream:
            chunks = Chunks(prepared, created, self._state.also_reasoning)
            events = await begun(self._counted(prepared))
            return EventStream(
                answer_texts(chunks, events), headers, self._state.client_timeout_s, self._stream_ended
            )
        return await self._whole(request, prepared, self._counted(prepared), created, headers)

    def _stream_ended(self, was_dropped: bool) -> None:
        self._state.metrics.open_chats -= 1
        self._state.metrics.dropped_readers += was_dropped

    async def _counted(self, prepared: Prepared) -> AsyncGenerator[AnswerEvent, None]:
        """The events of an answer, with its times and end counted."""
        metrics = self._state.metrics
        since = time.perf_counter()
        is_first = True
        async with aclosing(self._state.service.run(prepared)) as events:
            async for event in events:
                if is_first and not isinstance(event, Progress):
                    metrics.first_token_s.add(time.perf_counter() - since)
                    is_first = False
                if isinstance(event, Done):
                    metrics.ended(event, time.perf_counter() - since)
                    log.info("answered: %s", {**event.usage, "finish": event.finish_reason})
                    for note in event.damage if event.finish_reason != "length" else ():
                        log.warning("damaged answer: %s", note)
                yield event

    async def _whole(
        self,
        request: Request,
        prepared: Prepared,
        events: AsyncGenerator[AnswerEvent, None],
        created: int,
        headers: dict[str, str],
    ) -> Response:
        """Collect the answer; a client that leaves meanwhile aborts it."""

        async def collect() -> Done | None:
            async with aclosing(events) as answer:
                done = None
                async for event in answer:
                    if isinstance(event, Done):
                        done = event
                return done

        collecting = asyncio.create_task(collect())
        watching = asyncio.create_task(until_gone(request.receive))
        try:
            await asyncio.wait({collecting, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not collecting.done():
                raise ClientDisconnect
            done = collecting.result()
        finally:
            watching.cancel()
            if not collecting.done():
                collecting.cancel()
                await asyncio.wait({collecting})
        assert done is not None
        return Json(completion(prepared, done, created, self._state.also_reasoning), headers=headers)
