"""The socket over which a session is heard."""

from __future__ import annotations

from pathlib import Path

from support.agents import DONE, start

from k3agent.agent.live import Broadcast
from k3agent.agent.sockets import is_heard, socket_path


async def test_who_lets_go_late_leaves_the_socket_of_the_next_process(tmp_path: Path) -> None:
    run = await start(tmp_path, [DONE])
    home = tmp_path / "home"
    old, new = Broadcast(run.session, home), Broadcast(run.session, home)
    assert await old.start() and await new.start()
    await old.aclose()
    assert is_heard(home, run.session.id)
    await new.aclose()
    assert not is_heard(home, run.session.id) and not socket_path(home, run.session.id).exists()
    await run.session.aclose()
