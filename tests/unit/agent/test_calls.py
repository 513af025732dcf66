"""The calls of an answer: order, results, secrets, permissions, questions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from support.agents import (
    COMPACT,
    DONE,
    FULL,
    call,
    options,
    start,
    step,
)

from k3agent.agent.session import Session
from k3agent.events import (
    ApprovalAsked,
    CallEnded,
    CallStarted,
    Decision,
    TurnOutcome,
)
from k3agent.providers.scripted import ScriptedCall


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


async def test_a_full_disk_is_said_to_the_model_as_what_it_is(tmp_path: Path, monkeypatch: Any) -> None:
    async def no_space(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("k3agent.tools.shell.ShellTool.run", no_space)
    run = await start(tmp_path, [step(call("shell", command="ls")), DONE])
    await run.session.submit("go")
    assert run.results == ["shell failed: No space left on device. Say so, or try another way."]
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


async def test_a_repeat_of_a_denied_call_is_blocked_too(tmp_path: Path) -> None:
    write = call("write", path="/etc/k3agent-test", content="x")
    run = await start(tmp_path, [step(write), step(write), step(text="It is written.")], info=COMPACT)
    assert (await run.session.submit("go")).outcome is TurnOutcome.PERMISSION
    assert "this same call failed before" in run.results[-1]
    await run.session.aclose()


async def test_a_turn_that_is_stopped_at_a_denied_call_is_blocked(tmp_path: Path) -> None:
    write = call("write", path="/etc/k3agent-test", content="x")
    for number, (info, again) in enumerate([(COMPACT, 3), (FULL, 8)]):
        root = tmp_path / str(number)
        root.mkdir()
        run = await start(root, [*[step(write)] * again, step(text="It may not be written.")], info=info)
        end = await run.session.submit("go")
        assert end.outcome is TurnOutcome.PERMISSION and "permission denied" in end.detail
        await run.session.aclose()
