"""`k3agent NAME ACTION`: finds the action; without one a command lists."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Sequence
from functools import partial

from k3agent.errors import did_you_mean
from k3agent.headless.arguments import Parser, parser_of

DEFAULT = "list"


class ActionParser(Parser):
    """The parser of a command with actions, for those who list them."""

    actions: dict[str, Callable[..., int]]


def find_action(
    name: str, description: str, argv: Sequence[str], actions: dict[str, Callable[..., int]]
) -> tuple[Callable[..., int], Sequence[str]]:
    """The function for `argv[0]`, and the rest of `argv`; that of `list` where no action is named."""
    if not argv or (argv[0].startswith("-") and argv[0] not in {"-h", "--help"}):
        return actions[DEFAULT], argv
    parser = ActionParser(name, f"{description}; k3agent {name} ACTION --help shows the flags of one")
    parser.actions = actions
    if argv[0] in {"-h", "--help"}:
        parser.add_argument(
            "action",
            nargs="?",
            choices=list(actions),
            metavar="ACTION",
            help=f"what to do: see below (default: {DEFAULT})",
        )
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        width = max(map(len, actions))
        rows = [f"  {action:<{width}}  {text}" for action, text in summaries_of(actions).items()]
        parser.epilog = "\n".join(["actions:", *rows])
        parser.parse(argv[:1])
    if argv[0] not in actions:
        parser.error(f"unknown action {argv[0]!r}.{did_you_mean(argv[0], actions)}")
    return actions[argv[0]], argv[1:]


def parsers_of(actions: dict[str, Callable[..., int]]) -> dict[str, Parser]:
    """The parser of each action. Some actions are given the session store first; they parse before they look
    at it.
    """

    def empty(function: Callable[..., int]) -> Callable[[], int]:
        needs_store = len(inspect.signature(function).parameters) == 2
        return partial(function, None, []) if needs_store else partial(function, [])

    return {action: parser_of(empty(function)) for action, function in actions.items()}


def summaries_of(actions: dict[str, Callable[..., int]]) -> dict[str, str]:
    """The first sentence of what each action is for."""
    made = parsers_of(actions)
    return {name: (one.description or "").partition(". ")[0].rstrip(".") for name, one in made.items()}


def add_scope(
    parser: argparse.ArgumentParser, what: str, here: str, everywhere: str, *, is_here: bool
) -> None:
    """`--here` and `--all`, of which one is the default, as `is_here`: the same in all commands that list.
    `what` is listed, of `here` or of `everywhere`.
    """
    scope = parser.add_mutually_exclusive_group()
    for flag, place, value in (("--here", here, True), ("--all", everywhere, False)):
        default = " (default)" if value is is_here else ""
        scope.add_argument(
            flag,
            dest="is_here",
            action="store_const",
            const=value,
            default=is_here,
            help=f"{what} of {place}{default}",
        )
