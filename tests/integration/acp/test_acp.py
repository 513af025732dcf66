"""`k3agent acp` as an editor meets it: a real process, the protocol's own client at the other end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import signal
import sys
from pathlib import Path

import pytest

pytest.importorskip("acp", reason="the client of the protocol is not installed")

from acp import RequestError, image_block, text_block
from acp.connection import StreamDirection, StreamEvent
from acp.schema import (
    EmbeddedResourceContentBlock,
    McpServerStdio,
    ResourceContentBlock,
    TextResourceContents,
)
from support.acp_client import Editor, connected
from support.headless import Bench, make_bench
from support.runs import ANSWER, served, task

from k3agent.agent.watched import WatchedSession
from k3agent.events import ApprovalAsked, Decision
from k3agent.providers.scripted import FOREVER, Fault, ScriptedCall, Step
from k3agent.store.database import open_database
from k3agent.store.sessions import SessionStore

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"0" * 40).decode()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return make_bench(tmp_path)


async def test_a_task_is_streamed_with_calls_diffs_and_permissions(bench: Bench) -> None:
    editor = Editor()
    with served(bench, task()):
        async with connected(bench, editor) as line:
            assert line.hello.agent_capabilities.load_session
            assert line.hello.agent_info.name == "k3agent"
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            assert {mode.id for mode in session.modes.available_modes} >= {"plan", "default", "auto"}
            assert session.modes.current_mode_id == "default"
            ended = await line.agent.prompt(
                session_id=session.session_id, prompt=[text_block("make two into TWO")]
            )
    assert ended.stop_reason == "end_turn"
    assert ended.usage.output_tokens > 0
    assert editor.text() == ANSWER
    assert "look first" in editor.text("agent_thought_chunk")
    assert (bench.workspace / "a.txt").read_text() == "one\nTWO\nthree\n"

    calls = editor.of("tool_call")
    assert [(call.kind, call.status) for call in calls] == [
        ("read", "pending"), ("edit", "pending"), ("execute", "pending"),
    ]  # fmt: skip
    assert calls[0].locations[0].path == str(bench.workspace / "a.txt")
    change = calls[1].content[0]
    assert (change.type, change.old_text, change.new_text) == ("diff", "two", "TWO")
    assert change.path == str(bench.workspace / "a.txt")
    states = [(update.tool_call_id, update.status) for update in editor.of("tool_call_update")]
    for call in calls:
        assert states.index((call.tool_call_id, "in_progress")) < states.index(
            (call.tool_call_id, "completed")
        )
    assert "TWO" in editor.of("tool_call_update")[-1].content[0].content.text

    (first, options), *_ = editor.asked
    assert first.tool_call_id == calls[1].tool_call_id
    assert first.content[0].new_text == "TWO"
    assert [option.kind for option in options] == ["allow_once", "allow_always", "reject_once"]
    assert editor.of("usage_update")[-1].size > 0
    assert editor.of("session_info_update")[0].title == "make two into TWO"


async def test_a_denied_call_leaves_the_file_and_tells_the_model(bench: Bench) -> None:
    editor = Editor(choose=lambda call, options: options[-1].option_id)
    with served(bench, task()) as server:
        async with connected(bench, editor) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            await line.agent.prompt(session_id=session.session_id, prompt=[text_block("do it")])
    assert (bench.workspace / "a.txt").read_text() == "one\ntwo\nthree\n"
    results = [message for message in server.requests[-1].json["messages"] if message["role"] == "tool"]
    assert "the user said deny" in results[1]["content"]
    failed = [update for update in editor.of("tool_call_update") if update.status == "failed"]
    assert failed[0].tool_call_id == editor.of("tool_call")[1].tool_call_id


async def test_a_rule_for_the_session_is_asked_for_once(bench: Bench) -> None:
    edits = [
        Step(calls=(ScriptedCall(name="edit", arguments={"path": "a.txt", "old": old, "new": new}),))
        for old, new in (("one", "1"), ("two", "2"))
    ]
    editor = Editor(choose=lambda call, options: "allow-session")
    with served(bench, [*edits, Step(text="done")]):
        async with connected(bench, editor) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            await line.agent.prompt(session_id=session.session_id, prompt=[text_block("number them")])
    assert len(editor.asked) == 1
    assert (bench.workspace / "a.txt").read_text() == "1\n2\nthree\n"


async def test_modes_hold_from_the_next_call_on(bench: Bench) -> None:
    editor = Editor()
    with served(bench, task()):
        async with connected(bench, editor) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            await line.agent.set_session_mode(session_id=session.session_id, mode_id="accept-edits")
            with pytest.raises(RequestError) as refused:
                await line.agent.set_session_mode(session_id=session.session_id, mode_id="wild")
            await line.agent.prompt(session_id=session.session_id, prompt=[text_block("do it")])
    assert "wild" in str(refused.value)
    assert editor.of("current_mode_update")[0].current_mode_id == "accept-edits"
    assert all(call.kind != "edit" for call, _ in editor.asked)


async def test_cancel_ends_the_turn_while_the_model_writes_and_while_it_asks(bench: Bench) -> None:
    slow = Step(text="word " * 400, piece=5, piece_delay_s=0.05)
    with served(bench, [slow, *task()]):
        editor = Editor()
        async with connected(bench, editor) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            seen = asyncio.Event()
            editor.on_update = lambda update: seen.set() if "message_chunk" in update.session_update else None
            turn = asyncio.create_task(
                line.agent.prompt(session_id=session.session_id, prompt=[text_block("write much")])
            )
            await asyncio.wait_for(seen.wait(), 60)
            await line.agent.cancel(session_id=session.session_id)
            assert (await asyncio.wait_for(turn, 60)).stop_reason == "cancelled"

            asking = asyncio.Event()

            def never(call: object, options: object) -> None:
                asking.set()

            editor.choose = never
            turn = asyncio.create_task(
                line.agent.prompt(session_id=session.session_id, prompt=[text_block("do it")])
            )
            await asyncio.wait_for(asking.wait(), 60)
            await line.agent.cancel(session_id=session.session_id)
            assert (await asyncio.wait_for(turn, 60)).stop_reason == "cancelled"
    assert (bench.workspace / "a.txt").read_text() == "one\ntwo\nthree\n"


async def test_a_cancel_right_behind_its_prompt_is_not_lost(bench: Bench) -> None:
    """Both lie in the pipe when the agent looks: the prompt is taken back before anything of it is stored."""
    with served(bench, [Step(text="after all")]) as server:
        async with connected(bench, Editor()) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            # One with nothing to cancel does not wait for the next prompt.
            await line.agent.cancel(session_id=session.session_id)
            line.process.send_signal(signal.SIGSTOP)
            turn = asyncio.create_task(
                line.agent.prompt(session_id=session.session_id, prompt=[text_block("never mind")])
            )
            await asyncio.sleep(0.2)
            await line.agent.cancel(session_id=session.session_id)
            await asyncio.sleep(0.2)
            line.process.send_signal(signal.SIGCONT)
            assert (await asyncio.wait_for(turn, 60)).stop_reason == "cancelled"
            ended = await line.agent.prompt(session_id=session.session_id, prompt=[text_block("now")])
            assert ended.stop_reason == "end_turn"
    asked = [message["content"] for message in server.requests[-1].json["messages"]]
    assert not any("never mind" in str(content) for content in asked)


async def test_a_question_that_is_answered_elsewhere_is_taken_back(bench: Bench) -> None:
    asking, taken_back = asyncio.Event(), asyncio.Event()
    numbers: dict[str, list[object]] = {"session/request_permission": [], "$/cancel_request": []}

    def seen(event: StreamEvent) -> None:
        method = str(event.message.get("method"))
        if event.direction is StreamDirection.INCOMING and method in numbers:
            params = event.message["params"]
            numbers[method].append(params.get("requestId", event.message.get("id")))
            (taken_back if method.startswith("$") else asking).set()

    editor = Editor(choose=lambda call, options: None)
    with served(bench, task()):
        async with connected(bench, editor, observers=[seen]) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            turn = asyncio.create_task(
                line.agent.prompt(session_id=session.session_id, prompt=[text_block("do it")])
            )
            await asyncio.wait_for(asking.wait(), 60)
            watched = await WatchedSession.open(bench.home, session.session_id)
            assert watched is not None
            watched.subscribe(
                lambda event: (
                    watched.answer(event.call_id, Decision.ALLOW)
                    if isinstance(event, ApprovalAsked)
                    else None
                )
            )
            assert (await asyncio.wait_for(turn, 60)).stop_reason == "end_turn"
            await asyncio.wait_for(taken_back.wait(), 60)
            await watched.aclose()
    assert numbers["$/cancel_request"] == numbers["session/request_permission"]
    assert (bench.workspace / "a.txt").read_text() == "one\nTWO\nthree\n"


async def test_an_answered_question_is_not_taken_back(bench: Bench) -> None:
    methods: list[object] = []
    with served(bench, task()):
        async with connected(
            bench, Editor(), observers=[lambda event: methods.append(event.message.get("method"))]
        ) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            await line.agent.prompt(session_id=session.session_id, prompt=[text_block("do it")])
    assert "session/request_permission" in methods and "$/cancel_request" not in methods


async def test_a_session_without_a_prompt_is_in_no_list_and_goes(bench: Bench) -> None:
    with served(bench, []):
        async with connected(bench, Editor()) as line:
            await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            assert (await line.agent.list_sessions(cwd=str(bench.workspace))).sessions == []
        store = SessionStore(bench.home)
        assert len(store.list_sessions()) == 1, "an editor may still come back to it"
        assert bench.run("sessions", "list", "--json").out.strip() == "[]"
        with contextlib.closing(open_database(bench.home)) as db:
            db.execute("UPDATE sessions SET updated_at = '2020-01-01T00:00:00+00:00'")
            db.commit()
        async with connected(bench, Editor()):
            pass
        assert store.list_sessions() == []
        store.close()


async def test_sessions_are_listed_loaded_resumed_and_forked(bench: Bench) -> None:
    with served(bench, [*task(), Step(text="again"), Step(text="a fork")]) as server:
        async with connected(bench, Editor()) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            await line.agent.prompt(session_id=session.session_id, prompt=[text_block("do it")])
        editor = Editor()
        async with connected(bench, editor) as line:
            listed = await line.agent.list_sessions(cwd=str(bench.workspace))
            assert [(item.session_id, item.title) for item in listed.sessions] == [
                (session.session_id, "do it")
            ]
            await line.agent.load_session(
                cwd=str(bench.workspace), session_id=session.session_id, mcp_servers=[]
            )
            assert editor.text("user_message_chunk") == "do it"
            assert editor.text() == ANSWER
            assert [call.kind for call in editor.of("tool_call")] == ["read", "edit", "execute"]
            assert {update.status for update in editor.of("tool_call_update")} == {"completed"}
            await line.agent.close_session(session_id=session.session_id)
            editor.updates.clear()
            await line.agent.resume_session(
                cwd=str(bench.workspace), session_id=session.session_id, mcp_servers=[]
            )
            assert "user_message_chunk" not in editor.kinds()
            await line.agent.prompt(session_id=session.session_id, prompt=[text_block("and again")])
            assert editor.text() == "again"
            fork = await line.agent.fork_session(
                cwd=str(bench.workspace), session_id=session.session_id, mcp_servers=[]
            )
            assert fork.session_id != session.session_id
            await line.agent.prompt(session_id=fork.session_id, prompt=[text_block("fork")])
    last = [
        message["content"] for message in server.requests[-1].json["messages"] if message["role"] == "user"
    ]
    assert any("do it" in str(text) for text in last)
    # The transcript is the same bytes, whoever shows it.
    earlier, later = server.requests[3].json["messages"], server.requests[4].json["messages"]
    assert later[: len(earlier)] == earlier


async def test_images_links_and_attached_text_reach_the_model(bench: Bench) -> None:
    note = bench.workspace / "note.md"
    attached = EmbeddedResourceContentBlock(
        type="resource", resource=TextResourceContents(uri=note.as_uri(), text="remember the milk")
    )
    link = ResourceContentBlock(type="resource_link", uri=(bench.workspace / "a.txt").as_uri(), name="a.txt")
    with served(bench, [Step(text="seen")]) as server:
        async with connected(bench, Editor()) as line:
            assert line.hello.agent_capabilities.prompt_capabilities.image
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            blocks = [
                text_block("look at "),
                link,
                text_block(" and "),
                attached,
                image_block(PNG, "image/png"),
            ]
            await line.agent.prompt(session_id=session.session_id, prompt=blocks)
            with pytest.raises(RequestError):
                await line.agent.prompt(
                    session_id=session.session_id, prompt=[image_block("bm9uZQ==", "image/png")]
                )
    sent = server.requests[0].json["messages"][-1]["content"]
    words = next(part["text"] for part in sent if part["type"] == "text")
    assert words.startswith("look at @a.txt and @note.md")
    assert "remember the milk" in words
    assert any(part["type"] == "image_url" for part in sent)


async def test_unsaved_buffers_count_and_edits_go_through_the_editor(bench: Bench) -> None:
    path = str(bench.workspace / "a.txt")
    steps = [
        Step(calls=(ScriptedCall(name="read", arguments={"path": "a.txt"}),)),
        Step(
            calls=(ScriptedCall(name="edit", arguments={"path": "a.txt", "old": "unsaved", "new": "kept"}),)
        ),
        Step(calls=(ScriptedCall(name="write", arguments={"path": "new.txt", "content": "fresh\n"}),)),
        Step(text="done"),
    ]
    editor = Editor(buffers={path: "one\nunsaved\nthree\n"})
    with served(bench, steps) as server:
        async with connected(bench, editor, has_files=True) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            await line.agent.prompt(session_id=session.session_id, prompt=[text_block("keep it")])
    results = [message for message in server.requests[-1].json["messages"] if message["role"] == "tool"]
    assert "2\tunsaved" in results[0]["content"]
    assert editor.written == {
        path: "one\nkept\nthree\n",
        str(bench.workspace / "new.txt"): "fresh\n",
    }
    assert (bench.workspace / "a.txt").read_text() == "one\nkept\nthree\n"
    assert (bench.workspace / "new.txt").read_text() == "fresh\n"


async def test_an_editor_that_does_not_save_leaves_nothing_undone(bench: Bench) -> None:
    editor = Editor(saves=False)
    with served(bench, task()):
        async with connected(bench, editor, has_files=True) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            await line.agent.prompt(session_id=session.session_id, prompt=[text_block("do it")])
    assert editor.written
    assert (bench.workspace / "a.txt").read_text() == "one\nTWO\nthree\n"


async def test_output_of_commands_is_drawn_as_a_terminal_s_where_the_editor_can(bench: Bench) -> None:
    command = "echo first; sleep 1; echo second; false"
    steps = [Step(calls=(ScriptedCall(name="shell", arguments={"command": command}),)), Step(text="done")]
    editor = Editor()
    with served(bench, steps):
        async with connected(bench, editor, has_terminals=True) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            await line.agent.prompt(session_id=session.session_id, prompt=[text_block("go")])
    (call,) = editor.of("tool_call")
    assert call.content[0].type == "terminal"
    assert call.field_meta["terminal_info"]["terminal_id"] == call.content[0].terminal_id == call.tool_call_id
    metas = [update.field_meta or {} for update in editor.of("tool_call_update")]
    output = "".join(meta["terminal_output"]["data"] for meta in metas if "terminal_output" in meta)
    assert output.index("first") < output.index("second")
    assert output.count("second") == 1
    assert metas[-1]["terminal_exit"]["exit_code"] == 1


async def test_a_call_that_takes_long_to_write_is_shown_while_it_is_written(bench: Bench) -> None:
    long = ScriptedCall(name="write", arguments={"path": "long.txt", "content": "a line\n" * 60})
    quick = ScriptedCall(name="read", arguments={"path": "a.txt"})
    steps = [Step(calls=(long, quick), piece=12, piece_delay_s=0.05), Step(text="done")]
    editor = Editor()
    with served(bench, steps):
        async with connected(bench, editor) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            await line.agent.prompt(session_id=session.session_id, prompt=[text_block("go")])
    assert (bench.workspace / "long.txt").read_text() == "a line\n" * 60
    early, read = editor.of("tool_call")
    assert (early.kind, early.status, early.content) == ("edit", "pending", None)
    assert "long.txt" in early.title
    assert read.kind == "read"
    mine = [item for item in editor.of("tool_call_update") if item.tool_call_id == early.tool_call_id]
    assert mine[0].content[0].new_text == "a line\n" * 60
    assert mine[-1].status == "completed"
    (asked, _), *_ = editor.asked
    assert asked.tool_call_id == early.tool_call_id
    known = {call.tool_call_id for call in editor.of("tool_call")}
    assert {item.tool_call_id for item in editor.of("tool_call_update")} == known


async def test_plans_and_questions(bench: Bench) -> None:
    steps = [
        Step(
            calls=(
                ScriptedCall(
                    name="todo",
                    arguments={
                        "items": [{"text": "look", "status": "active"}, {"text": "act", "status": "pending"}]
                    },
                ),
            )
        ),
        Step(calls=(ScriptedCall(name="ask", arguments={"question": "Which?", "options": ["red", "blue"]}),)),
        Step(calls=(ScriptedCall(name="ask", arguments={"question": "What name?"}),)),
        Step(text="done"),
    ]
    editor = Editor(choose=lambda call, options: options[1].option_id, words="Ada")
    with served(bench, steps) as server:
        async with connected(bench, editor, has_forms=True) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            await line.agent.prompt(session_id=session.session_id, prompt=[text_block("plan")])
    entries = editor.of("plan")[0].entries
    assert [(entry.content, entry.status) for entry in entries] == [
        ("look", "in_progress"), ("act", "pending"),
    ]  # fmt: skip
    results = [message for message in server.requests[-1].json["messages"] if message["role"] == "tool"]
    assert "blue" in results[1]["content"]
    assert "Ada" in results[2]["content"]


async def test_servers_of_the_editor_and_commands_of_the_user_are_there(bench: Bench) -> None:
    pytest.importorskip("mcp_server_time", reason="the reference server is not installed")
    commands = bench.root / "config" / "k3agent" / "commands"
    commands.mkdir(parents=True)
    (commands / "greet.md").write_text("---\ndescription: Greets.\n---\nSay hello to $ARGUMENTS.")
    now = {"server": "The-time", "tool": "get_current_time", "arguments": '{"timezone":"UTC"}'}
    steps = [Step(calls=(ScriptedCall(name="mcp", arguments=now),)), Step(text="done"), Step(text="hello")]
    program = McpServerStdio(
        name="The time!",
        command=sys.executable,
        args=["-m", "mcp_server_time", "--local-timezone=UTC"],
        env=[],
    )
    editor = Editor()
    with served(bench, steps) as server:
        async with connected(bench, editor) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[program])
            (told,) = editor.of("available_commands_update")
            assert [(item.name, item.description) for item in told.available_commands] == [
                ("greet", "Greets.")
            ]
            await line.agent.prompt(session_id=session.session_id, prompt=[text_block("What time is it?")])
            await line.agent.prompt(session_id=session.session_id, prompt=[text_block("/greet Ada")])
    assert "get_current_time" in editor.asked[0][0].title
    result = next(m for m in server.requests[1].json["messages"] if m["role"] == "tool")
    assert "UTC" in result["content"]
    assert "Say hello to Ada." in str(server.requests[-1].json["messages"])


async def test_wrong_requests_are_answered_with_what_is_wrong(bench: Bench) -> None:
    with served(bench, [Step(text="fine")]):
        async with connected(bench, Editor()) as line:
            for request, words in (
                (line.agent.new_session(cwd="relative", mcp_servers=[]), "absolute"),
                (line.agent.new_session(cwd=str(bench.root / "gone"), mcp_servers=[]), "not a folder"),
                (line.agent.prompt(session_id="none", prompt=[text_block("x")]), "not open"),
                (line.agent.ext_method("wild", {}), "unknown method"),
                (line.agent.list_sessions(cursor="x"), "cursor"),
            ):
                with pytest.raises(RequestError) as refused:
                    await request
                assert words in str(refused.value)
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            ended = await line.agent.prompt(session_id=session.session_id, prompt=[text_block("still here?")])
            assert ended.stop_reason == "end_turn"


async def test_two_sessions_work_side_by_side(bench: Bench) -> None:
    other = bench.root / "other"
    other.mkdir()
    slow = Step(text="slow " * 30, piece=5, piece_delay_s=0.05)
    with served(bench, [slow, slow]):
        async with connected(bench, Editor()) as line:
            first = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            second = await line.agent.new_session(cwd=str(other), mcp_servers=[])
            turns = [
                asyncio.create_task(
                    line.agent.prompt(session_id=session.session_id, prompt=[text_block("go")])
                )
                for session in (first, second)
            ]
            with pytest.raises(RequestError, match="a turn is running"):
                await asyncio.sleep(0.3)
                await line.agent.prompt(session_id=first.session_id, prompt=[text_block("more")])
            await line.agent.cancel(session_id=first.session_id)
            ended = await asyncio.wait_for(asyncio.gather(*turns), 60)
            listed = await line.agent.list_sessions(cwd=str(other))
    assert [turn.stop_reason for turn in ended] == ["cancelled", "end_turn"]
    assert [item.session_id for item in listed.sessions] == [second.session_id]


async def test_a_session_that_another_process_has_is_not_taken(bench: Bench) -> None:
    with served(bench, [Step(text="fine")] * 2):
        async with connected(bench, Editor()) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            await line.agent.prompt(session_id=session.session_id, prompt=[text_block("go")])
            async with connected(bench, Editor()) as rival:
                with pytest.raises(RequestError, match="in use"):
                    await rival.agent.load_session(
                        cwd=str(bench.workspace), session_id=session.session_id, mcp_servers=[]
                    )


async def test_errors_of_the_endpoint_are_errors_of_the_prompt(bench: Bench) -> None:
    refused = Step(text="", faults=(Fault(kind="status", status=401, times=FOREVER),))
    with served(bench, [refused]):
        async with connected(bench, Editor()) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            with pytest.raises(RequestError) as error:
                await line.agent.prompt(session_id=session.session_id, prompt=[text_block("go")])
    assert error.value.code == -32000
    assert "k3agent login" in str(error.value)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_a_session_survives_the_end_of_its_process(bench: Bench, signum: signal.Signals) -> None:
    slow = Step(text="slow " * 400, piece=5, piece_delay_s=0.05)
    with served(bench, [slow, Step(text="on we go")]):
        editor = Editor()
        async with connected(bench, editor) as line:
            session = await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            seen = asyncio.Event()
            editor.on_update = lambda update: seen.set() if "message_chunk" in update.session_update else None
            turn = asyncio.create_task(
                line.agent.prompt(session_id=session.session_id, prompt=[text_block("go")])
            )
            await asyncio.wait_for(seen.wait(), 60)
            line.process.send_signal(signum)
            code = await asyncio.wait_for(line.process.wait(), 60)
            assert code == (-9 if signum is signal.SIGKILL else 128 + signum)
            await asyncio.wait([turn], timeout=10)
            turn.cancel()
        again = Editor()
        async with connected(bench, again) as line:
            await line.agent.load_session(
                cwd=str(bench.workspace), session_id=session.session_id, mcp_servers=[]
            )
            assert again.text("user_message_chunk") == "go"
            ended = await line.agent.prompt(session_id=session.session_id, prompt=[text_block("on")])
            assert ended.stop_reason == "end_turn"


async def test_the_process_ends_when_the_editor_does(bench: Bench) -> None:
    with served(bench, [Step(text="fine")]):
        async with connected(bench, Editor()) as line:
            await line.agent.new_session(cwd=str(bench.workspace), mcp_servers=[])
            line.process.stdin.close()
            assert await asyncio.wait_for(line.process.wait(), 60) == 0
