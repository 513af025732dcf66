"""One prompt to the end with nobody to ask.

Exactly one end comes of it, whatever happens: an error, a signal, a spent limit, a crash. What stands around
it is in `process.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from k3agent.agent.live import Broadcast
from k3agent.agent.options import Receipt, SessionOptions
from k3agent.agent.session import Session
from k3agent.agent.structured import fitting
from k3agent.errors import K3AgentError
from k3agent.events import AnyEvent, MessageAdded, TurnEnded, TurnOutcome
from k3agent.headless.exitcodes import BY_SIGNAL, ExitCode, code_of_error, code_of_turn, outcome_of_error
from k3agent.headless.formats import End, Format, Start
from k3agent.headless.goals import GoalQueue, for_goals, has_open_goals, reach_all, require_checks
from k3agent.headless.inputs import (
    UsageError,
    lacking_programs,
    read_image,
    read_prompt,
    read_schema,
    require_known_command,
    user_lines,
)
from k3agent.headless.keptchecks import keep_checks, kept_checks
from k3agent.headless.output import PipeWriter
from k3agent.headless.progress import Progress
from k3agent.headless.receipts import RunReceipt
from k3agent.headless.report import report
from k3agent.headless.runoptions import RunOptions
from k3agent.headless.schedule import wait_until
from k3agent.headless.waiting import Waiting, announce
from k3agent.providers.base import ModelClient, ModelInfo
from k3agent.providers.registry import choose_client
from k3agent.store.sessions import newest_session
from k3agent.types import ImagePart, JsonObject, Role

log = logging.getLogger(__name__)

_CLOSE_LIMIT_S = 3.0
# Nobody can be asked: inside the sandbox the model works freely, anything else is denied.
DEFAULT_MODE = "auto"
# A second signal after this long ends the process at once.
_INSISTING_S = 2.0


@dataclass(slots=True)
class HeadlessRun:
    """The run in progress. `end` is set once; after that nothing changes the result."""

    options: RunOptions
    out: PipeWriter
    form: Format
    progress: Progress
    session: Session | None = None
    client: ModelClient | None = None
    words: str = ""
    has_calls: bool = False
    structured: object = None
    signum: int | None = None
    is_reader_gone: bool = False
    is_over: bool = False
    schema: JsonObject | None = None
    paper: RunReceipt | None = None
    checks: tuple[str, ...] = ()
    started_at: float = field(default_factory=time.monotonic)
    broadcast: Broadcast | None = None
    waiting: Waiting | None = None
    cancelled: str = ""
    _loop: asyncio.AbstractEventLoop | None = None
    _task: asyncio.Task[End] | None = None
    _store_home: Path | None = None
    _is_in_turn: bool = False
    _signalled_at: float = 0.0

    async def run(self) -> End:
        """The whole run; expected errors and crashes become its end."""
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()  # type: ignore[assignment]
        self.out.on_broken = self._reader_gone
        self._listen_to_signals()
        try:
            return await self._run()
        except asyncio.CancelledError:
            cause = self.cancelled or "standard output was closed"
            if self.signum is not None:
                cause = f"signal {signal.Signals(self.signum).name}"
            when = "between two turns" if self.words else "before the work began"
            return self.ended(TurnOutcome.INTERRUPTED, self._interrupt_code(), f"{cause} {when}")
        except K3AgentError as error:
            code = ExitCode.USAGE if isinstance(error, UsageError) else code_of_error(error)
            return self.ended(outcome_of_error(error), code, str(error))
        except OSError as error:
            log.exception("the run could not go on")
            return self.ended(
                TurnOutcome.EXECUTION, ExitCode.ERROR, f"the run could not go on: {error}; see k3agent doctor"
            )
        except Exception as error:
            log.exception("the run crashed")
            return self.ended(
                TurnOutcome.EXECUTION, ExitCode.ERROR, f"k3agent crashed: {type(error).__name__}: {error}"
            )

    async def close(self) -> None:
        """Children, sockets, files: ended or left behind within the limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_LIMIT_S):
                if self.session is not None:
                    await self.session.aclose()
                elif self.waiting is not None:
                    self.waiting.give_up()
                # After the lock: who watches may go on with the session at once.
                if self.broadcast is not None:
                    await self.broadcast.aclose()
                if self.client is not None:
                    await self.client.aclose()
        if self._store_home is not None:
            shutil.rmtree(self._store_home, ignore_errors=True)

    # --- the run itself ---

    async def _run(self) -> End:
        options = self.options
        if options.schema_file is not None:
            self.schema = read_schema(options.schema_file)
        images = [read_image(path) for path in options.images]
        # Before anything is started or stored: without a prompt there is nothing to do.
        prompts = None if options.input_format == "stream-json" else [text async for text in self._prompts()]
        if prompts == [] and not options.goals:
            raise UsageError("no prompt: give one, or `-` to read it from standard input")
        self.client = choose_client(options.settings, options.environ, options.home, self.progress.line)
        if options.start_at is not None:
            await self._wait(self.client.info, options.start_at)
            options = self.options
        if options.receipt_file is not None:
            self.paper = await asyncio.to_thread(RunReceipt, options.receipt_file, options.cwd)
        info = self.client.info
        self.progress.line(
            f"k3agent: {info.provider}, {info.model or 'model as the server says'}: {info.why}.", "dim"
        )
        if options.settings.untrusted is not None:
            self.progress.line(
                f"{options.settings.untrusted} is not obeyed: trust it with `k3agent config trust`.", "yellow"
            )
        self.session = await self._open_session(self.client)
        if self.waiting is not None:
            self.waiting.end()
        keep_checks(self._store_home or options.home, self.session.id, self.checks)
        is_bare = self.session.sandbox.name == "none"
        self.progress.line(f"sandbox: {self.session.sandbox.status}.", "yellow" if is_bare else "dim")
        # All that was loaded stays until the end: it need not be looked through again and again.
        gc.freeze()
        gc.enable()
        if self.broadcast is None:
            self.broadcast = Broadcast(self.session, self._store_home or options.home)
            await self.broadcast.start()
        else:
            self.broadcast.go_over(self.session)
        self.form.started(self.start_line(self.session))
        self.session.subscribe(self._event)
        ended: TurnEnded | None = await self._goals(self.session, prompts)
        texts = [] if ended is not None else prompts
        async for text in self._prompts() if texts is None else _each(texts):
            ended = await self._turn(self.session, text, images)
            images = []
            if ended.outcome is not TurnOutcome.SUCCESS:
                break
        if ended is None:
            raise UsageError("no prompt: standard input had no user message")
        if ended.outcome is TurnOutcome.SUCCESS and self.schema is not None:
            return await self._structured_end(self.session, ended)
        return self._turn_end(self.session, ended)

    async def _wait(self, info: ModelInfo, start: datetime) -> None:
        """Until it is time. Meanwhile the session is there to be listed, watched and cancelled."""
        if not self.options.is_ephemeral:
            mode = self.options.settings.permission_mode or DEFAULT_MODE
            self.options, self.waiting = await announce(self.options, info, mode, start, self._cancel)
            self.broadcast = self.waiting.broadcast
        await wait_until(start, self.progress.line)
        self.started_at = time.monotonic()

    def _cancel(self, reason: str) -> None:
        """Whoever watches a run that waits does not want it any more."""
        self.cancelled = reason
        if self._task is not None and self.session is None:
            self._task.cancel()

    async def _goals(self, session: Session, prompts: Sequence[str | None] | None) -> TurnEnded | None:
        """Work for what the command line names, or what an earlier run has left of it. None: no goals."""
        options = self.options
        queue = GoalQueue(self._store_home or options.home, session.receipt, session.id)
        queue.load()
        if options.goals:
            queue.add(options.goals)
        if queue.next() is None or not (options.goals or prompts == [None]):
            return None
        checks = require_checks(self.checks)
        return await reach_all(
            queue, session, lambda text: self._turn(session, text, []), checks, self.progress.line
        )

    async def _turn(self, session: Session, text: str | None, images: list[ImagePart]) -> TurnEnded:
        if self.signum is not None or self.is_reader_gone:
            # It came when the turn before was over and still being put away.
            raise asyncio.CancelledError
        self.words = ""
        self._is_in_turn = True
        try:
            if text is None:
                ended = await session.continue_turn(reopen=True)
            else:
                ended = await session.submit(text, images)
        finally:
            self._is_in_turn = False
        if ended is None:
            done = "the last turn came to a good end" if session.messages else "it has no turn yet"
            raise UsageError(f"session {session.id} has nothing to go on with, {done}: give a prompt")
        return ended

    async def _prompts(self) -> AsyncIterator[str | None]:
        """What is submitted, one after the other; None continues the unfinished turn."""
        options = self.options
        if options.input_format == "stream-json":
            lines = user_lines()
            while (line := await asyncio.to_thread(next, lines, None)) is not None:
                yield line
            return
        prompt = await asyncio.to_thread(read_prompt, options.prompt, with_stdin=options.with_stdin)
        if prompt is None and (options.resume_id or options.continues_newest):
            yield None
        elif prompt is not None and prompt.strip():
            require_known_command(prompt, options.cwd, options.environ, options.home)
            yield prompt

    async def _open_session(self, client: ModelClient) -> Session:
        options = self.options
        session_options = self._session_options(client)
        for problem in await lacking_programs(session_options):
            self.progress.line(f"{problem} The work goes on: it may bring the program.", "yellow")
        found = options.resume_id
        if options.continues_newest:
            found = newest_session(session_options.home, options.cwd)
        lock = None if self.waiting is None else self.waiting.lock
        if found is None:
            return await Session.create(session_options, session_id=options.session_id, lock=lock)
        if options.is_unfinished_work:
            self.checks = self.checks or kept_checks(session_options.home, found)
            session_options = dataclasses.replace(session_options, checks=self.checks)
            if has_open_goals(session_options.home, found):
                session_options = for_goals(session_options, options.settings)
        if options.forks:
            return await Session.fork(found, session_options, new_id=options.session_id, lock=lock)
        return await Session.resume(found, session_options, lock=lock)

    def _session_options(self, client: ModelClient) -> SessionOptions:
        options, settings = self.options, self.options.settings
        home = options.home
        if options.is_ephemeral:
            home = self._store_home = Path(tempfile.mkdtemp(prefix="k3agent-"))
        told = SessionOptions.from_settings(
            settings,
            cwd=options.cwd,
            client=client,
            home=options.home,
            environ=options.environ,
            default_mode=DEFAULT_MODE,
            extra_dirs=options.extra_dirs,
        )
        told = for_goals(told, options.settings) if options.goals else told
        self.checks = told.checks
        return dataclasses.replace(told, response_schema=self.schema, home=home, user_home=options.home)

    async def _structured_end(self, session: Session, ended: TurnEnded) -> End:
        """The answer as JSON valid against the schema; the model is told what is wrong, a few times."""
        assert self.schema is not None
        ended, self.structured, problem = await fitting(
            ended, lambda: self.words, self.schema, lambda text: self._turn(session, text, [])
        )
        if problem:
            return self.ended(TurnOutcome.EXECUTION, ExitCode.ERROR, problem)
        return self._turn_end(session, ended)

    # --- its end ---

    def _turn_end(self, session: Session, ended: TurnEnded) -> End:
        if self.is_reader_gone and ended.outcome is TurnOutcome.INTERRUPTED:
            return self.ended(ended.outcome, ExitCode.INTERRUPTED, "standard output was closed")
        code = code_of_turn(ended.outcome, session.error, self.signum)
        detail = "" if ended.outcome is TurnOutcome.SUCCESS else ended.detail or ended.outcome.value
        return self.ended(ended.outcome, code, detail)

    def ended(self, outcome: TurnOutcome, code: int, detail: str) -> End:
        receipt = self.session.receipt if self.session is not None else Receipt()
        session_id = self.session.id if self.session is not None else self.options.session_id or ""
        is_bad = outcome is not TurnOutcome.SUCCESS or code != ExitCode.OK
        errors = list(receipt.errors)
        if detail and detail not in errors:
            errors.append(detail)
        return End(
            outcome=outcome,
            exit_code=int(code),
            session_id=session_id,
            # What stands before calls is no answer.
            answer="" if is_bad or self.has_calls else self.words,
            last_words=self.words if is_bad else "",
            report=self._report(outcome, code, detail, receipt) if is_bad else "",
            structured_output=self.structured if outcome is TurnOutcome.SUCCESS else None,
            duration_s=time.monotonic() - self.started_at,
            receipt=receipt,
            errors=errors,
        )

    def _report(self, outcome: TurnOutcome, code: int, detail: str, receipt: Receipt) -> str:
        # After a wrong command line there is nothing to go on with.
        session = self.session if code != ExitCode.USAGE else None
        return report(
            outcome,
            detail,
            receipt,
            session_id=session.id if session is not None else "",
            profile=session.info.profile if session is not None else None,
            permission_mode=session.permission_mode if session is not None else "",
        )

    def _interrupt_code(self) -> ExitCode:
        if self.signum is not None:
            return BY_SIGNAL.get(signal.Signals(self.signum), ExitCode.INTERRUPTED)
        return ExitCode.INTERRUPTED

    def start_line(self, session: Session) -> Start:
        info = session.info
        return Start(
            session_id=session.id,
            cwd=str(self.options.cwd),
            model=info.model,
            provider=info.provider,
            base_url=info.base_url,
            tools=session.tool_names,
            permission_mode=session.permission_mode,
            sandbox=session.sandbox.name,
            context_window=info.context_window,
            mcp_servers=tuple(session.mcp_servers),
        )

    # --- what comes from outside while it runs ---

    def _event(self, event: AnyEvent) -> None:
        if isinstance(event, MessageAdded) and event.message.role is Role.ASSISTANT:
            self.words, self.has_calls = event.message.text, bool(event.message.calls)
        self.form.event(event)
        self.progress.event(event)
        if self.paper is not None:
            self.paper.event(event)

    def _listen_to_signals(self) -> None:
        for signum in BY_SIGNAL:
            # A shell starts background jobs with SIGINT ignored, nohup ignores SIGHUP: that is to be kept.
            if signal.getsignal(signum) is not signal.SIG_IGN:
                signal.signal(signum, self._signalled)
        for signum in self.options.early_signals[:1]:
            self._signalled(signum, None)

    def _signalled(self, signum: int, _frame: object) -> None:
        """Plain handlers, not the loop's: they also run while the main thread waits for a slow reader."""
        now = time.monotonic()
        if self.signum is not None:
            # A terminal and a wrapper often send the same signal both; one that comes later means it.
            if now - self._signalled_at > _INSISTING_S:
                os._exit(BY_SIGNAL[signal.Signals(signum)])
            return
        self.signum, self._signalled_at = signum, now
        self.out.is_urgent = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._interrupt, f"signal {signal.Signals(signum).name}")

    def _reader_gone(self) -> None:
        self.is_reader_gone = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._interrupt, "standard output was closed")

    def _interrupt(self, reason: str) -> None:
        """Ends the turn in good order; where there is no turn yet, the run itself."""
        session = self.session
        if session is not None and self._is_in_turn:
            session.interrupt(reason)
        elif self._task is not None and not self.is_over:
            self._task.cancel()


async def _each(texts: Sequence[str | None]) -> AsyncIterator[str | None]:
    for text in texts:
        yield text
