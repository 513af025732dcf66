"""`k3agent run` as a process against a scripted server: every fault recovers or ends with the right code, and
with exactly one result line, the last.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from support.headless import Bench, Ran, make_bench

from k3agent.providers.scripted import FOREVER, Fault, ScriptedCall, ScriptedServer, Step, serving

READ = ScriptedCall(name="read", arguments={"path": "a.txt"})
EDIT = ScriptedCall(name="edit", arguments={"path": "a.txt", "old": "two", "new": "TWO"})
SHOW = ScriptedCall(name="shell", arguments={"command": "cat a.txt"})
ANSWER = "The second line is TWO now."


def task(*faults: Fault, at: int = 1, **fields: object) -> list[Step]:
    """Read, edit, show, answer; the faults hit the step at `at`, whose fields may be changed."""
    steps = [
        Step(reasoning="look first", calls=(READ,)),
        Step(reasoning="now change it", calls=(EDIT,)),
        Step(calls=(SHOW,)),
        Step(reasoning="that is it", text=ANSWER),
    ]
    values = {name: getattr(steps[at], name) for name in Step.__dataclass_fields__}
    steps[at] = Step(**{**values, "faults": faults, **fields})
    return steps


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


@contextlib.contextmanager
def served(bench: Bench, steps: list, **options: object) -> Iterator[ScriptedServer]:
    with serving(steps, **options) as server:
        bench.url = server.url
        yield server


def check_done(bench: Bench, ran: Ran) -> dict:
    assert ran.code == 0, f"{ran.out[-1500:]}\n{ran.err[-1500:]}"
    result = ran.result
    assert result["subtype"] == "success"
    assert result["result"] == ANSWER
    assert (bench.workspace / "a.txt").read_text() == "one\nTWO\nthree\n"
    return result


def check_history(server: ScriptedServer) -> None:
    """What a strict endpoint checks of the last request: calls and results match, arguments are objects."""
    waiting: list[str] = []
    for message in server.requests[-1].json["messages"]:
        if message["role"] == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
            assert message["content"]
            continue
        assert waiting == []
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            waiting.append(call["id"])
    assert waiting == []


RECOVERS = {
    "nothing": task(),
    "stream cut": task(Fault(kind="cut")),
    "stream cut at once": task(Fault(kind="cut", after=1)),
    "no finish reason": task(Fault(kind="no_finish")),
    "429 with Retry-After": task(Fault(kind="status", status=429, headers=(("Retry-After", "1"),))),
    "500 twice": task(Fault(kind="status", status=500, times=2)),
    "connection refused": task(Fault(kind="refuse")),
    "garbage in the stream": task(Fault(kind="garbage")),
    "error in the stream": task(
        Fault(kind="error", body='{"error":{"message":"overloaded","type":"engine_overloaded_error"}}')
    ),
    "reasoning in the other field": task(reasoning_field="reasoning"),
    "reasoning as details": task(reasoning_field="reasoning_details"),
    "empty id": task(calls=(ScriptedCall(name="edit", arguments=EDIT.arguments, id=""),)),
    "no id, no index": task(
        calls=(ScriptedCall(name="edit", arguments=EDIT.arguments, id=None),), has_indexes=False
    ),
    "an id from before": task(calls=(ScriptedCall(name="edit", arguments=EDIT.arguments, id="call_0_0"),)),
    "slow pieces in odd bytes": task(write_bytes=37, piece_delay_s=0.005, newline="\r\n", keep_alive=True),
    "usage in the choice": task(usage_place="choice"),
    "no usage": task(usage_place="none"),
    "answer with reasoning only": [*task()[:3], Step(reasoning="hm"), task()[3]],
    "arguments cut in half": [Step(calls=(ScriptedCall(name="read", arguments='{"path": "a.'),)), *task()],
    "arguments of a wrong kind": [Step(calls=(ScriptedCall(name="read", arguments='["a.txt"]'),)), *task()],
    "arguments nested without end": [
        Step(calls=(ScriptedCall(name="read", arguments='{"a":' * 5000 + "1" + "}" * 5000),)), *task()
    ],
    "an unknown tool with arguments nested without end": [
        Step(calls=(ScriptedCall(name="no", arguments='{"a":' * 900 + "1" + "}" * 900),)), *task()
    ],
    "unknown tool": [Step(calls=(ScriptedCall(name="no_such_tool"),)), *task()],
    "arguments cut by the limit": [
        Step(calls=(ScriptedCall(name="read", arguments='{"path": "a.'),), finish="length"), *task()
    ],
    "markers in the content": [
        Step(
            text='<|open|>tools<|sep|><|open|>call tool="read" index="1"<|sep|><|open|>argument key="path" '
            'type="string"<|sep|>a.txt<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
        ),
        *task()[1:],
    ],
}  # fmt: skip


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


@pytest.mark.parametrize("name", RECOVERS)
def test_fault_recovers(bench: Bench, name: str) -> None:
    with served(bench, RECOVERS[name]) as server:
        ran = bench.stream("Change two to TWO in a.txt and show it.")
    check_done(bench, ran)
    check_history(server)
    assert "<|" not in ran.out


def test_every_request_is_a_prefix_of_the_next_and_carries_the_reasoning(bench: Bench) -> None:
    with served(bench, task(), models=[{"id": "kimi-k3"}]) as server:
        check_done(bench, bench.stream("Change two to TWO in a.txt and show it."))
    bodies = [
        request.body[: request.body.rindex(b'],"max_completion_tokens"')] for request in server.requests
    ]
    assert len(bodies) == 4
    assert all(later.startswith(earlier) for earlier, later in pairwise(bodies))
    sent = [message for message in server.requests[-1].json["messages"] if message["role"] == "assistant"]
    assert [message["reasoning_content"] for message in sent] == ["look first", "now change it", ""]
    arguments = sent[1]["tool_calls"][0]["function"]["arguments"]
    assert arguments == json.dumps(EDIT.arguments)


QUOTA = '{"error":{"message":"x","type":"exceeded_current_quota_error"}}'
ENDS = {
    "401": (Fault(kind="status", status=401, body="{}", times=FOREVER), 41, "error_provider"),
    "403": (Fault(kind="status", status=403, body="{}", times=FOREVER), 41, "error_provider"),
    "404": (Fault(kind="status", status=404, body="{}", times=FOREVER), 1, "error_provider"),
    "500 for ever": (Fault(kind="status", status=500, times=FOREVER), 75, "error_provider"),
    "quota": (Fault(kind="status", status=429, body=QUOTA, times=FOREVER), 75, "error_provider"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_fault_ends_the_run_and_the_session_can_be_resumed(bench: Bench, name: str) -> None:
    fault, code, subtype = ENDS[name]
    bench.extra["K3AGENT_RETRY_MAX_TIME_S"] = "1.5"
    with served(bench, task(fault)):
        ran = bench.stream("Change two to TWO in a.txt.")
    assert ran.code == code, ran.out + ran.err
    assert ran.result["subtype"] == subtype
    assert ran.result["is_error"]
    assert ran.result["errors"]
    assert ran.took_s < 6
    assert (bench.workspace / "a.txt").read_text() == "one\ntwo\nthree\n"
    with served(bench, task()[1:]) as server:
        again = bench.stream("Go on.", "--resume", ran.result["session_id"])
    check_done(bench, again)
    assert again.result["session_id"] == ran.result["session_id"]
    check_history(server)


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.parametrize("moment", ["streaming", "in a command"])
def test_signal_ends_with_one_result(bench: Bench, signum: signal.Signals, code: int, moment: str) -> None:
    slow = Step(text="x" * 3000, piece=1, piece_delay_s=0.05)
    command = ScriptedCall(name="shell", arguments={"command": "echo $$ > pid; sleep 60"})
    steps = [Step(calls=(READ,)), slow if moment == "streaming" else Step(calls=(command,))]
    with served(bench, steps) as server:
        process = bench.start("run", "Go.", "--output-format", "stream-json")
        wait_for(lambda: len(server.requests) == 2)
        if moment == "in a command":
            wait_for(
                lambda: (bench.workspace / "pid").exists() and (bench.workspace / "pid").read_text().strip()
            )
        time.sleep(0.2)
        began = time.monotonic()
        process.send_signal(signum)
        time.sleep(0.01)
        # A wrapper sends it once more.
        process.send_signal(signum)
        out, err = process.communicate(timeout=10)
    ran = Ran(code=process.returncode, out=out, err=err, took_s=time.monotonic() - began)
    assert ran.code == code, out + err
    assert ran.result["subtype"] == "interrupted"
    assert ran.took_s < 5
    if moment == "in a command":
        pid = int((bench.workspace / "pid").read_text())
        wait_for(lambda: not alive(pid))
    with served(bench, task()[1:]) as server:
        check_done(bench, bench.stream("Go on.", "--resume", ran.result["session_id"]))
    check_history(server)


def test_kill_9_in_a_command_then_resume_ends_the_same(bench: Bench) -> None:
    command = ScriptedCall(name="shell", arguments={"command": "touch started; sleep 30"})
    steps = [Step(calls=(READ,)), Step(calls=(EDIT,)), Step(calls=(command,))]
    with served(bench, steps):
        process = bench.start("run", "Go.", "--output-format", "stream-json")
        wait_for(lambda: (bench.workspace / "started").exists())
        process.kill()
        out, _ = process.communicate(timeout=10)
    session_id = json.loads(out.splitlines()[0])["session_id"]
    with served(bench, task()[2:]) as server:
        ran = bench.run("run", "--resume", session_id, "--output-format", "stream-json")
    result = check_done(bench, ran)
    assert result["session_id"] == session_id
    check_history(server)
    texts = json.dumps(server.requests[0].json["messages"])
    assert texts.count("Go.") == 1


def test_kill_9_while_streaming_then_resume(bench: Bench) -> None:
    steps = [Step(calls=(READ,)), Step(text="x" * 3000, piece=1, piece_delay_s=0.05)]
    with served(bench, steps) as server:
        process = bench.start("run", "Go.", "--output-format", "stream-json")
        wait_for(lambda: len(server.requests) == 2)
        time.sleep(0.3)
        process.kill()
        out, _ = process.communicate(timeout=10)
    session_id = json.loads(out.splitlines()[0])["session_id"]
    with served(bench, task()[1:]) as server:
        check_done(bench, bench.run("run", "--resume", session_id, "--output-format", "stream-json"))
    check_history(server)


def wait_for(condition, limit_s: float = 20) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


# --- formats and inputs ---


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
        began = time.monotonic()
        while process.poll() is None and time.monotonic() - began < 15:
            time.sleep(0.05)
        took_s = time.monotonic() - began
        process.kill()
        out, err = process.communicate()
    assert out == "hello\n", err
    assert took_s < 5


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
        began = time.monotonic()
        assert process.wait(15) in {1, 6}
    assert time.monotonic() - began < 10


def test_the_process_ends_although_a_background_child_lives(bench: Bench) -> None:
    child = ScriptedCall(name="shell", arguments={"command": "sleep 300", "background": True})
    loose = ScriptedCall(name="shell", arguments={"command": "setsid sleep 301 & echo $! > pid"})
    with served(bench, [Step(calls=(child,)), Step(calls=(loose,)), Step(text="done")]):
        ran = bench.run("run", "Go.", "--output-format", "json", timeout_s=30)
    assert ran.result["result"] == "done"
    assert ran.took_s < 12
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
    assert text.startswith("I only read.\n\nNot finished: the model made the same call")
    assert "Tried: read 8x. No file was changed" in text


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
    assert ran.took_s < 2


def test_signal_before_the_first_request(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        bench.url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        process = bench.start("run", "Go.", "--output-format", "stream-json")
        silent.settimeout(20)
        connection, _ = silent.accept()
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=10)
        connection.close()
    ran = Ran(code=process.returncode, out=out, err=err, took_s=0)
    assert ran.code == 130, out + err
    assert ran.result["subtype"] == "interrupted"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_while_modules_load(bench: Bench, signum: signal.Signals, code: int) -> None:
    with served(bench, [Step(text="never", delay_s=20)]):
        process = bench.start("run", "Go.", "--output-format", "json")
        wait_for(lambda: catches(process.pid, signal.SIGTERM))
        process.send_signal(signum)
        out, err = process.communicate(timeout=10)
    ran = Ran(code=process.returncode, out=out, err=err, took_s=0)
    assert ran.code == code, out + err
    assert ran.result["subtype"] == "interrupted"
    assert f"signal {signum.name}" in ran.result["result"]


def catches(pid: int, signum: signal.Signals) -> bool:
    """Does this process have a handler of its own for the signal?"""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(mask & 1 << (signum - 1))


def test_nohup_is_respected(bench: Bench) -> None:
    with served(bench, [Step(text="x" * 60, piece=1, piece_delay_s=0.03)]) as server:
        command = ["nohup", *bench.command("run", "Go.", "--output-format", "json")]
        process = subprocess.Popen(
            command, cwd=bench.workspace, env=bench.environ, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_for(lambda: len(server.requests) == 1)
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate(timeout=20)
    assert Ran(code=process.returncode, out=out, err="", took_s=0).result["subtype"] == "success"


@pytest.mark.skipif(shutil.which("bwrap") is not None, reason="here a sandbox works")
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
