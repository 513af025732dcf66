"""What the model can do. `BUILTIN` maps names to tools; it is built when first used, for start-up time.

`COMPACT` names the tools of the embedded model, in the order in which it is told of them;
`NOT_FOR_SUBAGENTS` those that a subagent is not given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from k3agent.tools.base import Tool

    BUILTIN: dict[str, Tool[Any]]

COMPACT = ("read", "write", "edit", "grep", "glob", "shell", "try")
# Large models find the change themselves; a small one finds the place, and guesses the change.
ONLY_COMPACT = ("try",)
# Subagents have nobody to ask but the session that started them, and leave its memory alone.
NOT_FOR_SUBAGENTS = ("ask", "memory")
# What takes room in the prompt that a small window does not have; nor is there any for subagents' reports.
NOT_FOR_SMALL = ("task", "skill", "memory", "recall", "repomap")


def __getattr__(name: str) -> Any:
    if name != "BUILTIN":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # lazy: pydantic and all tools take 150 ms
    from k3agent.tools.ask import AskTool
    from k3agent.tools.edit import EditTool
    from k3agent.tools.glob import GlobTool
    from k3agent.tools.grep import GrepTool
    from k3agent.tools.jobs import JobsTool
    from k3agent.tools.memory import MemoryTool
    from k3agent.tools.patch import PatchTool
    from k3agent.tools.read import ReadTool
    from k3agent.tools.recall import RecallTool
    from k3agent.tools.repomap import RepoMapTool
    from k3agent.tools.shell import ShellTool
    from k3agent.tools.skill import SkillTool
    from k3agent.tools.task import TaskTool
    from k3agent.tools.todo import TodoTool
    from k3agent.tools.trial import TrialTool
    from k3agent.tools.write import WriteTool

    tools = (
        ReadTool(), WriteTool(), EditTool(), GrepTool(), GlobTool(), ShellTool(),
        PatchTool(), JobsTool(), TodoTool(), AskTool(), TaskTool(),
        SkillTool(), MemoryTool(), RecallTool(), RepoMapTool(), TrialTool(),
    )  # fmt: skip
    globals()["BUILTIN"] = {tool.name: tool for tool in tools}
    return globals()["BUILTIN"]
