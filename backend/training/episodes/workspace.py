"""A real folder for an episode: files are written, compared and restored quickly."""

import os
import shutil
import tempfile
from pathlib import Path

SKIPPED = frozenset({"__pycache__", "node_modules"})
TOLD_APART = frozenset({".gitignore"})
"""Hidden files that count: tasks change them."""


class Workspace:
    """A temporary folder in memory that holds one project at a time."""

    def __init__(self) -> None:
        base = "/dev/shm" if Path("/dev/shm").is_dir() else None
        self.root = os.path.realpath(tempfile.mkdtemp(prefix="k3e", dir=base))

    def reset(self, files: dict[str, str]) -> None:
        """Make the folder hold exactly these files."""
        have = self.snapshot()
        for path in have.keys() - files.keys():
            Path(self.root, path).unlink()
        for path, text in files.items():
            if have.get(path) != text:
                full = Path(self.root, path)
                full.parent.mkdir(parents=True, exist_ok=True)
                full.write_bytes(text.encode("utf-8", "surrogateescape"))
        self._remove_empty(self.root)

    def _remove_empty(self, folder: str) -> bool:
        empty = True
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                if entry.name in SKIPPED or entry.name.startswith("."):
                    shutil.rmtree(entry.path, ignore_errors=True)
                elif not self._remove_empty(entry.path):
                    empty = False
            else:
                empty = False
        if empty and folder != self.root:
            Path(folder).rmdir()
        return empty

    def paths(self) -> tuple[list[str], list[str]]:
        """Visible files and folders, relative."""
        return walk(self.root)

    def snapshot(self) -> dict[str, str]:
        """All files that count with their text (line ends kept)."""
        return read_tree(self.root)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.root, ignore_errors=True)


def walk(root: str, hidden: frozenset[str] = frozenset()) -> tuple[list[str], list[str]]:
    """Visible files and folders under a root, and files of the given hidden names; relative, unsorted."""
    files: list[str] = []
    folders: list[str] = []
    stack = [""]
    while stack:
        base = stack.pop()
        with os.scandir(f"{root}/{base}" if base else root) as entries:
            for entry in entries:
                name = entry.name
                if (name.startswith(".") and name not in hidden) or name in SKIPPED:
                    continue
                path = f"{base}/{entry.name}" if base else entry.name
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                    stack.append(path)
                else:
                    files.append(path)
    return files, folders


def read_tree(root: str | Path) -> dict[str, str]:
    """All files that count under a folder with their text; undecodable bytes are kept as surrogates."""
    found: dict[str, str] = {}
    for path in sorted(walk(str(root), TOLD_APART)[0]):
        with open(f"{root}/{path}", "rb") as file:  # noqa: PTH123 - twice as fast as Path
            found[path] = file.read().decode("utf-8", "surrogateescape")
    return found
