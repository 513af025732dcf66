"""OpenTelemetry by the GenAI conventions: turns, model calls and tool calls as spans, tokens and times.

Off unless the user asks for it (`telemetry.otlp = "on"`); where to, and all else about sending, is said by
the usual OTEL_ variables. What is said in a session never leaves it: names, counts and times do. Telemetry
that cannot be sent costs nothing but a line in the log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from importlib.util import find_spec
from typing import Any

from k3agent import __version__
from k3agent.errors import ConfigError
from k3agent.events import AnyEvent, CallEnded, CallStarted, MessageAdded, TurnEnded, TurnOutcome, TurnStarted
from k3agent.providers.base import ModelInfo
from k3agent.types import Message, Role, SessionId

log = logging.getLogger(__name__)

CLOSE_S = 3.0
# What subagents have left to send: it goes on beside the work, and their session waits for it at its end.
_unsent: list[threading.Thread] = []
TOKEN_BUCKETS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
SECOND_BUCKETS = (0.01, 0.04, 0.16, 0.64, 2.5, 10, 40, 160, 640)
"""Boundaries as the conventions advise them."""


def _is_installed() -> bool:
    try:
        return all(map(find_spec, ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")))
    except ModuleNotFoundError:
        # A parent is missing; other packages bring a part of OpenTelemetry.
        return False


class Telemetry:
    """A reader of one session's events. `close` sends what is left."""

    def __init__(self, session: SessionId, info: ModelInfo, parent: SessionId | None = None) -> None:
        """Raises ConfigError where the packages are not installed."""
        if not _is_installed():
            raise ConfigError(
                "telemetry.otlp is on, and OpenTelemetry is not installed: pip install 'k3agent[otel]'"
            )
        self._info = info
        self._is_task = parent is not None
        self._common = {"gen_ai.conversation.id": str(session), "gen_ai.agent.name": "k3agent"}
        if parent is not None:
            self._common["k3agent.parent.conversation.id"] = str(parent)
        self._open_sdk()
        self._turn: Any = None
        self._since: datetime | None = None
        self._calls: dict[str, Any] = {}

    def _open_sdk(self) -> None:
        # lazy: 0.2 s, and only where it is asked for
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        resource = Resource.create({"service.name": "k3agent", "service.version": __version__})
        self._spans = TracerProvider(resource=resource)
        self._spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._spans.get_tracer("k3agent", __version__)
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        self._meters = MeterProvider(resource=resource, metric_readers=[reader])
        meter = self._meters.get_meter("k3agent", __version__)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", explicit_bucket_boundaries_advisory=TOKEN_BUCKETS
        )
        self._durations = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", explicit_bucket_boundaries_advisory=SECOND_BUCKETS
        )

    def __call__(self, event: AnyEvent) -> None:
        """Turn an event into spans and numbers. Quick: sending is another thread's."""
        match event:
            case TurnStarted():
                self._begin_turn(event)
            case MessageAdded(message=message) if message.role is Role.ASSISTANT:
                self._model_call(event.at, message)
            case MessageAdded():
                self._since = event.at
            case CallStarted():
                self._calls[event.call_id] = self._span(
                    f"execute_tool {event.tool}", "execute_tool", event.at, self._of_call(event)
                )
            case CallEnded():
                self._end_call(event)
            case TurnEnded():
                self._end_turn(event)
            case _:
                pass

    def close(self) -> None:
        """Send what is left; blocks for a few seconds at most, and for a subagent not at all."""
        # In a thread that dies with the process: an address where nobody is would hold the end up.
        sending = threading.Thread(target=self._send_rest, name="telemetry", daemon=True)
        sending.start()
        _unsent.append(sending)
        if self._is_task:
            return
        end = time.monotonic() + CLOSE_S
        waited, _unsent[:] = list(_unsent), []
        for thread in waited:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in waited):
            log.warning("telemetry was not sent within %.0f s", CLOSE_S)

    def _send_rest(self) -> None:
        self._spans.shutdown()
        self._meters.shutdown()

    def _span(self, name: str, operation: str, at: datetime, more: Mapping[str, Any]) -> Any:
        from opentelemetry import trace  # lazy: as above

        context = None if self._turn is None else trace.set_span_in_context(self._turn)
        attributes = {**self._common, "gen_ai.operation.name": operation, **more}
        kind = trace.SpanKind.CLIENT if operation == "chat" else trace.SpanKind.INTERNAL
        return self._tracer.start_span(
            name, context=context, kind=kind, attributes=attributes, start_time=_ns(at)
        )

    def _begin_turn(self, event: TurnStarted) -> None:
        self._turn = None
        self._turn = self._span("invoke_agent k3agent", "invoke_agent", event.at, self._of_model())
        self._since = event.at

    def _of_model(self) -> dict[str, Any]:
        return {"gen_ai.provider.name": self._info.provider, "gen_ai.request.model": self._info.model}

    def _of_call(self, event: CallStarted) -> dict[str, Any]:
        kind = {"gen_ai.tool.type": "function"}
        return {"gen_ai.tool.name": event.tool, "gen_ai.tool.call.id": event.call_id, **kind}

    def _model_call(self, at: datetime, message: Message) -> None:
        start, usage = self._since or at, message.usage
        span = self._span(f"chat {self._info.model}", "chat", start, self._of_model())
        if message.finish is not None:
            span.set_attribute("gen_ai.response.finish_reasons", [message.finish.value])
        numbers = {**self._of_model(), "gen_ai.operation.name": "chat"}
        if usage is not None:
            span.set_attribute("gen_ai.usage.input_tokens", usage.input_tokens)
            span.set_attribute("gen_ai.usage.output_tokens", usage.output_tokens)
            span.set_attribute("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens)
            for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
                self._tokens.record(count, {**numbers, "gen_ai.token.type": kind})
        span.end(_ns(at))
        self._durations.record((at - start).total_seconds(), numbers)
        self._since = at

    def _end_call(self, event: CallEnded) -> None:
        span = self._calls.pop(event.call_id, None)
        if span is None:
            return
        if event.result.is_error:
            _fail(span, _kind_of_failure(event))
        if event.exit_code is not None:
            span.set_attribute("process.exit.code", event.exit_code)
        span.end(_ns(event.at))
        self._since = event.at

    def _end_turn(self, event: TurnEnded) -> None:
        span, self._turn = self._turn, None
        for call in self._calls.values():
            _fail(call, "interrupted")
            call.end(_ns(event.at))
        self._calls.clear()
        if span is None:
            return
        span.set_attribute("k3agent.outcome", event.outcome.value)
        if event.outcome is not TurnOutcome.SUCCESS:
            _fail(span, event.outcome.value)
        span.end(_ns(event.at))


def _fail(span: Any, kind: str) -> None:
    from opentelemetry.trace import StatusCode  # lazy: as above

    span.set_status(StatusCode.ERROR)
    span.set_attribute("error.type", kind)


def _kind_of_failure(event: CallEnded) -> str:
    if event.is_denied:
        return "denied"
    if event.is_invalid:
        return "invalid_arguments"
    return "interrupted" if event.is_interrupted else "tool_error"


def _ns(at: datetime) -> int:
    return int(at.timestamp() * 1e9)
