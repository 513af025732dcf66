"""What the tests of foreign models stand on: a jail, the servers in it, and runs of `k3agent` inside.

Small models do strange things, so nothing they start may reach the network or write outside the test's own
folder: the server and every run live in a network namespace that has only its loopback, and a run sees
everything but that folder read-only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.headless import Bench, Ran

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("unshare", "nsenter", "ip", "mount")
MOUNTS = (
    "mount --make-rprivate / && mount --bind {root} {root} && mount -o remount,bind,ro / && "
    'cd {cwd} && exec "$@"'
)


def why_no_jail() -> str:
    """Empty where namespaces can be made, else the reason."""
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing:
        return f"no jail: {', '.join(missing)} not found"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return f"no jail: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass(frozen=True, slots=True)
class Server:
    """A server in its own network namespace; `pid` is the process whose namespace it is."""

    url: str
    pid: int


@contextlib.contextmanager
def serving(command: list[str], *, environ: dict[str, str], log: Path, limit_s: float) -> Iterator[Server]:
    """Start `command` in a namespace with loopback alone; it prints a line of JSON with `url`."""
    inside = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
    with log.open("wb") as errors:
        process = subprocess.Popen(
            inside, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environ
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        try:
            ready = json.loads(_ready_line(process, limit_s, log))
            yield Server(url=ready["url"], pid=process.pid)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


def _ready_line(process: subprocess.Popen[bytes], limit_s: float, log: Path) -> str:
    assert process.stdout is not None
    end = time.monotonic() + limit_s
    got = b""
    while True:
        ready = [
            line for line in got.splitlines(keepends=True) if line.startswith(b"{") and line.endswith(b"\n")
        ]
        if ready:
            return ready[0].decode()
        got += process.stdout.read(4096) or b""
        if process.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"the server did not start: {log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.1)


@dataclass(slots=True)
class JailedBench(Bench):
    """A bench whose runs can write in its root alone and reach nobody but the server."""

    server: Server = field(default_factory=lambda: Server("", 0))

    def command(self, *flags: str) -> list[str]:
        script = MOUNTS.format(root=self.root, cwd=self.workspace)
        jail = ["nsenter", f"--net=/proc/{self.server.pid}/ns/net"]
        jail += ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        return [*jail, "sh", "-c", script, "sh", *Bench.command(self, *flags)]


# --- tasks ---

FILES = {
    "settings.py": '"""Settings of the shop."""\n\nRETRIES = 3\nTIMEOUT_S = 45\n',
    "prices.py": (
        "from settings import RETRIES\n\n\n"
        "def net_total(items):\n    return sum(price * quantity for price, quantity in items)\n"
    ),
    "test_prices.py": (
        "from prices import net_total\n\n\n"
        "def test_net_total():\n    assert net_total([(250, 4), (100, 1)]) == 1100\n"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """`answer`: a pattern for the last answer. `call`: a pattern for one `tool arguments` that must have
    been made.
    `holds`: file to pattern, after the run. All of it is only about success, which no test demands.
    """

    name: str
    prompt: str
    answer: str = ""
    call: str = ""
    holds: tuple[tuple[str, str], ...] = ()


TASKS = (
    Task(name="read", prompt="What is the value of TIMEOUT_S in settings.py?", answer=r"\b45\b"),
    Task(
        name="find", prompt="In which file is the function net_total defined?", answer=r"(?<!test_)prices\.py"
    ),
    Task(
        name="set", prompt="In settings.py set RETRIES to 5.", holds=(("settings.py", r"(?m)^RETRIES = 5$"),)
    ),
    Task(
        name="create",
        prompt="Create a file hello.py with a function greet(name) that returns 'Hello, ' and the name.",
        holds=(("hello.py", r"def greet\(name\b"), ("hello.py", r"Hello, ")),
    ),
    Task(
        name="test",
        prompt="Run the tests with `python -m pytest -q` and say whether they pass.",
        answer=r"(?i)\bpass",
        call=r"shell .*pytest",
    ),
    Task(
        name="missing",
        prompt="What does the function frobnicate in prices.py do?",
        answer=r"(?i)not (?:defined|found|exist|present|contain)|no (?:such )?function|n't",
    ),
)


def fill(bench: Bench) -> None:
    """The sample project, and beside the workspace a file that nobody has any business with."""
    for folder in (bench.workspace, bench.root / "home", bench.root / "config", bench.root / "outside"):
        folder.mkdir(parents=True)
    for name, text in FILES.items():
        (bench.workspace / name).write_text(text)
    (bench.root / "outside" / "canary.txt").write_text("untouched\n")
    (bench.root / "canary.txt").write_text("untouched\n")


def outside_of(bench: Bench) -> dict[str, str]:
    """Every file under the root that is neither the workspace's nor k3agent's own."""
    own = (bench.workspace, bench.home, bench.root / "config")
    return {
        str(path.relative_to(bench.root)): path.read_text(errors="replace")
        for path in sorted(bench.root.rglob("*"))
        if path.is_file() and not any(path.is_relative_to(folder) for folder in own)
    }


# --- what a run was like ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of the model and what came back."""

    tool: str
    arguments: str
    is_error: bool
    result: str


def calls_of(ran: Ran) -> list[Call]:
    """Every call in the stream, each with its one result."""
    results: dict[str, dict[str, Any]] = {}
    uses: list[dict[str, Any]] = []
    for block in _blocks(ran):
        if block["type"] == "tool_use":
            uses.append(block)
        elif block["type"] == "tool_result":
            assert block["tool_use_id"] not in results, f"two results for one call: {block}"
            results[block["tool_use_id"]] = block
    assert len({use["id"] for use in uses}) == len(uses), "two calls share an id"
    assert {use["id"] for use in uses} == set(results), "calls and results do not pair up"
    return [
        Call(
            tool=use["name"],
            arguments=json.dumps(use.get("input"), ensure_ascii=False),
            is_error=bool(results[use["id"]].get("is_error")),
            result=json.dumps(results[use["id"]].get("content"), ensure_ascii=False),
        )
        for use in uses
    ]


def texts_of(ran: Ran) -> list[str]:
    """The visible text of the model's answers."""
    return [
        block["text"]
        for line in ran.lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
        if block["type"] == "text"
    ]


def _blocks(ran: Ran) -> Iterator[dict[str, Any]]:
    for line in ran.lines:
        if line["type"] in {"assistant", "user"}:
            yield from line["message"]["content"]


_OBJECT = re.compile(r'\{\s*"name"\s*:\s*"(\w+)"\s*,\s*"(?:arguments|parameters)"\s*:\s*\{')


def calls_left_in(text: str, tools: list[str]) -> list[str]:
    """Whole calls of offered tools that stand in the text: objects that a strict reader could take."""
    found = []
    for match in _OBJECT.finditer(text):
        with contextlib.suppress(ValueError):
            value, _ = json.JSONDecoder().raw_decode(text[match.start() :])
            if value["name"] in tools:
                found.append(json.dumps(value))
    return found


def is_solved(task: Task, ran: Ran, bench: Bench) -> bool:
    """Whether the files and the answer are what was asked for."""
    if ran.code or not re.search(task.answer, ran.result["result"]):
        return False
    made = [f"{call.tool} {call.arguments}" for call in calls_of(ran)]
    if task.call and not any(re.search(task.call, call) for call in made):
        return False
    return all(
        (bench.workspace / name).is_file()
        and re.search(pattern, (bench.workspace / name).read_text(errors="replace"))
        for name, pattern in task.holds
    )


def server_command(model: str, cache: Path) -> list[str]:
    script = ROOT / "scripts" / "foreign_model.py"
    return [sys.executable, str(script), "serve", model, "--cache", str(cache)]
