"""The real server as a process, started as users start it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

USER = {"role": "user", "content": "What is in src?"}
MODEL = "tiny-k3"
KEY = "k-test"


@dataclass
class Running:
    process: subprocess.Popen[str]
    url: str
    key: str | None = KEY

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"} if self.key else {}

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def post(self, path: str = "/v1/chat/completions", **body: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [USER], "max_tokens": 8, **body}
        return httpx.post(self.url + path, json=body, headers=self.headers, timeout=60)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=self.headers, timeout=60)

    def metric(self, name: str) -> float:
        """The value of one metric; 0 if there is none of that name."""
        for line in self.get("/metrics").text.splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        return 0.0

    def engine_pid(self) -> int:
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(text.split()[0])

    def stop(self) -> int:
        """End it as a user would; the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(30)


Start = Callable[..., Running]


@contextmanager
def starter(default_model: Path) -> Iterator[Start]:
    """A function that starts servers; all of them end with the context."""
    started: list[Running] = []

    def start(*flags: str, key: str | None = KEY, model: Path = default_model) -> Running:
        command = [sys.executable, "-P", "-m", "k3agent.backend.cli", "--model", str(model), "--port", "0"]
        command += ["--threads", "1", "--cache-bytes", "64M", "--disk-cache", "off", *flags]
        command += ["--api-key", key] if key else []
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        started.append(Running(process, url, key))
        assert url.startswith("http://127.0.0.1:"), url
        return started[-1]

    yield start
    for running in started:
        running.stop()
        assert running.process.stdout is not None
        running.process.stdout.close()
