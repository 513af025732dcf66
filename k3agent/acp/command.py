"""`k3agent acp`: serves one editor over standard input and output until it closes them."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import ArgumentParser
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from k3agent.acp.server import Server, ServerOptions
from k3agent.acp.stdio import serve
from k3agent.types import JsonObject

if TYPE_CHECKING:
    from argparse import Namespace

DESCRIPTION = (
    "Agent Client Protocol over standard input and output, for editors. An editor starts it; sessions, their"
    " folders and prompts come from there."
)


def add_flags(parser: ArgumentParser) -> None:
    """Every flag with one line of help; all hold for each session of the editor."""
    from k3agent.config.flags import add_model_and_rules
    from k3agent.config.settings import SANDBOXES

    add_model_and_rules(parser, "default")
    add = parser.add_argument
    add("--sandbox", choices=SANDBOXES, help="strict fails where no sandbox works (default: auto)")
    add("--append-system-prompt", metavar="TEXT", help="text added to the system prompt")


def taken_back(number: int) -> tuple[str, JsonObject]:
    """The notification that a request of ours needs no answer any more."""
    return "$/cancel_request", {"requestId": number}


def run(args: Namespace, environ: Mapping[str, str]) -> int:
    """Serve until the editor closes its end, or a signal comes; the exit code."""
    from k3agent.config.keys import with_stored_keys
    from k3agent.config.paths import data_home
    from k3agent.logs import start_logging

    home = data_home(environ)
    start_logging(home, environ)
    names = ("model", "provider", "base_url", "effort", "permission_mode", "sandbox", "append_system_prompt")
    flags: dict[str, Any] = {name: getattr(args, name) for name in names}
    options = ServerOptions(
        environ=with_stored_keys(environ, home),
        home=home,
        flags=flags,
        allow=tuple(args.allow),
        deny=tuple(args.deny),
    )
    if sys.stdin.isatty():
        print("k3agent acp: waits for an editor's messages; see docs/guide/editors.md.", file=sys.stderr)
    signum = asyncio.run(serve(Server(options), taken_back))
    # The thread that reads standard input may wait for ever: nothing is left that needs an orderly end.
    os._exit(128 + signum if signum else 0)
