"""Runs the tasks of one call, each as a session of its own in this process.

The graph is in the store before anything starts, with the id of each subagent's session: after a kill the
same call finds its nodes there and goes on with those that are not over. While subagents work the session
that started them makes no model call.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from k3agent.agent.child import Child, Questions
from k3agent.agent.fanout import SharedClient
from k3agent.agent.options import Limits, SessionOptions, Subtask
from k3agent.agent.permissions import Action, Mode
from k3agent.agent.purse import Purse
from k3agent.agent.taskplan import SubagentParts, TaskPlan
from k3agent.agent.tasks import TaskGraph, TaskNode, TaskState
from k3agent.agent.worktrees import Worktree
from k3agent.errors import K3AgentError, ProviderError
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
from k3agent.types import Origin, Role, TaskBrief, TaskReport

if TYPE_CHECKING:  # tools bring pydantic, 0.1 s
    from k3agent.tools.base import Spawn

PAUSED = "the endpoint fails, so the tree of tasks is paused"
GOES_ON = "To have one that is not done go on where it stopped, start a task with its number in `continues`."


class Subagents:
    """Those of one session."""

    def __init__(self, parts: SubagentParts) -> None:
        self._parts = parts
        self._running: list[FanOut] = []

    def spawn(self, call_id: str) -> Spawn:
        """What the call `call_id` starts subagents with."""

        async def spawn(briefs: Sequence[TaskBrief]) -> list[TaskReport]:
            fan_out = FanOut(self._parts, call_id)
            self._running.append(fan_out)
            try:
                return await fan_out.run(briefs)
            finally:
                self._running.remove(fan_out)

        return spawn

    def left(self, call_id: str) -> str:
        """For the model, when a call is given up: how its subagents stand, and the answers of those that are
        done. '' for a call that has none.
        """
        nodes = self._nodes(call_id)
        if not nodes:
            return ""
        from k3agent.tools.task import told  # lazy: pydantic; loaded with the session

        more = "" if all(node.state is TaskState.DONE for node in nodes) else f"\n\n{GOES_ON}"
        return "\n\n" + "\n\n".join(told(_report(node)) for node in nodes) + more

    def wait_for_more(self, call_ids: Iterable[str]) -> bool:
        """Whether one of these calls has subagents that were stopped and can go on."""
        return any(not node.state.is_over for call_id in call_ids for node in self._nodes(call_id))

    def pause(self, failure: ProviderError) -> bool:
        """The endpoint that all share has failed elsewhere: subagents that run are stopped so that a resume
        goes on with them, and their calls stay open. Whether there are any.
        """
        for fan_out in self._running:
            fan_out.pause(failure)
        return bool(self._running)

    def _nodes(self, call_id: str) -> list[TaskNode]:
        return TaskGraph(self._parts.store, self._parts.session_id).nodes(call_id)


class FanOut:
    """The tasks of one call, from their plan to their reports."""

    def __init__(self, parts: SubagentParts, call_id: str) -> None:
        self._parts = parts
        self._call_id = call_id
        self._root = parts.root
        self._plan = TaskPlan(parts, call_id)
        self._graph = TaskGraph(parts.store, parts.session_id)
        self._woken = asyncio.Event()
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
        self._nodes = self._graph.nodes(self._call_id)
        if not self._nodes:
            self._nodes = await self._plan.nodes(briefs)
            self._graph.save(*self._nodes)
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

    def pause(self, failure: ProviderError) -> None:
        """Stop as where the own endpoint fails."""
        self._client.failure = self._client.failure or failure
        self._woken.set()

    # --- the work -----------------------------------------------------------------------------------------

    async def _work(self) -> None:
        running: dict[asyncio.Task[None], TaskNode] = {}
        woken = asyncio.create_task(self._woken.wait())
        try:
            while self._client.failure is None:
                self._give_up_followers()
                for node in self._ready(list(running.values())):
                    running[asyncio.create_task(self._run_node(node))] = node
                if not running:
                    return
                await asyncio.wait((*running, woken), return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in running if task.done()]:
                    del running[task]
                    task.result()
        finally:
            woken.cancel()
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
        first, second = self._plan.folder(one.brief), self._plan.folder(other.brief)
        return first.is_relative_to(second) or second.is_relative_to(first)

    async def _stop(self, running: dict[asyncio.Task[None], TaskNode]) -> None:
        """End what runs in good order: what has arrived is kept, open calls get their results."""
        failure = self._client.failure
        reason = PAUSED if failure is not None else "the turn that started it was interrupted"
        for task, node in running.items():
            child = self._busy.get(node.number)
            if child is not None:
                # One that waits for subagents of its own ends when they have ended.
                if failure is None or not child.pause(failure):
                    child.interrupt(reason)
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
            folder = self._plan.folder(node.brief)
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
        tree = parts.store.subtree(node.child)
        self._purse.open(node, [row for one in tree for row in parts.store.requests(one)])
        limits = self._purse.grant(node, waiting)
        child = await parts.open(self._options(node, folder, root, limits), node.child)
        try:
            child.subscribe(lambda event: self._event(node, child, event))
            self._busy[node.number] = child
            num_asked = sum(message.origin is Origin.HUMAN for message in child.messages)
            if num_asked >= node.num_asked:
                ended = await child.continue_turn(reopen=True)
            else:
                ended = await child.submit(node.words if num_asked else self._prompt(node, folder))
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
        parts, own = self._parts, self._parts.options
        mode = parts.permissions.mode if node.brief.is_writing else Mode.PLAN
        above = own.subtask
        side_by_side = min(len(self._nodes), own.tasks.max_parallel)
        return dataclasses.replace(
            own,
            cwd=folder,
            client=self._client,
            limits=limits,
            permission_mode=mode.value,
            checks=(),
            response_schema=None,
            extra_dirs=(),
            # What works at the same time in the whole tree is no more than what may.
            tasks=dataclasses.replace(own.tasks, max_parallel=max(1, own.tasks.max_parallel // side_by_side)),
            subtask=Subtask(
                parent=parts.session_id,
                number=node.number,
                depth=1 if above is None else above.depth + 1,
                rules_root=root if above is None else _rules_root(self._root, above.rules_root, root),
                walls=(self._root, *own.extra_dirs, *(above.walls if above else ())),
                readable=(root, *own.extra_dirs, *(above.readable if above else ())),
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
            case UsageChanged() | TaskChanged():
                # Also where subagents of its own have used something.
                self._purse.account(node, child.receipt)
                self._tell(node)
            case Noticed(level="warning"):
                emit(Noticed, level="warning", text=f"{node.title}: {event.text}", data=event.data)
            case ApprovalAsked():
                self._questions.put(node, child, event)
            case _:
                # The subagent's own session keeps the rest.
                return


def _rules_root(workspace: Path, rules_root: Path, root: Path) -> Path:
    """Where permission rules of a session in `workspace` begin if `root` stands for that workspace: as far
    above it.
    """
    if not workspace.is_relative_to(rules_root):
        return root
    depth = len(workspace.relative_to(rules_root).parts)
    return root.parents[depth - 1] if 0 < depth <= len(root.parents) else root


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
