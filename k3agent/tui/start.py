"""`k3agent` and `k3agent resume`: the flags of the UI, and its start.

Textual is imported only after the flags are known to be right, the agent only after the first frame.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3agent import __version__

NO_TERMINAL = "k3agent: the UI needs a terminal on standard input and output. Without one: {use}."
USAGE_ERROR = 2
DESCRIPTION = "The terminal UI in the current folder; with a prompt, it is submitted at once."
USAGE = """k3agent [PROMPT] [flags]
       k3agent resume [ID] [PROMPT] [flags]   without ID: choose a session; -c: the newest of this folder"""


@dataclass(frozen=True, slots=True, kw_only=True)
class UiOptions:
    """How the UI is started. `flags` are settings given on the command line, by key."""

    cwd: Path
    environ: Mapping[str, str]
    home: Path
    flags: Mapping[str, Any]
    prompt: str = ""
    resume_id: str | None = None
    continues_newest: bool = False
    picks: bool = False
    forks: bool = False
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    extra_dirs: tuple[Path, ...] = ()
    images: tuple[Path, ...] = ()


def add_flags(parser: ArgumentParser) -> None:
    """Every flag with one line of help."""
    from k3agent.config.flags import add_folders_and_prompt, add_model_and_rules
    from k3agent.config.settings import SANDBOXES

    add = parser.add_argument
    add("--version", action="version", version=__version__, help="print the version")
    add("prompt", nargs="?", metavar="PROMPT", help="submitted at once")
    add(
        "-c",
        "--continue",
        action="store_true",
        dest="continues",
        help="go on with this folder's newest session",
    )
    add("--resume", nargs="?", const="", metavar="ID", help="the same as: k3agent resume [ID]")
    add("--fork-session", action="store_true", help="with --resume or --continue: as a new session")
    add_model_and_rules(parser, "default")
    add("--sandbox", choices=SANDBOXES, help="strict fails where no sandbox works (default: auto)")
    add("--theme", metavar="NAME", help="dark, light or contrast")
    add("--image", action="append", default=[], type=Path, metavar="FILE", help="show an image; repeatable")
    add_folders_and_prompt(parser)


def launch(parser: ArgumentParser, parse: Callable[[Sequence[str]], Namespace], argv: Sequence[str]) -> int:
    """Run the UI to its end; the exit code. `parse` is the parser's own way to check its arguments."""
    parser.prog = "k3agent"
    parser.usage = USAGE
    add_flags(parser)
    args = parse(argv)
    if args.resume is not None and args.continues:
        parser.error("--resume and --continue exclude each other.")
    if args.fork_session and args.resume is None and not args.continues:
        parser.error("--fork-session needs --resume ID or --continue.")
    try:
        cwd = (args.cwd or Path.cwd()).expanduser().absolute()
    except (FileNotFoundError, RuntimeError):
        parser.error("the folder it was started in, or the user's home, is not there; name one with --cwd.")
    if not cwd.is_dir():
        parser.error(f"--cwd {args.cwd}: no such folder.")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print(NO_TERMINAL.format(use=_without_terminal(args)), file=sys.stderr)
        return USAGE_ERROR
    from k3agent.config.keys import with_stored_keys
    from k3agent.config.paths import data_home

    home = data_home(os.environ)
    options = UiOptions(
        cwd=cwd,
        environ=with_stored_keys(os.environ, home),
        home=home,
        flags=_flags(args),
        prompt=args.prompt or "",
        resume_id=args.resume or None,
        continues_newest=args.continues,
        picks=args.resume == "",
        forks=args.fork_session,
        allow=tuple(args.allow),
        deny=tuple(args.deny),
        extra_dirs=tuple(path.expanduser().absolute() for path in args.add_dir),
        images=tuple(args.image),
    )
    return run(options)


def _without_terminal(args: Namespace) -> str:
    """The headless command for what was asked."""
    if args.resume:
        return f"k3agent run --resume {args.resume}, with or without a further prompt"
    if args.resume is not None:
        return "k3agent run --resume ID; k3agent sessions list shows the ids"
    if args.continues:
        return "k3agent run --continue, with or without a further prompt"
    return 'k3agent run "..." with that prompt' if args.prompt else 'k3agent run "PROMPT"'


def _flags(args: Namespace) -> dict[str, Any]:
    names = ("model", "provider", "base_url", "effort", "permission_mode", "sandbox", "append_system_prompt")
    found = {name: getattr(args, name) for name in names}
    return {**found, "ui.theme": args.theme}


def run(options: UiOptions, *, prepare: Callable[[Any], None] | None = None) -> int:
    """Start logging, load the settings, show the UI. `prepare` gets the app before it runs."""
    import asyncio
    import contextlib
    import gc

    # Nothing becomes garbage while modules load; the app switches the collector on again.
    gc.disable()
    from k3agent.config.settings import load_settings
    from k3agent.logs import start_logging

    start_logging(options.home, options.environ)
    settings = load_settings(options.environ, options.cwd, options.flags)
    from k3agent.tui.app import K3App  # lazy: Textual, 0.25 s

    app = K3App(options, settings)
    if prepare is not None:
        prepare(app)
    asyncio.run(app.run_to_the_end())
    if app.farewell and not app.has_lost_terminal:
        with contextlib.suppress(OSError):
            # The terminal may have gone this very moment.
            print(app.farewell, flush=True)
    return int(app.return_code or 0)
