"""One turn: model calls and tool calls in alternation until the model has nothing more to call.

The loop keeps no state of its own that matters: where a turn stands is read from the transcript and the
rows, so a turn that was killed anywhere goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from k3agent.agent import checks
from k3agent.agent.check_files import CheckFiles
from k3agent.agent.compaction import Compactor
from k3agent.agent.context import Context
from k3agent.agent.dispatch import Dispatcher
from k3agent.agent.emitter import Emitter
from k3agent.agent.excerpts import repeats_itself
from k3agent.agent.hooks import Hooks
from k3agent.agent.options import Receipt
from k3agent.agent.policies import CLOSING_OUTPUT_TOKENS, COMPACT_STEPS, LimitPolicy, LimitReached
from k3agent.agent.remarks import Remark, is_bad, takes_back
from k3agent.agent.repetition import RepetitionPolicy
from k3agent.agent.step import Stepper
from k3agent.agent.testruns import idle_check, last_run
from k3agent.agent.transcript import Transcript
from k3agent.errors import ProviderError, ProviderErrorKind
from k3agent.events import CheckEnded, Noticed, TurnOutcome
from k3agent.providers.base import Profile
from k3agent.safety.fencing import fence
from k3agent.store.records import CallRow
from k3agent.types import Finish, Message, Origin, Role, SessionId

MAX_CONTINUES = 2
MIN_LOST_TOKENS = 64
UNFINISHED = "UNFINISHED"
CUT_CALLS = (
    "the answer was cut off at the output limit in the middle of its calls; none of them was run."
    " Make smaller calls."
)
CUT = "Your answer was cut off at the output limit"
CUT_TEXT = f"{CUT}. Go on from where it stopped. If that was inside a call, make it again with less in it."
# Some servers throw away a call that is not complete: next to nothing came, at the price of the limit.
CUT_CALL = (
    f"{CUT} before it was complete, so nothing of it was run. If you were making a call, make it again with"
    " less in it, for example a long file in several parts; think no longer than needed."
)
STOP_HOOK = "A hook of the user's, a script that runs when you are done, says that you are not. It says:"
MAX_STOP_HOOKS = 3
CLOSING = (
    "{detail}. This is your last answer in this run; tools are no longer run. Report in a few"
    " sentences what is done."
    f" If anything that was asked for is not done, begin with the word {UNFINISHED} and say what is left."
)
STOPPED = "k3agent stops this turn:"
STOP = (
    f"{STOPPED} {{reason}}. This is your last answer in it; tools are no longer run. Report in a few"
    " sentences what you tried, what is done and what is not. Claim nothing that no result above shows."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    outcome: TurnOutcome
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnParts:
    """What a turn works with."""

    transcript: Transcript
    context: Context
    compactor: Compactor
    stepper: Stepper
    dispatcher: Dispatcher
    hooks: Hooks
    limits: LimitPolicy
    repetition: RepetitionPolicy
    emitter: Emitter
    receipt: Receipt
    profile: Profile
    session_id: SessionId
    cwd: Path
    child_environ: Mapping[str, str]
    sandboxed: Callable[[list[str]], list[str]]
    checks: tuple[str, ...]
    check_files: CheckFiles
    check_retries: int
    # Whether the work can install a program that a check lacks.
    may_bring: Callable[[], bool]
    job_notices: Callable[[], list[str]]
    # Files that the user has brought back since the model last looked.
    restore_notices: Callable[[], list[str]]
    # Instruction files of folders that the model has come to.
    folder_instructions: Callable[[], list[str]]
    # Foreign tools that came after the session's start, told of once: by what the model can still read.
    late_tools: Callable[[], list[str]]
    mask: Callable[[str], str]
    # The calls of a turn, as they are stored.
    calls: Callable[[int], list[CallRow]]
    # The step of `undo` that takes back what a turn did to files.
    step_of_turn: Callable[[int, Collection[Path]], int | None]
    # What the user says into the running turn; taken out as the model gets it.
    steering: list[str]
    is_person_asked: bool


class TurnLoop:
    """Runs turn `turn`. `settled`: ends of calls that a killed process left open (resume.py)."""

    def __init__(self, parts: TurnParts, turn: int, settled: Mapping[str, CallRow] | None = None) -> None:
        self._parts = parts
        self._turn = turn
        self._settled = settled or {}
        # Set for the last answer of the turn, which only reports.
        self._closing: LimitReached | None = None
        self._is_stopped = False
        self._num_steps = 0
        # What is to be said of checks that passed in the last round.
        self._idle_checks: list[str] = []
        self._num_files = parts.receipt.num_files

    async def run(self) -> TurnEnd:
        """To the end of the turn. Raises ProviderError and StoreError; passes cancellation on."""
        end: TurnEnd | None = None
        try:
            end = await self._checked_again(await self._to_the_end())
            return end
        finally:
            receipt = self._parts.receipt
            files, receipt.files_note = await self._parts.dispatcher.changes.end()
            receipt.add_files(files)
            await self._remark(files, None if end is None else end.outcome)

    async def _remark(self, files: Sequence[str], outcome: TurnOutcome | None) -> None:
        """What k3agent itself has noticed, for people; the model is not told."""
        parts = self._parts
        messages = parts.transcript.messages
        is_good = outcome is TurnOutcome.SUCCESS and not parts.receipt.files_note
        answer = messages[-1].text if is_good and messages else ""
        prompt = next((one.text for one in reversed(messages) if one.origin is Origin.HUMAN), "")
        rows = parts.calls(self._turn)
        run = last_run(rows)
        line = None if run is None else {**run.line, "command": parts.mask(run.command)}
        parts.receipt.last_test_run = line
        # Where k3agent has made checks of its own, they say how it stands.
        tests = None if parts.checks else run
        remarks = parts.dispatcher.remarks
        same = await remarks.put_back(None if parts.receipt.files_note else files, rows)
        parts.receipt.drop_files(same, self._num_files)
        edited = {path for row in rows for path in row.files}
        files = [path for path in files if path not in same - edited]
        found = await remarks.at_end(files, rows, prompt, answer, tests)
        if outcome is TurnOutcome.CHECKS_FAILED or is_bad(found):
            changed = {*files, *edited} - same
            step = parts.step_of_turn(self._turn, [(parts.cwd / path).resolve() for path in changed])
            if step is not None:
                found.append(takes_back(step, parts.session_id))
        for remark in (*(Remark("tests", "none", idle) for idle in self._idle_checks), *found):
            text = parts.mask(remark.text)
            parts.receipt.remarks.append({"kind": remark.kind, "text": text})
            parts.emitter.emit(Noticed, level="warning", text=text, data=remark.data)

    async def _to_the_end(self) -> TurnEnd:
        leaf = self._parts.transcript.leaf
        if leaf is not None and leaf.role is Role.ASSISTANT:
            end = await self._after(leaf)
            if end is not None:
                return end
        while True:
            end = self._before() or await self._compact()
            if end is not None:
                return end
            message = await self._step()
            if message is None:
                return TurnEnd(
                    outcome=TurnOutcome.EXECUTION,
                    detail="the model gave no answer, only reasoning, also when asked again",
                )
            end = await self._after(message)
            if end is not None and not self._is_steered_on(end):
                return end
            self._num_steps += 1

    def _before(self) -> TurnEnd | None:
        """Limits, and what has to be said before the next model call."""
        parts = self._parts
        if parts.hooks.stop_reason:
            detail, parts.hooks.stop_reason = parts.hooks.stop_reason, ""
            return TurnEnd(outcome=TurnOutcome.INTERRUPTED, detail=f"a hook ended the turn: {detail}")
        reached = parts.limits.before_step(is_first=self._num_steps == 0)
        if reached is not None and not reached.is_closing:
            return TurnEnd(outcome=reached.outcome, detail=reached.detail)
        if self._num_steps >= COMPACT_STEPS and parts.profile is Profile.COMPACT and parts.limits.is_open:
            detail = f"the model made {COMPACT_STEPS} calls in one turn, the most that a small model is given"
            return TurnEnd(
                outcome=TurnOutcome.MAX_TURNS,
                detail=f"{detail} without --max-turns. {parts.repetition.account()}",
            )
        while parts.steering:
            parts.transcript.add(parts.transcript.user(parts.steering.pop(0)))
            # The user's words are new: looking at the same things again is no circle.
            parts.repetition.restart()
        for notice in parts.job_notices():
            parts.emitter.emit(Noticed, level="info", text=notice)
            if parts.profile is Profile.FULL:
                parts.transcript.add(parts.transcript.harness(notice))
        for notice in parts.restore_notices():
            parts.emitter.emit(Noticed, level="info", text=notice)
            parts.transcript.add(parts.transcript.harness(notice))
        for text in parts.folder_instructions():
            parts.emitter.emit(Noticed, level="info", text=text.partition(",")[0])
            parts.transcript.add(parts.transcript.harness(text))
        if reached is not None and self._closing is None:
            self._closing = reached
            detail = reached.detail[:1].upper() + reached.detail[1:]
            parts.transcript.add(parts.transcript.harness(CLOSING.format(detail=detail)))
            parts.emitter.emit(Noticed, level="warning", text=f"{detail}: one closing answer follows.")
        return None

    def _is_steered_on(self, end: TurnEnd) -> bool:
        """The model was done, but the user has said something meanwhile."""
        is_done = end.outcome is TurnOutcome.SUCCESS and self._closing is None
        return is_done and bool(self._parts.steering) and self._parts.limits.may_step()

    async def _compact(self) -> TurnEnd | None:
        """Make the context short if it is time; the turn ends where that does not help."""
        compactor = self._parts.compactor
        problem = await compactor.before_step(self._turn, may_ask=self._may_ask())
        return None if not problem else TurnEnd(outcome=TurnOutcome.THRASH, detail=problem)

    def _may_ask(self) -> bool:
        return self._closing is None and self._parts.limits.may_step()

    async def _step(self) -> Message | None:
        parts = self._parts
        # After a compaction, which may have taken it out of the model's sight.
        for text in parts.late_tools() if self._closing is None else ():
            parts.transcript.add(parts.transcript.harness(text))
        limit = CLOSING_OUTPUT_TOKENS if self._closing else None
        request = parts.context.request(parts.transcript.messages, max_output_tokens=limit)
        try:
            result = await parts.stepper.run(request, self._turn)
        except ProviderError as error:
            if error.kind is not ProviderErrorKind.OVERFLOW or not parts.limits.may_step():
                raise
            if not await parts.compactor.after_overflow(self._turn, str(error), may_ask=self._may_ask()):
                raise
            request = parts.context.request(parts.transcript.messages, max_output_tokens=limit)
            result = await parts.stepper.run(request, self._turn)
        return result.message if result.is_usable else None

    async def _after(self, message: Message) -> TurnEnd | None:
        """Act on an answer. None: the turn goes on with another step."""
        parts = self._parts
        settled, self._settled = self._settled, {}
        if message.finish is Finish.INTERRUPTED:
            # Only after a crash: the turn was being interrupted when the process died.
            if message.calls:
                parts.dispatcher.refuse(message, "Not run: the turn was interrupted.", settled)
            return TurnEnd(outcome=TurnOutcome.INTERRUPTED, detail="the turn had been interrupted")
        if message.finish is Finish.CONTENT_FILTER:
            if message.calls:
                parts.dispatcher.refuse(message, "Not run: the answer was stopped by a content filter.")
            return TurnEnd(
                outcome=TurnOutcome.PROVIDER, detail="the answer was stopped by the endpoint's content filter"
            )
        if message.calls:
            return await self._run_calls(message, settled)
        if message.finish is Finish.LENGTH:
            return self._continue_text(message)
        if self._closing is not None and (self._is_stopped or message.text.lstrip().startswith(UNFINISHED)):
            return TurnEnd(outcome=self._closing.outcome, detail=self._closing.detail)
        if self._is_blocked():
            return TurnEnd(
                outcome=TurnOutcome.PERMISSION,
                detail="the model stopped after a call that needed an answer or a permission nobody gave",
            )
        return await self._check()

    def _is_blocked(self) -> bool:
        # Where a person answers, a refusal is their wish and no obstacle.
        return not self._parts.is_person_asked and self._parts.repetition.was_blocked()

    async def _run_calls(self, message: Message, settled: Mapping[str, CallRow]) -> TurnEnd | None:
        parts = self._parts
        if self._closing is not None:
            parts.dispatcher.refuse(message, f"Not run: {self._closing.detail.rstrip('.')}.")
            return TurnEnd(outcome=self._closing.outcome, detail=self._closing.detail)
        if message.finish is Finish.LENGTH:
            parts.dispatcher.refuse(message, CUT_CALLS)
            return None
        await parts.dispatcher.run(message, settled)
        reason = parts.repetition.end_reason()
        return None if reason is None else self._stop(reason)

    def _stop(self, reason: str) -> TurnEnd | None:
        """The turn does not get on. A large model may report before it ends; a small one would invent."""
        parts = self._parts
        detail = f"{reason}. {parts.repetition.account()}"
        outcome = TurnOutcome.PERMISSION if self._is_blocked() else TurnOutcome.EXECUTION
        is_told = self._parts.transcript.num_said(STOPPED) > 0
        if parts.profile is Profile.COMPACT or is_told or not parts.limits.may_step():
            return TurnEnd(outcome=outcome, detail=detail)
        self._closing = LimitReached(outcome=outcome, detail=detail, is_closing=True)
        self._is_stopped = True
        parts.transcript.add(parts.transcript.harness(parts.mask(STOP.format(reason=reason))))
        parts.emitter.emit(
            Noticed, level="warning", text=f"Stopped: {parts.mask(reason)}. One closing answer follows."
        )
        return None

    def _continue_text(self, message: Message) -> TurnEnd | None:
        parts = self._parts
        if self._closing is not None:
            return TurnEnd(outcome=self._closing.outcome, detail=self._closing.detail)
        said = self._parts.transcript.num_said(CUT)
        if parts.profile is Profile.COMPACT or said >= MAX_CONTINUES:
            return TurnEnd(outcome=TurnOutcome.EXECUTION, detail=_cut_detail(message))
        parts.transcript.add(parts.transcript.harness(CUT_CALL if _has_lost_a_call(message) else CUT_TEXT))
        return None

    async def _check(self) -> TurnEnd | None:
        """Run the checks; failures go back to the model, a limited number of times."""
        parts = self._parts
        failed = await self._failed_checks()
        if not failed:
            return await self._stop_hooks()
        missing = self._missing(failed)
        end = TurnEnd(outcome=TurnOutcome.CHECKS_FAILED, detail=missing or checks.named(failed))
        # A program that cannot come is nothing that the work could make right.
        if missing and not parts.may_bring():
            return end
        if self._closing is not None or self._parts.transcript.num_said(checks.HEAD) >= parts.check_retries:
            return end
        if not parts.limits.may_step():
            return end
        parts.transcript.add(parts.transcript.harness(parts.mask(checks.failure_text(failed))))
        # What the check said is new: looking at the same things again is no circle.
        parts.repetition.restart()
        return None

    def _missing(self, failed: Sequence[checks.CheckResult]) -> str:
        """Why a check could not run at all, or ''."""
        for check in failed:
            if check.exit_code == checks.NOT_FOUND:
                name = checks.missing_program(check.command, self._parts.child_environ)
                if name:
                    return checks.missing_text(check.command, name)
        return ""

    async def _stop_hooks(self) -> TurnEnd | None:
        """The good end, unless a hook has the model go on: a limited number of times."""
        parts = self._parts
        said = parts.transcript.num_said(STOP_HOOK)
        is_open = self._closing is None and said < MAX_STOP_HOOKS and parts.limits.may_step()
        leaf = parts.transcript.leaf
        reason = await parts.hooks.stopping("" if leaf is None else leaf.text, is_again=said > 0)
        if not reason or not is_open or parts.profile is Profile.COMPACT:
            return TurnEnd(outcome=TurnOutcome.SUCCESS)
        parts.transcript.add(
            parts.transcript.harness(f"{STOP_HOOK}\n\n{fence(parts.mask(reason), 'a hook')}")
        )
        parts.repetition.restart()
        return None

    async def _checked_again(self, end: TurnEnd) -> TurnEnd:
        """A turn that was stopped after the model had said done: it counts whether the checks pass now."""
        if end.outcome is not TurnOutcome.EXECUTION or not self._parts.transcript.num_said(checks.HEAD):
            return end
        failed = await self._failed_checks()
        if not failed:
            return end
        detail = f"{checks.named(failed)}; {end.detail}"
        return TurnEnd(outcome=TurnOutcome.CHECKS_FAILED, detail=detail)

    async def _failed_checks(self) -> list[checks.CheckResult]:
        """Run all checks, and note how each came out."""
        parts = self._parts
        results = [parts.check_files.result()] if parts.checks else []
        parts.receipt.checks = []
        for command in parts.checks:
            parts.emitter.emit(Noticed, level="info", text=f"Check: {command}", data={"check": command})
            results.append(await checks.run_check(command, parts.cwd, parts.child_environ, parts.sandboxed))
        for result in filter(None, results):
            parts.emitter.emit(
                CheckEnded,
                command=result.command,
                exit_code=result.exit_code,
                output=parts.mask(result.output),
            )
            parts.receipt.checks.append(
                {
                    "command": parts.mask(result.command),
                    "exit_code": result.exit_code,
                    "passed": result.has_passed,
                }
            )
        failed = [result for result in results if result is not None and not result.has_passed]
        passed = () if failed else filter(None, results)
        self._idle_checks = list(filter(None, (idle_check(one.command, one.output) for one in passed)))
        return failed


def reports_only(messages: Sequence[Message]) -> bool:
    """Whether the last answer is the closing one of a turn that was stopped, and not its good end."""
    if not messages or messages[-1].role is not Role.ASSISTANT or messages[-1].calls:
        return False
    asked = messages[-2] if len(messages) > 1 else messages[-1]
    is_stopped = asked.origin is Origin.HARNESS and asked.text.startswith(STOPPED)
    return is_stopped or messages[-1].text.lstrip().startswith(UNFINISHED)


def _cut_detail(message: Message) -> str:
    """Why a turn ends with an answer that was cut off. More room would only be filled with the same again."""
    reasoning = message.reasoning.text if message.reasoning is not None else ""
    if repeats_itself(message.text.strip() or reasoning):
        return (
            "the model repeats itself until its answer is cut off at the output limit; a request in other"
            " words may help"
        )
    return "the answer was cut off at the output limit; --max-output-tokens raises it"


def _has_lost_a_call(message: Message) -> bool:
    """Whether an answer that was cut off is missing more than its end: no text, or far less than was made."""
    if not message.text.strip():
        return True
    made = message.usage.output_tokens if message.usage is not None else 0
    reasoning = message.reasoning.text if message.reasoning is not None else ""
    # A token of text is seldom shorter than one character.
    return made > max(MIN_LOST_TOKENS, len(message.text) + len(reasoning))
