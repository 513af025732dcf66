"""Which servers of foreign tools (MCP) are configured, and where.

Later wins by name: `[mcp.NAME]` tables of the settings files, the user's `mcp.json`, the repository's
`.mcp.json` and `.k3agent/mcp.json` (obeyed only once trusted), files of `--mcp-config`. The JSON files have
the form that other programs read too, {"mcpServers": {NAME: {...}}}; keys that only they know are left alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3agent.config.paths import user_config
from k3agent.config.places import trust_folder
from k3agent.config.trust import is_trusted
from k3agent.errors import ConfigError
from k3agent.safety.writing import replace_text
from k3agent.types import JsonObject, ServerSpec

KEY = "mcpServers"
PROJECT_FILE = ".mcp.json"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]|_(?!_)){0,38}")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_TEXTS = ("command", "cwd", "url", "client_id", "scope")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """`untrusted`: files of the repository that are not obeyed."""

    servers: tuple[ServerSpec, ...] = ()
    untrusted: tuple[Path, ...] = ()


def user_file(environ: Mapping[str, str]) -> Path:
    return user_config(environ).with_name("mcp.json")


def project_files(cwd: Path) -> tuple[Path, Path]:
    """The repository's files, which trust in its `.k3agent` folder covers; they need not exist."""
    folder = trust_folder(cwd)
    return folder.parent / PROJECT_FILE, folder / "mcp.json"


def load_servers(
    environ: Mapping[str, str],
    cwd: Path,
    home: Path,
    *,
    tables: Mapping[str, tuple[str, Any]],
    files: Sequence[Path] = (),
) -> Configured:
    """All servers, by name. `tables`: those of the settings, each with its place. Raises ConfigError."""
    found: dict[str, ServerSpec] = {}
    untrusted: list[Path] = []
    for name, (origin, table) in tables.items():
        found[name] = server_of(name, table, origin, environ)
    _add(found, user_file(environ), environ)
    present = [path for path in project_files(cwd) if path.is_file()]
    if present and is_trusted(home, trust_folder(cwd)):
        for path in present:
            _add(found, path, environ)
    else:
        untrusted = present
    for path in files:
        if not path.is_file():
            raise ConfigError(f"--mcp-config {path}: no such file")
        _add(found, path, environ)
    return Configured(servers=tuple(found[name] for name in sorted(found)), untrusted=tuple(untrusted))


def _add(found: dict[str, ServerSpec], path: Path, environ: Mapping[str, str]) -> None:
    for name, entry in read_file(path).items():
        found[name] = server_of(name, entry, str(path), environ)


def read_file(path: Path) -> JsonObject:
    """The servers in a file, by name; {} where there is no file. Raises ConfigError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    servers = data.get(KEY, {}) if isinstance(data, dict) else None
    if not isinstance(servers, dict):
        raise ConfigError(f'{path} must hold {{"{KEY}": {{NAME: {{...}}}}}}')
    return servers


def check_name(name: str, origin: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{origin}: {name!r} is no name for an MCP server: letters, digits, - and single _, at most 39"
        )


def server_of(
    name: str, entry: Any, origin: str, environ: Mapping[str, str], *, expands: bool = True
) -> ServerSpec:
    """A server from its table in a file. `expands`: `${NAME}` is read from the environment. Raises
    ConfigError.
    """
    check_name(name, origin)
    where = f"{origin}, MCP server {name}"
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: it must be a table, not {entry!r:.60}")
    missing: list[str] = []

    def expand(text: str) -> str:
        def value(hit: re.Match[str]) -> str:
            given = environ.get(hit[1], hit[2])
            if given is None:
                missing.append(hit[1])
            return given or ""

        return _VARIABLE.sub(value, text) if expands else text

    texts = {key: expand(_text(entry, key, where)) for key in _TEXTS}
    args = entry.get("args", [])
    if not isinstance(args, list) or not all(isinstance(word, str) for word in args):
        raise ConfigError(f"{where}: args must be a list of strings, not {args!r:.60}")
    if bool(texts["command"]) == bool(texts["url"]):
        raise ConfigError(f"{where}: give either a command (a program) or a url")
    problem = ""
    if texts["url"] and not texts["url"].startswith(("http://", "https://")):
        raise ConfigError(f"{where}: url {texts['url']!r:.80} is no http or https address")
    env, headers = (_map(entry, key, where, expand) for key in ("env", "headers"))
    words = tuple(expand(word) for word in args)
    if missing:
        problem = f"the environment has no variable {', '.join(dict.fromkeys(missing))}, which {origin} names"
    return ServerSpec(
        name=name,
        **texts,
        is_sse=entry.get("type") == "sse",
        args=words,
        env=env,
        headers=headers,
        start_timeout_s=_seconds(entry, "start_timeout_s", 30.0, where),
        call_timeout_s=_seconds(entry, "call_timeout_s", 300.0, where),
        is_enabled=entry.get("enabled", True) is not False and entry.get("disabled", False) is not True,
        origin=origin,
        problem=problem,
    )


def _text(entry: JsonObject, key: str, where: str) -> str:
    value = entry.get(key, "")
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {key} must be a string, not {value!r:.60}")
    return value


def _map(entry: JsonObject, key: str, where: str, expand: Any) -> dict[str, str]:
    value = entry.get(key, {})
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise ConfigError(f"{where}: {key} must hold strings by name, not {value!r:.60}")
    return {str(name): expand(item) for name, item in value.items()}


def _seconds(entry: JsonObject, key: str, default: float, where: str) -> float:
    value = entry.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 100_000:
        raise ConfigError(f"{where}: {key} must be a number of seconds, not {value!r:.60}")
    return float(value)


def write_server(path: Path, name: str, entry: JsonObject | None) -> bool:
    """Put a server into a file, or take it out (None); whether it was there before. What else the file holds
    stays.
    """
    check_name(name, str(path))
    servers = read_file(path)
    was_there = name in servers
    if entry is None and not was_there:
        return False
    data = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    known = data.setdefault(KEY, {})
    if entry is None:
        del known[name]
    else:
        known[name] = entry
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Headers and variables in it may be secret.
        replace_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
    return was_there
