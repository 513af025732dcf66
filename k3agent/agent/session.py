"""The façade that front ends use: builds everything, and hands in and out what a turn needs.

One `Session` is one session in one process: it holds the session's lock until `aclose`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from k3agent.agent import building, foreign, resume
from k3agent.agent.ahead import Ahead
from k3agent.agent.approvals import Approvals
from k3agent.agent.check_files import CheckFiles
from k3agent.agent.compaction import Compactor, CompactorParts
from k3agent.agent.context import Context
from k3agent.agent.dispatch import Dispatcher, Workbench
from k3agent.agent.emitter import Emitter
from k3agent.agent.knowledge import knowledge_of, memory_root
from k3agent.agent.loop import TurnParts, reports_only
from k3agent.agent.masking import Masker, start_sweep
from k3agent.agent.nested import NestedInstructions
from k3agent.agent.opening import Opening, OpeningParts
from k3agent.agent.options import NO_LIMITS, Limits, Receipt, SessionOptions
from k3agent.agent.permissions import Permissions
from k3agent.agent.planning import Planner
from k3agent.agent.policies import CompactionPolicy
from k3agent.agent.repetition import RepetitionPolicy
from k3agent.agent.safekeeping import Safekeeping, restore_notices
from k3agent.agent.sessionview import SessionView
from k3agent.agent.step import Stepper
from k3agent.agent.subagent import Subagents
from k3agent.agent.taskplan import SubagentParts
from k3agent.agent.tasks import load_todo
from k3agent.agent.transcript import Transcript, new_session_id
from k3agent.agent.turns import TurnRunner, TurnTime
from k3agent.agent.undo import Undo
from k3agent.errors import K3AgentError, ProviderError
from k3agent.events import AnyEvent, Noticed, TurnEnded, TurnOutcome, TurnStarted
from k3agent.providers.base import ModelClient, ModelInfo
from k3agent.safety.environment import child_environ
from k3agent.store import blobs
from k3agent.store.database import SessionLock
from k3agent.store.records import StoredSession
from k3agent.store.sessions import SessionStore
from k3agent.types import ImagePart, MessageId, Role, SessionId, ToolSpec

if TYPE_CHECKING:  # tools bring pydantic, 0.1 s
    from k3agent.tools.base import ToolContext

__all__ = ["NO_LIMITS", "Limits", "Receipt", "Session", "SessionOptions"]

log = logging.getLogger(__name__)

MAX_RESULT_CHARS = 50_000
GO_ON = "Go on with the task from where you stopped."
MIN_RESULT_CHARS = 4_000


class Session(SessionView):
    """Made by `create`, `resume` or `fork`. Not thread-safe: one event loop, one turn at a time."""

    def __init__(
        self, options: SessionOptions, store: SessionStore, lock: SessionLock, stored: StoredSession
    ) -> None:
        """For `create`, `resume` and `fork` only. The client must be connected."""
        self.id: SessionId = stored.id
        self.info: ModelInfo = options.client.info
        self.receipt = Receipt()
        self.permission_mode = options.permission_mode
        self.specs: tuple[ToolSpec, ...] = stored.tools
        self.commands = options.extensions.commands
        self._store, self._lock = store, lock
        self._cwd = options.cwd.resolve()
        self._checked = building.checked_files(options, self._cwd)
        self._masker = Masker(foreign.secret_environ(options), self._cwd)
        self._emitter = Emitter(self.id, self._masker.mask_value)
        self._started = time.monotonic()
        self._steering: list[str] = []
        self._environ = child_environ(options.environ)
        self._approvals = Approvals(
            self._emitter, is_interactive=options.is_interactive, unanswered=self.receipt.questions
        )
        self._transcript = Transcript(store, self.id, self._emitter, self._masker.mask_parts)
        self._context = Context(
            session_id=self.id,
            info=self.info,
            system=stored.system,
            tools=stored.tools,
            effort=building.choose_effort(options.effort, self.info),
            response_schema=options.response_schema,
        )
        self._stepper = self._build_stepper(options.client)
        self._limits = building.limit_policy(options, self.id, self.receipt, self._elapsed_s)
        self._stepper.may_step = self._limits.may_step
        self._options = foreign.with_servers(options, self.specs, self._emitter)
        self._tool_ctx = self._build_tool_context()
        self._hooks = building.session_hooks(
            options, self._emitter, self._masker, store, lambda: self.permission_mode
        )
        self._bench = self._build_bench()
        turn_time = TurnTime(limits=options.limits, elapsed_s=self._elapsed_s)
        self._turns = TurnRunner(self._bench, turn_time, self._turn_parts)
        self.compactor = self._build_compactor()
        self._ahead = Ahead(self.compactor, is_on=building.works_ahead(options))
        self._opening = self._build_opening()
        self._nested = NestedInstructions(
            self._cwd,
            self._tool_ctx.freshness.seen,
            lambda: self._context.view(self._transcript.messages),
            is_on=self.info.context_window > building.SMALL_WINDOW,
        )
        self._warnings = [*stored.warnings, *building.start_warnings(options)]
        self._end_telemetry = building.start_telemetry(options, self._emitter)

    # --- making one ---------------------------------------------------------------------------------------

    @classmethod
    async def create(
        cls, options: SessionOptions, *, session_id: str | None = None, lock: SessionLock | None = None
    ) -> Session:
        """A new session. `lock`: its own, where it is held already. Raises ConfigError, StoreError (the id is
        taken) or what `client.connect` raises.
        """

        def begin(store: SessionStore, own: SessionId) -> StoredSession:
            memories = (
                store.memories(memory_root(options.cwd)) if options.memory and not options.subtask else ()
            )
            stored = building.frozen_part(options, own, memories)
            store.create(stored)
            return stored

        return await cls._open(options, lambda _: SessionId(session_id or new_session_id()), begin, lock)

    @classmethod
    async def resume(
        cls, session_id: str, options: SessionOptions, *, lock: SessionLock | None = None
    ) -> Session:
        """An earlier session, under the same id, with the prompt and tools it was started with."""

        def begin(store: SessionStore, own: SessionId) -> StoredSession:
            return building.mended(store.load(own), options)

        return await cls._open(options, lambda store: store.resolve(session_id), begin, lock)

    @classmethod
    async def fork(
        cls,
        session_id: str,
        options: SessionOptions,
        *,
        new_id: str | None = None,
        lock: SessionLock | None = None,
    ) -> Session:
        """A new session that starts from everything that was said in another; that one is not touched."""

        def begin(store: SessionStore, own: SessionId) -> StoredSession:
            forked = store.fork(store.resolve(session_id), own, str(options.cwd.resolve()))
            return building.mended(forked, options)

        return await cls._open(options, lambda _: SessionId(new_id or new_session_id()), begin, lock)

    @classmethod
    async def _open(
        cls,
        options: SessionOptions,
        find: Callable[[SessionStore], SessionId],
        begin: Callable[[SessionStore, SessionId], StoredSession],
        held: SessionLock | None,
    ) -> Session:
        """`find` names it, `begin` makes or loads it once its lock is held."""
        await building.prepare(options)
        store = SessionStore(options.home)
        try:
            own = find(store)
            lock = held or store.lock(own)
            try:
                return cls(options, store, lock, begin(store, own))
            except BaseException:
                lock.release()
                raise
        except BaseException:
            store.close()
            raise

    def _build_stepper(self, client: ModelClient) -> Stepper:
        return Stepper(
            client=client,
            store=self._store,
            session_id=self.id,
            transcript=self._transcript,
            emitter=self._emitter,
            receipt=self.receipt,
            masker=self._masker,
        )

    def _build_tool_context(self) -> ToolContext:
        from k3agent.tools.base import ToolContext  # lazy: pydantic; loaded by `prepare`
        from k3agent.tools.jobs import JobTable, reap_orphans
        from k3agent.tools.support.freshness import Freshness

        options = self._options
        output_dir = options.home / "outputs" / self.id
        output_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        orphans = reap_orphans(output_dir)
        self._traces = resume.Traces(cwd=self._cwd, orphans=orphans, mask=self._masker.mask)
        self._masker.mask_files(output_dir, ())
        start_sweep(options.home, self.id, self._masker)
        self._jobs = JobTable(output_dir)
        return ToolContext(
            cwd=self._cwd,
            environ=self._environ,
            output_dir=output_dir,
            freshness=Freshness(self._store.seen_files(self.id)),
            jobs=self._jobs,
            sandbox=building.choose_sandbox(options),
            emit=lambda text: None,
            ask=building.nobody,
            knowledge=knowledge_of(self._cwd, options.extensions, self._store, self._emitter),
            extra_dirs=tuple(folder.resolve() for folder in options.extra_dirs),
            todo=load_todo(self._store, self.id),
        )

    def _build_bench(self) -> Workbench:
        options = self._options
        self._store.mask = self._masker.mask_value
        blob_folder = blobs.folder_of(options.home, self.id)
        readable = (blob_folder, self._tool_ctx.output_dir, options.home / "worktrees" / self.id)
        territory = building.territory(options, readable, self._checked, self.sandbox)
        permissions = Permissions(
            mode=options.permission_mode, allow=options.allow, deny=options.deny, territory=territory
        )
        tools = options.adapt_tools(building.load_tools() | foreign.tools_of(self._options.fleet, self.specs))
        offered = {spec.name: tools[spec.name] for spec in self.specs if spec.name in tools}
        return Workbench(
            tools=offered,
            ctx=self._tool_ctx,
            permissions=permissions,
            approvals=self._approvals,
            store=self._store,
            session_id=self.id,
            transcript=self._transcript,
            emitter=self._emitter,
            receipt=self.receipt,
            masker=self._masker,
            blobs=blobs.BlobStore(blob_folder),
            profile=self.info.profile,
            max_result_chars=max(
                MIN_RESULT_CHARS, min(MAX_RESULT_CHARS, int(0.75 * self.info.context_window))
            ),
            safekeeping=Safekeeping(options.home, self.id, territory) if options.snapshots else None,
            subagents=self._subagents(permissions),
            plan=Planner(self._store, self._transcript, self._approvals, self._emitter).for_call,
            hooks=self._hooks,
        )

    def _build_opening(self) -> Opening:
        parts = OpeningParts(
            transcript=self._transcript,
            hooks=self._hooks,
            permissions=self._bench.permissions,
            extensions=self._options.extensions,
            profile=self.info.profile,
            facts=lambda: building.new_facts(self._options, self.permission_mode, self._transcript),
            is_task=self._options.subtask is not None,
        )
        return Opening(parts)

    def _build_compactor(self) -> Compactor:
        parts = CompactorParts(
            store=self._store,
            transcript=self._transcript,
            context=self._context,
            stepper=self._stepper,
            emitter=self._emitter,
            receipt=self.receipt,
            policy=CompactionPolicy(self._options.compact_at, self.info.prices),
            profile=self.info.profile,
            jobs=lambda: building.running_jobs(self._jobs),
            mask=self._masker.mask,
            hooks=self._hooks,
        )
        return Compactor(parts)

    def _subagents(self, permissions: Permissions) -> Subagents:
        async def open_child(options: SessionOptions, child: SessionId) -> Session:
            if self._store.exists(child):
                return await Session.resume(child, options)
            return await Session.create(options, session_id=child)

        parts = SubagentParts(
            store=self._store,
            session_id=self.id,
            emitter=self._emitter,
            receipt=self.receipt,
            approvals=self._approvals,
            permissions=permissions,
            limits=self._limits,
            options=self._options,
            fixed_tokens=self._context.fixed_tokens,
            open=open_child,
        )
        return Subagents(parts)

    # --- what front ends do -------------------------------------------------------------------------------

    def subscribe(self, reader: Callable[[AnyEvent], None], *, is_shown: bool = True) -> None:
        """`reader` is called synchronously with every event from now on, and must be quick. One that shows
        them to a person gets the warnings of the start.
        """
        self._emitter.subscribe(reader)
        while is_shown and self._warnings:
            self._emitter.emit(Noticed, level="warning", text=self._warnings.pop(0))
        if is_shown:
            foreign.begin(self._options)
        self._opening.begin()

    async def submit(self, text: str, images: Sequence[ImagePart] = ()) -> TurnEnded:
        """One user turn to its end. Raises BlockedError when a hook of the user's stops the prompt."""
        await self._alone()
        self._close_open_turn()
        transcript = self._transcript
        text = building.without_secrets(text, self._masker, self._emitter)
        opening = await self._opening.messages(text, images)
        turn = self._store.start_turn(self.id, opening, title=building.title_of(text))
        self._emitter.emit(TurnStarted, prompt=text)
        for message in opening:
            transcript.remember(message)
        end = await self._turns.run(turn, RepetitionPolicy(self.info.profile), {})
        if end.outcome is TurnOutcome.SUCCESS:
            self._ahead.begin(turn)
        return end

    async def continue_turn(self, *, reopen: bool = False) -> TurnEnded | None:
        """Finish a turn that a killed process left: settle its open calls, then go on. None if none is open.

        `reopen`: also go on with a last turn that ended without success (interrupted, a limit, the provider).
        """
        await self._alone()
        last = self._store.last_turn(self.id)
        if last is None or last.outcome == TurnOutcome.SUCCESS or (last.outcome is not None and not reopen):
            return None
        transcript = self._transcript
        leaf = transcript.leaf
        # Calls without results: subagents that waited for their endpoint go on.
        is_answer = leaf is not None and leaf.role is Role.ASSISTANT and not leaf.calls
        if is_answer and (last.outcome is not None or reports_only(transcript.messages)):
            # Before the turn is opened: a kill in between would leave an answer that looks like its good end.
            transcript.add(transcript.harness(GO_ON))
        if last.outcome is not None:
            self._store.reopen_turn(self.id, last.seq)
        if self._store.draft(self.id) is not None:
            self._store.drop_draft(self.id)
            text = "An answer that was not finished when k3agent was stopped is left out."
            self._emitter.emit(Noticed, level="info", text=text)
        self._store.note_restart(self.id, last.seq)
        prompt = next((item.text for item in self.messages if item.id == last.message_id), "")
        self._emitter.emit(TurnStarted, prompt=prompt)
        rows = self._store.calls(self.id, turn=last.seq)
        open_calls = transcript.open_calls()
        leaf_id = open_calls.id if open_calls is not None else None
        for call in open_calls.calls if open_calls is not None else ():
            self._masker.recall(call.arguments)
        settled = {} if open_calls is None else resume.settle(open_calls, rows, self._traces)
        earlier = [row for row in rows if row.message_id != leaf_id]
        return await self._turns.run(last.seq, RepetitionPolicy(self.info.profile, earlier), settled)

    @property
    def is_running(self) -> bool:
        """Whether a turn runs."""
        return self._turns.is_busy or self._opening.is_busy

    def interrupt(self, reason: str) -> None:
        """End the running turn: what has arrived is kept, open calls get results that say so. Safe at any
        time.
        """
        self._opening.interrupt()
        self._turns.interrupt(reason)

    def pause(self, failure: ProviderError) -> bool:
        """Stop the subagents that run, resumably, since their endpoint fails. Whether there are any."""
        return self._bench.subagents.pause(failure)

    @property
    def error(self) -> K3AgentError | None:
        """What ended the last turn, where an error did."""
        return self._turns.error

    def steer(self, text: str) -> None:
        """Say something into the running turn: the model gets it after its running calls."""
        self._steering.append(text)

    def take_back_steering(self) -> list[str]:
        """What was said into a turn that ended before the model got it."""
        left, self._steering[:] = list(self._steering), []
        return left

    def set_permission_mode(self, mode: str) -> None:
        """From the next call on; the model is told with the next turn. Raises ConfigError."""
        self._bench.permissions.set_mode(mode)
        self.permission_mode = mode

    def allow_rule(self, rule: str) -> None:
        """Allow what `rule` matches for the rest of this session. Raises ConfigError."""
        self._bench.permissions.add_allow(rule)

    def rewind(self, message_id: MessageId) -> str:
        """Go on from before this prompt of the user, whose text is given back. Files stay as they are."""
        self._check_idle()
        self._ahead.cancel()
        self._close_open_turn()
        message = self._transcript.rewind(message_id)
        self.compactor.reload()
        return message.text

    @property
    def undo(self) -> Undo:
        """The files of earlier steps. Only while no turn runs."""
        self._check_idle()
        return Undo(self._store, self.id)

    async def aclose(self) -> None:
        """End the running turn and all background jobs, free the lock. The client stays its owner's."""
        self._opening.interrupt()
        await self._ahead.stop()
        await self._turns.end("the session is closed")
        await self._opening.aclose()
        await asyncio.to_thread(self._end_telemetry)
        await self._hooks.aclose("other")
        await self._jobs.aclose()
        await foreign.close(self._options)
        self._tool_ctx.sandbox.close()
        self._masker.mask_files(self._tool_ctx.output_dir, ())
        self._lock.release()
        self._store.close()

    # --- a turn -------------------------------------------------------------------------------------------

    def _check_idle(self) -> None:
        if self._turns.is_busy or self._opening.is_busy:
            raise K3AgentError(f"session {self.id} is in a turn already; wait for it or interrupt it")

    async def _alone(self) -> None:
        """Then nothing else works on the session; another prompt may have come while work ahead ended."""
        self._check_idle()
        await self._ahead.stop()
        self._check_idle()

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def _close_open_turn(self) -> None:
        """A turn that was left open and is not continued: its calls get results, without running anything."""
        open_message = self._transcript.open_calls()
        last = self._store.last_turn(self.id)
        if open_message is not None:
            settled = resume.settle(open_message, self._store.calls(self.id), self._traces)
            dispatcher = Dispatcher(self._bench, last.seq if last else 0, RepetitionPolicy(self.info.profile))
            dispatcher.refuse(open_message, "Not run: k3agent was stopped before this call.", settled)
        if last is not None and last.outcome is None:
            self._store.end_turn(self.id, last.seq, TurnOutcome.INTERRUPTED.value, "k3agent was stopped")
        if self._store.draft(self.id) is not None:
            self._store.drop_draft(self.id)

    def _turn_parts(self, dispatcher: Dispatcher, repetition: RepetitionPolicy) -> TurnParts:
        options = self._options
        return TurnParts(
            transcript=self._transcript,
            context=self._context,
            compactor=self.compactor,
            stepper=self._stepper,
            dispatcher=dispatcher,
            hooks=self._hooks,
            limits=self._limits,
            repetition=repetition,
            emitter=self._emitter,
            receipt=self.receipt,
            profile=self.info.profile,
            cwd=self._cwd,
            child_environ=self._environ,
            sandboxed=building.sandboxing(self._tool_ctx),
            checks=options.checks,
            check_files=CheckFiles(self._checked, self._cwd),
            check_retries=options.check_retries,
            job_notices=self._jobs.take_notices,
            restore_notices=lambda: restore_notices(self._store, self.id),
            folder_instructions=self._nested.take,
            calls=lambda turn: self._store.calls(self.id, turn=turn),
            late_tools=lambda: foreign.late_tools(
                self._options.fleet, self._context, self._transcript.messages
            ),
            mask=self._masker.mask,
            steering=self._steering,
            is_person_asked=options.is_interactive and not options.is_program_asked,
        )
