"""`patch`: a unified diff over one or several files, applied as a whole or not at all."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from pydantic import Field

from k3agent.errors import ToolError
from k3agent.tools.base import Access, Args, ToolContext, ToolOutput
from k3agent.tools.support import diffs, paths, textio, unified
from k3agent.tools.support.freshness import digest
from k3agent.tools.support.truncate import one_line


class PatchArgs(Args):
    patch: str = Field(min_length=1, description="The unified diff.")


@dataclass(frozen=True, slots=True)
class _Planned:
    """What one file becomes. `before` and `after` are its bytes, None when there is no such file."""

    place: paths.Place
    before: bytes | None
    after: bytes | None
    num_added: int
    num_removed: int
    diff: str


class PatchTool:
    name = "patch"
    args = PatchArgs
    is_read_only = False

    def describe(self, args: PatchArgs) -> str:
        names = dict.fromkeys(change.target or change.source or "" for change in unified.parse(args.patch))
        return one_line(f"patch {', '.join(names)}")

    def access(self, args: PatchArgs, ctx: ToolContext) -> Access:
        names = [name for c in unified.parse(args.patch) for name in (c.source, c.target) if name is not None]
        return Access(writes=tuple(dict.fromkeys(paths.locate(name, ctx).path for name in names)))

    def preview(self, args: PatchArgs, ctx: ToolContext) -> str:
        parts: list[str] = []
        for step in _planned(args, ctx):
            what = "new" if step.before is None else "deleted" if step.after is None else ""
            parts.append(f"diff {step.place.shown}{f' ({what})' if what else ''}")
            parts.append(diffs.for_people(_view(step.before, step.place), _view(step.after, step.place)))
        return "\n".join(part for part in parts if part)

    async def run(self, args: PatchArgs, ctx: ToolContext) -> ToolOutput:
        planned = _planned(args, ctx)
        done: list[_Planned] = []
        try:
            for step in planned:
                _put(step.place, step.after)
                done.append(step)
        except ToolError:
            for step in reversed(done):
                with contextlib.suppress(ToolError):
                    _put(step.place, step.before)
            raise
        for step in planned:
            if step.after is None:
                ctx.freshness.forget(step.place.path)
            else:
                ctx.freshness.record(step.place.path, digest(step.after))
        listed = ", ".join(f"{s.place.shown} (+{s.num_added} -{s.num_removed})" for s in planned)
        return ToolOutput(
            text=f"Patched {listed}.",
            files=tuple(paths.changed(step.place, ctx) for step in planned),
            data={
                "diff": "\n".join(f"{step.place.shown}\n{step.diff}" for step in planned),
                "added": sum(step.num_added for step in planned),
                "removed": sum(step.num_removed for step in planned),
            },
        )


def _planned(args: PatchArgs, ctx: ToolContext) -> list[_Planned]:
    planned = [step for change in unified.parse(args.patch) for step in _plan(change, ctx)]
    touched = [step.place.path for step in planned]
    if len(set(touched)) < len(touched):
        raise ToolError("patch names a file twice. Put all its hunks under one header.")
    return planned


def _view(data: bytes | None, place: paths.Place) -> str:
    return "" if data is None else textio.decode(data, place.shown).view


def _plan(change: unified.FileChange, ctx: ToolContext) -> list[_Planned]:
    """One step, or two when the file also gets another name."""
    if change.source is None:
        assert change.target is not None
        place = paths.locate(change.target, ctx)
        if paths.stat_of(place) is not None:
            raise ToolError(f"{place.shown} exists already. Patch it with its own name on the `---` line.")
        return [_step(place, None, textio.TextFile("", ""), change.hunks)]
    source = paths.locate(change.source, ctx)
    if paths.stat_of(source) is None:
        raise paths.missing(source, ctx)
    before = textio.read_bytes(source.path, source.shown)
    ctx.freshness.check(source.path, source.shown, digest(before), must_be_read=False)
    old = textio.decode(before, source.shown)
    step = _step(source, before, old, change.hunks)
    if change.target is None:
        if textio.split_lines(textio.normalise(step.after.decode("latin-1") if step.after else "")):
            raise ToolError(f"The patch deletes {source.shown} but leaves text in it. Remove every line.")
        return [_Planned(source, before, None, step.num_added, step.num_removed, step.diff)]
    target = paths.locate(change.target, ctx)
    if target.path == source.path:
        return [step]
    if paths.stat_of(target) is not None:
        raise ToolError(f"{target.shown} exists already; {source.shown} cannot be renamed to it.")
    moved = _Planned(target, None, step.after, step.num_added, step.num_removed, step.diff)
    return [_Planned(source, before, None, 0, 0, ""), moved]


def _step(
    place: paths.Place, before: bytes | None, old: textio.TextFile, hunks: list[unified.Hunk]
) -> _Planned:
    text = textio.splice(old.text, unified.place(old.view, hunks, place.shown))
    after = textio.encode(text, old, place.shown)
    difference = diffs.compare(old.view, textio.normalise(text))
    return _Planned(place, before, after, difference.num_added, difference.num_removed, difference.text)


def _put(place: paths.Place, data: bytes | None) -> None:
    if data is not None:
        textio.write_atomic(place.path, data, place.shown)
        return
    textio.remove(place.path, place.shown)
