"""Runs one command to its end for a tool: in the sandbox, within the limits, watched, ended when need be."""

from __future__ import annotations

import asyncio
import time

from k3agent.tools.base import ToolContext
from k3agent.tools.jobs import MAX_OUTPUT_BYTES, Job, JobTable
from k3agent.tools.support import processes, truncate, usage

MAX_POLL_S = 0.25
# Short commands are not worth a look through all processes.
USAGE_AFTER_S = 0.1


async def start(command: str, ctx: ToolContext) -> Job:
    """Start `command` in a fresh shell in the workspace."""
    table: JobTable = ctx.jobs
    table.guard(ctx.sandbox)
    writable = (ctx.cwd, *ctx.extra_dirs)
    argv = ctx.sandbox.wrap(processes.shell_argv(command), ctx.cwd, writable)
    return await table.start(argv, command, ctx.cwd, ctx.environ)


async def ended(job: Job, timeout_s: float, ctx: ToolContext) -> str:
    """Wait for the shell itself, and end it where it must be; "", or the line that says why it was ended.
    `ctx.emit` tells what it prints meanwhile. It is ended, too, where the call is cancelled.
    """
    table: JobTable = ctx.jobs
    try:
        ending = await _wait(job, timeout_s, ctx)
    except asyncio.CancelledError:
        await asyncio.shield(table.end(job))
        raise
    if ending:
        await table.end(job)
    return ending


async def settle(ctx: ToolContext, *, goes_on: bool) -> str:
    """What the sandbox has to say of what the command has left, or "". `goes_on`: processes of it do."""
    is_over = not goes_on and not ctx.jobs.is_busy
    return await asyncio.to_thread(ctx.sandbox.settle, is_over=is_over)


async def _wait(job: Job, timeout_s: float, ctx: ToolContext) -> str:
    """Returns "" when it has ended, else the line that says why it must be."""
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
                return f"[timed out after {timeout_s:g} s; killed]"
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
