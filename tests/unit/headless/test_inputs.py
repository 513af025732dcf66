"""What a headless run is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.agents import DONE, ReplayClient

from k3agent.config.settings import Settings
from k3agent.config.trust import set_trust
from k3agent.headless import run as headless
from k3agent.headless.formats import End, TextFormat
from k3agent.headless.inputs import UsageError, require_known_command
from k3agent.headless.output import PipeWriter
from k3agent.headless.progress import Progress
from k3agent.headless.runoptions import RunOptions


def command(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text("Do $ARGUMENTS.")


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    workspace, home = tmp_path / "ws", tmp_path / "home"
    command(tmp_path / ".config/k3agent/commands", "note")
    command(workspace / ".k3agent/commands", "theirs")

    def check(prompt: str) -> None:
        require_known_command(prompt, workspace, {"HOME": str(tmp_path)}, home)

    for prompt in ("/note this", "/tmp is full", "/a/b", "words", " /nope"):
        check(prompt)
    with pytest.raises(UsageError, match=r"/notes is no command .* Did you mean /note"):
        check("/notes this")
    with pytest.raises(UsageError, match=r"/Note is no command .* Did you mean /note"):
        check("/Note this")
    with pytest.raises(UsageError, match=r"theirs.md is not trusted.*`k3agent config trust`"):
        check("/theirs")
    set_trust(home, workspace / ".k3agent", is_trusted=True)
    check("/theirs")


async def ended(options: RunOptions) -> tuple[headless.HeadlessRun, End]:
    """A run from its beginning to its end, and how it ended; what it tells goes nowhere."""
    run = headless.HeadlessRun(
        options,
        PipeWriter(1, is_lossless=True),
        TextFormat(lambda text: None),
        Progress(lambda text: None, has_color=False),
    )
    end = await run.run()
    await run.close()
    return run, end


async def test_a_run_of_it_ends_before_the_model_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ReplayClient([DONE])
    monkeypatch.setattr(headless, "choose_client", lambda *_: client)
    monkeypatch.setattr(headless.HeadlessRun, "_listen_to_signals", lambda self: None)
    options = RunOptions(
        settings=Settings(sandbox="off"),
        environ={"HOME": str(tmp_path)},
        home=tmp_path / "home",
        cwd=tmp_path,
        prompt="/nope LIMIT",
    )
    run, end = await ended(options)
    assert end.exit_code == 2 and "/nope" in end.errors[0]
    assert client.requests == [] and run.session is None


@pytest.mark.parametrize("is_own", [False, True])
async def test_a_check_that_can_never_run_ends_the_run_before_the_model_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_own: bool
) -> None:
    """`is_own`: a folder of the workspace is on PATH, where the work may put the program."""
    client = ReplayClient([DONE])
    monkeypatch.setattr(headless, "choose_client", lambda *_: client)
    monkeypatch.setattr(headless.HeadlessRun, "_listen_to_signals", lambda self: None)
    path = "/usr/bin:/bin" + (f":{tmp_path}/ws/bin" if is_own else "")
    (tmp_path / "ws").mkdir()
    options = RunOptions(
        settings=Settings(sandbox="off", checks_commands=("true", "nosuchprogram -q")),
        environ={"HOME": str(tmp_path), "PATH": path},
        home=tmp_path / "home",
        cwd=tmp_path / "ws",
        prompt="go",
    )
    _, end = await ended(options)
    assert end.exit_code == (4 if is_own else 2) and len(client.requests) == is_own
    assert "`nosuchprogram -q` cannot run: there is no program nosuchprogram on PATH" in end.errors[0]
