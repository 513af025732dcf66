"""Makes the nodes of the graph from what the model wants done: folders are checked, budgets given, and the
price is told first, and asked about where it is high.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from k3agent.agent.approvals import Approvals
from k3agent.agent.child import Child
from k3agent.agent.emitter import Emitter
from k3agent.agent.fanout import project
from k3agent.agent.options import Receipt, SessionOptions
from k3agent.agent.permissions import Permissions
from k3agent.agent.policies import LimitPolicy
from k3agent.agent.tasks import TaskGraph, TaskNode, TaskState
from k3agent.agent.transcript import new_session_id
from k3agent.errors import ToolError
from k3agent.events import Noticed
from k3agent.safety.paths import is_folder
from k3agent.store.sessions import SessionStore
from k3agent.types import Origin, SessionId, TaskBrief


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentParts:
    """What a session gives for its subagents. `fixed_tokens`: what each of its requests begins with; `open`
    resumes the session of that id, or makes it.
    """

    store: SessionStore
    session_id: SessionId
    emitter: Emitter
    receipt: Receipt
    approvals: Approvals
    permissions: Permissions
    limits: LimitPolicy
    options: SessionOptions
    fixed_tokens: int
    open: Callable[[SessionOptions, SessionId], Awaitable[Child]]

    @property
    def root(self) -> Path:
        return self.options.cwd.resolve()


class TaskPlan:
    """The plan of one call. Its refusals are ToolErrors, for the model."""

    def __init__(self, parts: SubagentParts, call_id: str) -> None:
        self._parts = parts
        self._call_id = call_id
        self._graph = TaskGraph(parts.store, parts.session_id)

    async def nodes(self, briefs: Sequence[TaskBrief]) -> list[TaskNode]:
        """The nodes, not yet stored. Their price is told first, and asked about if high."""
        known = {node.number: node for node in self._graph.nodes()}
        earlier = [self._earlier(brief, known, briefs) for brief in briefs]
        for brief in briefs:
            if brief.continues is None:
                self.folder(brief)
        await self._check_price(briefs)
        numbers: list[int] = []
        for brief in briefs:
            numbers.append(brief.continues or max([*known, *numbers], default=0) + 1)
        nodes: list[TaskNode] = []
        for number, brief, node in zip(numbers, briefs, earlier, strict=True):
            after = tuple(numbers[place - 1] for place in brief.after)
            nodes.append(self._new(number, brief, after) if node is None else self._again(node, brief, after))
        return nodes

    def _new(self, number: int, brief: TaskBrief, after: tuple[int, ...]) -> TaskNode:
        return TaskNode(
            number=number,
            call_id=self._call_id,
            child=SessionId(new_session_id()),
            brief=brief,
            after=after,
            budget=self._budget(brief),
        )

    def _again(self, node: TaskNode, brief: TaskBrief, after: tuple[int, ...]) -> TaskNode:
        """An earlier task that goes on: the same subagent in the same folder, with as much again to use."""
        store, budget = self._parts.store, self._budget(brief)
        messages = store.messages(node.child) if store.exists(node.child) else []
        used = {"turns": node.num_turns, "tokens": node.num_tokens, "usd": node.cost_usd}
        return dataclasses.replace(
            node,
            call_id=self._call_id,
            brief=dataclasses.replace(
                node.brief, brief=f"{node.brief.brief.rstrip()}\n\n{brief.brief.strip()}"
            ),
            words=brief.brief.strip(),
            num_asked=1 + sum(message.origin is Origin.HUMAN for message in messages),
            after=after,
            state=TaskState.WAITING,
            detail="",
            answer="",
            budget={name: used[name] + most for name, most in budget.items()},
        )

    def _earlier(
        self, brief: TaskBrief, known: dict[int, TaskNode], briefs: Sequence[TaskBrief]
    ) -> TaskNode | None:
        number = brief.continues
        if number is None:
            return None
        node = known.get(number)
        if node is None:
            have = ", ".join(map(str, known)) or "none"
            raise ToolError(f"{brief.title}: there is no task {number} to go on with; there are: {have}.")
        if node.state is TaskState.DONE:
            raise ToolError(f"{brief.title}: task {number} is done. Start a new one.")
        if sum(other.continues == number for other in briefs) > 1:
            raise ToolError(f"{brief.title}: task {number} can go on only once at a time.")
        return node

    def folder(self, brief: TaskBrief) -> Path:
        """Where the subagent works: a folder of the workspace, resolved."""
        root = self._parts.root
        try:
            path = (root / brief.folder).resolve()
        except (OSError, ValueError) as error:
            # A name that no file can have: too long, or with a NUL.
            raise ToolError(f"{brief.title}: {brief.folder[:80]!r} is no folder ({error}).") from error
        roots = (root, *(folder.resolve() for folder in self._parts.options.extra_dirs))
        if not any(path.is_relative_to(place) for place in roots):
            raise ToolError(f"{brief.title}: the folder {brief.folder} is outside the workspace.")
        if brief.has_worktree and not path.is_relative_to(root):
            raise ToolError(f"{brief.title}: {brief.folder} is outside the repository of the workspace.")
        territory = self._parts.permissions.territory
        # What is protected by its name would not be so for one whose workspace it is.
        refusal = territory.protected(path, is_write=True) or territory.runs_later(path, is_all=True)
        if refusal:
            raise ToolError(f"{brief.title}: {refusal}. Name a folder of the sources.")
        if not is_folder(path):
            raise ToolError(
                f"{brief.title}: {brief.folder[:80]} is no folder. Make it first, or name another."
            )
        return path

    def _budget(self, brief: TaskBrief) -> dict[str, float]:
        bounds = self._parts.options.tasks
        return {
            "turns": min(brief.max_turns or bounds.max_turns, bounds.max_turns),
            "tokens": bounds.max_tokens,
            "usd": min(brief.max_usd or bounds.max_usd, bounds.max_usd),
        }

    async def _check_price(self, briefs: Sequence[TaskBrief]) -> None:
        parts, bounds = self._parts, self._parts.options.tasks
        budgets = [self._budget(brief) for brief in briefs]
        plans = [
            (brief, int(each["turns"]), each["usd"]) for brief, each in zip(briefs, budgets, strict=True)
        ]
        price = project(parts.options.client.info, parts.fixed_tokens, plans)
        many = f"{len(briefs)} subagents" if len(briefs) > 1 else "1 subagent"
        parts.emitter.emit(
            Noticed,
            level="info",
            text=f"{many}: {price.text}.",
            data={"usd": round(price.usd, 6), "most_usd": round(price.most_usd, 6), "tokens": price.tokens},
        )
        left = parts.limits.for_subagents().max_budget_usd
        if left is not None and price.usd > left:
            raise ToolError(
                f"{many} would cost about ${price.usd:.2f}, and the budget has ${left:.2f} left for them."
                " Start fewer, or do it yourself."
            )
        if price.usd <= bounds.fan_out_usd and price.tokens <= bounds.fan_out_tokens:
            return
        question = f"Start {many}? They need {price.text}."
        try:
            answer = await parts.approvals.question(self._call_id, question, ("yes", "no"))
        except ToolError as error:
            raise ToolError(
                f"{many} would need {price.text}: more than may start unasked (tasks.fan_out_usd ="
                f" {bounds.fan_out_usd:g}, tasks.fan_out_tokens = {bounds.fan_out_tokens}), and nobody can be"
                " asked here. Start fewer or smaller ones."
            ) from error
        if answer.strip().casefold() not in ("yes", "y"):
            raise ToolError(f"the user does not want {many} for {price.text}: {answer}")
