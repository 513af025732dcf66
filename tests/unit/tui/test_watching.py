"""A session that somebody else runs, on the screen: seen, steered, interrupted, and gone on with."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.agents import ReplayClient, Run, call, start, step
from support.screens import running

from k3agent.agent import live, sockets
from k3agent.agent.live import Broadcast
from k3agent.agent.session import Session
from k3agent.agent.watched import WatchedSession
from k3agent.events import CallStarted, TurnOutcome
from k3agent.providers.scripted import Step
from k3agent.types import Finish, Finished, ReasoningDelta, TextDelta, Usage

DONE = Finished(finish=Finish.STOP, usage=Usage(input_tokens=900, output_tokens=20), model="m")


class Slow(ReplayClient):
    """Says half of each answer, then waits for `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        self.requests.append(request)
        yield ReasoningDelta(text="weighing it")
        yield TextDelta(text=f"answer {len(self.requests)} begins")
        await self.go.wait()
        yield TextDelta(text=" and ends")
        yield DONE


class Owner:
    """The process that runs the session, played in this one."""

    def __init__(self, run: Run, broadcast: Broadcast, client: Any, turn: asyncio.Task[Any]) -> None:
        self.run, self.broadcast, self.client, self.turn = run, broadcast, client, turn
        self.session = run.session

    async def until_it_calls(self) -> None:
        called = asyncio.Event()
        self.session.subscribe(lambda event: called.set() if isinstance(event, CallStarted) else None)
        await called.wait()

    async def leave(self) -> None:
        await self.session.aclose()
        await self.broadcast.aclose()


@asynccontextmanager
async def owned(root: Path, client: Any) -> AsyncIterator[Owner]:
    run = await start(root, client=client)
    broadcast = Broadcast(run.session, root / "home")
    assert await broadcast.start()
    turn = asyncio.create_task(run.session.submit("do the long work"))
    owner = Owner(run, broadcast, client, turn)
    try:
        yield owner
    finally:
        await owner.leave()
        with contextlib.suppress(BaseException):
            await turn


async def test_it_is_seen_steered_and_gone_on_with(tmp_path: Path) -> None:
    client = Slow()
    async with owned(tmp_path, client) as owner:
        later = ReplayClient([None, None, Step(text="Here again.")])
        async with running(tmp_path, client=later, resume_id=owner.session.id) as ui:
            await ui.until("Another process runs this session")
            assert "do the long work" in ui.shown and ui.chat.driver.is_busy
            await ui.submit("and mind the tests")
            await ui.until(lambda: owner.session._steering == ["and mind the tests"])
            client.go.set()
            await ui.until("answer 1 begins and ends")
            await ui.until("and mind the tests")
            await ui.until("answer 2 begins and ends")
            await ui.until("done · 2 steps")
            assert (await owner.turn).outcome is TurnOutcome.SUCCESS
            assert ui.shown.count("answer 1 begins") == 1, "told twice"
            await owner.leave()
            await ui.until("the session goes on here")
            assert not ui.chat.driver.is_watching
            await ui.submit("hello")
            await ui.until("Here again.")


async def test_it_is_interrupted(tmp_path: Path) -> None:
    client = Slow()
    async with owned(tmp_path, client) as owner, running(tmp_path, resume_id=owner.session.id) as ui:
        await ui.until("Another process runs this session")
        await ui.submit("/compact")
        await ui.until("another process runs this session: it can be watched")
        await ui.press("escape")
        assert (await owner.turn).outcome is TurnOutcome.INTERRUPTED
        await ui.until("interrupted")
        await ui.submit("next")
        await ui.until("⏎ next: next")


async def test_another_session_is_opened_while_it_is_being_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Slow()
    async with owned(tmp_path, client) as owner:
        session_id, begun = owner.session.id, asyncio.Event()
        async with running(tmp_path, client=ReplayClient(), resume_id=session_id) as ui:
            await ui.until("Another process runs this session")
            driver, resume = ui.chat.driver, Session.resume

            async def slowly(found: str, options: Any) -> Session:
                begun.set()
                await asyncio.sleep(0.3)
                return await resume(found, options)

            monkeypatch.setattr(Session, "resume", slowly)
            await owner.leave()
            await asyncio.wait_for(begun.wait(), 30)
            await driver.switch(None)
            await asyncio.sleep(0.6)
            assert driver.session is not None and driver.session.id != session_id
            # Nobody holds the one that was given up.
            monkeypatch.undo()
            again = await resume(session_id, driver._session_options(driver.client))
            await again.aclose()


async def test_leaving_leaves_it_alone(tmp_path: Path) -> None:
    client = Slow()
    async with owned(tmp_path, client) as owner:
        async with running(tmp_path, resume_id=owner.session.id) as ui:
            await ui.until("Another process runs this session")
        assert "To watch it again" in ui.app.farewell
        client.go.set()
        assert (await owner.turn).outcome is TurnOutcome.SUCCESS


async def test_a_running_call_gets_its_result(tmp_path: Path) -> None:
    answers = [
        step(call("shell", command="while [ ! -e go ]; do sleep 0.05; done; echo out")),
        Step(text="Ok."),
    ]
    async with owned(tmp_path, ReplayClient(answers)) as owner:
        await owner.until_it_calls()
        async with running(tmp_path, resume_id=owner.session.id) as ui:
            await ui.until("Another process runs this session")
            (ui.workspace / "go").touch()
            await ui.until("done")
            assert ui.shown.count("while [ ! -e go ]") == 1
            assert (await owner.turn).outcome is TurnOutcome.SUCCESS


async def test_what_a_watcher_says_is_checked(tmp_path: Path) -> None:
    client = Slow()
    async with owned(tmp_path, client) as owner:
        found = await live.connect(tmp_path / "home", owner.session.id)
        assert found is not None
        reader, writer = found
        hello = json.loads(await reader.readline())
        assert hello["session"] == owner.session.id and hello["is_running"] and hello["pid"] == os.getpid()
        lines = [
            b"no json",
            b"[]",
            b'{"steer": ""}',
            b'{"steer": 3}',
            b'{"answer": "x", "decision": "maybe"}',
        ]
        for line in [*lines, b'{"allow": "nonsense("}']:
            writer.write(line + b"\n")
            said = {}
            while "problem" not in said:
                said = json.loads(await reader.readline())
            assert said["problem"]
        assert not owner.turn.done()
        writer.close()


async def test_only_this_user_can_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await start(tmp_path)
    broadcast = Broadcast(run.session, tmp_path / "home")
    assert await broadcast.start()
    path = sockets.socket_path(tmp_path / "home", run.session.id)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    await broadcast.aclose()
    assert not path.exists()
    for module in (live, sockets):
        monkeypatch.setattr(module, "is_private", lambda folder: False)
    assert not await broadcast.start()
    assert await WatchedSession.open(tmp_path / "home", run.session.id) is None
    await run.session.aclose()


def test_a_folder_that_others_write_is_not_private(tmp_path: Path) -> None:
    for mode, is_private in ((0o700, True), (0o755, True), (0o777, False), (0o720, False)):
        folder = tmp_path / f"{mode:o}"
        folder.mkdir()
        folder.chmod(mode)
        assert sockets.is_private(folder) is is_private
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "700")
    assert not sockets.is_private(link) and not sockets.is_private(tmp_path / "none")


def test_long_paths_have_their_socket_elsewhere(tmp_path: Path) -> None:
    home = tmp_path / ("x" * 90)
    path = sockets.socket_path(home, "a" * 36)
    assert len(os.fsencode(path)) <= sockets.MAX_PATH_BYTES and path != sockets.socket_path(home, "b" * 36)


async def test_who_reads_slowly_does_not_hold_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SLOW_BYTES", 1000)
    monkeypatch.setattr(live, "LOST_BYTES", 200_000)
    long = [TextDelta(text="word " * 20_000) for _ in range(60)]
    client = ReplayClient([[*long, DONE]])
    run = await start(tmp_path, client=client)
    broadcast = Broadcast(run.session, tmp_path / "home")
    assert await broadcast.start()
    found = await live.connect(tmp_path / "home", run.session.id)
    assert found is not None
    found[0]._transport.pause_reading()  # type: ignore[attr-defined]  # a reader that does not read
    await asyncio.sleep(0.05)
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    found[1].close()
    await run.session.aclose()
    await broadcast.aclose()
