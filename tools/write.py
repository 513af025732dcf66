"""`write`: a whole file, new or replaced."""

from __future__ import annotations

from pydantic import Field

from k3agent.errors import ToolError
from k3agent.tools.base import Access, Args, ToolContext, ToolOutput
from k3agent.tools.support import diffs, paths, textio
from k3agent.tools.support.freshness import digest
from k3agent.tools.support.syntax import newly_broken
from k3agent.tools.support.truncate import one_line


class WriteArgs(Args):
    path: str = Field(description="File, relative to the workspace. Parent folders are made.")
    content: str = Field(description="The whole text of the file.")


class WriteTool:
    name = "write"
    args = WriteArgs
    is_read_only = False

    def describe(self, args: WriteArgs) -> str:
        return one_line(f"write {args.path} ({_count(args.content)})")

    def access(self, args: WriteArgs, ctx: ToolContext) -> Access:
        return Access(writes=(paths.locate(args.path, ctx).path,))

    async def run(self, args: WriteArgs, ctx: ToolContext) -> ToolOutput:
        place, old, verb, text = self._planned(args, ctx)
        data = textio.encode(text, old, place.shown)
        textio.write_atomic(place.path, data, place.shown)
        ctx.freshness.record(place.path, digest(data))
        view = textio.normalise(text)
        difference = diffs.compare(old.view, view)
        warning = newly_broken(place.path, old.view, view)
        head = f"{verb} {place.shown} ({_count(args.content)})."
        return ToolOutput(
            text=f"{head}\n{warning}" if warning else head,
            files=(paths.changed(place, ctx),),
            data={"diff": difference.text, "added": difference.num_added, "removed": difference.num_removed},
        )

    def preview(self, args: WriteArgs, ctx: ToolContext) -> str:
        _, old, verb, text = self._planned(args, ctx)
        note = "[a new file]\n" if verb == "Created" else ""
        return note + diffs.for_people(old.view, textio.normalise(text))

    def _planned(self, args: WriteArgs, ctx: ToolContext) -> tuple[paths.Place, textio.TextFile, str, str]:
        """The file, what is in it, what happens to it, and the text that it gets."""
        place = paths.locate(args.path, ctx)
        if paths.is_folder(place):
            raise ToolError(f"{place.shown} is a folder. Name a file in it.")
        if paths.stat_of(place) is None:
            return place, textio.TextFile("", ""), "Created", args.content
        old = self._old(place, ctx)
        text = textio.splice(old.text, [(0, len(old.view), _without_bom(args.content, old))])
        if not old.text or not ("\n" in old.text or "\r" in old.text):
            text = _without_bom(args.content, old)
        return place, old, "Replaced", text

    def _old(self, place: paths.Place, ctx: ToolContext) -> textio.TextFile:
        data = textio.read_bytes(place.path, place.shown)
        ctx.freshness.check(place.path, place.shown, digest(data), must_be_read=True)
        return textio.decode(data, place.shown)


def _without_bom(content: str, old: textio.TextFile) -> str:
    return content.removeprefix("\ufeff") if old.bom else content


def _count(content: str) -> str:
    number = len(textio.split_lines(textio.normalise(content)))
    return "1 line" if number == 1 else f"{number} lines"
