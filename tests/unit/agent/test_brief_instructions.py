"""A small model gets the project's instructions as a message, once, if it was trained to follow them."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.agents import COMPACT, FULL, Run, options, start, step

from k3agent.agent.instructions import MAX_BRIEF_CHARS, Instruction, brief_instructions, render_instructions
from k3agent.agent.session import Session
from k3agent.events import Noticed
from k3agent.providers.base import ModelInfo
from k3agent.types import Origin


def told(run: object) -> list[str]:
    """What k3agent itself said to the model in the last request."""
    messages = run.client.requests[-1].messages  # type: ignore[attr-defined]
    return [message.text for message in messages if message.origin is Origin.HARNESS]


async def test_a_compact_model_is_told_once_and_again_when_the_file_changes(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    file = tmp_path / "ws" / "AGENTS.md"
    file.write_text("- Never touch `vendor/`.\n")
    run = await start(
        tmp_path,
        [step(text="one"), step(text="two"), step(text="three")],
        info=replace(COMPACT, reads_instructions=True),
    )
    await run.session.submit("hello")
    first = told(run)
    assert len(first) == 1 and "- Never touch `vendor/`." in first[0] and f"from {file}>" in first[0]
    assert run.client.requests[0].messages[0].text == first[0]
    assert "vendor" not in run.client.requests[0].system
    await run.session.submit("again")
    assert told(run) == first
    file.write_text("- Use tabs.\n")
    await run.session.submit("and again")
    assert len(told(run)) == 2 and "- Use tabs." in told(run)[1]
    await run.session.aclose()


async def test_a_model_that_never_saw_instructions_gets_none(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "AGENTS.md").write_text("- Never touch `vendor/`.\n")
    run = await start(tmp_path, [step(text="one")], info=COMPACT)
    await run.session.submit("hello")
    assert told(run) == [] and "vendor" not in run.client.requests[0].system
    await run.session.aclose()


async def test_the_user_is_told_of_unread_instructions_once_and_only_where_there_are_some(
    tmp_path: Path,
) -> None:
    def said(run: Run) -> int:
        return sum("does not read" in event.text for event in run.of(Noticed))

    run = await start(tmp_path, info=COMPACT)
    await run.session.aclose()
    assert said(run) == 0
    (tmp_path / "ws" / "AGENTS.md").write_text("- Never touch `vendor/`.\n")
    run = await start(tmp_path, [step(text="one"), step(text="two")], info=COMPACT)
    await run.session.submit("hello")
    await run.session.submit("again")
    await run.session.aclose()
    assert said(run) == 1
    chosen = options(tmp_path, run.client)
    for opened in (Session.resume, Session.fork):
        later = Run(await opened(run.session.id, chosen), run.client, run.workspace)
        await later.session.aclose()
        assert said(later) == 0
    assert said(await started_and_closed(tmp_path, replace(COMPACT, reads_instructions=True))) == 0


async def started_and_closed(root: Path, info: ModelInfo) -> Run:
    run = await start(root, info=info)
    await run.session.aclose()
    return run


async def test_a_full_model_has_them_in_its_system_prompt_alone(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "AGENTS.md").write_text("- Never touch `vendor/`.\n")
    run = await start(tmp_path, [step(text="one")], info=FULL)
    await run.session.submit("hello")
    assert "vendor" in run.client.requests[0].system
    assert not any("vendor" in text for text in told(run))
    await run.session.aclose()


@pytest.mark.parametrize("length", [100, 100_000])
def test_long_files_are_cut(length: int) -> None:
    files = [Instruction(path=Path("/p/AGENTS.md"), text="a" * length, size_bytes=length)]
    text = brief_instructions(files)
    assert len(text) < MAX_BRIEF_CHARS + 700
    assert (text == render_instructions(files)) == (length == 100)
    assert ("left out" in text) == (length > 100)
