"""Runs one turn as a task of its own: whatever happens in it becomes an outcome, and its row is closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from k3agent.agent.dispatch import Dispatcher, Workbench
from k3agent.agent.loop import TurnEnd, TurnLoop, TurnParts
from k3agent.agent.options import Limits
from k3agent.agent.policies import reached
from k3agent.agent.repetition import RepetitionPolicy
from k3agent.errors import K3AgentError, ProviderError, ProviderErrorKind
from k3agent.events import TurnEnded, TurnOutcome
from k3agent.store.records import CallRow

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTime:
    """How long a run may take in all (None: as long as it likes), and how long it has taken."""

    limits: Limits
    elapsed_s: Callable[[], float]

    @property
    def left_s(self) -> float | None:
        limit_s = self.limits.max_time_s
        return None if limit_s is None else max(0.0, limit_s - self.elapsed_s())


class TurnRunner:
    """One turn at a time. `parts` gives what a turn works with, once its dispatcher is made."""

    def __init__(
        self,
        bench: Workbench,
        time: TurnTime,
        parts: Callable[[Dispatcher, RepetitionPolicy], TurnParts],
    ) -> None:
        self.error: K3AgentError | None = None
        self._bench = bench
        self._time = time
        self._parts = parts
        self._task: asyncio.Task[TurnEnded] | None = None
        self._dispatcher: Dispatcher | None = None
        self._interrupt_reason: str | None = None
        self._is_running = False

    @property
    def is_busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def interrupt(self, reason: str) -> None:
        """End the running turn: what has arrived is kept, open calls get results that say so. Safe at any
        time.
        """
        task = self._task
        if task is None or task.done():
            return
        if self._interrupt_reason is None:
            self._interrupt_reason = reason
            if self._dispatcher is not None:
                self._dispatcher.interrupt_reason = reason
        # A task that has not begun would be cancelled without a word; it sees the reason when it begins.
        if self._is_running:
            task.cancel()

    async def end(self, reason: str) -> None:
        """Interrupt the running turn, if there is one, and wait for its end."""
        task = self._task
        if task is not None and not task.done():
            self.interrupt(reason)
            with contextlib.suppress(asyncio.CancelledError, K3AgentError):
                await task

    async def run(self, turn: int, repetition: RepetitionPolicy, settled: Mapping[str, CallRow]) -> TurnEnded:
        """Turn `turn` to its end. `settled`: ends of calls that a killed process left open."""
        self._interrupt_reason = None
        self.error = None
        self._dispatcher = Dispatcher(self._bench, turn, repetition)
        loop = TurnLoop(self._parts(self._dispatcher, repetition), turn, settled)
        self._task = asyncio.create_task(self._turn(loop, turn))
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            # The caller is cancelled, not the turn: end the turn in good order first.
            if not self._task.done():
                self.interrupt("the caller was cancelled")
                with contextlib.suppress(asyncio.CancelledError):
                    await self._task
            raise

    async def _turn(self, loop: TurnLoop, turn: int) -> TurnEnded:
        """The turn's worker."""
        self._is_running = True
        timer = asyncio.timeout(self._time.left_s)
        end: TurnEnd
        try:
            if self._interrupt_reason is not None:
                raise asyncio.CancelledError
            async with timer:
                end = await loop.run()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            reason = self._interrupt_reason or "the turn was cancelled"
            end = self._cut_short(TurnOutcome.INTERRUPTED, reason)
        except ProviderError as error:
            overflow = error.kind is ProviderErrorKind.OVERFLOW
            end = self._failed(error, TurnOutcome.CONTEXT if overflow else TurnOutcome.PROVIDER)
        except K3AgentError as error:
            end = self._failed(error, TurnOutcome.EXECUTION)
        except Exception as error:
            if isinstance(error, TimeoutError) and timer.expired():
                end = self._cut_short(TurnOutcome.MAX_TIME, reached(self._time.limits, TurnOutcome.MAX_TIME))
            else:
                log.exception("the turn crashed")
                wrapped = K3AgentError(f"k3agent crashed: {type(error).__name__}: {error}")
                wrapped.__cause__ = error
                end = self._failed(wrapped, TurnOutcome.EXECUTION)
        finally:
            self._is_running = False
        bench = self._bench
        if bench.safekeeping is not None:
            await bench.safekeeping.end_turn(turn, bench.store)
        detail = bench.masker.mask(end.detail)
        bench.store.end_turn(bench.session_id, turn, end.outcome.value, detail)
        return bench.emitter.emit(TurnEnded, outcome=end.outcome, detail=detail)

    def _cut_short(self, outcome: TurnOutcome, detail: str) -> TurnEnd:
        """The end of a turn that was stopped. Calls of an answer that was being written get their results,
        but for those with subagents that can go on.
        """
        message, dispatcher = self._bench.transcript.open_calls(), self._dispatcher
        if message is not None and dispatcher is not None and not dispatcher.is_left_open(message):
            dispatcher.refuse(message, f"Not run: {detail}.")
        return TurnEnd(outcome=outcome, detail=detail)

    def _failed(self, error: K3AgentError, outcome: TurnOutcome) -> TurnEnd:
        self.error = error
        detail = self._bench.masker.mask(str(error))
        self._bench.receipt.errors.append(detail)
        return TurnEnd(outcome=outcome, detail=detail)
