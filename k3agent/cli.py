"""The command line: finds the command, checks its flags, and imports only what that command needs.

`--version` and `--help` answer before anything else is loaded; every import below the top is lazy for
start-up time.
"""

from __future__ import annotations

import os
import sys

from k3agent import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from k3agent.store.records import SessionRow
    from k3agent.store.sessions import SessionStore

USAGE_ERROR = 2

COMMANDS = {
    "run": "one prompt to the end, nobody to ask (also: k3agent -p PROMPT)",
    "resume": "an earlier session in the terminal UI; without ID: choose one (-c: the newest here)",
    "sessions": "list, show, export, fork, uncompact, rm",
    "stats": "tokens, money and tool calls over sessions",
    "serve": "the bundled K3 engine as an OpenAI-compatible server",
    "bench": "how fast a served model is: prefill, decode, prefix hits; load",
    "plan": "what a model needs in memory, what fits on which GPUs, how to start it",
    "models": "known models and where each can be reached from here",
    "config": "list, get, set, path, trust",
    "doctor": "what works here, what does not, and what mends it",
}

HELP = """usage: k3agent [PROMPT] [flags]       the terminal UI; k3agent resume --help shows its flags
       k3agent <command> [flags]      k3agent <command> --help shows every flag

A coding agent for the terminal, with its own inference engine for Kimi K3.

commands:
{commands}

  -p PROMPT     the same as: k3agent run PROMPT
  --version     print the version
  --help        print this

Without a provider or an API key, the embedded model runs here, offline.
Example: k3agent run "run the tests and fix what fails" --check "pytest -q"
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `k3agent` program; returns the exit code."""
    _open_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] in (["--version"], ["-V"]):
        print(f"k3agent {__version__}")
        return 0
    if arguments[:1] in (["--help"], ["-h"], ["help"]):
        width = max(map(len, COMMANDS))
        print(
            HELP.format(commands="\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())),
            end="",
        )
        return 0
    try:
        return _dispatch(arguments)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of a listing (head, less) has left; python must not complain about it again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from k3agent.headless.failed import tell

        return tell(error)


def _open_closed_streams() -> None:
    """Started with `>&-`: else the next file that is opened, the session store perhaps, would get what is
    printed.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is taken, and those below are open by now.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - lives to the end


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    if name in COMMANDS and name != "resume":
        return _command(name)(arguments[1:])
    if name.startswith("-") and ("-p" in arguments or "--print" in arguments):
        at = next(at for at, word in enumerate(arguments) if word in {"-p", "--print"})
        return _command("run")(arguments[:at] + arguments[at + 1 :])
    return _terminal_ui(arguments)


def _command(name: str) -> Callable[[list[str]], int]:
    if name == "run":
        from k3agent.headless.flags import run_command as found
    elif name == "serve":
        from k3agent.backend.cli import main as found
    elif name == "bench":
        from k3agent.backend.bench.cli import main as found
    elif name == "plan":
        from k3agent.backend.plan import main as found
    else:
        own = {"sessions": sessions, "stats": stats, "models": models, "config": config, "doctor": doctor}
        found = own[name]
    return found


def _terminal_ui(arguments: list[str]) -> int:
    """`k3agent [PROMPT]` and `k3agent resume [ID]`."""
    from k3agent.headless.arguments import Parser, nearest_of
    from k3agent.tui.start import DESCRIPTION, launch

    first = arguments[0] if arguments else ""
    if first != "resume" and first.isalpha() and (hint := nearest_of(first, COMMANDS)):
        print(f"k3agent: unknown command {first!r}.{hint} See k3agent --help.", file=sys.stderr)
        return USAGE_ERROR
    parser = Parser("", DESCRIPTION)
    return launch(parser, parser.parse, ["--resume", *arguments[1:]] if first == "resume" else arguments)


# --- sessions ---


def sessions(argv: Sequence[str]) -> int:
    """`k3agent sessions list|show|export|fork|uncompact|rm`."""
    from k3agent.config.paths import data_home
    from k3agent.store.sessions import SessionStore

    actions = {"list": _list, "show": _show, "export": _export, "fork": _fork}
    actions.update({"uncompact": _uncompact, "rm": _remove})
    action, rest = _action("sessions", "earlier sessions", argv, actions)
    store = SessionStore(data_home(os.environ))
    try:
        return action(store, rest)
    finally:
        store.close()


def _action(name: str, description: str, argv: Sequence[str], actions: dict) -> tuple:
    from k3agent.headless.arguments import Parser, nearest_of

    parser = Parser(
        name, f"{description}: {', '.join(actions)}; k3agent {name} ACTION --help shows its flags"
    )
    if not argv or argv[0] in {"-h", "--help"}:
        parser.add_argument("action", choices=list(actions), help="what to do")
        if argv:
            parser.print_help()
            sys.exit(0)
        parser.error(f"name one of: {', '.join(actions)}.")
    if argv[0] not in actions:
        parser.error(f"unknown action {argv[0]!r}.{nearest_of(argv[0], actions)}")
    return actions[argv[0]], argv[1:]


def _row(store: SessionStore, prefix: str) -> SessionRow:
    from k3agent.errors import StoreError

    found = store.resolve(prefix)
    row = next((row for row in store.list_sessions() if row.id == found), None)
    if row is None:
        raise StoreError(f"no session {prefix!r}; `k3agent sessions list` shows them")
    return row


def _list(store: SessionStore, argv: Sequence[str]) -> int:
    import json
    from pathlib import Path

    from k3agent.export import row_to_dict
    from k3agent.headless.arguments import Parser

    parser = Parser("sessions list", "All sessions, newest first.")
    parser.add_argument("--json", action="store_true", help="one JSON array")
    parser.add_argument("--here", action="store_true", help="only those of this folder")
    args = parser.parse(argv)
    rows = store.list_sessions(Path.cwd() if args.here else None)
    if args.json:
        print(json.dumps([row_to_dict(row) for row in rows], ensure_ascii=False, indent=1))
        return 0
    for row in rows:
        title = " ".join(row.title.split())[:60]
        print(
            f"{row.id}  {row.updated_at:%Y-%m-%d %H:%M}  {row.num_messages:4} messages  {row.model:<14}  "
            f"{title}  ({row.cwd})"
        )
    if not rows:
        nothing = (
            "No sessions of this folder; without --here all are shown." if args.here else "No sessions yet."
        )
        print(nothing, file=sys.stderr)
    return 0


def _show(store: SessionStore, argv: Sequence[str]) -> int:
    from k3agent.export import export_session
    from k3agent.headless.arguments import Parser
    from k3agent.headless.output import print_foreign

    parser = Parser("sessions show", "A session's conversation.")
    parser.add_argument("id", metavar="ID", help="the session's id, or its beginning")
    args = parser.parse(argv)
    row = _row(store, args.id)
    print_foreign(export_session(row, store.messages(row.id), "md", store.compactions(row.id)) + "\n")
    return 0


def _export(store: SessionStore, argv: Sequence[str]) -> int:
    from pathlib import Path

    from k3agent.export import FORMATS, export_session
    from k3agent.headless.arguments import Parser
    from k3agent.headless.output import print_foreign

    parser = Parser("sessions export", "A session as a file.")
    parser.add_argument("id", metavar="ID", help="the session's id, or its beginning")
    parser.add_argument("--format", choices=FORMATS, default="md", help="the kind of file (default: md)")
    parser.add_argument(
        "-o", dest="file", type=Path, metavar="FILE", help="into FILE instead of standard output"
    )
    args = parser.parse(argv)
    row = _row(store, args.id)
    text = export_session(row, store.messages(row.id), args.format, store.compactions(row.id))
    if args.file is None:
        print_foreign(text)
    else:
        args.file.write_text(text, encoding="utf-8")
    return 0


def _fork(store: SessionStore, argv: Sequence[str]) -> int:
    import uuid

    from k3agent.headless.arguments import Parser
    from k3agent.types import SessionId

    parser = Parser("sessions fork", "A new session that starts from all of another; prints its id.")
    parser.add_argument("id", metavar="ID", help="the session's id, or its beginning")
    args = parser.parse(argv)
    print(store.fork(store.resolve(args.id), SessionId(str(uuid.uuid4()))).id)
    return 0


def _uncompact(store: SessionStore, argv: Sequence[str]) -> int:
    from k3agent.headless.arguments import Parser

    parser = Parser("sessions uncompact", "Undo the newest compaction: the whole conversation goes on.")
    parser.add_argument("id", metavar="ID", help="the session's id, or its beginning")
    found = store.resolve(parser.parse(argv).id)
    lock = store.lock(found)
    try:
        is_done = store.undo_compaction(found)
    finally:
        lock.release()
    print(f"undone in {found}" if is_done else f"{found} has no compaction to undo")
    return 0 if is_done else 1


def _remove(store: SessionStore, argv: Sequence[str]) -> int:
    from k3agent.headless.arguments import Parser

    parser = Parser("sessions rm", "Delete sessions for good.")
    parser.add_argument("ids", nargs="+", metavar="ID", help="ids, or their beginnings")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    args = parser.parse(argv)
    rows = [_row(store, prefix) for prefix in args.ids]
    if not args.yes:
        if not sys.stdin.isatty():
            parser.error("there is nobody to ask here; say --yes.")
        for row in rows:
            print(f"{row.id}  {row.title}  ({row.num_messages} messages)")
        if input(f"Delete {len(rows)} for good? [y/N] ").strip().lower() not in {"y", "yes"}:
            return 1
    for row in rows:
        store.delete(row.id)
        print(f"deleted {row.id}")
    return 0


# --- stats ---


def stats(argv: Sequence[str]) -> int:
    """`k3agent stats`: figures over sessions."""
    import json
    from pathlib import Path

    from k3agent.config.paths import data_home
    from k3agent.headless.arguments import Parser
    from k3agent.stats import figures
    from k3agent.store.sessions import SessionStore

    parser = Parser("stats", "Tokens, money and tool calls over sessions.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--here", action="store_true", help="only sessions of this folder")
    args = parser.parse(argv)
    store = SessionStore(data_home(os.environ))
    try:
        found = figures(store, Path.cwd() if args.here else None)
    finally:
        store.close()
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name.replace('_', ' '):<{width}}  {value}")
    return 0


# --- models ---


def models(argv: Sequence[str]) -> int:
    """`k3agent models`: what is known and what can be reached; nothing is asked over the network."""
    import json

    from k3agent.config.settings import load_settings
    from k3agent.headless.arguments import Parser
    from k3agent.providers.registry import reachable_models

    parser = Parser("models", "Known models, and where each can be reached from here.")
    parser.add_argument("--json", action="store_true", help="one JSON array")
    args = parser.parse(argv)
    rows = reachable_models(os.environ, load_settings().providers)
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        window = f"{row['context_window']:,}" if row["context_window"] else "-"
        note = f"  ({row['note']})" if row["note"] else ""
        print(f"{row['model']:<24} {row['provider']:<12} {window:>10}  {row['reach']}{note}")
    return 0


# --- config ---


def config(argv: Sequence[str]) -> int:
    """`k3agent config list|get|set|path|trust`."""
    actions = {
        "list": _config_list,
        "get": _config_get,
        "set": _config_set,
        "path": _config_path,
        "trust": _config_trust,
    }
    action, rest = _action("config", "settings and the layer each comes from", argv, actions)
    return action(rest)


def _config_list(argv: Sequence[str]) -> int:
    import json

    from k3agent.config.settings import SPECS, load_settings
    from k3agent.headless.arguments import Parser

    parser = Parser("config list", "Every setting, its value and where it comes from.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse(argv)
    settings = load_settings()
    if args.json:
        entries = {key: {"value": settings.get(key), "origin": settings.origin(key)} for key in SPECS}
        print(json.dumps(entries, indent=1))
        return 0
    for key, item in SPECS.items():
        value = settings.get(key)
        shown = "" if value is None else json.dumps(value, ensure_ascii=False)
        print(f"{key:<28} {shown:<16} {settings.origin(key):<10} {item.metadata['help']}")
    for name in settings.providers:
        print(f"{'providers.' + name:<28} {'':<16} {settings.origin('providers.' + name)}")
    if settings.untrusted is not None:
        print(f"{settings.untrusted} is not obeyed: see `k3agent config trust`.", file=sys.stderr)
    return 0


def _config_get(argv: Sequence[str]) -> int:
    import json

    from k3agent.config.settings import PROVIDER_SPECS, SPECS, load_settings
    from k3agent.errors import ConfigError
    from k3agent.headless.arguments import Parser, nearest_of

    parser = Parser("config get", "One value.")
    parser.add_argument("key", metavar="KEY", help="for example limits.max_turns")
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
    else:
        raise ConfigError(
            f"unknown key {args.key!r}.{nearest_of(args.key, SPECS)} See `k3agent config list`."
        )
    if value is not None:
        print(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return 0


def _config_set(argv: Sequence[str]) -> int:
    from pathlib import Path

    from k3agent.config.edit import set_value
    from k3agent.config.paths import user_config
    from k3agent.headless.arguments import Parser

    parser = Parser("config set", "Write one value into your file, or the repository's.")
    parser.add_argument("key", metavar="KEY", help="for example limits.max_turns")
    parser.add_argument("value", metavar="VALUE", help="the value; lists as JSON")
    parser.add_argument("--local", action="store_true", help="into .k3agent/config.local.toml of this folder")
    args = parser.parse(argv)
    path = Path.cwd() / ".k3agent" / "config.local.toml" if args.local else user_config(os.environ)
    set_value(path, args.key, args.value)
    print(f"{args.key} is set in {path}")
    return 0


def _config_path(argv: Sequence[str]) -> int:
    from pathlib import Path

    from k3agent.config.paths import data_home, repository_configs, user_config
    from k3agent.headless.arguments import Parser

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
    from pathlib import Path

    from k3agent.config.paths import data_home, repository_configs
    from k3agent.config.trust import set_trust
    from k3agent.errors import ConfigError
    from k3agent.headless.arguments import Parser

    parser = Parser("config trust", "Obey this repository's configuration, as it is now.")
    parser.add_argument("--revoke", action="store_true", help="take the trust back")
    args = parser.parse(argv)
    paths = repository_configs(Path.cwd())
    if paths is None:
        raise ConfigError(f"there is no .k3agent/config.toml from {Path.cwd()} up to the repository's root")
    if not args.revoke:
        for path in paths:
            if path.is_file():
                print(f"--- {path}\n{path.read_text(encoding='utf-8', errors='replace')}")
    set_trust(data_home(os.environ), paths, is_trusted=not args.revoke)
    print(f"{paths[0].parent} is {'no longer trusted' if args.revoke else 'trusted until it changes'}.")
    return 0


# --- doctor ---


def doctor(argv: Sequence[str]) -> int:
    """`k3agent doctor`."""
    from pathlib import Path

    from k3agent.doctor import report
    from k3agent.headless.arguments import Parser

    parser = Parser("doctor", "What works here, what does not, and the command that mends each.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse(argv)
    return report(os.environ, Path.cwd(), as_json=args.json)


if __name__ == "__main__":
    sys.exit(main())
