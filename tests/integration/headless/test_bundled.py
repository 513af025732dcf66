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
    assert sum("Starting" in text for text in told) == 1
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


async def test_a_server_that_dies_is_shown_with_its_log(home: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    began = time.monotonic()
    with pytest.raises(ServerStartError) as caught:
        await client_of(home, broken).connect()
    assert time.monotonic() - began < 30
    assert "ended with exit code" in str(caught.value)
    assert "  | " in str(caught.value)
    assert caught.value.kind is ProviderErrorKind.SERVER
    assert not caught.value.is_retryable


async def test_without_the_local_packages_the_command_is_named(home: Path, model: Path, monkeypatch) -> None:
    monkeypatch.setattr(bundled, "missing_packages", lambda: ["torch"])
    with pytest.raises(ConfigError, match=r"pip install 'k3agent\[local\]'"):
        await client_of(home, model).connect()
