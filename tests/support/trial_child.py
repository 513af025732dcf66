"""A process that tries changes of a file, to be killed meanwhile: `trial_child.py ROOT SESSION_ID [FILE]`.
It waits with a change in FILE, `a.py` if none is given.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from k3agent.agent.session import Session
from support.agents import COMPACT, ReplayClient, call, options, step

COMMAND = "grep -q 'a - b' {} && exit 1; echo $$ > begun; sleep 600"


def answers(file: str = "a.py") -> list:
    search = call("try", path="a.py", line=2, command=COMMAND.format(file))
    return [step(search), step(text="Looked.")]


async def main(root: Path, session_id: str, *file: str) -> None:
    client = ReplayClient(answers(*file), info=COMPACT)
    session = await Session.create(options(root, client, sandbox="off"), session_id=session_id)
    await session.submit("Mend add.")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
