"""A headless run as a process: its streams, its result and its exit code.

The result is written last, before the clean-up; a watchdog ends the process a few seconds after it even when
something does not let go.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
import threading

from k3agent.errors import ConfigError
from k3agent.headless.exitcodes import ExitCode, code_of_error, outcome_of_error
from k3agent.headless.formats import End, Format, JsonFormat, StreamJsonFormat, TextFormat
from k3agent.headless.output import PipeWriter, has_styles, write_answer_file
from k3agent.headless.progress import Progress
from k3agent.headless.run import HeadlessRun
from k3agent.headless.runoptions import RunOptions

# The process has ended this long after its result, whatever still hangs.
_END_LIMIT_S = 4.0
# How long a reader that has stopped reading is waited for once a signal has asked for the end.
_URGENT_FLUSH_S = 60.0
_TICK_S = 1.0


def run(options: RunOptions) -> int:
    """Run, print, and give the exit code. Does not return when something does not let go of the process."""
    out = PipeWriter(sys.stdout.fileno(), is_lossless=True)
    err = PipeWriter(sys.stderr.fileno(), is_lossless=False)
    progress = Progress(err.write, has_color=has_styles(sys.stderr, options.environ))
    headless = HeadlessRun(options, out, _format(options, out), progress)
    code: list[int] = [ExitCode.ERROR]

    async def whole() -> None:
        ticking = asyncio.create_task(_tick(progress))
        end = await headless.run()
        ticking.cancel()
        code[0] = _finish(headless, end)
        await headless.close()
        err.flush(0.5)
        others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
        if any(not thread.daemon for thread in others):
            # A thread that still waits for standard input would keep the process.
            os._exit(code[0])

    asyncio.run(whole())
    return code[0]


def failed_before_start(options: RunOptions, error: ConfigError) -> int:
    """The result of a run that could not begin: wrong settings give a result line too."""
    out = PipeWriter(sys.stdout.fileno(), is_lossless=True)
    err = PipeWriter(sys.stderr.fileno(), is_lossless=False)
    headless = HeadlessRun(options, out, _format(options, out), Progress(err.write, has_color=False))
    end = headless.ended(outcome_of_error(error), code_of_error(error), str(error))
    code = _finish(headless, end)
    err.flush(0.5)
    return code


async def _tick(progress: Progress) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        progress.tick()


def _finish(headless: HeadlessRun, end: End) -> int:
    """The result, written and read; from then on the clock of the watchdog runs."""
    headless.is_over = True
    problems = [write_answer_file(headless.options.answer_file, end.answer)]
    if headless.paper is not None:
        session = headless.session
        about = {} if session is None else dataclasses.asdict(headless.start_line(session))
        problems.append(headless.paper.write(end.line, about))
    for problem in filter(None, problems):
        end.errors.append(problem)
        end.exit_code = end.exit_code or int(ExitCode.ERROR)
    headless.form.ended(end)
    limit_s = _URGENT_FLUSH_S if headless.signum is not None else None
    is_read = headless.out.flush(limit_s)
    # After the answer: on a terminal both streams meet.
    headless.progress.ended(end)
    code = end.exit_code if is_read or end.exit_code else int(ExitCode.ERROR)
    watchdog = threading.Timer(_END_LIMIT_S, os._exit, (code,))
    watchdog.daemon = True
    watchdog.start()
    return code


def _format(options: RunOptions, out: PipeWriter) -> Format:
    if options.output_format == "json":
        return JsonFormat(out.write)
    if options.output_format == "stream-json":
        return StreamJsonFormat(out.write, is_partial=options.is_partial)
    return TextFormat(out.write, is_terminal=sys.stdout.isatty())
