"""A program in a pseudo-terminal of its own, for measurements: what it writes, what its processes cost."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from pathlib import Path

ROWS, COLUMNS = 40, 120
PATIENCE_S = 120.0
TICK = os.sysconf("SC_CLK_TCK")
END_TRIES = 50
# What programs ask a terminal at their start, and an answer; some wait for it before they draw.
_ANSWERS = (
    (re.compile(rb"\x1b\[6n"), b"\x1b[1;1R"),
    (re.compile(rb"\x1b\[0?c"), b"\x1b[?62;22c"),
    (re.compile(rb"\x1b\[>0?c"), b"\x1b[>1;10;0c"),
    (re.compile(rb"\x1b\[\?u"), b"\x1b[?0u"),
    (re.compile(rb"\x1b\[\?2026\$p"), b"\x1b[?2026;2$y"),
    (re.compile(rb"\x1b\]10;\?"), b"\x1b]10;rgb:d7d7/dada/e0e0\x1b\\"),
    (re.compile(rb"\x1b\]11;\?"), b"\x1b]11;rgb:1414/1616/1b1b\x1b\\"),
)
_QUERY_BYTES = 16
# Sequences: CSI, OSC, the other strings, two letters; one without its end is taken for the rest of the text.
_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*(?:[@-~]|\Z)"
    r"|\][^\x07\x1b]*(?:\x07|\x1b\\|\Z)"
    r"|[PX^_][^\x1b]*(?:\x1b\\|\Z)"
    r"|[ -/]*[0-~]|\Z)"
)


def visible(output: bytes) -> str:
    """What of `output` is text: no sequences, no control characters, no white space."""
    text = _SEQUENCE.sub("", output.decode("utf-8", "replace"))
    return "".join(char for char in text if char.isprintable() and not char.isspace())


class Terminal:
    """The program in a pseudo-terminal; answers the questions that programs ask a terminal."""

    def __init__(self, argv: list[str], environ: dict[str, str], cwd: Path) -> None:
        self.started = time.monotonic()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            try:
                os.execvpe(argv[0], argv, environ)
            except OSError as error:
                os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
                os._exit(127)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.output = bytearray()
        self.is_over = False

    def read(self, limit_s: float) -> bytes:
        """What comes within `limit_s`; at most one piece."""
        if not select.select([self._fd], [], [], limit_s)[0]:
            return b""
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:
            data = b""
        self.is_over = not data
        self._answer(data)
        self.output += data
        return data

    def _answer(self, data: bytes) -> None:
        """Answer what is asked in `data`; a question may have begun in the piece before."""
        if b"\x1b" not in data and b"\x1b" not in self.output[-_QUERY_BYTES:]:
            return
        before = bytes(self.output[-_QUERY_BYTES:])
        for query, answer in _ANSWERS:
            for hit in query.finditer(before + data):
                if hit.end() > len(before):
                    os.write(self._fd, answer)

    def until(self, wanted: bytes, since: int = 0) -> float:
        """Seconds from now until `wanted` is printed after position `since`."""
        start = time.monotonic()
        while self.output.find(wanted, since) < 0:
            if self.is_over or time.monotonic() - start > PATIENCE_S:
                raise TimeoutError(
                    f"{wanted!r} did not come; the last output was {bytes(self.output[-400:])!r}"
                )
            self.read(0.5)
        return time.monotonic() - start

    def write(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def drain(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not self.is_over:
            self.read(left)

    def family(self) -> list[int]:
        """The program's process and all that it started, directly or not."""
        parents: dict[int, int] = {}
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError, ValueError, IndexError):
                    parents[int(folder.name)] = int(_stat(int(folder.name))[1])
        found = {self.pid}
        while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
            found |= more
        return sorted(found)

    @property
    def cpu_s(self) -> float:
        """Of the whole family; of those that have ended as far as their parents know it."""
        total = 0
        for pid in self.family():
            with contextlib.suppress(OSError):
                total += sum(map(int, _stat(pid)[11:15]))
        return total / TICK

    @property
    def pss_mb(self) -> float:
        """Proportional memory of the whole family."""
        total = 0.0
        for pid in self.family():
            with contextlib.suppress(OSError, StopIteration):
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                line = next(line for line in text.splitlines() if line.startswith("Pss:"))
                total += int(line.split()[1]) / 1024
        return total

    def end(self) -> None:
        """Ctrl-D, and if that does not help, the signal."""
        with contextlib.suppress(OSError):
            self.write("\x04")
        rest = self.family()
        for _ in range(END_TRIES):
            self.read(0.1)
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                break
        else:
            for pid in reversed(rest):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self._fd)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, parent, ..."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
