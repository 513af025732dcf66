"""Runs the calls of one answer: parse, permit, intent, effect, result. Each call gets exactly one result,
in call order.

Calls that only read run side by side; the others wait for each other. The intent of a call that may change
something is committed before its effect; results are committed with the next intent or with the tool
message.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from k3agent import codec
from k3agent.agent.approvals import Approvals
from k3agent.agent.arguments import ArgumentsInvalid, parse_object, validate
from k3agent.agent.callhooks import BEFORE, Call, after_call, before_call, overruled
from k3agent.agent.callparts import (
    Ending,
    Prepared,
    access_dict,
    mask_outputs,
    refuse_stand_ins,
    side_by_side,
)
from k3agent.agent.changes import FileChanges
from k3agent.agent.emitter import Emitter
from k3agent.agent.git_marks import git_marks
from k3agent.agent.hashes import file_hashes, really_changed
from k3agent.agent.hooks import Hooks
from k3agent.agent.masking import Masker
from k3agent.agent.options import Receipt
from k3agent.agent.permissions import Action, Permissions, Verdict
from k3agent.agent.remarks import Remarks
from k3agent.agent.repetition import RepetitionPolicy, digest
from k3agent.agent.results import circle_of, cut, fenced
from k3agent.agent.safekeeping import Safekeeping, Step
from k3agent.agent.subagent import Subagents
from k3agent.agent.suggestions import rules_for
from k3agent.agent.transcript import Transcript
from k3agent.errors import ProviderError, ToolError
from k3agent.events import CallEnded, CallProgressed, CallProposed, CallStarted, Decision, Noticed
from k3agent.providers.base import Profile
from k3agent.store.blobs import BlobStore
from k3agent.store.records import CallRow, CallState, DecisionRow, JournalBatch
from k3agent.store.sessions import SessionStore
from k3agent.types import Message, SessionId, TextPart, ToolCall, ToolResult

if TYPE_CHECKING:  # tools bring pydantic, 0.1 s
    from k3agent.tools.base import Planning, Question, Tool, ToolContext

log = logging.getLogger(__name__)

NOT_RUN = "Not run: "
STOPPED_TASKS = "The subagents were stopped."


@dataclass(frozen=True, slots=True, kw_only=True)
class Workbench:
    """What the dispatcher works with; fixed for a session."""

    tools: Mapping[str, Tool[Any]]
    ctx: ToolContext
    permissions: Permissions
    approvals: Approvals
    store: SessionStore
    session_id: SessionId
    transcript: Transcript
    emitter: Emitter
    receipt: Receipt
    masker: Masker
    blobs: BlobStore
    profile: Profile
    max_result_chars: int
    subagents: Subagents
    safekeeping: Safekeeping | None
    plan: Callable[[str], Planning]
    hooks: Hooks


class Dispatcher:
    """Runs calls for one turn. `interrupt_reason` says why, when the turn is cancelled."""

    def __init__(self, bench: Workbench, turn: int, repetition: RepetitionPolicy) -> None:
        self._bench = bench
        self._turn = turn
        self._repetition = repetition
        self._batch = JournalBatch()
        self._rows: dict[str, CallRow] = {}
        self._known_files: dict[str, str] = dict(bench.ctx.freshness.seen)
        self.changes = FileChanges(bench.ctx.cwd, bench.store.home)
        self.remarks = Remarks(bench.ctx.cwd, self.changes.text_before, self.changes.is_as_before)
        self.interrupt_reason = "the turn was interrupted"

    async def run(self, message: Message, settled: Mapping[str, CallRow] | None = None) -> None:
        """Run the calls of `message` and store the tool message. `settled`: ends that are known already
        (resume).

        When cancelled, the open calls get results that say so, and the tool message is stored all the same;
        but where subagents were stopped that can go on, all stays open for a resume.
        """
        self._rows = {}
        for row in (settled or {}).values():
            self._keep(row)
            self._batch.ends.append(row)
        try:
            for group in self._groups([call for call in message.calls if call.id not in self._rows]):
                if len(group) == 1:
                    await self._one(message, group[0])
                else:
                    await side_by_side([self._one(message, call) for call in group])
        except asyncio.CancelledError:
            if self.is_left_open(message):
                raise
            self._close(message, f"{NOT_RUN}{self.interrupt_reason}.", CallState.INTERRUPTED)
            raise
        self._finish(message)

    def is_left_open(self, message: Message) -> bool:
        """Whether its calls have subagents that a resume goes on with."""
        open_ids = [call.id for call in message.calls if call.id not in self._rows]
        return self._bench.subagents.wait_for_more(open_ids)

    def refuse(self, message: Message, reason: str, settled: Mapping[str, CallRow] | None = None) -> None:
        """Give every open call of `message` a result that says why it was not run."""
        self._rows = {}
        for row in (settled or {}).values():
            self._keep(row)
            self._batch.ends.append(row)
        self._close(message, reason, CallState.INTERRUPTED)

    def _close(self, message: Message, reason: str, state: CallState) -> None:
        for call in message.calls:
            if call.id not in self._rows:
                self._end(message, call, Ending(state=state, text=reason))
        self._finish(message)

    def _finish(self, message: Message) -> None:
        """The tool message: one result for each call, in call order, stored together with the last ends."""
        rows = [self._rows[call.id] for call in message.calls]
        batch, self._batch = self._batch, JournalBatch()
        results = [row.result for row in rows if row.result is not None]
        assert len(results) == len(message.calls)
        self._bench.transcript.add(self._bench.transcript.tool_message(results), batch=batch)
        for row in rows:
            self._repetition.add(row)

    def _groups(self, calls: Sequence[ToolCall]) -> list[list[ToolCall]]:
        """Neighbours that only read form a group; every other call is one by itself."""
        groups: list[list[ToolCall]] = []
        was_reading = False
        for call in calls:
            tool = self._bench.tools.get(call.name)
            reads = tool is not None and tool.is_read_only
            if reads and was_reading:
                groups[-1].append(call)
            else:
                groups.append([call])
            was_reading = reads
        return groups

    # --- one call -----------------------------------------------------------------------------------------

    async def _one(self, message: Message, call: ToolCall) -> None:
        started = time.monotonic()
        try:
            ending = await self._attempt(message, call)
        except asyncio.CancelledError:
            if self._bench.subagents.wait_for_more((call.id,)):
                raise
            text = f"Interrupted before it finished: {self.interrupt_reason}. It may have had effects."
            seconds = time.monotonic() - started
            self._end(message, call, Ending(state=CallState.INTERRUPTED, text=text, duration_s=seconds))
            raise
        self._end(message, call, ending)

    async def _attempt(self, message: Message, call: ToolCall) -> Ending:
        try:
            prepared = self._prepare(call)
        except ArgumentsInvalid as error:
            self._propose(call, call.name or "(no name)")
            return Ending(state=CallState.INVALID, text=str(error))
        except ToolError as error:
            self._propose(call, call.name)
            return Ending(state=CallState.FAILED, text=str(error))
        summary = self._bench.masker.mask(prepared.tool.describe(prepared.args))
        self._propose(call, summary)
        refusal = self._repetition.refusal_before(call.name, call.arguments)
        if refusal is not None:
            return Ending(state=CallState.REFUSED, text=refusal)
        denial = await self._permit(prepared, summary)
        if denial is not None:
            return Ending(state=CallState.DENIED, text=denial)
        unsaved = await self._keep_files(message, prepared, summary)
        if unsaved is not None:
            return Ending(state=CallState.DENIED, text=unsaved)
        await self.remarks.before(prepared.access.writes)
        marks = git_marks(self._bench.ctx.cwd) if prepared.access.runs is not None else ()
        prepared.hashes = file_hashes((*marks, *prepared.access.writes))
        start = CallRow(
            turn=self._turn,
            message_id=message.id,
            call_id=call.id,
            tool=call.name,
            arguments=self._bench.masker.mask(prepared.edited) or call.arguments,
            state=CallState.STARTED,
            access=self._bench.masker.mask_value(access_dict(prepared.access)),
            hashes=prepared.hashes,
        )
        self._batch.starts.append(start)
        if not prepared.tool.is_read_only:
            batch, self._batch = self._batch, JournalBatch()
            self._bench.store.record(self._bench.session_id, batch)
        self._bench.emitter.emit(CallStarted, call_id=call.id, tool=call.name)
        ending = await self._effect(prepared)
        seen, is_error = self._as_hooks_see(prepared), ending.is_error
        said = await after_call(self._bench.hooks, seen, ending.text, ending.files, is_error=is_error)
        text = "\n".join(part for part in (ending.text, prepared.hooked, said) if part)
        return dataclasses.replace(ending, text=text)

    def _as_hooks_see(self, prepared: Prepared) -> Call:
        call, cwd = prepared.call, self._bench.ctx.cwd
        return Call(id=call.id, tool=call.name, args=prepared.args, access=prepared.access, cwd=cwd)

    async def _verdict(self, prepared: Prepared) -> Verdict:
        """What hooks, rules and the mode say; a hook may have changed the call first."""
        bench, call = self._bench, prepared.call
        outcome, arguments = await before_call(bench.hooks, self._as_hooks_see(prepared))
        prepared.hooked = f"[a hook of the user's says: {outcome.context}]" if outcome.context else ""
        if arguments is not None:
            problem = self._change(prepared, codec.dump(arguments), "a hook")
            if problem:
                return Verdict(action=Action.DENY, reason=problem, by="hook")
        return overruled(bench.permissions.judge(call.name, prepared.access), outcome)

    async def _keep_files(self, message: Message, prepared: Prepared, summary: str) -> str | None:
        """Save what the call may change, for `undo`. Why it must not run unsaved, or None."""
        bench, call = self._bench, prepared.call
        if bench.safekeeping is None or prepared.tool.is_read_only:
            return None
        step = Step(self._turn, message.id, call.id, call.name, summary)

        def notify(text: str) -> None:
            text = bench.masker.mask(text)
            bench.emitter.emit(Noticed, level="warning", text=text, data={"call_id": call.id})

        return await bench.safekeeping.guard(step, prepared.access, bench.store, bench.approvals, notify)

    def _propose(self, call: ToolCall, summary: str) -> None:
        self._bench.emitter.emit(
            CallProposed, call_id=call.id, tool=call.name, arguments=call.arguments, summary=summary
        )

    def _prepare(self, call: ToolCall) -> Prepared:
        tools = self._bench.tools
        tool = tools.get(call.name)
        if tool is None:
            name = call.name or "(no name)"
            raise ArgumentsInvalid(f"unknown tool {name}. Tools: {', '.join(tools)}.")
        written = self._bench.masker.restore(self._bench.transcript.arguments_of(call))
        try:
            value, note = parse_object(written)
            args = validate(tool.args, value)
        except ArgumentsInvalid as error:
            text = str(error)
            if not text.split(":", 1)[0].replace(".", "").isidentifier():
                text = f"arguments: {text}"
            raise ArgumentsInvalid(f"bad arguments for {call.name}: {text}.") from error
        access = tool.access(args, self._bench.ctx)
        if self._bench.hooks.has(BEFORE):
            # A hook is told of one file, and could not forbid the others.
            access = dataclasses.replace(access, more=())
        access = self._bench.permissions.narrowed(call.name, access)
        refuse_stand_ins(access, self._bench.masker, written)
        return Prepared(call=call, tool=tool, args=args, note=note, access=access)

    async def _permit(self, prepared: Prepared, summary: str) -> str | None:
        """None when the call may run, else the text for the model. Every decision is recorded with its
        reason.
        """
        bench, call = self._bench, prepared.call
        verdict = await self._verdict(prepared)
        if prepared.edited:
            summary = bench.masker.mask(prepared.tool.describe(prepared.args))
        action, reason, by = verdict.action, verdict.reason, verdict.by
        if action is Action.ASK:
            rules = () if verdict.by == "protection" else rules_for(call.name, prepared.access, bench.ctx.cwd)
            preview = await self._preview(prepared)
            answer = await bench.approvals.ask(call.id, call.name, summary, reason, rules, preview)
            if answer is not None:
                action, by = Action.DENY, "user"
                if answer.decision is Decision.ALLOW:
                    problem = self._change(prepared, answer.arguments, "the user")
                    action = Action.DENY if problem else Action.ALLOW
                    reason = problem or f"the user said allow ({reason})"
                else:
                    said = f": {answer.reason}" if answer.reason else ""
                    reason = f"the user said deny{said} ({reason})"
            else:
                action = Action.DENY
                reason = f"{reason}, and nobody can be asked here"
        reason = bench.masker.mask(reason)
        self._batch.decisions.append(
            DecisionRow(
                call_id=call.id, tool=call.name, subject=summary, action=action.value, reason=reason, by=by
            )
        )
        if action is Action.ALLOW:
            return None
        bench.receipt.denials.append(
            {"call_id": call.id, "tool": call.name, "summary": summary, "reason": reason}
        )
        return f"permission denied: {reason}. Do without it, or say what is needed."

    async def _preview(self, prepared: Prepared) -> str:
        """What the call would change, for a person who is about to be asked."""
        from k3agent.tools.base import Previewed  # lazy: tools bring pydantic

        if not self._bench.approvals.is_interactive or not isinstance(prepared.tool, Previewed):
            return ""
        try:
            found = await asyncio.to_thread(prepared.tool.preview, prepared.args, self._bench.ctx)
        except ToolError as error:
            found = f"[it would fail: {error}]"
        return self._bench.masker.mask(found)

    def _change(self, prepared: Prepared, arguments: str | None, by: str) -> str:
        """Take over arguments that somebody has changed; why that is not possible, or nothing."""
        if arguments is None or arguments == prepared.call.arguments:
            return ""
        try:
            changed = self._prepare(dataclasses.replace(prepared.call, arguments=arguments))
        except (ArgumentsInvalid, ToolError) as error:
            return f"the change of the call by {by} cannot be used: {error}"
        verdict = self._bench.permissions.judge(prepared.call.name, changed.access)
        if verdict.action is Action.DENY:
            return verdict.reason
        prepared.args, prepared.access, prepared.edited = changed.args, changed.access, arguments
        prepared.edited_by = by
        return ""

    async def _effect(self, prepared: Prepared) -> Ending:
        """Run the tool. Its expected failures become text for the model here and nowhere else."""
        from k3agent.tools.support.opening import only  # lazy: with the tools, which are loaded by now

        call, bench = prepared.call, self._bench

        shown = bench.masker.stream()

        def progress(text: str) -> None:
            text = shown.feed(text)
            if text:
                bench.emitter.emit(CallProgressed, call_id=call.id, text=text)

        async def ask(question: Question) -> str:
            return await bench.approvals.question(call.id, question.text, question.options, question.default)

        if prepared.access.runs is not None or prepared.access.calls is not None:
            await self.changes.begin()
        own = {"spawn": bench.subagents.spawn(call.id), "plan": bench.plan(call.id)}
        ctx = dataclasses.replace(bench.ctx, emit=progress, ask=ask, **own)
        started = time.monotonic()
        try:
            # What was judged is what is opened, whatever links have become since then.
            with only((*prepared.access.reads, *prepared.access.writes)):
                output = await prepared.tool.run(prepared.args, ctx)
        except ToolError as error:
            return Ending(state=CallState.FAILED, text=str(error), duration_s=time.monotonic() - started)
        except ProviderError:
            # Subagents that wait for their endpoint: the call stays open, a resume goes on with it.
            raise
        except OSError as error:
            # A full disk, too many open files: nothing that the tool could have foreseen.
            log.warning("tool %s failed: %s", call.name, error)
            text = (
                f"{call.name} failed: {error.strerror or type(error).__name__}. Say so, or try another way."
            )
            return Ending(state=CallState.FAILED, text=text, duration_s=time.monotonic() - started)
        except Exception as error:
            log.exception("tool %s crashed", call.name)
            text = f"{call.name} crashed ({type(error).__name__}: {error}). Try another way."
            return Ending(state=CallState.FAILED, text=text, duration_s=time.monotonic() - started)
        if prepared.access.runs is not None:
            await mask_outputs(bench.ctx, bench.masker)
        if "exit_code" in output.data:
            command = bench.masker.mask(prepared.access.runs or "")
            bench.receipt.last_command = {"command": command, "exit_code": output.data["exit_code"]}
        text = output.text or "(no output)"
        if prepared.note:
            text += f"\n[the arguments were not valid JSON and were repaired: {prepared.note}]"
        if prepared.edited:
            text += f"\n[{prepared.edited_by} changed this call before it ran; what ran: {prepared.edited}]"
        return Ending(
            state=CallState.DONE,
            text=text,
            images=output.images,
            files=really_changed(output.files, prepared.hashes, bench.ctx.cwd),
            duration_s=time.monotonic() - started,
            exit_code=output.data.get("exit_code"),
        )

    # --- the end of a call --------------------------------------------------------------------------------

    def _end(self, message: Message, call: ToolCall, ending: Ending) -> None:
        """Mask, cut, judge for repetition, remember, tell."""
        bench = self._bench
        is_given_up = ending.state in (CallState.INTERRUPTED, CallState.FAILED)
        left = bench.subagents.left(call.id) if is_given_up else ""
        said = STOPPED_TASKS if left and ending.text.startswith(NOT_RUN) else ending.text
        text = bench.masker.reveal(bench.masker.mask(said + left))
        result_digest = digest(text)
        state = ending.state
        if state in (CallState.DONE, CallState.FAILED):
            text, state = self._against_circles(call, text, result_digest, state)
        text = cut(text, bench.max_result_chars, bench.blobs)
        result = ToolResult(
            call_id=call.id,
            content=(TextPart(text=fenced(text, call.name, bench.profile)), *ending.images),
            is_error=state is not CallState.DONE,
        )
        row = CallRow(
            turn=self._turn,
            message_id=message.id,
            call_id=call.id,
            tool=call.name,
            arguments=call.arguments,
            state=state,
            result=result,
            digest=result_digest,
            files=ending.files,
            seen=self._news_of_files(),
        )
        self._keep(row)
        self._batch.ends.append(row)
        bench.receipt.calls += 1
        bench.receipt.invalid += state is CallState.INVALID
        bench.receipt.failed += state is CallState.FAILED
        bench.receipt.add_files(ending.files)
        bench.emitter.emit(
            CallEnded,
            call_id=call.id,
            tool=call.name,
            result=result,
            duration_s=ending.duration_s,
            files=ending.files,
            is_invalid=state is CallState.INVALID,
            is_denied=state is CallState.DENIED,
            is_interrupted=state is CallState.INTERRUPTED,
            exit_code=ending.exit_code,
        )

    def _keep(self, row: CallRow) -> None:
        self._rows[row.call_id] = row

    def _against_circles(
        self, call: ToolCall, text: str, result_digest: str, state: CallState
    ) -> tuple[str, CallState]:
        repeats = self._repetition.repeats(call.name, call.arguments, result_digest, text, state)
        circle = circle_of(call.name, repeats)
        if circle is None:
            return text, state
        data = {"call_id": call.id, "streak": circle.count}
        self._bench.emitter.emit(Noticed, level="warning", text=circle.notice, data=data)
        return circle.answer(text, state, self._bench.profile)

    def _news_of_files(self) -> dict[str, str]:
        """What the tools have learned of files since the last look: kept with the call, for a resume."""
        seen: dict[str, str] = self._bench.ctx.freshness.seen
        news = {path: value for path, value in seen.items() if self._known_files.get(path) != value}
        self._known_files.update(news)
        return news
