"""`k3agent config`: settings, and the layer each value comes from."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from k3agent.commands.actions import find_action
from k3agent.commands.asking import add_yes, is_agreed
from k3agent.config.paths import (
    REPOSITORY_FOLDER,
    data_home,
    repository_configs,
    user_config,
)
from k3agent.config.places import trust_folder
from k3agent.config.settings import PROVIDER_SPECS, SPECS, Settings, load_settings, parse_text
from k3agent.config.trust import covered, fingerprint, set_trust
from k3agent.errors import ConfigError, did_you_mean
from k3agent.headless.arguments import Parser
from k3agent.safety.visible import clean


def config(argv: Sequence[str]) -> int:
    """`k3agent config [list|get|set|unset|path|trust]`."""
    actions = {
        "list": _config_list,
        "get": _config_get,
        "set": _config_set,
        "unset": _config_unset,
        "path": _config_path,
        "trust": _config_trust,
    }
    action, rest = find_action("config", "settings and the layer each comes from", argv, actions)
    return action(rest)


def _config_list(argv: Sequence[str]) -> int:
    parser = Parser("config list", "Every setting, its value and where it comes from.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse(argv)
    settings = load_settings()
    if args.json:
        entries = {key: {"value": settings.get(key), "origin": settings.origin(key)} for key in SPECS}
        print(json.dumps(entries, indent=1))
        return 0
    _print_table(settings, SPECS)
    for name in settings.providers:
        print(f"{'providers.' + name:<28} {'':<16} {settings.origin('providers.' + name)}")
    if settings.untrusted is not None:
        print(f"{settings.untrusted} is not obeyed: see `k3agent config trust`.", file=sys.stderr)
    return 0


def _print_table(settings: Settings, keys: Iterable[str]) -> None:
    for key in keys:
        value = settings.get(key)
        shown = "" if value is None else json.dumps(value, ensure_ascii=False)
        print(f"{key:<28} {shown:<16} {settings.origin(key):<10} {SPECS[key].metadata['help']}")


def _config_get(argv: Sequence[str]) -> int:
    parser = Parser("config get", "One value, or all of a group with what they mean.")
    parser.add_argument("key", metavar="KEY", help="for example limits.max_turns, or the group limits")
    args = parser.parse(argv)
    settings = load_settings()
    parts = args.key.split(".")
    if (
        len(parts) == 3
        and parts[0] == "providers"
        and parts[1] in settings.providers
        and parts[2] in PROVIDER_SPECS
    ):
        value = getattr(settings.providers[parts[1]], parts[2])
    elif args.key in SPECS:
        value = settings.get(args.key)
    elif group := [key for key in SPECS if key.startswith(f"{args.key}.")]:
        _print_table(settings, group)
        return 0
    else:
        groups = dict.fromkeys(key.partition(".")[0] for key in SPECS if "." in key)
        raise ConfigError(
            f"unknown key {args.key!r}.{did_you_mean(args.key, [*SPECS, *groups])} See `k3agent config list`."
        )
    if value is not None:
        print(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return 0


def _config_set(argv: Sequence[str]) -> int:
    from k3agent.agent.permissions import Mode, check_rules  # lazy, like the others: only to set
    from k3agent.config.edit import set_value

    parser = Parser("config set", "Write one value into your file, or the repository's.")
    parser.add_argument("key", metavar="KEY", help="for example limits.max_turns")
    parser.add_argument("value", metavar="VALUE", help="the value; lists as JSON")
    parser.add_argument("--local", action="store_true", help="into .k3agent/config.local.toml of this folder")
    args = parser.parse(argv)
    from k3agent.providers.registry import BUNDLED_NAME, PROVIDERS  # lazy: only to set

    path = _file(is_local=args.local)
    if args.key in {"allow", "deny"}:
        check_rules(Mode.DEFAULT, parse_text(SPECS[args.key], args.value, args.key))
    set_value(path, args.key, args.value)
    print(f"{args.key} is set in {path}")
    known = [*PROVIDERS, BUNDLED_NAME, *load_settings().providers]
    if args.key == "provider" and args.value not in known:
        print(
            f"no provider {args.value!r} is known.{did_you_mean(args.value, known)} Until there is a"
            f" [providers.{args.value}] in your file, runs end with an error.",
            file=sys.stderr,
        )
    return 0


def _config_unset(argv: Sequence[str]) -> int:
    from k3agent.config.edit import remove_value

    parser = Parser("config unset", "Take one value out of your file, or the repository's.")
    parser.add_argument("key", metavar="KEY", help="for example limits.max_turns")
    parser.add_argument("--local", action="store_true", help="from .k3agent/config.local.toml of this folder")
    args = parser.parse(argv)
    path = _file(is_local=args.local)
    print(f"{args.key} was{'' if remove_value(path, args.key) else ' not'} set in {path}")
    return 0


def _file(*, is_local: bool) -> Path:
    return Path.cwd() / ".k3agent" / "config.local.toml" if is_local else user_config(os.environ)


def _config_path(argv: Sequence[str]) -> int:
    Parser("config path", "Where settings, data and logs are.").parse(argv)
    home = data_home(os.environ)
    repository = repository_configs(Path.cwd()) or ()
    named = [
        ("user", user_config(os.environ)),
        *(("repository", path) for path in repository),
        ("data", home),
    ]
    for name, path in [*named, ("log", home / "logs" / "k3agent.log")]:
        print(f"{name:<11} {path}{'' if path.exists() else '  (not there)'}")
    return 0


def _config_trust(argv: Sequence[str]) -> int:
    parser = Parser(
        "config trust",
        "Obey this repository's configuration, hooks, MCP servers, agents, skills and commands as they are"
        " now. Shows them and asks.",
    )
    parser.add_argument("--revoke", action="store_true", help="take the trust back")
    add_yes(parser)
    args = parser.parse(argv)
    folder, home = trust_folder(Path.cwd()), data_home(os.environ)
    # First: what comes or changes while it is shown was not seen.
    seen = "" if args.revoke else fingerprint(folder)
    files = covered(folder)
    if not files and not folder.is_dir():
        raise ConfigError(
            f"there is no {REPOSITORY_FOLDER} folder from {Path.cwd()} up to the repository's root"
        )
    if args.revoke:
        set_trust(home, folder, is_trusted=False)
        print(f"{folder} is no longer trusted.")
        return 0
    for path in files:
        text = path.read_text(encoding="utf-8", errors="replace")
        print(clean(f"--- {path}\n{text}"))
    number = f"{len(files)} file{'s' * (len(files) != 1)}"
    if not (args.yes or is_agreed(parser, f"Trust {folder} with the {number} shown?")):
        print("Nothing was trusted.")
        return 1
    set_trust(home, folder, is_trusted=True, seen=seen)
    print(f"{folder} is trusted until it changes.")
    return 0
