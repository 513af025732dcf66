"""Kill the process at any point, resume, and the story ends the same."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.agents import (
    COMPACT,
    DONE,
    FULL,
    ReplayClient,
    call,
    check_prefixes,
    options,
    start,
    step,
    story,
)
from support.killing import Killed, Killer, abandon

from k3agent.agent import emitter, transcript
from k3agent.agent import step as step_module
from k3agent.agent.resume import UNKNOWN, is_settled
from k3agent.agent.session import Limits, Session
from k3agent.events import MessageAdded, TurnEnded, TurnOutcome
from k3agent.providers.base import ModelInfo
from k3agent.store import database, journal, snapshotrows
from k3agent.store.sessions import SessionStore
from k3agent.types import Finish, Finished, Origin, TextDelta, Usage

ANSWERS = [
    step(call("read", path="a.py"), call("glob", pattern="*"), text="Look first."),
    step(call("edit", path="a.py", old="x = 1", new="x = 2"), call("write", path="b.py", content="y\n")),
    step(call("shell", command="cat a.py b.py")),
    step(call("todo", items=[{"text": "t", "status": "done"}]), call("read", path="none.py")),
    step(text="Done: x is 2."),
]


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Killer:
    killer = Killer()
    killer.install(monkeypatch)
    return killer


def workspace_of(root: Path) -> Path:
    (root / "ws").mkdir(parents=True)
    (root / "ws" / "a.py").write_text("x = 1\n")
    return root / "ws"


def files_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


async def play(root: Path, killer: Killer, kills: list[int]) -> tuple[list[Any], dict[str, str], list[Any]]:
    """Run the task, dying at the given commits of each life. Returns story, files, requests."""
    workspace = workspace_of(root)
    client = ReplayClient(ANSWERS)
    killer.arm(None)
    session = await Session.create(options(root, client))
    is_new = True
    for at in [*kills, None]:
        killer.arm(at)
        try:
            end = await (session.submit("Make x 2.") if is_new else session.continue_turn())
        except Killed:
            killer.num_deaths += 1
            is_new = session._store.last_turn(session.id) is None
            await abandon(session)
            killer.arm(None)
            session = await Session.resume(session.id, options(root, client))
            continue
        killer.arm(None)
        if end is not None:
            assert end.outcome is TurnOutcome.SUCCESS
            # Done before the last kill came: then nothing is open any more.
            assert await session.continue_turn() is None
        messages = list(session.messages)
        assert session._store.messages(session.id) == messages
        last = session._store.last_turn(session.id)
        assert last is not None and last.outcome == "success"
        await session.aclose()
        told = [
            tuple(str(item).replace(str(root), "ROOT") for item in entry[:4]) for entry in story(messages)
        ]
        results = [entry[4:] for entry in story(messages)]
        return list(zip(told, results, strict=True)), files_of(workspace), client.requests
    raise AssertionError("it never came to its end")


def same_story(found: list[Any], wanted: list[Any]) -> None:
    """Equal, but for results of calls whose process died during them: those say so."""
    assert len(found) == len(wanted)
    for (told, (calls, results)), (told_then, (calls_then, results_then)) in zip(found, wanted, strict=True):
        assert (told, calls) == (told_then, calls_then)
        for (text, is_error), (whole, was_error) in zip(results, results_then, strict=True):
            if text.startswith(UNKNOWN):
                assert is_error and whole.endswith("[exit code 0]")
            elif is_settled(text):
                assert not is_error and not was_error and "changed. (k3agent was stopped" in text
            else:
                assert (text, is_error) == (whole, was_error)


async def test_without_a_kill(tmp_path: Path, killer: Killer) -> None:
    _, files, requests = await play(tmp_path / "run", killer, [])
    assert files == {"a.py": "x = 2\n", "b.py": "y\n"}
    check_prefixes(requests)


async def test_a_kill_at_every_single_commit(tmp_path: Path, killer: Killer) -> None:
    wanted, files, _ = await play(tmp_path / "whole", killer, [])
    for at in range(60):
        found, found_files, requests = await play(tmp_path / f"kill-{at}", killer, [at])
        same_story(found, wanted)
        assert found_files == files
        check_prefixes(requests)
        if killer.num_deaths <= at:
            break
    assert killer.num_deaths > 20


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=(HealthCheck.function_scoped_fixture, HealthCheck.too_slow),
)
@given(kills=st.lists(st.integers(0, 30), min_size=2, max_size=6))
def test_any_interleaving_of_kill_and_resume_ends_the_same(
    kills: list[int], tmp_path_factory: pytest.TempPathFactory, killer: Killer
) -> None:
    root = tmp_path_factory.mktemp("kills")
    wanted, files, _ = asyncio.run(play(root / "whole", killer, []))
    found, found_files, _ = asyncio.run(play(root / "killed", killer, kills))
    same_story(found, wanted)
    assert found_files == files


# --- what is said in each case ----------------------------------------------------------------------------


async def killed_at(
    root: Path, killer: Killer, answers: list[Any], at: int, info: ModelInfo = FULL
) -> tuple[str, ReplayClient]:
    client = ReplayClient(answers, info=info)
    killer.arm(None)
    session = await Session.create(options(root, client))
    killer.arm(at)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
        # Whether files are saved for undo before the intent does not count here.
        patch.setattr(snapshotrows, "transaction", database.transaction)
        await session.submit("go")
    assert killer.is_dead
    killer.arm(None)
    await abandon(session)
    return session.id, client


AFTER_INTENT = 2 * 2 + 1  # commits: the turn, the answer, the intent
BEFORE_RESULT = 3 * 2


async def test_a_command_with_an_unknown_outcome_is_not_repeated(tmp_path: Path, killer: Killer) -> None:
    answers = [step(call("shell", command="echo x >> log")), step(text="Done.")]
    session_id, client = await killed_at(tmp_path, killer, answers, BEFORE_RESULT)
    session = await Session.resume(session_id, options(tmp_path, client))
    end = await session.continue_turn()
    assert end is not None and end.outcome is TurnOutcome.SUCCESS
    assert files_of(tmp_path / "ws") == {"log": "x\n"}
    (text,) = [result.text for message in session.messages for result in message.results]
    assert text == f"{UNKNOWN}\nNone of its processes is running."
    assert await session.continue_turn() is None
    await session.aclose()


@pytest.mark.parametrize("at", [AFTER_INTENT, BEFORE_RESULT])
async def test_an_edit_is_settled_by_looking_at_the_file(tmp_path: Path, killer: Killer, at: int) -> None:
    workspace = workspace_of(tmp_path)
    answers = [step(call("edit", path="a.py", old="x", new="x x")), step(text="Done.")]
    session_id, client = await killed_at(tmp_path, killer, answers, at)
    session = await Session.resume(session_id, options(tmp_path, client))
    await session.continue_turn()
    # Applied twice there would be three.
    assert files_of(workspace) == {"a.py": "x x = 1\n"}
    result = next(result for message in session.messages for result in message.results)
    assert result.text.startswith("Done: a.py changed." if at == BEFORE_RESULT else "Edited a.py (1")
    await session.aclose()


@pytest.mark.parametrize(
    ("at", "text", "after"),
    [
        (AFTER_INTENT, "(k3agent was stopped during this call. a.py is as it was before it.)", "x = 1 - 2\n"),
        (BEFORE_RESULT, "Done: a.py changed. (k3agent was stopped during this call and found", "x = 1 + 2\n"),
    ],
)
async def test_a_search_is_not_made_again(
    tmp_path: Path, killer: Killer, at: int, text: str, after: str
) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "a.py").write_text("x = 1 - 2\n")
    answers = [step(call("try", path="a.py", line=1, command="grep -q '1 + 2' a.py")), DONE]
    session_id, client = await killed_at(tmp_path, killer, answers, at, COMPACT)
    session = await Session.resume(session_id, options(tmp_path, client))
    await session.continue_turn()
    (result,) = [result for message in session.messages for result in message.results]
    assert result.text.startswith(text) and is_settled(result.text)
    assert result.is_error is (at == AFTER_INTENT)
    assert files_of(tmp_path / "ws") == {"a.py": after}
    await session.aclose()


async def test_what_a_command_had_printed_is_told(tmp_path: Path) -> None:
    """A command that runs when the agent dies: its output, its processes and the repository are looked at."""
    (tmp_path / "ws" / ".git" / "logs").mkdir(parents=True)
    (tmp_path / "ws" / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "ws" / "make.sh").write_text("echo half; touch .git/index.lock; sleep 300")
    client = ReplayClient([step(call("shell", command="sh make.sh")), step(text="Looked.")])
    session = await Session.create(options(tmp_path, client, sandbox="off", permission_mode="auto"))
    task = asyncio.create_task(session.submit("go"))
    lock = tmp_path / "ws" / ".git" / "index.lock"
    async with asyncio.timeout(60):
        while not lock.exists():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.02)
    # What the kernel does for a dead process; its commands live on.
    records = session._jobs._log._path
    saved = records.read_text()
    session._store.close()
    session._lock.release()
    records.write_text(saved.replace(f'"pid": {os.getpid()}', '"pid": 999999999'))
    again = await Session.resume(session.id, options(tmp_path, client, sandbox="off"))
    end = await again.continue_turn()
    assert end is not None and end.outcome is TurnOutcome.SUCCESS
    (text,) = [result.text for message in again.messages for result in message.results]
    assert text.startswith(UNKNOWN) and "still running, and have been ended" in text
    assert "HEAD of the repository has not moved." in text and "half" in text
    assert "left the lock index.lock of git: removed" in text and not lock.exists()
    await again.aclose()
    task.cancel()
    with contextlib.suppress(BaseException):
        await task


async def test_a_patch_that_was_cut_in_two_is_told_in_part(tmp_path: Path, killer: Killer) -> None:
    patch = "--- a/one\n+++ b/one\n@@ -1,1 +1,1 @@\n-1\n+2\n--- a/two\n+++ b/two\n@@ -1,1 +1,1 @@\n-1\n+2\n"
    answers = [step(call("patch", patch=patch)), step(text="Done.")]
    (tmp_path / "ws").mkdir()
    for name in ("one", "two"):
        (tmp_path / "ws" / name).write_text("1\n")
    session_id, client = await killed_at(tmp_path, killer, answers, AFTER_INTENT)
    (tmp_path / "ws" / "one").write_text("2\n")
    (tmp_path / "ws" / f".k3agent-{2**22 + 1}-abcd.tmp").write_text("2\n")
    session = await Session.resume(session_id, options(tmp_path, client))
    await session.continue_turn()
    (result,) = [result for message in session.messages for result in message.results]
    assert result.text.startswith("Done in part: one changed, two did not.") and result.is_error
    assert files_of(tmp_path / "ws") == {"one": "2\n", "two": "1\n"}
    await session.aclose()


async def test_a_new_prompt_closes_what_was_open_without_running_it(tmp_path: Path, killer: Killer) -> None:
    answers = [
        step(call("write", path="a", content="1\n"), call("write", path="b", content="2\n")),
        step(text="Stopped."),
    ]
    session_id, client = await killed_at(tmp_path, killer, answers, AFTER_INTENT)
    session = await Session.resume(session_id, options(tmp_path, client))
    end = await session.submit("never mind")
    assert end.outcome is TurnOutcome.SUCCESS
    assert files_of(tmp_path / "ws") == {}
    texts = [result.text for message in session.messages for result in message.results]
    assert len(texts) == 2 and all(text.startswith("Not run: k3agent was stopped") for text in texts)
    check_prefixes(client.requests)
    await session.aclose()


async def test_an_unfinished_answer_is_left_out_and_said(tmp_path: Path) -> None:
    client = ReplayClient([step(text="Done.")])
    session = await Session.create(options(tmp_path, client))
    store = session._store
    opening = session._transcript.user("go")
    store.start_turn(session.id, [opening])
    store.save_draft(session.id, '{"text": "half an ans"}')
    await abandon(session)
    again = await Session.resume(session.id, options(tmp_path, client))
    assert again.draft == '{"text": "half an ans"}'
    events: list[Any] = []
    again.subscribe(events.append)
    end = await again.continue_turn()
    assert end is not None and end.outcome is TurnOutcome.SUCCESS
    assert again.draft is None and "half an ans" not in "".join(m.text for m in again.messages)
    assert any("left out" in getattr(event, "text", "") for event in events)
    await again.aclose()


async def test_the_draft_is_written_about_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from k3agent.agent import step as step_module

    monkeypatch.setattr(step_module, "DRAFT_EVERY_S", 0.0)
    monkeypatch.setattr(step_module, "DRAFT_REST", 0)
    drafts: list[str] = []
    deltas = [
        TextDelta(text="one "),
        TextDelta(text="two"),
        Finished(finish=Finish.STOP, usage=Usage(), model="m"),
    ]
    client = ReplayClient([deltas])
    session = await Session.create(options(tmp_path, client))
    save = session._store.save_draft
    monkeypatch.setattr(
        session._store, "save_draft", lambda key, text: (drafts.append(text), save(key, text))
    )
    await session.submit("go")
    assert '"text":"one "' in drafts[0] and '"text":"one two"' in drafts[1]
    assert session.draft is None
    await session.aclose()


async def test_nothing_open_means_nothing_to_continue(tmp_path: Path) -> None:
    client = ReplayClient([step(text="Done.")])
    session = await Session.create(options(tmp_path, client))
    assert await session.continue_turn() is None
    await session.submit("go")
    assert await session.continue_turn() is None
    await session.aclose()


async def test_a_continued_turn_says_what_it_is_about(tmp_path: Path, killer: Killer) -> None:
    answers = [step(call("glob", pattern="*")), step(text="Done.")]
    session_id, client = await killed_at(tmp_path, killer, answers, 3)
    session = await Session.resume(session_id, options(tmp_path, client))
    events: list[Any] = []
    session.subscribe(events.append)
    await session.continue_turn()
    assert type(events[0]).__name__ == "TurnStarted" and events[0].prompt == "go"
    assert isinstance(events[-1], TurnEnded)
    added = [event.message.origin for event in events if isinstance(event, MessageAdded)]
    assert added == [Origin.TOOL, Origin.MODEL]
    await session.aclose()


async def test_circles_are_remembered_over_a_resume(tmp_path: Path, killer: Killer) -> None:
    answers = [step(call("glob", pattern="*.zip"))] * 12
    # Reads have no intent of their own: two commits a step.
    session_id, client = await killed_at(tmp_path, killer, answers, 2 * (1 + 2 * 5))
    session = await Session.resume(session_id, options(tmp_path, client))
    end = await session.continue_turn()
    assert end is not None and end.outcome is TurnOutcome.EXECUTION and "8 times" in end.detail
    # Eight of the circle, and the call of the last answer, which is not run.
    assert sum(len(message.results) for message in session.messages) == 9
    await session.aclose()


async def test_going_on_in_another_folder_is_said(tmp_path: Path) -> None:
    client = ReplayClient([step(text="Done.")])
    session = await Session.create(options(tmp_path, client))
    await session.aclose()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved = dataclasses.replace(options(tmp_path, client), cwd=elsewhere)
    session = await Session.resume(session.id, moved)
    events: list[Any] = []
    session.subscribe(events.append)
    assert str(tmp_path / "ws") in events[0].text and str(elsewhere) in events[0].text
    await session.aclose()
    forked = await Session.fork(session.id, moved)
    events = []
    forked.subscribe(events.append)
    assert not events
    await forked.aclose()
    link = tmp_path / "link"
    link.symlink_to(elsewhere)
    store = SessionStore(tmp_path / "home")
    assert [row.id for row in store.list_sessions(link)] == [forked.id]
    store.close()


async def closed(root: Path, answers: list[Any], limits: Limits) -> tuple[Session, TurnOutcome]:
    """Killed after the closing answer was stored, and before the end of its turn was."""
    (root / "ws").mkdir()
    session = await Session.create(options(root, ReplayClient(answers), limits=limits))
    end = await session.submit("go")
    session._store.reopen_turn(session.id, 1)
    await session.aclose()
    later = ReplayClient([step(text="Whole.")] * 40)
    again = await Session.resume(session.id, options(root, later))
    went_on = await again.continue_turn()
    assert went_on is not None and went_on.outcome is TurnOutcome.SUCCESS
    await again.aclose()
    return again, end.outcome


async def test_a_report_of_what_is_left_is_no_good_end_after_a_kill(tmp_path: Path) -> None:
    look, half = step(call("glob", pattern="*")), step(text="UNFINISHED: half of it.")
    again, outcome = await closed(tmp_path, [look, half], Limits(max_turns=2))
    assert outcome is TurnOutcome.MAX_TURNS
    assert [message.text for message in again.messages][-3::2] == ["UNFINISHED: half of it.", "Whole."]


async def test_a_turn_stopped_in_circles_is_no_good_end_after_a_kill(tmp_path: Path) -> None:
    looks = [step(call("glob", pattern="*"))] * 8
    again, outcome = await closed(tmp_path, [*looks, step(text="I tried.")], Limits())
    assert outcome is TurnOutcome.EXECUTION
    assert [message.text for message in again.messages][-3::2] == ["I tried.", "Whole."]


@pytest.mark.parametrize("days", [-400, 400], ids=["back", "ahead"])
async def test_a_clock_that_jumps_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """A machine that slept, or whose clock is set anew in a turn: order, limits and resume hold."""
    jump = [0.0]
    time_ns, time_s = time.time_ns, time.time
    monkeypatch.setattr(time, "time_ns", lambda: time_ns() + int(jump[0] * 1e9))
    monkeypatch.setattr(time, "time", lambda: time_s() + jump[0])

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return datetime.now(tz) + timedelta(seconds=jump[0])

    for module in (transcript, journal, emitter, step_module):
        monkeypatch.setattr(module, "datetime", Clock)

    def leap(request: Any) -> Any:
        jump[0] += days * 86_400
        return step(call("write", path="b.txt", content="b"))

    write, read = step(call("write", path="a.txt", content="a")), step(call("read", path="a.txt"))
    answers = [write, leap, read, DONE, DONE]
    run = await start(tmp_path, answers, limits=Limits(max_time_s=3600))
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    check_prefixes(run.client.requests)
    messages = list(run.session.messages)
    assert abs((messages[-1].created_at - messages[0].created_at).days) >= 399
    await run.session.aclose()
    session = await Session.resume(run.session.id, options(tmp_path, run.client))
    assert list(session.messages) == messages, "the order is that in which they were said"
    assert (await session.submit("and now")).outcome is TurnOutcome.SUCCESS
    check_prefixes(run.client.requests)
    await session.aclose()
