"""A process that works on one session until it is done or killed: `python agent_child.py ROOT SESSION_ID`.

Prints `started` when the turn begins and `done` at its end. The model's pieces come slowly, so that a kill
finds it in every state: streaming, between commits, in a command.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from k3agent.agent.session import Session
from k3agent.providers.scripted import Step
from support.agents import ReplayClient, call, options, step


def slowly(answer: Step) -> Step:
    return dataclasses.replace(answer, piece=8, piece_delay_s=0.002)


ANSWERS = [
    step(
        call("read", path="a.py"), call("grep", pattern="x"), text="I look at the file first, then change it."
    ),
    step(call("edit", path="a.py", old="x = 1", new="x = 2"), call("write", path="b.py", content="y = 1\n")),
    step(call("shell", command="sleep 0.1; cat a.py b.py")),
    step(call("todo", items=[{"text": "change x", "status": "done"}]), call("glob", pattern="*")),
    step(call("edit", path="b.py", old="y = 1", new="y = 1  # y = 1"), text="One more thing."),
    step(text="x is 2 and b.py is there."),
]


async def main(root: Path, session_id: str) -> None:
    client = ReplayClient([slowly(answer) for answer in ANSWERS])
    chosen = options(root, client)
    try:
        session = await Session.create(chosen, session_id=session_id)
        print("started", flush=True)
        await session.submit("Make x 2.")
    except Exception:
        session = await Session.resume(session_id, chosen)
        print("started", flush=True)
        if await session.continue_turn() is None and not session.messages:
            await session.submit("Make x 2.")
    await session.aclose()
    print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
