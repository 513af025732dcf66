"""A session of thousands of turns with many compactions, in one process: what must hold at each request does,
and what a turn costs late, in time and memory, is what it cost early.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from k3agent.agent.context import Context
from k3agent.agent.options import CompactAt, SessionOptions
from k3agent.agent.session import Session
from k3agent.events import TurnOutcome
from k3agent.prompts.loader import load
from k3agent.providers.base import ModelInfo
from k3agent.providers.dialects import OPEN
from k3agent.providers.encoding import RequestEncoder
from k3agent.soak.proof import ProofFailed
from k3agent.types import (
    CallDelta,
    Delta,
    Finish,
    Finished,
    Message,
    ReasoningDelta,
    Request,
    Role,
    TextDelta,
    Usage,
)

FACTS = (
    "The release is on 2026-03-01, not before.",
    "Never touch `legacy/ä`.",
    "Limits: 7 < x <= 11 && y != 3",
)
# Bytes of whole requests are compared at every so many of them; in between the messages themselves.
BYTES_EVERY = 40
NUM_BLOCKS = 10
# Fewer turns are over before anything could have grown.
MIN_FLAT_TURNS = 1_000
# Between a third of the turns and their end.
MAX_GROWTH_MB, MAX_SLOWER = 10.0, 3.0
CHARS_PER_TOKEN = 4
INFO = ModelInfo(
    provider="scripted", model="scripted", base_url="scripted:", context_window=262_144,
    max_output_tokens=32_000, why="the proof",
)  # fmt: skip


class _Cost(NamedTuple):
    """Of one turn in a block of them, and the process at its end."""

    cpu_ms: float
    rss_mb: float


def _reasoning(number: int) -> str:
    return f"‹{number}› " + f"I weigh what is said against what I see, {number}. " * (3 + number % 5)


@dataclass
class Model:
    """The scripted model; looks at every request before it answers."""

    info: ModelInfo = INFO
    num_answers: int = 0
    num_requests: int = 0
    num_compared: int = 0
    before: Sequence[Message] = ()
    said: dict[str, str] = field(default_factory=dict)
    _encoder: RequestEncoder = field(default_factory=lambda: RequestEncoder(OPEN))
    _earlier: Request | None = None

    async def connect(self) -> None:
        return None

    async def aclose(self) -> None:
        return None

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        self.num_requests += 1
        self._look(request)
        chars = sum(len(message.text) + 200 for message in request.messages)
        if request.messages[-1].text.strip() == load("compaction/ask").strip():
            yield TextDelta(text=f"All steps up to {self.num_answers} are done.")
            yield self._finished(Finish.STOP, chars)
            return
        self.num_answers += 1
        yield ReasoningDelta(text=_reasoning(self.num_answers))
        if request.messages[-1].role is Role.TOOL:
            yield TextDelta(text=f"Step {self.num_answers} is done. " + "It went as planned. " * 8)
            yield self._finished(Finish.STOP, chars)
            return
        name = f"f{self.num_answers % 7}.txt"
        call_id = f"call_{self.num_answers}"
        yield CallDelta(index=0, id=call_id, name="read", arguments=f'{{"path": "{name}"}}')
        yield self._finished(Finish.TOOL_CALLS, chars)

    def _finished(self, finish: Finish, chars: int) -> Finished:
        usage = Usage(input_tokens=chars // CHARS_PER_TOKEN, output_tokens=120)
        return Finished(finish=finish, usage=usage, model="scripted")

    def _look(self, request: Request) -> None:
        messages = request.messages
        is_ask = messages[-1].text.strip() == load("compaction/ask").strip()
        known = self.before if messages[0] is (self.before[0] if self.before else None) else ()
        for at, message in enumerate(known):
            if messages[at] is not message:
                raise ProofFailed(
                    f"request {self.num_requests}: message {at} is not that of the request before"
                )
        if not known and self.before:
            missing = [fact for fact in FACTS if fact not in messages[0].text]
            if missing:
                raise ProofFailed(f"request {self.num_requests}: pinned facts are gone: {missing}")
        _check_pairs(messages, max(0, len(known) - 2))
        for message in messages[len(known) :]:
            if message.role is Role.ASSISTANT:
                self._check_reasoning(message)
        if not is_ask:
            self._compare_bytes(request, is_new=not known)
            self.before = messages

    def _check_reasoning(self, message: Message) -> None:
        text = message.reasoning.text if message.reasoning is not None else ""
        number = text[1 : text.find("›")]
        if not number.isdigit() or text != _reasoning(int(number)):
            raise ProofFailed(f"request {self.num_requests}: reasoning is not whole: {text[:80]!r}")

    def _compare_bytes(self, request: Request, *, is_new: bool) -> None:
        """The encoded request begins with the encoded one before it, up to its last fields."""
        earlier, self._earlier = self._earlier, request
        if earlier is None or is_new or self.num_requests % BYTES_EVERY:
            return
        bodies = [
            self._encoder.body(one, self.info.context_window, self.info.max_output_tokens)
            for one in (earlier, request)
        ]
        end = bodies[0].rindex(b'],"max_completion_tokens"')
        if not bodies[1].startswith(bodies[0][:end]):
            raise ProofFailed(f"request {self.num_requests} does not begin with the bytes of the one before")
        self.num_compared += 1


def _check_pairs(messages: Sequence[Message], start: int) -> None:
    """Each call has one result, directly after it."""
    for message, follower in zip(messages[start:], [*messages[start + 1 :], None], strict=True):
        if not message.calls:
            continue
        results = [result.call_id for result in follower.results] if follower is not None else []
        if results != [call.id for call in message.calls]:
            raise ProofFailed(f"calls {[call.id for call in message.calls]} have the results {results}")


async def prove(
    root: Path, *, num_turns: int, compact_tokens: int, say: Callable[[str], None]
) -> Counter[str]:
    """`num_turns` turns of two model calls and one tool call each. Raises ProofFailed."""
    workspace = root / "workspace"
    workspace.mkdir(parents=True)
    for number in range(7):
        (workspace / f"f{number}.txt").write_text("".join(f"line {at} of {number}\n" for at in range(12)))
    model = Model()
    options = SessionOptions(
        cwd=workspace,
        client=model,
        home=root / "data",
        environ={"PATH": os.environ["PATH"], "HOME": str(root)},
        permission_mode="auto",
        compact_at=CompactAt(tokens=compact_tokens),
    )
    session = await Session.create(options)
    for fact in FACTS:
        session.compactor.pin(fact)
    block = max(1, num_turns // NUM_BLOCKS)
    costs: list[_Cost] = []
    cpu, began = time.process_time(), time.monotonic()
    for number in range(1, num_turns + 1):
        end = await session.submit(f"Step {number}: read the next file and say what it holds, please. " * 2)
        if end.outcome is not TurnOutcome.SUCCESS:
            raise ProofFailed(f"turn {number} ended with {end.outcome}: {end.detail}")
        if number % block == 0:
            cost = _Cost((time.process_time() - cpu) / block * 1000, _rss_mb())
            costs.append(cost)
            say(
                f"turns to {number}: {cost.cpu_ms:.1f} ms CPU and"
                f" {(time.monotonic() - began) / block * 1000:.1f} ms each, {cost.rss_mb:.0f} MB,"
                f" {len(session.receipt.compactions)} compactions, {len(model.before)} messages a request"
            )
            cpu, began = time.process_time(), time.monotonic()
    num_compactions = len(session.receipt.compactions)
    _check_flat(costs, num_turns)
    await _check_resume(session, options, model)
    return Counter(
        turns=num_turns,
        requests=model.num_requests,
        compactions=num_compactions,
        requests_compared_bytewise=model.num_compared,
    )


def _check_flat(costs: Sequence[_Cost], num_turns: int) -> None:
    """Late turns cost what early ones did, once the session has been compacted for the first time."""
    if num_turns < MIN_FLAT_TURNS:
        return
    early, late = costs[len(costs) // 3], costs[-1]
    if late.rss_mb - early.rss_mb > MAX_GROWTH_MB:
        raise ProofFailed(f"memory grew from {early.rss_mb:.0f} to {late.rss_mb:.0f} MB")
    if late.cpu_ms > MAX_SLOWER * early.cpu_ms:
        raise ProofFailed(f"a turn cost {early.cpu_ms:.1f} ms of CPU time, and later {late.cpu_ms:.1f} ms")


async def _check_resume(session: Session, options: SessionOptions, model: Model) -> None:
    """A new process would go on with the same bytes."""
    messages = list(session.messages)
    request = _next(session._context, messages)
    session_id = session.id
    await session.aclose()
    again = await Session.resume(session_id, options)
    try:
        if list(again.messages) != messages:
            raise ProofFailed("the resumed session has other messages")
        if _encoded(model, _next(again._context, list(again.messages))) != _encoded(model, request):
            raise ProofFailed("the resumed session asks with other bytes")
    finally:
        await again.aclose()


def _next(context: Context, messages: list[Message]) -> Request:
    return context.request(messages)


def _encoded(model: Model, request: Request) -> bytes:
    return RequestEncoder(OPEN).body(request, model.info.context_window, model.info.max_output_tokens)


def _rss_mb() -> float:
    status = Path("/proc/self/status")
    if not status.exists():
        return 0.0
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
