"""Parts of running calls that need nothing of the dispatcher: a call before it runs, what it came to."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from k3agent.agent.masking import Masker
from k3agent.errors import ToolError
from k3agent.store.records import CallState
from k3agent.types import ImagePart, JsonObject, ToolCall

if TYPE_CHECKING:  # tools bring pydantic, 0.1 s
    from k3agent.tools.base import Access, Args, Tool, ToolContext

STAND_IN = (
    "{names} stands for a secret that you are not shown, so it would be lost. Leave that text as it is:"
    " change only other lines, or let the program read the value from its variable or file."
)


def refuse_stand_ins(access: Access, masker: Masker, written: str) -> None:
    """Raises ToolError where a call with effects would pass on what only stands for a secret."""
    names = masker.stand_ins(written) if access.writes or access.runs or access.calls else []
    if names:
        raise ToolError(STAND_IN.format(names=", ".join(names)))


@dataclass(slots=True, kw_only=True)
class Prepared:
    """A call with checked arguments."""

    call: ToolCall
    tool: Tool[Any]
    args: Args
    note: str
    access: Access
    hashes: dict[str, str] = field(default_factory=dict)
    # The arguments that ran, when somebody changed them; the call itself stays as the model wrote it.
    edited: str = ""
    edited_by: str = "the user"
    # What hooks had to say before it ran.
    hooked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What a call came to, before it is masked and cut."""

    state: CallState
    text: str
    images: tuple[ImagePart, ...] = ()
    files: tuple[str, ...] = ()
    duration_s: float = 0.0
    exit_code: int | None = None

    @property
    def is_error(self) -> bool:
        return self.state is not CallState.DONE


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


async def mask_outputs(ctx: ToolContext, masker: Masker) -> None:
    """Whole outputs of commands lie on disk where they are long; secrets do not stay in them."""
    busy = {job.output for job in ctx.jobs.background.values() if job.ended is None}
    if any(path not in busy for path in ctx.output_dir.glob("output-*.txt")):
        await asyncio.to_thread(masker.mask_files, ctx.output_dir, busy)
