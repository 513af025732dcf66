"""What journeys of `k3agent run` share: a task in four steps, its server, what must hold at its end."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

from k3agent.providers.scripted import Fault, ScriptedCall, ScriptedServer, Step, serving
from support.headless import Bench, Ran

READ = ScriptedCall(name="read", arguments={"path": "a.txt"})
EDIT = ScriptedCall(name="edit", arguments={"path": "a.txt", "old": "two", "new": "TWO"})
SHOW = ScriptedCall(name="shell", arguments={"command": "cat a.txt"})
ANSWER = "The second line is TWO now."


def task(*faults: Fault, at: int = 1, **fields: object) -> list[Step]:
    """Read, edit, show, answer; the faults hit the step at `at`, whose fields may be changed."""
    steps = [
        Step(reasoning="look first", calls=(READ,)),
        Step(reasoning="now change it", calls=(EDIT,)),
        Step(calls=(SHOW,)),
        Step(reasoning="that is it", text=ANSWER),
    ]
    values = {name: getattr(steps[at], name) for name in Step.__dataclass_fields__}
    steps[at] = Step(**{**values, "faults": faults, **fields})
    return steps


@contextlib.contextmanager
def served(bench: Bench, steps: list, **options: object) -> Iterator[ScriptedServer]:
    with serving(steps, **options) as server:
        bench.url = server.url
        yield server


def check_done(bench: Bench, ran: Ran) -> dict:
    assert ran.code == 0, f"{ran.out[-1500:]}\n{ran.err[-1500:]}"
    result = ran.result
    assert result["subtype"] == "success"
    assert result["result"] == ANSWER
    assert (bench.workspace / "a.txt").read_text() == "one\nTWO\nthree\n"
    return result


def check_history(server: ScriptedServer) -> None:
    """What a strict endpoint checks of the last request: calls and results match, arguments are objects."""
    waiting: list[str] = []
    for message in server.requests[-1].json["messages"]:
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
            assert message["content"]
            continue
        assert waiting == []
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            waiting.append(call["id"])
    assert waiting == []


def wait_for(condition, limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
