"""Whole turns: a scripted model, the real tools, the real store."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.agents import (
    COMPACT,
    FULL,
    ReplayClient,
    Run,
    call,
    check_prefixes,
    options,
    start,
    step,
    story,
)

from k3agent.agent.options import Limits
from k3agent.agent.session import Session
from k3agent.errors import (
    ConfigError,
    K3AgentError,
    ProviderError,
    ProviderErrorKind,
    SandboxError,
    StoreError,
)
from k3agent.events import (
    ApprovalAsked,
    ArgumentsStreamed,
    CallEnded,
    CallStarted,
    CheckEnded,
    Decision,
    MessageAdded,
    Noticed,
    Retrying,
    TextStreamed,
    TurnEnded,
    TurnOutcome,
    TurnStarted,
    UsageChanged,
)
from k3agent.providers.base import Profile
from k3agent.providers.scripted import Fault, ScriptedCall, Step
from k3agent.store.sessions import SessionStore
from k3agent.types import (
    CallDelta,
    Effort,
    Finish,
    Finished,
    ImagePart,
    Origin,
    ReasoningDelta,
    RetryDelta,
    Role,
    TextDelta,
    Usage,
)

COMPACT_PROMPT = Path("prompts/system/compact.md").read_text().strip()
DONE = step(text="Done.")


def finished(finish: Finish = Finish.STOP, tokens: int = 10) -> Finished:
    return Finished(finish=finish, usage=Usage(input_tokens=tokens, output_tokens=tokens), model="scripted")


async def test_a_task_from_prompt_to_report(tmp_path: Path) -> None:
    run = await start(
        tmp_path,
        [
            step(call("write", path="a.py", content="x = 1\n"), text="I make it."),
            step(call("read", path="a.py"), call("grep", pattern="x")),
            step(call("edit", path="a.py", old="x = 1", new="x = 2"), call("shell", command="cat a.py")),
            step(text="x is 2 now."),
        ],
    )
    end = await run.session.submit("make x 2")
    assert end.outcome is TurnOutcome.SUCCESS
    assert (run.workspace / "a.py").read_text() == "x = 2\n"
    assert run.results[0] == "Created a.py (1 lines)." or run.results[0].startswith("Created a.py")
    assert run.results[1:3] == ["1\tx = 1", "a.py:1:x = 1"]
    assert run.results[4] == "x = 2\n[exit code 0]"
    assert run.last.text == "x is 2 now." and run.last.finish is Finish.STOP
    receipt = run.session.receipt
    assert (receipt.num_turns, receipt.calls, receipt.failed, receipt.invalid) == (4, 5, 0, 0)
    assert receipt.files_changed == ["a.py"]
    assert receipt.usage.input_tokens > 0 and receipt.cost_usd > 0
    check_prefixes(run.client.requests)
    # What is stored is what was said.
    assert run.session._store.messages(run.session.id) == list(run.session.messages)
    kinds = [type(event) for event in run.events]
    assert kinds[0] is TurnStarted and kinds[-1] is TurnEnded
    assert [event.seq for event in run.events] == list(range(1, len(run.events) + 1))
    assert len(run.of(MessageAdded)) == len(run.session.messages)
    assert len(run.of(UsageChanged)) == 4
    assert "".join(event.text for event in run.of(TextStreamed)) == "I make it.x is 2 now."
    await run.session.aclose()


async def test_each_request_begins_with_the_one_before_over_turns_and_resume(tmp_path: Path) -> None:
    answers = [step(call("glob", pattern="*")), DONE, step(call("read", path="nope.txt")), DONE, DONE]
    run = await start(tmp_path, answers)
    await run.session.submit("first")
    await run.session.submit("second")
    await run.session.aclose()
    again = Run(
        await Session.resume(run.session.id, options(tmp_path, run.client)), run.client, run.workspace
    )
    assert again.session.id == run.session.id
    await again.session.submit("third")
    assert len(run.client.requests) == 5
    check_prefixes(run.client.requests)
    assert len({request.cache_key for request in run.client.requests}) == 1
    assert all(
        message.reasoning is not None
        for message in run.client.requests[-1].messages
        if message.role is Role.ASSISTANT
    )
    await again.session.aclose()


async def test_facts_are_said_once_and_again_when_they_change(tmp_path: Path) -> None:
    run = await start(tmp_path, [DONE, DONE, DONE])
    await run.session.submit("a")
    await run.session.submit("b")
    facts = [m for m in run.session.messages if m.origin is Origin.HARNESS]
    assert len(facts) == 1 and str(run.workspace) in facts[0].text and "auto" in facts[0].text
    assert run.session.messages[1].origin is Origin.HUMAN
    await run.session.aclose()
    other = options(tmp_path, run.client, permission_mode="plan")
    again = await Session.resume(run.session.id, other)
    await again.submit("c")
    facts = [m for m in again.messages if m.origin is Origin.HARNESS]
    assert len(facts) == 2 and "plan" in facts[1].text
    check_prefixes(run.client.requests)
    await again.aclose()


async def test_the_compact_profile_is_a_constant_prompt_with_six_tools(tmp_path: Path) -> None:
    answers = [step(call("glob", pattern="*.txt")), DONE]
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "AGENTS.md").write_text("Speak Latin.")
    run = await start(tmp_path, answers, info=COMPACT, append_system_prompt="extra", effort=Effort.MAX)
    await run.session.submit("list")
    request = run.client.requests[0]
    assert [spec.name for spec in request.tools] == ["read", "write", "edit", "grep", "glob", "shell"]
    assert request.system == COMPACT_PROMPT
    assert request.effort is Effort.LOW
    assert [message.origin for message in request.messages] == [Origin.HUMAN]
    read = request.tools[0]
    assert "\n" not in read.description
    assert read.parameters["properties"]["path"] == {"type": "string"}
    assert read.parameters["required"] == ["path"]
    await run.session.aclose()


async def test_the_full_profile_has_the_instructions_in_its_prompt(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "AGENTS.md").write_text("Speak Latin.")
    run = await start(tmp_path, [DONE, DONE], append_system_prompt="Be brief.")
    await run.session.submit("hi")
    first = run.client.requests[0]
    assert "Speak Latin." in first.system and first.system.endswith("Be brief.")
    (tmp_path / "ws" / "AGENTS.md").write_text("Speak Greek.")
    await run.session.submit("hi again")
    assert run.client.requests[1].system == first.system
    await run.session.aclose()


async def test_instructions_that_fill_the_window_stop_the_start_and_are_named(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "AGENTS.md").write_text("word " * 12_000)
    small = dataclasses.replace(FULL, context_window=40_000)
    with pytest.raises(ConfigError, match=r"AGENTS\.md \(60000 bytes"):
        await start(tmp_path, [DONE], info=small)


# --- answers that cannot be used as they are --------------------------------------------------------------


async def test_reasoning_alone_is_asked_again_and_not_kept(tmp_path: Path) -> None:
    only = [ReasoningDelta(text="hm"), finished()]
    run = await start(tmp_path, [DONE], attempts={0: [only, only]})
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.SUCCESS and run.last.text == "Done."
    assert len(run.client.requests) == 3 and run.session.receipt.num_turns == 3
    assert [row.outcome for row in run.session._store.requests(run.session.id)] == [
        "discarded: reasoning only",
        "discarded: reasoning only",
        "ok",
    ]
    assert len({id(r.messages) and len(r.messages) for r in run.client.requests}) == 1
    await run.session.aclose()


async def test_reasoning_alone_three_times_ends_the_turn(tmp_path: Path) -> None:
    only = [ReasoningDelta(text="hm"), finished()]
    run = await start(tmp_path, [only])
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.EXECUTION and "only reasoning" in end.detail
    assert len(run.client.requests) == 3
    await run.session.aclose()


@pytest.mark.parametrize(
    "leak",
    [
        [TextDelta(text="Let me<|cl"), TextDelta(text="ose|>response<|sep|>"), finished()],
        [ReasoningDelta(text="so <|open|>tools<|sep|>"), finished()],
        [TextDelta(text="Fine.\n<|tool_calls_section_begin|>"), finished()],
        [TextDelta(text="<think>I should"), finished()],
    ],
)
async def test_a_leaked_marker_is_never_shown_and_asked_about_once(tmp_path: Path, leak: list[Any]) -> None:
    run = await start(tmp_path, [DONE], attempts={0: [leak]})
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.SUCCESS
    shown = "".join(getattr(event, "text", "") for event in run.events if not isinstance(event, Noticed))
    assert "<|" not in shown and "<think" not in shown
    assert [event.attempt for event in run.of(Retrying)] == [1]
    assert all("<|" not in message.text for message in run.session.messages)
    rows = run.session._store.requests(run.session.id)
    assert rows[0].outcome.startswith("discarded: leaked <") and rows[1].outcome == "ok"
    await run.session.aclose()


async def test_a_server_that_always_leaks_is_named_as_the_cause(tmp_path: Path) -> None:
    run = await start(tmp_path, [[TextDelta(text="x<|sep|>"), finished()]])
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.PROVIDER and "parser" in end.detail
    assert len(run.client.requests) == 2
    await run.session.aclose()


async def test_talking_about_markers_is_no_leak(tmp_path: Path) -> None:
    answer = [TextDelta(text="`<|open|>` opens a channel."), finished()]
    run = await start(tmp_path, [answer])
    end = await run.session.submit("What does <|open|> mean?")
    assert end.outcome is TurnOutcome.SUCCESS and run.last.text == "`<|open|>` opens a channel."
    assert len(run.client.requests) == 1
    await run.session.aclose()


async def test_thinking_that_keeps_coming_as_text_is_kept_as_it_came(tmp_path: Path) -> None:
    run = await start(tmp_path, [[TextDelta(text="<think>hm</think>Yes."), finished()]])
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.SUCCESS and run.last.text == "<think>hm</think>Yes."
    await run.session.aclose()


async def test_a_retry_voids_what_was_streamed(tmp_path: Path) -> None:
    deltas = [
        ReasoningDelta(text="half a th"),
        CallDelta(index=0, id="c", name="write", arguments='{"pa'),
        RetryDelta(attempt=1, delay_s=0.0, reason="cut"),
        ReasoningDelta(text="whole"),
        TextDelta(text="Answer."),
        finished(),
    ]
    run = await start(tmp_path, [deltas])
    await run.session.submit("go")
    assert run.last.calls == () and run.last.text == "Answer."
    assert run.last.reasoning is not None and run.last.reasoning.text == "whole"
    assert len(run.of(Retrying)) == 1
    await run.session.aclose()


async def test_faults_of_the_provider_are_retried_or_end_the_turn(tmp_path: Path) -> None:
    cut = Step(text="All fine.", faults=(Fault(kind="cut", times=2),))
    refused = Step(faults=(Fault(kind="status", status=401),))
    run = await start(tmp_path, [cut, refused, DONE])
    assert (await run.session.submit("one")).outcome is TurnOutcome.SUCCESS
    assert run.last.text == "All fine."
    end = await run.session.submit("two")
    assert end.outcome is TurnOutcome.PROVIDER
    assert isinstance(run.session.error, ProviderError) and run.session.error.kind is ProviderErrorKind.AUTH
    assert run.session.receipt.errors
    await run.session.aclose()


async def test_an_answer_without_a_finish_runs_nothing(tmp_path: Path) -> None:
    deltas = [CallDelta(index=0, id="c", name="write", arguments='{"path": "a", "content": ""}')]
    run = await start(tmp_path, [deltas])
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.PROVIDER and not list(run.workspace.iterdir())
    await run.session.aclose()


async def test_calls_cut_by_the_output_limit_do_not_run(tmp_path: Path) -> None:
    deltas = [
        CallDelta(index=0, id="a", name="write", arguments='{"path": "a", "content": "x"}'),
        CallDelta(index=1, id="b", name="write", arguments='{"path": "b", "cont'),
        finished(Finish.LENGTH),
    ]
    run = await start(tmp_path, [deltas, DONE])
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.SUCCESS
    assert not list(run.workspace.iterdir())
    assert len(run.results) == 2 and all("cut off at the output limit" in text for text in run.results)
    await run.session.aclose()


async def test_a_text_cut_by_the_output_limit_goes_on_a_few_times(tmp_path: Path) -> None:
    cut = [TextDelta(text="and so on"), finished(Finish.LENGTH)]
    run = await start(tmp_path, [cut, DONE, cut, cut, cut])
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    end = await run.session.submit("more")
    assert end.outcome is TurnOutcome.EXECUTION and "output limit" in end.detail
    await run.session.aclose()


async def test_missing_and_repeated_call_ids_are_made_distinct(tmp_path: Path) -> None:
    glob = '{"pattern": "*"}'
    deltas = [
        CallDelta(index=0, name="glob", arguments=glob),
        CallDelta(index=1, id="same", name="glob", arguments=glob),
        CallDelta(index=2, id="same", name="glob", arguments=glob),
        finished(Finish.TOOL_CALLS),
    ]
    again = [CallDelta(index=0, id="same", name="glob", arguments=glob), finished(Finish.TOOL_CALLS)]
    run = await start(tmp_path, [deltas, again, DONE])
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    ids = [item.id for message in run.session.messages for item in message.calls]
    assert len(set(ids)) == 4 and all(ids) and ids[1:] == ["same", "same_2", "same_3"]
    await run.session.aclose()


async def test_split_surrogates_become_one_character(tmp_path: Path) -> None:
    run = await start(tmp_path, [[TextDelta(text="a\ud83d"), TextDelta(text="\ude00b \ud800"), finished()]])
    await run.session.submit("go")
    assert run.last.text == "a\U0001f600b \ufffd"
    await run.session.aclose()


# --- calls ------------------------------------------------------------------------------------------------


async def test_every_call_has_one_result_in_call_order(tmp_path: Path) -> None:
    calls = (
        call("shell", command="sleep 0.2; echo slow"),
        ScriptedCall(name="read", arguments="{broken", id=""),
        call("nothing", a=1),
        call("read", path="missing.txt"),
        call("write", path="/etc/k3agent-test", content="x"),
        ScriptedCall(name="grep", arguments="[1]"),
        call("glob", pattern="*"),
    )
    run = await start(tmp_path, [step(*calls), DONE])
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    results = run.results
    assert results[0] == "slow\n[exit code 0]"
    assert results[1].startswith("bad arguments for read: arguments: not valid JSON")
    assert results[2].startswith("unknown tool nothing. Tools: read, write,")
    assert results[3].startswith("missing.txt does not exist.")
    assert results[4].startswith("permission denied: it would write /etc/k3agent-test")
    assert results[5] == "bad arguments for grep: arguments: must be a JSON object, not a list."
    assert len(results) == 7
    receipt = run.session.receipt
    assert (receipt.calls, receipt.invalid, receipt.failed, len(receipt.denials)) == (7, 3, 1, 1)
    flags = {event.call_id: (event.is_invalid, event.is_denied) for event in run.of(CallEnded)}
    assert sum(invalid for invalid, _ in flags.values()) == 3 and sum(d for _, d in flags.values()) == 1
    await run.session.aclose()


async def test_repaired_arguments_run_and_say_so(tmp_path: Path) -> None:
    broken = ScriptedCall(name="write", arguments='{"path": "a", "content": "one\ntwo\n",}')
    run = await start(tmp_path, [step(broken), DONE])
    await run.session.submit("go")
    assert (run.workspace / "a").read_text() == "one\ntwo\n"
    assert "were repaired: a trailing comma" in run.results[0]
    assert run.session.messages[2].calls[0].arguments == broken.arguments
    await run.session.aclose()


async def test_reads_run_side_by_side_and_writes_wait(tmp_path: Path) -> None:
    """Ten questions to the user would block if reads ran one after the other."""
    asks = [call("ask", question=f"q{n}") for n in range(3)]
    run = await start(
        tmp_path,
        [step(*asks, call("write", path="a", content="1"), call("shell", command="cat a")), DONE],
        is_interactive=True,
    )
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(ApprovalAsked, 3)
    assert not (run.workspace / "a").exists()
    for event in run.of(ApprovalAsked):
        run.session.reply(event.call_id, f"yes {event.summary}")
    assert (await task).outcome is TurnOutcome.SUCCESS
    assert run.results == ["yes q0", "yes q1", "yes q2", run.results[3], "1\n[exit code 0]"]
    await run.session.aclose()


async def test_a_crashing_tool_is_a_result_and_the_session_goes_on(tmp_path: Path, monkeypatch: Any) -> None:
    run = await start(tmp_path, [step(call("glob", pattern="*")), DONE])
    tool = type(run.session._bench.tools["glob"])

    async def crash(self: Any, args: Any, ctx: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(tool, "run", crash)
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    assert run.results == ["glob crashed (ZeroDivisionError: oops). Try another way."]
    await run.session.aclose()


async def test_long_results_are_cut_and_kept_whole_in_a_file_that_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "long.txt").write_text("".join(f"line {n} {'x' * 100}\n" for n in range(200)))
    run = await start(
        tmp_path,
        [
            step(call("read", path="long.txt")),
            lambda request: step(call("read", path=_cut_path(request.messages[-1].results[0].text))),
            DONE,
        ],
        info=COMPACT,
    )
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    assert len(run.results[0]) < 13_000 and "characters cut; full output: " in run.results[0]
    assert "line 199 " in read_text(_cut_path(run.results[0]))
    assert run.results[1].startswith("1\t1\tline 0")
    await run.session.aclose()


def read_text(path: str) -> str:
    return Path(path).read_text()


def _cut_path(text: str) -> str:
    return text.split("full output: ")[1].split("]")[0]


async def test_secrets_reach_neither_children_nor_store_nor_model(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    secret = "hunter2-hunter2"
    (tmp_path / "ws" / "leak.txt").write_text(f"pw={secret}\nalso ghp_{'a' * 36}\n")
    run = await start(
        tmp_path,
        [step(call("read", path="leak.txt"), call("shell", command="env; cat leak.txt")), DONE],
        environ={"DB_PASSWORD": secret, "SHORT_KEY": "abc", "PLAIN": "visible"},
    )
    await run.session.submit("go")
    for text in run.results:
        assert secret not in text and "ghp_" not in text
    assert "pw=[masked: DB_PASSWORD]" in run.results[0]
    assert "PLAIN=visible" in run.results[1] and "DB_PASSWORD=" not in run.results[1]
    await run.session.aclose()
    check_home(tmp_path, secret)


def check_home(tmp_path: Path, secret: str) -> None:
    for path in (tmp_path / "home").rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path


async def test_outputs_that_are_kept_whole_hold_no_secrets(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    secret = "hunter2-hunter2"
    (tmp_path / "ws" / "leak.txt").write_text(f"{'x' * 40000}\n{secret}\n{'y' * 40000}\n")
    (tmp_path / "ws" / "AGENTS.md").write_text(f"Log in with {secret}.\n")
    calls = [
        step(call("shell", command="cat leak.txt")),
        step(call("shell", command="cat leak.txt", background=True)),
        step(call("shell", command="sleep 0.5")),
        DONE,
    ]
    run = await start(tmp_path, calls, environ={"DB_PASSWORD": secret})
    await run.session.submit("go")
    assert "full output: " in run.results[0]
    kept = list((tmp_path / "home" / "outputs").rglob("output-*.txt"))
    assert any("[masked: DB_PASSWORD]" in path.read_text() for path in kept)
    assert secret not in run.client.requests[0].system
    await run.session.aclose()
    assert len(kept) == 2
    check_home(tmp_path, secret)


async def test_todo_is_kept_in_the_store(tmp_path: Path) -> None:
    items = [{"text": "look", "status": "done"}, {"text": "change", "status": "active"}]
    run = await start(tmp_path, [step(call("todo", items=items)), DONE])
    await run.session.submit("go")
    await run.session.aclose()
    again = await Session.resume(run.session.id, options(tmp_path, run.client))
    assert again._tool_ctx.todo == items
    await again.aclose()


async def test_what_was_read_is_known_after_a_resume(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "a").write_text("old\n")
    run = await start(
        tmp_path, [step(call("read", path="a")), DONE, step(call("write", path="a", content="new\n")), DONE]
    )
    await run.session.submit("go")
    await run.session.aclose()
    again = await Session.resume(run.session.id, options(tmp_path, run.client))
    await again.submit("now write")
    assert (run.workspace / "a").read_text() == "new\n"
    await again.aclose()


# --- permissions, questions -------------------------------------------------------------------------------


async def test_nothing_starts_in_default_mode_without_a_recorded_decision(tmp_path: Path) -> None:
    calls = (
        call("shell", command="touch made"),
        call("write", path="b", content=""),
        call("shell", command="git status; ls"),
    )
    run = await start(tmp_path, [step(*calls), DONE], permission_mode="default")
    await run.session.submit("go")
    assert not list(run.workspace.iterdir())
    rows = run.session._store.decisions(run.session.id)
    assert [(row.tool, row.action) for row in rows] == [
        ("shell", "deny"),
        ("write", "deny"),
        ("shell", "allow"),
    ]
    assert all(row.reason for row in rows) and "nobody can be asked" in rows[0].reason
    assert [event.call_id for event in run.of(CallStarted)] == [rows[2].call_id]
    await run.session.aclose()


async def test_a_person_can_allow_and_deny(tmp_path: Path) -> None:
    calls = (call("write", path="yes", content=""), call("write", path="no", content=""))
    run = await start(tmp_path, [step(*calls), DONE], permission_mode="default", is_interactive=True)

    def answer(event: Any) -> None:
        if isinstance(event, ApprovalAsked):
            decision = Decision.ALLOW if "yes" in event.summary else Decision.DENY
            asyncio.get_running_loop().call_soon(run.session.answer, event.call_id, decision)

    run.session.subscribe(answer)
    await run.session.submit("go")
    assert [path.name for path in run.workspace.iterdir()] == ["yes"]
    assert [row.by for row in run.session._store.decisions(run.session.id)] == ["user", "user"]
    await run.session.aclose()


async def test_stopping_at_a_denial_is_blocked_not_done(tmp_path: Path) -> None:
    run = await start(
        tmp_path,
        [
            step(call("shell", command="sudo rm x")),
            step(text="I may not."),
            step(call("ask", question="Which?")),
            step(text="Please say which."),
            step(call("shell", command="sudo rm x")),
            step(call("shell", command="echo other way")),
            DONE,
        ],
    )
    assert (await run.session.submit("go")).outcome is TurnOutcome.PERMISSION
    assert (await run.session.submit("go")).outcome is TurnOutcome.PERMISSION
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    await run.session.aclose()


# --- checks -----------------------------------------------------------------------------------------------


async def test_a_failing_check_goes_back_to_the_model(tmp_path: Path) -> None:
    run = await start(
        tmp_path,
        [DONE, step(call("write", path="made", content="ok")), step(text="Now it is there.")],
        checks=("test -f made || { echo made is missing; exit 3; }", "true"),
    )
    end = await run.session.submit("make it")
    assert end.outcome is TurnOutcome.SUCCESS
    harness = [m.text for m in run.session.messages if m.origin is Origin.HARNESS]
    assert "made is missing\n[exit code 3]" in harness[-1] and "true" not in harness[-1]
    assert [event.exit_code for event in run.of(CheckEnded)] == [3, 0, 0, 0]
    assert all(check["passed"] for check in run.session.receipt.checks)
    await run.session.aclose()


async def test_a_check_that_keeps_failing_is_its_own_outcome(tmp_path: Path) -> None:
    run = await start(tmp_path, [DONE] * 3, checks=("exit 1",), check_retries=2)
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.CHECKS_FAILED and "exit 1" in end.detail
    assert len(run.client.requests) == 3
    assert run.session.receipt.checks == [{"command": "exit 1", "exit_code": 1, "passed": False}]
    await run.session.aclose()


# --- limits and circles -----------------------------------------------------------------------------------


def looping(count: int = 40) -> list[Any]:
    return [step(call("shell", command=f"echo {n}")) for n in range(count)]


async def test_the_limit_of_model_calls_is_hard_and_leaves_one_for_a_summary(tmp_path: Path) -> None:
    answers = [*looping(3), step(text="UNFINISHED: two files are left.")]
    run = await start(tmp_path, answers, limits=Limits(max_turns=4))
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.MAX_TURNS and "4 model calls" in end.detail
    assert run.session.receipt.num_turns == 4 and run.last.text.startswith("UNFINISHED")
    assert "last answer" in run.client.requests[-1].messages[-1].text
    check_prefixes(run.client.requests)
    await run.session.aclose()


async def test_the_last_allowed_call_may_finish_the_task(tmp_path: Path) -> None:
    run = await start(tmp_path, [*looping(3), DONE], limits=Limits(max_turns=4))
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    await run.session.aclose()


@pytest.mark.parametrize("max_turns", [1, 2, 3])
@pytest.mark.parametrize("info", [FULL, COMPACT])
async def test_a_model_that_never_stops_is_stopped(tmp_path: Path, max_turns: int, info: Any) -> None:
    run = await start(tmp_path, looping(), limits=Limits(max_turns=max_turns), info=info)
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.MAX_TURNS
    assert run.session.receipt.num_turns == max_turns == len(run.client.requests)
    assert run.last.role is Role.TOOL
    if info is COMPACT:
        assert all(message.origin is not Origin.HARNESS for message in run.session.messages)
    await run.session.aclose()


async def test_discarded_answers_count_against_the_limit(tmp_path: Path) -> None:
    only = [ReasoningDelta(text="hm"), finished()]
    run = await start(tmp_path, [only], limits=Limits(max_turns=2))
    await run.session.submit("go")
    assert len(run.client.requests) == 2
    await run.session.aclose()


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        (Limits(max_tokens=300), TurnOutcome.MAX_TOKENS),
        (Limits(max_budget_usd=0.001), TurnOutcome.MAX_BUDGET),
    ],
)
@pytest.mark.parametrize("profile", list(Profile))
async def test_tokens_and_money_are_limited(
    tmp_path: Path, limits: Limits, outcome: TurnOutcome, profile: Profile
) -> None:
    info = dataclasses.replace(FULL, profile=profile)
    answers = [
        [
            CallDelta(index=0, id=f"c{n}", name="glob", arguments=f'{{"pattern": "{n}"}}'),
            finished(Finish.TOOL_CALLS, 20 + n),
        ]
        for n in range(40)
    ]
    run = await start(tmp_path, answers, limits=limits, info=info)
    end = await run.session.submit("go")
    assert end.outcome is outcome
    usage = run.session.receipt.usage
    assert usage.input_tokens + usage.output_tokens <= (limits.max_tokens or 10**9)
    assert run.session.receipt.cost_usd <= (limits.max_budget_usd or 1)
    is_closed = any("last answer" in message.text for message in run.session.messages)
    assert is_closed == (profile is Profile.FULL) and run.session.receipt.num_turns > 3
    await run.session.aclose()


async def test_time_is_limited_also_inside_a_command(tmp_path: Path) -> None:
    run = await start(
        tmp_path, [step(call("shell", command="sleep 30")), DONE], limits=Limits(max_time_s=1.5)
    )
    loop = asyncio.get_running_loop()
    started = loop.time()
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.MAX_TIME and loop.time() - started < 8
    assert len(run.results) == 1 and "Interrupted" in run.results[0]
    await run.session.aclose()


async def test_circles_are_noticed_refused_and_ended_after_a_report(tmp_path: Path) -> None:
    report = step(text="No archive is here; nothing is done.")
    run = await start(tmp_path, [*[step(call("glob", pattern="*.zip"))] * 8, report])
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.EXECUTION and "8 times" in end.detail
    assert "glob *.zip (No files match)" in end.detail and "No file was changed" in end.detail
    results = run.results
    assert len(results) == 8
    assert results[0] == results[1] == "No files match."
    assert "result 3 times" in results[2] and "result 4 times" in results[3]
    assert all(text.startswith("refused: ") for text in results[4:])
    assert run.session.messages[-2].text.startswith("k3agent stops this turn: ")
    assert run.last.text == "No archive is here; nothing is done."
    check_prefixes(run.client.requests)
    await run.session.aclose()


async def test_a_model_that_goes_on_in_its_last_answer_is_not_obeyed(tmp_path: Path) -> None:
    run = await start(tmp_path, [step(call("glob", pattern="*.zip"))] * 20)
    assert (await run.session.submit("go")).outcome is TurnOutcome.EXECUTION
    assert len(run.results) == 9 and run.results[-1].startswith("Not run: ")
    assert len(run.client.requests) == 9
    await run.session.aclose()


CYCLE = [
    step(call("shell", command="cat a.py; exit 1")),
    step(call("grep", pattern="x")),
    step(call("read", path="a.py")),
    step(call("edit", path="a.py", old="x = 1", new="x = 1")),
]


@pytest.mark.parametrize(("info", "rounds"), [(FULL, 8), (COMPACT, 3)])
async def test_a_cycle_of_four_calls_ends(tmp_path: Path, info: Any, rounds: int) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "a.py").write_text("x = 1\n")
    run = await start(tmp_path, [*CYCLE * rounds, DONE], info=info)
    end = await run.session.submit("Fix it.")
    assert end.outcome is TurnOutcome.EXECUTION
    assert f"{rounds} times" in end.detail and "nothing changed in between" in end.detail
    assert "Tried: shell " in end.detail and "No file was changed" in end.detail
    assert 4 * (rounds - 1) < len(run.results) <= 4 * rounds
    assert run.session.receipt.files_changed == []
    is_told = any(message.origin is Origin.HARNESS for message in run.session.messages[1:-1])
    assert is_told == (info is FULL)
    await run.session.aclose()


async def test_a_cycle_that_changes_a_file_each_time_is_work(tmp_path: Path) -> None:
    rounds = [
        item
        for n in range(10)
        for item in (
            step(call("grep", pattern="nothing like this")),
            step(call("edit", path="a.py", old=f"x = {n}", new=f"x = {n + 1}")),
        )
    ]
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "a.py").write_text("x = 0\n")
    run = await start(tmp_path, [*rounds, DONE], info=COMPACT)
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    await run.session.aclose()


async def test_writing_the_same_or_back_and_forth_is_no_progress(tmp_path: Path) -> None:
    same = step(call("write", path="new.txt", content="a\n"))
    (tmp_path / "1").mkdir()
    run = await start(tmp_path / "1", [same] * 9, info=COMPACT)
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.EXECUTION and "Changed: new.txt." in end.detail
    assert len(run.results) == 4
    await run.session.aclose()
    (tmp_path / "2").mkdir()
    there = step(call("write", path="new.txt", content="a\n"))
    back = step(call("write", path="new.txt", content="b\n"))
    run = await start(tmp_path / "2", [there, back] * 9, info=COMPACT)
    assert (await run.session.submit("go")).outcome is TurnOutcome.EXECUTION
    assert len(run.results) < 9
    await run.session.aclose()


async def test_different_edits_that_fail_alike_end_too(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "a.py").write_text("x = 1\n")
    edits = [step(call("edit", path="a.py", old=f"zz{n}", new="y")) for n in "abcdefghij"]
    run = await start(tmp_path, [*edits, DONE], info=COMPACT)
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.EXECUTION and "failed 4 times in the same way: edit a.py" in end.detail
    await run.session.aclose()


async def test_the_compact_profile_always_ends(tmp_path: Path) -> None:
    run = await start(tmp_path, looping(60), info=COMPACT)
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.MAX_TURNS and "40 calls" in end.detail
    assert len(run.client.requests) == 40
    await run.session.aclose()


async def test_a_given_limit_of_calls_is_the_one_that_counts(tmp_path: Path) -> None:
    run = await start(tmp_path, [*looping(50), DONE], info=COMPACT, limits=Limits(max_turns=60))
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    await run.session.aclose()


async def test_notices_of_the_provider_are_passed_on(tmp_path: Path) -> None:
    end = Finished(finish=Finish.STOP, usage=Usage(), model="m", extra={"notice": "A call was recovered."})
    run = await start(tmp_path, [[TextDelta(text="hello"), end]])
    await run.session.submit("go")
    assert [event.text for event in run.of(Noticed)] == ["A call was recovered."]
    await run.session.aclose()


async def test_compact_says_once_what_it_does_not_read(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "AGENTS.md").write_text("Use tabs.\n")
    run = await start(tmp_path, [DONE, DONE], info=COMPACT, append_system_prompt="Be brief.")
    (notice,) = run.of(Noticed)
    assert "AGENTS.md" in notice.text and "--append-system-prompt" in notice.text
    await run.session.submit("go")
    await run.session.submit("more")
    await run.session.aclose()
    client = ReplayClient([DONE] * 3, info=COMPACT)
    again = Run(await Session.resume(run.session.id, options(tmp_path, client)), client, tmp_path / "ws")
    assert len(run.of(Noticed)) == 1 and not again.of(Noticed)
    await again.session.aclose()


async def test_equal_calls_with_news_are_no_circle(tmp_path: Path) -> None:
    count = [step(call("shell", command="echo x >> log; wc -l < log"))] * 12
    run = await start(tmp_path, [*count, DONE])
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    assert not any("refused" in text for text in run.results)
    await run.session.aclose()


async def test_timings_do_not_hide_a_circle(tmp_path: Path) -> None:
    command = "echo 1 failed in 0.$RANDOM s at $(date +%H:%M:%S)"
    run = await start(tmp_path, [step(call("shell", command=command))] * 12)
    assert (await run.session.submit("go")).outcome is TurnOutcome.EXECUTION
    await run.session.aclose()


async def test_three_answers_of_unusable_calls_end_the_turn(tmp_path: Path) -> None:
    bad = [step(ScriptedCall(name="read", arguments=f'{{"pat{n}": 1}}')) for n in range(9)]
    good = step(call("glob", pattern="*"))
    run = await start(tmp_path, [bad[0], bad[1], good, bad[2], bad[3], bad[4], DONE])
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.EXECUTION and "3 answers in a row" in end.detail
    assert len(run.results) == 6
    await run.session.aclose()


async def test_compact_an_identical_call_after_an_error_is_refused_until_something_changes(
    tmp_path: Path,
) -> None:
    edit = call("edit", path="a", old="x", new="y")
    same = ScriptedCall(name="edit", arguments='{"new": "y",  "old": "x", "path": "a"}')
    answers = [
        step(edit),
        step(same),
        step(call("write", path="a", content="x\n")),
        step(edit),
        DONE,
    ]
    run = await start(tmp_path, answers, info=COMPACT)
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    assert run.results[0].startswith("a does not exist.")
    assert run.results[1].startswith("this same call failed before")
    assert run.results[3].startswith("Edited a (1 replacement).")
    await run.session.aclose()


# --- interruption -----------------------------------------------------------------------------------------


async def test_interrupting_an_answer_keeps_what_arrived(tmp_path: Path) -> None:
    slow = Step(text="word " * 200, reasoning="r", piece=5, piece_delay_s=0.01)
    run = await start(tmp_path, [slow, DONE])
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(TextStreamed, 5)
    run.session.interrupt("the user pressed Esc")
    end = await task
    assert end.outcome is TurnOutcome.INTERRUPTED and end.detail == "the user pressed Esc"
    assert run.last.finish is Finish.INTERRUPTED and 0 < len(run.last.text) < 1000
    assert (await run.session.submit("go on")).outcome is TurnOutcome.SUCCESS
    check_prefixes(run.client.requests)
    await run.session.aclose()


async def test_interrupting_calls_gives_each_a_result(tmp_path: Path) -> None:
    calls = (
        call("glob", pattern="*"),
        call("shell", command="sleep 30"),
        call("write", path="a", content=""),
    )
    run = await start(tmp_path, [step(*calls), DONE])
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(CallStarted, 2)
    run.session.interrupt("the user pressed Esc")
    run.session.interrupt("again")
    assert (await task).outcome is TurnOutcome.INTERRUPTED
    assert len(run.results) == 3 and not (run.workspace / "a").exists()
    assert "the user pressed Esc" in run.results[1] and "the user pressed Esc" in run.results[2]
    assert (await run.session.submit("go on")).outcome is TurnOutcome.SUCCESS
    await run.session.aclose()


async def test_interrupting_while_calls_are_written_gives_each_a_result(tmp_path: Path) -> None:
    slow = Step(calls=(call("write", path="a", content="x" * 400),), piece=5, piece_delay_s=0.01)
    run = await start(tmp_path, [slow, DONE])
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(ArgumentsStreamed, 5)
    run.session.interrupt("the user pressed Esc")
    assert (await task).outcome is TurnOutcome.INTERRUPTED
    assert run.results == ["Not run: the user pressed Esc."] and run.last.role is Role.TOOL
    assert not any(run.workspace.iterdir())
    assert (await run.session.submit("go on")).outcome is TurnOutcome.SUCCESS
    await run.session.aclose()


async def test_interrupting_before_the_turn_has_begun(tmp_path: Path) -> None:
    run = await start(tmp_path, [DONE, DONE])
    task = asyncio.create_task(run.session.submit("go"))
    await asyncio.sleep(0)
    run.session.interrupt("at once")
    end = await task
    assert (end.outcome, end.detail) == (TurnOutcome.INTERRUPTED, "at once")
    assert run.client.requests == []
    assert (await run.session.submit("now")).outcome is TurnOutcome.SUCCESS
    await run.session.aclose()


async def test_interrupting_a_question_is_no_answer(tmp_path: Path) -> None:
    run = await start(
        tmp_path,
        [step(call("write", path="a", content="")), DONE],
        permission_mode="default",
        is_interactive=True,
    )
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(ApprovalAsked)
    run.session.interrupt("the user pressed Esc")
    assert (await task).outcome is TurnOutcome.INTERRUPTED
    run.session.answer(run.of(ApprovalAsked)[0].call_id, Decision.ALLOW)
    assert not any(run.workspace.iterdir()) and len(run.results) == 1
    await run.session.aclose()


@pytest.mark.parametrize("info", [FULL, COMPACT])
async def test_a_turn_that_was_stopped_can_be_reopened(tmp_path: Path, info: Any) -> None:
    answers = [step(call("shell", command="sleep 30")), step(call("write", path="a", content="")), DONE]
    run = await start(tmp_path, answers, info=info)
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(CallStarted)
    run.session.interrupt("SIGTERM")
    await task
    await run.session.aclose()
    again = await Session.resume(run.session.id, options(tmp_path, run.client))
    assert await again.continue_turn() is None
    end = await again.continue_turn(reopen=True)
    assert end is not None and end.outcome is TurnOutcome.SUCCESS and (run.workspace / "a").exists()
    assert await again.continue_turn(reopen=True) is None
    check_prefixes(run.client.requests)
    await again.aclose()


async def test_a_stopped_answer_is_reopened_with_a_word_of_the_harness(tmp_path: Path) -> None:
    slow = Step(text="word " * 200, piece=5, piece_delay_s=0.01)
    run = await start(tmp_path, [slow, DONE])
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(TextStreamed)
    run.session.interrupt("SIGTERM")
    await task
    end = await run.session.continue_turn(reopen=True)
    assert end is not None and end.outcome is TurnOutcome.SUCCESS
    assert run.client.requests[-1].messages[-1].origin is Origin.HARNESS
    await run.session.aclose()


async def test_a_timeout_inside_a_tool_is_not_the_limit_of_time(tmp_path: Path, monkeypatch: Any) -> None:
    run = await start(tmp_path, [step(call("glob", pattern="*")), DONE], limits=Limits(max_time_s=60))

    async def crash(self: Any, turn: int) -> None:
        raise TimeoutError("something else")

    monkeypatch.setattr("k3agent.agent.loop.TurnLoop.run", lambda self: crash(self, 1))
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.EXECUTION and "something else" in end.detail
    await run.session.aclose()


async def test_cancelling_the_caller_ends_the_turn_in_good_order(tmp_path: Path) -> None:
    run = await start(tmp_path, [step(call("shell", command="sleep 30")), DONE])
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(CallStarted)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run.of(TurnEnded)[0].outcome is TurnOutcome.INTERRUPTED
    assert run.session._store.last_turn(run.session.id).outcome == "interrupted"  # type: ignore[union-attr]
    await run.session.aclose()


async def test_closing_ends_what_runs(tmp_path: Path) -> None:
    run = await start(tmp_path, [step(call("shell", command="sleep 30")), DONE])
    task = asyncio.create_task(run.session.submit("go"))
    await run.until(CallStarted)
    await run.session.aclose()
    assert (await task).outcome is TurnOutcome.INTERRUPTED


async def test_one_turn_at_a_time(tmp_path: Path) -> None:
    run = await start(tmp_path, [step(call("shell", command="sleep 0.5")), DONE])
    task = asyncio.create_task(run.session.submit("go"))
    await asyncio.sleep(0.05)
    with pytest.raises(K3AgentError, match="in a turn already"):
        await run.session.submit("me too")
    assert (await task).outcome is TurnOutcome.SUCCESS
    await run.session.aclose()


async def test_interrupting_an_idle_session_is_nothing(tmp_path: Path) -> None:
    run = await start(tmp_path, [DONE])
    run.session.interrupt("no reason")
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    await run.session.aclose()


# --- sessions ---------------------------------------------------------------------------------------------


async def test_a_second_session_object_on_one_session_is_refused(tmp_path: Path) -> None:
    run = await start(tmp_path, [DONE])
    with pytest.raises(StoreError, match="in use"):
        await Session.resume(run.session.id, options(tmp_path, run.client))
    await run.session.aclose()
    again = await Session.resume(run.session.id[:8], options(tmp_path, run.client))
    assert again.id == run.session.id
    await again.aclose()


async def test_a_fork_goes_its_own_way(tmp_path: Path) -> None:
    run = await start(tmp_path, [step(call("glob", pattern="*")), DONE, step(text="A"), step(text="B")])
    await run.session.submit("first")
    before = story(run.session.messages)
    fork = await Session.fork(run.session.id, options(tmp_path, run.client))
    assert fork.id != run.session.id and story(fork.messages) == before
    await fork.submit("second")
    assert fork.messages[-1].text == "A" and story(run.session.messages) == before
    assert await fork.continue_turn() is None
    await fork.aclose()
    await run.session.aclose()


async def test_images_go_into_the_prompt(tmp_path: Path) -> None:
    run = await start(tmp_path, [DONE])
    image = ImagePart(mime="image/png", data=b"\x89PNG")
    await run.session.submit("look", images=[image])
    assert image in run.client.requests[0].messages[-1].parts
    await run.session.aclose()


async def test_a_full_window_is_an_outcome(tmp_path: Path) -> None:
    run = await start(tmp_path, [DONE], info=COMPACT)
    end = await run.session.submit("word " * 12_000)
    assert end.outcome is TurnOutcome.CONTEXT and "16384" in end.detail
    await run.session.aclose()


async def test_bad_options_are_config_errors(tmp_path: Path) -> None:
    client = ReplayClient([DONE])
    for more in ({"permission_mode": "yolo"}, {"allow": ("shell(",)}, {"sandbox": "maybe"}):
        with pytest.raises(ConfigError):
            await Session.create(options(tmp_path, client, **more))
    with pytest.raises(SandboxError):
        await Session.create(options(tmp_path, client, sandbox="strict"))
    # A refused start leaves neither a lock nor a session behind.
    store = SessionStore(tmp_path / "home")
    assert store.list_sessions() == []
    store.close()
    session = await Session.create(options(tmp_path, client))
    await session.aclose()


async def test_the_model_of_a_resumed_session_is_watched(tmp_path: Path) -> None:
    run = await start(tmp_path, [DONE])
    await run.session.submit("go")
    await run.session.aclose()
    again = Run(
        await Session.resume(run.session.id, options(tmp_path, ReplayClient([DONE], info=COMPACT))),
        None,
        tmp_path,
    )
    assert any("nano" in event.text and event.level == "warning" for event in again.of(Noticed))
    await again.session.aclose()
