"""An argument parser that names the nearest flag for an unknown one, and checked number types."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import NoReturn

from k3agent.errors import did_you_mean
from k3agent.safety.paths import is_folder

# What a flag that a command lacks means in others.
_ELSEWHERE = {"-c": ("--continue",)}

_stops_at_parse: ContextVar[bool] = ContextVar("stops_at_parse", default=False)


class Parser(argparse.ArgumentParser):
    """Exits with 2 and one line; abbreviations of flags are not accepted, because they break when flags are
    added.
    """

    def __init__(self, name: str, description: str) -> None:
        super().__init__(prog=f"k3agent {name}", description=description, allow_abbrev=False)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        if _stops_at_parse.get():
            raise _Stopped(self)
        options, unknown = self.parse_known_args(argv)
        flags = [word for word in unknown if word.startswith("-") and word != "-"]
        if flags:
            flag = flags[0].partition("=")[0]
            known = self._option_string_actions
            meant = next((name for name in _ELSEWHERE.get(flag, ()) if name in known), "")
            hint = f" Did you mean {meant}?" if meant else did_you_mean(flag, known)
            self.error(f"unknown flag {flag}.{hint}")
        if unknown:
            quotes = (
                " A prompt of several words needs quotes." if self.prog in {"k3agent", "k3agent run"} else ""
            )
            self.error(f"one argument too many: {unknown[0]!r}.{quotes}")
        return options

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            hint = did_you_mean(str(value), known)
            raise argparse.ArgumentError(action, f"{value!r} is none of {', '.join(known)}.{hint}")

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith((".", "?", "!")) else "."
        print(f"{self.prog}: {message}{end} See {self.prog} --help.", file=sys.stderr)
        sys.exit(2)


class _Stopped(BaseException):
    """A command has come to the check of its arguments. No `Exception`: commands may catch those."""

    def __init__(self, parser: Parser) -> None:
        super().__init__()
        self.parser = parser


def parser_of(command: Callable[[], object]) -> Parser:
    """The parser that a command makes. It is stopped where it would check its arguments, the first thing that
    each command does.
    """
    token = _stops_at_parse.set(True)
    try:
        command()
    except _Stopped as stopped:
        return stopped.parser
    finally:
        _stops_at_parse.reset(token)
    raise RuntimeError(f"{command} ended without a check of its arguments; it must call Parser.parse first")


def check_file(parser: Parser, flag: str, file: Path | None) -> None:
    """Ends with a usage error where a file that is to be written cannot be."""
    if file is None:
        return
    if is_folder(file):
        parser.error(f"{flag} {file}: it is a folder; name a file.")
    if not is_folder(file.absolute().parent):
        parser.error(f"{flag} {file}: its folder is not there.")


def positive_int(text: str) -> int:
    try:
        value = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from error
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def natural_int(text: str) -> int:
    if text.strip() == "0":
        return 0
    return positive_int(text)


def positive_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from error
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return value
