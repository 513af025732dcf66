"""Running commands: `JobTable` starts, watches and ends them; `jobs` is the model's view of those in the
background.

Every command is noted in a file while processes of its session live, so that the next start finds what a
killed agent left (`reap_orphans`).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from k3agent.errors import ToolError
from k3agent.tools.base import Access, Args, ToolContext, ToolOutput
from k3agent.tools.sandbox.base import Sandbox
from k3agent.tools.support import paths, processes, truncate, usage
from k3agent.tools.support.processes import Orphan, reap_orphans
from k3agent.tools.support.usage import command_limits

__all__ = ["Job", "JobTable", "JobsTool", "Orphan", "reap_orphans"]

STALL_S = 300.0
SAMPLE_S = 15.0
# Sizes are looked at so often; a program that only prints writes about 2 GB in that time.
SIZE_SAMPLE_S = 1.0
MAX_OUTPUT_BYTES = 1 << 28
MAX_KEPT_BYTES = 1 << 30


@dataclass(slots=True)
class Job:
    """A command that was started. `ended` is None while it runs; `note` says why it was ended by us."""

    id: str
    command: str
    process: asyncio.subprocess.Process
    output: Path
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    note: str = ""
    quiet_since: float = field(default_factory=time.monotonic)
    sample: tuple[int, int] = (0, 0)
    is_stalled: bool = False

    @property
    def session(self) -> int:
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """As a shell tells it: 128 + N after signal N."""
        code = self.process.returncode
        return code if code is None or code >= 0 else 128 - code

    @property
    def status(self) -> str:
        if self.note:
            return self.note
        if self.ended is not None:
            return f"exit code {self.exit_code}"
        lasted = f"running {processes.running_for(self.started)}"
        return lasted + (f", stalled: {self.quiet}" if self.is_stalled else "")

    @property
    def quiet(self) -> str:
        return f"no output and no CPU use for {processes.running_for(self.quiet_since)}"

    def observe(self, stall_s: float = STALL_S) -> None:
        """Look whether it writes or computes, and flag it when it has done neither for `stall_s`."""
        cpu = sum(info.cpu for info in processes.members(self.session))
        sample = (_size(self.output), cpu)
        if sample != self.sample:
            self.sample, self.quiet_since = sample, time.monotonic()
        self.is_stalled = self.ended is None and time.monotonic() - self.quiet_since >= stall_s


class JobTable:
    """All commands of a session. `folder` takes their outputs. `aclose` (or `close_now` where no loop runs)
    ends everything that still runs, also what finished commands have left behind.
    """

    def __init__(self, folder: Path, *, stall_s: float = STALL_S, sample_s: float = SAMPLE_S) -> None:
        self.folder = folder
        self.stall_s, self.sample_s = stall_s, sample_s
        self.background: dict[str, Job] = {}
        self._log = processes.SessionLog(folder)
        self._watchers: set[asyncio.Task[None]] = set()
        self._notices: list[str] = []
        self._num_started = 0
        self.limits = command_limits()
        self._settle_after: Callable[[], str] = str

    def guard(self, sandbox: Sandbox) -> None:
        """Hold commands to the limits of `sandbox`, and let it look at what they leave."""
        self.limits, self._settle_after = sandbox.limits, sandbox.settle

    @property
    def is_busy(self) -> bool:
        """Whether anything runs besides the command that is asked about."""
        return bool(self._watchers)

    def _settle(self) -> None:
        """What commands in the background leave to run later is not left lying until the next command."""
        self.tell(self._settle_after())

    async def start(self, argv: Sequence[str], command: str, cwd: Path, environ: dict[str, str]) -> Job:
        """Start `argv` (the guarded form of `command`)."""
        self._num_started += 1
        mark = secrets.token_hex(8)
        self._prune()
        output = self.folder / f"output-{self._num_started:04d}-{mark[:6]}.txt"
        self._log.begin(mark, command)
        try:
            process = await processes.start(
                list(argv), cwd=cwd, environ=processes.child_environ(environ, mark), output=output
            )
        except OSError as error:
            self._log.drop(mark)
            raise ToolError(f"The command could not be started: {error.strerror or error}.") from error
        except asyncio.CancelledError:
            self._log.drop(mark)
            raise
        self._log.add(process.pid, mark, command)
        return Job("", command, process, output)

    def keep(self, job: Job) -> None:
        """Let `job` go on in the background, under an id of its own."""
        job.id = f"j{len(self.background) + 1}"
        self.background[job.id] = job
        self._look_after(self._watch(job))

    def _look_after(self, watching: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(watching)
        self._watchers.add(task)
        task.add_done_callback(self._watchers.discard)

    def finish(self, job: Job) -> bool:
        """Note that the command has ended; whether processes of its session go on."""
        job.ended = time.monotonic()
        goes_on = self._log.left_behind(job.session)
        if goes_on:
            self._look_after(self._linger(job))
        return goes_on

    async def end(self, job: Job) -> None:
        """End all processes of `job` and wait until they are gone."""
        await processes.end_session(job.session, **self._log.marks(job.session))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(job.process.wait(), 5)
        self.finish(job)

    async def end_rest(self, job: Job) -> None:
        """Note that the command has ended, and end what processes of its session go on."""
        if self._log.left_behind(job.session):
            await self.end(job)
        job.ended = time.monotonic()

    async def _watch(self, job: Job) -> None:
        waiting = asyncio.ensure_future(job.process.wait())
        try:
            next_sample = time.monotonic() + self.sample_s
            while not (await asyncio.wait({waiting}, timeout=min(SIZE_SAMPLE_S, self.sample_s)))[0]:
                too_much = usage.excess(job.session, self.limits)
                if _size(job.output) > MAX_OUTPUT_BYTES:
                    too_much = "too much output"
                if too_much:
                    job.note = f"killed: {too_much}"
                    await processes.end_session(job.session, **self._log.marks(job.session))
                if time.monotonic() < next_sample:
                    continue
                next_sample = time.monotonic() + self.sample_s
                await asyncio.to_thread(self._settle)
                was_stalled = job.is_stalled
                job.observe(self.stall_s)
                if job.is_stalled and not was_stalled:
                    self._notices.append(f"Job {job.id} is stalled: {job.quiet}. It may wait for input.")
        finally:
            waiting.cancel()
        self.finish(job)
        await asyncio.to_thread(self._settle)
        if not job.note:
            self._notices.append(f"Job {job.id} has ended: {job.status}.")

    async def _linger(self, job: Job) -> None:
        """Look after what a finished command left behind: it may not print for ever either."""
        count = 0
        while count % 30 or processes.members(job.session, **self._log.marks(job.session)):
            await asyncio.sleep(SIZE_SAMPLE_S)
            count += 1
            if _size(job.output) > MAX_OUTPUT_BYTES or usage.excess(job.session, self.limits):
                await processes.end_session(job.session, **self._log.marks(job.session))
                break
        self._log.remove(job.session)
        await asyncio.to_thread(self._settle)

    def tell(self, notice: str) -> None:
        """Have a sentence told with the notices, if it says anything."""
        if notice:
            self._notices.append(notice)

    def take_notices(self) -> list[str]:
        """What happened to background jobs since the last call: one sentence each, for model and user."""
        notices, self._notices = self._notices, []
        return notices

    def find(self, job_id: str | None) -> Job:
        if job_id in self.background:
            return self.background[job_id]
        known = ", ".join(self.background) or "none"
        raise ToolError(
            f"There is no job {job_id}. Jobs: {known}." if job_id else f"Pass job. Jobs: {known}."
        )

    def _prune(self) -> None:
        """Delete the oldest outputs of commands that have ended once all together are too large."""
        if self._num_started % 50:
            return
        used = {job.output for job in self.background.values() if job.ended is None}
        outputs = sorted(
            self.folder.glob("output-*.txt"), key=lambda path: path.stat().st_mtime, reverse=True
        )
        total = 0
        for path in outputs:
            total += _size(path)
            if total > MAX_KEPT_BYTES and path not in used:
                path.unlink(missing_ok=True)

    async def aclose(self) -> None:
        for task in self._watchers:
            task.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        await asyncio.gather(*(asyncio.to_thread(record.end) for record in self._log.records))
        for job in self.background.values():
            if job.process.returncode is None:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(job.process.wait(), 2)
        for record in self._log.records:
            self._log.remove(record.session)

    def close_now(self) -> None:
        for record in self._log.records:
            record.end()
            self._log.remove(record.session)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class JobsArgs(Args):
    action: Literal["list", "output", "kill"] = Field(description="What to do.")
    job: str | None = Field(default=None, description='The job, e.g. "j1". Needed for output and kill.')


class JobsTool:
    name = "jobs"
    args = JobsArgs
    is_read_only = False

    def describe(self, args: JobsArgs) -> str:
        return truncate.one_line(f"jobs {args.action}" + (f" {args.job}" if args.job else ""))

    def access(self, args: JobsArgs, ctx: ToolContext) -> Access:
        return Access()

    async def run(self, args: JobsArgs, ctx: ToolContext) -> ToolOutput:
        table: JobTable = ctx.jobs
        if args.action == "list":
            for job in table.background.values():
                job.observe(table.stall_s)
            rows = [f"{job.id} {job.status}: {job.command[:200]}" for job in table.background.values()]
            return ToolOutput(text="\n".join(rows) or "No jobs.")
        job = table.find(args.job)
        if args.action == "kill":
            if job.ended is not None:
                return ToolOutput(text=f"Job {job.id} had ended already: {job.status}.")
            job.note = "killed"
            await table.end(job)
            return ToolOutput(text=f"Killed job {job.id}.")
        job.observe(table.stall_s)
        found = await asyncio.to_thread(
            truncate.excerpt, job.output, shown=paths.relative(job.output, ctx.cwd)
        )
        refused = ""
        if job.exit_code:
            refused = ctx.sandbox.explain(found.text, ctx.cwd, (ctx.cwd, *ctx.extra_dirs))
        lines = (found.text, refused, f"[job {job.id} {job.status}]")
        return ToolOutput(text="\n".join(line for line in lines if line))
