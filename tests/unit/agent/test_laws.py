"""Laws over random conversations: each call has one result, requests only grow, what is stored is what was
said.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.agents import COMPACT, FULL, Run, call, check_prefixes, start, step

from k3agent.agent.session import Session
from k3agent.events import CallEnded, CallProposed, CallStarted, MessageAdded
from k3agent.providers.base import ModelInfo
from k3agent.providers.scripted import ScriptedCall
from k3agent.types import CallDelta, Finish, Finished, ReasoningDelta, TextDelta, Usage

CALLS = st.sampled_from(
    [
        call("glob", pattern="*"),
        call("read", path="a"),
        call("read", path="nowhere"),
        call("write", path="a", content="1\n"),
        call("edit", path="a", old="1", new="2"),
        call("write", path="/etc/outside", content=""),
        call("todo", items=[{"text": "t", "status": "active"}]),
        call("nonsense", x=1),
        call("ask", question="?"),
        ScriptedCall(name="read", arguments="{torn"),
        ScriptedCall(name="read", arguments='{"path": "a",}'),
        ScriptedCall(name="grep", arguments="", id=""),
        ScriptedCall(name="grep", arguments='{"pattern": "("}', id="same"),
    ]
)
STEPS = st.lists(
    st.builds(
        lambda calls, text: step(*calls, text=text),
        st.lists(CALLS, min_size=1, max_size=4),
        st.sampled_from(["", "so"]),
    ),
    max_size=6,
)
DELTAS = st.lists(
    st.builds(ReasoningDelta, text=st.text(max_size=5))
    | st.builds(TextDelta, text=st.text(max_size=5))
    | st.builds(
        CallDelta,
        index=st.integers(0, 2),
        id=st.sampled_from([None, "", "a", "b"]),
        name=st.sampled_from([None, "glob", "read"]),
        arguments=st.sampled_from(["", "{", '"path": "a"', "}", '{"pattern": "*"}']),
    ),
    max_size=8,
)
law = settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=(HealthCheck.function_scoped_fixture, HealthCheck.too_slow),
)


async def check(run: Run, prompt: str = "go") -> None:
    # The client itself checks every request as a strict server would.
    await run.session.submit(prompt)
    session: Session = run.session
    check_prefixes(run.client.requests)
    assert session._store.messages(session.id) == list(session.messages)
    calls = [item.id for message in session.messages for item in message.calls]
    results = [result.call_id for message in session.messages for result in message.results]
    assert calls == results and len(set(calls)) == len(calls)
    ended = [event.call_id for event in run.of(CallEnded)]
    assert sorted(ended) == sorted(calls) and len(run.of(MessageAdded)) == len(session.messages)
    started = {event.call_id for event in run.of(CallStarted)}
    allowed = {row.call_id for row in session._store.decisions(session.id) if row.action == "allow"}
    assert started <= allowed, "a call started without a recorded decision"
    assert {event.call_id for event in run.of(CallProposed)} <= set(calls)
    rows = session._store.calls(session.id)
    assert [row.call_id for row in rows if row.result is None] == [] and len(rows) == len(calls)
    await session.aclose()


@law
@given(steps=STEPS, info=st.sampled_from([FULL, COMPACT]))
def test_each_call_has_one_result(
    steps: list[Any], info: ModelInfo, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def play(root: Path) -> None:
        await check(await start(root, [*steps, step(text="Done.")], info=info))

    asyncio.run(play(tmp_path_factory.mktemp("law")))


@law
@given(
    deltas=DELTAS,
    finish=st.sampled_from([Finish.STOP, Finish.TOOL_CALLS, Finish.LENGTH, Finish.CONTENT_FILTER]),
)
def test_any_stream_leaves_a_valid_conversation(
    deltas: list[Any], finish: Finish, tmp_path_factory: pytest.TempPathFactory
) -> None:
    answer = [*deltas, Finished(finish=finish, usage=Usage(input_tokens=1, output_tokens=1), model="m")]

    async def play(root: Path) -> None:
        run = await start(root, [answer] + [step(text="Done.")] * 4)
        await check(run)
        reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
        text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
        first = run.session.messages[2]
        assert first.text == text and (first.reasoning.text if first.reasoning else "") == reasoning

    asyncio.run(play(tmp_path_factory.mktemp("law")))


async def test_the_end_of_a_background_job_is_told(tmp_path: Path) -> None:
    run = await start(
        tmp_path,
        [
            step(call("shell", command="echo ready", background=True)),
            step(call("shell", command="sleep 0.5")),
            step(text="Done."),
        ],
    )
    await run.session.submit("go")
    texts = [message.text for message in run.client.requests[-1].messages]
    assert any("Job j1 has ended" in text for text in texts)
    check_prefixes(run.client.requests)
    await run.session.aclose()
