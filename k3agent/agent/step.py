"""One model call: a stream of deltas in, one stored `Message` out.

Nothing of an answer is acted on before the stream has ended properly. Answers that cannot be used are
thrown away and asked for again with the same bytes: leaked channel markers once, an answer of reasoning
alone twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from k3agent import codec
from k3agent.agent.display import Display, MarkersLeaked
from k3agent.agent.emitter import Emitter
from k3agent.agent.markers import THINK
from k3agent.agent.masking import Masker
from k3agent.agent.options import Receipt
from k3agent.agent.transcript import Transcript, new_id
from k3agent.errors import ProviderError, ProviderErrorKind
from k3agent.events import (
    Noticed,
    PrefillProgressed,
    Retrying,
    UsageChanged,
)
from k3agent.providers.base import ModelClient
from k3agent.store.records import RequestRow
from k3agent.store.sessions import SessionStore
from k3agent.types import (
    CallDelta,
    Delta,
    Finish,
    Finished,
    JsonObject,
    Message,
    MessageId,
    Origin,
    Part,
    ProgressDelta,
    ReasoningDelta,
    ReasoningPart,
    Request,
    RetryDelta,
    Role,
    SessionId,
    TextDelta,
    TextPart,
    ToolCall,
    Usage,
)

DRAFT_EVERY_S = 1.0
# A long answer takes longer to save: then that comes less often, so many times what it took.
DRAFT_REST = 10
MAX_EMPTY_ANSWERS = 2
MAX_LEAKS = 1


@dataclass(slots=True)
class _OpenCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class Collector:
    """What has arrived of one answer. Reasoning and text are one part each, whatever the order of their
    pieces.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything: the attempt it came from is void."""
        self._kinds: list[str] = []
        self._reasoning: list[str] = []
        self._details: list[JsonObject] = []
        self._text: list[str] = []
        self._calls: dict[int, _OpenCall] = {}

    def add(self, delta: ReasoningDelta | TextDelta | CallDelta) -> str:
        """Take a piece up. Returns the tool name of a call's piece so far, else ''."""
        match delta:
            case ReasoningDelta():
                self._reasoning.append(delta.text)
                self._details.extend(delta.details or ())
                self._note("reasoning")
            case TextDelta():
                self._text.append(delta.text)
                self._note("text")
            case CallDelta():
                call = self._calls.setdefault(delta.index, _OpenCall())
                call.id = call.id or delta.id or ""
                call.name = call.name or delta.name or ""
                call.arguments.append(delta.arguments)
                return call.name
        return ""

    def _note(self, kind: str) -> None:
        if kind not in self._kinds:
            self._kinds.append(kind)

    @property
    def is_blank(self) -> bool:
        """No call and no visible text."""
        return not self._calls and not "".join(self._text).strip()

    def parts(self, is_taken: Callable[[str], bool]) -> tuple[Part, ...]:
        """The parts in the order in which they began. Calls get ids that no other call of the session has."""
        parts: list[Part] = []
        for kind in self._kinds:
            if kind == "reasoning" and (self._reasoning or self._details):
                parts.append(
                    ReasoningPart(text=_whole("".join(self._reasoning)), details=tuple(self._details) or None)
                )
            elif kind == "text" and any(self._text):
                parts.append(TextPart(text=_whole("".join(self._text))))
        own: set[str] = set()
        for index in sorted(self._calls):
            call = self._calls[index]
            call_id = _unique(call.id, is_taken, own)
            own.add(call_id)
            parts.append(ToolCall(id=call_id, name=call.name, arguments=_whole("".join(call.arguments))))
        return tuple(parts)

    def draft(self, masker: Masker) -> str:
        """All of it as JSON, but for an end that may become a secret."""

        def masked(pieces: list[str]) -> str:
            return masker.stream().feed("".join(pieces))

        calls = [[call.name, masked(call.arguments)] for call in self._calls.values()]
        return codec.dump({"reasoning": masked(self._reasoning), "text": masked(self._text), "calls": calls})


def _unique(call_id: str, is_taken: Callable[[str], bool], own: set[str]) -> str:
    if not call_id:
        return f"call_{new_id()}"
    found, number = call_id, 2
    while found in own or is_taken(found):
        found, number = f"{call_id}_{number}", number + 1
    return found


def _whole(text: str) -> str:
    """Joins surrogate halves that came in two pieces; a half alone becomes U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """`is_usable` is false when the model gave nothing but reasoning, also when asked again."""

    message: Message
    is_usable: bool


@dataclass(slots=True)
class _Attempt:
    """One model call that is going on."""

    turn: int
    model: str
    collector: Collector = field(default_factory=Collector)
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    clock: float = field(default_factory=time.monotonic)
    retries: int = 0


class Stepper:
    """Makes the model calls of a session and keeps their account."""

    def __init__(
        self,
        *,
        client: ModelClient,
        store: SessionStore,
        session_id: SessionId,
        transcript: Transcript,
        emitter: Emitter,
        receipt: Receipt,
        masker: Masker,
    ) -> None:
        self._client = client
        self._store = store
        self._session_id = session_id
        self._transcript = transcript
        self._emitter = emitter
        self._receipt = receipt
        self._masker = masker
        # Whether one more model call is within the limits: asked before an answer is asked for again.
        self.may_step: Callable[[], bool] = lambda: True

    async def run(self, request: Request, turn: int) -> StepResult:
        """The finished message, stored. Raises ProviderError; when cancelled, stores what had arrived
        first.
        """
        leaks = empties = 0
        while True:
            attempt = _Attempt(turn, request.model)
            self._receipt.num_turns += 1
            try:
                finished = await self._stream(request, attempt, finds_think=leaks == 0)
            except MarkersLeaked as leak:
                self._note(attempt, f"discarded: leaked {leak.marker}")
                leaks += 1
                if leaks > MAX_LEAKS or not self.may_step():
                    raise _leaks_on(leak.marker) from leak
                self._ask_again(leaks, f"the server leaked the marker {leak.marker} into the answer")
                continue
            except ProviderError as error:
                self._note(attempt, f"failed: {error.kind.value}")
                raise
            except asyncio.CancelledError:
                self._keep_partial(attempt)
                raise
            self._account(finished.usage)
            if finished.extra.get("notice"):
                self._emitter.emit(Noticed, level="warning", text=finished.extra["notice"])
            is_whole = finished.finish not in (Finish.LENGTH, Finish.CONTENT_FILTER)
            is_empty = is_whole and attempt.collector.is_blank
            if is_empty and empties < MAX_EMPTY_ANSWERS and self.may_step():
                empties += 1
                self._note(attempt, "discarded: reasoning only", finished.usage)
                self._ask_again(empties, "the answer held reasoning only")
                continue
            parts = attempt.collector.parts(self._transcript.has_call)
            message = self._message(parts, finished.finish, finished.usage, finished.model)
            self._transcript.add(message, request=self._row(attempt, "ok", finished.usage, message.id))
            return StepResult(message=message, is_usable=not is_empty)

    async def ask(self, request: Request, turn: int) -> tuple[str, float]:
        """A model call beside the conversation: (text, cost in USD). Nothing of it is shown or acted on.

        Raises ProviderError, also for an answer without text or one that was filtered.
        """
        attempt = _Attempt(turn, request.model)
        finished: Finished | None = None
        try:
            async with _closing(self._client.stream(request)) as deltas:
                async for delta in deltas:
                    match delta:
                        case ReasoningDelta() | TextDelta() | CallDelta():
                            attempt.collector.add(delta)
                        case RetryDelta():
                            attempt.retries += 1
                            attempt.collector.reset()
                        case Finished():
                            finished = delta
                        case ProgressDelta():
                            self._emitter.emit(PrefillProgressed, done=delta.done, total=delta.total)
        except ProviderError as error:
            self._note(attempt, f"failed: {error.kind.value}")
            raise
        except asyncio.CancelledError:
            self._note(attempt, "interrupted")
            raise
        if finished is None:
            self._note(attempt, "failed: no finish")
            raise ProviderError("the answer ended without a finish", kind=ProviderErrorKind.PROTOCOL)
        self._account(finished.usage)
        self._note(attempt, "compaction", finished.usage)
        parts = attempt.collector.parts(lambda _: False)
        text = "".join(part.text for part in parts if isinstance(part, TextPart)).strip()
        if not text or finished.finish is Finish.CONTENT_FILTER:
            raise ProviderError("the answer held no text", kind=ProviderErrorKind.PROTOCOL)
        return self._masker.mask(text), self._client.info.prices.cost_usd(finished.usage)

    async def warm(self, request: Request, turn: int) -> None:
        """Have the endpoint read a request; what it answers is thrown away. Raises ProviderError."""
        attempt = _Attempt(turn, request.model)
        usage: Usage | None = None
        outcome = "warm"
        try:
            async with _closing(self._client.stream(request)) as deltas:
                async for delta in deltas:
                    usage = delta.usage if isinstance(delta, Finished) else usage
        except ProviderError as error:
            outcome = f"failed: {error.kind.value}"
            raise
        except asyncio.CancelledError:
            outcome = "interrupted"
            raise
        finally:
            if usage is not None:
                self._account(usage)
            self._note(attempt, outcome, usage)

    def _keep_partial(self, attempt: _Attempt) -> None:
        """Interrupted: what the model has said stays, marked as cut short."""
        parts = attempt.collector.parts(self._transcript.has_call)
        if not parts:
            self._note(attempt, "interrupted")
            return
        message = self._message(parts, Finish.INTERRUPTED, None, attempt.model)
        self._transcript.add(message, request=self._row(attempt, "interrupted", None, message.id))

    def _note(self, attempt: _Attempt, outcome: str, usage: Usage | None = None) -> None:
        """The row of a model call that left no message."""
        self._store.add_request(self._session_id, self._row(attempt, outcome, usage, None))

    def _row(
        self, attempt: _Attempt, outcome: str, usage: Usage | None, message_id: MessageId | None
    ) -> RequestRow:
        seconds = time.monotonic() - attempt.clock
        self._receipt.duration_api_s += seconds
        self._receipt.num_unmeasured += usage is None
        return RequestRow(
            turn=attempt.turn,
            outcome=outcome,
            started_at=attempt.started_at,
            duration_s=seconds,
            message_id=message_id,
            model=attempt.model,
            usage=usage,
            cost_usd=None if usage is None else self._client.info.prices.cost_usd(usage),
            retries=attempt.retries,
        )

    def _message(self, parts: tuple[Part, ...], finish: Finish, usage: Usage | None, model: str) -> Message:
        return self._transcript.build(
            Role.ASSISTANT, Origin.MODEL, parts, model=model, finish=finish, usage=usage
        )

    def _ask_again(self, attempt: int, reason: str) -> None:
        self._emitter.emit(Noticed, level="warning", text=f"Asked again: {reason}.", data={"reason": reason})
        self._emitter.emit(Retrying, attempt=attempt, delay_s=0.0, reason=reason)

    def _account(self, usage: Usage) -> None:
        self._receipt.usage = self._receipt.usage + usage
        self._receipt.cost_usd += self._client.info.prices.cost_usd(usage)
        self._emitter.emit(
            UsageChanged, step=usage, total=self._receipt.usage, cost_usd=self._receipt.cost_usd
        )

    async def _stream(self, request: Request, attempt: _Attempt, *, finds_think: bool) -> Finished:
        """Read the stream to its end, telling of it piece by piece. Raises MarkersLeaked at the first
        marker.
        """
        collector = attempt.collector
        is_on = not self._transcript.knows_markers
        show = Display(self._emitter, self._masker, is_on=is_on, finds_think=finds_think)
        save_at = time.monotonic() + DRAFT_EVERY_S
        async with _closing(self._client.stream(request)) as deltas, show:
            async for delta in deltas:
                match delta:
                    case ReasoningDelta() | TextDelta() | CallDelta():
                        tool = collector.add(delta)
                        show.piece(delta, tool)
                        if (now := time.monotonic()) >= save_at:
                            self._store.save_draft(self._session_id, collector.draft(self._masker))
                            took = time.monotonic() - now
                            save_at = now + max(DRAFT_EVERY_S, DRAFT_REST * took)
                    case RetryDelta():
                        collector.reset()
                        attempt.retries += 1
                        show.reset()
                        self._emitter.emit(
                            Retrying, attempt=delta.attempt, delay_s=delta.delay_s, reason=delta.reason
                        )
                    case ProgressDelta():
                        self._emitter.emit(PrefillProgressed, done=delta.done, total=delta.total)
                    case Finished():
                        show.flush()
                        return delta
        raise ProviderError(
            "the model's answer ended without a finish; nothing of it was run",
            kind=ProviderErrorKind.PROTOCOL,
        )


@contextlib.asynccontextmanager
async def _closing(deltas: AsyncIterator[Delta]) -> AsyncIterator[AsyncIterator[Delta]]:
    """Close a generator that is left early, so that its connection goes too."""
    try:
        yield deltas
    finally:
        close = getattr(deltas, "aclose", None)
        if close is not None:
            await close()


def _leaks_on(marker: str) -> ProviderError:
    hint = "its reasoning parser" if marker in THINK else "its tool-call parser"
    return ProviderError(
        f"the server leaks the marker {marker} into its answers, also when asked again: check {hint}",
        kind=ProviderErrorKind.PROTOCOL,
    )
