"""`kill -9` for real, in a command. At random moments: tests/integration/soak."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.agent_child import ANSWERS
from support.agents import ReplayClient, check_request, options, step

from k3agent.agent.resume import UNKNOWN
from k3agent.agent.session import Session
from k3agent.errors import StoreError
from k3agent.events import TurnOutcome
from k3agent.store import database
from k3agent.store.sessions import SessionStore
from k3agent.types import SessionId

CHILD = Path(__file__).resolve().parents[2] / "support" / "agent_child.py"


def spawn(root: Path, session_id: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, str(CHILD), str(root), session_id], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "started\n"
    return child


def workspace(root: Path) -> Path:
    (root / "ws").mkdir(parents=True)
    (root / "ws" / "a.py").write_text("x = 1\n")
    return root / "ws"


async def test_killed_in_a_command_the_conversation_stays_valid(tmp_path: Path) -> None:
    folder = workspace(tmp_path)
    child = spawn(tmp_path, "s-1")
    store = SessionStore(tmp_path / "home")
    deadline = time.monotonic() + 20
    while not any(row.tool == "shell" for row in store.calls(SessionId("s-1"))):
        assert time.monotonic() < deadline
        time.sleep(0.005)  # noqa: ASYNC251 - nothing else runs in this loop
    with pytest.MonkeyPatch.context() as patch:
        # The command is short: what would wait for it would find the session free.
        patch.setattr(database, "LOCK_PATIENCE_S", 0.0)
        with pytest.raises(StoreError, match=f"in use by process {child.pid}"):
            store.lock(SessionId("s-1"))
    child.kill()
    child.wait()
    store.close()
    client = ReplayClient(ANSWERS)
    session = await Session.resume("s-1", options(tmp_path, client))
    end = await session.continue_turn()
    assert end is not None and end.outcome is TurnOutcome.SUCCESS
    results = [result.text for message in session.messages for result in message.results]
    assert any(text.startswith(UNKNOWN) for text in results)
    for request in client.requests:
        check_request(request)
    assert (folder / "a.py").read_text() == "x = 2\n"
    await session.aclose()


async def test_many_turns_cost_the_same_late_as_early(tmp_path: Path) -> None:
    """No step looks at the whole conversation again: 60 turns with 8 KB results."""
    from support.agents import call, start

    (tmp_path / "ws").mkdir()
    for number in range(60):
        lines = "".join(f"{number} {line} {'y' * 70}\n" for line in range(105))
        (tmp_path / "ws" / f"f{number}.txt").write_text(lines)
    answers = [step(call("read", path=f"f{number}.txt")) for number in range(60)]
    run = await start(tmp_path, [*answers, step(text="Done.")])
    marks: list[float] = []
    run.session.subscribe(lambda event: marks.append(time.process_time()))
    end = await run.session.submit("read all")
    assert end.outcome is TurnOutcome.SUCCESS
    third = len(marks) // 3
    early, late = marks[third] - marks[0], marks[-1] - marks[-third]
    assert late < 2.5 * early + 0.05
    await run.session.aclose()
