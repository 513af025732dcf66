"""`k3agent NAME ACTION`: finds the action, or says which there are."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from k3agent.headless.arguments import Parser, nearest_of


class ActionParser(Parser):
    """The parser of a command with actions, for those who list them."""

    actions: dict[str, Callable[..., int]]


def find_action(
    name: str,
    description: str,
    argv: Sequence[str],
    actions: dict[str, Callable[..., int]],
    default: str = "",
) -> tuple[Callable[..., int], Sequence[str]]:
    """The function for `argv[0]`, and the rest of `argv`; that of `default` where no action is named. Without
    a default it is said which there are, and that is the end.
    """
    if default and (not argv or (argv[0].startswith("-") and argv[0] not in {"-h", "--help"})):
        return actions[default], argv
    parser = ActionParser(
        name, f"{description}: {', '.join(actions)}; k3agent {name} ACTION --help shows its flags"
    )
    parser.actions = actions
    if not argv or argv[0] in {"-h", "--help"}:
        parser.add_argument("action", choices=list(actions), help="what to do")
        if argv:
            parser.parse(argv[:1])
        parser.error(f"name one of: {', '.join(actions)}.")
    if argv[0] not in actions:
        parser.error(f"unknown action {argv[0]!r}.{nearest_of(argv[0], actions)}")
    return actions[argv[0]], argv[1:]


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
