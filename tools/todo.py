"""`todo`: the plan of the running task, replaced as a whole."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from k3agent.tools.base import Access, Args, ToolContext, ToolOutput

MARKS = {"pending": "[ ]", "active": "[>]", "done": "[x]"}


class TodoItem(Args):
    text: str = Field(min_length=1, description="The step.")
    status: Literal["pending", "active", "done"] = Field(description="Where it stands.")


class TodoArgs(Args):
    items: list[TodoItem] = Field(description="All steps, in order.")


class TodoTool:
    name = "todo"
    args = TodoArgs
    is_read_only = False

    def describe(self, args: TodoArgs) -> str:
        return f"todo: {sum(item.status == 'done' for item in args.items)} of {len(args.items)} done"

    def access(self, args: TodoArgs, ctx: ToolContext) -> Access:
        return Access()

    async def run(self, args: TodoArgs, ctx: ToolContext) -> ToolOutput:
        items = [item.model_dump() for item in args.items]
        ctx.todo[:] = items
        rows = [f"{MARKS[item.status]} {item.text}" for item in args.items]
        return ToolOutput(text="\n".join(rows) or "The list is empty.", data={"items": items})
