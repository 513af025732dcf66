"""`glob`: names of files and folders that match a pattern."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from k3agent.errors import ToolError
from k3agent.tools.base import Access, Args, ToolContext, ToolOutput
from k3agent.tools.support import opening, paths
from k3agent.tools.support.globs import MAGIC, compile_glob
from k3agent.tools.support.ignore import walk
from k3agent.tools.support.truncate import one_line


class GlobArgs(Args):
    pattern: str = Field(
        min_length=1, description='E.g. "*.py" (in path only), "**/*.py" (at any depth), "src/**".'
    )
    path: str = Field(default=".", description="Folder to look in. Default: the workspace.")
    limit: int = Field(default=200, ge=1, le=10_000, description="Most names to give. Default 200.")


class GlobTool:
    name = "glob"
    args = GlobArgs
    is_read_only = True

    def describe(self, args: GlobArgs) -> str:
        return one_line(f"glob {args.pattern}" + ("" if args.path == "." else f" in {args.path}"))

    def access(self, args: GlobArgs, ctx: ToolContext) -> Access:
        return Access(reads=(_split(args, ctx)[0].path,))

    async def run(self, args: GlobArgs, ctx: ToolContext) -> ToolOutput:
        base = paths.locate(args.path, ctx)
        if paths.stat_of(base) is None:
            raise paths.missing(base, ctx)
        if not paths.is_folder(base):
            raise ToolError(f"{base.shown} is a file, not a folder. Pass a folder as path.")
        place, pattern = _split(args, ctx)
        opening.check(place.path, place.shown)
        names = _matches(place, pattern) if paths.is_folder(place) else []
        if not names:
            return ToolOutput(text="No files match.", data={"total": 0})
        rows = names[: args.limit]
        if len(names) > len(rows):
            rows.append(f"[first {args.limit} of {len(names)} matches]")
        return ToolOutput(text="\n".join(rows), data={"total": len(names)})


def _split(args: GlobArgs, ctx: ToolContext) -> tuple[paths.Place, str]:
    """The folder to walk and the rest of the pattern: leading segments without wildcards name the folder."""
    segments = args.pattern.split("/")
    fixed = 0
    while fixed < len(segments) - 1 and not MAGIC.search(segments[fixed]) and segments[fixed + 1] != "":
        fixed += 1
    folder = "/".join(segments[:fixed]) + ("/" if fixed == 1 and segments[0] == "" else "")
    joined = os.path.join(args.path, folder) if folder else args.path  # noqa: PTH118 - an absolute folder wins
    return paths.locate(joined, ctx), "/".join(segments[fixed:])


def _matches(place: paths.Place, pattern: str) -> list[str]:
    prefix = "" if place.shown == "." else place.shown.rstrip("/") + "/"
    if pattern in (".", "./", ""):
        return [prefix or "./"]
    segments = [segment for segment in pattern.split("/") if segment not in ("", ".")]
    regex = compile_glob(pattern)
    hidden = any(segment.startswith((".", "{.")) or ",." in segment for segment in segments)
    depth = None if "**" in segments or any("{" in segment for segment in segments) else len(segments)
    found = []
    for entry in walk(place.path, hidden=hidden, max_depth=depth):
        if regex.fullmatch(entry.shown):
            is_dir = entry.is_dir or (entry.is_link and Path(entry.path).is_dir())
            if is_dir or not pattern.endswith("/"):
                found.append(f"{prefix}{entry.shown}{'/' if is_dir else ''}")
    return sorted(found)
