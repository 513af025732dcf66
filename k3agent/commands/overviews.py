"""`k3agent stats`, `k3agent models` and `k3agent doctor`: what there is, in a table or as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from k3agent.commands.actions import add_scope
from k3agent.config.keys import with_stored_keys
from k3agent.config.paths import data_home
from k3agent.config.settings import load_settings
from k3agent.headless.arguments import Parser
from k3agent.store.sessions import SessionStore


def stats(argv: Sequence[str]) -> int:
    """`k3agent stats`: figures over sessions."""
    from k3agent.stats import figures

    parser = Parser("stats", "Tokens, money and tool calls over sessions.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_scope(parser, "sessions", "this folder", "all folders", is_here=False)
    args = parser.parse(argv)
    store = SessionStore(data_home(os.environ))
    try:
        found = figures(store, Path.cwd() if args.is_here else None)
    finally:
        store.close()
    if args.json:
        print(json.dumps(found, indent=1))
        return 0
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name.replace('_', ' '):<{width}}  {value}")
    return 0


def models(argv: Sequence[str]) -> int:
    """`k3agent models`: what is known and what can be reached; nothing is asked over the network."""
    from k3agent.providers.registry import reachable_models

    parser = Parser("models", "Known models, and where each can be reached from here.")
    parser.add_argument("--json", action="store_true", help="one JSON array")
    args = parser.parse(argv)
    rows = reachable_models(with_stored_keys(os.environ, data_home(os.environ)), load_settings().providers)
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        window = f"{row['context_window']:,}" if row["context_window"] else "-"
        note = f"  ({row['note']})" if row["note"] else ""
        print(f"{row['model']:<24} {row['provider']:<12} {window:>10}  {row['reach']}{note}")
    return 0


def doctor(argv: Sequence[str]) -> int:
    """`k3agent doctor`."""
    from k3agent.doctor import report

    parser = Parser("doctor", "What works here, what does not, and the command that mends each.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse(argv)
    return report(with_stored_keys(os.environ, data_home(os.environ)), Path.cwd(), as_json=args.json)
