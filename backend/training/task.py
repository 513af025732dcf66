"""What a task for the agent is: a folder it builds, prompts it sends, and a check of the files and
answers afterwards.

Generated tasks (episodes), hand-written tasks and the evaluation share this protocol.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

FIRST_EDITION = (
    "list",
    "find",
    "where",
    "explain",
    "setvalue",
    "rename",
    "replace",
    "addline",
    "addfunc",
    "create",
    "fix",
    "run",
    "refuse",
    "chat",
)
SECOND_EDITION = ("chain", "git", "data", "web", "rules", "recover", "ask", "german", "chinese", "long")
"""Several steps; git; settings files and documents; JavaScript and Go; AGENTS.md; errors of tools;
too little said; other languages; long files and outputs."""
EDITIONS = {"first": FIRST_EDITION, "second": SECOND_EDITION}
FAMILIES = FIRST_EDITION + SECOND_EDITION
"""The rows of every table about tasks, in this order."""


@runtime_checkable
class Task(Protocol):
    """One task: build a project, ask one or several prompts in one session, judge what is there
    afterwards.
    """

    @property
    def name(self) -> str:
        """A unique short name."""
        ...

    @property
    def family(self) -> str:
        """One of FAMILIES."""
        ...

    @property
    def prompts(self) -> list[str]:
        """What the user says, one session, in order."""
        ...

    @property
    def checks(self) -> Sequence[str]:
        """Commands that the agent runs when the model says that it is done (`--check`)."""
        ...

    def build(self, folder: Path) -> None:
        """Write the project into the empty `folder`."""
        ...

    def check(self, folder: Path, answers: list[str]) -> str | None:
        """None when solved, else the reason; `answers` holds the final answer to each prompt."""
        ...
