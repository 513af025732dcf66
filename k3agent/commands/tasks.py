"""`k3agent tasks`: the task graph of a session: state, evidence, cost."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

from k3agent.agent.tasks import PlanStep, TaskGraph, TaskNode, load_goals, load_steps
from k3agent.commands.actions import find_action
from k3agent.config.paths import data_home
from k3agent.errors import StoreError
from k3agent.headless.arguments import Parser, positive_int
from k3agent.headless.output import print_foreign
from k3agent.store.sessions import SessionStore
from k3agent.types import JsonObject, Origin, SessionId

MARKS = {"pending": "[ ]", "active": "[>]", "done": "[x]"}


def tasks(argv: Sequence[str]) -> int:
    """`k3agent tasks list|show`."""
    action, rest = find_action("tasks", "the task graph of a session", argv, {"list": _list, "show": _show})
    store = SessionStore(data_home(os.environ))
    try:
        return action(store, rest)
    finally:
        store.close()


def _list(store: SessionStore, argv: Sequence[str]) -> int:
    parser = Parser("tasks list", "What a session was asked, its steps, its subagents and their cost.")
    parser.add_argument("id", nargs="?", metavar="ID", help="the session (default: the newest here)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse(argv)
    session_id = _session(store, args.id)
    asks = _asks(store, session_id)
    nodes = TaskGraph(store, session_id).nodes()
    steps = load_steps(store, session_id)
    usd = sum(row.cost_usd or 0.0 for row in store.requests(session_id))
    if args.json:
        body = {
            "session_id": session_id,
            "asks": asks,
            "steps": [
                {"step": number, "owner": "main", **dataclasses.asdict(step)}
                for number, step in enumerate(steps, 1)
            ],
            "tasks": [_as_json(node, store) for node in nodes],
            "own_cost_usd": round(usd, 8),
            "cost_usd": round(usd + sum(node.cost_usd for node in nodes), 8),
        }
        print(json.dumps(body, ensure_ascii=False, indent=1))
        return 0
    total = usd + sum(node.cost_usd for node in nodes)
    rows = [f"session {session_id}  ${total:.4f}, of it subagents ${total - usd:.4f}"]
    for ask in asks:
        rows += _ask_rows(ask)
    rows += [_step_row(number, step) for number, step in enumerate(steps, 1)]
    rows += tree_rows(store, session_id)
    if not nodes and not steps:
        rows.append("no tasks")
    print_foreign("\n".join(rows) + "\n")
    return 0


def _show(store: SessionStore, argv: Sequence[str]) -> int:
    parser = Parser("tasks show", "A task: its brief, state, budget, evidence and answer.")
    parser.add_argument("id", metavar="ID", help="the session's id, or its beginning")
    parser.add_argument("number", nargs="?", type=positive_int, metavar="N", help="the task (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON array")
    args = parser.parse(argv)
    session_id = _session(store, args.id)
    nodes = TaskGraph(store, session_id).nodes()
    found = [node for node in nodes if args.number in (None, node.number)]
    if args.number is not None and not found:
        raise StoreError(
            f"session {session_id} has no task {args.number}; `k3agent tasks list {session_id}` shows them"
        )
    if args.json:
        print(json.dumps([_as_json(node, store) for node in found], ensure_ascii=False, indent=1))
        return 0
    print_foreign("\n\n".join(map(_whole, found)) + "\n" if found else "no tasks\n")
    return 0


def tree_rows(store: SessionStore, session_id: SessionId, depth: int = 0) -> list[str]:
    """The tasks of a session, each followed by those of its subagent."""
    rows: list[str] = []
    for node in TaskGraph(store, session_id).nodes():
        rows.append(f"{'      ' * depth}{_row(node)}")
        rows += tree_rows(store, node.child, depth + 1)
    return rows


def _session(store: SessionStore, prefix: str | None) -> SessionId:
    if prefix is not None:
        return store.resolve(prefix)
    row = store.latest(Path.cwd())
    if row is None:
        raise StoreError(f"no session of {Path.cwd()}; `k3agent sessions list` shows all")
    return row.id


def _asks(store: SessionStore, session_id: SessionId) -> list[JsonObject]:
    """What the user asked for, word by word, each with what the model made of it."""
    goals = {goal.message_id: goal for goal in load_goals(store, session_id)}
    asks: list[JsonObject] = []
    for message in store.messages(session_id):
        if message.origin is Origin.HUMAN:
            goal = goals.get(message.id)
            stated = {} if goal is None else {"goal": goal.goal, "criteria": list(goal.criteria)}
            changes = [] if goal is None else list(goal.history)
            asks.append({"ask": message.text, **stated, "changed_from": changes})
    return asks


def _ask_rows(ask: JsonObject) -> list[str]:
    rows = [f"asked: {_line(str(ask['ask']))}"]
    if ask.get("goal"):
        rows.append(f"  understood as: {_line(str(ask['goal']))}")
    rows += [f"  must hold: {_line(str(one))}" for one in ask.get("criteria", ())]
    rows += [
        f"  before, changed by the {old['changed_by']}: {_line(str(old['goal']))}"
        for old in ask["changed_from"]
    ]
    return rows


def _step_row(number: int, step: PlanStep) -> str:
    after = f"  after {', '.join(map(str, step.after))}" if step.after else ""
    shown = ""
    if step.status == "done":
        shown = (
            f"  shown by: {_line(str(step.evidence[-1]['what']))}" if step.evidence else "  nothing shows it"
        )
    return f"{MARKS[step.status]} {number}. {_line(step.text)}{after}{shown}"


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 100 else f"{line[:99]}…"


def _row(node: TaskNode) -> str:
    after = f"  after {', '.join(map(str, node.after))}" if node.after else ""
    words = f"  {_line(node.detail)}" if node.detail else ""
    return (
        f"{node.number:3}  {node.state.value:<11} {node.title}  (subagent, {node.num_turns} steps,"
        f" {node.num_tokens} tokens, ${node.cost_usd:.4f}){after}{words}"
    )


def _whole(node: TaskNode) -> str:
    budget = node.budget
    evidence = node.evidence
    rows = [
        _row(node).strip(),
        f"session   {node.child}",
        f"folder    {node.brief.folder}{'' if node.brief.is_writing else ' (reading only)'}",
        f"budget    {budget['turns']:,} model calls, {budget['tokens']:,} tokens, ${budget['usd']:g}",
    ]
    if evidence.get("files"):
        rows.append(f"changed   {', '.join(evidence['files'])}")
    if evidence.get("command"):
        rows.append(f"last run  {evidence['command']['command']} -> {evidence['command']['exit_code']}")
    rows += ["brief:", node.brief.brief]
    if node.answer:
        rows += ["answer:", node.answer]
    return "\n".join(rows)


def _as_json(node: TaskNode, store: SessionStore) -> JsonObject:
    return {
        "task": node.number,
        "title": node.title,
        "owner": "subagent",
        "state": node.state.value,
        "detail": node.detail,
        "after": list(node.after),
        "session_id": node.child,
        "call_id": node.call_id,
        "brief": node.brief.brief,
        "folder": node.brief.folder,
        "mode": "write" if node.brief.is_writing else "read",
        "worktree": node.place,
        "budget": node.budget,
        "num_turns": node.num_turns,
        "num_tokens": node.num_tokens,
        "cost_usd": round(node.cost_usd, 8),
        "evidence": node.evidence,
        "answer": node.answer,
        "tasks": [_as_json(one, store) for one in TaskGraph(store, node.child).nodes()],
    }
