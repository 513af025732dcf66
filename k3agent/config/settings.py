"""All settings: their names, kinds and defaults, and the layers they come from.

Later layers win: defaults, the user's file, the repository's two files (once trusted), environment, flags.
Hand-made instead of with a library because every start pays for it. A field here is the setting; help,
`k3agent config` and checking follow from its metadata.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from k3agent.config.paths import data_home, repository_configs, user_config
from k3agent.errors import ConfigError, did_you_mean

DEFAULT = "default"


def _setting(
    kind: str,
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """`kind`: str, int, float, list. A default of None means: not set."""
    metadata = {"kind": kind, "help": help, "choices": choices, "minimum": minimum, "maximum": maximum}
    return field(default=default, metadata=metadata)


EFFORTS = ("low", "high", "max")
PERMISSION_MODES = ("plan", "default", "accept-edits", "auto")
SANDBOXES = ("auto", "strict", "off")
THEMES = ("dark", "light", "contrast")
NOTIFY = ("auto", "always", "never")
IMAGES = ("auto", "kitty", "sixel", "blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """One `[providers.NAME]` table."""

    base_url: str = _setting("str", "", "the address, up to and with /v1")
    api_key_env: str = _setting("str", "", "the environment variable that holds the key")
    model: str = _setting("str", "", "the model to use when none is named")
    dialect: str = _setting("str", "", "moonshot, kimi-code, openrouter, vllm, sglang, llamacpp or open")
    context_window: int | None = _setting(
        "int", None, "tokens; overrides what the endpoint says", minimum=1024
    )
    max_output_tokens: int | None = _setting("int", None, "tokens of one answer", minimum=256)
    price_input: float = _setting("float", 0.0, "USD per million fresh input tokens", minimum=0)
    price_cached_input: float = _setting("float", 0.0, "USD per million cached input tokens", minimum=0)
    price_output: float = _setting("float", 0.0, "USD per million output tokens", minimum=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one run. A name `limits_max_turns` is the key `limits.max_turns`; `origins` tells
    for each key that is not a default which layer it came from; `untrusted` is a repository's file that
    was not obeyed.
    """

    model: str = _setting("str", "", "the model")
    provider: str = _setting(
        "str", "", "moonshot, moonshot-cn, kimi-code, openrouter, bundled or one of yours"
    )
    base_url: str = _setting("str", "", "address of an OpenAI-style server, up to and with /v1")
    effort: str = _setting("str", "", "how much the model thinks", choices=EFFORTS)
    context_window: int | None = _setting(
        "int", None, "tokens; overrides what the endpoint says", minimum=1024
    )
    max_output_tokens: int | None = _setting("int", None, "tokens of one answer", minimum=256)
    permission_mode: str = _setting("str", "", "what may happen without asking", choices=PERMISSION_MODES)
    allow: tuple[str, ...] = _setting("list", (), "permission rules that allow")
    deny: tuple[str, ...] = _setting("list", (), "permission rules that deny; these win")
    sandbox: str = _setting("str", "auto", "strict fails where no sandbox works", choices=SANDBOXES)
    snapshots: str = _setting(
        "str", "on", "save files before each call with effects, for `k3agent undo`", choices=("off", "on")
    )
    hooks: str = _setting("str", "on", "run the scripts that hooks.json names", choices=("off", "on"))
    memory: str = _setting(
        "str",
        "on",
        "facts of earlier sessions are told to new ones, and can be looked for",
        choices=("off", "on"),
    )
    telemetry_otlp: str = _setting(
        "str", "off", "spans and metrics of turns and calls, without contents, by OTLP", choices=("off", "on")
    )
    append_system_prompt: str = _setting("str", "", "text added to the system prompt")
    limits_max_turns: int | None = _setting("int", None, "model calls of one run", minimum=1)
    limits_max_tokens: int | None = _setting("int", None, "tokens of one run, input and output", minimum=1)
    limits_max_budget_usd: float | None = _setting("float", None, "USD of one run", minimum=0)
    limits_max_time_s: float | None = _setting("float", None, "seconds of one run", minimum=0)
    limits_command_memory_mb: int | None = _setting(
        "int",
        None,
        "memory of one command with all it starts, MB (default: 3/4 of the machine's)",
        minimum=64,
    )
    limits_command_processes: int = _setting(
        "int", 4096, "processes of one command with all it starts", minimum=1
    )
    limits_max_disk_mb: float | None = _setting(
        "float", None, "megabytes by which a run may make its workspace grow", minimum=1
    )
    checks_commands: tuple[str, ...] = _setting("list", (), "commands that must pass before done counts")
    checks_agents: str = _setting(
        "str", "off", "also run the commands listed under `# Checks` in AGENTS.md", choices=("off", "on")
    )
    checks_files: tuple[str, ...] = _setting(
        "list", (), 'files that are part of the checks, like "tests/**": the model may not change them'
    )
    checks_protect: str = _setting(
        "str", "on", "keep the files of checks, also test scripts that a check names", choices=("on", "off")
    )
    checks_retries: int = _setting("int", 3, "how often a failing check goes back to the model", minimum=0)
    compaction_share: float = _setting(
        "float",
        0.85,
        "share of the model's window at which the context is made short; 0: never",
        minimum=0,
        maximum=1,
    )
    compaction_tokens: int | None = _setting(
        "int", None, "tokens at which the context is made short, if that comes first", minimum=1024
    )
    compaction_step_usd: float | None = _setting(
        "float",
        None,
        "USD: the context is made short before reading it from the cache costs more in each step",
        minimum=0.0001,
    )
    tasks_max_parallel: int = _setting("int", 4, "subagents that work at the same time", minimum=1)
    tasks_max_depth: int = _setting(
        "int", 1, "levels of subagents; with 2 a subagent may start some of its own", minimum=1
    )
    tasks_max_turns: int = _setting("int", 60, "model calls of one subagent", minimum=2)
    tasks_max_tokens: int = _setting("int", 2_000_000, "tokens of one subagent, input and output", minimum=1)
    tasks_max_usd: float = _setting("float", 2.0, "USD of one subagent", minimum=0)
    tasks_fan_out_usd: float = _setting(
        "float", 5.0, "projected USD of subagents above which you are asked first", minimum=0
    )
    tasks_fan_out_tokens: int = _setting(
        "int", 20_000_000, "projected tokens of subagents above which you are asked first", minimum=1
    )
    retry_max_retries: int = _setting("int", 10, "repeats of one failing model call", minimum=0)
    retry_max_time_s: float = _setting(
        "float", 120.0, "seconds after which a failing call is given up", minimum=0
    )
    retry_max_retry_after_s: float = _setting(
        "float", 3600.0, "the longest wait that an endpoint may ask for, in seconds", minimum=0
    )
    network_commands: str = _setting(
        "str", "off", "whether commands in the sandbox reach the network", choices=("off", "on")
    )
    network_hosts: tuple[str, ...] = _setting(
        "list",
        (),
        'hosts that commands reach while the network is off: "pypi.org", "*.npmjs.org", "a.b:8080"',
    )
    network_connect_timeout_s: float = _setting("float", 10.0, "seconds to connect", minimum=0.1)
    network_idle_timeout_s: float = _setting(
        "float", 180.0, "longest silence after the first byte", minimum=1
    )
    server_idle_timeout_s: float = _setting(
        "float", 180.0, "seconds without a request after which the bundled server ends", minimum=1
    )
    ui_theme: str = _setting("str", "dark", "colours of the terminal UI", choices=THEMES)
    ui_images: str = _setting(
        "str",
        "auto",
        "how images are drawn: as the terminal can, or as said",
        choices=IMAGES,
    )
    ui_notify: str = _setting(
        "str", "auto", "tell when a turn ends or asks: auto (while unfocused), always, never", choices=NOTIFY
    )
    ui_screen_reader: str = _setting(
        "str", "off", "plain lines without animation or frames", choices=("off", "on")
    )
    providers: Mapping[str, ProviderSettings] = field(default_factory=dict)
    # `[mcp.NAME]` tables, each with its file; config/servers.py checks them. `mcp_files`: of --mcp-config.
    mcp: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    mcp_files: tuple[Path, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    untrusted: Path | None = None

    def get(self, key: str) -> Any:
        return getattr(self, _NAME_OF[key])

    def origin(self, key: str) -> str:
        return self.origins.get(key, DEFAULT)


_SECTIONS = ("limits", "checks", "compaction", "tasks", "retry", "network", "server", "telemetry", "ui")


def _key_of(name: str) -> str:
    section, _, rest = name.partition("_")
    return f"{section}.{rest}" if section in _SECTIONS else name


SPECS = {_key_of(item.name): item for item in fields(Settings) if item.metadata}
PROVIDER_SPECS = {item.name: item for item in fields(ProviderSettings)}
_NAME_OF = {key: item.name for key, item in SPECS.items()}


def check_value(item: Any, value: Any, where: str) -> Any:
    """`value` as the setting's kind, or ConfigError naming place, value and what is allowed."""
    kind, choices, minimum = (item.metadata[name] for name in ("kind", "choices", "minimum"))
    if kind == "list":
        if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
            raise ConfigError(f"{where}: {value!r} is no list of strings")
        return tuple(value)
    if kind == "str":
        if not isinstance(value, str):
            raise ConfigError(f"{where}: {value!r} is no string")
        if choices and value not in choices:
            raise ConfigError(
                f"{where}: {value!r} is none of {', '.join(choices)}.{did_you_mean(value, choices)}"
            )
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (kind == "int" and not isinstance(value, int)):
        raise ConfigError(f"{where}: {value!r} is no {'whole number' if kind == 'int' else 'number'}")
    if value != value or (minimum is not None and value < minimum):
        raise ConfigError(f"{where}: {value!r} is less than {minimum:g}")
    maximum = item.metadata["maximum"]
    if maximum is not None and value > maximum:
        raise ConfigError(f"{where}: {value!r} is more than {maximum:g}")
    return value if kind == "int" else float(value)


def parse_text(item: Any, text: str, where: str) -> Any:
    """A value given as text (environment, command line). Lists are separated by new lines or are JSON."""
    kind = item.metadata["kind"]
    if kind == "list":
        import json  # lazy: only for lists given as text

        if text.lstrip().startswith("["):
            try:
                return check_value(item, json.loads(text), where)
            except ValueError as error:
                raise ConfigError(f"{where}: {text!r} is no JSON list") from error
        return check_value(item, [line for line in text.splitlines() if line.strip()], where)
    if kind in {"int", "float"}:
        try:
            return check_value(item, int(text) if kind == "int" else float(text), where)
        except ValueError as error:
            kind_name = "whole number" if kind == "int" else "number"
            raise ConfigError(f"{where}: {text!r} is no {kind_name}") from error
    return check_value(item, text, where)


def load_settings(
    environ: Mapping[str, str] | None = None, cwd: Path | None = None, flags: Mapping[str, Any] | None = None
) -> Settings:
    """The settings from all layers. `flags`: key to value, already of the right kind; None values do not
    count.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    providers: dict[str, dict[str, Any]] = {}
    mcp: dict[str, tuple[str, Any]] = {}
    untrusted: Path | None = None
    _add_file(user_config(environ), values, origins, providers, mcp)
    repository = repository_configs((cwd or Path.cwd()).absolute())
    if repository is not None:
        from k3agent.config.trust import is_trusted  # lazy: hashlib and json, only where there is such a file

        if is_trusted(data_home(environ), repository[0].parent):
            for path in repository:
                _add_file(path, values, origins, providers, mcp)
        else:
            untrusted = next(path for path in repository if path.is_file())
    for key, item in SPECS.items():
        variable = f"K3AGENT_{key.upper().replace('.', '_')}"
        if environ.get(variable):
            values[key] = parse_text(item, environ[variable], f"environment variable {variable}")
            origins[key] = f"${variable}"
    for key, value in (flags or {}).items():
        if value is not None:
            values[key] = check_value(SPECS[key], value, f"the flag for {key}")
            origins[key] = "flag"
    named = {name: ProviderSettings(**table) for name, table in providers.items()}
    return Settings(
        **{_NAME_OF[key]: value for key, value in values.items()},
        providers=named,
        mcp=mcp,
        origins=origins,
        untrusted=untrusted,
    )


def _add_file(
    path: Path,
    values: dict[str, Any],
    origins: dict[str, str],
    providers: dict[str, dict[str, Any]],
    mcp: dict[str, tuple[str, Any]],
) -> None:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    import tomllib  # lazy: only where there is a file

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no valid TOML: {error}") from error
    for name, table in _take_providers(data, path, text).items():
        providers.setdefault(name, {}).update(table)
        origins[f"providers.{name}"] = str(path)
    servers = data.pop("mcp", {})
    if not isinstance(servers, dict):
        raise ConfigError(f"{path}, line {line_of(text, 'mcp')}: mcp must be tables [mcp.NAME]")
    mcp.update({name: (str(path), table) for name, table in servers.items()})
    for key, value in _flat(data):
        if value == {} and key in _SECTIONS:
            continue
        where = f"{path}, line {line_of(text, key)}"
        item = SPECS.get(key)
        if item is None:
            raise ConfigError(f"{where}: unknown key {key!r}.{did_you_mean(key, SPECS)}")
        values[key] = check_value(item, value, f"{where}, {key}")
        origins[key] = str(path)


def _take_providers(data: dict[str, Any], path: Path, text: str) -> dict[str, dict[str, Any]]:
    tables = data.pop("providers", {})
    if not isinstance(tables, dict):
        raise ConfigError(
            f"{path}, line {line_of(text, 'providers')}: providers must be tables [providers.NAME]"
        )
    out: dict[str, dict[str, Any]] = {}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(
                f"{path}, line {line_of(text, f'providers.{name}')}: [providers.{name}] is no table"
            )
        out[name] = {}
        for key, value in table.items():
            where = f"{path}, line {line_of(text, f'providers.{name}.{key}')}"
            item = PROVIDER_SPECS.get(key)
            if item is None:
                hint = did_you_mean(key, PROVIDER_SPECS)
                raise ConfigError(f"{where}: unknown key {key!r} in [providers.{name}].{hint}")
            out[name][key] = check_value(item, value, f"{where}, {key}")
    return out


def _flat(data: Mapping[str, Any]) -> list[tuple[str, Any]]:
    out: list[tuple[str, Any]] = []
    for key, value in data.items():
        if isinstance(value, dict):
            out += [(f"{key}.{inner}", entry) for inner, entry in value.items()] or [(key, value)]
        else:
            out.append((key, value))
    return out


def line_of(text: str, key: str) -> int:
    """The line on which a dotted key, or else its table, stands; 1 when it cannot be told."""
    section, table_line = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("["):
            section = stripped.strip("[]").replace('"', "").replace(" ", "")
            if key == section or key.startswith(f"{section}."):
                table_line = number
            continue
        name = stripped.partition("=")[0].strip().replace('"', "").replace("'", "")
        full = f"{section}.{name}" if section else name
        if name and (full == key or key.startswith(f"{full}.")):
            return number
    return table_line
