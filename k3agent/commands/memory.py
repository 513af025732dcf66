"""`k3agent memory`: facts that are kept for later sessions."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

from k3agent.agent.knowledge import memory_root
from k3agent.agent.masking import Masker
from k3agent.commands.actions import add_scope, find_action
from k3agent.config.paths import data_home
from k3agent.headless.arguments import Parser, positive_int
from k3agent.headless.output import print_foreign
from k3agent.store.memories import EVERYWHERE, Memory
from k3agent.store.sessions import SessionStore

EVERYWHERE_FLAG = "--everywhere"


def memory(argv: Sequence[str]) -> int:
    """`k3agent memory list|add|edit|rm`."""
    actions = {"list": _list, "add": _add, "edit": _edit, "rm": _remove}
    action, rest = find_action("memory", "facts kept for later sessions", argv, actions)
    store = SessionStore(data_home(os.environ))
    store.mask = Masker(os.environ, Path.cwd()).mask_value
    try:
        return action(store, rest)
    finally:
        store.close()


def _list(store: SessionStore, argv: Sequence[str]) -> int:
    parser = Parser("memory list", "What sessions in this repository are told.")
    add_scope(parser, "facts", "this repository", "all repositories", is_here=True)
    parser.add_argument("--json", action="store_true", help="one JSON array")
    args = parser.parse(argv)
    found = store.memories(memory_root(Path.cwd()) if args.is_here else None)
    if args.json:
        print(json.dumps([dataclasses.asdict(item) for item in found], ensure_ascii=False, indent=1))
        return 0
    rows = [_row(item, has_place=not args.is_here) for item in found]
    print_foreign("\n".join(rows or ["nothing is remembered"]) + "\n")
    return 0


def _row(item: Memory, *, has_place: bool) -> str:
    place = "everywhere" if item.root == EVERYWHERE else item.root if has_place else ""
    return f"{item.id:4}  {item.created_at[:10]}  {item.by:<5}  {f'({place}) ' if place else ''}{item.text}"


def _add(store: SessionStore, argv: Sequence[str]) -> int:
    parser = Parser("memory add", "Keep a fact for sessions in this repository.")
    parser.add_argument("text", metavar="TEXT", help="the fact")
    parser.add_argument(EVERYWHERE_FLAG, action="store_true", help="for all repositories")
    args = parser.parse(argv)
    root = EVERYWHERE if args.everywhere else memory_root(Path.cwd())
    kept = store.add_memory(root, args.text, "user")
    print_foreign(f"kept as {kept.id}: {kept.text}\n")
    return 0


def _edit(store: SessionStore, argv: Sequence[str]) -> int:
    parser = Parser("memory edit", "Other words for a fact.")
    parser.add_argument("number", metavar="N", type=positive_int, help="its number in `memory list`")
    parser.add_argument("text", metavar="TEXT", help="the fact as it should be")
    args = parser.parse(argv)
    store.change_memory(args.number, args.text)
    print_foreign(f"{args.number} is now: {store.memory(args.number).text}\n")
    return 0


def _remove(store: SessionStore, argv: Sequence[str]) -> int:
    parser = Parser("memory rm", "Forget facts.")
    parser.add_argument("numbers", metavar="N", type=positive_int, nargs="+", help="as in `memory list`")
    args = parser.parse(argv)
    # All must be there before one is removed.
    for number in args.numbers:
        store.memory(number)
    for number in dict.fromkeys(args.numbers):
        print_foreign(f"forgotten: {store.remove_memory(number).text}\n")
    return 0
