"""Runs the tasks of one call, each as a session of its own in this process.

The graph is in the store before anything starts, with the id of each subagent's session: after a kill the
same call finds its nodes there and goes on with those that are not over. While subagents work the session
that started them makes no model call.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from k3agent.agent.approvals import Approvals
from k3agent.agent.child import Child, Questions
from k3agent.agent.emitter import Emitter
from k3agent.agent.fanout import SharedClient, project
from k3agent.agent.options import Limits, Receipt, SessionOptions, Subtask
from k3agent.agent.permissions import Action, Mode, Permissions
from k3agent.agent.policies import LimitPolicy
from k3agent.agent.purse import Purse
from k3agent.agent.tasks import TaskGraph, TaskNode, TaskState
from k3agent.agent.transcript import new_session_id
from k3agent.agent.worktrees import Worktree
from k3agent.errors import K3AgentError, ProviderError, ToolError
from k3agent.events import (
    AnyEvent,
    ApprovalAsked,
    CallProgressed,
    CallProposed,
    MessageAdded,
    Noticed,
    TaskChanged,
    TaskMessageAdded,
    TurnEnded,
    TurnOutcome,
    UsageChanged,
)
from k3agent.prompts.loader import render
from k3agent.store.sessions import SessionStore
from k3agent.types import Role, SessionId, TaskBrief, TaskReport

if TYPE_CHECKING:  # tools bring pydantic, 0.1 s
    from k3agent.tools.base import Spawn

PAUSED = "the endpoint fails, so the tree of tasks is paused"


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

    def spawn(self, call_id: str) -> Spawn:
        """What the call `call_id` starts subagents with."""

        async def spawn(briefs: Sequence[TaskBrief]) -> list[TaskReport]:
            return await FanOut(self, call_id).run(briefs)

        return spawn

    def left(self, call_id: str) -> str:
        """For the model, when a call is given up: how its subagents stand, and the answers of those that are
        done. '' for a call that has none.
        """
        nodes = TaskGraph(self.store, self.session_id).nodes(call_id)
        if not nodes:
            return ""
        from k3agent.tools.task import told  # lazy: pydantic; loaded with the session

        return "\n\n" + "\n\n".join(told(_report(node)) for node in nodes)


class FanOut:
    """The tasks of one call, from their plan to their reports."""

    def __init__(self, parts: SubagentParts, call_id: str) -> None:
        self._parts = parts
        self._call_id = call_id
        self._root = parts.options.cwd.resolve()
        self._graph = TaskGraph(parts.store, parts.session_id)
        self._client = SharedClient(parts.options.client)
        self._purse = Purse(parts.limits, parts.receipt)
        self._nodes: list[TaskNode] = []
        # Subagents in a turn, by the number of their node.
        self._busy: dict[int, Child] = {}
        self._questions = Questions(parts.approvals, parts.emitter)

    async def run(self, briefs: Sequence[TaskBrief]) -> list[TaskReport]:
        """All tasks to their end. Raises ToolError for a plan that cannot be, and ProviderError when the
        endpoint fails: then nothing is over that was not before, and running the same call again goes on.
        """
        self._nodes = self._graph.nodes(self._call_id) or await self._plan(briefs)
        for node in self._nodes:
            self._tell(node)
        try:
            await self._work()
        except BaseException:
            self._leave(TaskState.INTERRUPTED)
            raise
        failure = self._client.failure
        if failure is not None and (left := self._leave(TaskState.PAUSED)):
            raise ProviderError(
                f"{failure} {left} of {len(self._nodes)} tasks wait for it; resuming the session goes on"
                " with them.",
                kind=failure.kind,
                status=failure.status,
                retry_after_s=failure.retry_after_s,
                trace_id=failure.trace_id,
            )
        return [_report(node) for node in self._nodes]

    # --- the plan -----------------------------------------------------------------------------------------

    async def _plan(self, briefs: Sequence[TaskBrief]) -> list[TaskNode]:
        """The nodes, stored before anything starts. Their price is told first, and asked about if high."""
        for brief in briefs:
            self._folder(brief)
        await self._check_price(briefs)
        first = max((node.number for node in self._graph.nodes()), default=0) + 1
        nodes = [
            TaskNode(
                number=first + index,
                call_id=self._call_id,
                child=SessionId(new_session_id()),
                brief=brief,
                after=tuple(first + place - 1 for place in brief.after),
                budget=self._budget(brief),
            )
            for index, brief in enumerate(briefs)
        ]
        self._graph.save(*nodes)
        return nodes

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
        price = project(self._client.info, parts.fixed_tokens, plans)
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

    def _folder(self, brief: TaskBrief) -> Path:
        """Where the subagent works: a folder of the workspace, resolved."""
        path = (self._root / brief.folder).resolve()
        roots = (self._root, *(folder.resolve() for folder in self._parts.options.extra_dirs))
        if not any(path.is_relative_to(root) for root in roots):
            raise ToolError(f"{brief.title}: the folder {brief.folder} is outside the workspace.")
        if brief.has_worktree and not path.is_relative_to(self._root):
            raise ToolError(f"{brief.title}: {brief.folder} is outside the repository of the workspace.")
        territory = self._parts.permissions.territory
        # What is protected by its name would not be so for one whose workspace it is.
        refusal = territory.protected(path, is_write=True) or territory.runs_later(path, is_all=True)
        if refusal:
            raise ToolError(f"{brief.title}: {refusal}. Name a folder of the sources.")
        if not path.is_dir():
            raise ToolError(f"{brief.title}: {brief.folder} is no folder. Make it first, or name another.")
        return path

    # --- the work -----------------------------------------------------------------------------------------

    async def _work(self) -> None:
        running: dict[asyncio.Task[None], TaskNode] = {}
        try:
            while self._client.failure is None:
                self._give_up_followers()
                for node in self._ready(list(running.values())):
                    running[asyncio.create_task(self._run_node(node))] = node
                if not running:
                    return
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del running[task]
                    task.result()
        finally:
            await self._stop(running)

    def _give_up_followers(self) -> None:
        by_number = {node.number: node for node in self._nodes}
        for node in self._nodes:
            failed = [n for n in node.after if by_number[n].state is TaskState.FAILED]
            if failed and not node.state.is_over:
                before = by_number[failed[0]]
                node.state = TaskState.FAILED
                node.detail = f"task {before.number} ({before.title}), which it waits for, failed"
                self._keep(node)

    def _ready(self, running: list[TaskNode]) -> list[TaskNode]:
        """Nodes that may start now. Two that write in the same folder take turns."""
        done = {node.number for node in self._nodes if node.state is TaskState.DONE}
        busy = list(running)
        for node in self._nodes:
            if node in busy or node.state.is_over or not done.issuperset(node.after):
                continue
            if len(busy) >= self._parts.options.tasks.max_parallel:
                break
            if not any(self._collide(node, other) for other in busy):
                busy.append(node)
        return busy[len(running) :]

    def _collide(self, one: TaskNode, other: TaskNode) -> bool:
        if not all(node.brief.is_writing and not node.brief.has_worktree for node in (one, other)):
            return False
        first, second = self._folder(one.brief), self._folder(other.brief)
        return first.is_relative_to(second) or second.is_relative_to(first)

    async def _stop(self, running: dict[asyncio.Task[None], TaskNode]) -> None:
        """End what runs in good order: what has arrived is kept, open calls get their results."""
        reason = PAUSED if self._client.failure is not None else "the turn that started it was interrupted"
        for task, node in running.items():
            if node.number in self._busy:
                self._busy[node.number].interrupt(reason)
            elif not node.state.is_over:
                # What is over is being brought back; that comes to its end.
                task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _leave(self, state: TaskState) -> int:
        """All that is not over gets `state`, in one commit. Returns how many that are."""
        left = [node for node in self._nodes if not node.state.is_over]
        for node in left:
            node.state = state
        self._graph.save(*left)
        for node in left:
            self._tell(node)
        return len(left)

    async def _run_node(self, node: TaskNode) -> None:
        node.state = TaskState.RUNNING
        self._keep(node)
        try:
            copy = await self._copy(node)
            folder = self._folder(node.brief)
            root = self._root
            if copy is not None:
                folder, root = copy.workspace / folder.relative_to(root), copy.workspace
                # Git keeps no empty folders.
                folder.mkdir(parents=True, exist_ok=True)
            await self._run_child(node, folder, root)
            if copy is not None:
                await self._fold_in(node, copy)
        except (K3AgentError, OSError) as error:
            node.state, node.detail = TaskState.FAILED, str(error)
        if node.state.is_over:
            self._keep(node)

    async def _copy(self, node: TaskNode) -> Worktree | None:
        """The worktree of a node that has one, made if it is not there. Where it is is stored first."""
        if not node.brief.has_worktree:
            return None
        parts = self._parts
        home, is_new = parts.options.home, not parts.store.exists(node.child)
        copy = await asyncio.to_thread(Worktree.of, self._root, home, parts.session_id, node.number)
        if not node.base:
            node.base, node.place = await asyncio.to_thread(copy.snapshot), str(copy.place)
            self._graph.save(node)
        await asyncio.to_thread(copy.check_out, node.base, is_new=is_new)
        return copy

    async def _fold_in(self, node: TaskNode, copy: Worktree) -> None:
        """The end of a worktree: what a finished task made is brought back, anything else stays there."""
        if node.state is TaskState.DONE:
            node.evidence["files"] = []
            files = await asyncio.to_thread(copy.bring_back, node.base, self._refusal)
            node.evidence["files"] = list(files)
        elif node.state is TaskState.FAILED and not await asyncio.to_thread(copy.drop_unused, node.base):
            node.detail = f"{node.detail}; what it made is in {copy.place}"

    def _refusal(self, path: Path) -> str:
        """Why `path` may not be written here, or ''. That a person would be asked is no reason: the subagent
        has asked.
        """
        from k3agent.tools.base import Access  # lazy: pydantic; loaded with the session

        verdict = self._parts.permissions.judge("write", Access(writes=(path,)))
        is_refused = verdict.action is Action.DENY or verdict.by == "protection"
        return verdict.reason if is_refused else ""

    async def _run_child(self, node: TaskNode, folder: Path, root: Path) -> None:
        parts = self._parts
        waiting = sum(not other.state.is_over and other.number not in self._busy for other in self._nodes)
        self._purse.open(node, parts.store.requests(node.child))
        limits = self._purse.grant(node, waiting)
        child = await parts.open(self._options(node, folder, root, limits), node.child)
        try:
            child.subscribe(lambda event: self._event(node, child, event))
            self._busy[node.number] = child
            if child.messages:
                ended = await child.continue_turn(reopen=True)
            else:
                ended = await child.submit(self._prompt(node, folder))
            self._purse.account(node, child.receipt)
            self._settle(node, child, folder, ended)
        finally:
            self._questions.withdraw(node)
            self._purse.close(node)
            await child.aclose()
            # Only now: what is not busy may be cancelled, and would leave its session half closed.
            self._busy.pop(node.number, None)

    def _options(self, node: TaskNode, folder: Path, root: Path, limits: Limits) -> SessionOptions:
        """`root`: what stands for the workspace: it may be read, and rules are relative to it."""
        parts = self._parts
        mode = parts.permissions.mode if node.brief.is_writing else Mode.PLAN
        return dataclasses.replace(
            parts.options,
            cwd=folder,
            client=self._client,
            limits=limits,
            permission_mode=mode.value,
            checks=(),
            response_schema=None,
            extra_dirs=(),
            subtask=Subtask(
                parent=parts.session_id,
                number=node.number,
                rules_root=root,
                walls=(self._root, *parts.options.extra_dirs),
                readable=(root, *parts.options.extra_dirs),
            ),
        )

    def _prompt(self, node: TaskNode, folder: Path) -> str:
        brief = node.brief
        return render(
            "tasks/brief",
            title=brief.title,
            brief=brief.brief.strip(),
            folder=str(folder),
            is_writing=brief.is_writing,
        )

    def _settle(self, node: TaskNode, child: Child, folder: Path, ended: TurnEnded | None) -> None:
        """What the end of a subagent's turn means for its node. `ended` None: it was over before a kill."""
        outcome = TurnOutcome.SUCCESS if ended is None else ended.outcome
        if outcome is TurnOutcome.INTERRUPTED or (
            outcome is TurnOutcome.PROVIDER and self._client.failure is not None
        ):
            return
        node.state = TaskState.DONE if outcome is TurnOutcome.SUCCESS else TaskState.FAILED
        node.detail = "" if ended is None or outcome is TurnOutcome.SUCCESS else ended.detail or outcome.value
        last = next((item for item in reversed(child.messages) if item.role is Role.ASSISTANT), None)
        node.answer = "" if last is None or last.calls else last.text
        rows = self._parts.store.calls(node.child)
        found = dict.fromkeys([path for row in rows for path in row.files] + child.receipt.files_changed)
        node.evidence = {
            "message": None if last is None else last.id,
            "files": [self._shown(folder / path) for path in found],
            "command": child.receipt.last_command,
        }

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._root)) if path.is_relative_to(self._root) else str(path)

    # --- what is told of it -------------------------------------------------------------------------------

    def _keep(self, node: TaskNode) -> None:
        self._graph.save(node)
        self._tell(node)

    def _tell(self, node: TaskNode) -> None:
        self._parts.emitter.emit(
            TaskChanged,
            call_id=self._call_id,
            task=node.number,
            title=node.title,
            state=node.state.value,
            child=node.child,
            detail=node.detail,
            num_turns=node.num_turns,
            num_tokens=node.num_tokens,
            cost_usd=node.cost_usd,
        )

    def _event(self, node: TaskNode, child: Child, event: AnyEvent) -> None:
        """What a subagent's session tells, as far as it concerns the one that started it."""
        emit = self._parts.emitter.emit
        match event:
            case MessageAdded():
                emit(
                    TaskMessageAdded,
                    call_id=self._call_id,
                    task=node.number,
                    child=child.id,
                    message=event.message,
                )
            case CallProposed():
                text = f"{node.title}: {event.summary}\n"
                emit(CallProgressed, call_id=self._call_id, text=text)
            case UsageChanged():
                self._purse.account(node, child.receipt)
                self._tell(node)
            case Noticed(level="warning"):
                emit(Noticed, level="warning", text=f"{node.title}: {event.text}", data=event.data)
            case ApprovalAsked():
                self._questions.put(node, child, event)
            case _:
                # The subagent's own session keeps the rest.
                return


def _report(node: TaskNode) -> TaskReport:
    return TaskReport(
        number=node.number,
        title=node.title,
        is_done=node.state is TaskState.DONE,
        answer=node.answer,
        detail=node.detail if node.state.is_over else f"{node.state.value}, not finished",
        session_id=node.child,
        files=node.files,
        num_turns=node.num_turns,
        num_tokens=node.num_tokens,
        cost_usd=node.cost_usd,
    )
