"""Kill, pause and interrupt a tree of tasks anywhere: resuming goes on with what is not finished."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.agents import DONE, Run, call, options, start, step
from support.fleet import FleetClient, fan_out, item
from support.killing import Killed, Killer, abandon

from k3agent.agent.session import Session
from k3agent.agent.tasks import TaskGraph, TaskState
from k3agent.errors import ProviderError, ProviderErrorKind
from k3agent.events import AnyEvent, TaskChanged, TurnOutcome
from k3agent.store.sessions import SessionStore
from k3agent.types import Role, SessionId

ITEMS = (item("look"), item("make", mode="write", folder="sub"), item("last", after=[1, 2]))
WHO = ("-c", "user.name=t", "-c", "user.email=t@t")
STORIES: dict[str, Any] = {
    "go": fan_out(*ITEMS),
    "look": [step(call("read", path="a.py")), step(text="x is 1.")],
    "make": [step(call("write", path="b.py", content="y\n")), step(text="b.py is there.")],
    "last": [step(text="All is well.")],
}


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Killer:
    killer = Killer()
    killer.install(monkeypatch)
    return killer


def workspace(root: Path) -> Path:
    (root / "ws" / "sub").mkdir(parents=True)
    (root / "ws" / "a.py").write_text("x = 1\n")
    return root / "ws"


def git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def states(root: Path, session_id: SessionId) -> dict[str, str]:
    store = SessionStore(root / "home")
    nodes = TaskGraph(store, session_id).nodes()
    store.close()
    return {node.title: node.state.value for node in nodes}


def children(root: Path, session_id: SessionId) -> list[str]:
    store = SessionStore(root / "home")
    found = [node.child for node in TaskGraph(store, session_id).nodes()]
    store.close()
    return [str(child) for child in found]


async def kill_and_resume(root: Path, killer: Killer, at: int) -> tuple[FleetClient, bool]:
    """Dies at half commit `at`; then a new process goes on to the end."""
    ws = workspace(root)
    client = FleetClient(STORIES)
    session = await die(root, killer, at, client)
    died = session is not None
    if session is not None:
        known = children(root, session.id)
        session = await Session.resume(session.id, options(root, client))
        end = await (session.continue_turn() if session.messages else session.submit("go"))
        assert end is None or end.outcome is TurnOutcome.SUCCESS
        if known:
            # The same sessions went on: none was started anew.
            assert children(root, session.id) == known
        result = session.messages[-2].results[0].text
        assert result.count(": done") == 3 and "All is well." in result
        await session.aclose()
    store = SessionStore(root / "home")
    parent = next(row.id for row in store.list_sessions() if not row.owner)
    assert len(store.list_sessions()) == 4
    store.close()
    assert states(root, parent) == {"look": "done", "make": "done", "last": "done"}
    assert (ws / "sub" / "b.py").read_text() == "y\n"
    return client, died


async def die(root: Path, killer: Killer, at: int, client: FleetClient) -> Session | None:
    """The session of a process that died at half commit `at`, or None: it came to its end before."""
    opened: list[Session] = []
    init = Session.__init__

    def noted(self: Session, *args: Any) -> None:
        init(self, *args)
        opened.append(self)

    killer.arm(None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "__init__", noted)
        session = await Session.create(options(root, client))
        killer.arm(at)
        with contextlib.suppress(Killed):
            await session.submit("go")
    died = killer.is_dead
    for one in reversed(opened):
        await abandon(one)
    killer.arm(None)
    return session if died else None


async def test_a_kill_at_every_commit_of_the_tree(tmp_path: Path, killer: Killer) -> None:
    deaths = 0
    for at in range(200):
        client, died = await kill_and_resume(tmp_path / str(at), killer, at)
        deaths += died
        # A step that was stored is not asked for again.
        assert len(client.asked) <= 7 + (2 if died else 0)
        if not died:
            break
    assert deaths > 40


async def test_a_kill_anywhere_around_a_worktree(tmp_path: Path, killer: Killer) -> None:
    """It is brought back once, whole, whenever the process dies."""
    deaths = 0
    for at in range(0, 200, 3):
        root = tmp_path / str(at)
        ws = workspace(root)
        for words in (("init", "-q"), ("add", "-A"), (*WHO, "commit", "-qm", "first")):
            git(ws, *words)
        (ws / "dirty.py").write_text("dirty\n")
        make = [step(call("write", path="b.py", content="y\n")), step(text="b.py is there.")]
        stories = {"go": fan_out(item("make", mode="write", worktree=True, folder="sub")), "make": make}
        client = FleetClient(stories)
        session = await die(root, killer, at, client)
        died = session is not None
        if session is not None:
            session = await Session.resume(session.id, options(root, client))
            await (session.continue_turn() if session.messages else session.submit("go"))
            assert ": done" in session.messages[-2].results[0].text
            await session.aclose()
        assert (ws / "sub" / "b.py").read_text() == "y\n" and (ws / "dirty.py").exists()
        assert git(ws, "worktree", "list").count("\n") == 1
        deaths += died
        if not died:
            break
    assert deaths > 8


async def test_an_endpoint_that_fails_pauses_the_tree_and_resume_finishes_it(tmp_path: Path) -> None:
    ws = workspace(tmp_path)
    client = FleetClient(STORIES)
    done = asyncio.Event()

    async def fail(name: str, position: int) -> None:
        if name == "make" and position == 1:
            await asyncio.wait_for(done.wait(), 30)
            raise ProviderError("403: no", kind=ProviderErrorKind.AUTH, status=403)
        if name == "look" and position == 1:
            done.set()
            await asyncio.sleep(30)

    client.hook = fail
    run = await start(tmp_path, client=client)
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.PROVIDER and "3 of 3 tasks" in end.detail
    assert isinstance(run.session.error, ProviderError) and run.session.error.kind is ProviderErrorKind.AUTH
    assert set(states(tmp_path, run.session.id).values()) == {"paused"}
    assert client.count("last") == 0 and client.count("go") == 1
    known = children(tmp_path, run.session.id)
    await run.session.aclose()

    client.hook = None
    session = await Session.resume(run.session.id, options(tmp_path, client))
    again = await session.continue_turn(reopen=True)
    assert again is not None and again.outcome is TurnOutcome.SUCCESS
    assert children(tmp_path, session.id) == known
    assert session.messages[-2].results[0].text.count(": done") == 3
    assert (ws / "sub" / "b.py").read_text() == "y\n"
    store = session._store
    assert sum(row.tool == "write" for child in known for row in store.calls(SessionId(child))) == 1
    await session.aclose()


async def test_what_was_done_before_the_pause_is_not_done_again(tmp_path: Path) -> None:
    workspace(tmp_path)
    client = FleetClient(STORIES)

    async def fail(name: str, position: int) -> None:
        if name == "last":
            raise ProviderError("503", kind=ProviderErrorKind.SERVER, status=503)

    client.hook = fail
    run = await start(tmp_path, client=client)
    assert (await run.session.submit("go")).outcome is TurnOutcome.PROVIDER
    assert states(tmp_path, run.session.id) == {"look": "done", "make": "done", "last": "paused"}
    before = (client.count("look"), client.count("make"))
    client.hook = None
    again = await run.session.continue_turn(reopen=True)
    assert again is not None and again.outcome is TurnOutcome.SUCCESS
    assert (client.count("look"), client.count("make")) == before
    await run.session.aclose()


async def test_a_failure_of_one_subagent_alone_pauses_nothing(tmp_path: Path) -> None:
    workspace(tmp_path)
    broken = ProviderError("filtered", kind=ProviderErrorKind.FILTER)
    stories = {"go": fan_out(item("bad"), item("look")), "bad": [[broken]], "look": STORIES["look"]}
    run = await start(tmp_path, client=FleetClient(stories))
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.SUCCESS
    assert states(tmp_path, run.session.id) == {"bad": "failed", "look": "done"}
    await run.session.aclose()


async def test_an_interrupt_ends_the_subagents_in_good_order(tmp_path: Path) -> None:
    workspace(tmp_path)
    client = FleetClient({**STORIES, "go": [STORIES["go"][0], DONE]})
    reached, made = asyncio.Event(), asyncio.Event()

    def seen(event: AnyEvent) -> None:
        if isinstance(event, TaskChanged) and event.state == "done":
            made.set()

    async def hang(name: str, position: int) -> None:
        if name == "look" and position == 1:
            await asyncio.wait_for(made.wait(), 30)
            reached.set()
            await asyncio.sleep(60)

    client.hook = hang
    run = await start(tmp_path, client=client)
    run.session.subscribe(seen)
    task = asyncio.create_task(run.session.submit("go"))
    await asyncio.wait_for(reached.wait(), 30)
    run.session.interrupt("the user pressed Esc")
    end = await asyncio.wait_for(task, 30)
    assert end.outcome is TurnOutcome.INTERRUPTED
    found = states(tmp_path, run.session.id)
    assert found["look"] == TaskState.INTERRUPTED and found["last"] == TaskState.INTERRUPTED
    store = run.session._store
    for child in children(tmp_path, run.session.id):
        last = store.last_turn(SessionId(child)) if store.exists(SessionId(child)) else None
        assert last is None or last.outcome is not None
        store.lock(SessionId(child)).release()
    # Said something else, it goes on: what was done is not lost to the model, it is told how each stands.
    client.stories = {**client.stories, "go": [STORIES["go"][0], DONE]}
    client.hook = None
    assert (await run.session.submit("go on")).outcome is TurnOutcome.SUCCESS
    assert run.results[0].startswith("The subagents were stopped.")
    assert "make: done" in run.results[0] and "b.py is there." in run.results[0]
    assert "look: not done: interrupted, not finished" in run.results[0] and "`continues`" in run.results[0]
    await run.session.aclose()


async def interrupted(root: Path) -> tuple[Run, FleetClient]:
    """`make` is done, `look` was stopped in its second step, `last` has not begun."""
    workspace(root)
    client = FleetClient(STORIES)
    reached, made = asyncio.Event(), asyncio.Event()

    def seen(event: AnyEvent) -> None:
        if isinstance(event, TaskChanged) and event.state == "done":
            made.set()

    async def hang(name: str, position: int) -> None:
        if name == "look" and position == 1:
            await made.wait()
            reached.set()
            await asyncio.sleep(60)

    client.hook = hang
    run = await start(root, client=client)
    run.session.subscribe(seen)
    turn = asyncio.create_task(run.session.submit("go"))
    await asyncio.wait_for(reached.wait(), 30)
    run.session.interrupt("signal SIGTERM")
    assert (await asyncio.wait_for(turn, 30)).outcome is TurnOutcome.INTERRUPTED
    client.hook = None
    return run, client


async def test_a_resume_goes_on_with_interrupted_subagents(tmp_path: Path) -> None:
    run, client = await interrupted(tmp_path)
    known = children(tmp_path, run.session.id)
    assert run.session._transcript.open_calls() is not None
    await run.session.aclose()
    before = client.count("make")
    session = await Session.resume(run.session.id, options(tmp_path, client))
    again = await session.continue_turn(reopen=True)
    assert again is not None and again.outcome is TurnOutcome.SUCCESS
    assert children(tmp_path, session.id) == known and client.count("make") == before
    assert session.messages[-2].results[0].text.count(": done") == 3
    await session.aclose()


async def test_a_later_call_goes_on_with_an_interrupted_subagent(tmp_path: Path) -> None:
    run, client = await interrupted(tmp_path)
    known = children(tmp_path, run.session.id)
    more = item("look", continues=1, max_turns=7)
    follow = fan_out({**more, "brief": "Go on, and look at b.py too."}, item("final", after=[1]))[0]
    wrong = [fan_out(item("x", continues=number))[0] for number in (2, 99)]
    twice = fan_out(item("x", continues=3), item("y", continues=3))[0]
    client.stories = {
        **STORIES,
        "go": [STORIES["go"][0], *wrong, twice, follow, DONE],
        "look": [STORIES["look"][0], step(call("glob", pattern="*")), step(text="Both were looked at.")],
        "final": [step(text="The end.")],
    }
    assert (await run.session.submit("let look go on")).outcome is TurnOutcome.SUCCESS
    assert "task 2 is done" in run.results[1] and "no task 99 to go on with" in run.results[2]
    assert "only once at a time" in run.results[3]
    assert "Both were looked at." in run.results[4] and run.results[4].count(": done") == 2
    nodes = {node.title: node for node in TaskGraph(run.session._store, run.session.id).nodes()}
    look = nodes["look"]
    assert children(tmp_path, run.session.id)[:3] == known and look.child == known[0]
    assert look.state is TaskState.DONE and look.brief.brief == "Do look.\n\nGo on, and look at b.py too."
    # The subagent knows what it did, and was told the new words once; what it uses adds up.
    said = [message.text for message in run.session._store.messages(look.child) if message.role is Role.USER]
    assert said[-1] == "Go on, and look at b.py too." and len(said) == len(set(said))
    assert look.num_turns == 4 and look.budget["turns"] == 9
    assert nodes["final"].after == (1,) and nodes["final"].number == 4
    assert nodes["last"].state is TaskState.INTERRUPTED
    await run.session.aclose()


async def test_a_kill_while_a_continued_task_works_repeats_no_words(tmp_path: Path, killer: Killer) -> None:
    for at in range(2, 60, 4):
        root = tmp_path / str(at)
        killer.arm(None)
        run, client = await interrupted(root)
        await run.session.aclose()
        follow = fan_out({**item("look", continues=1), "brief": "More."})[0]
        client.stories = {**STORIES, "go": [STORIES["go"][0], follow, DONE]}
        client.stories["look"] = [STORIES["look"][0], step(text="Looked again.")]
        session = await Session.resume(run.session.id, options(root, client))
        killer.arm(at)
        with contextlib.suppress(Killed):
            await session.submit("on")
        died = killer.is_dead
        await abandon(session)
        killer.arm(None)
        if died:
            session = await Session.resume(run.session.id, options(root, client))
            ended = await session.continue_turn()
            if ended is None:
                ended = await session.submit("on")
            assert ended.outcome is TurnOutcome.SUCCESS
            await session.aclose()
        store = SessionStore(root / "home")
        look = TaskGraph(store, SessionId(run.session.id)).nodes()[0]
        texts = [message.text for message in store.messages(look.child)]
        store.close()
        assert look.state is TaskState.DONE and texts.count("More.") == 1 and texts[-1] == "Looked again."
        if not died:
            break


async def test_a_new_prompt_instead_of_a_resume_leaves_the_paused_tasks(tmp_path: Path) -> None:
    workspace(tmp_path)
    client = FleetClient(STORIES)

    async def fail(name: str, position: int) -> None:
        if name == "look":
            raise ProviderError("503", kind=ProviderErrorKind.SERVER, status=503)

    client.hook = fail
    run = await start(tmp_path, client=client)
    await run.session.submit("go")
    client.hook = None
    end = await run.session.submit("never mind")
    assert end.outcome is TurnOutcome.SUCCESS
    assert "look: not done: paused, not finished" in run.results[0]
    await run.session.aclose()
