"""Hand-written tasks as the evaluation's `Task`s: builds the project, seeds the bug, compares with the files as built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from k3agent.backend.training.handwritten import layered, repairs, tasks
from k3agent.backend.training.handwritten.checks import Check, all_of, snapshot, tests_pass
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
    return [*loaded, *_layered()]


def _layered() -> list[HandwrittenTask]:
    """The tasks on projects in layers, some with a check that fails after the work."""
    loaded = [
        HandwrittenTask(f"l{number:03}-{family}", family, project, [prompt], check)
        for number, (family, project, prompt, check) in enumerate(layered.LAYERED, 1)
    ]
    for number, (project, name, old, new, prompt) in enumerate(layered.LAYERED_BUGS, 1):
        patch = (name, old, new)
        loaded.append(HandwrittenTask(f"m{number:03}-fix", "fix", project, [prompt], tests_pass(name), patch))
    for number, (project, name, old, new, prompt, command, check, files) in enumerate(layered.CHECKED, 1):
        whole = all_of(tests_pass(*files), check)
        patch = (name, old, new)
        task = HandwrittenTask(f"c{number:03}-fix", "fix", project, [prompt], whole, patch, checks=(command,))
        loaded.append(task)
    return loaded
