"""The Python interface, against a real endpoint on loopback and with a client of the caller's own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.agents import ReplayClient, call
from support.headless import Bench
from support.runs import served

import k3agent
from k3agent.config.trust import set_trust
from k3agent.events import ApprovalAsked, CallEnded, MessageAdded, TurnEnded, TurnStarted
from k3agent.providers.scripted import Step
from k3agent.types import Usage


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.workspace.mkdir()
    (made.workspace / "a.txt").write_text("one\ntwo\n")
    return made


def agent(bench: Bench, *answers: Step, **more: Any) -> k3agent.Agent:
    client = ReplayClient(answers)
    return k3agent.Agent(cwd=bench.workspace, environ=bench.environ, client=client, **more)


EDIT = Step(calls=(call("write", path="b.txt", content="new\n"),))
OTHER = Step(calls=(call("write", path="c.txt", content="x"),))
READ = Step(calls=(call("read", path="a.txt"),))


def test_one_call_against_an_endpoint(bench: Bench) -> None:
    with served(bench, [EDIT, Step(text="Done.")]):
        result = k3agent.run(
            "Write b.txt.",
            cwd=bench.workspace,
            environ=bench.environ,
            base_url=bench.url,
            checks=["test -f b.txt"],
        )
    assert result.is_success and result.outcome is k3agent.TurnOutcome.SUCCESS
    assert (result.text, result.detail, result.files_changed) == ("Done.", "", ("b.txt",))
    assert [check["passed"] for check in result.checks] == [True]
    assert result.usage.output_tokens > 0
    assert (bench.workspace / "b.txt").read_text() == "new\n"


def test_an_endpoint_that_is_not_there_is_an_outcome(bench: Bench) -> None:
    environ = {**bench.environ, "K3AGENT_RETRY_MAX_RETRIES": "0", "K3AGENT_RETRY_MAX_TIME_S": "1"}
    try:
        result = k3agent.run("Hello.", cwd=bench.workspace, environ=environ, base_url="http://127.0.0.1:9/v1")
    except k3agent.K3AgentError as error:
        assert "127.0.0.1:9" in str(error)
    else:
        assert result.outcome is k3agent.TurnOutcome.PROVIDER and result.detail


async def test_several_prompts_and_the_session_later(bench: Bench) -> None:
    async with agent(bench, Step(text="One."), Step(text="Two.")) as first:
        assert (await first.run("Say one.")).text == "One."
        assert (await first.run("Say two.")).text == "Two."
        session = first.session_id
    async with agent(bench, Step(), Step(), Step(text="Three."), session=session[:8]) as later:
        assert (await later.run("Say three.")).text == "Three."
        assert later.session_id == session


async def test_events_as_they_come(bench: Bench) -> None:
    async with agent(bench, EDIT, Step(text="Done.")) as made:
        events = [event async for event in made.stream("Write it.")]
    assert isinstance(events[-1], TurnEnded)
    assert any(isinstance(event, TurnStarted) for event in events)
    assert [event.files for event in events if isinstance(event, CallEnded)] == [("b.txt",)]


async def test_who_leaves_the_events_interrupts(bench: Bench) -> None:
    sleep = Step(calls=(call("shell", command="sleep 60"),))
    async with agent(bench, sleep, Step(text="Awake.")) as made:
        stream = made.stream("Sleep.")
        async for event in stream:
            if type(event).__name__ == "CallStarted":
                break
        await stream.aclose()  # type: ignore[attr-defined]
        # It is free again, and the conversation is whole.
        assert (await made.run("And now?")).text == "Awake."


async def test_questions_are_answered_by_the_caller(bench: Bench) -> None:
    asked: list[ApprovalAsked] = []

    def approve(question: ApprovalAsked) -> bool | str:
        asked.append(question)
        return True if len(asked) == 1 else "not that one"

    answers = (EDIT, OTHER, READ, Step(text="Done."))
    async with agent(bench, *answers, permission_mode="default", approve=approve) as made:
        result = await made.run("Write both.")
    assert [question.tool for question in asked] == ["write", "write"]
    assert (bench.workspace / "b.txt").exists() and not (bench.workspace / "c.txt").exists()
    assert [denial["summary"] for denial in result.denials] and result.is_success


@pytest.mark.parametrize("approve", [None, lambda _: False, lambda _: "not now"])
async def test_a_refusal_at_the_end_is_no_success(bench: Bench, approve: k3agent.sdk.Approve | None) -> None:
    answers = (OTHER, Step(text="I may not."), READ, Step(text="Two lines."))
    async with agent(bench, *answers, permission_mode="default", approve=approve) as made:
        result = await made.run("Write it.")
        assert result.outcome is k3agent.TurnOutcome.PERMISSION and not result.is_success
        assert len(result.denials) == 1 and result.detail
        # The next prompt is judged by itself.
        later = await made.run("How long is it?")
        assert later.is_success and not later.denials


async def test_a_result_is_about_its_prompt(bench: Bench) -> None:
    again = Step(calls=(call("write", path="b.txt", content="newer\n"),))
    answers = (EDIT, Step(text="1"), OTHER, Step(text="2"), Step(text="3"), READ, again, Step(text="4"))
    async with agent(bench, *answers, checks=["test -e b.txt"]) as made:
        results = [await made.run(f"Do {number}.") for number in range(4)]
        assert [result.files_changed for result in results] == [("b.txt",), ("c.txt",), (), ("b.txt",)]
        assert made.files_changed == ("b.txt", "c.txt")
        assert sum((result.usage for result in results), Usage()) == made.usage
        assert made.usage.output_tokens > results[-1].usage.output_tokens > 0
        assert made.cost_usd == pytest.approx(sum(result.cost_usd for result in results))
        assert all(len(result.checks) == 1 for result in results)


async def test_a_question_of_the_model_is_never_left_without_an_answer(bench: Bench) -> None:
    questions = [Step(calls=(call("ask", question="Which?", options=["a", "b"]),)) for _ in range(2)]
    replies = iter([False, "the second"])
    async with agent(bench, *questions, Step(text="Done."), approve=lambda _: next(replies)) as made:
        ended = [event async for event in made.stream("Ask me twice.") if isinstance(event, CallEnded)]
    assert "does not answer this in words" in ended[0].result.text and "the second" in ended[1].result.text


async def test_a_function_that_fails_ends_the_turn(bench: Bench) -> None:
    def approve(question: ApprovalAsked) -> bool:
        raise KeyError(question.tool)

    async with agent(bench, EDIT, permission_mode="default", approve=approve) as made:
        result = await asyncio.wait_for(made.run("Write."), 60)
    assert result.outcome is k3agent.TurnOutcome.INTERRUPTED and not (bench.workspace / "b.txt").exists()


async def test_without_a_caller_to_ask_such_calls_are_denied(bench: Bench) -> None:
    async with agent(bench, EDIT, Step(text="I may not."), permission_mode="default") as made:
        result = await made.run("Write it.")
    assert result.denials and not (bench.workspace / "b.txt").exists()


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def test_an_answer_of_a_schema(bench: Bench) -> None:
    async with agent(bench, Step(text="seven"), Step(text='{"n": 7}'), schema=SCHEMA) as made:
        result = await made.run("How many?")
    assert result.value == {"n": 7}
    async with agent(bench, *[Step(text="no")] * 3, schema=SCHEMA) as made:
        result = await made.run("How many?")
    assert result.value is None and "does not fit the JSON schema" in result.detail and not result.is_success


async def test_limits(bench: Bench) -> None:
    limits = k3agent.Limits(max_turns=1)
    async with agent(bench, EDIT, Step(text="Done."), limits=limits) as made:
        result = await made.run("Write it.")
    assert result.outcome is k3agent.TurnOutcome.MAX_TURNS


async def test_nothing_is_left_of_an_ephemeral_one(bench: Bench) -> None:
    async with agent(bench, Step(text="Hi."), ephemeral=True) as made:
        await made.run("Hi.")
    assert not (bench.home / "k3agent.db").exists() and not list(bench.home.rglob("*.db"))


async def test_an_ephemeral_one_has_what_the_user_trusts(bench: Bench) -> None:
    commands = bench.workspace / ".k3agent" / "commands"
    commands.mkdir(parents=True)
    (commands / "greet.md").write_text("Say hello to $1.")
    set_trust(bench.home, commands.parent, is_trusted=True)
    async with agent(bench, Step(text="Hi."), ephemeral=True) as made:
        events = [event async for event in made.stream("/greet Ann")]
    assert "Say hello to Ann." in [event.message.text for event in events if isinstance(event, MessageAdded)]


@pytest.mark.parametrize(
    "more, text",
    [
        ({"cwd": "/no/such"}, "no such folder"),
        ({"permission_mode": "yolo"}, "'yolo' is not one of plan, default"),
        ({"session": "x", "ephemeral": True}, "no earlier sessions"),
        ({"session": "ffff"}, "ffff"),
        ({"effort": "enormous"}, "enormous"),
    ],
)
def test_what_cannot_be_is_said(bench: Bench, more: dict[str, Any], text: str) -> None:
    with pytest.raises(k3agent.K3AgentError, match=text):
        k3agent.run("Hi.", **({"cwd": bench.workspace, "environ": bench.environ} | more))


async def test_wrong_use(bench: Bench) -> None:
    closed = agent(bench)
    with pytest.raises(k3agent.K3AgentError, match="not open"):
        await closed.run("Hi.")
    with pytest.raises(k3agent.K3AgentError, match="event loop runs here"):
        k3agent.run("Hi.")
    async with closed:
        with pytest.raises(k3agent.K3AgentError, match="empty"):
            await closed.run("  ")
        with pytest.raises(k3agent.K3AgentError, match="open already"):
            async with closed:
                pass


def test_importing_costs_nothing_and_types_are_there() -> None:
    program = "import sys, k3agent; assert 'asyncio' not in sys.modules; k3agent.Agent; k3agent.run"
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=60)
    assert all(getattr(k3agent, name) is not None for name in k3agent.__all__)
    assert (Path(k3agent.__file__).parent / "py.typed").exists()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = k3agent.nothing  # type: ignore[attr-defined]
