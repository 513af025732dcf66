"""From the path a model wrote to the file it means, and back to the text shown to the model.

Paths are resolved through links before anybody judges them. A name that differs from the one on disk only in
its Unicode form (NFC or NFD) finds the one on disk.
"""

from __future__ import annotations

import difflib
import os
import stat
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from k3agent.errors import ToolError
from k3agent.tools.base import ToolContext

MAX_SCANNED = 4000


@dataclass(frozen=True, slots=True)
class Place:
    """`path` is absolute and resolved through links; `shown` is how the model is told of it."""

    path: Path
    shown: str


def locate(path: str, ctx: ToolContext) -> Place:
    """What `path` means in this workspace. Nothing is opened; the path need not exist."""
    if not path:
        raise ToolError("path is empty. Pass a path relative to the workspace.")
    if "\0" in path:
        raise ToolError("path contains a NUL character. Pass a plain path.")
    home = ctx.environ.get("HOME")
    if home and (path == "~" or path.startswith("~/")) and not (ctx.cwd / "~").exists():
        path = home + path[1:]
    path = _unmarked(path, ctx)
    try:
        joined = _as_on_disk(os.path.join(ctx.cwd, path))  # noqa: PTH118 - Path would drop `..` and `.` hints
        real = Path(os.path.realpath(joined))
    except (OSError, ValueError, UnicodeEncodeError) as error:
        raise ToolError(f"{path!a} is not a usable path: {error}.") from error
    # `a/../b` is not `b` when `a` is a link, so such a path is shown as what it really is.
    named = str(real) if ".." in joined.split("/") else os.path.normpath(joined)
    return Place(real, relative(named, ctx.cwd))


def _unmarked(path: str, ctx: ToolContext) -> str:
    """Without the `@` that users put before the name of a file, where only the rest is one. Not for paths
    that could lead out of the workspace.
    """
    rest = path[1:]
    if not path.startswith("@") or not rest or rest.startswith(("/", "~")) or ".." in rest.split("/"):
        return path
    if os.path.lexists(ctx.cwd / path):
        return path
    return rest if os.path.lexists(ctx.cwd / rest) else path


def stat_of(place: Place) -> os.stat_result | None:
    """What is at `place`; None when nothing is. `ToolError` when that cannot be known."""
    try:
        return place.path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ToolError(f"{place.shown} cannot be looked at: {error.strerror}.") from error


def is_folder(place: Place) -> bool:
    info = stat_of(place)
    return info is not None and stat.S_ISDIR(info.st_mode)


def relative(path: str | Path, cwd: Path) -> str:
    """`path` relative to the workspace with `/`, or absolute when it lies outside."""
    text, root = str(path), str(cwd)
    if text == root:
        return "."
    prefix = root if root.endswith(os.sep) else root + os.sep
    if text.startswith(prefix):
        text = text[len(prefix) :]
    return printable(text.replace(os.sep, "/"))


def printable(name: str) -> str:
    """`name` as valid Unicode: bytes of a file name that are no UTF-8 become U+FFFD."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "replace")


def changed(place: Place, ctx: ToolContext) -> str:
    """The name of a changed file for `ToolOutput.files`: the file itself, not a link to it."""
    return relative(place.path, ctx.cwd)


def _as_on_disk(path: str) -> str:
    if path.isascii() or os.path.lexists(path):
        return path
    parts, found = Path(path).parts, ""
    for index, part in enumerate(parts):
        candidate = os.path.join(found, part) if found else part  # noqa: PTH118
        if not os.path.lexists(candidate):
            wanted = unicodedata.normalize("NFC", part)
            try:
                same = [
                    p.name for p in Path(found).iterdir() if unicodedata.normalize("NFC", p.name) == wanted
                ]
            except OSError:
                same = []
            if len(same) != 1:
                return os.path.join(found, *parts[index:])  # noqa: PTH118
            candidate = os.path.join(found, same[0])  # noqa: PTH118
        found = candidate
    return found


def missing(place: Place, ctx: ToolContext) -> ToolError:
    """The error for a file that is not there, with up to three names that may have been meant."""
    names = similar(place, ctx)
    return ToolError(f"{place.shown} does not exist." + (f" Similar: {', '.join(names)}" if names else ""))


def similar(place: Place, ctx: ToolContext) -> list[str]:
    """Up to three existing files: the same name elsewhere first, then alike names."""
    from k3agent.tools.support.ignore import walk  # lazy: only on this error path

    wanted = place.shown.casefold()
    base = wanted.rsplit("/", 1)[-1]
    scored: list[tuple[float, str]] = []
    for count, entry in enumerate(walk(ctx.cwd)):
        if count >= MAX_SCANNED:
            break
        if entry.is_dir:
            continue
        name = entry.shown.casefold()
        own = name.rsplit("/", 1)[-1]
        if own == base:
            scored.append((2.0 + difflib.SequenceMatcher(None, name, wanted).ratio(), entry.shown))
            continue
        matcher = difflib.SequenceMatcher(None, own, base)
        if matcher.real_quick_ratio() >= 0.6 and matcher.quick_ratio() >= 0.6 and matcher.ratio() >= 0.6:
            same_folder = name.rpartition("/")[0] == wanted.rpartition("/")[0]
            scored.append((matcher.ratio() + (0.3 if same_folder else 0.0), entry.shown))
    return [name for _, name in sorted(scored, key=lambda item: (-item[0], item[1]))[:3]]
