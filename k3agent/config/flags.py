"""Command-line flags that every front end has: what may answer, what it may do, and where."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from k3agent.config.settings import EFFORTS, PERMISSION_MODES


def add_model_and_rules(parser: ArgumentParser, default_mode: str) -> None:
    """The model, its effort, and the permission rules. `default_mode` is what the help names."""
    add = parser.add_argument
    add("--model", metavar="NAME", help="the model")
    add(
        "--provider",
        metavar="NAME",
        help="moonshot, moonshot-cn, kimi-code, openrouter, bundled, or one of yours",
    )
    add("--base-url", metavar="URL", help="an OpenAI-style server, up to and with /v1")
    add("--effort", choices=EFFORTS, help="how much the model thinks; fixed for the session")
    add(
        "--permission-mode",
        choices=PERMISSION_MODES,
        help=f"what may happen without asking (default: {default_mode})",
    )
    add(
        "--allow", action="append", default=[], metavar="RULE", help="allow what the rule matches; repeatable"
    )
    add(
        "--deny",
        action="append",
        default=[],
        metavar="RULE",
        help="deny what the rule matches; wins; repeatable",
    )


def add_folders_and_prompt(parser: ArgumentParser) -> None:
    """Where it works, and what is added to the system prompt."""
    add = parser.add_argument
    add(
        "--add-dir",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="a further folder; repeatable",
    )
    add("--cwd", type=Path, metavar="DIR", help="work in DIR")
    add("--append-system-prompt", metavar="TEXT", help="text added to the system prompt")
