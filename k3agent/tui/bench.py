"""What the UI costs, measured on the real program in a terminal of its own: `python -m k3agent.tui.bench`.

First frame, ready, key to echo at 5,000 messages, CPU while idle and while an answer streams, the CPU that
drawing a long answer takes, memory after a soak, widgets mounted. Figures of one machine mean little by
themselves: run it beside another program, or before and after a change.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from k3agent import __version__
from k3agent.providers.scripted import Step, serving
from k3agent.tui.benchterm import COLUMNS, ROWS, Terminal
from k3agent.types import (
    Finish,
    Message,
    MessageId,
    Origin,
    Part,
    ReasoningPart,
    Role,
    SessionId,
    TextPart,
    ToolCall,
    ToolResult,
    Usage,
)

# the model's name in the status line
READY = b"scripted"
# the last words of answers
SLOW_END, FAST_END, SOAK_END = b"slowly-ended", b"quickly-ended", "soaked-"
PARAGRAPH = (
    "The loader reads `config.toml` first, then the environment. **Later layers win**, so flags beat files. "
    "See `load_settings` for the order and for what happens with unknown keys.\n\n"
)
CODE = """```python
def load(path: str) -> dict[str, int]:
    with open(path) as file:
        return parse(file)
```

"""


def long_session(home: Path, cwd: Path, num_messages: int) -> SessionId:
    """A stored session of so many messages: prompts, reasoning, calls, results, answers."""
    from k3agent.store.records import StoredSession
    from k3agent.store.sessions import SessionStore

    store = SessionStore(home)
    session = SessionId("00000000-0000-4000-8000-000000005000")
    store.create(StoredSession(id=session, cwd=str(cwd), title="A long one", model="scripted", system="s"))
    parent: MessageId | None = None
    usage = Usage(input_tokens=40_000, cached_tokens=39_000, output_tokens=200)
    for number in range(num_messages):
        role, origin, parts = _message(number)
        message = Message(
            id=MessageId(f"m{number:06}"), parent=parent, role=role, origin=origin, parts=parts,
            created_at=datetime.now(UTC), finish=Finish.STOP if role is Role.ASSISTANT else None,
            usage=usage if role is Role.ASSISTANT else None,
        )  # fmt: skip
        store.add_message(session, message)
        parent = message.id
    store.close()
    return session


def _message(number: int) -> tuple[Role, Origin, tuple[Part, ...]]:
    """Turns of four messages."""
    call_id = f"c{number - number % 4}"
    match number % 4:
        case 0:
            return (
                Role.USER,
                Origin.HUMAN,
                (TextPart(text=f"Question {number}: where is it read, and why there?"),),
            )
        case 1:
            call = ToolCall(id=call_id, name="shell", arguments='{"command": "grep -rn load_settings ."}')
            return Role.ASSISTANT, Origin.MODEL, (ReasoningPart(text=PARAGRAPH * 3), call)
        case 2:
            text = "\n".join(f"k3agent/file_{at}.py:{at}: load_settings()" for at in range(40))
            return Role.TOOL, Origin.TOOL, (ToolResult(call_id=call_id, content=(TextPart(text=text),)),)
        case _:
            return (
                Role.ASSISTANT,
                Origin.MODEL,
                (TextPart(text=f"## Answer {number}\n\n{PARAGRAPH * 2}{CODE}"),),
            )


@contextlib.contextmanager
def program(url: str, home: Path, cwd: Path, *words: str) -> Iterator[Terminal]:
    environ = {
        **{name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH", "LANG") if name in os.environ},
        "TERM": "xterm-256color", "COLORTERM": "truecolor", "K3AGENT_HOME": str(home), "OPENAI_BASE_URL": url,
    }  # fmt: skip
    argv = [sys.executable, "-P", "-c", "import sys; from k3agent.cli import main; sys.exit(main())", *words]
    terminal = Terminal(argv, environ, cwd)
    try:
        yield terminal
    finally:
        terminal.end()


def measure_start(url: str, home: Path, cwd: Path, times: int) -> dict[str, float]:
    """Medians; the first start, which fills caches, does not count."""
    frames: list[float] = []
    ready: list[float] = []
    cpu: list[float] = []
    for number in range(times + 1):
        with program(url, home, cwd) as terminal:
            terminal.until(b"hat shall be done")
            frame, frame_cpu = time.monotonic() - terminal.started, terminal.cpu_s
            terminal.until(READY)
            if number:
                frames.append(frame)
                cpu.append(frame_cpu)
                ready.append(time.monotonic() - terminal.started)
    return {"first_frame_s": _median(frames), "first_frame_cpu_s": _median(cpu), "ready_s": _median(ready)}


def measure_long(url: str, home: Path, cwd: Path, session: str, idle_s: float) -> dict[str, float]:
    """On a session of 5,000 messages: key to echo, CPU while nothing happens, memory."""
    with program(url, home, cwd, "--resume", session) as terminal:
        terminal.until(READY)
        terminal.until(b"Answer")
        opened = time.monotonic() - terminal.started
        terminal.drain(2.0)
        echoes: list[float] = []
        for letter in "abcdefghijklmnopqrstuvw":
            since = len(terminal.output)
            terminal.write(letter)
            echoes.append(1000 * terminal.until(letter.encode(), since))
            terminal.drain(0.1)
        before = terminal.cpu_s
        terminal.drain(idle_s)
        idle = 100 * (terminal.cpu_s - before) / idle_s
        memory = terminal.pss_mb
        terminal.write("\x15")
        terminal.drain(0.5)
    return {
        "open_long_s": opened,
        "echo_ms": _median(echoes),
        "echo_max_ms": max(echoes),
        "idle_percent": idle,
        "pss_long_mb": memory,
    }


def measure_stream(url: str, home: Path, cwd: Path) -> dict[str, float]:
    """200 tokens a second for ten seconds, then 24 KB in 2,000 pieces as fast as they come."""
    with program(url, home, cwd) as terminal:
        terminal.until(READY)
        terminal.drain(1.0)
        before, start = terminal.cpu_s, time.monotonic()
        terminal.write("stream\r")
        terminal.until(SLOW_END)
        lasted = time.monotonic() - start
        stream = 100 * (terminal.cpu_s - before) / lasted
        terminal.drain(1.0)
        before, since = terminal.cpu_s, len(terminal.output)
        terminal.write("draw\r")
        terminal.until(FAST_END, since)
        terminal.drain(0.5)
        draw = terminal.cpu_s - before
        memory = terminal.pss_mb
    return {"stream_percent": stream, "draw_cpu_s": draw, "pss_mb": memory}


def measure_soak(url: str, home: Path, cwd: Path, turns: int) -> dict[str, float]:
    """Many turns one after the other: memory after a tenth of them, half, and all. Caches fill at first."""
    with program(url, home, cwd, "--permission-mode", "auto") as terminal:
        terminal.until(READY)
        early = middle = 0.0
        for number in range(turns):
            since = len(terminal.output)
            terminal.write(f"turn {number}\r")
            terminal.until(f"{SOAK_END}{number}.".encode(), since)
            if len(terminal.output) > 1 << 22:
                del terminal.output[: 1 << 21]
            if number == max(turns // 10, 5):
                early = terminal.pss_mb
            elif number == turns // 2:
                middle = terminal.pss_mb
        late = terminal.pss_mb
    return {"soak_turns": turns, "soak_early_mb": early, "soak_middle_mb": middle, "soak_late_mb": late}


def measure_markdown(cwd: Path) -> dict[str, float]:
    """20,000 tokens streamed into our transcript, and into Textual's own widget."""
    found: dict[str, float] = {}
    environ = {"TERM": "xterm-256color", "COLORTERM": "truecolor", **os.environ}
    for kind in ("ours", "textual"):
        terminal = Terminal([sys.executable, "-m", "k3agent.tui.benchstream", kind], environ, cwd)
        try:
            while not terminal.is_over:
                terminal.read(1.0)
        finally:
            terminal.end()
        said = bytes(terminal.output).rpartition(b"figures: ")[2].decode()
        figures = json.JSONDecoder().raw_decode(said)[0]
        found |= {f"{kind}_{name}": value for name, value in figures.items()}
    return found


async def count_widgets(home: Path, cwd: Path, session: str) -> int:
    """Widgets mounted with the long session on the screen."""
    from k3agent.config.settings import Settings
    from k3agent.providers.base import ModelInfo
    from k3agent.providers.scripted import ScriptedClient
    from k3agent.tui.app import K3App
    from k3agent.tui.start import UiOptions

    info = ModelInfo(
        provider="scripted", model="scripted", base_url="", context_window=262_144, max_output_tokens=8_000
    )
    environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    options = UiOptions(cwd=cwd, environ=environ, home=home, flags={}, resume_id=session)
    app = K3App(options, Settings())
    app.make_client = lambda: ScriptedClient([], info=info)
    async with app.run_test(size=(COLUMNS, ROWS)) as pilot:
        while app.chat.driver.session is None or len(app.chat.transcript.blocks) < 1000:
            await pilot.pause(0.1)
        count = len(list(app.screen.walk_children()))
        await app.chat.shut_down()
    return count


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m k3agent.tui.bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--messages", type=int, default=5_000, help="length of the long session")
    parser.add_argument("--turns", type=int, default=200, help="turns of the soak")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds of idling that are measured")
    parser.add_argument("--only", choices=("start", "long", "stream", "soak", "markdown"), help="one part")
    parser.add_argument(
        "--peers",
        nargs="+",
        default=[],
        metavar="COMMAND",
        help="only this: the same figures of these programs",
    )
    parser.add_argument(
        "--peers-home", type=Path, metavar="DIR", help="their HOME (default: an empty folder)"
    )
    args = parser.parse_args()
    if args.peers:
        from k3agent.tui.benchpeers import measure_peer  # lazy: only when asked for

        for command in args.peers:
            _report(measure_peer(command, 5, args.idle, args.peers_home), as_json=args.json, head=command)
        return 0
    answer = (PARAGRAPH + CODE) * 80
    slow = Step(text=answer[: 200 * 4 * 10] + "`\n\nslowly-ended", piece=4, piece_delay_s=1 / 200)
    fast = Step(text=answer[:24_000] + "\n\nquickly-ended", piece=12)
    with tempfile.TemporaryDirectory(prefix="k3agent-bench-") as folder:
        home, cwd = Path(folder) / "home", Path(folder) / "work"
        cwd.mkdir()
        session = long_session(home, cwd, args.messages)
        found: dict[str, float] = {}
        if args.only in (None, "start"):
            with serving([]) as server:
                found |= measure_start(server.url, home, cwd, 5)
        if args.only in (None, "long"):
            with serving([]) as server:
                found |= measure_long(server.url, home, cwd, session, args.idle)
            found["widgets"] = asyncio.run(count_widgets(home, cwd, session))
        if args.only in (None, "stream"):
            with serving([slow, fast]) as server:
                found |= measure_stream(server.url, home, cwd)
        if args.only == "markdown":
            found |= measure_markdown(cwd)
        if args.only in (None, "soak"):
            text = PARAGRAPH * 4 + CODE
            steps = [
                Step(text=f"{text}{SOAK_END}{number}.", reasoning=PARAGRAPH) for number in range(args.turns)
            ]
            with serving(steps) as server:
                found |= measure_soak(server.url, home, cwd, args.turns)
    _report(found, as_json=args.json)
    return 0


def _report(found: dict[str, float], *, as_json: bool, head: str = "") -> None:
    load, python = os.getloadavg()[0], platform.python_version()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, Python {python}"
    about = {"command": head} if head else {"k3agent": __version__, "revision": _revision()}
    about["machine"] = machine
    if as_json:
        print(json.dumps({**about, **found}, indent=1))
        return
    print(" · ".join(about.values()))
    for name, value in found.items():
        print(f"{name:<18} {value:10.3f}")


def _revision() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
