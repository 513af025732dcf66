"""What ends a turn besides the model: checks, limits, circles."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from support.agents import (
    COMPACT,
    DONE,
    FULL,
    ReplayClient,
    Run,
    call,
    check_prefixes,
    finished,
    options,
    start,
    step,
)

from k3agent.agent.checks import can_come, missing_program
from k3agent.agent.diskuse import DiskUse
from k3agent.agent.options import Limits, Receipt, SessionOptions
from k3agent.agent.policies import UNITS, LimitPolicy, reached
from k3agent.agent.session import Session
from k3agent.config.settings import load_settings
from k3agent.events import (
    CheckEnded,
    Noticed,
    TurnOutcome,
)
from k3agent.providers.base import Profile
from k3agent.providers.scripted import ScriptedCall
from k3agent.tools.sandbox.none import NoSandbox
from k3agent.types import (
    CallDelta,
    Finish,
    Finished,
    Origin,
    ReasoningDelta,
    Role,
    TextDelta,
    Usage,
)


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


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("nosuchprogram -q", "nosuchprogram"),
        ("cd . && timeout 5 nosuchprogram > log 2>&1", "nosuchprogram"),
        ("export A=1 && umask 022 && echo a && true", ""),
        ("nosuchprogram || true", ""),
        ("! nosuchprogram", ""),
        ("if nosuchprogram; then true; fi", ""),
        ("PATH=$PWD/bin nosuchprogram", ""),
        ("./nosuchprogram", ""),
        (". .venv/bin/activate && nosuchprogram", ""),
        ("pip install nosuchprogram && nosuchprogram", ""),
        ("timeout 60 make tools && nosuchprogram", ""),
        ("nosuchprogram && true", "nosuchprogram"),
        ("echo nosuchprogram 'a", ""),
    ],
)
def test_a_program_that_a_check_lacks(command: str, missing: str) -> None:
    assert missing_program(command, os.environ) == missing


@pytest.mark.parametrize(
    ("path", "can"),
    [
        ("", False),
        (None, False),
        ("/usr/bin", False),
        ("/usr/bin:", True),
        ("bin", True),
        ("{more}/bin", True),
    ],
)
def test_where_the_work_may_bring_a_program(tmp_path: Path, path: str | None, can: bool) -> None:
    """Without a PATH the system has places of its own; an empty part of it is the workspace."""
    more = tmp_path / "more"
    environ = {} if path is None else {"PATH": path.format(more=more)}
    assert can_come(environ, "bubblewrap", (tmp_path / "ws", more)) is can
    assert can_come(environ, "none", (tmp_path / "ws",))


@pytest.mark.parametrize(("may_come", "asked"), [(False, 1), (True, 4)])
async def test_a_check_without_its_program_goes_back_only_where_the_work_may_bring_it(
    tmp_path: Path, may_come: bool, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NoSandbox, "name", "none" if may_come else "a sandbox that stands")
    run = await start(tmp_path, [DONE] * 4, checks=("nosuchprogram -q",), sandbox="off")
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.CHECKS_FAILED and len(run.client.requests) == asked
    assert "no program nosuchprogram on PATH. Install it" in end.detail
    await run.session.aclose()


async def test_a_script_that_lacks_a_program_goes_back_to_the_model(tmp_path: Path) -> None:
    run = await start(tmp_path, [DONE] * 2, checks=("sh run.sh",), check_retries=1)
    (tmp_path / "ws" / "run.sh").write_text("nosuchprogram\n")
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.CHECKS_FAILED and len(run.client.requests) == 2
    assert run.session.receipt.checks[0]["exit_code"] == 127
    await run.session.aclose()


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


@pytest.mark.parametrize(("limit", "said"), [(1, "1 model call"), (2, "2 model calls")])
def test_a_limit_is_told_in_its_unit(limit: int, said: str) -> None:
    receipt = Receipt(num_turns=limit)
    policy = LimitPolicy(Limits(max_turns=limit), receipt, Profile.COMPACT, lambda: 0.0, DiskUse(()))
    found = policy.before_step(is_first=False)
    assert found is not None and found.detail == f"the limit of {said} is reached"


def test_what_has_set_a_limit_is_named(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "K3AGENT_LIMITS_MAX_TOKENS": "9"}
    config = tmp_path / "k3agent" / "config.toml"
    config.parent.mkdir()
    config.write_text("[limits]\nmax_turns = 3\nmax_time_s = 5\n")
    settings = load_settings(environ, tmp_path, {"limits.max_time_s": 7.0, "limits.max_disk_mb": 8.0})
    limits = SessionOptions.from_settings(
        settings, cwd=tmp_path, client=ReplayClient(), home=tmp_path, environ=environ, default_mode="auto",
        extra_dirs=(),
    ).limits  # fmt: skip
    told = {outcome: reached(limits, outcome) for outcome in UNITS if outcome is not TurnOutcome.MAX_BUDGET}
    assert told == {
        TurnOutcome.MAX_TURNS: f"the limit of 3 model calls (limits.max_turns in {config}) is reached",
        TurnOutcome.MAX_TOKENS: "the limit of 9 tokens ($K3AGENT_LIMITS_MAX_TOKENS) is reached",
        TurnOutcome.MAX_TIME: "the limit of 7.0 seconds (--max-time) is reached",
        TurnOutcome.MAX_DISK: "the limit of 8.0 MB of disk (--max-disk) is reached",
    }


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


async def test_a_workspace_that_grows_too_much_ends_the_run_with_a_report(tmp_path: Path) -> None:
    big = step(call("shell", command="head -c 3000000 /dev/zero > big.bin"))
    run = await start(tmp_path, [big, step(text="UNFINISHED: big.bin.")], limits=Limits(max_disk_mb=2))
    (tmp_path / "ws" / "there.bin").write_bytes(b"\0" * 4_000_000)
    # What was there before the run does not count.
    run.session._limits._disk.begin()
    end = await run.session.submit("go")
    assert end.outcome is TurnOutcome.MAX_DISK and "the limit of 2 MB of disk is reached" in end.detail
    assert len(run.client.requests) == 2
    await run.session.aclose()


async def test_disk_is_given_back(tmp_path: Path) -> None:
    big = step(call("shell", command="head -c 3000000 /dev/zero > big.bin; rm big.bin"))
    run = await start(tmp_path, [big, DONE], limits=Limits(max_disk_mb=2))
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    await run.session.aclose()
