"""The receipt of a run, a JSON file: what ran, the files before and after, checks, cost, versions."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from k3agent import __version__
from k3agent.agent.changes import BY_PRODUCTS
from k3agent.agent.git_marks import git_folder
from k3agent.config.paths import git_root
from k3agent.errors import StoreError
from k3agent.events import AnyEvent, CallEnded, CallProposed, CheckEnded, TurnStarted
from k3agent.safety.paths import small_text
from k3agent.store.snapshotrows import COMMIT
from k3agent.store.worktree import SAFE, bare_environ, finished, refuse_odd
from k3agent.types import JsonObject

SCHEMA = "k3agent-receipt/1"
MAX_FILES = 50_000
MAX_BYTES = 1 << 30


class TooMuch(Exception):
    """The tree cannot be hashed in reasonable time; the text says why."""


def tree_state(folder: Path) -> JsonObject:
    """{sha256, files, commit}: one hash over names, modes and contents of all files that git does not ignore
    (without git: of all but by-products of tools); `sha256` is None where there are too many, `note` says so.
    """
    state: JsonObject = {"sha256": None, "files": 0, "commit": _commit(folder), "note": ""}
    total, digest = 0, hashlib.sha256()
    try:
        for name in _names(folder):
            path = folder / name
            if not path.is_symlink() and not path.is_file():
                continue
            state["files"] += 1
            total += path.lstat().st_size
            if total > MAX_BYTES or state["files"] > MAX_FILES:
                raise TooMuch(f"more than {MAX_FILES} files or {MAX_BYTES >> 30} GB")
            kind, content = _content(path)
            digest.update(f"{kind} {content} ".encode() + os.fsencode(name) + b"\0")
    except (OSError, TooMuch, StoreError, subprocess.SubprocessError) as error:
        return {**state, "note": f"not hashed: {error}"}
    return {**state, "sha256": digest.hexdigest()}


def _content(path: Path) -> tuple[str, str]:
    """What it is (a link, or who may execute it) and the hash of what it holds, read piece by piece."""
    if path.is_symlink():
        return "link", hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
    with path.open("rb") as file:
        kind = f"{os.fstat(file.fileno()).st_mode & 0o111:o}"
        return kind, hashlib.file_digest(file, "sha256").hexdigest()


def _names(folder: Path) -> list[str]:
    """Relative, sorted."""
    if git_folder(folder) is not None and shutil.which("git"):
        refuse_odd(git_root(folder) or folder, "ls-files")
        command = ["git", *SAFE, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        done = finished(command, folder, bare_environ(os.environ))
        if done.returncode == 0:
            return sorted({os.fsdecode(name) for name in done.stdout.split(b"\0") if name})
    return sorted(_walked(folder))


def _walked(folder: Path) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in BY_PRODUCTS]
        for name in names:
            yield str((Path(place) / name).relative_to(folder))


def _commit(folder: Path) -> str | None:
    """What HEAD names. The repository may have written anything there: no other file's text is told."""
    git = git_folder(folder)
    if git is None:
        return None
    try:
        head = small_text(git / "HEAD").strip()
        if head.startswith("ref: refs/") and ".." not in head:
            head = small_text(git / head.removeprefix("ref: ")).strip()
    except (OSError, ValueError):
        return None
    return head if COMMIT.fullmatch(head) else None


class RunReceipt:
    """Grows with the events of a run; `write` ends it."""

    def __init__(self, path: Path, cwd: Path) -> None:
        self._path = path
        self._cwd = cwd
        self._began = datetime.now(UTC)
        self._before = tree_state(cwd)
        self._prompts: list[str] = []
        self._calls: dict[str, JsonObject] = {}
        # Every round; the result has the last one alone.
        self._checks: list[JsonObject] = []
        self._clock = time.monotonic()

    def event(self, event: AnyEvent) -> None:
        match event:
            case TurnStarted():
                self._prompts.append(event.prompt)
            case CallProposed():
                self._calls[event.call_id] = {"tool": event.tool, "what": event.summary, "state": "open"}
            case CallEnded():
                entry = self._calls.setdefault(event.call_id, {"tool": event.tool, "what": event.tool})
                is_refused = "denied" if event.is_denied else "invalid" if event.is_invalid else "failed"
                entry["state"] = is_refused if event.result.is_error else "done"
                entry["files"] = list(event.files)
                entry["duration_s"] = round(event.duration_s, 3)
                if event.exit_code is not None:
                    entry["exit_code"] = event.exit_code
            case CheckEnded():
                self._checks.append(
                    {
                        "command": event.command,
                        "exit_code": event.exit_code,
                        "at": event.at.isoformat(),
                    }
                )
            case _:
                return

    def write(self, line: JsonObject, session: JsonObject) -> str:
        """`line` is the result line, `session` what it ran with. Returns why it cannot be written, or ''."""
        body = {
            "schema": SCHEMA,
            "versions": {
                "k3agent": __version__,
                "python": platform.python_version(),
                "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            },
            "started_at": self._began.isoformat(),
            "ended_at": datetime.now(UTC).isoformat(),
            "cwd": str(self._cwd),
            "session": session,
            "command": sys.argv[1:],
            "prompts": self._prompts,
            "ran": list(self._calls.values()),
            "checks": self._checks,
            "tree_before": self._before,
            "tree_after": tree_state(self._cwd),
            "result": {name: value for name, value in line.items() if name not in ("type", "uuid")},
        }
        try:
            temporary = self._path.with_name(f"{self._path.name}.new")
            temporary.write_text(json.dumps(body, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            return f"--receipt {self._path}: {error.strerror}"
        return ""
