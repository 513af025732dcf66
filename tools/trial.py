"""`try`: makes small changes of the code around a line, one after the other, until a command succeeds.

The first change after which it does is kept; otherwise all is as it was, whatever ends the search. A process
that is killed leaves a copy of the file (tools/support/originals.py). Where no change of the named file
helps, those of what it calls in other files follow (callees.py). Test files are not changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

from pydantic import Field

from k3agent.errors import ToolError
from k3agent.tools.base import Access, Args, ToolContext, ToolOutput
from k3agent.tools.jobs import JobTable
from k3agent.tools.support import (
    callees,
    commands,
    diffs,
    opening,
    originals,
    paths,
    testruns,
    textio,
    truncate,
)
from k3agent.tools.support.freshness import digest
from k3agent.tools.support.mutation import Change, NothingToTry, changes_in
from k3agent.tools.support.syntax import newly_broken

BUDGET_S = 180.0
# For the command as it is; what takes longer leaves no room for changes.
FIRST_S = 60.0
LEAST_S = 10.0
EXTRA_S = 5.0
TELL_EVERY_S = 1.0
TAIL_BYTES = 1 << 14
TAIL_LINES = 10
# Above this, finding the changes and which of them parse takes long enough to be moved off the event loop.
LONG_CHARS = 10_000
# Python takes no stale bytecode for a change, and leaves none of it.
NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}
# What a shell ends with where it does not find a program, or may not run it.
NOT_RUN = (126, 127)
# What pytest ends with where the cause is the command: its own failure, no tests; words that it cannot use.
PYTEST_CODES = (3, 5)
PYTEST_USAGE = 4
_NO_PROGRAM = re.compile(r"(?m)^\S*python[\d.]*: (?:No module named |can't open file )")
# Pytest's code for usage is also that of a test file that cannot be imported, and that may be the bug.
_USAGE = re.compile(r"(?m)^(?:ERROR: (?:not found: |file or directory not found: |usage: )|\S*: error: )")
# Of each file but the named one, and of all together; those of the named one are tried in any case.
MAX_ELSEWHERE = 60
MAX_IN_ALL = 240


class TrialArgs(Args):
    path: str = Field(description="File, relative to the workspace.")
    line: int = Field(ge=1, description="A line of the function to change.")
    command: str = Field(min_length=1, description="Succeeds once the code is right; a quick test.")


@dataclass(slots=True, kw_only=True)
class _File:
    """A file as it is before the search. `used`: the times, in seconds, and sizes that it has had: by them
    Python and others tell whether what they have made of it is still good. `variants`: the bytes of the
    file with one change each.
    """

    place: paths.Place
    data: bytes
    mode: int
    text: textio.TextFile
    used: set[tuple[int, int]]
    variants: list[bytes] = field(default_factory=list)


class TrialTool:
    """`_code`, `_variants` and `_now` may be overridden. But for `_code`, `run` needs no event loop, unless
    the file is long.
    """

    name = "try"
    args = TrialArgs
    is_read_only = False

    def describe(self, args: TrialArgs) -> str:
        return truncate.one_line(f"try changes at {args.path}:{args.line} until: {args.command}")

    def access(self, args: TrialArgs, ctx: ToolContext) -> Access:
        place, more = paths.locate(args.path, ctx), ()
        with contextlib.suppress(ToolError, OSError):
            view = textio.load(_place(args, ctx).path, place.shown).view
            sites = callees.sites_behind(place, view, args.line, ctx)
            more = tuple(dict.fromkeys(site.place.path for site in sites))
        return Access(writes=(place.path,), more=more, runs=args.command)

    async def run(self, args: TrialArgs, ctx: ToolContext) -> ToolOutput:
        place = _place(args, ctx)
        with contextlib.ExitStack() as stack:
            stack.enter_context(originals.alone(place.path, place.shown))
            named = _opened(place, ctx)
            nothing = None
            try:
                named.variants = await self._usable(named, args.line)
            except NothingToTry as error:
                nothing = error
            others = await self._others(named, args.line, ctx, stack)
            if nothing is not None and not others:
                raise nothing
            return await self._run([named, *others], args.command, ctx)

    async def _others(
        self, named: _File, line: int, ctx: ToolContext, stack: contextlib.ExitStack
    ) -> list[_File]:
        """The files of what the named function calls, with what may be tried there. `stack` keeps others from
        their folders. What may not be changed, or has nothing to try, is left out.
        """
        files: dict[Path, _File] = {}
        held, total = {named.place.path.parent}, len(named.variants)
        for site in callees.sites_behind(named.place, named.text.view, line, ctx):
            path = site.place.path
            with contextlib.suppress(ToolError, OSError):
                opening.check(path, site.place.shown)
                if path.parent not in held:
                    stack.enter_context(originals.alone(path, site.place.shown))
                    held.add(path.parent)
                file = files.get(path) or _opened(site.place, ctx)
                known = set(file.variants)
                free = max(0, min(MAX_ELSEWHERE, MAX_IN_ALL - total))
                found = await self._usable(file, site.line, most=len(known) + free)
                new = [variant for variant in found if variant not in known][:free]
                file.variants += new
                total += len(new)
                if file.variants:
                    files[path] = file
        return list(files.values())

    async def _run(self, files: Sequence[_File], command: str, ctx: ToolContext) -> ToolOutput:
        start, place = self._now(), files[0].place
        code, said = await self._code(command, FIRST_S, ctx)
        _check_first(command, code, said)
        search = _Search(
            tool=self,
            ctx=ctx,
            command=command,
            end=start + BUDGET_S,
            limit_s=max(LEAST_S, 3 * (self._now() - start) + EXTRA_S),
            total=sum(len(file.variants) for file in files),
            told=self._now(),
        )
        counted = _count(search.total, "change")
        for file in files:
            kept = await search.run(file)
            if kept is None:
                continue
            difference = diffs.compare(file.text.view, kept)
            where = "" if file.place == place else f" in {file.place.shown}"
            head = f"Tried {search.count} of {counted}. After this one{where} the command succeeds:"
            change = {
                "diff": difference.text,
                "added": difference.num_added,
                "removed": difference.num_removed,
            }
            return ToolOutput(
                text=f"{head}\n{difference.text}\n[exit code 0]",
                files=(paths.changed(file.place, ctx),),
                data={**change, "exit_code": 0},
            )
        if search.count < search.total:
            counted = f"{search.count} of {counted} in {self._now() - start:.0f} s"
        head = f"Tried {counted}: the command fails after each. {place.shown} is as it was."
        return ToolOutput(text=f"{head}\n[exit code {code}]", data={"exit_code": code})

    async def _usable(self, file: _File, line: int, most: int = MAX_IN_ALL) -> list[bytes]:
        place, text = file.place, file.text
        if line > len(text.lines):
            raise ToolError(
                f"{place.shown} has {_count(len(text.lines), 'line')}, so none is {line}. "
                "Name a line of the function that is wrong."
            )

        def found() -> list[bytes]:
            return _usable(file, self._variants(text.view, line), line, most)

        return await asyncio.to_thread(found) if len(text.view) > LONG_CHARS else found()

    def _variants(self, view: str, line: int) -> list[Change]:
        """The changes to try, likeliest first. Raises ToolError where there are none."""
        return changes_in(view, line)

    def _now(self) -> float:
        return time.monotonic()

    async def _code(self, command: str, limit_s: float, ctx: ToolContext) -> tuple[int | None, str]:
        """Run the command; its exit code (None: it had to be ended), and the end of what it printed. Nothing
        that it has started goes on.
        """
        table: JobTable = ctx.jobs
        quiet = replace(ctx, environ={**ctx.environ, **NO_BYTECODE}, emit=lambda text: None)
        job = await commands.start(command, quiet)
        try:
            ending = await commands.ended(job, limit_s, quiet)
            await table.end_rest(job)
            said = _tail(job.output)
        finally:
            job.output.unlink(missing_ok=True)
        table.tell(await commands.settle(ctx, goes_on=False))
        return (None, f"{said}\n{ending}") if ending else (job.exit_code, said)


@dataclass(slots=True, kw_only=True)
class _Search:
    """One search for a change, in one file after the other. `count` of `total` have been run; `told`: when
    that was said last.
    """

    tool: TrialTool
    ctx: ToolContext
    command: str
    end: float
    limit_s: float
    total: int
    told: float
    count: int = 0

    async def run(self, file: _File) -> str | None:
        """The view of the file with the change that is kept. Otherwise it is in the end as it was."""
        if not file.variants or self.tool._now() >= self.end:
            return None
        folder, path, kept = self.ctx.output_dir, file.place.path, None
        changes = (digest(variant) for variant in file.variants)
        originals.keep(folder, path, file.data, file.mode, changes)
        try:
            for variant in file.variants:
                now = self.tool._now()
                if now >= self.end:
                    break
                self._tell(now)
                self.count += 1
                _put(file, variant)
                code, said = await self.tool._code(self.command, min(self.limit_s, self.end - now), self.ctx)
                # Tests that are not found any more have not passed.
                if code == 0 and not testruns.mark(self.command, said):
                    kept = self._kept(file.place)
                    break
        finally:
            if kept is None:
                _put_back(file)
            originals.drop(folder, path)
        return kept

    def _tell(self, now: float) -> None:
        if self.count and now - self.told >= TELL_EVERY_S:
            self.ctx.emit(f"{self.count} of {self.total} changes tried\n")
            self.told = now

    def _kept(self, place: paths.Place) -> str:
        """The file as it is: the command, too, may have changed it."""
        data = textio.read_bytes(place.path, place.shown)
        view = textio.decode(data, place.shown).view
        self.ctx.freshness.record(place.path, digest(data))
        return view


def _put(file: _File, data: bytes) -> None:
    textio.write_atomic(file.place.path, data, file.place.shown)
    fd = opening.open_read(file.place.path)
    try:
        info = os.fstat(fd)
        second = int(info.st_mtime)
        while (second, info.st_size) in file.used:
            second += 1
        file.used.add((second, info.st_size))
        if second != int(info.st_mtime):
            # Not for a file of somebody else's; what is written now is at least newer.
            with contextlib.suppress(PermissionError):
                os.utime(fd, (second, second))
    finally:
        os.close(fd)


def _put_back(file: _File) -> None:
    place = file.place
    try:
        _put(file, file.data)
        originals.set_mode(place.path, file.mode)
    except (ToolError, OSError) as error:
        if _holds(place, file.data):
            return
        raise ToolError(
            f"{place.shown} may hold a change that was tried, and cannot be put back: {error} "
            "Tell the user: k3agent undo brings it back."
        ) from error


def _opened(place: paths.Place, ctx: ToolContext) -> _File:
    """The file as it is, with no change of a killed call in it."""
    originals.bring_back(ctx.output_dir, place.path)
    if originals.copy_of(ctx.output_dir, place.path).exists():
        raise ToolError(
            f"{place.shown} may hold a change that an earlier call tried, and cannot be put back. "
            "Tell the user: k3agent undo brings it back."
        )
    info = place.path.stat()
    data = textio.read_bytes(place.path, place.shown)
    ctx.freshness.check(place.path, place.shown, digest(data), must_be_read=False)
    return _File(
        place=place,
        data=data,
        mode=stat.S_IMODE(info.st_mode),
        text=textio.decode(data, place.shown),
        used={(int(info.st_mtime), info.st_size)},
    )


def _place(args: TrialArgs, ctx: ToolContext) -> paths.Place:
    place = paths.locate(args.path, ctx)
    info = paths.stat_of(place)
    if info is None:
        raise paths.missing(place, ctx)
    if paths.is_folder(place):
        raise ToolError(f"{place.shown} is a folder. Name a file in it.")
    if info.st_size > textio.LARGE_BYTES:
        raise ToolError(
            f"{place.shown} is too large to try changes in it ({info.st_size / 1e6:.1f} MB). Use edit."
        )
    # A change after which a wrong test passes mends nothing.
    if any(testruns.is_test_file(name) for name in (place.path.name, Path(args.path).name)):
        raise ToolError(
            f"{place.shown} is a test file, which is not changed here: give the code that it tests."
        )
    return place


def _usable(file: _File, changes: Sequence[Change], line: int, most: int) -> list[bytes]:
    """The file with each change after which it still parses, but no more than `most`."""
    place, whole = file.place, file.text
    lines = whole.view.split("\n")
    starts = list(accumulate((len(text) + 1 for text in lines), initial=0))
    found: dict[bytes, None] = {}
    for change in changes:
        if len(found) >= most:
            break
        text = lines[change.line - 1]
        start = starts[change.line - 1] + len(text) - len(text.lstrip())
        end = start + len(change.old)
        if whole.view[start:end] != change.old or change.old == change.new:
            continue
        view = whole.view[:start] + change.new + whole.view[end:]
        if newly_broken(place.path, whole.view, view):
            continue
        try:
            data = textio.encode(textio.splice(whole.text, [(start, end, change.new)]), whole, place.shown)
        except ToolError:
            continue
        found[data] = None
    if not found:
        raise NothingToTry(f"there is nothing to try at line {line} of {place.shown}. Change it with edit.")
    return list(found)


def _check_first(command: str, code: int | None, said: str) -> None:
    """Raises ToolError where the command succeeds with the file as it is, or cannot tell right from wrong."""
    if code is None:
        raise ToolError(f"the command does not end by itself. Give a quicker test.\n{said}")
    is_pytest = "pytest" in command
    if "test" in command and testruns.outcome(said) == "none":
        problem = "runs no tests"
    elif code == 0:
        raise ToolError("the command succeeds as it is: nothing to try.")
    elif code in NOT_RUN or _NO_PROGRAM.search(said):
        problem = "cannot run"
    elif is_pytest and (code in PYTEST_CODES or (code == PYTEST_USAGE and _USAGE.search(said))):
        problem = "runs no tests"
    else:
        return
    raise ToolError(f"the command {problem}: give one that does (exit code {code}).\n{said}")


def _tail(output: Path) -> str:
    """The last lines that the command printed."""
    with output.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - TAIL_BYTES))
        text = truncate.clean(stream.read(TAIL_BYTES).decode("utf-8", "replace"))
    return "\n".join(text.rstrip().split("\n")[-TAIL_LINES:])


def _holds(place: paths.Place, data: bytes) -> bool:
    try:
        return textio.read_bytes(place.path, place.shown) == data
    except (ToolError, OSError):
        return False


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
