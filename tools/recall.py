"""`recall`: looks for words in earlier sessions of this repository."""

from __future__ import annotations

from pydantic import Field

from k3agent.tools.base import Access, Args, ToolContext, ToolOutput
from k3agent.tools.support.truncate import one_line


class RecallArgs(Args):
    words: str = Field(min_length=1, max_length=200, description="Words that stood there, e.g. a name.")
    limit: int = Field(default=8, ge=1, le=50, description="Most hits to give. Default 8.")


class RecallTool:
    name = "recall"
    args = RecallArgs
    is_read_only = True

    def describe(self, args: RecallArgs) -> str:
        return one_line(f"recall {args.words}")

    def access(self, args: RecallArgs, ctx: ToolContext) -> Access:
        return Access()

    async def run(self, args: RecallArgs, ctx: ToolContext) -> ToolOutput:
        return ToolOutput(text=await ctx.knowledge.recall(args.words, args.limit))
