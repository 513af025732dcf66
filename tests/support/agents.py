"""Sessions for tests: a workspace, a data folder, a model that answers by where the conversation stands."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k3agent import codec
from k3agent.agent.session import Session, SessionOptions
from k3agent.events import AnyEvent
from k3agent.prompts.loader import load
from k3agent.providers.base import ModelInfo, Prices, Profile
from k3agent.providers.scripted import ScriptedCall, ScriptedClient, Step
from k3agent.types import Delta, Finish, Finished, Message, Request, Role, Usage

FULL = ModelInfo(
    provider="scripted",
    model="scripted",
    base_url="scripted:",
    context_window=262_144,
    max_output_tokens=32_000,
    prices=Prices(input=1.0, cached_input=0.1, output=4.0),
)
COMPACT = ModelInfo(
    provider="scripted",
    model="nano",
    base_url="scripted:",
    context_window=16_384,
    max_output_tokens=2_048,
    profile=Profile.COMPACT,
    reads_instructions=False,
)

HEAD = load("compaction/head")

Answer = Step | Sequence[Delta | BaseException] | Callable[[Request], Any]


@dataclass
class ReplayClient:
    """Answers by the number of assistant messages in the request: a repeated request gets the same.

    An answer is a `Step`, a list of deltas (an exception in it is raised), or a function of the request that
    gives one of these. `attempts[n]`: answers for the first, second … time that position n is asked.
    """

    answers: Sequence[Answer] = ()
    attempts: dict[int, list[Answer]] = field(default_factory=dict)
    info: ModelInfo = FULL
    requests: list[Request] = field(default_factory=list)
    asked: dict[int, int] = field(default_factory=dict)

    async def connect(self) -> None:
        return None

    async def aclose(self) -> None:
        return None

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        check_request(request)
        self.requests.append(request)
        position = sum(message.role is Role.ASSISTANT for message in request.messages)
        count = self.asked[position] = self.asked.get(position, 0) + 1
        choices = self.attempts.get(position, [])
        answer: Any = choices[count - 1] if count <= len(choices) else self.answers[position]
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Step):
            client = ScriptedClient([answer], info=self.info)
            async for delta in client.stream(request):
                yield delta
            return
        for delta in answer:
            if isinstance(delta, BaseException):
                raise delta
            yield delta


def check_request(request: Request) -> None:
    """What a strict server demands: each call answered once, in order, directly after it."""
    messages = request.messages
    seen: set[str] = set()
    for index, message in enumerate(messages):
        ids = [call.id for call in message.calls]
        assert all(ids), f"message {index} has a call without id"
        assert len(set(ids)) == len(ids) and not seen & set(ids), f"call ids come twice: {ids}"
        seen |= set(ids)
        follower = messages[index + 1] if index + 1 < len(messages) else None
        if ids:
            assert follower is not None and follower.role is Role.TOOL, (
                f"calls of message {index} have no results"
            )
            assert [result.call_id for result in follower.results] == ids
            assert all(result.text or len(result.content) > 1 for result in follower.results)
        if message.role is Role.TOOL:
            assert index > 0 and messages[index - 1].calls, f"message {index}: results without calls"
        # What stands for messages that were left out has no place in the tree.
        if index > 1 or (index and messages[0].parent is None):
            assert message.parent == messages[index - 1].id
    assert messages[-1].role in (Role.USER, Role.TOOL)


def encoded(request: Request) -> str:
    """The request as one text in the order of the prompt, for prefix tests."""
    head = codec.dump([request.system, [codec.spec_to_dict(spec) for spec in request.tools], request.effort])
    return head + "".join(codec.message_to_json(message) for message in request.messages)


def check_prefixes(requests: Sequence[Request]) -> None:
    for earlier, later in itertools.pairwise(requests):
        assert encoded(later).startswith(encoded(earlier)), "a request is no prefix of the next one"


def call(name: str, /, **arguments: Any) -> ScriptedCall:
    return ScriptedCall(name=name, arguments=arguments)


def step(*calls: ScriptedCall, text: str = "", reasoning: str = "Thinking.") -> Step:
    return Step(text=text, reasoning=reasoning, calls=calls)


DONE = step(text="Done.")


def finished(finish: Finish = Finish.STOP, tokens: int = 10) -> Finished:
    return Finished(finish=finish, usage=Usage(input_tokens=tokens, output_tokens=tokens), model="scripted")


def options(root: Path, client: Any, **more: Any) -> SessionOptions:
    """Options over `root`/ws and `root`/home; permission mode auto."""
    workspace = root / "ws"
    workspace.mkdir(exist_ok=True)
    environ = {"PATH": os.environ["PATH"], "HOME": str(root / "user"), **more.pop("environ", {})}
    return SessionOptions(
        cwd=workspace,
        client=client,
        home=root / "home",
        environ=environ,
        **{"permission_mode": "auto", **more},
    )


class Run:
    """A session with its events."""

    def __init__(self, session: Session, client: Any, workspace: Path) -> None:
        self.session = session
        self.client = client
        self.workspace = workspace
        self.events: list[AnyEvent] = []
        session.subscribe(self.events.append)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, kind: type[Any], count: int = 1) -> None:
        """Wait until `count` events of this kind have come; fails after ten seconds."""
        if len(self.of(kind)) >= count:
            return
        found = asyncio.Event()
        self.session.subscribe(lambda _: found.set() if len(self.of(kind)) >= count else None)
        await asyncio.wait_for(found.wait(), 10)

    @property
    def results(self) -> list[str]:
        return [result.text for message in self.session.messages for result in message.results]

    @property
    def last(self) -> Message:
        return self.session.messages[-1]


async def start(root: Path, answers: Sequence[Answer] = (), **more: Any) -> Run:
    attempts = more.pop("attempts", {})
    client = more.pop("client", None) or ReplayClient(answers, attempts, more.pop("info", FULL))
    chosen = options(root, client, **more)
    return Run(await Session.create(chosen), client, chosen.cwd)


def story(messages: Sequence[Message]) -> list[Any]:
    """A transcript without what differs from run to run: ids and times."""
    return [
        (
            message.role.value,
            message.origin.value,
            message.text,
            message.reasoning.text if message.reasoning else None,
            [(item.name, item.arguments) for item in message.calls],
            [(result.text, result.is_error) for result in message.results],
        )
        for message in messages
    ]
