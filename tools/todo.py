"""`todo`: the plan of the running task, replaced as a whole."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from k3agent.errors import ToolError
from k3agent.tools.base import Access, Args, ToolContext, ToolOutput

MARKS = {"pending": "[ ]", "active": "[>]", "done": "[x]"}


class TodoItem(Args):
    text: str = Field(min_length=1, description="The step.")
    status: Literal["pending", "active", "done"] = Field(description="Where it stands.")
    after: list[int] = Field(
        default_factory=list, description="Numbers of steps, from 1, that must be done before it."
    )


class TodoArgs(Args):
    items: list[TodoItem] = Field(description="All steps, in order.")
    goal: str = Field(default="", description="What the user asked for, as you understand it.")
    criteria: list[str] = Field(
        default_factory=list, description="What must be true at the end, each so that it can be checked."
    )


class TodoTool:
    name = "todo"
    args = TodoArgs
    is_read_only = False

    def describe(self, args: TodoArgs) -> str:
        return f"todo: {sum(item.status == 'done' for item in args.items)} of {len(args.items)} done"

    def access(self, args: TodoArgs, ctx: ToolContext) -> Access:
        return Access()

    async def run(self, args: TodoArgs, ctx: ToolContext) -> ToolOutput:
        _check_order(args.items)
        items = [item.model_dump(exclude_defaults=True) for item in args.items]
        remarks = await ctx.plan(args.goal.strip(), args.criteria, items)
        ctx.todo[:] = items
        rows = [f"{MARKS[item.status]} {item.text}" for item in args.items] or ["The list is empty."]
        return ToolOutput(text="\n".join([*rows, *remarks]), data={"items": items})


def _check_order(items: list[TodoItem]) -> None:
    """A step that has begun has all before it done; what it waits for stands above it."""
    for number, item in enumerate(items, 1):
        for other in item.after:
            if not 1 <= other < number:
                raise ToolError(
                    f"step {number} ({item.text}) cannot come after step {other}: after takes numbers of"
                    f" steps above it, from 1 to {number - 1}."
                )
            before = items[other - 1]
            if item.status != "pending" and before.status != "done":
                raise ToolError(
                    f"step {number} ({item.text}) is {item.status}, but it comes after step {other}"
                    f" ({before.text}), which is {before.status}. Finish that first, or change the order."
                )
