"""A stored conversation as blocks, for a session that is gone on with."""

from __future__ import annotations

import json
from collections.abc import Iterable

from k3agent.tui.widgets.answer import AnswerBlock
from k3agent.tui.widgets.block import Block
from k3agent.tui.widgets.message import DraftBlock, NoticeBlock, UserBlock
from k3agent.tui.widgets.reasoning import ReasoningBlock
from k3agent.tui.widgets.toolcall import ToolBlock
from k3agent.types import (
    Finish,
    ImagePart,
    Message,
    Origin,
    ReasoningPart,
    Role,
    TextPart,
    ToolCall,
    ToolResult,
)

_ENDS = (
    ("Interrupted before it finished", "stopped"),
    ("Not run: ", "stopped"),
    ("permission denied", "denied"),
)


def blocks_of(messages: Iterable[Message], *, draws_images: bool = True) -> list[Block]:
    """Oldest first. Results go into the blocks of their calls."""
    blocks: list[Block] = []
    calls: dict[str, ToolBlock] = {}
    for message in messages:
        if message.role is Role.TOOL:
            for result in message.results:
                block = calls.get(result.call_id)
                if block is not None:
                    block.end(_state(result), result.text, 0.0)
            continue
        for block in message_blocks(message, draws_images=draws_images):
            if isinstance(block, ToolBlock):
                calls[block.call_id] = block
            blocks.append(block)
    return blocks


def _state(result: ToolResult) -> str:
    """How a call ended, by the words that the harness itself puts before what a tool says."""
    if not result.is_error:
        return "done"
    return next((state for words, state in _ENDS if result.text.startswith(words)), "failed")


def message_blocks(message: Message, *, draws_images: bool = True) -> list[Block]:
    """The blocks of one message of user, harness or model."""
    if message.role is Role.USER:
        if message.origin is Origin.HARNESS:
            return harness_blocks(message)
        images = [part for part in message.parts if isinstance(part, ImagePart)]
        return [UserBlock(message.text, images=images, message_id=message.id, draws_images=draws_images)]
    blocks: list[Block] = []
    for part in message.parts:
        match part:
            case ReasoningPart() if part.text.strip():
                blocks.append(ReasoningBlock(part.text))
            case TextPart() if part.text.strip():
                blocks.append(AnswerBlock(part.text))
            case ToolCall():
                blocks.append(ToolBlock(part.id, part.name, part.arguments))
            case _:
                continue
    if message.finish is Finish.INTERRUPTED:
        blocks.append(NoticeBlock("interrupted here", "warning", has_gap=False))
    return blocks


def draft_block(draft: str | None) -> DraftBlock | None:
    """What is shown of a draft (JSON of step.py); nothing where it has no words."""
    try:
        found = json.loads(draft or "{}")
    except ValueError:
        return None
    words = [str(found.get(name, "")).strip() for name in ("reasoning", "text")]
    text = "\n\n".join(part for part in words if part)
    return DraftBlock(text) if text else None


def harness_blocks(message: Message) -> list[Block]:
    from k3agent.agent.context import FACTS_HEAD  # lazy: with the agent, which is loaded by now
    from k3agent.agent.foreign import brief_of

    if message.text.startswith(FACTS_HEAD):
        return []
    return [NoticeBlock(brief_of(message.text) or message.text)]
