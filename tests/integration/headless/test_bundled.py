"""The client that starts or joins the local server, with the real server and a tiny K3."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("uvicorn")

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from support.headless import make_bench
from support.tiny_k3 import write_tiny_k3
from support.tiny_tokenizer import VOCAB_SIZE, write_tiny_tokenizer

from k3agent.errors import ConfigError, ProviderErrorKind
from k3agent.providers import bundled
from k3agent.providers.base import ModelInfo
from k3agent.providers.bundled import BundledClient, ServerStartError
from k3agent.types import Effort, Finished, Message, MessageId, Origin, Request, Role, TextPart


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    folder.mkdir()
    write_tiny_k3(folder, vocab_size=VOCAB_SIZE)
    write_tiny_tokenizer(folder)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for file in (tmp_path / "run").glob("*.json"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(json.loads(file.read_text())["pid"], signal.SIGTERM)


def client_of(home: Path, model: Path, told: list[str] | None = None) -> BundledClient:
    info = ModelInfo(
        provider="bundled", model=model.name, base_url="", context_window=4096, max_output_tokens=1024
    )
    notify = told.append if told is not None else None
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(str(Path(folder).absolute()) for folder in folders),
    }
    return BundledClient(info, home, environ, model=str(model), idle_timeout_s=60, notify=notify)


def request(model: str) -> Request:
    message = Message(
        id=MessageId("m"), parent=None, role=Role.USER, origin=Origin.HUMAN, parts=(TextPart(text="hi"),),
        created_at=datetime.now(UTC),
    )  # fmt: skip
    fields = {"system": "", "tools": (), "effort": Effort.LOW, "cache_key": "s", "max_output_tokens": 4}
    return Request(model=model, messages=(message,), **fields)


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def finish_of(client: BundledClient) -> Finished:
    async for delta in client.stream(request(client.info.model)):
        if isinstance(delta, Finished):
            return delta
    raise AssertionError("no end")


async def test_two_agents_start_one_server_and_it_is_started_again(home: Path, model: Path) -> None:
    told: list[str] = []
    first, second = client_of(home, model, told), client_of(home, model, told)
    await asyncio.gather(first.connect(), second.connect())
    assert first.info.base_url == second.info.base_url
    assert first.info.context_window == 4096
    state_file = first.server.state_file
    state = json.loads(state_file.read_text())
    assert state["token"] not in command_of(state["pid"])
    assert (await finish_of(first)).usage.input_tokens > 0
    os.kill(state["pid"], signal.SIGKILL)
    await asyncio.sleep(0.2)
    finished = await finish_of(first)
    assert finished.usage.output_tokens > 0
    assert any("starting it again" in text for text in told)
    assert json.loads(state_file.read_text())["pid"] != state["pid"]
    await first.aclose()
    await second.aclose()


def test_a_signal_while_the_server_starts_ends_both(tmp_path: Path, model: Path) -> None:
    bench = make_bench(tmp_path)
    flags = ("--provider", "bundled", "--model", str(model), "--output-format", "stream-json")
    process = bench.start("run", "Hi.", *flags)
    servers: list[int] = []
    end = time.monotonic() + 100
    while not servers and time.monotonic() < end:
        servers = processes_with(str(bench.home / "run"))
        time.sleep(0.01)
    assert servers
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=100)
    (line,) = [json.loads(text) for text in out.splitlines()]
    assert (process.returncode, line["exit_code"], line["subtype"]) == (143, 143, "interrupted"), err
    assert line["result"] == "Interrupted: signal SIGTERM before the work began."
    first = err.splitlines()[0]
    assert first.startswith("k3agent: bundled, tiny: ") and "provider was given as a flag" in first
    while processes_with(str(bench.home / "run")) and time.monotonic() < end:
        time.sleep(0.05)
    assert not processes_with(str(bench.home / "run"))


def processes_with(word: str) -> list[int]:
    """The living processes that have this text in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                if word in (folder / "cmdline").read_text():
                    found.append(int(folder.name))
    return found


async def test_a_server_that_dies_is_shown_with_its_log(home: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    # Not after the five minutes that a server may take to load.
    with pytest.raises(ServerStartError) as caught:
        await asyncio.wait_for(client_of(home, broken).connect(), 200)
    assert "ended with exit code" in str(caught.value)
    assert "  | " in str(caught.value)
    assert caught.value.kind is ProviderErrorKind.SERVER
    assert not caught.value.is_retryable


async def test_without_the_local_packages_the_command_is_named(home: Path, model: Path, monkeypatch) -> None:
    monkeypatch.setattr(bundled, "missing_packages", lambda: ["torch"])
    with pytest.raises(ConfigError, match=r"pip install 'k3agent\[local\]'"):
        await client_of(home, model).connect()
