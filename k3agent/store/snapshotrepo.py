"""The repository in which the states of one folder are saved, and git as it is run on it.

Nothing that the user or a project configures for git counts here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import subprocess
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from k3agent.errors import StoreError
from k3agent.store.snapshotforms import CHUNK
from k3agent.store.worktree import bare_environ, git_program

FOLDER = "snapshots"
# From so many loose objects on they are packed; nothing is deleted by it.
MAX_LOOSE = 4_000
# No git takes so long to write one.
MAX_DRAFT_AGE_S = 3600
_DRAFT = re.compile(r"\btmp_(?:pack|idx|rev)_\w+")
KINDS = (b"blob ", b"tree ", b"commit ", b"tag ")
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
        self._damage = ""

    def take_damage(self) -> str:
        """What has to be told of damage that was found, once; '' for nothing."""
        damage, self._damage = self._damage, ""
        return damage

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
        if self._has_shape():
            return
        self._set_aside()
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

    def _has_shape(self) -> bool:
        """Whether git would take it for a repository, and not wait for a pipe in the place of a file."""
        files, folders = ("HEAD", "config"), ("objects", "refs")
        return all((self._git_dir / name).is_file() for name in files) and all(
            (self._git_dir / name).is_dir() for name in folders
        )

    def _is_broken(self) -> bool:
        """By git's own word: a full disk, or files of somebody else's, break nothing."""
        if not self._has_shape():
            return True
        try:
            self.git("rev-parse", "--git-dir")
        except StoreError as error:
            return any(words in str(error) for words in ("not a git repository", "bad config"))
        return False

    def _set_aside(self) -> None:
        """Keep what is there under another name, in the place of what was kept so before. Raises OSError."""
        if not os.path.lexists(self._git_dir):
            return
        aside = self.folder / "damaged.git"
        if aside.is_dir() and not aside.is_symlink():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.unlink(missing_ok=True)
        # Another process may have done it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            self._git_dir.rename(aside)
        (self.folder / "known.json").unlink(missing_ok=True)
        self._damage = (
            f"the saved states of {self.root} are damaged and were put into {aside}: undo cannot bring back"
            " what earlier steps changed, and begins anew here"
        )

    def _are_there(self, tree_id: str, blobs: Iterable[str]) -> bool:
        """Whether a saved state is whole. What is no object in the place of one goes, or git would take it
        for saved the next time.
        """
        wanted = {tree_id, *blobs}
        try:
            said = self.git("cat-file", "--batch-check", "--buffer", given="\n".join(sorted(wanted)).encode())
            self.git("ls-tree", "-r", "-d", "-z", tree_id)
            is_whole = not any(line.endswith(b" missing") for line in said.splitlines())
        except StoreError:
            is_whole = False
        if not is_whole:
            self._sweep()
            self._damage = (
                f"the saved states of {self.root} in {self.folder} are damaged: undo may not bring back"
                " all that earlier steps changed; everything is saved anew"
            )
        return is_whole

    def _sweep(self) -> None:
        for path in (self._git_dir / "objects").glob("??/*"):
            with contextlib.suppress(OSError):
                with path.open("rb") as file:
                    begin = file.read(512)
                try:
                    is_object = zlib.decompressobj().decompress(begin, 64).startswith(KINDS)
                except zlib.error:
                    is_object = False
                if not is_object:
                    path.unlink()

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
            self._drop_drafts(said)
            reason = next((line for line in said.splitlines() if line.startswith("fatal:")), said).strip()
            raise StoreError(
                f"the files in {self.root} cannot be saved to {self.folder}: {reason or f'git: {code}'}"
            )

    def _drop_drafts(self, said: str) -> None:
        """What a git that failed has left half-written, by its own words or by age: on a full disk it would
        take the room for all later attempts.
        """
        named = set(_DRAFT.findall(said))
        for path in (self._git_dir / "objects" / "pack").glob("tmp_*"):
            with contextlib.suppress(OSError):
                if path.name in named or time.time() - path.stat().st_mtime > MAX_DRAFT_AGE_S:
                    path.unlink()

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
