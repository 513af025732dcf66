"""Spans and metrics as a real collector's protocol has them: OTLP over HTTP, decoded by its own schema."""

from __future__ import annotations

import asyncio
import gzip
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.agents import ReplayClient, call, options

from k3agent.agent import telemetry
from k3agent.agent.session import Session
from k3agent.agent.telemetry import Telemetry
from k3agent.errors import ConfigError
from k3agent.events import CallStarted, TurnEnded, TurnOutcome, TurnStarted
from k3agent.providers.base import ModelInfo
from k3agent.providers.scripted import Step
from k3agent.types import SessionId

SECRET_WORDS = "the quick brown fox"


class Collector(BaseHTTPRequestHandler):
    """Keeps what it is sent."""

    bodies: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.bodies.append((self.path, body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        return None


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, bytes]]]:
    bodies: list[tuple[str, bytes]] = []
    handler = type("Handler", (Collector,), {"bodies": bodies})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        yield bodies
        server.shutdown()


def attributes(entries: Any) -> dict[str, Any]:
    return {e.key: getattr(e.value, e.value.WhichOneof("value")) for e in entries}


def spans(bodies: list[tuple[str, bytes]]) -> list[Any]:
    found = []
    for path, body in bodies:
        if path == "/v1/traces":
            request = ExportTraceServiceRequest.FromString(body)
            found += [s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans]
    return found


async def session_with(root: Path, *answers: Step) -> Session:
    (root / "ws").mkdir()
    return await Session.create(options(root, ReplayClient(answers), telemetry=True))


async def test_a_turn_as_spans_and_metrics(tmp_path: Path, collected: list[tuple[str, bytes]]) -> None:
    calls = (call("shell", command="exit 3"), call("read", path="no-such-file"))
    session = await session_with(tmp_path, Step(calls=calls), Step(text=SECRET_WORDS))
    await session.submit(f"Say {SECRET_WORDS}.")
    await session.aclose()
    found = {span.name: span for span in spans(collected)}
    assert sorted(span.name for span in spans(collected)) == [
        "chat scripted", "chat scripted", "execute_tool read", "execute_tool shell", "invoke_agent k3agent",
    ]  # fmt: skip
    turn, tool = found["invoke_agent k3agent"], found["execute_tool read"]
    assert {span.parent_span_id for span in spans(collected) if span is not turn} == {b"", turn.span_id}
    assert all(s.start_time_unix_nano <= s.end_time_unix_nano for s in spans(collected))
    told = attributes(turn.attributes)
    assert told["gen_ai.conversation.id"] == session.id and told["k3agent.outcome"] == "success"
    assert attributes(tool.attributes)["error.type"] == "tool_error" and tool.status.code == 2
    assert attributes(found["execute_tool shell"].attributes)["process.exit.code"] == 3
    chat = attributes(found["chat scripted"].attributes)
    assert chat["gen_ai.request.model"] == "scripted" and chat["gen_ai.usage.output_tokens"] >= 1
    metrics = [ExportMetricsServiceRequest.FromString(b) for path, b in collected if path == "/v1/metrics"]
    names = {
        m.name for r in metrics for rm in r.resource_metrics for s in rm.scope_metrics for m in s.metrics
    }
    assert names == {"gen_ai.client.token.usage", "gen_ai.client.operation.duration"}


async def test_what_was_said_is_not_sent(tmp_path: Path, collected: list[tuple[str, bytes]]) -> None:
    write = Step(calls=(call("write", path="fox.txt", content=SECRET_WORDS),))
    session = await session_with(tmp_path, write, Step(text=SECRET_WORDS))
    await session.submit(SECRET_WORDS)
    await session.aclose()
    assert spans(collected)
    for _, body in collected:
        assert b"quick" not in body and b"fox" not in body


async def test_an_interrupted_turn(tmp_path: Path, collected: list[tuple[str, bytes]]) -> None:
    session = await session_with(tmp_path, Step(calls=(call("shell", command="sleep 60"),)))
    started = asyncio.Event()
    session.subscribe(lambda event: started.set() if isinstance(event, CallStarted) else None)
    turn = asyncio.create_task(session.submit("Sleep."))
    await started.wait()
    session.interrupt("enough")
    await turn
    await session.aclose()
    found = {span.name: attributes(span.attributes) for span in spans(collected)}
    assert found["invoke_agent k3agent"]["error.type"] == "interrupted"
    assert found["execute_tool shell"]["error.type"] == "interrupted"


async def test_nobody_at_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    session = await session_with(tmp_path, Step(text="Hi."))
    await session.submit("Hi.")
    begun = time.monotonic()
    await session.aclose()
    assert time.monotonic() - begun < 30


def test_a_subagent_does_not_wait_at_its_end_but_its_session_does(
    collected: list[tuple[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_open = threading.Event()
    take = Collector.do_POST
    monkeypatch.setattr(Collector, "do_POST", lambda self: (is_open.wait(60), take(self))[1])
    monkeypatch.setattr(telemetry, "CLOSE_S", 240.0)
    info = ModelInfo(model="m", provider="p", base_url="", context_window=1000, max_output_tokens=100)
    root, own = Telemetry(SessionId("root"), info), SessionId("child")
    child = Telemetry(own, info, SessionId("root"))
    child(TurnStarted(session=own, seq=1, at=datetime.now(UTC), prompt="x"))
    child(TurnEnded(session=own, seq=2, at=datetime.now(UTC), outcome=TurnOutcome.SUCCESS, detail=""))
    child.close()
    assert not collected
    is_open.set()
    root.close()
    assert [attributes(span.attributes)["gen_ai.conversation.id"] for span in spans(collected)] == ["child"]


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.exporter", "opentelemetry.sdk"])
def test_a_part_of_the_packages_is_not_enough(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(missing)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=r"pip install 'k3agent\[otel\]'"):
        Telemetry(SessionId("s"), ReplayClient([]).info)
