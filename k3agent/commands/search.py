"""`k3agent search`: words in earlier sessions, or where a name is defined.

On a terminal what was found is bold; elsewhere, and where no styles are wanted, it stands in brackets.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from k3agent.agent.knowledge import memory_root
from k3agent.commands.actions import add_scope
from k3agent.config.paths import data_home
from k3agent.headless.arguments import Parser, positive_int
from k3agent.headless.output import has_styles, print_foreign
from k3agent.safety.visible import clean
from k3agent.store.search import BRACKETS, MARKS, pieces
from k3agent.store.search import search as find
from k3agent.store.symbols import SymbolCache

SYMBOLS_PATIENCE_S = 60.0


def search(argv: Sequence[str]) -> int:
    """`k3agent search TEXT [--symbols]`."""
    parser = Parser("search", "Messages of earlier sessions that hold these words, the best first.")
    parser.add_argument("text", metavar="TEXT", help="words; beginnings of words count")
    add_scope(parser, "sessions", "this repository", "all folders", is_here=True)
    parser.add_argument(
        "--symbols", action="store_true", help="instead: where TEXT is defined in this repository"
    )
    parser.add_argument("--limit", metavar="N", type=positive_int, default=20, help="most hits (20)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    args = parser.parse(argv)
    if args.symbols:
        return _symbols(args.text)
    root = memory_root(Path.cwd()) if args.is_here else ""
    is_bold = not args.json and has_styles(sys.stdout, os.environ)
    marks = MARKS if is_bold else BRACKETS
    found = find(data_home(os.environ), args.text, root=root, limit=args.limit, marks=marks)
    if args.json:
        print(json.dumps(dataclasses.asdict(found), ensure_ascii=False, indent=1))
        return 0
    rows = [
        f"{hit.at[:16].replace('T', ' ')}  {hit.session_id[:8]}  {hit.role:<9}  {hit.excerpt}"
        for hit in found.hits
    ]
    if found.num_waiting:
        rows.append(f"{found.num_waiting} older sessions are not indexed yet: run this again")
    text = "\n".join(rows or ["nothing found"]) + "\n"
    if is_bold:
        print("".join(_bold(part) if is_hit else clean(part) for part, is_hit in pieces(text)), end="")
    else:
        print_foreign(text)
    return 0


def _bold(text: str) -> str:
    return f"\x1b[1m{clean(text)}\x1b[0m"


def _symbols(name: str) -> int:
    from k3agent.tools.repomap import places_of  # lazy: pydantic and grammars, 0.2 s
    from k3agent.tools.support.scan import scan

    root = Path(memory_root(Path.cwd()))
    found = scan(root, SymbolCache(data_home(os.environ)), SYMBOLS_PATIENCE_S)
    rows = [places_of(name, found)]
    if found.waiting:
        rows.append(f"{found.waiting} files are not read yet: run this again")
    print_foreign("\n".join(rows) + "\n")
    return 0
