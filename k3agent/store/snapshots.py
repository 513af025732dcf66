"""File states of one folder as commits under a private git ref, in a repository of k3agent's own.

Git never sees the folder: content is read here and streamed to `git fast-import`. So nothing that a project
configures (filters, line ends, hooks, monitors) can run or change a byte, the user's index and objects stay
alone, and removing the project removes no snapshot. A commit has no parents: what one session saved is not
kept alive by another.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from k3agent.errors import StoreError
from k3agent.store import filetree
from k3agent.store.filetree import Entry, Extra, Rules, TooMuch, Tree
from k3agent.store.snapshotforms import (
    CHUNK,
    FileChanged,
    blob_id,
    build,
    chunks,
    describe,
    identify,
    link_target,
    open_file,
    quoted,
    settle,
)
from k3agent.store.snapshotrepo import FOLDER, SnapshotRepository

REFS = "refs/k3agent"
# Of a state that cannot be read.
LOST = "it cannot bring files back; `k3agent undo --list` shows which steps can"
# What is left out as a rule and saved before a command that would destroy it, all together.
MAX_EXTRA_BYTES = 512 << 20
# Content of so many bytes is not copied as a rule: then only what is named is saved.
MAX_NEW_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A saved state. `unsaved`: what was to be saved besides the rule and could not, with the reason."""

    commit: str
    tree: Tree
    unsaved: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Base:
    """What was saved last: the next state is written as the difference to it."""

    tree: Tree = field(default_factory=Tree)
    tree_id: str = ""
    commit: str = ""
    session_id: str = ""


class Snapshots(SnapshotRepository):
    """The saved states of the folder `root`. Blocking; one call at a time, from any thread."""

    def __init__(self, home: Path, root: Path) -> None:
        super().__init__(home, root)
        self._base: _Base | None = None
        self._lock = threading.Lock()
        self._num_saved = 0

    # --- saving -------------------------------------------------------------------------------------------

    def save(
        self,
        session_id: str,
        rules: Rules,
        *,
        extra: Sequence[Extra] = (),
        only: Sequence[str] | None = None,
        max_extra_bytes: int = MAX_EXTRA_BYTES,
        renew: Callable[[], Rules] | None = None,
    ) -> Saved:
        """Save the files as they are. `extra`: as far as it fits into `max_extra_bytes`; `only`: look at
        these paths alone, the rest is as it was saved last; `renew`: gives the rules where new paths show
        that `rules` may be out of date. Raises StoreError.
        """

        def attempt() -> Saved:
            try:
                self._prepare()
                base = self._base or self._known()
                if base.tree_id and not self._has_tree(base.tree_id):
                    base = _Base()
                tree, now = self._look(base, rules, only), rules
                if renew is not None and only is None and _has_news(base.tree, tree):
                    now = renew()
                    tree = self._look(base, now, None)
                self._check_size(tree)
                unsaved = filetree.add_extra(self.root, tree, extra, now, max_extra_bytes) if extra else {}
                return self._commit(session_id, base, tree, unsaved)
            except OSError as error:
                raise StoreError(f"the files in {self.root} cannot be saved: {error}") from error

        with self._lock:
            try:
                return attempt()
            except TooMuch:
                raise
            except StoreError:
                if not self._is_broken():
                    raise
                self._begin_anew()
                return attempt()

    def _begin_anew(self) -> None:
        try:
            self._set_aside()
        except OSError as error:
            raise StoreError(f"{self._git_dir} is damaged and cannot be put aside: {error}") from error
        self._base = None

    def peek(self, rules: Rules, extra: Sequence[Extra], max_extra_bytes: int) -> Saved:
        """What `save` would save now, with its commit left empty: nothing is written. Raises StoreError."""
        with self._lock:
            try:
                base = self._base or (self._known() if self.is_begun else _Base())
                tree = self._look(base, rules, None)
                self._check_size(tree)
                unsaved = filetree.add_extra(self.root, tree, extra, rules, max_extra_bytes)
                for path in dict.fromkeys(tree.fresh):
                    identify(self.root, path, tree)
                return Saved(commit="", tree=tree, unsaved=unsaved)
            except OSError as error:
                raise StoreError(f"the files in {self.root} cannot be looked at: {error}") from error

    def _check_size(self, tree: Tree) -> None:
        new_bytes = sum(tree.files[path].size for path in tree.fresh)
        if new_bytes > MAX_NEW_BYTES:
            raise TooMuch(f"{self.root} has {new_bytes / 1e9:.1f} GB of files that are not saved yet")

    def _look(self, base: _Base, rules: Rules, only: Sequence[str] | None) -> Tree:
        if only is None or not base.tree_id:
            return filetree.look(self.root, rules, base.tree.files)
        last = base.tree
        tree = Tree(dict(last.files), dict(last.folders), dict(last.left_out))
        for path in only:
            for known in [name for name in tree.files if filetree.is_below(name, path)]:
                del tree.files[known]
            if filetree.covering(path, tree.left_out) is None:
                for parent in filetree.parents_of(path):
                    info = filetree.stat_of(self.root, parent)
                    if info is not None:
                        tree.folders[parent] = stat.S_IMODE(info.st_mode)
                filetree.look_below(self.root, path, tree, last.files)
        return tree

    def _commit(self, session_id: str, base: _Base, tree: Tree, unsaved: dict[str, str]) -> Saved:
        changed: list[str] = []
        is_same = tree.folders == base.tree.folders and tree.left_out == base.tree.left_out
        for path in dict.fromkeys(tree.fresh):
            entry, known = tree.files[path], base.tree.files.get(path)
            if known is None or known.is_link != entry.is_link:
                changed.append(path)
                continue
            if known.size == entry.size and self._holds(path, entry, known.blob):
                entry.blob = known.blob
            if not entry.blob or (known.mode & 0o100) != (entry.mode & 0o100):
                changed.append(path)
            is_same = is_same and known.mode == entry.mode
        removed = list(base.tree.files.keys() - tree.files.keys())
        is_same = is_same and not changed and not removed and not tree.whole
        if is_same and base.session_id == session_id and base.commit:
            base.tree.files.update((path, tree.files[path]) for path in tree.fresh)
            return Saved(commit=base.commit, tree=tree, unsaved=unsaved)
        ref = f"{REFS}/{ref_name(session_id)}/{time.time_ns():x}-{secrets.token_hex(3)}"
        try:
            self._import(ref, base, tree, changed, removed)
        except FileChanged:
            for path in changed:
                if path in tree.files:
                    tree.files[path].blob = ""
            self._import(ref, base, tree, changed, removed)
        commit, tree_id = self._ids(ref)
        unsaved.update(
            (path, filetree.UNREADABLE)
            for path in changed
            if tree.left_out.get(path) == filetree.UNREADABLE and path not in base.tree.left_out
        )
        tree.fresh = []
        if not tree.whole:
            self._base = _Base(tree, tree_id, commit, session_id)
        elif self._base is None:
            self._base = base
        self._num_saved += 1
        if self._num_saved % 200 == 0:
            # What is saved is saved, packed or not.
            with contextlib.suppress(StoreError):
                self._pack()
        return Saved(commit=commit, tree=tree, unsaved=unsaved)

    def _holds(self, path: str, entry: Entry, blob: str) -> bool:
        """Whether a small file whose times say nothing has the known content: then nothing is written."""
        place = self.root / path
        if entry.size > CHUNK:
            return False
        try:
            if entry.is_link:
                data = link_target(place)
                settle(entry, info := place.lstat(), info)
                return blob_id(len(data), [data], None) == blob
            with os.fdopen(open_file(self.root, path), "rb") as file:
                before = os.fstat(file.fileno())
                data = file.read(CHUNK + 1)
                if not stat.S_ISREG(before.st_mode) or blob_id(len(data), [data], None) != blob:
                    return False
                settle(entry, before, os.fstat(file.fileno()))
                return True
        except OSError:
            return False

    def _import(self, ref: str, base: _Base, tree: Tree, changed: list[str], removed: list[str]) -> None:
        try:
            with self._importer() as stream:
                self._write(stream, ref, base, tree, changed, removed)
        except StoreError:
            # What was saved last is no longer sure.
            self._base = None
            raise

    def _write(
        self,
        stream: IO[bytes],
        ref: str,
        base: _Base,
        tree: Tree,
        changed: list[str],
        removed: list[str],
    ) -> None:
        title = f"files of {self.root}\n"
        who = f"k3agent <k3agent@localhost> {int(time.time())} +0000"
        head = f"commit {ref}\ncommitter {who}\ndata {len(os.fsencode(title))}\n{title}"
        stream.write(os.fsencode(head))
        if base.tree_id:
            stream.write(f"M 040000 {base.tree_id} files\n".encode())
        for path in removed:
            stream.write(b"D " + quoted(path) + b"\n")
        for path in changed:
            if not self._send(stream, path, tree):
                tree.files.pop(path, None)
                if path in base.tree.files:
                    stream.write(b"D " + quoted(path) + b"\n")
        meta = describe(tree)
        stream.write(b"M 100644 inline meta\ndata %d\n%b\n" % (len(meta), meta))

    def _send(self, stream: IO[bytes], path: str, tree: Tree) -> bool:
        """Write one file into the stream; False when it has gone, or cannot be read, which is noted."""
        entry = tree.files[path]
        git_mode = b"120000" if entry.is_link else b"100755" if entry.mode & 0o100 else b"100644"
        if entry.blob:
            stream.write(b"M %b %b %b\n" % (git_mode, entry.blob.encode(), quoted(path)))
            return True
        head = b"M %b inline %b\n" % (git_mode, quoted(path))
        try:
            if entry.is_link:
                place = self.root / path
                data = link_target(place)
                entry.blob = blob_id(len(data), [data], None)
                stream.write(b"%bdata %d\n%b\n" % (head, len(data), data))
                settle(entry, info := place.lstat(), info)
                return True
            fd = open_file(self.root, path)
        except FileNotFoundError:
            return False
        except OSError:
            tree.left_out[path] = filetree.UNREADABLE
            return False
        with os.fdopen(fd, "rb", buffering=0) as file:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                return False
            stream.write(b"%bdata %d\n" % (head, info.st_size))
            entry.blob = blob_id(info.st_size, chunks(file, info.st_size), stream.write)
            stream.write(b"\n")
            settle(entry, info, os.fstat(fd))
        return True

    def _ids(self, ref: str) -> tuple[str, str]:
        """(commit, tree of its files)."""
        lines = self.git("cat-file", "--batch-check", given=f"{ref}\n{ref}:files\n".encode()).decode()
        commit, files = lines.splitlines()
        if not commit.split()[1:2] == ["commit"]:
            raise StoreError(f"the files in {self.root} cannot be saved to {self.folder}: {commit}")
        return commit.split()[0], files.split()[0] if " tree " in files else ""

    # --- reading ------------------------------------------------------------------------------------------

    def load(self, commit: str) -> Tree:
        """A saved state. Its entries have no signs. Raises StoreError."""
        if not self._git_dir.is_dir():
            raise StoreError(f"the snapshots of {self.root} are not in {self.folder} any more")
        if not self._has_shape():
            raise StoreError(f"what was saved of {self.root} in {self.folder} is damaged: {LOST}")
        try:
            meta = json.loads(self.git("cat-file", "blob", f"{commit}:meta"))
            return build(meta, self.git("ls-tree", "-r", "-z", "--full-tree", commit))
        except (StoreError, ValueError) as error:
            raise StoreError(f"what was saved of {self.root} is damaged or gone: {LOST} ({error})") from error

    def whole_paths(self, commits: Sequence[str]) -> dict[str, list[str]]:
        """What saved states cover from end to end besides the rules; nothing for one that has gone."""
        found: dict[str, list[str]] = {}
        if not commits or not self.is_begun:
            return found
        try:
            answer = self.git("cat-file", "--batch", given="".join(f"{c}:meta\n" for c in commits).encode())
        except StoreError:
            return found
        said = io.BytesIO(answer)
        for commit in commits:
            head = said.readline().split()
            if head[1:2] == [b"blob"]:
                found[commit] = json.loads(said.read(int(head[2])))["whole"]
                said.read(1)
        return found

    # --- what is known from earlier -----------------------------------------------------------------------

    def remember(self) -> None:
        """Keep the signs of the files, so that the next process need not read them all. Best effort."""
        with self._lock:
            base = self._base
            if base is None or not base.tree_id:
                return
            files = {
                path: [entry.is_link, entry.mode, entry.blob, entry.sign, entry.size]
                for path, entry in base.tree.files.items()
            }
            text = json.dumps({"version": 1, "tree": base.tree_id, "files": files}, separators=(",", ":"))
            # Subagents save the same folder from threads of the same process.
            draft = self.folder / f".known.{os.getpid()}-{secrets.token_hex(3)}"
            with contextlib.suppress(OSError):
                draft.write_text(text, encoding="utf-8")
                draft.replace(self.folder / "known.json")

    def _known(self) -> _Base:
        try:
            path = self.folder / "known.json"
            known = json.loads(path.read_text(encoding="utf-8") if path.is_file() else "{}")
            if known["version"] != 1:
                return _Base()
            files = {
                path: Entry(is_link, mode, blob, None if sign is None else tuple(sign), size)
                for path, (is_link, mode, blob, sign, size) in known["files"].items()
            }
            if not self._are_there(known["tree"], (entry.blob for entry in files.values())):
                return _Base()
            return _Base(Tree(files), known["tree"])
        except (OSError, ValueError, KeyError, TypeError):
            return _Base()


def _has_news(known: Tree, tree: Tree) -> bool:
    """Whether there are paths that nobody has judged, or the files by which they are judged have changed."""
    if any(path not in known.files or path.endswith(".gitignore") for path in tree.fresh):
        return True
    if any(path.endswith(".gitignore") for path in known.files.keys() - tree.files.keys()):
        return True
    return not tree.folders.keys() <= known.folders.keys()


# --- all folders ------------------------------------------------------------------------------------------


def delete_session(home: Path, session_id: str) -> None:
    """Remove the refs of a session, and what only they kept. Raises StoreError."""
    for place in (home / FOLDER).glob("*/root"):
        snapshots = Snapshots(home, Path(os.fsdecode(place.read_bytes())))
        if not snapshots.is_begun:
            continue
        prefix = f"{REFS}/{ref_name(session_id)}/"
        names = snapshots.git("for-each-ref", "--format=%(refname)", prefix).decode().split()
        if names:
            orders = "".join(f"delete {name}\n" for name in names)
            snapshots.git("update-ref", "--stdin", given=orders.encode())
            if snapshots.git("for-each-ref", "--count=1", REFS):
                # Another session may be saving just now: what is new has no ref yet.
                snapshots.git("gc", "--quiet", "--prune=1.hour.ago")
            else:
                shutil.rmtree(snapshots.folder)


def ref_name(session_id: str) -> str:
    """The session's part of a ref's name; ids that users have chosen may hold anything."""
    if session_id and all(sign in "0123456789abcdefghijklmnopqrstuvwxyz-" for sign in session_id):
        return session_id.strip("-") or "x"
    return "x" + hashlib.sha256(session_id.encode()).hexdigest()[:40]
