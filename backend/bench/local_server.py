"""A server of our own for a measurement: started, watched, restarted, ended."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from k3agent.backend.bench.client import BenchError

KEY = "bench"


class LocalServer:
    """`k3agent serve` on a free port, with a disk cache of its own that lives as long as this object."""

    def __init__(self, model: str, flags: Sequence[str] = ()) -> None:
        self.url = ""
        self._folder = tempfile.TemporaryDirectory(prefix="k3agent-bench-")
        self._command = [
            *(sys.executable, "-P", "-m", "k3agent.backend.cli", "--model", model, "--port", "0"),
            *("--disk-cache", self._folder.name, "--sampling", "request", *flags),
        ]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "LocalServer":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._folder.cleanup()

    def start(self) -> None:
        environ = {**os.environ, "K3AGENT_API_KEY": KEY}
        process = self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environ
        )
        assert process.stdout is not None
        self.url = process.stdout.readline().strip()
        if not self.url:
            raise BenchError(f"the server did not start (exit status {process.wait()}); see its lines above")

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def resident_bytes(self) -> int:
        """Memory of the server and the processes below it; 0 where the system does not tell (only Linux)."""
        return sum(map(_resident, family(self._process.pid))) if self._process is not None else 0


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:
        try:
            text = Path(f"/proc/{parent}/task/{parent}/children").read_text()
        except OSError:
            continue
        found += map(int, text.split())
    return found


def _resident(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
