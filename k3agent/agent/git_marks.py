"""Where git keeps its state for a folder: the files whose bytes tell whether HEAD has moved, and the locks
that a killed git leaves.
"""

from __future__ import annotations

from pathlib import Path

from k3agent.config.paths import git_root
from k3agent.safety.paths import small_text

LOCKS = ("index.lock", "HEAD.lock")


def git_folder(cwd: Path) -> Path | None:
    """The git folder of the work tree that `cwd` lies in (its own one in linked work trees); None without."""
    root = git_root(cwd)
    if root is None:
        return None
    folder = root / ".git"
    try:
        if folder.is_file():
            folder = root / small_text(folder).removeprefix("gitdir:").strip()
    except (OSError, ValueError):
        return None
    return folder


def git_marks(cwd: Path) -> list[Path]:
    """Commits, checkouts, resets and merges change one of these files, or are about to while a lock is there.
    None outside of a repository.
    """
    folder = git_folder(cwd)
    if folder is None:
        return []
    return [
        folder / "HEAD",
        folder / "logs" / "HEAD",
        *(folder / name for name in LOCKS),
        *_branch_lock(folder),
    ]


def _branch_lock(folder: Path) -> list[Path]:
    try:
        head = small_text(folder / "HEAD").strip()
    except (OSError, ValueError):
        return []
    name = head.removeprefix("ref: ")
    is_plain = name.startswith("refs/heads/") and ".." not in name
    return [folder / f"{name}.lock"] if name != head and is_plain else []


def is_in_use(cwd: Path) -> bool:
    """Whether a git program works in this work tree now. Without /proc it cannot be told: then it may be."""
    root, proc = git_root(cwd), Path("/proc")
    if root is None or not (proc / "self").exists():
        return True
    for path in proc.iterdir():
        try:
            if not path.name.isdigit() or not (path / "comm").read_text().startswith("git"):
                continue
            if (path / "cwd").readlink().is_relative_to(root):
                return True
        except OSError:
            continue
    return False
