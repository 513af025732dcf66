"""Undo in real repositories: each command that destroys work, run by a session, then `k3agent undo`."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.agents import DONE, Run, call, check_prefixes, start, step
from support.fleet import FleetClient, fan_out, item
from support.trees import picture

from k3agent.agent import safekeeping
from k3agent.commands.undo import undo
from k3agent.errors import StoreError
from k3agent.events import ApprovalAsked, Decision, Noticed
from k3agent.store import snapshotrepo, snapshots
from k3agent.store.filetree import Rules
from k3agent.store.sessions import SessionStore
from k3agent.store.snapshotrows import SnapshotKind

WHO = ("-c", "user.name=t", "-c", "user.email=t@localhost")


def git(cwd: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *WHO, *arguments], cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout


def without_git(root: Path) -> dict[str, tuple[object, ...]]:
    return {path: what for path, what in picture(root).items() if path.split("/")[0] != ".git"}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with work of all kinds that is not committed."""
    ws = tmp_path / "ws"
    (ws / "src").mkdir(parents=True)
    git(tmp_path, "init", "-q", "-b", "main", "ws")
    (ws / ".gitignore").write_text("node_modules/\n.env\nbuild/\n")
    for name in ("a.py", "b.py", "src/c.py", "gone.py"):
        (ws / name).write_text(f"{name}\n")
    git(ws, "add", "-A")
    git(ws, "commit", "-qm", "first")
    git(ws, "branch", "side")
    (ws / "a.py").write_bytes(b"days of work\r\n\xff\x00")
    (ws / "b.py").write_text("staged\n")
    git(ws, "add", "b.py")
    (ws / "gone.py").unlink()
    (ws / "new.txt").write_text("untracked\n")
    (ws / "new.txt").chmod(0o600)
    (ws / "notes").mkdir()
    (ws / "notes" / "deep.txt").write_text("untracked, too\n")
    (ws / "empty").mkdir()
    (ws / "link").symlink_to("a.py")
    (ws / ".env").write_text("KEY=1\n")
    (ws / "node_modules" / "x").mkdir(parents=True)
    (ws / "node_modules" / "x" / "index.js").write_text("module\n")
    (ws / "build").mkdir()
    (ws / "build" / "out.bin").write_bytes(os.urandom(3000))
    return ws


async def run_command(ws: Path, *commands: str, **more: object) -> Run:
    answers = [step(*(call("shell", command=command) for command in commands)), DONE]
    run = await start(ws.parent, answers, allow=("shell",), sandbox="off", **more)
    await run.session.submit("do it")
    return run


DESTROYERS = (
    "git reset --hard",
    "git checkout -- .",
    "git checkout -f",
    "git restore .",
    "git restore --source=HEAD --staged --worktree .",
    "git clean -fd",
    "git clean -xfd",
    "git stash -u",
    "git stash -u && git stash drop",
    "git branch -D side",
    "rm -rf src notes node_modules build",
    "rm -rf *",
    "rm -f .env new.txt",
    "find . -name '*.txt' -delete",
    "find build -type f -delete",
    "mv a.py b.py",
    "cp gone.py a.py || echo lost > a.py",
    "git reset --hard && git clean -xfd && rm -rf src",
    "rm -rf .git",
    "chmod 755 new.txt; ln -sf b.py link; rmdir empty",
    "cd src && git clean -xfd .. && rm -rf ../notes",
    "python3 -c \"import shutil; shutil.rmtree('src'); open('a.py', 'w').close()\"",
)


@pytest.mark.parametrize("command", DESTROYERS)
async def test_destroyed_work_comes_back(
    repository: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = without_git(repository)
    branches = git(repository, "branch")
    run = await run_command(repository, command)
    await run.session.aclose()
    assert "permission denied" not in run.results[0]
    after = without_git(repository)
    assert after != before or ".git" in command or "branch" in command
    monkeypatch.setenv("K3AGENT_HOME", str(repository.parent / "home"))
    monkeypatch.chdir(repository)
    code = undo(["--yes"])
    said = capsys.readouterr().out
    assert code == 0, said
    assert without_git(repository) == before
    assert git(repository, "branch") == branches
    git(repository, "fsck", "--strict")


def cli(ws: Path, *arguments: str, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "k3agent.cli", "undo", *arguments],
        cwd=ws,
        env={**os.environ, "K3AGENT_HOME": str(home or ws.parent / "home")},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=100,
        check=False,
    )


async def test_steps_dry_run_asking_and_taking_back(tmp_path: Path) -> None:
    ws = tmp_path / "ws"
    ws.mkdir()
    (ws / "a.txt").write_text("0\n")
    run = await run_command(ws, "echo 1 > a.txt", "cat a.txt", "echo 2 > a.txt; echo x > new.txt")
    await run.session.aclose()
    listed = json.loads(cli(ws, "--list", "--json").stdout)
    assert [(row["step"], row["num_files"]) for row in listed] == [(1, 1), (2, 2)]
    seen = cli(ws, "--to", "1", "--dry-run")
    assert seen.returncode == 0 and "change" in seen.stdout and "new.txt" in seen.stdout
    asked = cli(ws, "--to", "1")
    assert asked.returncode == 2 and "--yes" in asked.stderr
    assert (ws / "a.txt").read_text() == "2\n"
    # Said again, it goes one step further back; each step back can be taken back.
    back = cli(ws, "--yes")
    assert back.returncode == 0 and "--to 1 takes back all of them" in back.stdout
    assert (ws / "a.txt").read_text() == "1\n" and not (ws / "new.txt").exists()
    back = cli(ws, "--yes").stdout
    assert "--to" in back and "takes back all" not in back
    assert (ws / "a.txt").read_text() == "0\n"
    nothing = cli(ws, "--yes")
    assert nothing.returncode == 1 and "Nothing to undo" in nothing.stderr
    undos = [row for row in json.loads(cli(ws, "--list", "--json").stdout) if row["kind"] == "undo"]
    assert cli(ws, "--yes", "--to", str(undos[0]["step"])).returncode == 0
    assert (ws / "a.txt").read_text() == "2\n" and (ws / "new.txt").read_text() == "x\n"
    assert cli(ws, "--to", "99").returncode == 1


async def test_to_look_writes_nothing(repository: Path) -> None:
    run = await run_command(
        repository, "echo 1 > new.txt; git reset -q --hard; rm -rf build", "echo 2 > b.py"
    )
    await run.session.aclose()
    # Since then: changes of the user, and a file that was left out then and is not now.
    (repository / "later.txt").write_text("mine\n")
    (repository / ".gitignore").write_text("")
    home = repository.parent / "home"
    store = SessionStore(home)

    def kept() -> tuple[object, ...]:
        return picture(home / "snapshots"), store.snapshots(run.session.id), picture(repository)

    before = kept()
    shown = {}
    for flags in (["--dry-run"], ["--dry-run", "--json"], ["--to", "1", "--dry-run", "--json"], ["--json"]):
        done = cli(repository, *flags)
        shown[" ".join(flags)] = done.stdout
        # Without --dry-run it would ask, and nobody is there.
        assert done.returncode == (0 if "--dry-run" in flags else 2), done.stderr
        assert kept() == before, flags
    store.close()
    (plan,) = json.loads(shown["--to 1 --dry-run --json"])["folders"].values()
    assert "build/out.bin" in plan["bring_back"]
    assert {"a.py", "b.py", "new.txt"} <= {*plan["change"], *plan["bring_back"]}
    assert "later.txt" in plan["delete"]
    # What it said is what it does.
    assert cli(repository, "--to", "1", "--yes").returncode == 0
    assert (repository / "a.py").read_bytes() == b"days of work\r\n\xff\x00"
    assert not (repository / "later.txt").exists()


async def test_a_full_disk_at_the_end_of_a_turn_does_not_lose_the_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ws").mkdir()
    kept = SessionStore.add_snapshot

    def full(store: SessionStore, session_id: str, kind: SnapshotKind, *rest: object, **more: object) -> int:
        if kind is SnapshotKind.TURN_END:
            raise StoreError("cannot write to the session store: database or disk is full")
        return kept(store, session_id, kind, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(SessionStore, "add_snapshot", full)
    run = await run_command(tmp_path / "ws", "echo 1 > a.txt")
    assert run.session._store.last_turn(run.session.id).outcome == "success"  # type: ignore[union-attr]
    # The next turn saves as before.
    monkeypatch.undo()
    assert run.session.undo.first() is not None
    await run.session.aclose()


async def test_a_full_disk_before_a_call_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ws").mkdir()

    def full(*_: object, **__: object) -> int:
        raise StoreError("cannot write to the session store: database or disk is full")

    monkeypatch.setattr(SessionStore, "add_snapshot", full)
    run = await run_command(tmp_path / "ws", "echo 1 > a.txt", "rm a.txt")
    assert "could not be saved first" in run.results[1] and (tmp_path / "ws" / "a.txt").exists()
    assert any("database or disk is full" in event.text for event in run.events if isinstance(event, Noticed))
    await run.session.aclose()


async def test_nothing_that_a_repository_configures_runs_or_changes_bytes(repository: Path) -> None:
    """Monitor, hooks, filters, line ends: an untrusted repository names them all."""
    ws, trap = repository, repository.parent / "trap"
    evil = repository.parent / "evil.sh"
    evil.write_text(f"#!/bin/sh\ntr '\\\\0' ' ' < /proc/$PPID/cmdline >> {trap}\necho >> {trap}\ncat\n")
    evil.chmod(0o755)
    hooks = ws / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for hook in ("pre-commit", "post-index-change", "reference-transaction", "post-checkout"):
        (hooks / hook).write_text(evil.read_text())
        (hooks / hook).chmod(0o755)
    for key in (
        "core.fsmonitor",
        "filter.evil.clean",
        "filter.evil.smudge",
        "diff.evil.textconv",
        "gpg.program",
    ):
        git(ws, "config", key, str(evil))
    git(ws, "config", "core.autocrlf", "true")
    git(ws, "config", "log.showSignature", "true")
    (ws / ".gitattributes").write_text("* text=auto eol=crlf filter=evil diff=evil ident\n")
    (ws / "c.txt").write_bytes(b"$Id$ one\ntwo\r\n")
    trap.unlink(missing_ok=True)
    before = without_git(ws)
    run = await run_command(ws, "rm -rf src c.txt; printf x > a.py; true || git branch -D side")
    await run.session.aclose()
    assert cli(ws, "--yes").returncode == 0
    assert without_git(ws) == before
    assert not trap.exists(), trap.read_text()


async def test_other_repositories_inside_are_left_alone(repository: Path) -> None:
    inner = repository / "vendor" / "lib"
    inner.mkdir(parents=True)
    git(inner, "init", "-q")
    (inner / "x.c").write_text("int x;\n")
    git(inner, "add", "-A")
    git(inner, "commit", "-qm", "inner")
    run = await run_command(repository, "sed -i s/int/long/ vendor/lib/x.c; echo 2 > a.py", "rm -rf vendor")
    await run.session.aclose()
    assert cli(repository, "--yes").returncode == 0
    # The second step destroyed it, so it was saved then; the first changed only what is its own.
    assert (inner / "x.c").read_text() == "long x;\n" and git(inner, "log", "--format=%s") == "inner\n"
    assert cli(repository, "--yes").returncode == 0
    assert (repository / "a.py").read_bytes() == b"days of work\r\n\xff\x00"
    assert (inner / "x.c").read_text() == "long x;\n"


async def test_what_cannot_be_saved_is_said_and_a_destroyer_is_not_run(repository: Path) -> None:
    (repository.parent / "home").mkdir()
    (repository.parent / "home" / "snapshots").write_text("in the way")
    run = await run_command(repository, "rm -rf src", "echo 1 > one.txt")
    assert "could not be saved first" in run.results[0] and (repository / "src" / "c.py").exists()
    assert (repository / "one.txt").exists()
    said = [event.text for event in run.of(Noticed)]
    assert sum("undo cannot bring it back" in text for text in said) == 2
    await run.session.aclose()


async def test_a_person_may_let_an_unsaved_destroyer_run(repository: Path) -> None:
    (repository.parent / "home").mkdir()
    (repository.parent / "home" / "snapshots").write_text("in the way")
    answers = [step(call("shell", command="rm -rf src")), DONE]
    run = await start(repository.parent, answers, allow=("shell",), sandbox="off", is_interactive=True)

    def allow(event: object) -> None:
        if isinstance(event, ApprovalAsked):
            assert "could not be saved first" in event.reason
            asyncio.get_running_loop().call_soon(run.session.answer, event.call_id, Decision.ALLOW)

    run.session.subscribe(allow)
    await run.session.submit("do it")
    assert not (repository / "src").exists()
    await run.session.aclose()


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit is not here")
async def test_a_full_disk_is_no_silence(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The importer's own files may not grow: as where the disk is full."""
    real = subprocess.Popen

    def small(command: list[str], **more: object) -> subprocess.Popen[bytes]:
        if "fast-import" in command:
            command = ["prlimit", "--fsize=20", *command]
        return real(command, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(snapshotrepo.subprocess, "Popen", small)
    run = await run_command(repository, "git clean -xfd")
    assert "could not be saved first" in run.results[0] and (repository / ".env").exists()
    await run.session.aclose()


async def test_large_ignored_folders_are_saved_within_a_limit_or_named(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = snapshots.Snapshots.save.__kwdefaults__
    assert defaults is not None
    monkeypatch.setattr(snapshots.Snapshots.save, "__kwdefaults__", {**defaults, "max_extra_bytes": 4000})
    (repository / "node_modules" / "huge.js").write_bytes(b"x" * 5000)
    run = await run_command(repository, "git clean -xfd")
    await run.session.aclose()
    said = " ".join(event.text for event in run.of(Noticed))
    assert "node_modules" in said and "build" not in said
    listed = cli(repository, "--dry-run").stdout
    assert "was not saved" in listed and "node_modules" in listed
    assert cli(repository, "--yes").returncode == 0
    assert (repository / "build" / "out.bin").stat().st_size == 3000
    assert (repository / ".env").exists() and not (repository / "node_modules").exists()


async def test_the_session_learns_what_was_restored(tmp_path: Path) -> None:
    ws = tmp_path / "ws"
    ws.mkdir()
    answers = [
        step(call("write", path="a.txt", content="1\n")),
        DONE,
        step(call("edit", path="a.txt", old="1", new="2")),
        DONE,
    ]
    run = await start(tmp_path, answers)
    await run.session.submit("write")
    assert cli(ws, "--yes").returncode == 0
    assert not (ws / "a.txt").exists()
    (ws / "a.txt").write_text("1 by hand\n")
    await run.session.submit("go on")
    told = [item.text for item in run.client.requests[2].messages if "has undone changes" in item.text]
    assert len(told) == 1 and "a.txt" in told[0]
    assert "changed since it was read" in run.results[1]
    check_prefixes(run.client.requests)
    assert not any("has undone" in item.text for item in run.client.requests[3].messages[-1:])
    await run.session.aclose()


async def test_deleting_the_session_deletes_its_snapshots_and_no_others(tmp_path: Path) -> None:
    ws = tmp_path / "ws"
    ws.mkdir()
    (ws / "a.txt").write_text("0\n")
    one = await run_command(ws, "echo secret-of-one > a.txt; echo 2 > b.txt", "echo 3 > a.txt")
    two = await run_command(ws, "echo 4 > a.txt")
    for run in (one, two):
        await run.session.aclose()
    store = SessionStore(tmp_path / "home")
    place = snapshots.Snapshots(tmp_path / "home", ws)
    refs = place.git("for-each-ref", "--format=%(refname)").decode()
    assert one.session.id in refs and two.session.id in refs
    store.delete(one.session.id)
    refs = place.git("for-each-ref", "--format=%(refname)").decode()
    assert one.session.id not in refs and two.session.id in refs
    assert store.snapshots(one.session.id) == []
    store.close()
    assert cli(ws, "--yes").returncode == 0
    assert (ws / "a.txt").read_text() == "3\n"


@pytest.mark.parametrize("place", ["inside", "whole"])
async def test_a_workspace_that_is_gone_comes_back(tmp_path: Path, place: str) -> None:
    ws = tmp_path / "ws"
    ws.mkdir()
    (ws / "sub").mkdir(mode=0o750)
    (ws / "sub" / "a.bin").write_bytes(bytes(range(256)))
    before = picture(ws)
    run = await run_command(ws, "rm -rf sub; true" if place == "inside" else "cd .. && rm -rf ws")
    await run.session.aclose()
    done = cli(tmp_path, "--yes", "--session", run.session.id, home=tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert picture(ws) == before


async def test_files_that_become_ignored_or_tracked_in_the_session_are_noticed(repository: Path) -> None:
    run = await run_command(
        repository,
        "echo 1 > one.py",
        "mkdir dist && echo made > dist/out && echo dist/ >> .gitignore",
        "echo 2 > build/kept && git add -f build/kept",
        "echo 3 > three.py",
        "echo 4 > four.py",
    )
    await run.session.aclose()
    store = SessionStore(repository.parent / "home")
    rows = store.snapshots(run.session.id)
    store.close()
    place = snapshots.Snapshots(repository.parent / "home", repository)
    trees = [place.load(row.commits[str(repository)]) for row in rows]
    assert all("dist/out" not in tree.files for tree in trees)
    assert "dist" in trees[2].left_out and "build/kept" in trees[3].files
    assert "build/kept" not in trees[2].files and "three.py" in trees[4].files


async def test_a_workspace_that_its_repository_ignores_is_saved_by_itself(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("ws/\nhome/\n")
    ws = tmp_path / "ws"
    ws.mkdir()
    (ws / "a.txt").write_text("1\n")
    run = await run_command(ws, "echo 2 > a.txt; rm .gitignore || true")
    assert cli(ws, "--yes").returncode == 0
    assert (ws / "a.txt").read_text() == "1\n"
    await run.session.aclose()


async def test_a_session_in_use_is_named_and_its_last_snapshot_goes_with_it(tmp_path: Path) -> None:
    ws = tmp_path / "ws"
    ws.mkdir()
    run = await run_command(ws, "echo 2 > a.txt")
    done = cli(ws, "--yes")
    assert done.returncode == 0 and "in use by process" in done.stderr
    await run.session.aclose()
    assert list((tmp_path / "home" / "snapshots").iterdir())
    store = SessionStore(tmp_path / "home")
    store.delete(run.session.id)
    store.close()
    assert not list((tmp_path / "home" / "snapshots").iterdir())


async def test_a_write_outside_of_the_workspace_is_said(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    run = await start(tmp_path, [step(call("write", path=str(outside), content="x")), DONE], allow=("write",))
    await run.session.submit("write")
    said = [event.text for event in run.of(Noticed)]
    assert outside.read_text() == "x" and any("outside of the workspace" in text for text in said)
    await run.session.aclose()


async def test_undoing_a_call_takes_back_what_its_subagents_did(tmp_path: Path) -> None:
    ws = tmp_path / "ws"
    ws.mkdir()
    (ws / "a.txt").write_text("1\n")
    work = [step(call("shell", command="echo 2 > a.txt; echo x > b.txt")), step(text="done")]
    client = FleetClient({"go": fan_out(item("work", mode="write")), "work": work})
    run = await start(tmp_path, client=client, sandbox="off")
    await run.session.submit("go")
    assert (ws / "b.txt").exists(), run.results
    await run.session.aclose()
    done = cli(ws, "--yes")
    assert run.session.id not in done.stderr and done.returncode == 0
    assert (ws / "a.txt").read_text() == "1\n" and not (ws / "b.txt").exists()


async def test_a_command_in_a_subfolder_reaches_the_whole_repository(tmp_path: Path) -> None:
    """The data folder lies in it, too, and is neither saved nor touched."""
    git(tmp_path, "init", "-q")
    ws = tmp_path / "ws"
    ws.mkdir()
    for path in (tmp_path / "top.txt", ws / "a.txt"):
        path.write_text("1\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    (tmp_path / "top.txt").write_text("work\n")
    (tmp_path / "new.txt").write_text("work\n")
    run = await run_command(ws, "git reset --hard; rm ../new.txt")
    await run.session.aclose()
    assert (tmp_path / "top.txt").read_text() == "1\n" and not (tmp_path / "new.txt").exists()
    seen = json.loads(cli(ws, "--dry-run", "--json").stdout)
    assert seen["folders"][str(tmp_path)]["bring_back"] == ["new.txt"]
    assert seen["folders"][str(tmp_path)]["delete"] == []
    assert cli(ws, "--yes").returncode == 0
    assert (tmp_path / "top.txt").read_text() == (tmp_path / "new.txt").read_text() == "work\n"


async def test_an_early_step_takes_back_what_was_saved_for_later_calls_alone(repository: Path) -> None:
    """Ignored files are saved for the call that names them, branches for the one that drops them."""
    (repository / "build" / "notes.txt").write_text("one\n")
    before, branches = without_git(repository), git(repository, "branch")
    answers = [
        step(call("write", path="first.txt", content="1\n"), call("read", path="build/notes.txt")),
        step(call("edit", path="build/notes.txt", old="one", new="two")),
        step(call("write", path="build/new.txt", content="3\n")),
        step(call("edit", path="build/notes.txt", old="two", new="three")),
        step(call("shell", command="rm build/out.bin; git branch -D side")),
        DONE,
    ]
    run = await start(repository.parent, answers, allow=("shell",), sandbox="off")
    await run.session.submit("do it")
    await run.session.aclose()
    after = without_git(repository)
    assert git(repository, "branch") != branches and "build/new.txt" in after
    assert "was not saved" not in cli(repository, "--to", "1", "--dry-run").stdout
    done = cli(repository, "--to", "1", "--yes")
    assert done.returncode == 0, done.stderr
    assert without_git(repository) == before
    assert git(repository, "branch") == branches
    redo = done.stdout.split("--to ")[1].split()[0]
    assert cli(repository, "--to", redo, "--yes").returncode == 0
    assert without_git(repository) == after


async def test_what_one_object_has_shown_another_carries_out(repository: Path) -> None:
    """The UI takes a new one to show and to carry out."""
    before, branches = without_git(repository), git(repository, "branch")
    answers = [
        step(call("write", path="first.txt", content="1\n")),
        step(call("write", path="build/new.txt", content="2\n")),
        step(call("shell", command="git branch -D side")),
        DONE,
    ]
    run = await start(repository.parent, answers, allow=("shell",), sandbox="off")
    await run.session.submit("do it")
    undo = run.session.undo
    first = undo.first()
    assert first is not None
    preview = undo.preview(first)
    outcome = await run.session.undo.restore_aside(preview)
    await run.session.aclose()
    assert not outcome.failures
    assert without_git(repository) == before
    assert git(repository, "branch") == branches


async def test_in_a_folder_of_too_many_files_all_that_calls_named_is_taken_back(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safekeeping, "rules_of", lambda root, home: Rules(max_files=2))
    before = without_git(repository)
    answers = [
        step(call("write", path="src/d.py", content="d\n"), call("read", path="src/c.py")),
        step(call("edit", path="src/c.py", old="src/c.py", new="changed")),
        DONE,
    ]
    run = await start(repository.parent, answers)
    await run.session.submit("do it")
    await run.session.aclose()
    assert "more files than are saved" in " ".join(event.text for event in run.of(Noticed))
    assert cli(repository, "--to", "1", "--yes").returncode == 0
    assert without_git(repository) == before
