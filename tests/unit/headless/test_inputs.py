"""What a headless run is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.agents import DONE, ReplayClient, call, step

from k3agent.config.settings import Settings
from k3agent.config.trust import set_trust
from k3agent.headless import run as headless
from k3agent.headless.formats import End, TextFormat
from k3agent.headless.inputs import UsageError, require_known_command
from k3agent.headless.output import PipeWriter
from k3agent.headless.progress import Progress
from k3agent.headless.runoptions import RunOptions
from k3agent.tools.sandbox import choice
from k3agent.tools.sandbox.none import NoSandbox


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


async def ended(options: RunOptions, told: list[str] | None = None) -> tuple[headless.HeadlessRun, End]:
    """A run from its beginning to its end, and how it ended; what it tells goes into `told`."""
    told = [] if told is None else told
    run = headless.HeadlessRun(
        options,
        PipeWriter(1, is_lossless=True),
        TextFormat(lambda text: None),
        Progress(lambda text: told.append(text), has_color=False),
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


GUARDED = NoSandbox()
GUARDED.name = "a sandbox that stands"


@pytest.mark.parametrize(
    ("guard", "folder", "asked"),
    [
        (GUARDED, "elsewhere", 0),
        (GUARDED, "ws/bin", 2),
        (GUARDED, "more/bin", 2),
        (NoSandbox(), "elsewhere", 2),
    ],
    ids=["cannot come", "into the workspace", "into a further folder", "no sandbox"],
)
async def test_a_check_whose_program_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: NoSandbox, folder: str, asked: int
) -> None:
    """It ends the run before the model is asked, unless the work may bring the program; it never passes."""
    client = ReplayClient([DONE] * 2)
    monkeypatch.setattr(headless, "choose_client", lambda *_: client)
    monkeypatch.setattr(headless.HeadlessRun, "_listen_to_signals", lambda self: None)
    monkeypatch.setattr(choice, "choose", lambda *_, **__: guard)
    (tmp_path / "ws").mkdir()
    options = RunOptions(
        settings=Settings(checks_commands=("true", "nosuchprogram -q"), checks_retries=1),
        environ={"HOME": str(tmp_path), "PATH": f"/usr/bin:/bin:{tmp_path}/{folder}"},
        home=tmp_path / "home",
        cwd=tmp_path / "ws",
        extra_dirs=(tmp_path / "more",),
        prompt="go",
    )
    told: list[str] = []
    _, end = await ended(options, told)
    problem = "`nosuchprogram -q` cannot run: there is no program nosuchprogram on PATH. Install it"
    assert end.exit_code == (4 if asked else 2) and len(client.requests) == asked
    assert problem in end.errors[0]
    assert (f"{problem}, put its folder on PATH" in "".join(told)) == bool(asked)


async def test_a_program_that_the_work_brings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "mkdir -p ../bin; printf '#!/bin/sh\\n' > ../bin/bringme; chmod +x ../bin/bringme"
    client = ReplayClient([DONE, step(call("shell", command=script)), DONE])
    monkeypatch.setattr(headless, "choose_client", lambda *_: client)
    monkeypatch.setattr(headless.HeadlessRun, "_listen_to_signals", lambda self: None)
    (tmp_path / "ws").mkdir()
    options = RunOptions(
        settings=Settings(sandbox="off", checks_commands=("bringme",), allow=("shell",)),
        environ={"HOME": str(tmp_path), "PATH": f"/usr/bin:/bin:{tmp_path}/bin"},
        home=tmp_path / "home",
        cwd=tmp_path / "ws",
        prompt="go",
    )
    _, end = await ended(options)
    assert end.exit_code == 0 and len(client.requests) == 3
    assert end.receipt.checks == [{"command": "bringme", "exit_code": 0, "passed": True}]
