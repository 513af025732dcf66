"""`k3agent run` as a process: formats, inputs, limits, checks, sessions; one result line, the last."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from support.headless import Bench, Ran
from support.runs import ANSWER, EDIT, READ, SHOW, check_done, check_history, served, task

from k3agent.providers.scripted import Fault, ScriptedCall, Step
from k3agent.tools.sandbox import choice
from k3agent.tools.sandbox.policy import Bounds


def in_shell(bench: Bench, command: str) -> subprocess.CompletedProcess[bytes]:
    """`command` in bash, `K3` in it being the run's beginning."""
    words = " ".join(map(shlex.quote, bench.command("run")))
    return subprocess.run(
        ["bash", "-c", command.replace("K3", words)],
        cwd=bench.workspace, env=bench.environ, capture_output=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("K3 hi <&-", 0),
        ("K3 hi >&-", 0),
        ("K3 hi 2>&-", 0),
        ("K3 hi <&- >&- 2>&-", 0),
        ("K3 hi >/dev/full", 1),
        ("K3 hi 2>/dev/full", 0),
        ("K3 hi --base-url 'http://[::1'", 52),
        ("d=$(mktemp -d); cd $d; rmdir $d; K3 hi", 2),
        ("mkdir $'b\\xff'; cd $'b\\xff'; K3 hi", 2),
        ("mkdir $'\\u3000 \\u00a0'; cd $'\\u3000 \\u00a0'; K3 hi", 0),
    ],
)
def test_odd_streams_and_places_are_no_crash(bench: Bench, command: str, code: int) -> None:
    with served(bench, [Step(text="fine")]):
        ran = in_shell(bench, command)
    assert ran.returncode == code, ran.stderr
    assert b"Traceback" not in ran.stderr
    assert b"crashed" not in ran.stderr + ran.stdout


@pytest.mark.parametrize("environ", [{}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_a_prompt_is_utf_8_whatever_the_locale(bench: Bench, environ: dict[str, str]) -> None:
    bench.extra.update(environ)
    with served(bench, [Step(text="fine")]) as server:
        assert in_shell(bench, r"K3 $'h\xc3\xa9 \xff'").returncode == 0
    assert server.requests[0].json["messages"][-1]["content"] == "h\xe9 \ufffd"


def test_a_named_pipe_is_not_waited_for(bench: Bench) -> None:
    for name in ("pipe", ".gitignore", "AGENTS.md"):
        os.mkfifo(bench.workspace / name)
    calls = [
        ScriptedCall(name="glob", arguments={"pattern": "*"}),
        ScriptedCall(name="grep", arguments={"pattern": "two"}),
        ScriptedCall(name="write", arguments={"path": "pipe", "content": "x"}),
        ScriptedCall(name="read", arguments={"path": "pipe"}),
        ScriptedCall(name="edit", arguments={"path": "pipe", "old": "a", "new": "b"}),
        ScriptedCall(name="grep", arguments={"pattern": "x", "path": "pipe"}),
    ]
    with served(bench, [*(Step(calls=(call,)) for call in calls), Step(text=ANSWER)]):
        ran = bench.stream("hi", timeout_s=30)
    assert ran.code == 0


def test_text_gives_the_answer_alone_and_says_first_which_backend(bench: Bench, tmp_path: Path) -> None:
    with served(bench, task()):
        ran = bench.run("run", "Change it.", "-o", str(tmp_path / "answer.txt"))
    assert ran.code == 0, ran.err
    assert ran.out == f"{ANSWER}\n"
    assert (tmp_path / "answer.txt").read_text() == f"{ANSWER}\n"
    assert ran.err.splitlines()[0].startswith("k3agent: 127.0.0.1")
    assert "base_url was given as a flag" in ran.err.splitlines()[0]
    assert "\x1b" not in ran.err


def test_json_is_one_object(bench: Bench) -> None:
    with served(bench, task()):
        ran = bench.run("run", "Change it.", "--output-format", "json")
    result = check_done(bench, ran)
    assert len(ran.lines) == 1
    assert result["files_changed"] == ["a.txt"]
    assert result["tools"] == {"calls": 3, "invalid": 0, "failed": 0}
    assert result["num_turns"] == 4
    assert 0 < result["cache_hit_rate"] < 1


def test_stream_json_has_the_envelope(bench: Bench) -> None:
    with served(bench, task(Fault(kind="status", status=500))):
        ran = bench.stream("Change it.", "--include-partial-messages")
    check_done(bench, ran)
    lines = ran.lines
    assert all({"type", "session_id", "uuid"} <= set(line) for line in lines)
    assert len({line["session_id"] for line in lines}) == 1
    assert len({line["uuid"] for line in lines}) == len(lines)
    init = lines[0]
    assert (init["type"], init["subtype"]) == ("system", "init")
    assert "read" in init["tools"]
    retry = next(line for line in lines if line.get("subtype") == "retry")
    assert retry["attempt"] == 1
    kinds = {line["type"] for line in lines}
    assert kinds == {"system", "user", "assistant", "stream_event", "result"}
    blocks = [block for line in lines if line["type"] == "assistant" for block in line["message"]["content"]]
    assert [block["type"] for block in blocks].count("tool_use") == 3


def test_open_silent_stdin_does_not_block(bench: Bench) -> None:
    with served(bench, [Step(text="hello")]):
        process = bench.start("run", "Hi.", "--stdin", stdin=subprocess.PIPE)
        end = time.monotonic() + 100
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        has_ended = process.poll() is not None
        process.kill()
        out, err = process.communicate()
    assert has_ended and out == "hello\n", err


@pytest.mark.parametrize(
    ("flags", "given", "sent"),
    [(("-",), "from stdin", "from stdin"), (("Sum up:", "--stdin"), "some text", "Sum up:\n\nsome text")],
)
def test_prompt_from_stdin(bench: Bench, flags: tuple[str, ...], given: str, sent: str) -> None:
    with served(bench, [Step(text="ok")]) as server:
        assert bench.run("run", *flags, input=given).out == "ok\n"
    assert server.requests[0].json["messages"][-1]["content"] == sent


def test_user_messages_as_json_lines(bench: Bench) -> None:
    lines = "".join(
        json.dumps({"type": "user", "message": {"role": "user", "content": text}}) + "\n"
        for text in ("one", "two")
    )
    with served(bench, [Step(text="first"), Step(text="second")]) as server:
        flags = ("run", "--input-format", "stream-json", "--output-format", "stream-json")
        ran = bench.run(*flags, input=lines)
    assert ran.result["result"] == "second"
    assert len(server.requests) == 2


def test_slow_reader_loses_nothing(bench: Bench) -> None:
    def step(number: int) -> Step:
        command = f"head -c {20_000 + number} /dev/zero | tr '\\0' x"
        call = ScriptedCall(name="shell", arguments={"command": command})
        return Step(text=f"{number} " + "y" * 20_000, piece=5000, calls=(call,))

    steps = [*map(step, range(40)), Step(text="end")]
    with served(bench, steps, models=[{"id": "kimi-k3", "context_length": 1_048_576}]):
        process = bench.start("run", "Go.", "--output-format", "stream-json", stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        time.sleep(4)
        out = process.stdout.read()
        process.wait(10)
    ran = Ran(code=process.returncode, out=out, err="", took_s=0)
    assert ran.result["result"] == "end"
    assert len(out) > 1_600_000


def test_reader_that_leaves_ends_the_run(bench: Bench) -> None:
    steps = [Step(calls=(READ,)), Step(text="x" * 3000, piece=1, piece_delay_s=0.05)]
    with served(bench, steps):
        process = bench.start("run", "Go.", "--output-format", "stream-json", "--include-partial-messages")
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        # The answer alone would take 150 s.
        assert process.wait(100) in {1, 6}


def test_the_process_ends_although_a_background_child_lives(bench: Bench) -> None:
    child = ScriptedCall(name="shell", arguments={"command": "sleep 300", "background": True})
    loose = ScriptedCall(name="shell", arguments={"command": "setsid sleep 301 & echo $! > pid"})
    with served(bench, [Step(calls=(child,)), Step(calls=(loose,)), Step(text="done")]):
        ran = bench.run("run", "Go.", "--output-format", "json", timeout_s=200)
    assert ran.result["result"] == "done"
    with contextlib.suppress(OSError, ValueError):
        os.kill(int((bench.workspace / "pid").read_text()), signal.SIGKILL)


# --- limits, checks, schema, sessions ---


@pytest.mark.parametrize(
    ("flags", "subtype"),
    [(("--max-turns", "2"), "error_max_turns"), (("--max-tokens", "3000"), "error_max_tokens"),
     (("--max-time", "1"), "error_max_time")],
)  # fmt: skip
def test_limits_end_with_5(bench: Bench, flags: tuple[str, ...], subtype: str) -> None:
    def step(_: object) -> Step:
        command = {"command": f"sleep 0.1; echo {time.monotonic()}"}
        return Step(calls=(ScriptedCall(name="shell", arguments=command),))

    with served(bench, [step] * 60):
        ran = bench.stream("Go.", *flags)
    assert ran.code == 5, ran.out[-1500:]
    assert ran.result["subtype"] == subtype


def test_a_stopped_run_says_what_happened_and_goes_on_without_a_prompt(bench: Bench) -> None:
    with served(bench, task()):
        ran = bench.stream("Change two to TWO.", "--max-turns", "2")
    assert ran.code == 5
    text = ran.result["result"]
    assert "Stopped: the limit of 2 model calls" in text and "Changed: " not in text
    assert f"k3agent run --resume {ran.result['session_id']}" in text
    with served(bench, task()[1:]) as server:
        again = bench.run("run", "--resume", ran.result["session_id"], "--output-format", "stream-json")
    check_done(bench, again)
    check_history(server)


def test_a_model_in_circles_is_exit_1_with_a_report(bench: Bench) -> None:
    with served(bench, [Step(calls=(READ,))] * 8 + [Step(text="I only read.")]):
        ran = bench.stream("Change it.")
    assert (ran.code, ran.result["subtype"]) == (1, "error_during_execution")
    text = ran.result["result"]
    assert text.startswith("Not finished: the model made the same call")
    assert "Tried: read 8x. No file was changed" in text
    assert text.endswith("The model's last words, which nothing confirms:\nI only read.")


def test_a_claim_after_a_bad_end_is_no_answer(bench: Bench, tmp_path: Path) -> None:
    claim = "All tests pass now."
    with served(bench, [Step(calls=(EDIT,)), Step(text=claim)]):
        ran = bench.run("run", "Go.", "--check", "false", "--check-retries", "0", "-o", str(tmp_path / "a"))
    assert (ran.code, ran.out) == (4, "")
    assert (tmp_path / "a").read_text() == ""
    before, _, after = ran.err.partition("The model's last words")
    assert "Not accepted: failing checks: `false`. Changed: a.txt." in before
    assert claim not in before and claim in after


def test_a_failed_last_command_stands_in_the_receipt(bench: Bench) -> None:
    fails = ScriptedCall(name="shell", arguments={"command": "sh -c 'exit 3'"})
    with served(bench, [Step(calls=(SHOW,)), Step(calls=(fails,)), Step(text="All tests pass.")] * 2):
        ran = bench.run("run", "Go.")
        assert ran.err.splitlines()[-1] == "last command failed: sh -c 'exit 3' (exit code 3)"
        assert ran.out == "All tests pass.\n"
        result = bench.run("run", "Go.", "--output-format", "json").result
    assert result["last_command"] == {"command": "sh -c 'exit 3'", "exit_code": 3}


def test_a_failed_last_test_run_is_said_behind_the_answer(bench: Bench) -> None:
    (bench.workspace / "test.sh").write_text("exit 1")
    fails = ScriptedCall(name="shell", arguments={"command": "sh test.sh"})
    with served(bench, [Step(calls=(fails,)), Step(calls=(SHOW,)), Step(text="All tests pass.")] * 2):
        ran = bench.run("run", "Fix the test.")
        assert (ran.code, ran.out) == (0, "All tests pass.\n")
        warning = "The last test run failed: sh test.sh (exit code 1)."
        assert ran.err.splitlines()[-1] == warning and ran.err.count(warning) == 1
        result = bench.run("run", "Fix the test.", "--output-format", "json").result
    assert result["last_test_run"] == {"command": "sh test.sh", "outcome": "failed", "exit_code": 1}
    assert result["remarks"] == [{"kind": "tests", "text": warning}]


def test_plan_mode_names_the_mode_that_works(bench: Bench) -> None:
    with served(bench, [Step(calls=(EDIT,)), Step(text="I would change it.")]):
        ran = bench.stream("Go.", "--permission-mode", "plan")
    assert ran.code == 3
    assert f"--resume {ran.result['session_id']} --permission-mode auto" in ran.result["result"]


def test_nobody_listening_on_this_computer_ends_at_once(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ran = bench.stream("Go.", "--base-url", f"http://127.0.0.1:{port}/v1")
    assert (ran.code, ran.result["subtype"]) == (75, "error_provider")
    assert "no server listens at" in ran.result["result"] and "k3agent serve" in ran.result["result"]
    assert "attempt" not in ran.err


def test_a_server_with_8k_and_a_limit_for_one_answer(bench: Bench) -> None:
    models = [{"id": "small", "context_length": 8192}]
    with served(bench, task(), models=models) as server:
        check_done(bench, bench.stream("Change two to TWO.", "--max-output-tokens", "700"))
    assert {request.json["max_completion_tokens"] for request in server.requests} == {700}


@pytest.mark.parametrize(("flags", "given"), [(("  ",), None), (("-",), " \n"), (("--stdin",), "")])
def test_a_blank_prompt_is_a_usage_error_and_leaves_no_session(
    bench: Bench, flags: tuple[str, ...], given: str | None
) -> None:
    with served(bench, [Step(text="never")]) as server:
        ran = bench.run("run", *flags, "--output-format", "json", input=given)
    assert (ran.code, server.requests) == (2, [])
    assert "no prompt" in ran.result["result"] and "--resume" not in ran.err
    assert bench.run("sessions", "list").out == ""


def test_without_user_messages_there_is_nothing_to_go_on_with(bench: Bench) -> None:
    with served(bench, [Step(text="never")]):
        ran = bench.run("run", "--input-format", "stream-json", input="")
    assert ran.code == 2
    assert "no user message" in ran.err and "--resume" not in ran.err and "changed" not in ran.err


def test_a_prompt_that_is_too_long_is_not_to_be_resumed(bench: Bench) -> None:
    with served(bench, [Step(text="never")]) as server:
        ran = bench.run("run", "-", "--output-format", "json", input="word " * 300_000)
    assert (ran.code, ran.result["subtype"], server.requests) == (5, "error_context", [])
    assert "the prompt takes about" in ran.result["result"] and "--resume" not in ran.err


def test_check_decides(bench: Bench) -> None:
    steps = [Step(text="done"), Step(calls=(EDIT,)), Step(text=ANSWER)]
    with served(bench, steps):
        ran = bench.stream("Change it.", "--check", "grep -q TWO a.txt")
    result = check_done(bench, ran)
    assert result["checks"] == [{"command": "grep -q TWO a.txt", "exit_code": 0, "passed": True}]
    with served(bench, [Step(text="done")] * 3):
        ran = bench.stream("Change it.", "--check", "false", "--check-retries", "1")
    assert ran.code == 4, ran.out[-1500:]
    assert ran.result["subtype"] == "checks_failed"


def test_answer_by_schema(bench: Bench, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema))
    with served(bench, [Step(text='{"n": "x"}'), Step(text='```json\n{"n": 3}\n```')]):
        ran = bench.run("run", "Count.", "--json-schema", str(file), "--output-format", "json")
    assert ran.result["structured_output"] == {"n": 3}
    assert ran.code == 0
    with served(bench, [Step(text="no")] * 5):
        ran = bench.run("run", "Count.", "--json-schema", str(file), "--output-format", "json")
    assert ran.code == 1
    assert ran.result["structured_output"] is None


def test_continue_fork_and_ephemeral(bench: Bench) -> None:
    with served(bench, [Step(text="one"), Step(text="two"), Step(text="three"), Step(text="four")]) as server:
        first = bench.run("run", "First.", "--output-format", "json").result
        second = bench.run("run", "Second.", "--continue", "--output-format", "json").result
        third = bench.run("run", "Third.", "--continue", "--fork-session", "--output-format", "json").result
        bench.run("run", "Fourth.", "--ephemeral")
    assert first["session_id"] == second["session_id"] != third["session_id"]
    assert "First." in json.dumps(server.requests[2].json["messages"])
    listed = json.loads(bench.run("sessions", "list", "--json").out)
    assert {row["id"] for row in listed} == {first["session_id"], third["session_id"]}
    exported = bench.run("sessions", "export", first["session_id"], "--format", "json").out
    assert len(json.loads(exported)["messages"]) >= 4
    assert bench.run("sessions", "rm", first["session_id"], "--yes").code == 0
    assert len(json.loads(bench.run("sessions", "list", "--json").out)) == 1


def test_wrong_settings_are_52_with_a_result_line(bench: Bench) -> None:
    file = bench.root / "config" / "k3agent" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('model = "x"\nefort = "low"\n')
    ran = bench.run("run", "Hi.", "--output-format", "json")
    assert ran.code == 52
    assert "line 2" in ran.result["errors"][0]
    assert "Did you mean effort?" in ran.result["errors"][0]


def test_no_key_is_41(bench: Bench) -> None:
    ran = bench.run("run", "Hi.", "--provider", "moonshot", "--output-format", "json")
    assert ran.code == 41
    assert "MOONSHOT_API_KEY" in ran.result["errors"][0]


@pytest.mark.skipif(
    choice.choose(Bounds(home=Path.home()), has_network=False).name != "none", reason="here a sandbox works"
)
def test_strict_sandbox_without_one_is_44(bench: Bench) -> None:
    with served(bench, [Step(text="never")]):
        ran = bench.stream("Go.", "--sandbox", "strict")
    assert ran.code == 44, ran.out + ran.err
    assert ran.result["is_error"]


def test_denied_calls_are_told_to_the_model_and_in_the_result(bench: Bench) -> None:
    command = ScriptedCall(name="shell", arguments={"command": "cat a.txt"})
    with served(bench, [Step(calls=(command,)), Step(text="I may not.")]) as server:
        ran = bench.stream("Go.", "--deny", "shell")
    assert ran.result["permission_denials"], ran.out
    answered = [message for message in server.requests[-1].json["messages"] if message["role"] == "tool"]
    assert answered[0]["content"].startswith("Error: ")


def test_usage_errors_are_2_without_output(bench: Bench) -> None:
    for flags in (["run"], ["run", "x", "--no-such-flag"], ["run", "x", "--resume", "a", "--continue"], []):
        ran = bench.run(*flags)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err
