"""`k3agent login` and `k3agent logout`: a provider's key goes into the system keyring, or out of it.

The key is typed or piped in, never given as an argument, where other users could see it.
"""

from __future__ import annotations

import getpass
import os
import sys
from collections.abc import Sequence

from k3agent.config.keys import remove_key, store_key, stored
from k3agent.config.paths import data_home
from k3agent.config.settings import load_settings
from k3agent.errors import did_you_mean
from k3agent.headless.arguments import Parser
from k3agent.providers.registry import PROVIDERS

DEFAULT = "moonshot"


def login(argv: Sequence[str]) -> int:
    """`k3agent login [PROVIDER]`."""
    about = "Store a provider's key in the system keyring. The key is asked for, or read from standard input."
    parser = Parser("login", about)
    _add_provider(parser)
    parser.add_argument("--file", action="store_true", help="keep it in a file (0600) instead of the keyring")
    args = parser.parse(argv)
    variable = _variable(parser, args.provider)
    key = _read_key(args.provider).strip()
    if not key:
        parser.error(f"no key was given for {args.provider}; type it, or pipe it in.")
    if not key.isascii() or any(char.isspace() or not char.isprintable() for char in key):
        parser.error(f"the key for {args.provider} holds spaces or other odd characters; copy it again.")
    home = data_home(os.environ)
    note = store_key(home, args.provider, variable, key, in_file=args.file)
    print(f"Logged in to {args.provider}.", f"Note: {note}." if note else "The system keyring has the key.")
    if os.environ.get(variable):
        print(f"{variable} is set, too, and is what is used.", file=sys.stderr)
    return 0


def logout(argv: Sequence[str]) -> int:
    """`k3agent logout [PROVIDER]`."""
    parser = Parser("logout", "Remove a provider's stored key.")
    _add_provider(parser)
    args = parser.parse(argv)
    home = data_home(os.environ)
    if not remove_key(home, args.provider):
        known = ", ".join(stored(home)) or "none"
        parser.error(f"no key of {args.provider} is stored. Stored: {known}.")
    print(f"The key of {args.provider} is removed. It stays valid until you revoke it at the provider.")
    return 0


def _add_provider(parser: Parser) -> None:
    parser.add_argument(
        "provider", nargs="?", default=DEFAULT, metavar="PROVIDER", help=f"default: {DEFAULT}"
    )


def _variable(parser: Parser, provider: str) -> str:
    """The environment variable that holds the provider's key."""
    tables = load_settings().providers
    if provider in tables and tables[provider].api_key_env:
        return tables[provider].api_key_env
    if provider in PROVIDERS:
        return PROVIDERS[provider].key_variable
    known = [*PROVIDERS, *tables]
    parser.error(
        f"provider {provider!r} is unknown or needs no key.{did_you_mean(provider, known)}"
        f" Known: {', '.join(known)}; others get a [providers.NAME] table with api_key_env."
    )


def _read_key(provider: str) -> str:
    if sys.stdin.isatty():
        return getpass.getpass(f"Key for {provider} (it is not shown): ")
    return sys.stdin.readline()
