"""`hooks.json`: which script runs at which event, in the form that other agents' settings have."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3agent.errors import ConfigError, did_you_mean

FILE_NAME = "hooks.json"
EVENTS = (
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PostToolUse",
    "PostToolUseFailure",
    "Notification",
    "Stop",
    "SubagentStop",
    "PreCompact",
    "PostCompact",
    "SessionEnd",
)
DEFAULT_TIMEOUT_S = 60.0
MAX_TIMEOUT_S = 600.0
MAX_FILE_BYTES = 256 * 1024
MAX_HOOKS = 200
_PLAIN = re.compile(r"[\w-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """`matcher`: a name, or a regular expression over the whole name; '' fits all. `is_async`: nobody waits
    for it. `source`: the file that names it; `scripts`: the workspace's files in the command, with their
    hashes of when k3agent started.
    """

    event: str
    command: str
    matcher: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S
    is_async: bool = False
    source: str = ""
    scripts: tuple[tuple[str, str], ...] = ()

    def fits(self, names: Sequence[str]) -> bool:
        """Whether it is for a tool (or cause) with one of these names; for events without names: always."""
        if self.matcher in ("", "*") or not names:
            return True
        if _PLAIN.fullmatch(self.matcher):
            return self.matcher in names
        return any(re.fullmatch(self.matcher, name) is not None for name in names)


def load_hooks(paths: Sequence[Path]) -> tuple[list[Hook], list[str]]:
    """The hooks of these files, in their order, and what of them is not known here, in words. Raises
    ConfigError for a file that cannot be understood.
    """
    found: list[Hook] = []
    unknown: list[str] = []
    for path in paths:
        for event, group in _groups(path, unknown):
            found += _hooks(path, event, group, unknown)
    if len(found) > MAX_HOOKS:
        raise ConfigError(
            f"{found[MAX_HOOKS].source}: more than {MAX_HOOKS} hooks; put several into one script"
        )
    return found, unknown


def _groups(path: Path, unknown: list[str]) -> list[tuple[str, dict[str, Any]]]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"{path} has more than {MAX_FILE_BYTES} bytes; shorten it")
        body = json.loads(data)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no valid JSON: {error}") from error
    events = body.get("hooks", body) if isinstance(body, dict) else None
    if not isinstance(events, dict):
        raise ConfigError(f'{path} holds no object; write {{"hooks": {{"PreToolUse": [...]}}}}')
    groups: list[tuple[str, dict[str, Any]]] = []
    for event, entries in events.items():
        if event not in EVENTS:
            unknown.append(
                f"{path}: there is no event {event!r}, its hooks never run.{did_you_mean(event, EVENTS)}"
            )
            continue
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ConfigError(f"{path}, {event}: {entries!r} is no list of objects")
        groups += [(event, entry) for entry in entries]
    return groups


def _hooks(path: Path, event: str, group: dict[str, Any], unknown: list[str]) -> list[Hook]:
    where = f"{path}, {event}"
    matcher = group.get("matcher") or ""
    if not isinstance(matcher, str):
        raise ConfigError(f"{where}: the matcher {matcher!r} is no string")
    try:
        re.compile("" if matcher == "*" else matcher)
    except re.error as error:
        raise ConfigError(f"{where}: the matcher {matcher!r} is no regular expression: {error}") from error
    entries = group.get("hooks", ())
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f'{where}: "hooks" must be a list of objects with "type" and "command"')
    found: list[Hook] = []
    for entry in entries:
        if entry.get("type", "command") != "command":
            unknown.append(f"{where}: hooks of the type {entry['type']!r} are not known, only command")
            continue
        command, timeout = entry.get("command"), entry.get("timeout", DEFAULT_TIMEOUT_S)
        if not isinstance(command, str) or not command.strip():
            raise ConfigError(f"{where}: the command {command!r} is no text")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise ConfigError(f"{where}: the timeout {timeout!r} is no number of seconds above 0")
        found.append(
            Hook(
                event=event,
                command=command,
                matcher=matcher,
                timeout_s=min(float(timeout), MAX_TIMEOUT_S),
                is_async=entry.get("async") is True,
                source=str(path),
            )
        )
    return found
