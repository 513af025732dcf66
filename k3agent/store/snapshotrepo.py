"""The repository in which the states of one folder are saved, and git as it is run on it.

Nothing that the user or a project configures for git counts here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from k3agent.errors import StoreError
from k3agent.store.snapshotforms import CHUNK
from k3agent.store.worktree import bare_environ, git_program

FOLDER = "snapshots"
# From so many loose objects on they are packed; nothing is deleted by it.
MAX_LOOSE = 4_000
OPTIONS = (
    ("core.compression", "1"),
    ("core.protectNTFS", "false"),
    ("core.protectHFS", "false"),
    ("gc.auto", "0"),
    ("core.logAllRefUpdates", "false"),
)


class SnapshotRepository:
    """The base of `Snapshots`: that of the folder `root`, made when it is first needed. Blocking."""

    def __init__(self, home: Path, root: Path) -> None:
        self.root = root
        # Git works elsewhere: a relative path would mean another place there.
        self.folder = home.absolute() / FOLDER / hashlib.sha256(os.fsencode(root)).hexdigest()[:24]
        self._git_dir = self.folder / "repo.git"

    def git(self, *arguments: str, given: bytes = b"") -> bytes:
        process = self._start(*arguments, stdout=subprocess.PIPE)
        out, said = process.communicate(given)
        if process.returncode:
            reason = " ".join(said.decode("utf-8", "replace").split())[:300]
            raise StoreError(f"git {arguments[0]} in {self._git_dir}: {reason or process.returncode}")
        return out

    def _start(self, *arguments: str, stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        program = git_program()
        if program is None:
            raise StoreError("git is not installed; install it, or set snapshots to off")
        settings = [word for name, value in OPTIONS for word in ("-c", f"{name}={value}")]
        environ = bare_environ(os.environ)
        environ.update(GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL=os.devnull)
        if arguments[0] != "init":
            environ["GIT_DIR"] = str(self._git_dir)
        try:
            return subprocess.Popen(
                [program, *settings, *arguments],
                cwd=self.folder,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=subprocess.PIPE,
            )
        except OSError as error:
            raise StoreError(f"git cannot be started: {error}") from error

    @property
    def is_begun(self) -> bool:
        return (self._git_dir / "HEAD").is_file()

    def _prepare(self) -> None:
        if self.is_begun:
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / "root").write_bytes(os.fsencode(self.root))
        # Under another name first: a repository that is there is whole.
        draft = self.folder / f"new-{os.getpid()}-{secrets.token_hex(3)}"
        self.git("init", "--quiet", "--bare", "--template=", str(draft))
        try:
            draft.rename(self._git_dir)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            if not self.is_begun:
                raise

    def _pack(self) -> None:
        count = int(self.git("count-objects").split()[0])
        if count > MAX_LOOSE:
            self.git("pack-refs", "--all")
            self.git("repack", "-d", "-l", "-q")

    def _has_tree(self, tree_id: str) -> bool:
        said = self.git("cat-file", "--batch-check", given=f"{tree_id}\n".encode()).split()
        return said[1:2] == [b"tree"]

    @contextlib.contextmanager
    def _importer(self) -> Iterator[IO[bytes]]:
        """The input of a `git fast-import` that takes up all or nothing. Raises StoreError."""
        command = ["fast-import", "--quiet", "--done", "--depth=1", "--date-format=raw"]
        process = self._start(*command)
        assert process.stdin is not None and process.stderr is not None
        try:
            yield process.stdin
            process.stdin.write(b"done\n")
            process.stdin.close()
        except BrokenPipeError:
            pass  # what it says tells why
        except BaseException:
            process.kill()
            raise
        finally:
            with contextlib.suppress(OSError):
                process.stdin.close()
            said = process.stderr.read().decode("utf-8", "replace")
            process.stderr.close()
            code = process.wait()
        for report in self._git_dir.glob("fast_import_crash_*"):
            report.unlink(missing_ok=True)
        if code:
            reason = next((line for line in said.splitlines() if line.startswith("fatal:")), said).strip()
            raise StoreError(
                f"the files in {self.root} cannot be saved to {self.folder}: {reason or f'git: {code}'}"
            )

    @contextlib.contextmanager
    def contents(self) -> Iterator[Callable[[str, Callable[[bytes], Any]], None]]:
        """A function that hands the content of a blob, piece by piece, to another. Raises StoreError."""
        process = self._start("cat-file", "--batch", stdout=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        given, taken = process.stdin, process.stdout

        def read(blob: str, take: Callable[[bytes], Any]) -> None:
            given.write(blob.encode() + b"\n")
            given.flush()
            head = taken.readline().split()
            if head[1:2] != [b"blob"]:
                raise StoreError(f"a saved file ({blob}) is missing in {self.folder}")
            left = int(head[2])
            while left:
                piece = taken.read(min(CHUNK, left))
                if not piece:
                    raise StoreError(f"a saved file ({blob}) in {self.folder} ends too soon")
                left -= len(piece)
                take(piece)
            taken.read(1)

        try:
            yield read
        finally:
            for pipe in (given, taken, process.stderr):
                pipe.close()
            process.wait()
