"""The question before a command does what is hard to take back."""

from __future__ import annotations

import argparse
import sys


def add_yes(parser: argparse.ArgumentParser) -> None:
    """The flag that answers for whoever is not there to be asked."""
    parser.add_argument("--yes", action="store_true", help="do not ask")


def is_agreed(parser: argparse.ArgumentParser, question: str, otherwise: str = "") -> bool:
    """Ask on the terminal; the end of input is a no. Without a terminal it is a usage error, which names
    `--yes` and `otherwise`, what else can be said.
    """
    if not sys.stdin.isatty():
        parser.error(f"there is nobody to ask here; say --yes{otherwise}.")
    try:
        return input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}
    except EOFError:
        print()
        return False
