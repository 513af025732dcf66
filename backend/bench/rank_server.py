"""Step `server`: the real server on several ranks answers like one rank, and ends when a rank is killed."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from k3agent.backend.bench import rank_results as results
from k3agent.backend.bench.local_server import family
from k3agent.backend.bench.rank_tokens import fitting, models
from k3agent.backend.bench.widened import widen
from k3agent.backend.errors import RANK_LOST_STATUS, BackendError

WITHIN_S = 30.0
"""From the death of a rank to the end of the server."""
_TEXTS = ("hi " * 60, "What is a rank? " * 9)
_WORKER = "k3agent.backend.engine.worker"
_ENGINE = "k3agent.backend.engine.process"


class Server:
    """One started server; `stderr` is its file of messages."""

    def __init__(
        self,
        model: Path,
        folder: Path,
        options: argparse.Namespace,
        ranks: int,
        dealt: int,
        flags: Sequence[str] = ("--dtype", "float64", "--graphs", "off"),
    ) -> None:
        self.name = results.name_of(ranks, dealt)
        self._stderr = folder / f"{ranks}-{dealt}-{time.monotonic_ns()}.txt"
        command = [sys.executable, "-P", "-m", "k3agent.backend.cli", "--model", str(model), "--port", "0"]
        command += ["--served-name", "tiny", "--cache-bytes", str(32 << 20), "--disk-cache", "off"]
        command += ["--device", options.device, *flags]
        if ranks > 1:
            command += ["--tp", str(ranks), "--expert-parallel", str(dealt)]
        with self._stderr.open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            raise BackendError(f"{self.name}: the server did not start: {self.messages[-1500:]}")

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.communicate()

    @property
    def messages(self) -> str:
        return self._stderr.read_text("utf-8", errors="replace")

    def ask(self, text: str, **more: Any) -> dict[str, Any]:
        """An answer of the server, as JSON."""
        body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "temperature": 0}
        body |= {"max_tokens": 24, **more}
        response = httpx.post(f"{self.url}/v1/chat/completions", json=body, timeout=120)
        return {"status": response.status_code, **response.json()}

    def pid_of(self, rank: int) -> int:
        """The process of a rank."""
        wanted = [_ENGINE] if rank == 0 else [_WORKER, str(rank)]
        for pid in family(self.process.pid):
            words = Path(f"/proc/{pid}/cmdline").read_text("utf-8").split("\0")
            if words[3 : 3 + len(wanted)] == wanted:
                return pid
        raise BackendError(f"{self.name}: no process of rank {rank} is below {self.process.pid}")


def answers(server: Server) -> list[Any]:
    """What it says, and how many tokens it had cached, the second time each."""
    found: list[Any] = []
    for text in (*_TEXTS, *_TEXTS):
        reply = server.ask(text)
        if reply["status"] != 200:
            raise BackendError(f"{server.name}: {json.dumps(reply)[:300]}")
        details = reply["usage"].get("prompt_tokens_details") or {}
        found.append((reply["choices"][0]["message"], details.get("cached_tokens", 0)))
    return found


def kill(server: Server, rank: int, table: results.Table, after_s: float = 1.0) -> None:
    """Kill a rank while the server answers; how long until it is gone, and what it says."""
    heard: list[str] = []

    def ask() -> None:
        try:
            heard.append(f"status {server.ask(_TEXTS[0], max_tokens=2000, ignore_eos=True)['status']}")
        except (httpx.HTTPError, ValueError) as error:
            heard.append(type(error).__name__)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(after_s)
    begun = time.monotonic()
    os.kill(server.pid_of(rank), signal.SIGKILL)
    try:
        status: int | None = server.process.wait(WITHIN_S)
    except subprocess.TimeoutExpired:
        status = None
    seconds = time.monotonic() - begun
    asking.join(10)
    lines = [line for line in server.messages.splitlines() if f"rank {rank}" in line]
    is_good = status == RANK_LOST_STATUS and bool(lines)
    said = lines[-1][:160] if lines else "nothing about the rank"
    value = f"exit status {status} after {seconds:.1f} s, request: {', '.join(heard)}; {said}"
    table.add(f"kill -9 of rank {rank} while it answers", server.name, value, is_good)


def main(arguments: list[str]) -> int:
    options = results.parser("server", __doc__).parse_args(arguments)
    table = results.Table("server", options.out, options.device)
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        model = folder / "model"
        config = widen(models(options.fixtures)[0], model, options.ranks)
        with Server(model, folder, options, 1, 1) as server:
            expected = answers(server)
        for place, (ranks, dealt) in enumerate(fitting(config, options.ranks)):
            try:
                with Server(model, folder, options, ranks, dealt) as server:
                    found = answers(server)
                    hits = [count for _, count in found]
                    value = f"{'the same' if found == expected else 'others'}, cached tokens {hits}"
                    table.add(f"{len(found)} answers and hits", server.name, value, found == expected)
                    # a rank beside the engine first, then the engine, which is rank 0
                    kill(server, ranks - 1 if place == 0 else 0, table)
            except (BackendError, httpx.HTTPError) as error:
                table.fail("server", results.name_of(ranks, dealt), error)
    return table.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
