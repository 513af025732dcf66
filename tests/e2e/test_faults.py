"""`k3agent run` against a server that fails: every fault recovers or ends with the right code."""

from __future__ import annotations

import json
import resource
from itertools import pairwise

import pytest
from support.headless import Bench
from support.runs import EDIT, check_done, check_history, served, task

from k3agent.providers.scripted import FOREVER, Fault, ScriptedCall, Step

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
    assert (bench.workspace / "a.txt").read_text() == "one\ntwo\nthree\n"
    with served(bench, task()[1:]) as server:
        again = bench.stream("Go on.", "--resume", ran.result["session_id"])
    check_done(bench, again)
    assert again.result["session_id"] == ran.result["session_id"]
    check_history(server)


def test_without_descriptors_there_is_a_result_although_the_log_cannot_be_written(bench: Bench) -> None:
    with served(bench, task()):
        ran = bench.stream(
            "Change two to TWO in a.txt.",
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8)),
        )
    assert ran.code == 1
    assert "Too many open files" in ran.result["errors"][0]


def test_a_data_folder_that_is_a_file_is_named_and_not_to_be_deleted(bench: Bench) -> None:
    bench.extra["K3AGENT_HOME"] = str(bench.workspace / "a.txt")
    with served(bench, task()):
        ran = bench.stream("Change two to TWO in a.txt.")
    assert ran.code == 52
    assert "name another folder in K3AGENT_HOME" in ran.result["errors"][0]
    assert "Delete" not in ran.result["errors"][0]
