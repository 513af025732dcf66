"""What a session is built of: every part, and how they are joined."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from k3agent.agent import building, foreign, resume
from k3agent.agent.ahead import Ahead
from k3agent.agent.approvals import Approvals
from k3agent.agent.check_files import CheckFiles
from k3agent.agent.child import Child
from k3agent.agent.compaction import Compactor, CompactorParts
from k3agent.agent.context import Context
from k3agent.agent.dispatch import Dispatcher, Workbench
from k3agent.agent.emitter import Emitter
from k3agent.agent.knowledge import knowledge_of
from k3agent.agent.loop import TurnParts
from k3agent.agent.masking import Masker, start_sweep
from k3agent.agent.nested import NestedInstructions
from k3agent.agent.opening import Opening, OpeningParts
from k3agent.agent.options import Receipt, SessionOptions
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
from k3agent.agent.transcript import Transcript
from k3agent.agent.turns import TurnRunner, TurnTime
from k3agent.agent.undo import step_of_turn
from k3agent.providers.base import ModelClient, ModelInfo
from k3agent.safety.environment import child_environ
from k3agent.store import blobs
from k3agent.store.database import SessionLock
from k3agent.store.records import StoredSession
from k3agent.store.sessions import SessionStore
from k3agent.types import SessionId, ToolSpec

if TYPE_CHECKING:  # tools bring pydantic, 0.1 s
    from k3agent.tools.base import ToolContext

MAX_RESULT_CHARS = 50_000
MIN_RESULT_CHARS = 4_000


class SessionParts(SessionView):
    """The base of `Session`, which works with what is made here."""

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
        self._traces = resume.Traces(
            cwd=self._cwd, outputs=output_dir, orphans=orphans, mask=self._masker.mask
        )
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
            open=self._open_child,
        )
        return Subagents(parts)

    async def _open_child(self, options: SessionOptions, child: SessionId) -> Child:
        """A subagent's session, made or gone on with."""
        raise NotImplementedError

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started

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
            session_id=self.id,
            cwd=self._cwd,
            child_environ=self._environ,
            sandboxed=building.sandboxing(self._tool_ctx),
            checks=options.checks,
            check_files=CheckFiles(self._checked, self._cwd),
            check_retries=options.check_retries,
            may_bring=building.bringing(options, self._tool_ctx),
            job_notices=self._jobs.take_notices,
            restore_notices=lambda: restore_notices(self._store, self.id),
            folder_instructions=self._nested.take,
            calls=lambda turn: self._store.calls(self.id, turn=turn),
            step_of_turn=lambda turn, files: step_of_turn(self._store.snapshots(self.id), turn, files),
            late_tools=lambda: foreign.late_tools(
                self._options.fleet, self._context, self._transcript.messages
            ),
            mask=self._masker.mask,
            steering=self._steering,
            is_person_asked=options.is_interactive and not options.is_program_asked,
        )
