"""Tools and their arguments by the names that existing hook scripts know them by, and back."""

from __future__ import annotations

import fnmatch
from pathlib import Path

from k3agent.errors import nearest
from k3agent.types import JsonObject

TOOLS = {
    "shell": "Bash",
    "read": "Read",
    "write": "Write",
    "edit": "Edit",
    "patch": "MultiEdit",
    "grep": "Grep",
    "glob": "Glob",
    "task": "Task",
    "todo": "TodoWrite",
    "fetch": "WebFetch",
    "ask": "AskUserQuestion",
    "skill": "Skill",
}
OURS = {theirs: ours for ours, theirs in TOOLS.items()}
# What rules may name: those above, and the tools that no script knows by another name.
RULE_TOOLS = frozenset({*TOOLS, "jobs", "mcp", "memory", "recall", "repomap", "try"})
# Tools of other agents that have no counterpart here: in a list that was written for one of them no mistake.
ELSEWHERE = frozenset(
    {
        "Agent",
        "BashOutput",
        "ExitPlanMode",
        "KillBash",
        "KillShell",
        "LS",
        "NotebookEdit",
        "NotebookRead",
        "SlashCommand",
        "TodoRead",
        "WebSearch",
    }
)
# A hook for edits is for every way of editing, one for commands for every way of running them.
ALSO = {"patch": ("Edit",), "try": ("Edit", "Bash")}
ARGUMENTS: dict[str, dict[str, str]] = {
    "read": {"path": "file_path"},
    "write": {"path": "file_path"},
    "try": {"path": "file_path"},
    "edit": {"path": "file_path", "old": "old_string", "new": "new_string", "all": "replace_all"},
    "shell": {"background": "run_in_background", "timeout_s": "timeout"},
}
MS = 1000


def names_of(tool: str) -> tuple[str, ...]:
    """What a matcher may call the tool; the first is what hooks are told."""
    known = TOOLS.get(tool)
    return (*(() if known is None else (known,)), tool, *ALSO.get(tool, ()))


def is_tool_name(name: str) -> bool:
    """Whether a permission rule for `name`, which may be a pattern, can fit a tool."""
    return name.startswith("mcp__") or any(fnmatch.fnmatchcase(tool, name) for tool in RULE_TOOLS)


def meant_tool(name: str) -> str:
    """` Did you mean X?` for a name that is no tool's, or nothing."""
    known = {tool: tool for tool in RULE_TOOLS} | {theirs.lower(): ours for theirs, ours in OURS.items()}
    found = nearest(name.lower(), known)
    return f" Did you mean {known[found]}?" if found else ""


def input_of(tool: str, arguments: JsonObject, writes: tuple[Path, ...], cwd: Path) -> JsonObject:
    """The arguments as hooks are told them; file paths are absolute."""
    known = ARGUMENTS.get(tool, {})
    body = {known.get(name, name): value for name, value in arguments.items()}
    if isinstance(body.get("file_path"), str):
        body["file_path"] = str(cwd / body["file_path"])
    elif "file_path" not in body and writes:
        body["file_path"] = str(writes[0])
    if tool == "shell" and "timeout" in body:
        body["timeout"] = body["timeout"] * MS
    return body


def arguments_from(tool: str, updated: JsonObject, before: JsonObject) -> JsonObject:
    """The call's arguments `before`, with what a hook has put in their place. Names that the tool does not
    have are left out: hooks give back what they were told.
    """
    back = {theirs: ours for ours, theirs in ARGUMENTS.get(tool, {}).items()}
    changed = {back.get(name, name): value for name, value in updated.items()}
    if tool == "shell" and isinstance(changed.get("timeout_s"), int | float):
        changed["timeout_s"] = max(1, int(changed["timeout_s"] / MS))
    return {**before, **{name: value for name, value in changed.items() if name in before}}
