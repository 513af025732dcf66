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

USAGE_ERROR = 2

COMMANDS = {
    "run": "one prompt to the end, nobody to ask (also: k3agent -p PROMPT)",
    "resume": "an earlier session in the terminal UI; without ID: choose one (-c: the newest here)",
    "sessions": "list, show, export, fork, stop, uncompact, rm",
    "tasks": "list, show: what a session set out to do, how each part stands, what shows it, its cost",
    "undo": "restores files to a step, and says what it will change first",
    "search": "words in earlier sessions of this repository",
    "memory": "list, add, edit, rm: facts kept for later sessions",
    "stats": "tokens, money and tool calls over sessions",
    "serve": "the bundled K3 engine as an OpenAI-compatible server",
    "bench": "measure, replay, load, model: how fast a served model is, and what it bears",
    "plan": "what a model needs in memory, what fits on which GPUs, how to start it",
    "acp": "Agent Client Protocol over stdio, for editors",
    "mcp": "servers of foreign tools: list, test, add, remove, login, logout; serve: k3agent as one",
    "models": "known models and where each can be reached from here",
    "config": "list, get, set, unset, path, trust",
    "login": "stores a provider's key in the system keyring",
    "logout": "removes a provider's stored key",
    "completions": "bash, zsh, fish: a script that completes k3agent's commands and flags there",
    "doctor": "what works here, what does not, and what mends it",
}

HELP = """usage: k3agent [PROMPT] [flags]       the terminal UI; k3agent resume --help shows its flags
       k3agent <command> [flags]      k3agent <command> --help shows every flag

A coding agent for the terminal, with its own inference engine for Kimi K3.

commands:
{commands}

Those with actions list where none is named.

  -p PROMPT     the same as: k3agent run PROMPT
  --version     print the version
  --help        print this; help COMMAND: its flags

Without a provider or an API key, the embedded model runs here, offline.
Example: k3agent run "run the tests and fix what fails" --check "pytest -q"
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the `k3agent` program; returns the exit code."""
    _open_closed_streams()
    _print_anything()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["help"] and arguments[1:2] and arguments[1] in COMMANDS:
        arguments = [*arguments[1:], "--help"]
    if arguments[:1] in (["--version"], ["-V"], ["version"]):
        print(f"k3agent {__version__}")
        return 0
    if arguments[:1] == ["help"] and arguments[1:] and arguments[1] not in {"help", "--help", "-h"}:
        return _unknown(arguments[1])
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


def _unknown(word: str) -> int:
    """The error for a word that is no command."""
    from k3agent.errors import did_you_mean

    hint = did_you_mean(word, COMMANDS)
    print(f"k3agent: unknown command {word!r}.{hint} See k3agent --help.", file=sys.stderr)
    return USAGE_ERROR


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


def _print_anything() -> None:
    """Half a character, or a letter that the locale's encoding lacks, is printed as an escape: no listing is
    worth less for it than none.
    """
    for stream in (sys.stdout, sys.stderr):
        # Tests and embedders put other streams here. In the locale C Python lets through the bytes that names
        # of files may hold, and no other half of a character.
        if getattr(stream, "errors", "") in {"strict", "surrogateescape"}:
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    if name in COMMANDS and name != "resume":
        return command_of(name)(arguments[1:])
    if name.startswith("-") and ("-p" in arguments or "--print" in arguments):
        at = next(at for at, word in enumerate(arguments) if word in {"-p", "--print"})
        return command_of("run")(arguments[:at] + arguments[at + 1 :])
    return terminal_ui(arguments)


def command_of(name: str) -> Callable[[list[str]], int]:
    """The function of a command: arguments in, exit code out."""
    if name == "run":
        from k3agent.headless.flags import run_command as found
    elif name == "serve":
        from k3agent.backend.cli import main as found
    elif name == "bench":
        from k3agent.backend.bench.cli import main as found
    elif name == "plan":
        from k3agent.backend.plan import main as found
    elif name in {"sessions", "tasks", "undo", "search", "memory"}:
        from importlib import import_module

        found = getattr(import_module(f"k3agent.commands.{name}"), name)
    elif name == "config":
        from k3agent.commands.config import config as found
    elif name == "mcp":
        from k3agent.commands.mcp import mcp as found
    elif name == "completions":
        from k3agent.reference.completions import completions as found
    elif name == "acp":
        from k3agent.commands.acp import acp as found
    elif name in {"login", "logout"}:
        from k3agent.commands import login

        found = getattr(login, name)
    else:
        from k3agent.commands import overviews

        found = getattr(overviews, name)
    return found


def terminal_ui(arguments: list[str]) -> int:
    """`k3agent [PROMPT]` and `k3agent resume [ID]`."""
    from k3agent.errors import did_you_mean
    from k3agent.headless.arguments import Parser
    from k3agent.tui.start import DESCRIPTION, launch

    first = arguments[0] if arguments else ""
    if first != "resume" and first.isalpha() and did_you_mean(first, COMMANDS):
        return _unknown(first)
    parser = Parser("", DESCRIPTION)
    return launch(parser, parser.parse, ["--resume", *arguments[1:]] if first == "resume" else arguments)


if __name__ == "__main__":
    sys.exit(main())
