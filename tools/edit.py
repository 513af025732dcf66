"""`edit`: replaces one exact piece of text in a file.

The old text is the proof that the model knows the file. It is looked for exactly; only if it is nowhere, also
ignoring the amount of white space, and then only where that fits a single place.
"""

from __future__ import annotations

import asyncio

from pydantic import Field

from k3agent.errors import ToolError
from k3agent.tools.base import Access, Args, ToolContext, ToolOutput
from k3agent.tools.support import diffs, matching, paths, textio
from k3agent.tools.support.freshness import digest
from k3agent.tools.support.syntax import newly_broken
from k3agent.tools.support.truncate import one_line

MAX_LISTED = 20


class EditArgs(Args):
    path: str = Field(description="File, relative to the workspace.")
    old: str = Field(description="The text to replace, exactly as in the file, without line numbers.")
    new: str = Field(description="The text to put there.")
    all: bool = Field(default=False, description="Replace every occurrence.")
    line: int | None = Field(default=None, ge=1, description="Which occurrence: the one at this line.")


class EditTool:
    name = "edit"
    args = EditArgs
    is_read_only = False

    def describe(self, args: EditArgs) -> str:
        return one_line(f"edit {args.path}")

    def access(self, args: EditArgs, ctx: ToolContext) -> Access:
        return Access(writes=(paths.locate(args.path, ctx).path,))

    async def run(self, args: EditArgs, ctx: ToolContext) -> ToolOutput:
        place, size = _place(args, ctx)
        if size > textio.LARGE_BYTES:
            edit = await asyncio.to_thread(_apply, place, args, ctx)
        else:
            edit = _apply(place, args, ctx)
        count, note, difference, warning = edit
        counted = "1 replacement" if count == 1 else f"{count} replacements"
        head = f"Edited {place.shown} ({counted})."
        return ToolOutput(
            text="\n".join(part for part in (head, note, difference.text, warning) if part),
            files=(paths.changed(place, ctx),),
            data={"diff": difference.text, "added": difference.num_added, "removed": difference.num_removed},
        )

    def preview(self, args: EditArgs, ctx: ToolContext) -> str:
        place, _ = _place(args, ctx)
        file, _, note, text = _planned(place, args, ctx)
        difference = diffs.for_people(file.view, textio.normalise(text))
        return f"[{note}]\n{difference}" if note else difference


Edits = list[tuple[int, int, str]]


def _place(args: EditArgs, ctx: ToolContext) -> tuple[paths.Place, int]:
    """The file and its size."""
    place = paths.locate(args.path, ctx)
    if not args.old:
        raise ToolError("old is empty. Name the text to replace, or use write for a whole file.")
    if textio.normalise(args.old) == textio.normalise(args.new):
        raise ToolError("old and new are the same.")
    info = paths.stat_of(place)
    if info is None:
        raise paths.missing(place, ctx)
    if paths.is_folder(place):
        raise ToolError(f"{place.shown} is a folder. Name a file in it.")
    return place, info.st_size


def _planned(place: paths.Place, args: EditArgs, ctx: ToolContext) -> tuple[textio.TextFile, Edits, str, str]:
    """The file as it is, the places that change, a note, and the text that it gets."""
    file = textio.load(place.path, place.shown)
    ctx.freshness.check(place.path, place.shown, file.digest, must_be_read=False)
    edits, note = _find(file, place.shown, textio.normalise(args.old), textio.normalise(args.new), args)
    return file, edits, note, textio.splice(file.text, edits)


def _apply(place: paths.Place, args: EditArgs, ctx: ToolContext) -> tuple[int, str, diffs.Difference, str]:
    """Change the file; returns the number of places, a note, the difference, and a warning."""
    file, edits, note, text = _planned(place, args, ctx)
    data = textio.encode(text, file, place.shown)
    textio.write_atomic(place.path, data, place.shown)
    ctx.freshness.record(place.path, digest(data))
    view = textio.normalise(text)
    return len(edits), note, diffs.compare(file.view, view), newly_broken(place.path, file.view, view)


def _find(file: textio.TextFile, shown: str, old: str, new: str, args: EditArgs) -> tuple[Edits, str]:
    """The changes to make, and a note when white space was ignored."""
    view = file.view
    found = matching.occurrences(view, old, overlapping=not args.all)
    if not found:
        return _find_loosely(view, shown, old, new)
    if len(found) > 1 and not args.all:
        found = [_at_line(view, shown, old, found, args.line)]
    return [(start, start + len(old), new) for start in found], ""


def _at_line(view: str, shown: str, old: str, found: list[int], line: int | None) -> int:
    """The one occurrence that begins at `line`, or else covers it."""
    starts = [matching.line_of(view, start) for start in found]
    if line is not None:
        here = [start for start, first in zip(found, starts, strict=True) if first == line]
        height = old.rstrip("\n").count("\n")
        here = here or [f for f, first in zip(found, starts, strict=True) if first <= line <= first + height]
        if len(here) == 1:
            return here[0]
        if here:
            raise ToolError(
                f"old text occurs {len(here)} times at line {line} of {shown}. Add context, or all=true."
            )
    lines = list(dict.fromkeys(starts))
    listed = ", ".join(map(str, lines[:MAX_LISTED])) + (", ..." if len(lines) > MAX_LISTED else "")
    raise ToolError(
        f"old text occurs {len(found)} times in {shown} (lines {listed}). "
        "Add context, pass line=N, or all=true."
    )


def _find_loosely(view: str, shown: str, old: str, new: str) -> tuple[Edits, str]:
    spans = matching.loose_spans(view, old)
    if len(spans) == 1:
        span = spans[0]
        edit = (span.start, span.end, matching.reindent(view, span, old, new))
        if not new:
            # Whole lines that go take their indentation with them.
            indent = len(view[: span.start]) - len(view[: span.start].rstrip(" \t"))
            at_start = view[: span.start - indent].endswith("\n") or span.start == indent
            edit = (span.start - indent if at_start and old.endswith("\n") else span.start, span.end, "")
        if view[span.start : span.end] != edit[2]:
            return [edit], f"Matched line {matching.line_of(view, span.start)} after ignoring white space."
    message = f"old text not found in {shown}."
    if matching.has_line_numbers(old):
        message += " Leave out the line numbers that read puts before each line."
    near = matching.nearest(view, old)
    if near:
        message += f"\nNearest, line {near[0]}:\n{near[1]}"
    raise ToolError(message)
