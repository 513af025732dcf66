"""What k3agent itself costs, without any model: start, a task of four steps, a session of sixty.

A scripted server on the loopback interface answers at once, so what is left is the agent. Prints a table of
medians; CPU time and peak memory are those of the agent's process and its children.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from k3agent.providers.scripted import ScriptedCall, Step, serving

AGENT = (sys.executable, "-P", "-m", "k3agent.cli")
Sample = tuple[float, float, float]


def measured(command: tuple[str, ...], cwd: Path, environ: dict[str, str]) -> Sample:
    """(seconds, CPU seconds, peak MB) of a process that must end well."""
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    took = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{said.decode()}")
    return took, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def task() -> list[Step]:
    """Read, edit, a command, the answer."""
    return [
        Step(reasoning="look", calls=(ScriptedCall(name="read", arguments={"path": "a.txt"}),)),
        Step(calls=(ScriptedCall(name="edit", arguments={"path": "a.txt", "old": "two", "new": "TWO"}),)),
        Step(calls=(ScriptedCall(name="shell", arguments={"command": "cat a.txt"}),)),
        Step(text="Done."),
    ]


def long_session(num_steps: int = 60) -> list[Step]:
    """Each step reads another 8 KB."""
    reads = [
        Step(calls=(ScriptedCall(name="shell", arguments={"command": f"head -c 8000 big.txt # {n}"}),))
        for n in range(num_steps)
    ]
    return [*reads, Step(text="Done.")]


def run_of(steps: list[Step], root: Path) -> Sample:
    """One `k3agent run` in a folder and with settings of its own."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        home = Path(folder)
        work = home / "work"
        work.mkdir()
        (work / "a.txt").write_text("one\ntwo\nthree\n")
        (work / "big.txt").write_text("some words of a file\n" * 500)
        with serving(steps) as server:
            command = (*AGENT, "run", "go", "--base-url", server.url, "--max-turns", "100")
            return measured(command, work, environ_in(home))


def environ_in(home: Path) -> dict[str, str]:
    own = {"HOME": str(home), "K3AGENT_HOME": str(home / "data"), "XDG_CONFIG_HOME": str(home / "config")}
    return {**os.environ, **own}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="runs of each; medians are told (default: 5)")
    num_runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        bare = environ_in(root)
        rows = {
            "an empty Python": lambda: measured((sys.executable, "-c", "pass"), root, bare),
            "`k3agent --version`": lambda: measured((*AGENT, "--version"), root, bare),
            "`k3agent --help`": lambda: measured((*AGENT, "--help"), root, bare),
            "a task of 4 steps": lambda: run_of(task(), root),
            "60 steps with results of 8 KB": lambda: run_of(long_session(), root),
        }
        load = os.getloadavg()[0]
        print(f"Python {platform.python_version()}, load {load:.1f}, medians of {num_runs} runs.\n")
        print("| | seconds | CPU seconds | peak MB |\n| --- | --- | --- | --- |")
        for name, sample in rows.items():
            samples = [sample() for _ in range(num_runs)]
            took, cpu, peak = (statistics.median(values) for values in zip(*samples, strict=True))
            print(f"| {name} | {took:.2f} | {cpu:.2f} | {peak:.0f} |", flush=True)


if __name__ == "__main__":
    main()
