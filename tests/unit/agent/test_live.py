"""The socket over which a session is heard."""

from __future__ import annotations

import asyncio
from pathlib import Path

from support.agents import DONE, call, start, step

from k3agent.agent.live import Broadcast
from k3agent.agent.sockets import is_heard, socket_path
from k3agent.agent.watched import WatchedSession
from k3agent.events import AnyEvent, ApprovalAsked, Decision, TurnOutcome


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


async def test_who_comes_late_sees_the_question_that_is_open_and_may_answer_it(tmp_path: Path) -> None:
    answers = [step(call("shell", command="touch made")), DONE]
    run = await start(tmp_path, answers, permission_mode="default", is_interactive=True)
    broadcast = Broadcast(run.session, tmp_path / "home")
    assert await broadcast.start()
    asked = asyncio.Event()
    run.session.subscribe(lambda event: asked.set() if isinstance(event, ApprovalAsked) else None)
    turn = asyncio.create_task(run.session.submit("make it"))
    await asked.wait()
    watched = await WatchedSession.open(tmp_path / "home", run.session.id)
    assert watched is not None
    heard: asyncio.Queue[AnyEvent] = asyncio.Queue()
    watched.subscribe(heard.put_nowait)
    question = await heard.get()
    while not isinstance(question, ApprovalAsked):
        question = await heard.get()
    assert "touch made" in question.summary
    watched.answer(question.call_id, Decision.ALLOW)
    assert (await turn).outcome is TurnOutcome.SUCCESS
    assert not run.session.standing_events
    # Who comes now is asked nothing.
    second = await WatchedSession.open(tmp_path / "home", run.session.id)
    assert second is not None
    await asyncio.sleep(0.05)
    again: list[AnyEvent] = []
    second.subscribe(again.append)
    assert not any(isinstance(event, ApprovalAsked) for event in again)
    for one in (watched, second):
        await one.aclose()
    await broadcast.aclose()
    await run.session.aclose()
