"""`read`: a text file with line numbers."""

from __future__ import annotations

import asyncio

from pydantic import Field

from k3agent.errors import ToolError
from k3agent.tools.base import Access, Args, ToolContext, ToolOutput
from k3agent.tools.support import paths, textio
from k3agent.tools.support.truncate import one_line

MAX_LINE_CHARS = 2000
MAX_CHARS = 120_000


class ReadArgs(Args):
    path: str = Field(description="File, relative to the workspace.")
    offset: int = Field(default=1, ge=1, description="First line, counted from 1. Default 1.")
    limit: int = Field(default=1000, ge=1, description="Most lines to give. Default 1000.")


class ReadTool:
    name = "read"
    args = ReadArgs
    is_read_only = True

    def describe(self, args: ReadArgs) -> str:
        return one_line(f"read {args.path}" + (f" from line {args.offset}" if args.offset > 1 else ""))

    def access(self, args: ReadArgs, ctx: ToolContext) -> Access:
        return Access(reads=(paths.locate(args.path, ctx).path,))

    async def run(self, args: ReadArgs, ctx: ToolContext) -> ToolOutput:
        place = paths.locate(args.path, ctx)
        info = paths.stat_of(place)
        if info is None:
            raise paths.missing(place, ctx)
        if paths.is_folder(place):
            inside = "*" if place.shown == "." else f"{place.shown.rstrip('/')}/*"
            raise ToolError(f'{place.shown} is a folder. List it with glob, pattern "{inside}".')
        if info.st_size > textio.LARGE_BYTES:
            file, text = await asyncio.to_thread(_read, place, args)
        else:
            file, text = _read(place, args)
        ctx.freshness.record(place.path, file.digest)
        return ToolOutput(text=text)


def _read(place: paths.Place, args: ReadArgs) -> tuple[textio.TextFile, str]:
    file = textio.load(place.path, place.shown)
    return file, _numbered(file, place.shown, args)


def _numbered(file: textio.TextFile, shown: str, args: ReadArgs) -> str:
    lines = file.lines
    if not lines:
        return f"[{shown} is empty]"
    if args.offset > len(lines):
        raise ToolError(f"offset {args.offset} is after the end: {shown} has {_count(len(lines))}.")
    rows: list[str] = []
    size = 0
    for number, line in enumerate(lines[args.offset - 1 : args.offset - 1 + args.limit], args.offset):
        row = f"{number}\t{_cut(line)}"
        size += len(row)
        if rows and size > MAX_CHARS:
            break
        rows.append(row)
    last = args.offset + len(rows) - 1
    if last < len(lines):
        rows.append(f"[lines {args.offset}-{last} of {len(lines)}; continue with offset={last + 1}]")
    if file.encoding == textio.UNKNOWN:
        rows.append("[encoding unknown; bytes above 127 are shown as Latin-1]")
    elif file.encoding != "utf-8":
        rows.append(f"[encoding {file.encoding}]")
    text = "\n".join(rows)
    # Stray bytes of a UTF-8 file are lone surrogates here, which no JSON body may hold.
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _cut(line: str) -> str:
    if len(line) <= MAX_LINE_CHARS:
        return line
    return f"{line[:MAX_LINE_CHARS]}[... {len(line) - MAX_LINE_CHARS} more characters]"


def _count(number: int) -> str:
    return "1 line" if number == 1 else f"{number} lines"
