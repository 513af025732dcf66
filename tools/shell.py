"""`shell`: one command in a fresh shell, in the workspace, with nothing to wait for but the command itself.

The call ends when the shell ends, whatever it leaves running. `access` has no effect, so the agent can judge
the command and save the files it may destroy before `run`.
"""

from __future__ import annotations

import asyncio

from pydantic import Field

from k3agent.tools.base import Access, Args, ToolContext, ToolOutput
from k3agent.tools.jobs import Job, JobTable
from k3agent.tools.support import commands, paths, testruns, truncate

# Reading a longer output takes long enough to be moved off the event loop.
LONG_BYTES = 1 << 20


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
        job = await commands.start(args.command, ctx)
        if args.background:
            table.keep(job)
            return ToolOutput(text=f"[job {job.id} started]", data={"job": job.id})
        ending = await commands.ended(job, args.timeout_s, ctx)
        goes_on = table.finish(job)
        text = await _output(job, ctx, is_kept=goes_on)
        last = ending or f"[exit code {job.exit_code}]"
        # The exit code of several commands in one line tells of the last only.
        may_have_failed = job.exit_code != 0 or any(sign in args.command for sign in "|;&\n")
        writable = (ctx.cwd, *ctx.extra_dirs)
        refused = ctx.sandbox.explain(text, ctx.cwd, writable) if may_have_failed else ""
        left = await commands.settle(ctx, goes_on=goes_on)
        # An exit code of 0 would be taken for tests that pass.
        idle = testruns.mark(args.command, text) if job.exit_code == 0 and not ending else ""
        last = "\n".join(line for line in (refused, left, idle, last) if line)
        return ToolOutput(text=f"{text}\n{last}" if text else last, data={"exit_code": job.exit_code})


async def _output(job: Job, ctx: ToolContext, *, is_kept: bool) -> str:
    shown = paths.relative(job.output, ctx.cwd)
    if job.output.stat().st_size > LONG_BYTES:
        found = await asyncio.to_thread(truncate.excerpt, job.output, shown=shown)
    else:
        found = truncate.excerpt(job.output, shown=shown)
    if not found.num_cut and not is_kept:
        job.output.unlink(missing_ok=True)
    return found.text
