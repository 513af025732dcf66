"""`skill`: loads the text of one of the user's skills."""

from __future__ import annotations

from pydantic import Field

from k3agent.tools.base import Access, Args, ToolContext, ToolOutput
from k3agent.tools.support.truncate import one_line


class SkillArgs(Args):
    name: str = Field(min_length=1, description="The skill's name, as it is listed.")


class SkillTool:
    name = "skill"
    args = SkillArgs
    is_read_only = True

    def describe(self, args: SkillArgs) -> str:
        return one_line(f"skill {args.name}")

    def access(self, args: SkillArgs, ctx: ToolContext) -> Access:
        return Access()

    async def run(self, args: SkillArgs, ctx: ToolContext) -> ToolOutput:
        return ToolOutput(text=ctx.knowledge.skill(args.name))
