"""What a session is started with, and what it reports when it is over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from k3agent.agent.extensions import NO_EXTENSIONS, Extensions, load_extensions
from k3agent.agent.foreign import servers_of
from k3agent.agent.instructions import checks_in, find_instructions
from k3agent.config.settings import DEFAULT, Settings
from k3agent.providers.base import ModelClient
from k3agent.types import Effort, JsonObject, ServerSpec, SessionId, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Hard limits of one run, None for no limit. `max_turns` counts model calls; `max_tokens` input and
    output. `sources`: what has set each, as the user knows it, `--max-turns` or a key and its file.
    """

    max_turns: int | None = None
    max_tokens: int | None = None
    max_budget_usd: float | None = None
    max_time_s: float | None = None
    max_disk_mb: float | None = None
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactAt:
    """When the context is made short: at `share` of the model's window (0: never by itself); at `tokens`, or
    where reading it from the endpoint's cache costs `step_usd` in each step, if that comes first.
    """

    share: float = 0.85
    tokens: int | None = None
    step_usd: float | None = None


BY_DEFAULT = CompactAt()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """Bounds of subagents: how many work at a time; how many levels there are (1: they start none of their
    own); what each may use, with those that it starts, where its task says nothing; and the projected price
    of a fan-out above which the user is asked, or it is refused where nobody is there.
    """

    max_parallel: int = 4
    max_depth: int = 1
    max_turns: int = 60
    max_tokens: int = 2_000_000
    max_usd: float = 2.0
    fan_out_usd: float = 5.0
    fan_out_tokens: int = 20_000_000


BY_DEFAULT_TASKS = TaskLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtask:
    """What makes a session a subagent's: whose task it does. It may read in `readable`, and write nowhere but
    in its own folder; `walls` are the folders of the session that started it. `rules_root`: the folder that
    permission rules are relative to. `depth`: 1 for the subagent of a session that is none.
    """

    parent: SessionId
    number: int
    rules_root: Path
    walls: tuple[Path, ...]
    readable: tuple[Path, ...] = ()
    depth: int = 1

    @property
    def meta(self) -> JsonObject:
        return {"task": {"parent": self.parent, "number": self.number}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """All that a session needs from outside. `home` is the data folder, `environ` the agent's own
    environment: children get it without secrets.
    """

    cwd: Path
    client: ModelClient
    home: Path
    environ: Mapping[str, str]
    effort: Effort | None = None
    permission_mode: str = "default"
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    sandbox: str = "auto"
    has_command_network: bool = False
    command_hosts: tuple[str, ...] = ()
    command_memory_mb: int | None = None
    command_processes: int = 4096
    limits: Limits = NO_LIMITS
    compact_at: CompactAt = BY_DEFAULT
    checks: tuple[str, ...] = ()
    check_retries: int = 3
    # Globs of files that are part of the checks; None: none is protected.
    check_patterns: tuple[str, ...] | None = ()
    append_system_prompt: str = ""
    extra_dirs: tuple[Path, ...] = ()
    is_interactive: bool = False
    # Who is asked is a program: what it refuses blocks the turn as a rule does, it is no person's wish.
    is_program_asked: bool = False
    response_schema: JsonObject | None = None
    tasks: TaskLimits = BY_DEFAULT_TASKS
    subtask: Subtask | None = None
    snapshots: bool = True
    # Servers of foreign tools (MCP), words on those that are not used, and `fleet`: those that run.
    servers: tuple[ServerSpec, ...] = ()
    server_warnings: tuple[str, ...] = ()
    # Servers were named for this very run.
    asks_for_servers: bool = False
    fleet: Any = None
    # The data folder that logins and what is known of servers are read from, if not `home`.
    user_home: Path | None = None
    # Puts others in the place of tools, as an editor does for those that work on files.
    adapt_tools: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    extensions: Extensions = NO_EXTENSIONS
    memory: bool = True
    telemetry: bool = False

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        *,
        cwd: Path,
        client: ModelClient,
        home: Path,
        environ: Mapping[str, str],
        default_mode: str,
        extra_dirs: tuple[Path, ...],
    ) -> SessionOptions:
        """What the settings say; `default_mode` is the permission mode where they say nothing."""
        servers, server_warnings = servers_of(settings, environ, cwd, home)
        return cls(
            cwd=cwd,
            client=client,
            home=home,
            environ=environ,
            effort=Effort(settings.effort) if settings.effort else None,
            permission_mode=settings.permission_mode or default_mode,
            allow=settings.allow,
            deny=settings.deny,
            sandbox=settings.sandbox,
            has_command_network=settings.network_commands == "on",
            command_hosts=settings.network_hosts,
            command_memory_mb=settings.limits_command_memory_mb,
            command_processes=settings.limits_command_processes,
            limits=_limits(settings),
            compact_at=CompactAt(
                share=settings.compaction_share,
                tokens=settings.compaction_tokens,
                step_usd=settings.compaction_step_usd,
            ),
            checks=_checks(settings, cwd, environ),
            check_retries=settings.checks_retries,
            check_patterns=settings.checks_files if settings.checks_protect == "on" else None,
            append_system_prompt=settings.append_system_prompt,
            extra_dirs=extra_dirs,
            tasks=TaskLimits(
                max_parallel=settings.tasks_max_parallel,
                max_depth=settings.tasks_max_depth,
                max_turns=settings.tasks_max_turns,
                max_tokens=settings.tasks_max_tokens,
                max_usd=settings.tasks_max_usd,
                fan_out_usd=settings.tasks_fan_out_usd,
                fan_out_tokens=settings.tasks_fan_out_tokens,
            ),
            snapshots=settings.snapshots == "on",
            extensions=load_extensions(cwd.resolve(), environ, home, has_hooks=settings.hooks == "on"),
            servers=servers,
            server_warnings=server_warnings,
            asks_for_servers=bool(settings.mcp_files),
            memory=settings.memory == "on",
            telemetry=settings.telemetry_otlp == "on",
        )


def _limits(settings: Settings) -> Limits:
    """The limits, and for each that is set the flag, the variable, or the key with its file."""
    sources: dict[str, str] = {}
    for name in ("max_turns", "max_tokens", "max_budget_usd", "max_time_s", "max_disk_mb"):
        origin = settings.origin(f"limits.{name}")
        if origin == "flag":
            sources[name] = f"--{name.removesuffix('_s').removesuffix('_mb').replace('_', '-')}"
        elif origin != DEFAULT:
            sources[name] = origin if origin.startswith("$") else f"limits.{name} in {origin}"
    return Limits(
        max_turns=settings.limits_max_turns,
        max_tokens=settings.limits_max_tokens,
        max_budget_usd=settings.limits_max_budget_usd,
        max_time_s=settings.limits_max_time_s,
        max_disk_mb=settings.limits_max_disk_mb,
        sources=sources,
    )


def _checks(settings: Settings, cwd: Path, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Commands of a repository's file are run only where the user has said so."""
    if settings.checks_agents != "on":
        return settings.checks_commands
    listed = checks_in(find_instructions(cwd.resolve(), environ))
    return (*settings.checks_commands, *(check for check in listed if check not in settings.checks_commands))


@dataclass(slots=True, kw_only=True)
class Receipt:
    """What this run has done so far; grows while a turn runs.

    Subagents are counted in; `subagents_tokens` and `subagents_usd` are their part.
    `num_turns` counts model calls, those thrown away included, summaries of compactions not;
    `num_unmeasured` calls whose usage
    the endpoint did not get to say. `files_note`: why it cannot be told what commands changed, or ''.
    `latest_files`: of `files_changed` those since `begin_prompt`, for who counts by prompts.
    `goals`: {goal, state}; `questions`: {call_id, question, options, taken} that nobody was there to answer;
    `denials`: {call_id, tool, summary, reason}; `checks`: {command, exit_code, passed}, the last round;
    `compactions`: {trigger, tokens_before, tokens_after, kept, dropped, method, cost_usd};
    `last_command`: {command, exit_code} of the shell command that ended last; `last_test_run`: {command,
    outcome, exit_code} of the last turn's last command that ran tests (agent/testruns.py); `remarks`: {kind,
    text}, what k3agent itself noticed at the ends of turns (agent/remarks.py).
    """

    usage: Usage = field(default_factory=Usage)
    cost_usd: float = 0.0
    num_turns: int = 0
    num_unmeasured: int = 0
    duration_api_s: float = 0.0
    files_changed: list[str] = field(default_factory=list)
    latest_files: list[str] = field(default_factory=list)
    files_note: str = ""
    calls: int = 0
    invalid: int = 0
    failed: int = 0
    denials: list[JsonObject] = field(default_factory=list)
    checks: list[JsonObject] = field(default_factory=list)
    questions: list[JsonObject] = field(default_factory=list)
    goals: list[JsonObject] = field(default_factory=list)
    compactions: list[JsonObject] = field(default_factory=list)
    last_command: JsonObject | None = None
    last_test_run: JsonObject | None = None
    remarks: list[JsonObject] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    subagents_tokens: int = 0
    subagents_usd: float = 0.0

    def add_files(self, files: tuple[str, ...]) -> None:
        for known in (self.files_changed, self.latest_files):
            known.extend(path for path in files if path not in known)

    @property
    def num_files(self) -> tuple[int, int]:
        return len(self.files_changed), len(self.latest_files)

    def drop_files(self, files: Collection[str], since: tuple[int, int]) -> None:
        """Those that came after `num_files` was `since` and are as they were then."""
        for known, start in zip((self.files_changed, self.latest_files), since, strict=True):
            known[start:] = [path for path in known[start:] if path not in files]

    def begin_prompt(self) -> None:
        """Forget what is told of the newest prompt only."""
        self.latest_files, self.checks = [], []
