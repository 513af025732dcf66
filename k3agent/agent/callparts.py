"""Small parts of running calls that need nothing of the dispatcher."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from k3agent.types import JsonObject

if TYPE_CHECKING:  # tools bring pydantic, 0.1 s
    from k3agent.tools.base import Access


async def side_by_side(calls: list[Any]) -> None:
    """All to their end, also when one fails or the turn is cancelled; then the first failure is raised."""
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def access_dict(access: Access) -> JsonObject:
    """What a call would touch, as it is stored."""
    return {
        "reads": [str(path) for path in access.reads],
        "writes": [str(path) for path in access.writes],
        "runs": access.runs,
        "connects": list(access.connects),
        **({} if access.calls is None else {"calls": access.calls}),
    }
