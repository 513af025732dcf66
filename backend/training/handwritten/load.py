"""Hand-written tasks as the evaluation's `Task`s: builds the project, seeds the bug, compares with the files as built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from k3agent.backend.training.handwritten import repairs, tasks
from k3agent.backend.training.handwritten.checks import Check, snapshot
from k3agent.backend.training.handwritten.projects import PROJECTS


@dataclass(slots=True)
class HandwrittenTask:
    """One task; `patch` is (file, old, new), put over the project when it is built."""

    name: str
    family: str
    project: str
    prompts: list[str]
    checker: Check
    patch: tuple[str, str, str] | None = None
    checks: tuple[str, ...] = ()
    before: Mapping[str, str] = field(default_factory=dict)

    def build(self, folder: Path) -> None:
        files = dict(PROJECTS[self.project])
        if self.patch:
            name, old, new = self.patch
            if old not in files[name]:
                raise ValueError(f"{self.name}: {name} has no {old!r} to put the bug in")
            files[name] = files[name].replace(old, new, 1)
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.before = snapshot(folder)

    def check(self, folder: Path, answers: list[str]) -> str | None:
        return self.checker(folder, answers, self.before)


def load_tasks() -> list[HandwrittenTask]:
    """All hand-written tasks, in a fixed order."""
    loaded = []
    for number, (family, project, prompt, check) in enumerate(
        [*tasks.LOOKING, *tasks.CHANGING, *tasks.ADDING, *repairs.RUNNING], 1
    ):
        loaded.append(HandwrittenTask(f"h{number:03}-{family}", family, project, [prompt], check))
    for number, (project, name, old, new, prompt) in enumerate(repairs.BUGS, 1):
        check = repairs.bug_check(project, name)
        loaded.append(HandwrittenTask(f"b{number:03}-fix", "fix", project, [prompt], check, (name, old, new)))
    return loaded
