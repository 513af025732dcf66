"""`k3agent run` with nobody there for long: goals, receipts, questions, checks."""

from __future__ import annotations

import json
from pathlib import Path

from support.headless import Bench
from support.runs import served

from k3agent.providers.scripted import ScriptedCall, Step


def write(name: str, text: str) -> ScriptedCall:
    return ScriptedCall(name="write", arguments={"path": name, "content": text})


ASK = ScriptedCall(name="ask", arguments={"question": "Tabs?", "options": ["yes", "no"], "default": "no"})


def test_goals_are_worked_for_one_after_the_other_until_the_checks_pass(bench: Bench) -> None:
    steps = [
        Step(text="Done."),  # the check says no, and it goes back
        Step(calls=(write("made.txt", "one\n"), ASK)),
        Step(text="Now it is there."),
        Step(calls=(write("more.txt", "two\n"),)),
        Step(text="Both are there."),
    ]
    (bench.root / "goals.txt").write_text("# later\nMake more.txt\n")
    with served(bench, steps) as server:
        ran = bench.run(
            "run", "--goal", "Make made.txt", "--goals", str(bench.root / "goals.txt"),
            "--check", "test -s made.txt",
            "--output-format", "json", "--receipt", str(bench.root / "receipt.json"),
        )  # fmt: skip
    assert ran.code == 0, ran.out + ran.err
    result = ran.result
    assert result["goals"] == [
        {"goal": "Make made.txt", "state": "reached"},
        {"goal": "Make more.txt", "state": "reached"},
    ]
    assert result["questions"][0]["taken"] == "no"
    assert "? Tabs? (went on with: no)" in ran.err
    prompts = [m["content"] for m in server.requests[-1].json["messages"] if m["role"] == "user"]
    assert any("`test -s made.txt`" in str(prompt) for prompt in prompts)
    check_receipt(json.loads((bench.root / "receipt.json").read_text()), bench.workspace, result)


def check_receipt(receipt: dict, workspace: Path, result: dict) -> None:
    assert receipt["schema"] == "k3agent-receipt/1" and receipt["cwd"] == str(workspace)
    before, after = receipt["tree_before"], receipt["tree_after"]
    assert before["sha256"] != after["sha256"]
    assert (before["files"], after["files"]) == (1, 3)
    assert [entry["tool"] for entry in receipt["ran"]] == ["write", "ask", "write"]
    assert receipt["ran"][0]["state"] == "done" and receipt["ran"][0]["files"] == ["made.txt"]
    assert receipt["result"]["checks"] == result["checks"] and receipt["result"]["exit_code"] == 0
    assert receipt["result"]["usage"] == result["usage"]
    assert receipt["versions"]["k3agent"] and receipt["session"]["model"]
    assert [prompt.splitlines()[0] for prompt in receipt["prompts"]] == ["Make made.txt", "Make more.txt"]


def test_a_goal_needs_a_check(bench: Bench) -> None:
    with served(bench, []):
        ran = bench.run("run", "--goal", "Make it better")
    assert ran.code == 2
    assert "needs at least one check" in ran.out + ran.err


def test_a_goal_that_is_not_reached_ends_with_4_and_its_queue_is_kept(bench: Bench) -> None:
    circle = Step(calls=(ScriptedCall(name="glob", arguments={"pattern": "*.zip"}),))
    stuck = [Step(text="Done."), *[circle] * 8, Step(text="I am stuck.")]
    flags = ("--goal", "Make made.txt", "--goal", "Make more.txt", "--check", "test -s made.txt")
    with served(bench, stuck * 3) as server:
        ran = bench.run("run", *flags, "--output-format", "json", timeout_s=110)
    assert ran.code == 4, ran.out + ran.err
    assert [goal["state"] for goal in ran.result["goals"]] == ["given up", "open"]
    starts = [
        message
        for message in server.requests[-1].json["messages"]
        if message["role"] == "user" and "went in circles" in str(message["content"])
    ]
    assert len(starts) == 2
    # The rest of the queue is gone on with by the session.
    made = Step(calls=(write("made.txt", "x"), write("more.txt", "two\n")))
    # More often than a run without goals would send it back.
    with served(bench, [*[Step(text="There.")] * 5, made, Step(text="There now.")]) as server:
        again = bench.run(
            "run", "--resume", ran.result["session_id"], "--output-format", "json",
        )  # fmt: skip
    assert again.code == 0, again.out + again.err
    assert [goal["state"] for goal in again.result["goals"]] == ["given up", "reached"]
    assert str(server.requests[-1].json["messages"]).count("went in circles") == 2
    # Without being named again.
    assert [check["command"] for check in again.result["checks"]] == ["test -s made.txt"]
    assert (bench.workspace / "more.txt").read_text() == "two\n"


def test_what_goals_exclude(bench: Bench) -> None:
    for flags in (("do it", "--goal", "g"), ("--goal", ""), ("--goals", "/none.txt")):
        ran = bench.run("run", *flags)
        assert ran.code == 2 and "--goal" in ran.err, ran.err


def test_a_receipt_that_cannot_be_written_is_told_before_the_work(bench: Bench) -> None:
    ran = bench.run("run", "do it", "--receipt", "/no/such/folder/r.json")
    assert ran.code == 2 and "its folder is not there" in ran.err


def test_who_finishes_a_run_has_its_checks_made_and_a_new_prompt_has_not(bench: Bench) -> None:
    flags = ("--max-turns", "1", "--check", "test -s made.txt", "--output-format", "json")
    with served(bench, [Step(calls=(ScriptedCall(name="glob", arguments={"pattern": "*"}),))]):
        first = bench.run("run", "Make made.txt", *flags)
    assert first.code == 5, first.out + first.err
    resumed = ("run", "--resume", first.result["session_id"], "--output-format", "json")
    with served(bench, [Step(text="Done.")] * 2):
        again = bench.run(*resumed, "--check-retries", "0")
    assert again.code == 4 and [check["passed"] for check in again.result["checks"]] == [False]
    with served(bench, [Step(text="Hello.")]):
        other = bench.run(*resumed, "Say hello")
    assert other.code == 0 and other.result["checks"] == [], other.out
