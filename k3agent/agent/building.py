"""What is settled before a session starts: tools, system prompt, effort, and what a damaged record gets
instead.
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from k3agent.agent import foreign
from k3agent.agent.check_files import files_of_checks
from k3agent.agent.checks import can_come
from k3agent.agent.context import CHARS_PER_TOKEN, Context, facts, system_prompt
from k3agent.agent.diskuse import DiskUse
from k3agent.agent.emitter import Emitter
from k3agent.agent.hooknames import is_tool_name, meant_tool
from k3agent.agent.hooks import HookParts, Hooks
from k3agent.agent.instructions import (
    SMALL_WINDOW,
    Instruction,
    brief_instructions,
    check_overhead,
    find_instructions,
)
from k3agent.agent.knowledge import budget_chars, prompt_parts
from k3agent.agent.masking import Masker
from k3agent.agent.options import Receipt, SessionOptions
from k3agent.agent.permissions import Rule, Territory, check_rules
from k3agent.agent.policies import LimitPolicy
from k3agent.agent.telemetry import Telemetry
from k3agent.agent.transcript import Transcript
from k3agent.config.paths import prefix_cache, user_config
from k3agent.errors import ConfigError, SandboxError
from k3agent.events import Noticed
from k3agent.providers.base import ModelInfo, Profile
from k3agent.providers.dialects import BUNDLED
from k3agent.safety.environment import child_environ
from k3agent.store.memories import Memory
from k3agent.store.records import DecisionRow, JournalBatch, StoredSession
from k3agent.store.sessions import SessionStore
from k3agent.types import Effort, SessionId, ToolSpec

if TYPE_CHECKING:  # tools bring pydantic, 0.1 s
    from k3agent.tools.base import Tool, ToolContext
    from k3agent.tools.jobs import JobTable
    from k3agent.tools.sandbox.base import Sandbox

MAX_TITLE = 80


async def nobody(question: Any) -> str:
    raise ConfigError("a question outside of a call")


async def prepare(options: SessionOptions) -> None:
    """Connect, and meanwhile load the tools: both take time, and neither needs the other."""
    if not options.cwd.is_dir():
        raise ConfigError(f"the workspace {options.cwd} is not a folder; pass --cwd")
    await asyncio.gather(options.client.connect(), asyncio.to_thread(load_tools))
    # Every wrong option is found here, before anything is stored.
    check_rules(options.permission_mode, (*options.allow, *options.deny))
    choose_effort(options.effort, options.client.info)
    await asyncio.to_thread(choose_sandbox, options)


def load_tools() -> dict[str, Tool[Any]]:
    """The tools by name. Pydantic loads without its search for plugins among all installed packages."""
    if "pydantic" not in sys.modules:
        stand_in = ModuleType("pydantic.plugin._loader")
        stand_in.get_plugins = lambda: ()  # type: ignore[attr-defined]
        sys.modules.setdefault(stand_in.__name__, stand_in)
    from k3agent.tools import BUILTIN  # lazy: pydantic and all tools, 0.15 s

    return dict(BUILTIN)


def _specs(options: SessionOptions) -> tuple[ToolSpec, ...]:
    from k3agent.tools import COMPACT, NOT_FOR_SMALL, NOT_FOR_SUBAGENTS, ONLY_COMPACT  # lazy: as above
    from k3agent.tools.specs import spec

    info, tools = options.client.info, load_tools()
    if info.profile is Profile.COMPACT:
        return tuple(spec(tools[name], True) for name in COMPACT)
    subtask = options.subtask
    left_out: set[str] = {*ONLY_COMPACT, *(NOT_FOR_SUBAGENTS if subtask else ())}
    if subtask is not None and subtask.depth >= options.tasks.max_depth:
        left_out.add("task")
    if not options.extensions.skills:
        left_out.add("skill")
    if not options.memory:
        left_out |= {"memory", "recall"}
    if info.context_window <= SMALL_WINDOW:
        left_out |= set(NOT_FOR_SMALL)
    own = [spec(tool, False) for name, tool in tools.items() if name not in left_out]
    return (*own, *foreign.frozen_specs(options))


def choose_sandbox(options: SessionOptions) -> Any:
    """What guards commands. Raises SandboxError for `strict` where nothing can."""
    from k3agent.tools.sandbox import choice  # lazy: only sessions run commands
    from k3agent.tools.sandbox.none import NoSandbox
    from k3agent.tools.sandbox.policy import Bounds
    from k3agent.tools.sandbox.proxy import check_pattern
    from k3agent.tools.support.usage import command_limits

    limits = command_limits(options.command_memory_mb, options.command_processes)
    if options.sandbox == "off":
        return NoSandbox("switched off", limits)
    if options.sandbox not in ("auto", "strict"):
        raise ConfigError(f"sandbox {options.sandbox!r} is unknown; choose auto, strict or off")
    for pattern in options.command_hosts:
        if not check_pattern(pattern):
            raise ConfigError(f"network.hosts: {pattern!r} is not a host; write example.org or *.example.org")
    environ, home = options.environ, options.home.resolve()
    bounds = Bounds(
        home=Path(environ.get("HOME") or Path.home()).resolve(),
        private=(home, prefix_cache(environ).parent, user_config(environ).parent, *_sockets(environ)),
        readable=(home / "outputs", *(skill.folder for skill in options.extensions.skills)),
        limits=limits,
        hosts=options.command_hosts,
    )
    found = choice.choose(bounds, has_network=options.has_command_network, path=environ.get("PATH"))
    if options.sandbox == "strict" and isinstance(found, NoSandbox):
        raise SandboxError(
            f"--sandbox strict, but {found.status}; run `{choice.INSTALL}`,"
            " or use --sandbox auto to run without a sandbox"
        )
    return found


def checked_files(options: SessionOptions, cwd: Path) -> frozenset[Path]:
    """What the model may not write because checks are made of it."""
    if options.check_patterns is None:
        return frozenset()
    return files_of_checks(options.checks, options.check_patterns, cwd)


def territory(
    options: SessionOptions, readable: tuple[Path, ...], checked: frozenset[Path], sandbox: Sandbox
) -> Territory:
    """What the session may read and write. `readable`: its own folders outside of the workspace."""
    subtask = options.subtask
    return Territory(
        cwd=options.cwd.resolve(),
        extra_dirs=options.extra_dirs,
        home=options.home,
        environ=options.environ,
        readable=(
            *readable,
            *(subtask.readable if subtask else ()),
            *(skill.folder for skill in options.extensions.skills),
        ),
        walls=subtask.walls if subtask else (),
        rules_root=subtask.rules_root if subtask else None,
        checked=checked,
        scratch=sandbox.scratch,
        hosts=sandbox.hosts,
    )


def sandboxing(ctx: ToolContext) -> Callable[[list[str]], list[str]]:
    """Puts a command, such as that of a check, into the sandbox of the tools."""
    return lambda argv: ctx.sandbox.wrap(argv, ctx.cwd, (ctx.cwd, *ctx.extra_dirs))


def bringing(options: SessionOptions, ctx: ToolContext) -> Callable[[], bool]:
    """Tells whether the work may bring a program that a check lacks."""
    return lambda: can_come(options.environ, ctx.sandbox.name, (ctx.cwd, *ctx.extra_dirs))


def _sockets(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Doors to programs with other rights that the environment names: a key agent, Docker."""
    named = (environ.get("SSH_AUTH_SOCK", ""), environ.get("DOCKER_HOST", "").removeprefix("unix://"))
    return tuple(Path(name) for name in named if name.startswith("/"))


def limit_policy(
    options: SessionOptions, session_id: SessionId, receipt: Receipt, elapsed_s: Callable[[], float]
) -> LimitPolicy:
    """The limits of this run; its disk is that of the workspace and of the session's outputs."""
    disk = DiskUse((options.cwd.resolve(), *options.extra_dirs, options.home / "outputs" / session_id))
    return LimitPolicy(options.limits, receipt, options.client.info.profile, elapsed_s, disk)


def choose_effort(wanted: Effort | None, info: ModelInfo) -> Effort:
    """Raises ConfigError for a level that the model does not have."""
    if info.profile is Profile.COMPACT:
        return Effort.LOW
    if wanted is None:
        return info.default_effort
    if wanted not in info.efforts:
        known = ", ".join(effort.value for effort in info.efforts)
        raise ConfigError(f"effort {wanted.value!r} is not known to {info.model}; choose one of {known}")
    return wanted


def frozen_part(
    options: SessionOptions, session_id: SessionId, memories: Sequence[Memory] = ()
) -> StoredSession:
    """System prompt and tools of a new session. Raises ConfigError when they leave no room to work."""
    info = options.client.info
    cwd = options.cwd.resolve()
    is_small = info.context_window <= SMALL_WINDOW
    found = find_instructions(cwd, options.environ, is_wide=not is_small)
    is_compact = info.profile is Profile.COMPACT
    files = [] if is_compact else found
    most = budget_chars(info.context_window, lambda tokens: int(tokens * CHARS_PER_TOKEN[info.profile]))
    known = [] if is_small else prompt_parts(options.extensions, memories, most)
    system = system_prompt(info.profile, files, options.append_system_prompt, known)
    if not is_compact:
        # What the user's own files say goes to the model and into the store, too.
        system = Masker(options.environ, cwd).mask(system)
    specs = _specs(options)
    effort = choose_effort(options.effort, info)
    probe = Context(
        session_id=session_id, info=info, system=system, tools=specs, effort=effort, response_schema=None
    )
    check_overhead(probe.fixed_tokens, info.context_window, files)
    return StoredSession(
        id=session_id,
        cwd=str(cwd),
        provider=info.provider,
        model=info.model,
        profile=info.profile.value,
        effort=effort.value,
        system=system,
        tools=specs,
        meta={} if options.subtask is None else options.subtask.meta,
        warnings=_unread(options, info, found) if is_compact else (),
    )


def _unread(options: SessionOptions, info: ModelInfo, files: list[Instruction]) -> tuple[str, ...]:
    """What the small model is not told, because its prompt is fixed: said once, when the session starts."""
    parts = [] if info.reads_instructions else [str(file.path) for file in files]
    if options.append_system_prompt.strip():
        parts.append("the text of --append-system-prompt")
    warnings = []
    if parts:
        warnings.append(
            f"{info.model} is a small model with a fixed prompt: it does not read {', '.join(parts)}."
            " Say in the prompt itself what matters."
        )
    if options.asks_for_servers:
        warnings.append(f"{info.model} has a fixed list of tools: MCP servers are not used with it.")
    if options.effort not in (None, Effort.LOW):
        warnings.append(f"{info.model} knows one effort: {options.effort.value} has no effect.")
    return tuple(warnings)


def start_warnings(options: SessionOptions) -> tuple[str, ...]:
    """What is told each time the session is opened. A small model uses no servers, obeyed or not."""
    if options.subtask is not None:
        return ()
    is_compact = options.client.info.profile is Profile.COMPACT
    servers = () if is_compact else options.server_warnings
    return (*options.extensions.warnings, *servers, *_idle_rules((*options.allow, *options.deny)))


def _idle_rules(rules: Sequence[str]) -> list[str]:
    """Rules that can fit no tool: a deny rule with a wrong name would protect nothing."""
    names = {rule: Rule.parse(rule).tool for rule in rules}
    return [
        f"the permission rule {rule!r} fits no tool: there is none named {name!r}.{meant_tool(name)}"
        for rule, name in names.items()
        if not is_tool_name(name)
    ]


def mended(stored: StoredSession, options: SessionOptions) -> StoredSession:
    """`stored` with what could not be read replaced by what a new session would get, and said so."""
    info = options.client.info
    warnings = list(stored.warnings)
    if not stored.system or not stored.tools:
        fresh = frozen_part(options, stored.id)
        stored = dataclasses.replace(
            stored, system=stored.system or fresh.system, tools=stored.tools or fresh.tools
        )
    cwd = str(options.cwd.resolve())
    if stored.cwd and stored.cwd != cwd:
        warnings.append(
            f"this session was held in {stored.cwd}, and goes on in {cwd}: pass --cwd to change that"
        )
    if foreign.frozen_specs(options) and not foreign.has_servers(stored.tools):
        warnings.append("this session began without MCP servers: a new session has their tools")
    if stored.model and stored.model != info.model:
        warnings.append(
            f"this session was held with {stored.model}, and goes on with {info.model}:"
            " quality may drop; a new session is the better choice"
        )
    return dataclasses.replace(stored, warnings=tuple(warnings))


def session_hooks(
    options: SessionOptions, emitter: Emitter, masker: Masker, store: SessionStore, mode: Callable[[], str]
) -> Hooks:
    """The hooks of a session; those of a subagent's are its user's, too."""
    cwd = options.cwd.resolve()

    def record(row: DecisionRow) -> None:
        store.record(emitter.session_id, JournalBatch(decisions=[row]))

    parts = HookParts(
        cwd=cwd,
        project=options.extensions.project or cwd,
        is_task=options.subtask is not None,
        environ=child_environ(options.environ),
        emitter=emitter,
        mask=masker.mask_value,
        mode=mode,
        record=record,
    )
    return Hooks(options.extensions.hooks, parts)


def start_telemetry(options: SessionOptions, emitter: Emitter) -> Callable[[], None]:
    """Have the session's events told by OpenTelemetry, where that is wanted; returns what ends it."""
    if not options.telemetry:
        return lambda: None
    parent = options.subtask.parent if options.subtask else None
    made = Telemetry(emitter.session_id, options.client.info, parent)
    emitter.subscribe(made)
    return made.close


def new_facts(options: SessionOptions, mode: str, transcript: Transcript) -> str:
    """The facts message if it differs from the last one. The compact profile has the project's instructions
    instead, if its model was trained to follow them: its system prompt is a constant.
    """
    info, cwd = options.client.info, options.cwd.resolve()
    if info.profile is not Profile.COMPACT:
        found = facts(cwd, mode, date.today())
    elif info.reads_instructions:
        found = Masker(options.environ, cwd).mask(brief_instructions(find_instructions(cwd, options.environ)))
    else:
        return ""
    return "" if found == transcript.facts else found


def works_ahead(options: SessionOptions) -> bool:
    """Whether what the next prompt will need is made ready between turns: where somebody waits for it, and it
    costs nothing but time.
    """
    info = options.client.info
    is_own = info.provider == BUNDLED.name and info.profile is Profile.FULL
    return is_own and options.is_interactive and options.subtask is None


def running_jobs(jobs: JobTable) -> list[str]:
    """A line for each background command that has not ended."""
    return [f"{job.id}: {job.command}" for job in jobs.background.values() if job.ended is None]


def without_secrets(text: str, masker: Masker, emitter: Emitter) -> str:
    """The user's words as they are stored and sent; the user is told what is not."""
    masker.refresh()
    masked = masker.mask(text)
    if masked != text:
        said = "The prompt holds a key or password: it is masked before it is stored or sent."
        emitter.emit(Noticed, level="warning", text=f"{said} Let commands read it from a file or a variable.")
    return masked


def title_of(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= MAX_TITLE else line[: MAX_TITLE - 1] + "…"
