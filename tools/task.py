"""`task`: hands tasks to subagents, each a session of its own with a brief, a budget and a folder."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from k3agent.errors import ToolError
from k3agent.tools.base import Access, Args, ToolContext, ToolOutput
from k3agent.tools.support import truncate
from k3agent.types import TaskBrief, TaskReport

MAX_TASKS = 16
MAX_ANSWER_CHARS = 12_000


class TaskItem(Args):
    title: str = Field(min_length=1, max_length=80, description="A few words for people.")
    brief: str = Field(
        min_length=1, description="All that the subagent is told: it sees nothing of this conversation."
    )
    mode: Literal["read", "write"] = Field(default="read", description="write: it may change files.")
    folder: str = Field(default=".", description="It works here and can write nowhere else. Default: all.")
    worktree: bool = Field(
        default=False, description="Work in a copy of the repository; its changes are brought back."
    )
    after: list[int] = Field(
        default_factory=list, description="Numbers of tasks in this list, from 1, that must be done first."
    )
    continues: int | None = Field(
        default=None, ge=1, description="Number of a task that was not done: it goes on, told this brief."
    )
    max_turns: int | None = Field(default=None, ge=2, description="Most model calls.")
    max_usd: float | None = Field(default=None, ge=0.001, description="Most money, in US dollars.")


class TaskArgs(Args):
    tasks: list[TaskItem] = Field(min_length=1, max_length=MAX_TASKS, description="The tasks.")


class TaskTool:
    name = "task"
    args = TaskArgs
    is_read_only = False

    def describe(self, args: TaskArgs) -> str:
        titles = truncate.one_line(", ".join(item.title for item in args.tasks))
        return f"task: {titles}" if len(args.tasks) == 1 else f"{len(args.tasks)} tasks: {titles}"

    def access(self, args: TaskArgs, ctx: ToolContext) -> Access:
        """What subagents do is judged call by call, when they do it."""
        return Access()

    async def run(self, args: TaskArgs, ctx: ToolContext) -> ToolOutput:
        briefs = [_brief(item) for item in args.tasks]
        _check_order(briefs)
        reports = await ctx.spawn(briefs)
        files = tuple(dict.fromkeys(path for report in reports for path in report.files))
        data = {"tasks": [{"task": report.number, "session": report.session_id} for report in reports]}
        return ToolOutput(text="\n\n".join(map(told, reports)), files=files, data=data)


def _brief(item: TaskItem) -> TaskBrief:
    return TaskBrief(
        title=" ".join(item.title.split()),
        brief=item.brief,
        folder=item.folder,
        is_writing=item.mode == "write",
        has_worktree=item.worktree,
        after=tuple(item.after),
        max_turns=item.max_turns,
        max_usd=item.max_usd,
        continues=item.continues,
    )


def _check_order(briefs: list[TaskBrief]) -> None:
    """A task waits for earlier ones of its list only, so there can be no circle."""
    for number, brief in enumerate(briefs, 1):
        wrong = [other for other in brief.after if not 1 <= other < number]
        if wrong:
            raise ToolError(
                f"task {number} ({brief.title}) cannot come after {wrong[0]}: after takes numbers of tasks"
                f" that stand before it, from 1 to {number - 1}. Put the tasks in order."
            )


def told(report: TaskReport) -> str:
    """What the model is told of a task that has ended, or was left."""
    state = "done" if report.is_done else f"not done: {report.detail}"
    price = f", ${report.cost_usd:.4f}" if report.cost_usd else ""
    head = (
        f"[task {report.number}, {report.title}: {state} ({report.num_turns} model calls,"
        f" {report.num_tokens} tokens{price})]"
    )
    answer = report.answer.strip() or "(no answer)"
    if len(answer) > MAX_ANSWER_CHARS:
        cut = len(answer) - MAX_ANSWER_CHARS
        answer = f"{answer[:MAX_ANSWER_CHARS]}\n[... {cut} characters cut]"
    changed = f"\n[changed: {', '.join(report.files)}]" if report.files else ""
    return f"{head}\n{answer}{changed}"
