"""Sessions with subagents for tests: a model that answers each conversation by what it is about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from k3agent.providers.base import ModelInfo
from k3agent.types import Delta, Origin, Request
from support.agents import DONE, FULL, Answer, ReplayClient, call, step


@dataclass
class FleetClient:
    """`stories`: the first line of a conversation's prompt to its answers. `hook` is awaited before each
    answer with that line, the position and the request.
    """

    stories: Mapping[str, Sequence[Answer]]
    info: ModelInfo = FULL
    hook: Callable[[str, int], Any] | None = None
    asked: list[tuple[str, int]] = field(default_factory=list)
    requests: list[tuple[str, Request]] = field(default_factory=list)
    busy: int = 0
    most_busy: int = 0

    async def connect(self) -> None:
        return None

    async def aclose(self) -> None:
        return None

    async def stream(self, request: Request) -> AsyncIterator[Delta]:
        name = name_of(request)
        position = sum(message.origin is Origin.MODEL for message in request.messages)
        self.asked.append((name, position))
        self.requests.append((name, request))
        self.busy += 1
        self.most_busy = max(self.most_busy, self.busy)
        try:
            await asyncio.sleep(0)
            if self.hook is not None:
                await self.hook(name, position)
            client = ReplayClient(self.stories[name], info=self.info)
            async for delta in client.stream(request):
                yield delta
        finally:
            self.busy -= 1

    def count(self, name: str) -> int:
        return sum(asked == name for asked, _ in self.asked)


def name_of(request: Request) -> str:
    prompt = next(message for message in request.messages if message.origin is Origin.HUMAN)
    return prompt.text.splitlines()[0]


def item(title: str, **more: Any) -> dict[str, Any]:
    return {"title": title, "brief": f"Do {title}.", **more}


def fan_out(*items: dict[str, Any]) -> list[Answer]:
    return [step(call("task", tasks=list(items))), DONE]
