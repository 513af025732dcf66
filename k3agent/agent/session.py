"""The façade that front ends use: opens sessions, begins and ends their turns.

One `Session` is one session in one process: it holds the session's lock until `aclose`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from k3agent.agent import building, foreign, resume
from k3agent.agent.dispatch import Dispatcher
from k3agent.agent.knowledge import memory_root
from k3agent.agent.loop import reports_only
from k3agent.agent.options import NO_LIMITS, Limits, Receipt, SessionOptions
from k3agent.agent.repetition import RepetitionPolicy
from k3agent.agent.sessionparts import SessionParts
from k3agent.agent.transcript import new_session_id
from k3agent.agent.undo import Undo
from k3agent.errors import K3AgentError, ProviderError
from k3agent.events import AnyEvent, Noticed, TurnEnded, TurnOutcome, TurnStarted
from k3agent.store.database import SessionLock
from k3agent.store.records import StoredSession
from k3agent.store.sessions import SessionStore
from k3agent.types import Finish, ImagePart, MessageId, Role, SessionId

__all__ = ["NO_LIMITS", "Limits", "Receipt", "Session", "SessionOptions"]

GO_ON = "Go on with the task from where you stopped."


class Session(SessionParts):
    """Made by `create`, `resume` or `fork`. Not thread-safe: one event loop, one turn at a time."""

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

    async def _open_child(self, options: SessionOptions, child: SessionId) -> Session:
        if self._store.exists(child):
            return await Session.resume(child, options)
        return await Session.create(options, session_id=child)

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
        # A turn that was interrupted behind its last answer has only its checks left.
        is_last = leaf is not None and leaf.finish is Finish.STOP and last.outcome == TurnOutcome.INTERRUPTED
        is_ended = last.outcome is not None and not is_last
        if is_answer and (is_ended or reports_only(transcript.messages)):
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
