"""Routes of the OpenAI-style server: chat completions, models, tokenize, health, metrics."""

import asyncio
import hmac
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
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from k3agent.backend.engine.client import EngineClient
from k3agent.backend.errors import BadRequestError
from k3agent.backend.server.answer import AnswerEvent, ChatService, Done, Prepared, Progress, completion
from k3agent.backend.server.errors import HttpError, error_body, status_of
from k3agent.backend.server.metrics import Metrics
from k3agent.backend.server.schema import Profile, parse_chat
from k3agent.backend.server.stream import Chunks, EventStream, answer_texts, until_gone

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 100 << 20
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
    also_reasoning: bool = False
    metrics: Metrics = field(default_factory=Metrics)
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
    return JSONResponse(error_body(HttpError(status, "resource_not_found_error", text)), status)


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

    def guarded(self, handler: Handler) -> Handler:
        """Check the key; turn every exception into an error body."""

        async def guard(request: Request) -> Response:
            try:
                if not request.url.path.endswith("/health"):
                    self._check_key(request)
                return await handler(request)
            except ClientDisconnect:
                return Response(status_code=499)
            except RecursionError:
                error = BadRequestError("the body, or a text of JSON in it, is nested too deeply")
                return JSONResponse(error_body(error), status_of(error))
            except Exception as error:
                status = status_of(error)
                if status == 500:
                    log.exception("trace %s: %s failed", request.scope["trace_id"], request.url.path)
                headers = error.headers if isinstance(error, HttpError) else None
                return JSONResponse(error_body(error), status, headers)

        return guard

    def _check_key(self, request: Request) -> None:
        expected = self._state.api_key
        if expected is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if not hmac.compare_digest(given.encode(), expected.encode()):
            raise HttpError(
                401,
                "invalid_authentication_error",
                "The API key appears to be missing or invalid; send it as `Authorization: Bearer KEY`.",
            )

    # --- plain routes

    async def health(self, request: Request) -> Response:
        engine = self._state.engine
        is_stopping = self._state.service.stopping.is_set()
        body = {
            "status": "stopping" if is_stopping else {"ready": "ok"}.get(engine.state, engine.state),
            "model": self._state.model,
            "version": self._state.version,
            "active_requests": self._state.metrics.active - 1,
        }
        return JSONResponse(body, 200 if body["status"] == "ok" else 503)

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
        return JSONResponse({"object": "list", "data": [model]})

    async def tokenize(self, request: Request) -> Response:
        """Ids of a `prompt` text, or of the rendered prompt of `messages`."""
        body = await self._json(request)
        service = self._state.service
        text = body.get("prompt", body.get("text"))
        if isinstance(text, str):
            ids = await asyncio.to_thread(service.count_text, text)
            count = len(ids)
        else:
            prepared = await self._prepare({"model": self._state.model, **body})
            ids, count = prepared.rendered.token_ids, prepared.prompt_tokens
        return JSONResponse({"count": count, "tokens": ids, "max_model_len": service.max_model_len})

    async def estimate(self, request: Request) -> Response:
        prepared = await self._prepare({"model": self._state.model, **await self._json(request)})
        return JSONResponse({"data": {"total_tokens": prepared.prompt_tokens}})

    async def _json(self, request: Request) -> dict[str, Any]:
        limit = self._state.max_body_bytes
        too_long = HttpError(
            413, "invalid_request_error", f"Request exceeds the maximum size of {limit} bytes"
        )
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            raise too_long
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise too_long
        try:
            value = json.loads(body)
        except ValueError as error:
            raise BadRequestError(f"the body is not valid JSON: {error}") from error
        if not isinstance(value, dict):
            raise BadRequestError("the body must be a JSON object")
        return value

    async def _prepare(self, body: dict[str, Any]) -> Prepared:
        chat = parse_chat(body, self._state.profile)
        if chat.model != self._state.model:
            raise HttpError(
                404,
                "resource_not_found_error",
                f"The model {chat.model!r} is not served here; this server has {self._state.model!r}.",
            )
        return await self._state.service.prepare(chat)

    # --- chat

    async def chat(self, request: Request) -> Response:
        body = await self._json(request)
        if self._state.service.stopping.is_set():
            raise HttpError(503, "server_unavailable", "the server is stopping")
        if self._state.metrics.active > self._state.max_active:
            raise HttpError(
                429,
                "engine_overloaded_error",
                "The engine is currently overloaded, please try again later",
                {"retry-after": "2"},
            )
        prepared = await self._prepare(body)
        await self._state.engine.wait_ready()
        headers = {}
        if prepared.request.ignored:
            headers["x-k3agent-ignored"] = ", ".join(prepared.request.ignored)
        if prepared.request.notes:
            headers["x-k3agent-notes"] = "; ".join(prepared.request.notes)[:1000]
        events = self._counted(prepared)
        created = int(time.time())
        if prepared.request.stream:
            chunks = Chunks(prepared, created, self._state.also_reasoning)
            return EventStream(answer_texts(chunks, events), headers)
        return await self._whole(request, prepared, events, created, headers)

    async def _counted(self, prepared: Prepared) -> AsyncGenerator[AnswerEvent, None]:
        """The events of an answer, with its times and end counted."""
        metrics = self._state.metrics
        begun = time.perf_counter()
        is_first = True
        async with aclosing(self._state.service.run(prepared)) as events:
            async for event in events:
                if is_first and not isinstance(event, Progress):
                    metrics.first_token_s.add(time.perf_counter() - begun)
                    is_first = False
                if isinstance(event, Done):
                    metrics.whole_s.add(time.perf_counter() - begun)
                    metrics.finish_reasons[event.finish_reason] += 1
                    metrics.damaged_answers += bool(event.damage)
                    log.info("answered: %s", {**event.usage, "finish": event.finish_reason, **event.timings})
                    for note in event.damage:
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
        return JSONResponse(completion(prepared, done, created), headers=headers)
