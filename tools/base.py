"""What a tool is: typed arguments, what it would touch, and an effect in a context.

A tool knows nothing of the agent. All that it may use comes in `ToolContext`; expected failures are
`ToolError`s whose text is written for the model.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel, ConfigDict

from k3agent.errors import ToolError
from k3agent.tools.support.knowledge import NO_KNOWLEDGE, Knowledge
from k3agent.types import ImagePart, JsonObject, TaskBrief, TaskReport, TextPart


class Args(BaseModel):
    """Base of every tool's arguments: unknown fields are refused, values are not coerced across kinds."""

    model_config = ConfigDict(extra="forbid", frozen=True)


ArgsT = TypeVar("ArgsT", bound=Args, contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a call would do, judged before it runs. Paths are absolute and resolved through links.

    `writes`: files or folders it changes; `more`: files that it would change, too, and can do without: those
    that may not be written as freely are left out, and others are moved to `writes`; `runs`: the shell
    command, as it would be run; `connects`: hosts; `calls`: the foreign tool that it would use, by its name
    for rules; `keeps`: "here" or "everywhere", if it changes what later sessions of this repository, or of
    all of them, are told.
    """

    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    more: tuple[Path, ...] = ()
    runs: str | None = None
    connects: tuple[str, ...] = ()
    calls: str | None = None
    keeps: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutput:
    """A tool's answer. `text` may be empty (the harness then writes a short note); `files` are the paths that
    changed, relative to the workspace; `data` is for front ends and the store, never for the model."""

    text: str
    images: tuple[ImagePart, ...] = ()
    files: tuple[str, ...] = ()
    data: JsonObject = field(default_factory=dict)

    @property
    def content(self) -> tuple[TextPart | ImagePart, ...]:
        return (TextPart(text=self.text or "(no output)"), *self.images)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    text: str
    options: tuple[str, ...] = ()
    default: str = ""


# What the session makes of a new plan: (goal, criteria, steps) to remarks for the model.
Planning = Callable[[str, Sequence[str], list[JsonObject]], Awaitable[list[str]]]
Spawn = Callable[[Sequence[TaskBrief]], Awaitable[list[TaskReport]]]


async def unplanned(goal: str, criteria: Sequence[str], steps: list[JsonObject]) -> list[str]:
    return []


async def no_subagents(briefs: Sequence[TaskBrief]) -> list[TaskReport]:
    raise ToolError("there are no subagents here. Do it yourself.")


@dataclass(slots=True, kw_only=True)
class ToolContext:
    """All that a tool may use.

    `cwd` is the workspace root (absolute, resolved). `extra_dirs` are further folders that may be used.
    `environ` is what child processes get. `freshness` remembers what was read
    (tools/support/freshness.py), `jobs` the background commands (tools/jobs.py), `sandbox` wraps commands
    (tools/sandbox/base.py). `output_dir` takes full outputs that are too long for the model. `emit`
    reports progress of the running call; `ask` reaches the user and raises `ToolError` where nobody can
    answer; `spawn` has subagents do tasks and comes back when all have ended; `plan` keeps the plan, and
    raises `ToolError` for a change that is the user's to make. `knowledge` outlasts the conversation.
    """

    cwd: Path
    environ: dict[str, str]
    output_dir: Path
    freshness: Any
    jobs: Any
    sandbox: Any
    emit: Callable[[str], None]
    ask: Callable[[Question], Awaitable[str]]
    extra_dirs: tuple[Path, ...] = ()
    todo: list[JsonObject] = field(default_factory=list)
    spawn: Spawn = no_subagents
    plan: Planning = unplanned
    knowledge: Knowledge = NO_KNOWLEDGE


class Tool(Protocol[ArgsT]):
    """One thing the model can do. The description for the model is `prompts/tools/<name>.md`.

    `is_read_only` tools run side by side; others wait for each other. `describe` gives one line for people.
    """

    name: str
    args: type[Args]
    is_read_only: bool

    def describe(self, args: ArgsT) -> str: ...

    def access(self, args: ArgsT, ctx: ToolContext) -> Access: ...

    async def run(self, args: ArgsT, ctx: ToolContext) -> ToolOutput: ...


@runtime_checkable
class Previewed(Protocol[ArgsT]):
    """A tool that can say beforehand what `run` would change, as a difference for people (hunks as of
    tools/support/diffs.py). Blocks; changes nothing; raises ToolError where `run` would.
    """

    def preview(self, args: ArgsT, ctx: ToolContext) -> str: ...
