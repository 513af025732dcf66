"""The engine's panel: what servers say of themselves, what the client knows, and when nothing is asked."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.agents import FULL, ReplayClient
from support.screens import running

from k3agent.backend.server.metrics import Metrics
from k3agent.events import PrefillProgressed
from k3agent.providers.bundled import BundledClient, ServerState
from k3agent.providers.chat import ChatClient, Endpoint
from k3agent.providers.dialects import OPEN
from k3agent.tui import figures
from k3agent.tui.pace import Pace
from k3agent.tui.screens import engine
from k3agent.tui.screens.engine import place_of
from k3agent.tui.served import address_of, look, read_metrics
from k3agent.types import Finish, Finished, SessionId, TextDelta, Usage

ENGINE = {
    "running_requests": 2.0, "waiting_requests": 3.0, "prompt_tokens": 4_000.0, "cached_tokens": 3_000.0,
    "tier_bytes_device": 5e8, "tier_bytes_disk": 1.2e9, "tier_bytes_host": 0.0,
}  # fmt: skip
VLLM = """# HELP vllm:num_requests_running Number of requests
vllm:num_requests_running{engine="0",model_name="a b} c"} 1.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0"} 7
vllm:prefix_cache_queries_total{engine="0"} 100
vllm:prefix_cache_hits_total{engine="0"} 25
"""


def own_text() -> str:
    """The server's real text."""
    metrics = Metrics()
    for value in (100.0, 300.0):
        metrics.prefill_rate.add(value)
    metrics.decode_rate.add(40.0)
    return metrics.text(ENGINE, 1, True)


@contextmanager
def server(health: str, metrics: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """A server with these two pages; its address and what it was asked for, with the key."""
    asked: list[tuple[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers.get("Authorization", "")))
            body = (health if self.path == "/health" else metrics).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{found.server_port}/v1", asked
    finally:
        found.shutdown()
        thread.join()
        found.server_close()


def test_the_servers_own_text_is_understood() -> None:
    served = read_metrics(own_text(), "ok")
    assert (served.running, served.waiting, served.num_restarts) == (2, 3, 1)
    assert (served.read_tokens, served.cached_tokens) == (4_000, 3_000)
    assert (served.prefill_rate, served.decode_rate) == (200, 40)
    assert served.tier_bytes == {"device": 5e8, "disk": 1.2e9, "host": 0}


def test_values_of_several_engines_are_added_up() -> None:
    served = read_metrics(VLLM, "ok")
    # the line whose label holds a brace is no line for us
    assert (served.running, served.waiting) == (4, 7)
    assert (served.read_tokens, served.cached_tokens) == (100, 25)
    assert served.prefill_rate is None and not served.tier_bytes


def test_sglang_tells_its_hits_by_where_they_lay() -> None:
    text = 'sglang:prompt_tokens_total{model_name="m"} 4096.0\n'
    text += "".join(
        f'sglang:cached_tokens_total{{cache_source="{place}"}} 1024.0\n' for place in ("device", "host")
    )
    served = read_metrics(text, "ok")
    assert (served.read_tokens, served.cached_tokens) == (4096, 2048)


@pytest.mark.parametrize("value", ["nan", "inf", "-5", "1e999", "x", ""])
def test_numbers_that_are_none_are_left_out(value: str) -> None:
    assert read_metrics(f"k3agent_engine_running_requests {value}\n", "ok").running is None


def test_names_of_tiers_are_words() -> None:
    text = 'k3agent_cache_tier_bytes{tier="[red]x\x1b[31m"} 5\nk3agent_cache_tier_bytes{tier="disk"} 6\n'
    assert read_metrics(text, "ok").tier_bytes == {"disk": 6}


def test_a_server_that_is_not_there_is_told_in_words() -> None:
    served = look("http://127.0.0.1:1/v1", "")
    assert not served.is_up and served.status.startswith("does not answer: ")


def test_a_servers_words_are_cleaned() -> None:
    with server('{"status": "o\\u001b[31mk\\nx", "version": ["\\u202e"]}', "\x00\xff") as (url, asked):
        served = look(url, "secret")
    assert served.status == "o␛[31mk x" and "\u202e" not in served.version
    assert asked == [("/health", "Bearer secret"), ("/metrics", "Bearer secret")]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@api.example.com/v1?key=x", "api.example.com"),
        ("http://[::1]:8333/v1", "[::1]:8333"),
        ("http://127.0.0.1:99999999/v1", ""),
        ("", ""),
    ],
)
def test_an_address_is_shown_without_secrets(url: str, shown: str) -> None:
    assert address_of(url) == shown


def test_sizes_and_rates() -> None:
    found = [figures.size(value) for value in (0, 999, 1_500, 999_600, 5.37e8, 1.14e9, 3e13)]
    assert found == ["0 bytes", "999 bytes", "1.5 KB", "1.0 MB", "537 MB", "1.1 GB", "30,000 GB"]
    assert (figures.rate(3.14), figures.rate(1234.5)) == ("3.1 tokens/s", "1,234 tokens/s")


def test_the_pace_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("k3agent.tui.pace.time.monotonic", lambda: now)
    pace = Pace()
    pace.ended(5)
    assert (pace.first_s, pace.rate) == (0, 0)
    pace.asked()
    pace.reads(10, 20)
    assert pace.prefill == (10, 20)
    now = 102.0
    pace.streams()
    assert pace.prefill is None
    now = 104.0
    pace.ended(50)
    assert (pace.first_s, pace.rate) == (2, 25)


async def test_only_servers_of_this_machine_are_asked(tmp_path: Path) -> None:
    async def prepare() -> Endpoint:
        return Endpoint(base_url="http://127.0.0.1:8000/v1", api_key="key")

    def client(url: str) -> ChatClient:
        return ChatClient(replace(FULL, base_url=url), OPEN, prepare)

    near = await place_of(client("http://127.0.0.1:8000/v1"))
    assert near.may_be_asked and near.key == "key"
    far = await place_of(client("https://api.example.com/v1"))
    assert not far.may_be_asked and not far.key
    bundled = BundledClient(FULL, tmp_path, {})
    assert not (await place_of(bundled)).may_be_asked
    bundled.server._state = ServerState(url="http://127.0.0.1:4711", pid=1234, token="t")
    own = await place_of(bundled)
    assert (own.base_url, own.key, own.pid, own.is_bundled) == ("http://127.0.0.1:4711/v1", "t", 1234, True)


async def test_the_panel_shows_server_and_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "AGAIN_S", 0.05)
    with server('{"status": "ok", "version": "9.9"}', own_text()) as (url, asked):

        async def place(client: object) -> engine.Place:
            return engine.Place(url, "k", 4711, is_bundled=True)

        monkeypatch.setattr(engine, "place_of", place)
        usage = Usage(input_tokens=1_000, cached_tokens=900, output_tokens=20)
        answer = [TextDelta(text="Done."), Finished(finish=Finish.STOP, usage=usage, model="m")]
        async with running(tmp_path, [answer]) as screen:
            await screen.submit("hello")
            await screen.until("done · 1 step")
            assert not asked
            await screen.press("f2")
            await screen.until("process 4711")
            for words in (
                "ok · version 9.9", "2 running · 3 waiting · restarts of the engine: 1", "90% of the prompt",
                "900 cached + 100 fresh tokens read, 20 written", "reads 200 tokens/s · writes 40 tokens/s",
                "500 MB on the device · 1.2 GB on disk", "75% of 4.0k tokens since its start", "idle",
            ):  # fmt: skip
                assert words in screen.shown
            screen.chat._session_event(
                PrefillProgressed(
                    session=SessionId("s"), seq=1, at=datetime.now(UTC), done=5_000, total=20_000
                )
            )
            await screen.until("25% of 20.0k tokens")
            await screen.press("escape")
            await screen.until_gone("process 4711")
            await screen.pilot.pause(0.2)
            count = len(asked)
            await screen.pilot.pause(0.5)
            assert len(asked) == count


async def test_the_panel_without_a_server_says_what_the_client_knows(tmp_path: Path) -> None:
    info = replace(FULL, base_url="https://user:pw@api.example.com/v1", model="[red]\x1b[31mm")
    async with running(tmp_path, client=ReplayClient(info=info)) as screen:
        await screen.submit("/engine")
        await screen.until("not on this machine")
        assert "api.example.com" in screen.shown and "pw" not in screen.shown
        assert "[red]␛[31mm · window 262k tokens" in screen.shown
        assert "none yet" in screen.shown
