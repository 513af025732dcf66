"""Which permission rules would allow a call from now on: as narrow as they are useful."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from k3agent.agent.permissions import RUNS_AS, WRITES_AS

if TYPE_CHECKING:  # tools bring pydantic, 0.1 s
    from k3agent.tools.base import Access

# fmt: off
# Programs whose second word says what they do; for others the first word is enough to go by.
WITH_SUBCOMMANDS = frozenset({
    "apt", "brew", "cargo", "docker", "gh", "git", "go", "kubectl", "make", "npm", "pip", "pnpm", "poetry",
    "systemctl", "terraform", "uv", "yarn",
})
# A rule for any arguments of these would allow anything at all.
NEVER = frozenset({
    "awk", "bash", "chmod", "chown", "command", "curl", "dash", "dd", "doas", "env", "eval", "exec", "find",
    "fish", "nice", "node", "nohup", "perl", "php", "python", "python3", "rm", "ruby", "sed", "sh", "ssh",
    "su", "sudo", "tee", "time", "timeout", "wget", "xargs", "zsh",
})
# Subcommands that run whatever is named after them.
RUNNERS = frozenset({"config", "dlx", "exec", "run", "x"})
# fmt: on


def rules_for(tool: str, access: Access, cwd: Path) -> tuple[str, ...]:
    """The rules, or none where no rule would be narrow enough. Rules are those of permissions.py."""
    if access.runs is not None and access.writes:
        # Each part by the rules for its kind: a pattern for the one could fit the other.
        paths = _path_rules(WRITES_AS.get(tool, tool), access, cwd)
        commands = _command_rules(RUNS_AS.get(tool, tool), access.runs)
        return (*paths, *commands) if paths and commands else ()
    if access.runs is not None:
        return _command_rules(tool, access.runs)
    if access.calls is not None:
        return (access.calls,)
    if access.connects:
        return tuple(f"{tool}({host})" for host in access.connects)
    return _path_rules(tool, access, cwd)


def _path_rules(tool: str, access: Access, cwd: Path) -> tuple[str, ...]:
    is_inside = access.writes and all(path.is_relative_to(cwd) for path in access.writes)
    return (f"{tool}(./**)",) if is_inside else ()


def _command_rules(tool: str, command: str) -> tuple[str, ...]:
    from k3agent.agent.shell_syntax import parse  # lazy: tree-sitter, loaded by now

    parsed = parse(command)
    if parsed.problem is not None or parsed.redirects or any(simple.redirects for simple in parsed.commands):
        return ()
    rules: list[str] = []
    for simple in parsed.commands:
        words = simple.text.split()
        if not words or any(char in simple.text for char in "()*?"):
            return ()
        rule = f"{tool}({_prefix(words) or simple.text})"
        if rule not in rules:
            rules.append(rule)
    return tuple(rules)


def _prefix(words: list[str]) -> str:
    """What a rule for any arguments would begin with; empty where only the exact command is narrow enough."""
    program = words[0]
    if program in NEVER or "/" in program:
        return ""
    if program not in WITH_SUBCOMMANDS:
        return f"{program}:*"
    if len(words) < 2 or words[1].startswith("-") or words[1] in RUNNERS:
        return ""
    return f"{program} {words[1]}:*"
