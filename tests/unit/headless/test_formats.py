"""Lines of the formats: the envelope, one object a line, nothing that a terminal would obey."""

import json
from datetime import UTC, datetime

from k3agent.agent.options import Receipt
from k3agent.events import (
    CallEnded,
    CallProposed,
    MessageAdded,
    Noticed,
    PrefillProgressed,
    ReasoningStreamed,
    TaskChanged,
    TaskMessageAdded,
    TurnOutcome,
)
from k3agent.headless.formats import End, JsonFormat, Start, StreamJsonFormat, TextFormat
from k3agent.headless.progress import Progress
from k3agent.safety.visible import clean
from k3agent.types import (
    Finish,
    Message,
    MessageId,
    Origin,
    ReasoningPart,
    Role,
    SessionId,
    TextPart,
    ToolCall,
    ToolResult,
    Usage,
)

HEAD = {"session": SessionId("s"), "seq": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)}
START = Start(
    session_id="s", cwd="/w", model="m", provider="p", base_url="u", tools=("read",), permission_mode="auto",
    sandbox="none", context_window=1000,
)  # fmt: skip
RESULT_FIELDS = {
    "type", "subtype", "is_error", "result", "structured_output", "session_id", "num_turns", "duration_ms",
    "duration_api_ms", "total_cost_usd", "usage", "cache_hit_rate", "checks", "permission_denials",
    "files_changed", "tools", "errors", "exit_code",
}  # fmt: skip


def message(role: Role, *parts) -> MessageAdded:
    body = Message(
        id=MessageId("m"), parent=None, role=role, origin=Origin.MODEL, parts=parts,
        created_at=HEAD["at"], finish=Finish.TOOL_CALLS,
    )  # fmt: skip
    return MessageAdded(**HEAD, message=body)


def end(**fields) -> End:
    receipt = Receipt(usage=Usage(input_tokens=100, cached_tokens=75, output_tokens=5))
    return End(
        **{"outcome": TurnOutcome.SUCCESS, "exit_code": 0, "session_id": "s", "receipt": receipt, **fields}
    )


def streamed(*events, is_partial: bool = False) -> list[dict]:
    out: list[str] = []
    form = StreamJsonFormat(out.append, is_partial=is_partial)
    form.started(START)
    for event in events:
        form.event(event)
    form.ended(end(answer="a\u2028b\nc"))
    text = "".join(out)
    assert len(text.splitlines()) == len(out), "str.splitlines cuts at Unicode line ends as well"
    return [json.loads(line) for line in text.split("\n")[:-1]]


def test_result_line_has_the_contract_fields() -> None:
    line = end(answer="x").line
    assert set(line) >= RESULT_FIELDS
    assert line["cache_hit_rate"] == 0.75
    assert set(line["usage"]) == {"input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens"}


def test_blocks_of_messages() -> None:
    lines = streamed(
        message(
            Role.ASSISTANT,
            ReasoningPart(text="hm"),
            TextPart(text="I read."),
            ToolCall(id="c", name="read", arguments='{"path": "a"}'),
            ToolCall(id="d", name="read", arguments='{"path": '),
        ),
        message(Role.TOOL, ToolResult(call_id="c", content=(TextPart(text="bad"),), is_error=True)),
        ReasoningStreamed(**HEAD, text="never without the flag"),
    )
    assert [line["type"] for line in lines] == ["system", "assistant", "user", "result"]
    blocks = lines[1]["message"]["content"]
    assert blocks[0] == {"type": "thinking", "thinking": "hm"}
    assert blocks[2] == {"type": "tool_use", "id": "c", "name": "read", "input": {"path": "a"}}
    assert blocks[3]["raw_arguments"] == '{"path": '
    assert lines[1]["parent_tool_use_id"] is None
    result = {"type": "tool_result", "tool_use_id": "c", "content": "bad", "is_error": True}
    assert lines[2]["message"]["content"] == [result]
    assert lines[-1]["result"] == "a\u2028b\nc"
    assert all(line["session_id"] == "s" for line in lines)


def test_partial_text_only_with_the_flag() -> None:
    lines = streamed(ReasoningStreamed(**HEAD, text="hm"), is_partial=True)
    assert lines[1]["event"]["delta"] == {"type": "thinking_delta", "thinking": "hm"}


def test_text_and_json() -> None:
    out: list[str] = []
    TextFormat(out.append).ended(end(answer="x"))
    TextFormat(out.append).ended(end(answer=""))
    assert out == ["x\n"]
    out.clear()
    JsonFormat(out.append).ended(end(answer="x"))
    assert json.loads(out[0])["result"] == "x"


def test_progress_obeys_nothing_in_untrusted_text() -> None:
    out: list[str] = []
    progress = Progress(out.append, has_color=False)
    evil = "\x1b]0;owned\x07\x1b[2J\r\x9b31m"
    progress.event(CallProposed(**HEAD, call_id="c", tool="shell", arguments="{}", summary=evil))
    result = ToolResult(call_id="c", content=(TextPart(text=f"ok {evil}\n[exit code 0]"),))
    progress.event(CallEnded(**HEAD, call_id="c", tool="shell", result=result, duration_s=0.1))
    progress.event(Noticed(**HEAD, level="info", text=evil))
    text = "".join(out)
    assert not any((ord(char) < 32 and char != "\n") or 0x7F <= ord(char) < 0xA0 for char in text)
    assert clean("a\tb\nc") == "a\tb\nc"


def test_progress_shows_diffs_in_color_and_errors() -> None:
    out: list[str] = []
    progress = Progress(out.append, has_color=True)
    result = ToolResult(
        call_id="c", content=(TextPart(text="Edited a (1 replacement).\n@@ line 1 @@\n-x\n+y"),)
    )
    progress.event(CallEnded(**HEAD, call_id="c", tool="edit", result=result, duration_s=0.1))
    assert "\x1b[32m  +y\x1b[0m\n" in out
    assert "\x1b[31m  -x\x1b[0m\n" in out
    out.clear()
    progress.event(CallEnded(**HEAD, call_id="c", tool="try", result=result, duration_s=0.1))
    assert "\x1b[32m  +y\x1b[0m\n" in out
    progress.ended(end(exit_code=1, errors=["it broke"], outcome=TurnOutcome.PROVIDER))
    assert any("it broke" in line for line in out)
    assert any("--resume s" in line for line in out)


def test_the_way_back_comes_last() -> None:
    out: list[str] = []
    progress = Progress(out.append, has_color=False)
    for kind, text in (("undo", "To take it back"), ("tests", "The last test run failed")):
        progress.event(Noticed(**HEAD, level="warning", text=text, data={"remark": kind, "subject": ""}))
    assert out == []
    progress.ended(end())
    assert out[-2:] == ["The last test run failed\n", "To take it back\n"]


def test_a_terminal_gets_no_answer_that_it_would_obey() -> None:
    written: list[str] = []
    end = End(
        outcome=TurnOutcome.SUCCESS, exit_code=0, session_id="s", answer="a\x1b[2J\x9b1mb\n", report="",
        structured_output=None, duration_s=1.0, receipt=Receipt(), errors=[],
    )  # fmt: skip
    TextFormat(written.append, is_terminal=True).ended(end)
    TextFormat(written.append).ended(end)
    assert written == ["a�[2J�1mb\n", end.answer]


def test_reading_a_long_prompt_is_told_now_and_then() -> None:
    events = [PrefillProgressed(**HEAD, done=done, total=30_000) for done in range(0, 30_000, 1000)]
    told = [line for line in streamed(*events) if line.get("subtype") == "prefill"]
    assert [(line["done"], line["total"]) for line in told] == [(0, 30_000)]


def test_lines_of_subagents_name_the_call_that_started_them() -> None:
    own = message(Role.ASSISTANT, ToolCall(id="c1", name="task", arguments="{}"))
    child = TaskMessageAdded(
        **HEAD, call_id="c1", task=2, child=SessionId("child"), message=message(Role.ASSISTANT).message
    )
    moved = TaskChanged(
        **HEAD, call_id="c1", task=2, title="look", state="running", child=SessionId("child"), cost_usd=0.5
    )
    _, first, second, third, *_ = streamed(own, child, moved)
    assert first["parent_tool_use_id"] is None and "task" not in first
    assert (second["type"], second["parent_tool_use_id"], second["task"]) == ("assistant", "c1", 2)
    assert second["task_session_id"] == "child" and second["session_id"] == "s"
    assert (third["type"], third["subtype"], third["state"]) == ("system", "task", "running")
    assert third["parent_tool_use_id"] == "c1" and third["cost_usd"] == 0.5


def test_progress_tells_a_new_state_once() -> None:
    said: list[str] = []
    progress = Progress(said.append, has_color=False)
    for turns in (0, 1, 2):
        progress.event(
            TaskChanged(
                **HEAD,
                call_id="c",
                task=1,
                title="l\x1bk",
                state="running",
                child=SessionId("x"),
                num_turns=turns,
            )
        )
    failed = TaskChanged(
        **HEAD,
        call_id="c",
        task=1,
        title="look",
        state="failed",
        child=SessionId("x"),
        detail="no",
        num_turns=3,
    )
    progress.event(failed)
    text = "".join(said)
    assert (
        text.count("running") == 1 and "look: failed (3 steps, 0 tokens): no" in text and "\x1b" not in text
    )
