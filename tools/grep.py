"""`grep`: lines that match a regular expression."""

from __future__ import annotations

import asyncio
import re

from pydantic import Field

from k3agent.errors import ToolError
from k3agent.tools.base import Access, Args, ToolContext, ToolOutput
from k3agent.tools.support import opening, paths, ripgrep
from k3agent.tools.support.ignore import walk
from k3agent.tools.support.truncate import one_line

# A tree with at most so many entries is searched here and now: starting ripgrep would take longer.
SMALL_TREE = 200
SMALL_BYTES = 4_000_000
# A repeated group can make Python's matching take for ever, ripgrep's not.
RISKY = re.compile(r"\)[*+{]")


class GrepArgs(Args):
    pattern: str = Field(min_length=1, description="Regular expression, matched within single lines.")
    path: str = Field(default=".", description="File or folder to search. Default: the workspace.")
    glob: str | None = Field(default=None, description='Only files like this, e.g. "*.py" or "src/**/*.ts".')
    ignore_case: bool = Field(default=False, description="Match upper and lower case alike.")
    limit: int = Field(default=100, ge=1, le=5000, description="Most lines to give. Default 100.")


class GrepTool:
    name = "grep"
    args = GrepArgs
    is_read_only = True

    def describe(self, args: GrepArgs) -> str:
        return one_line(f"grep {args.pattern}" + ("" if args.path == "." else f" in {args.path}"))

    def access(self, args: GrepArgs, ctx: ToolContext) -> Access:
        return Access(reads=(paths.locate(args.path, ctx).path,))

    async def run(self, args: GrepArgs, ctx: ToolContext) -> ToolOutput:
        place = paths.locate(args.path, ctx)
        is_dir = paths.is_folder(place)
        if not is_dir and paths.stat_of(place) is None:
            raise paths.missing(place, ctx)
        opening.check(place.path, place.shown)
        query = ripgrep.Query(
            pattern=args.pattern,
            root=place.path,
            prefix=_prefix(place.shown) if is_dir else place.shown,
            glob=args.glob if is_dir else None,
            ignore_case=args.ignore_case,
            limit=args.limit,
        )
        hits = await search(query)
        if not hits.total:
            return ToolOutput(text="No matches.", data={"total": 0})
        rows = [f"{hit.path}:{hit.line}:{hit.text}" for hit in hits.first]
        if hits.total > len(rows):
            rows.append(f"[first {len(rows)} of {hits.total} matches]")
        return ToolOutput(text="\n".join(rows), data={"total": hits.total})


def _prefix(shown: str) -> str:
    return "" if shown == "." else shown.rstrip("/") + "/"


async def search(query: ripgrep.Query) -> ripgrep.Hits:
    """The hits of `query`, by the engine that is quicker here and understands the pattern."""
    program = ripgrep.find_ripgrep() if query.root.is_dir() else None
    try:
        python, problem = ripgrep.PythonSearch(query.pattern, ignore_case=query.ignore_case), None
    except ToolError as error:
        python, problem = None, error
    if program and (python is None or RISKY.search(query.pattern) or not _is_small(query)):
        hits = await ripgrep.run_ripgrep(program, query)
        if hits is not None:
            return hits
    if python is None:
        assert problem is not None
        raise problem
    if query.root.is_dir() and _is_small(query):
        return python.run(query)
    return await asyncio.to_thread(python.run, query)


def _is_small(query: ripgrep.Query) -> bool:
    total = 0
    for count, entry in enumerate(walk(query.root)):
        if count >= SMALL_TREE:
            return False
        if not entry.is_dir:
            try:
                total += query.root.joinpath(entry.path).lstat().st_size
            except OSError:
                continue
            if total > SMALL_BYTES:
                return False
    return True
