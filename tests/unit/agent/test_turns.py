"""Whole turns and sessions: a scripted model, the real tools, the real store."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from support.agents import (
    COMPACT,
    DONE,
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

from k3agent.agent.session import Session
from k3agent.errors import (
    ConfigError,
    SandboxError,
    StoreError,
)
from k3agent.events import (
    MessageAdded,
    Noticed,
    TextStreamed,
    TurnEnded,
    TurnOutcome,
    TurnStarted,
    UsageChanged,
)
from k3agent.store.sessions import SessionStore
from k3agent.tools.sandbox import choice
from k3agent.types import (
    Effort,
    Finish,
    ImagePart,
    Origin,
    Role,
)

COMPACT_PROMPT = Path("prompts/system/compact.md").read_text().strip()


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
    assert [spec.name for spec in request.tools] == ["read", "write", "edit", "grep", "glob", "shell", "try"]
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


async def test_a_small_window_has_no_subagents(tmp_path: Path) -> None:
    small = await start(tmp_path, [], info=dataclasses.replace(FULL, context_window=16_384))
    large = await start(tmp_path, [], info=dataclasses.replace(FULL, context_window=65_536))
    assert set(large.session.tool_names) - set(small.session.tool_names) == {
        "task",
        "memory",
        "recall",
        "repomap",
    }
    await small.session.aclose()
    await large.session.aclose()


async def test_a_window_of_8k_is_enough_for_a_short_task(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "a.txt").write_text("one\n" * 2000)
    small = dataclasses.replace(FULL, context_window=8192)
    answers = [step(call("read", path="a.txt")), step(call("write", path="b.txt", content="x")), DONE]
    run = await start(tmp_path, answers, info=small)
    assert (await run.session.submit("go")).outcome is TurnOutcome.SUCCESS
    limits = [request.max_output_tokens or 0 for request in run.client.requests]
    assert limits[0] > 3000 and limits[-1] >= 1024
    await run.session.aclose()
    with pytest.raises(ConfigError, match="50% of the model's window of 4096"):
        await start(tmp_path, [DONE], info=dataclasses.replace(FULL, context_window=4096))


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
    assert end.outcome is TurnOutcome.CONTEXT and "16,384" in end.detail
    await run.session.aclose()


async def test_bad_options_are_config_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_probe", lambda program, has_network: ("", "bwrap is not installed"))
    client = ReplayClient([DONE])
    for more in ({"permission_mode": "yolo"}, {"allow": ("shell(",)}, {"sandbox": "maybe"}):
        with pytest.raises(ConfigError):
            await Session.create(options(tmp_path, client, **more))
    with pytest.raises(SandboxError, match=r"bwrap is not installed.*apt-get install bubblewrap"):
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
