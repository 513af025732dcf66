"""`memory`: facts that are kept for later sessions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from k3agent.errors import ToolError
from k3agent.tools.base import Access, Args, ToolContext, ToolOutput
from k3agent.tools.support.truncate import one_line


class MemoryArgs(Args):
    action: Literal["add", "remove", "list"] = Field(description="What to do.")
    text: str = Field(default="", max_length=500, description="For add: the fact, in one sentence.")
    number: int | None = Field(default=None, ge=1, description="For remove: the fact's number.")
    everywhere: bool = Field(default=False, description="It is about the user, not about this repository.")


class MemoryTool:
    name = "memory"
    args = MemoryArgs
    is_read_only = False

    def describe(self, args: MemoryArgs) -> str:
        return one_line(f"memory {args.action} {args.text or args.number or ''}".rstrip())

    def access(self, args: MemoryArgs, ctx: ToolContext) -> Access:
        if args.action == "list":
            return Access()
        # A number may be that of a fact about the user.
        return Access(keeps="everywhere" if args.everywhere or args.action == "remove" else "here")

    async def run(self, args: MemoryArgs, ctx: ToolContext) -> ToolOutput:
        knowledge = ctx.knowledge
        if args.action == "add":
            if not args.text.strip():
                raise ToolError("add needs text: the fact, in one sentence.")
            return ToolOutput(text=knowledge.remember(args.text, args.everywhere))
        if args.action == "remove":
            if args.number is None:
                raise ToolError("remove needs the number of the fact; list tells them.")
            return ToolOutput(text=knowledge.forget(args.number))
        return ToolOutput(text="\n".join(knowledge.memories()) or "Nothing is remembered.")
