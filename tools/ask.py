"""`ask`: a question to the user. Where nobody can answer, the context raises `ToolError`."""

from __future__ import annotations

from pydantic import Field

from k3agent.tools.base import Access, Args, Question, ToolContext, ToolOutput
from k3agent.tools.support.truncate import one_line


class AskArgs(Args):
    question: str = Field(min_length=1, description="The question.")
    options: list[str] = Field(default=[], description="Answers to choose from, if they can be named.")
    default: str | None = Field(default=None, description="Taken where nobody answers.")


class AskTool:
    name = "ask"
    args = AskArgs
    is_read_only = True

    def describe(self, args: AskArgs) -> str:
        return one_line(f"ask: {args.question}")

    def access(self, args: AskArgs, ctx: ToolContext) -> Access:
        return Access()

    async def run(self, args: AskArgs, ctx: ToolContext) -> ToolOutput:
        question = Question(text=args.question, options=tuple(args.options), default=args.default or "")
        answer = await ctx.ask(question)
        return ToolOutput(text=answer.strip() or "(no answer)")
