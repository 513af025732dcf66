"""`k3agent serve --tp 2` as users start it: it answers like one rank, and no death of a rank leaves anything
behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.tiny_k3 import write_tiny_k3
from support.tiny_tokenizer import VOCAB_SIZE, write_tiny_tokenizer

WIDE = {"moe_intermediate_size": 64, "linear_attn_config": {"num_heads": 4}}
LONG_S = 300
RANK_LOST = 70
"""As docs/parallel.md promises."""


class Server:
    """One started server."""

    def __init__(self, folder: Path, *flags: str) -> None:
        command = [sys.executable, "-P", "-m", "k3agent.backend.cli", "--model", str(folder), "--port", "0"]
        command += ["--served-name", "tiny", "--cache-bytes", str(16 << 20), *flags]
        if "--disk-cache" not in flags:
            command += ["--disk-cache", "off"]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def ask(self, text: str, **fields: Any) -> httpx.Response:
        body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 12} | fields
        return httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=LONG_S)

    def pids(self) -> list[int]:
        """Of rank 0, the engine, and of the others."""
        (engine,) = children(self.process.pid)
        return [engine, *children(engine)]

    def end(self) -> tuple[int, str]:
        """Exit status and what stderr got."""
        _, errors = self.process.communicate(timeout=LONG_S)
        return self.process.returncode, errors


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + LONG_S
    while left := [pid for pid in pids if runs(pid)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.1)


def runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tiny-k3-ranks")
    write_tiny_k3(made, vocab_size=VOCAB_SIZE, **WIDE)
    write_tiny_tokenizer(made)
    return made


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def starter(*flags: str) -> Server:
        server = Server(folder, *flags)
        started.append(server)
        return server

    yield starter
    for server in started:
        server.process.kill()
        server.process.communicate()


def test_two_ranks_answer_like_one_and_a_restart_like_both(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    """The first server has no cache; the second one fills a folder; the third one begins with it."""
    ranked = ("--tp", "2", "--expert-parallel", "2", "--disk-cache", str(tmp_path))
    answers, num_cached = [], []
    for flags in ((), ranked, ranked):
        server = start("--dtype", "float64", *flags)
        pids = server.pids()
        assert len(pids) == (2 if flags else 1)
        for _ in range(2):
            found = server.ask("hi " * 60, temperature=0).json()
            answers.append(found["choices"][0]["message"])
            num_cached.append(found["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0))
        server.process.send_signal(signal.SIGTERM)
        status, errors = server.end()
        assert status == 0 and "ERROR" not in errors and "WARNING" not in errors, errors
        wait_gone(pids)
    assert all(answer == answers[0] for answer in answers)
    assert num_cached[0] == num_cached[2] == 0
    assert min(num_cached[1], num_cached[3], num_cached[4], num_cached[5]) > 0


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_server(start: Callable[..., Server], victim: int) -> None:
    server = start("--tp", "2")
    pids = server.pids()
    assert server.ask("hello").status_code == 200
    os.kill(pids[victim], signal.SIGKILL)
    status, errors = server.end()
    assert status == RANK_LOST
    assert f"rank {victim}" in errors
    wait_gone(pids)


def test_what_cannot_be_served_is_refused_with_a_remedy(folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "k3agent.backend.cli", "--model", str(folder), "--port", "0"]
    found = subprocess.run(
        [*command, "--tp", "3"], capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert found.returncode == 1
    assert "tensor_parallel 3 does not divide num_attention_heads 4 of this model; use 1 or 2" in found.stderr
    found = subprocess.run(
        [*command, "--tp", "0"], capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert found.returncode == 2
    shutil.copytree(folder, tmp_path / "damaged")
    raw = json.loads((folder / "config.json").read_text())
    raw["text_config"]["num_hidden_layers"] = 4
    raw["text_config"]["linear_attn_config"]["full_attn_layers"] = [4]
    (tmp_path / "damaged" / "config.json").write_text(json.dumps(raw))
    command[command.index("--model") + 1] = str(tmp_path / "damaged")
    found = subprocess.run(
        [*command, "--tp", "2"], capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert found.returncode == 1
    assert "have no place in the model" in found.stderr
