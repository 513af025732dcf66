"""Compaction: when it comes, what it keeps, and what happens when it does not help."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.agents import (
    COMPACT,
    DONE,
    FULL,
    HEAD,
    ReplayClient,
    Run,
    call,
    check_prefixes,
    encoded,
    options,
    start,
    step,
)

from k3agent.agent import digest
from k3agent.agent.ahead import Ahead
from k3agent.agent.options import CompactAt
from k3agent.agent.policies import CompactionPolicy
from k3agent.agent.session import Session
from k3agent.agent.tasks import PlanStep, save_steps
from k3agent.errors import ProviderError, ProviderErrorKind, StoreError
from k3agent.events import CheckEnded, Compacted, TurnOutcome
from k3agent.export import export_session
from k3agent.headless.formats import End, StreamJsonFormat
from k3agent.prompts.loader import load
from k3agent.providers.base import ModelInfo, Prices
from k3agent.providers.scripted import Step
from k3agent.store.sessions import SessionStore
from k3agent.types import Message, MessageId, Origin, ReasoningPart, Request, Role, SessionId, TextPart

ASK = load("compaction/ask")
SUMMARY = "SUMMARY: a.txt holds the letters; go on with b.txt."
SMALL = dataclasses.replace(FULL, context_window=40_000)
# Enough text that a few reads fill the window.
LINES = "".join(f"line {number:04d} of a file that takes room\n" for number in range(2000))


class Worker:
    """Reads a file again and again, `count` times in all, then is done. Writes `summary` when it is asked."""

    def __init__(self, count: int, summary: Any = SUMMARY, calls_per_step: int = 1) -> None:
        self.count, self.summary, self.calls_per_step = count, summary, calls_per_step
        self.num_steps = 0

    def __call__(self, request: Request) -> Any:
        if request.messages[-1].text == ASK:
            return self.summary if not isinstance(self.summary, str) else step(text=self.summary)
        self.num_steps += 1
        if self.num_steps > self.count:
            return DONE
        calls = [
            call("read", path="a.txt", offset=self.num_steps * self.calls_per_step + index, limit=180)
            for index in range(self.calls_per_step)
        ]
        return step(*calls, reasoning=f"  Thought {self.num_steps}:\n\tbyte for byte \u2028 ")


class WorkerClient(ReplayClient):
    def __init__(self, worker: Any, info: ModelInfo) -> None:
        super().__init__([worker] * 1000, info=info)


async def begin(root: Path, worker: Any, info: ModelInfo = SMALL, **more: Any) -> Run:
    run = await start(root, client=WorkerClient(worker, info), **more)
    (run.workspace / "a.txt").write_text(LINES)
    return run


def asks(run: Run) -> list[Request]:
    return [request for request in run.client.requests if request.messages[-1].text == ASK]


def check_requests(run: Run) -> None:
    """Requests only grow between compactions; system and tools never change; reasoning is whole."""
    block: list[Request] = []
    said = {message.id: message for message in run.session.messages}
    for request in run.client.requests:
        assert (request.system, request.tools) == (
            run.client.requests[0].system,
            run.client.requests[0].tools,
        )
        for message in request.messages:
            if message.role is Role.ASSISTANT:
                assert message == said[message.id] and isinstance(message.parts[0], ReasoningPart)
        if request.messages[-1].text == ASK:
            continue
        if block and request.messages[0] != block[-1].messages[0]:
            check_prefixes(block)
            block = []
        block.append(request)
    check_prefixes(block)


async def test_it_comes_in_the_middle_of_a_turn(tmp_path: Path) -> None:
    run = await begin(tmp_path, Worker(30))
    save_steps(run.session._store, run.session.id, [PlanStep(text="read b.txt", status="active")])
    run.session.compactor.pin("the port is 8099")
    end = await run.session.submit("Read all of it, and mind the LETTERS.")
    assert end.outcome is TurnOutcome.SUCCESS, end.detail
    events = run.of(Compacted)
    assert len(events) >= 2 and len(asks(run)) == len(events)
    assert all(item.method == "model" and item.tokens_after < item.tokens_before / 2 for item in events)
    check_requests(run)
    # The request for a summary is the live one and one message more, so that its prefix is cached.
    first = run.client.requests.index(asks(run)[0])
    assert encoded(asks(run)[0]).startswith(encoded(run.client.requests[first - 1]))
    head = run.client.requests[first + 1].messages[0]
    assert head.origin is Origin.HARNESS and head.role is Role.USER and head.text.startswith(HEAD)
    for text in (SUMMARY, "mind the LETTERS.", "- [>] read b.txt", "the port is 8099", "permission mode"):
        assert text in head.text
    kept = [message for message in run.client.requests[first + 1].messages if message.role is Role.ASSISTANT]
    assert kept and len(kept) < 10
    # Nothing is deleted: the transcript is whole, and the rows tell what was done.
    assert run.session._store.messages(run.session.id) == list(run.session.messages)
    assert sum(message.role is Role.ASSISTANT for message in run.session.messages) == 31
    rows = run.session._store.compactions(run.session.id)
    assert [row.tokens_after for row in rows] == [item.tokens_after for item in events]
    assert [item["trigger"] for item in run.session.receipt.compactions] == ["threshold"] * len(rows)
    requests = run.session._store.requests(run.session.id)
    assert [request.outcome for request in requests].count("compaction") == len(rows)
    await run.session.aclose()


async def test_it_comes_between_turns_and_the_new_prompt_stays_whole(tmp_path: Path) -> None:
    run = await begin(tmp_path, Worker(12))
    await run.session.submit("first ask")
    assert not run.of(Compacted)
    words = "second ask " * 3_000
    end = await run.session.submit(words)
    assert end.outcome is TurnOutcome.SUCCESS and len(run.of(Compacted)) == 1
    last = run.client.requests[-1].messages
    assert last[0].text.startswith(HEAD) and "first ask" in last[0].text
    assert [message.text for message in last if message.origin is Origin.HUMAN] == [words]
    await run.session.aclose()


async def test_an_absolute_number_of_tokens(tmp_path: Path) -> None:
    run = await begin(tmp_path, Worker(12), FULL, compact_at=CompactAt(tokens=20_000))
    await run.session.submit("go")
    assert run.of(Compacted) and all(20_000 <= item.tokens_before < 30_000 for item in run.of(Compacted))
    check_requests(run)
    await run.session.aclose()


async def test_it_can_be_switched_off(tmp_path: Path) -> None:
    run = await begin(tmp_path, Worker(40), compact_at=CompactAt(share=0))
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.CONTEXT and not run.of(Compacted) and not asks(run)
    await run.session.aclose()


@pytest.mark.parametrize("calls_per_step", [2, 3])
async def test_a_batch_of_calls_stays_with_its_results(tmp_path: Path, calls_per_step: int) -> None:
    # The client checks each request as a strict server would.
    run = await begin(tmp_path, Worker(12, calls_per_step=calls_per_step))
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.SUCCESS and run.of(Compacted), end
    check_requests(run)
    await run.session.aclose()


FAILURES: list[Any] = [
    [ProviderError("the stream broke", kind=ProviderErrorKind.CONNECTION)],
    [ProviderError("too long", kind=ProviderErrorKind.OVERFLOW)],
    Step(text="", reasoning="only thoughts"),
    step(call("read", path="a.txt")),
]


@pytest.mark.parametrize("failure", FAILURES, ids=["connection", "overflow", "blank", "calls"])
async def test_without_a_summary_of_the_model_one_is_made_from_the_records(
    tmp_path: Path, failure: Any
) -> None:
    run = await begin(tmp_path, Worker(30, failure))
    end = await run.session.submit("Mind the LETTERS.")
    assert end.outcome is TurnOutcome.SUCCESS, end.detail
    assert len(run.of(Compacted)) >= 2
    assert all(item.method.startswith("mechanical: ") for item in run.of(Compacted))
    head = run.client.requests[-1].messages[0].text
    assert '- read {"path": "a.txt"' in head and ": ok" in head and "Mind the LETTERS." in head
    assert "line 0001" not in head
    check_requests(run)
    await run.session.aclose()


async def test_the_small_model_is_not_asked(tmp_path: Path) -> None:
    run = await begin(tmp_path, Worker(12), dataclasses.replace(COMPACT, context_window=24_000))
    end = await run.session.submit("go")
    assert run.of(Compacted) and not asks(run), end
    assert run.of(Compacted)[0].method == "mechanical: small model"
    await run.session.aclose()


async def test_a_history_of_three_times_the_window(tmp_path: Path) -> None:
    run = await begin(tmp_path, Worker(30), FULL)
    await run.session.submit("the first ask")
    tokens = run.session._context.num_tokens(run.session.messages)
    await run.session.aclose()
    small = dataclasses.replace(FULL, context_window=tokens // 3)
    client = WorkerClient(Worker(2), small)
    session = await Session.resume(run.session.id, options(tmp_path, client))
    again = Run(session, client, run.workspace)
    end = await session.submit("go on")
    assert end.outcome is TurnOutcome.SUCCESS, end.detail
    assert again.of(Compacted)[0].method == "model" and len(asks(again)) >= 1
    for request in client.requests:
        assert session._context.guess_tokens(request.messages) < small.context_window
    # What did not fit into the request for the summary was told from the records.
    assert "What was done, from k3agent's records" in asks(again)[0].messages[0].text
    assert "the first ask" in client.requests[-1].messages[0].text
    await session.aclose()


class Refusing(Worker):
    """An endpoint whose window is smaller than it said."""

    def __init__(self, count: int, real: int, text: str) -> None:
        super().__init__(count)
        self.real, self.text = real, text
        self.num_refused = 0

    def __call__(self, request: Request) -> Any:
        size = sum(len(part.text) for message in request.messages for part in message.results) // 3
        if size > self.real:
            self.num_refused += 1
            return [ProviderError(self.text, kind=ProviderErrorKind.OVERFLOW)]
        return super().__call__(request)


@pytest.mark.parametrize(
    "text", ["Input token length too long", "This model's maximum context length is 30000 tokens."]
)
async def test_a_window_that_was_reported_wrongly(tmp_path: Path, text: str) -> None:
    worker = Refusing(14, 22_000, text)
    run = await begin(tmp_path, worker, FULL)
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.SUCCESS, end.detail
    assert run.of(Compacted)[0].trigger == "overflow"
    assert worker.num_refused <= 2 and run.session._context.window < 40_000
    await run.session.aclose()


async def test_an_endpoint_that_refuses_everything_is_asked_twice(tmp_path: Path) -> None:
    worker = Refusing(14, 8_000, "Input token length too long")
    run = await begin(tmp_path, worker, FULL)
    worker.real = 8_000
    await run.session.submit("go")
    worker.real = -1
    before = worker.num_refused
    end = await run.session.submit("go on")
    assert end.outcome is TurnOutcome.CONTEXT and worker.num_refused - before <= 3
    await run.session.aclose()


def test_the_earliest_threshold_counts() -> None:
    prices = Prices(input=3.0, cached_input=0.30, output=15.0)
    at = CompactAt(share=0.85, tokens=300_000, step_usd=0.03)
    assert CompactionPolicy(at, prices).limit(1_000_000) == 100_000
    assert CompactionPolicy(at, prices).limit(100_000) == 85_000
    assert CompactionPolicy(at).limit(1_000_000) == 300_000, "no price is known"
    full_price = Prices(input=1.0)
    assert CompactionPolicy(CompactAt(step_usd=0.05), full_price).limit(1_000_000) == 50_000
    assert CompactionPolicy(CompactAt(step_usd=0.0001), prices).limit(1_000_000) == 8_000, "room to work"


async def test_money_makes_the_context_short(tmp_path: Path) -> None:
    dear = dataclasses.replace(FULL, prices=Prices(input=30.0, cached_input=1.0, output=1.0))
    run = await begin(tmp_path, Worker(14), dear, compact_at=CompactAt(step_usd=0.02))
    assert run.session.compactor.limit == 20_000
    end = await run.session.submit("Read all of it.")
    assert end.outcome is TurnOutcome.SUCCESS, end.detail
    assert run.of(Compacted) and all(item.tokens_after < 20_000 for item in run.of(Compacted))
    check_requests(run)
    await run.session.aclose()


async def test_thrash_ends_the_run(tmp_path: Path) -> None:
    steps = 0

    def worker(request: Request) -> Any:
        nonlocal steps
        if request.messages[-1].text == ASK:
            return step(text=SUMMARY)
        steps += 1
        return Step(
            calls=(call("read", path="a.txt", offset=steps, limit=3),),
            reasoning="so " * 13_000,
            piece=2_000,
        )

    run = await begin(tmp_path, worker, compact_at=CompactAt(tokens=32_000))
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.THRASH and "window" in end.detail, end
    assert len(run.of(Compacted)) == 2 and steps < 10
    assert all(message.results for message in run.session.messages[-1:])
    await run.session.aclose()


async def test_a_prompt_that_fills_the_window_is_no_thrash(tmp_path: Path) -> None:
    run = await begin(tmp_path, Worker(3))
    await run.session.submit("go")
    end = await run.session.submit("word " * 40_000)
    assert end.outcome is TurnOutcome.CONTEXT and not run.of(Compacted)
    await run.session.aclose()


async def test_undo_gives_the_whole_conversation_back(tmp_path: Path) -> None:
    run = await begin(tmp_path, Worker(5), compact_at=CompactAt(share=1.0))
    await run.session.submit("go")
    run.session.compactor.is_wanted = True
    await run.session.submit("more")
    assert [item.trigger for item in run.of(Compacted)] == ["manual"]
    shown = export_session(
        run.session._store.list_sessions()[0],
        list(run.session.messages),
        "md",
        run.session._store.compactions(run.session.id),
    )
    assert "## Context compacted" in shown and SUMMARY in shown
    assert run.session.compactor.undo() and not run.session.compactor.undo()
    await run.session.submit("and now")
    assert list(run.client.requests[-1].messages) == list(run.session.messages[:-1])
    rows = run.session._store.compactions(run.session.id)
    assert [row.is_undone for row in rows] == [True]
    await run.session.aclose()


async def test_a_rewind_to_before_it_goes_back_to_the_messages(tmp_path: Path) -> None:
    run = await begin(tmp_path, Worker(5), compact_at=CompactAt(share=1.0))
    await run.session.submit("go")
    run.session.compactor.is_wanted = True
    await run.session.submit("more")
    prompt = next(message for message in run.session.messages if message.text == "more")
    run.session.rewind(prompt.id)
    await run.session.submit("another way")
    assert list(run.client.requests[-1].messages) == list(run.session.messages[:-1])
    await run.session.aclose()


async def test_resume_and_fork_go_on_with_the_same_bytes(tmp_path: Path) -> None:
    run = await begin(tmp_path, Worker(20))
    await run.session.submit("go")
    assert run.of(Compacted)
    last = encoded(run.client.requests[-1])
    await run.session.aclose()
    for open_it in (Session.fork, Session.resume):
        client = WorkerClient(Worker(0), SMALL)
        session = await open_it(run.session.id, options(tmp_path, client))
        await session.submit("go on")
        assert encoded(client.requests[0]).startswith(last)
        await session.aclose()


def killed_while_summarising(tmp_path: Path) -> str:
    """Play a session in a process that dies in the summary's model call; gives the session's id."""
    code = (
        "import asyncio, os, signal, sys; from pathlib import Path\n"
        "from unit_compaction import Worker, begin\n"
        "def die(request): os.kill(os.getpid(), signal.SIGKILL)\n"
        "class Killer(Worker):\n"
        "    def __call__(self, request):\n"
        "        if request.messages[-1].text.startswith('The conversation above'): die(request)\n"
        "        return super().__call__(request)\n"
        "async def main():\n"
        "    run = await begin(Path(sys.argv[1]), Killer(20))\n"
        "    print(run.session.id, flush=True)\n"
        "    await run.session.submit('go')\n"
        "asyncio.run(main())\n"
    )
    (tmp_path / "unit_compaction.py").write_text(Path(__file__).read_text())
    tests = Path(__file__).resolve().parents[2]
    paths = [str(tmp_path), str(tests), *sys.path]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environ, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.strip()


async def test_a_kill_during_compaction_loses_nothing(tmp_path: Path) -> None:
    session_id = await asyncio.to_thread(killed_while_summarising, tmp_path)
    client = WorkerClient(Worker(2), SMALL)
    session = await Session.resume(session_id, options(tmp_path, client))
    again = Run(session, client, tmp_path / "ws")
    assert session.has_open_turn and not session._store.compactions(session.id)
    end = await session.continue_turn()
    assert end is not None and end.outcome is TurnOutcome.SUCCESS
    assert len(again.of(Compacted)) == 1 and client.requests[0].messages[-1].text == ASK
    calls = [item.id for message in session.messages for item in message.calls]
    results = [result.call_id for message in session.messages for result in message.results]
    assert calls == results
    check_requests(again)
    await session.aclose()


async def test_it_is_told_in_the_json(tmp_path: Path) -> None:
    run = await begin(tmp_path, Worker(20))
    out: list[str] = []
    form = StreamJsonFormat(out.append, is_partial=False)
    run.session.subscribe(form.event)
    end = await run.session.submit("go")
    assert any('"subtype":"compact_boundary"' in line and '"dropped":' in line for line in out)
    form.ended(End(outcome=end.outcome, exit_code=0, receipt=run.session.receipt))
    assert '"compactions":[{"trigger":"threshold"' in out[-1]
    assert SUMMARY not in "".join(out)
    await run.session.aclose()


async def test_many_compactions(tmp_path: Path) -> None:
    info = dataclasses.replace(FULL, context_window=30_000)
    run = await begin(tmp_path, Worker(160), info)
    run.session.compactor.pin("never touch main.c")
    end = await run.session.submit("The ask: LETTERS.")
    assert end.outcome is TurnOutcome.SUCCESS, end.detail
    rows = run.session._store.compactions(SessionId(run.session.id))
    assert len(rows) >= 12
    assert all("never touch main.c" in row.message.text and "LETTERS." in row.message.text for row in rows)
    sizes = [len(row.message.text) for row in rows]
    assert max(sizes[5:]) < 2 * max(sizes[:5])
    check_requests(run)
    await run.session.aclose()


async def test_what_is_left_out_is_read_from_the_store_and_not_kept_in_memory(tmp_path: Path) -> None:
    run = await begin(tmp_path, Worker(80), dataclasses.replace(FULL, context_window=30_000))
    first = run.session
    await first.submit("The ask.")
    assert len(run.of(Compacted)) >= 5
    whole = first._store.messages(first.id)
    inside = first._transcript
    assert len(inside.messages) < 40 < inside.num_before
    assert inside.num_before + len(inside.messages) == len(whole) == len(first.messages)
    assert list(first.messages) == whole and list(reversed(first.messages)) == whole[::-1]
    assert (first.messages[0], first.messages[-1]) == (whole[0], whole[-1])
    assert first.messages[-3:] == whole[-3:] and first.messages == whole
    assert len(first._context.compactions) <= 3
    # Call ids are told apart from those that are in the store alone.
    old = next(message for message in whole if message.calls).calls[0].id
    assert inside.has_call(old) and not inside.has_call(f"{old}x")
    # To before everything: nothing of it is missing.
    prompt = next(message for message in whole if message.origin is Origin.HUMAN)
    await first.submit("And more.")
    again = next(message for message in first.messages if message.text == "And more.")
    assert first.rewind(again.id) == "And more." and list(first.messages) == whole
    assert first.rewind(prompt.id) == "The ask." and not any(message.calls for message in first.messages)
    await first.submit("Another ask.")
    assert run.client.requests[-1].messages[-1].text == "Another ask."
    await first.aclose()


async def test_undoing_compactions_brings_forgotten_messages_back(tmp_path: Path) -> None:
    run = await begin(tmp_path, Worker(40), dataclasses.replace(FULL, context_window=30_000))
    await run.session.submit("The ask.")
    number = len(run.of(Compacted))
    assert number >= 3 and run.session._transcript.num_before
    for left in range(number - 1, -1, -1):
        assert run.session.compactor.undo()
        view = run.session._context.view(run.session._transcript.messages)
        row = run.session._context.active(run.session._transcript.messages)
        assert (row is None) == (left == 0)
        whole = list(run.session.messages)
        if row is not None:
            at = [message.id for message in whole].index(row.last_dropped)
            assert view == [row.message, *whole[at + 1 :]]
        else:
            assert view == whole == run.session._store.messages(run.session.id)
    await run.session.aclose()


async def test_checks_that_failed_before_a_compaction_still_count(tmp_path: Path) -> None:
    """The retries of a check are those of the turn, also where its beginning is no longer in memory."""

    class Says(Worker):
        def __call__(self, request: Request) -> Any:
            # Reads for a while, says done, is sent back, reads on.
            if request.messages[-1].text != ASK and self.num_steps and self.num_steps % 15 == 0:
                self.num_steps += 1
                return DONE
            return super().__call__(request)

    info = dataclasses.replace(FULL, context_window=30_000)
    run = await begin(tmp_path, Says(1000), info, checks=("false",), check_retries=3)
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.CHECKS_FAILED, end.detail
    assert len(run.of(Compacted)) >= 3 and run.session._transcript.num_before
    assert len(run.of(CheckEnded)) == 4
    await run.session.aclose()


@given(data=st.data())
def test_the_users_words_are_the_same_however_much_is_forgotten(data: st.DataObject) -> None:
    texts = data.draw(st.lists(st.text(max_size=60), max_size=30))
    messages = [
        Message(
            id=MessageId(str(number)),
            parent=None,
            role=Role.USER,
            origin=Origin.HUMAN if number % 3 else Origin.HARNESS,
            parts=(TextPart(text=text),),
            created_at=datetime.now(UTC),
        )
        for number, text in enumerate(texts)
    ]
    most = data.draw(st.integers(2, 400))
    earlier, at = digest.EarlierWords(), 0
    for size in data.draw(st.lists(st.integers(0, 8), max_size=5)):
        earlier.add(messages[at : at + size])
        at += size
    assert digest.user_words(messages[at:], most, earlier) == digest.user_words(messages, most)


def test_what_is_kept_of_the_users_words_is_bounded() -> None:
    earlier = digest.EarlierWords()
    message = Message(
        id=MessageId("m"),
        parent=None,
        role=Role.USER,
        origin=Origin.HUMAN,
        parts=(TextPart(text="x" * 30_000),),
        created_at=datetime.now(UTC),
    )
    for _ in range(50):
        earlier.add([message])
    assert sum(map(len, earlier.newest)) <= digest.MAX_WORDS and earlier.num_later == 49
    assert "[47 messages of the user left out]" in digest.user_words([], 90_000, earlier)


async def test_an_interrupt_in_the_middle_of_a_compaction_loses_nothing(tmp_path: Path) -> None:
    class Waits(Worker):
        def __call__(self, request: Request) -> Any:
            if request.messages[-1].text == ASK and not interrupted:
                interrupted.append(len(run.session.messages))
                run.session.interrupt("the user pressed Esc")
            return super().__call__(request)

    interrupted: list[int] = []
    run = await begin(tmp_path, Waits(20))
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.INTERRUPTED and interrupted
    assert not run.session._store.compactions(run.session.id) and not run.of(Compacted)
    assert len(run.session.messages) == interrupted[0], "nothing is added, nothing is lost"
    ended = await run.session.continue_turn(reopen=True)
    assert ended is not None and ended.outcome is TurnOutcome.SUCCESS
    assert len(run.of(Compacted)) == len(run.session._store.compactions(run.session.id)) >= 1
    check_requests(run)
    await run.session.aclose()


async def test_a_full_disk_in_the_middle_of_a_compaction_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreError("cannot write to the session store: database or disk is full")

    run = await begin(tmp_path, Worker(20))
    monkeypatch.setattr(SessionStore, "add_compaction", full)
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.EXECUTION and "disk is full" in end.detail
    assert not run.of(Compacted) and not run.session._transcript.num_before
    monkeypatch.undo()
    ended = await run.session.continue_turn(reopen=True)
    assert ended is not None and ended.outcome is TurnOutcome.SUCCESS and run.of(Compacted)
    check_requests(run)
    await run.session.aclose()


OWN = dataclasses.replace(SMALL, provider="bundled")


async def until_ahead_is_done(run: Run) -> None:
    task = run.session._ahead._task
    assert task is not None
    await asyncio.wait_for(task, 30)


def warmed(run: Run) -> list[Request]:
    return [request for request in run.client.requests if request.max_output_tokens == 1]


async def nearly_full(root: Path) -> Run:
    """A turn that ended at 95 % of the limit."""
    for name in ("probe", "real"):
        (root / name).mkdir()
    probe = await begin(root / "probe", Worker(10), SMALL)
    await probe.session.submit("go")
    context, messages = probe.session._context, probe.session._transcript.messages
    tokens = context.num_tokens(context.view(messages))
    await probe.session.aclose()
    at = CompactAt(tokens=int(tokens / 0.95))
    run = await begin(root / "real", Worker(10), OWN, is_interactive=True, compact_at=at)
    await run.session.submit("go")
    return run


async def test_between_turns_a_nearly_full_context_is_made_short_and_read_ahead(tmp_path: Path) -> None:
    run = await nearly_full(tmp_path)
    assert not run.of(Compacted)
    await until_ahead_is_done(run)
    (event,) = run.of(Compacted)
    assert event.trigger == "ahead" and len(asks(run)) == 1
    (ready,) = warmed(run)
    assert ready.response_schema is not None and ready.messages[0].text.startswith(HEAD)
    outcomes = [row.outcome for row in run.session._store.requests(run.session.id)]
    assert outcomes[-2:] == ["compaction", "warm"]
    # What was read is what the next prompt begins with.
    await run.session.submit("and now")
    bare = dataclasses.replace(ready, response_schema=None)
    assert encoded(run.client.requests[-1]).startswith(encoded(bare))
    await run.session.aclose()


async def test_a_prompt_that_comes_meanwhile_goes_first(tmp_path: Path) -> None:
    run = await nearly_full(tmp_path)
    await asyncio.sleep(0)
    assert (await run.session.submit("and now")).outcome is TurnOutcome.SUCCESS
    assert not warmed(run) and not run.session._store.compactions(run.session.id)
    await run.session.aclose()


@pytest.mark.parametrize(
    ("info", "interactive", "steps"), [(SMALL, True, 10), (OWN, False, 10), (OWN, True, 3)], ids=str
)
async def test_nothing_is_made_ahead_where_it_costs_or_nobody_waits(
    tmp_path: Path, info: ModelInfo, interactive: bool, steps: int
) -> None:
    run = await begin(tmp_path, Worker(steps), info, is_interactive=interactive)
    await run.session.submit("go")
    if run.session._ahead._task is not None:
        await until_ahead_is_done(run)
    assert not run.of(Compacted) and not warmed(run)
    await run.session.aclose()


async def test_freeing_too_little_ends_the_run(tmp_path: Path) -> None:
    run = await begin(tmp_path, Worker(30))
    run.session.compactor.pin("word " * 26_000)
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.THRASH and "frees too little" in end.detail
    assert not run.of(Compacted)
    await run.session.aclose()


async def test_of_two_prompts_that_come_while_work_ahead_ends_one_is_taken(tmp_path: Path) -> None:
    run = await nearly_full(tmp_path)
    await asyncio.sleep(0)
    ends = await asyncio.gather(run.session.submit("one"), run.session.submit("two"), return_exceptions=True)
    (refused,) = [end for end in ends if isinstance(end, BaseException)]
    assert "is in a turn already" in str(refused)
    await run.session.aclose()


async def test_who_waits_for_the_end_of_work_ahead_can_be_cancelled() -> None:
    class Stubborn:
        """Takes a while to end."""

        async def ahead(self, turn: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.05)

    ahead = Ahead(Stubborn(), is_on=True)  # type: ignore[arg-type]  # only what it needs of one
    ahead.begin(1)
    await asyncio.sleep(0)
    waiting = asyncio.create_task(ahead.stop())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
