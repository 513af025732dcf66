"""The same figures for any program of the terminal, to compare them: first frame, settled, key to echo, CPU
while idle, memory. `python -m k3agent.tui.bench --peers 'COMMAND' 'COMMAND'`.
"""

from __future__ import annotations

import math
import os
import shlex
import tempfile
import time
from pathlib import Path

from k3agent.tui.benchterm import Terminal, visible

# So much text is a frame and no stray word.
FRAME_CHARS = 20
QUIET_S = 1.5
START_LIMIT_S = 60.0
ECHO_LIMIT_S = 5.0
# letters that are rare in what programs write by themselves
LETTERS = "qzxjkvqzxjkv"
KEPT = ("PATH", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "OPENAI_BASE_URL", "K3AGENT_HOME")


def measure_peer(command: str, times: int, idle_s: float, home: Path | None = None) -> dict[str, float]:
    """Medians of `times` starts after one that fills the caches; NaN for what the program does not do.

    `home` is HOME for it; without one it gets an empty folder.
    """
    runs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="k3agent-bench-") as folder:
        work = Path(folder) / "work"
        work.mkdir()
        environ = {name: os.environ[name] for name in KEPT if name in os.environ}
        environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "HOME": str(home or folder)}
        for number in range(times + 1):
            terminal = Terminal(shlex.split(command), environ, work)
            try:
                found = _start(terminal)
                if number == times:
                    found |= _typing(terminal) | _idling(terminal, idle_s)
            finally:
                terminal.end()
            if number:
                runs.append(found)
    return {name: _median([run[name] for run in runs if name in run]) for name in runs[-1]}


def _start(terminal: Terminal) -> dict[str, float]:
    """Until there is a frame, with the CPU it took, and until nothing more comes for a while."""
    frame = frame_cpu = math.nan
    last = time.monotonic()
    while not terminal.is_over:
        now = time.monotonic()
        if now - terminal.started > START_LIMIT_S or (not math.isnan(frame) and now - last > QUIET_S):
            break
        if terminal.read(0.05):
            last = time.monotonic()
            if math.isnan(frame) and len(visible(bytes(terminal.output))) >= FRAME_CHARS:
                frame, frame_cpu = last - terminal.started, terminal.cpu_s
    if terminal.is_over or math.isnan(frame):
        said = visible(bytes(terminal.output))[-300:]
        raise SystemExit(f"a program for --peers ended or drew nothing; it said: {said}")
    return {"first_frame_s": frame, "first_frame_cpu_s": frame_cpu, "settled_s": last - terminal.started}


def _typing(terminal: Terminal) -> dict[str, float]:
    echoes: list[float] = []
    for letter in LETTERS:
        since, start = len(terminal.output), time.monotonic()
        terminal.write(letter)
        while time.monotonic() - start < ECHO_LIMIT_S:
            terminal.read(0.05)
            if letter in visible(bytes(terminal.output[since:])):
                echoes.append(1000 * (time.monotonic() - start))
                break
        terminal.drain(0.2)
        if not echoes:
            # It takes no text here; the other letters would not change that.
            return {"echo_ms": math.nan}
    return {"echo_ms": _median(echoes)}


def _idling(terminal: Terminal, idle_s: float) -> dict[str, float]:
    terminal.drain(2.0)
    before = terminal.cpu_s
    terminal.drain(idle_s)
    return {"idle_percent": 100 * (terminal.cpu_s - before) / idle_s, "pss_mb": terminal.pss_mb}


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
