"""`shell`: one command in a fresh shell, in the workspace, with nothing to wait for but the command itself.

The call ends when the shell ends, whatever it leaves running. `access` has no effect, so the agent can judge
the command and save the files it may destroy before `run`.
"""

from __future__ import annotations

import asyncio
import time

from pydantic import Field

from k3agent.tools.base import Access, Args, ToolContext, ToolOutput
from k3agent.tools.jobs import MAX_OUTPUT_BYTES, Job, JobTable
from k3agent.tools.support import paths, processes, testruns, truncate, usage

# Reading a longer output takes long enough to be moved off the event loop.
LONG_BYTES = 1 << 20
MAX_POLL_S = 0.25
# Short commands are not worth a look through all processes.
USAGE_AFTER_S = 0.1


class ShellArgs(Args):
    command: str = Field(min_length=1, description="The command, as for bash -c.")
    timeout_s: int = Field(
        default=120, ge=1, le=3600, description="Killed after so many seconds. Default 120."
    )
    background: bool = Field(default=False, description="Return at once; look after it with jobs.")


class ShellTool:
    name = "shell"
    args = ShellArgs
    is_read_only = False

    def describe(self, args: ShellArgs) -> str:
        return f"$ {truncate.one_line(args.command)}" + (" &" if args.background else "")

    def access(self, args: ShellArgs, ctx: ToolContext) -> Access:
        return Access(runs=args.command)

    async def run(self, args: ShellArgs, ctx: ToolContext) -> ToolOutput:
        table: JobTable = ctx.jobs
        table.guard(ctx.sandbox)
        writable = (ctx.cwd, *ctx.extra_dirs)
        argv = ctx.sandbox.wrap(processes.shell_argv(args.command), ctx.cwd, writable)
        job = await table.start(argv, args.command, ctx.cwd, ctx.environ)
        if args.background:
            table.keep(job)
            return ToolOutput(text=f"[job {job.id} started]", data={"job": job.id})
        try:
            ending = await _wait(job, args.timeout_s, ctx)
        except asyncio.CancelledError:
            await asyncio.shield(table.end(job))
            raise
        if ending:
            await table.end(job)
        goes_on = table.finish(job)
        text = await _output(job, ctx, is_kept=goes_on)
        last = ending or f"[exit code {job.exit_code}]"
        # The exit code of several commands in one line tells of the last only.
        may_have_failed = job.exit_code != 0 or any(sign in args.command for sign in "|;&\n")
        refused = ctx.sandbox.explain(text, ctx.cwd, writable) if may_have_failed else ""
        left = await asyncio.to_thread(ctx.sandbox.settle, is_over=not goes_on and not table.is_busy)
        # An exit code of 0 would be taken for tests that pass.
        idle = testruns.mark(args.command, text) if job.exit_code == 0 and not ending else ""
        last = "\n".join(line for line in (refused, left, idle, last) if line)
        return ToolOutput(text=f"{text}\n{last}" if text else last, data={"exit_code": job.exit_code})


async def _wait(job: Job, timeout_s: int, ctx: ToolContext) -> str:
    """Wait for the shell itself. Returns "" when it has ended, else the line that says why it must be."""
    table: JobTable = ctx.jobs
    waiting = asyncio.ensure_future(job.process.wait())
    deadline = time.monotonic() + timeout_s
    size, delay = 0, 0.05
    try:
        while True:
            left = deadline - time.monotonic()
            if (await asyncio.wait({waiting}, timeout=max(0.0, min(delay, left))))[0]:
                return ""
            if time.monotonic() >= deadline:
                return f"[timed out after {timeout_s} s; killed]"
            delay = min(delay * 1.5, MAX_POLL_S)
            now = job.output.stat().st_size
            if now > MAX_OUTPUT_BYTES:
                return f"[more than {MAX_OUTPUT_BYTES >> 20} MB of output; killed]"
            too_much = usage.excess(job.session, table.limits) if delay > USAGE_AFTER_S else ""
            if too_much:
                return f"[{too_much}; killed]"
            if now != size:
                ctx.emit(_news(job, size, now))
                size = now
    finally:
        waiting.cancel()


def _news(job: Job, start: int, end: int) -> str:
    """What was written since the last look, at most its last 4 kB."""
    with job.output.open("rb") as stream:
        stream.seek(max(start, end - 4096))
        return truncate.clean(stream.read(4096).decode("utf-8", "replace"))


async def _output(job: Job, ctx: ToolContext, *, is_kept: bool) -> str:
    shown = paths.relative(job.output, ctx.cwd)
    if job.output.stat().st_size > LONG_BYTES:
        found = await asyncio.to_thread(truncate.excerpt, job.output, shown=shown)
    else:
        found = truncate.excerpt(job.output, shown=shown)
    if not found.num_cut and not is_kept:
        job.output.unlink(missing_ok=True)
    return found.text
