"""`repomap`: what a repository is made of, the most leaned-on definitions first; or where a name stands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pydantic import Field

from k3agent.errors import ToolError
from k3agent.tools.base import Access, Args, ToolContext, ToolOutput
from k3agent.tools.support import opening, paths
from k3agent.tools.support.ranking import Ranked, rank
from k3agent.tools.support.scan import Scan, scan
from k3agent.tools.support.symbols import MIN_NAME
from k3agent.tools.support.truncate import one_line

LANGUAGES = "Python, JavaScript, TypeScript, Go, Rust, Java, Bash"
PATIENCE_S = 10.0
CHARS_PER_TOKEN = 3
MAX_PER_FILE = 20
MAX_PLACES = 40
MAX_USERS = 12


class RepoMapArgs(Args):
    path: str = Field(default=".", description="Folder to map. Default: the workspace.")
    about: list[str] = Field(
        default_factory=list, description="Words or files that the map is to centre on, if any."
    )
    symbol: str = Field(default="", description="Instead of a map: where this name is defined and mentioned.")
    tokens: int = Field(default=1500, ge=200, le=8000, description="Length of the map. Default 1500.")


class RepoMapTool:
    name = "repomap"
    args = RepoMapArgs
    is_read_only = True

    def describe(self, args: RepoMapArgs) -> str:
        about = (
            f" of {args.symbol}" if args.symbol else f" about {', '.join(args.about)}" if args.about else ""
        )
        return one_line(f"repomap {args.path}{about}")

    def access(self, args: RepoMapArgs, ctx: ToolContext) -> Access:
        return Access(reads=(paths.locate(args.path, ctx).path,))

    async def run(self, args: RepoMapArgs, ctx: ToolContext) -> ToolOutput:
        place = paths.locate(args.path, ctx)
        if not paths.is_folder(place):
            raise ToolError(f"{place.shown} is not a folder. Pass a folder as path.")
        opening.check(place.path, place.shown)
        text = await asyncio.to_thread(_answer, args, place, ctx)
        return ToolOutput(text=text)


def _answer(args: RepoMapArgs, place: paths.Place, ctx: ToolContext) -> str:
    found = scan(place.path, ctx.knowledge.symbols, PATIENCE_S)
    prefix = "" if place.shown == "." else place.shown.rstrip("/") + "/"
    text = places_of(args.symbol, found, prefix) if args.symbol else _map(args, found, prefix)
    notes: list[str] = []
    if found.waiting:
        notes.append(
            f"[{found.waiting} of {found.waiting + len(found.files)} files are not read yet; ask again]"
        )
    if found.num_left_out:
        notes.append(f"[{found.num_left_out} further files are left out; map a folder inside]")
    return "\n".join([text, *notes])


def _map(args: RepoMapArgs, found: Scan, prefix: str) -> str:
    ranked = rank(found.files, args.about)
    if not ranked:
        return f"There are no files here in a language that is known: {LANGUAGES}."
    num_all = sum(len(symbols.definitions) for symbols in found.files.values())
    return render(ranked, num_all, args.tokens * CHARS_PER_TOKEN, prefix)


def render(ranked: Sequence[Ranked], num_all: int, most: int, prefix: str = "") -> str:
    """Files in the order of their best definition, those of a file by line; as many as `most` characters
    hold.
    """
    chosen: dict[str, list[Ranked]] = {}
    left = most
    for entry in ranked:
        rows = chosen.get(entry.path)
        cost = len(_row(entry)) + 1 + (0 if rows else len(prefix) + len(entry.path) + 2)
        if rows is not None and len(rows) >= MAX_PER_FILE:
            continue
        if cost > left:
            break
        left -= cost
        chosen.setdefault(entry.path, []).append(entry)
    lines: list[str] = []
    for path, entries in chosen.items():
        lines.append(f"{prefix}{path}:")
        lines += [_row(entry) for entry in sorted(entries, key=lambda entry: entry.definition.line)]
    num = sum(map(len, chosen.values()))
    if num < num_all:
        lines.append(f"[{num} of {num_all} definitions, those most leaned on]")
    return "\n".join(lines)


def _row(entry: Ranked) -> str:
    return f"  {entry.definition.line}: {entry.definition.text}"


def places_of(name: str, found: Scan, prefix: str = "") -> str:
    """Where a name is defined, and which files mention it; without the exact name, those that hold it."""
    every = [(path, item) for path, symbols in found.files.items() for item in symbols.definitions]
    hits = [(path, item) for path, item in every if item.name == name]
    if not hits:
        hits = [(path, item) for path, item in every if name.lower() in item.name.lower()]
    if not hits:
        short = f" Names of fewer than {MIN_NAME} characters are not kept." if len(name) < MIN_NAME else ""
        return (
            f"Nothing is defined here whose name holds {name}.{short} A search for text (grep) may find it."
        )
    hits.sort(key=lambda hit: (hit[0], hit[1].line))
    lines = [f"{prefix}{path}:{item.line}: {item.text}" for path, item in hits[:MAX_PLACES]]
    if len(hits) > MAX_PLACES:
        lines.append(f"[{len(hits) - MAX_PLACES} more]")
    for known in dict.fromkeys(item.name for _, item in hits[:3]):
        own = {path for path, item in hits if item.name == known}
        users = sorted(
            path for path, symbols in found.files.items() if known in symbols.mentions and path not in own
        )
        if users:
            shown = ", ".join(f"{prefix}{path}" for path in users[:MAX_USERS])
            more = f" and {len(users) - MAX_USERS} more" if len(users) > MAX_USERS else ""
            lines.append(f"{known} is mentioned in: {shown}{more}")
    return "\n".join(lines)
