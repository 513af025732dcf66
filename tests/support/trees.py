"""Trees of files with all in them that is easily lost, ways to wreck them, and a picture of what is there."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
from pathlib import Path

NAMES = (
    "a",
    "b.txt",
    "new\nline",
    'quo"te',
    "ünïcode",
    "\\back",
    " sp ",
    "-n",
    "%p",
    ".gitmodules",
    "ö" * 60,
)
NAMES_OF_BYTES = (os.fsdecode(b"latin\xe9"), "tab\there", ".gitattributes", ".gitignore")
CONTENTS = (
    b"",
    b"text\n",
    b"crlf\r\nlines\r\n",
    bytes(range(256)) * 5,
    b"$Id$ \xff\xfe",
    b"* text=auto eol=crlf filter=evil ident\n",
)
MODES = (0o644, 0o755, 0o600, 0o640, 0o444, 0o700, 0o666, 0o4755)


def picture(root: Path) -> dict[str, tuple[object, ...]]:
    """All that there is below `root`: kind, mode and content of each path."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder) / name
            info = path.lstat()
            relative = os.path.relpath(path, root)
            if stat.S_ISLNK(info.st_mode):
                found[relative] = ("link", os.readlink(path))  # noqa: PTH115 - the text as it is
            elif stat.S_ISDIR(info.st_mode):
                found[relative] = ("folder", stat.S_IMODE(info.st_mode))
            else:
                found[relative] = ("file", stat.S_IMODE(info.st_mode), path.read_bytes())
    return found


def grow(root: Path, chance: random.Random, count: int) -> None:
    """Random files, links and folders below `root`, some of them in the place of others."""
    names = NAMES + NAMES_OF_BYTES
    for _ in range(count):
        depth = chance.randint(1, 3)
        path = root.joinpath(*(chance.choice(names) for _ in range(depth)))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove(path)
            match chance.randint(0, 4):
                case 0:
                    path.symlink_to(chance.choice(("b.txt", "..//x", "/nowhere", "new\nline", ".")))
                case 1:
                    path.mkdir(mode=chance.choice((0o755, 0o700, 0o775)))
                case _:
                    path.write_bytes(chance.choice(CONTENTS) + bytes(str(chance.random()), "ascii"))
                    path.chmod(chance.choice(MODES))
        except OSError:
            continue  # a file or a link stands where a folder would have to be


def remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


def wreck(root: Path, chance: random.Random) -> None:
    """Delete, rename, overwrite, change modes."""
    for relative in list(picture(root)):
        path = root / relative
        if not os.path.lexists(path):
            continue
        with contextlib.suppress(FileNotFoundError):  # it lay behind a link that is gone
            match chance.randint(0, 6):
                case 0:
                    remove(path)
                case 1:
                    target = path.with_name(f"moved{chance.randint(0, 99)}")
                    remove(target)
                    path.rename(target)
                case 2 if path.is_file() and not path.is_symlink():
                    path.unlink()
                    path.write_bytes(chance.choice(CONTENTS))
                case 3 if not path.is_symlink():
                    path.chmod(0o755 if path.is_dir() else chance.choice(MODES))
                case _:
                    pass
    grow(root, chance, 4)
