"""Asks git about the user's repository: what it ignores, what it tracks, its branches and stashes.

Nothing that the repository's own configuration names is run: no file system monitor, no hook, no filter.
The index is only read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from k3agent.errors import StoreError

MAX_GIT_S = 60.0
# A git that sleeps so long without a break waits for the other end of a pipe.
MAX_ASLEEP_S = 3.0
# So long it is not asked the same again.
STUCK_S = 60.0
LOOK_EVERY_S = 0.5
MAX_REFS = 5_000
SAFE = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-c", "core.quotePath=false")

# A missing object is not fetched: a repository that was cloned in part names the program for that.
OFFLINE = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}


WAITS = "it waits for a pipe that nobody writes to, in the place of a file"
WAITED_FOR = (
    ".gitignore",
    ".gitattributes",
    *(
        f".git/{name}"
        for name in (
            *("HEAD", "config", "config.worktree", "index", "packed-refs", "commondir", "shallow"),
            *("info/exclude", "info/attributes", "info/grafts", "info/sparse-checkout"),
            *("objects/info/alternates", "objects/info/commit-graph"),
        )
    ),
)


# Until when: asked again before each call, it would cost those seconds each time.
_stuck: dict[tuple[Path, tuple[str, ...]], float] = {}


class Stuck(OSError):
    """A program waits for something that nobody will send it."""


def _is_odd(path: Path) -> bool:
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def refuse_odd(root: Path, command: str) -> None:
    """Git would wait for a pipe by such a name until somebody writes into it. Raises StoreError."""
    for name in (*WAITED_FOR, *_loose_refs(root)):
        if _is_odd(root / name):
            raise StoreError(f"git {command} in {root}: {name} is no file; remove it")


def _loose_refs(root: Path) -> Iterator[str]:
    """What lies among the references and is neither file nor folder."""
    waiting, count = [".git/refs"], 0
    while waiting and count < MAX_REFS:
        folder = waiting.pop()
        try:
            with os.scandir(root / folder) as found:
                entries = list(found)
        except OSError:
            continue
        count += len(entries)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{folder}/{entry.name}")
            elif not entry.is_file(follow_symlinks=False):
                yield f"{folder}/{entry.name}"


def finished(
    command: Sequence[str],
    folder: Path,
    environ: Mapping[str, str] | None,
    given: bytes = b"",
    limit_s: float = MAX_GIT_S,
) -> subprocess.CompletedProcess[bytes]:
    """What a program has answered that needs nothing of anybody. Raises TimeoutExpired after `limit_s`, and
    OSError (Stuck where it waits for what nobody will send it).
    """
    if _stuck.get(asked := (folder, tuple(command)), 0.0) > time.monotonic():
        raise Stuck(WAITS)
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(tempfile.TemporaryFile())
        source.write(given)
        source.seek(0)
        process = stack.enter_context(
            subprocess.Popen(command, cwd=folder, env=environ, stdin=source, stdout=pipe, stderr=pipe)
        )
        began = moved_at = time.monotonic()
        naps = -1
        try:
            while True:
                try:
                    out, err = process.communicate(timeout=LOOK_EVERY_S)
                    return subprocess.CompletedProcess(command, process.returncode, out, err)
                except subprocess.TimeoutExpired:
                    now = time.monotonic()
                before, naps = naps, _naps_if_asleep(process.pid)
                if naps < 0 or naps != before:
                    moved_at = now
                if now - moved_at > MAX_ASLEEP_S:
                    _stuck[asked] = now + STUCK_S
                    raise Stuck(WAITS)
                if now - began > limit_s:
                    raise subprocess.TimeoutExpired(command, limit_s)
        except BaseException:
            process.kill()
            raise


def _naps_if_asleep(pid: int) -> int:
    """How often a process that sleeps has fallen asleep: one that waits for a slow disk does so again and
    again. -1 for one that has a child or a thread at work, or where that cannot be told.
    """
    count = 0
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            told = dict(
                line.split(":", 1)
                for line in (thread / "status").read_text(encoding="utf-8", errors="replace").splitlines()
            )
            if told["State"].split()[0] != "S" or (thread / "children").read_text(encoding="ascii").strip():
                return -1
            count += int(told["voluntary_ctxt_switches"]) + int(told["nonvoluntary_ctxt_switches"])
    except (OSError, ValueError, KeyError):
        return -1
    return count


def git_program() -> str | None:
    return shutil.which("git")


def bare_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """What git needs of the environment; none of the variables that would lead it elsewhere."""
    kept = {name: environ[name] for name in ("PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR") if name in environ}
    return {**kept, **OFFLINE, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}


def ask(root: Path, *arguments: str, given: bytes | None = None) -> bytes:
    """Git's answer in the repository whose folder is `root`. Raises StoreError."""
    program = git_program()
    if program is None:
        raise StoreError("git is not installed; install it, or set snapshots to off")
    refuse_odd(root, arguments[0])
    command = [program, *SAFE, "--git-dir", str(root / ".git"), "--work-tree", str(root), *arguments]
    try:
        done = finished(command, root, bare_environ(os.environ), given or b"")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StoreError(f"git {arguments[0]} in {root}: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[:300]
        raise StoreError(f"git {arguments[0]} in {root}: {said or done.returncode}")
    return done.stdout


def harmless(folder: Path) -> dict[str, str]:
    """Variables under which git runs nothing that the repository of `folder` names: no monitor, hook, filter
    or text conversion. Settings in the environment win over all files; names may hold any sign.
    """
    off = [("core.fsmonitor", "false"), ("core.hooksPath", os.devnull), ("log.showSignature", "false")]
    program = git_program()
    if program is not None:
        top = next((path for path in (folder, *folder.parents) if os.path.lexists(path / ".git")), folder)
        refuse_odd(top, "config")
        command = [program, "config", "--null", "--name-only", "--get-regexp", r"^(filter|diff)\..*"]
        try:
            found = finished(command, folder, None).stdout
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StoreError(f"git config in {folder}: {error}") from error
        for key in dict.fromkeys(_names(found)):
            driver, _, last = key.rpartition(".")
            if last in ("clean", "smudge", "process", "textconv", "command"):
                off.append((key, ""))
            elif last == "required":
                off.append((key, "false"))
            elif last == "external" and driver == "diff":
                off.append((key, ""))
    variables = {**OFFLINE, "GIT_CONFIG_COUNT": str(len(off)), "GIT_OPTIONAL_LOCKS": "0"}
    for at, (key, value) in enumerate(off):
        variables[f"GIT_CONFIG_KEY_{at}"], variables[f"GIT_CONFIG_VALUE_{at}"] = key, value
    return variables


def _names(output: bytes) -> list[str]:
    return [os.fsdecode(name) for name in output.split(b"\0") if name]


def ignored_paths(root: Path) -> frozenset[str]:
    """Ignored files, and folders of which all is ignored, relative to `root`."""
    options = ("--others", "--ignored", "--exclude-standard", "--directory", "-z")
    return frozenset(name.rstrip("/") for name in _names(ask(root, "ls-files", *options)))


def tracked_paths(root: Path) -> tuple[str, ...]:
    return tuple(_names(ask(root, "ls-files", "--cached", "-z")))


def references(root: Path) -> dict[str, str]:
    """Branches, tags and the newest stash by full name, and HEAD under its own."""
    found: dict[str, str] = {}
    lines = ask(root, "for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags")
    for line in lines.decode("utf-8", "surrogateescape").splitlines():
        commit, _, name = line.partition(" ")
        found[name] = commit
    # Without a commit there is no HEAD to save.
    with contextlib.suppress(StoreError):
        found["HEAD"] = ask(root, "rev-parse", "--verify", "--quiet", "HEAD").decode().strip()
    return found


def stashes(root: Path) -> list[tuple[str, str]]:
    """(commit, title) of each stash entry, newest first."""
    try:
        lines = ask(root, "log", "--no-show-signature", "-g", "--format=%H %gs", "refs/stash", "--")
    except StoreError:
        return []
    pairs = [line.partition(" ") for line in lines.decode("utf-8", "surrogateescape").splitlines()]
    return [(commit, title) for commit, _, title in pairs if commit]


def has_commit(root: Path, commit: str) -> bool:
    try:
        ask(root, "cat-file", "-e", f"{commit}^{{commit}}")
    except StoreError:
        return False
    return True


def create_reference(root: Path, name: str, commit: str) -> None:
    """Make a branch or tag that is not there. Raises StoreError."""
    ask(root, "update-ref", name, commit, "0" * len(commit))


def store_stash(root: Path, commit: str, title: str) -> None:
    ask(root, "stash", "store", "-m", title, commit)


def roots_of(folders: Sequence[Path]) -> tuple[Path, ...]:
    """The folders whose files are saved: for each one the repository that looks after it, or itself; none
    inside another.
    """
    found: list[Path] = []
    for folder in folders:
        place = next((path for path in (folder, *folder.parents) if (path / ".git").exists()), folder)
        if place in (Path(place.anchor), Path.home()) or (place != folder and _ignores(place, folder)):
            place = folder
        if not any(place.is_relative_to(other) for other in found):
            found = [*(other for other in found if not other.is_relative_to(place)), place]
    return tuple(found)


def _ignores(root: Path, folder: Path) -> bool:
    try:
        ask(root, "check-ignore", "--quiet", "--", str(folder))
    except StoreError:
        return False
    return True
