"""Every command with its parser, none of them run: completions, the manual page and the site come from it."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from k3agent.cli import COMMANDS, command_of, terminal_ui
from k3agent.commands.actions import ActionParser, parsers_of, summaries_of
from k3agent.headless.arguments import parser_of


@dataclass(frozen=True, slots=True)
class Value:
    """What may stand behind a flag, or alone: one of `words`, or what `kind` says."""

    kind: str = ""
    """words, file, folder, session, or nothing that can be known."""
    words: tuple[str, ...] = ()
    name: str = ""
    """As the help calls it."""


@dataclass(frozen=True, slots=True)
class Flag:
    names: tuple[str, ...]
    help: str
    value: Value | None = None
    """None: the flag takes none."""
    needs_value: bool = False
    is_repeatable: bool = False


@dataclass(frozen=True, slots=True)
class Operand:
    """An argument that is no flag."""

    value: Value
    help: str
    is_needed: bool = True
    is_repeatable: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """One command or action. `words` lead to it; none lead to the terminal UI."""

    words: tuple[str, ...]
    summary: str
    parser: ArgumentParser
    actions: dict[str, str] = field(default_factory=dict)
    """Words that may follow, and what each means."""
    flags: tuple[Flag, ...] = ()
    operands: tuple[Operand, ...] = ()

    @property
    def path(self) -> str:
        return " ".join(self.words)


def places() -> list[Place]:
    """The terminal UI, then every command, each followed by its actions."""
    root = parser_of(partial(terminal_ui, []))
    found = [_place((), root.description or "", root, dict(COMMANDS))]
    for name, summary in COMMANDS.items():
        if name == "resume":
            found.append(_resume(root, summary))
        elif name == "bench":
            found += _bench(summary)
        elif name in {"serve", "plan"}:
            found.append(_place((name,), summary, _engine_parser(name)))
        else:
            found += _command(name, summary)
    return found


def _command(name: str, summary: str) -> Iterator[Place]:
    parser = parser_of(partial(command_of(name), ["--help"]))
    if not isinstance(parser, ActionParser):
        yield _place((name,), summary, parser)
        return
    below, actions = parsers_of(parser.actions), summaries_of(parser.actions)
    yield _place((name,), summary, parser, actions)
    for action, made in below.items():
        yield _place((name, action), made.description or "", made)


def _resume(root: ArgumentParser, summary: str) -> Place:
    made = _place(("resume",), summary, root)
    session = Operand(Value("session", name="ID"), "the session's id, or its beginning", is_needed=False)
    flags = tuple(flag for flag in made.flags if "--resume" not in flag.names)
    return Place(made.words, summary, root, {}, flags, (session, *made.operands))


def _bench(summary: str) -> Iterator[Place]:
    from k3agent.backend.bench.cli import COMMANDS as measurements
    from k3agent.backend.bench.cli import parser

    yield _place(("bench",), summary, parser("measure"), measurements)
    for name, text in measurements.items():
        yield _place(("bench", name), text, parser(name))


def _engine_parser(name: str) -> ArgumentParser:
    if name == "serve":
        from k3agent.backend.cli import parser
    else:
        from k3agent.backend.plan import parser
    return parser()


def _place(
    words: tuple[str, ...], summary: str, parser: ArgumentParser, actions: dict[str, str] | None = None
) -> Place:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    flags = [_flag(parser, action, words) for action in shown if action.option_strings]
    # The parser of a command with actions names them as its only operand.
    operands = [
        Operand(
            _value(action, words),
            _help(parser, action),
            is_needed=action.nargs not in ("?", "*"),
            is_repeatable=action.nargs in ("+", "*"),
        )
        for action in shown
        if not action.option_strings and not isinstance(parser, ActionParser)
    ]
    return Place(words, " ".join(summary.split()), parser, actions or {}, tuple(flags), tuple(operands))


def _flag(parser: ArgumentParser, action: argparse.Action, words: tuple[str, ...]) -> Flag:
    takes_value = action.nargs != 0
    return Flag(
        tuple(action.option_strings),
        _help(parser, action),
        _value(action, words) if takes_value else None,
        needs_value=takes_value and action.nargs != "?",
        is_repeatable=isinstance(action, argparse._AppendAction),
    )


def _help(parser: ArgumentParser, action: argparse.Action) -> str:
    """One line, with the values that argparse puts in."""
    if action.option_strings[:1] == ["-h"]:
        return "show every flag"
    return " ".join(((action.help or "") % {**vars(action), "prog": parser.prog}).split())


def _value(action: argparse.Action, words: tuple[str, ...]) -> Value:
    name = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices is not None:
        return Value("words", tuple(map(str, action.choices)), name)
    if words[:1] == ("config",) and name == "KEY":
        from k3agent.config.settings import SPECS

        return Value("words", tuple(SPECS), name)
    if words[:1] in (("login",), ("logout",)) and name == "PROVIDER":
        from k3agent.providers.registry import PROVIDERS

        return Value("words", tuple(PROVIDERS), name)
    if action.dest in {"resume", "session"} or (action.dest == "id" and name == "ID"):
        return Value("session", name=name)
    if "DIR" in name.split("|"):
        return Value("folder", name=name)
    if name == "FILE" or action.type is Path:
        return Value("file", name=name)
    return Value(name=name)
