"""Which names a Python text uses that nothing defines, as pyflakes finds them."""

from __future__ import annotations

import re

MAX_CHARS = 200_000
# What packages, and hosts of configuration files, notebooks and translations put there.
GIVEN = frozenset({"_", "__path__", "get_config", "get_ipython", "reveal_type", "reveal_locals"})
# Names that come into being while it runs.
_MADE = re.compile(r"\b(?:globals|locals|vars)\(\)\s*(?:\[|\.|\|)|\bexec\(|\bbuiltins\b")


def undefined(text: str) -> dict[str, int] | None:
    """Each such name and the first line that uses it; None where that cannot be told. Where a module takes
    all names of another (`import *`), none is told.
    """
    if len(text) > MAX_CHARS or _MADE.search(text):
        return None
    import ast  # lazy: 5 ms
    import warnings

    try:
        from pyflakes.checker import Checker  # lazy: only where a turn changes Python files
        from pyflakes.messages import UndefinedName

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            messages = Checker(ast.parse(text), builtins=GIVEN).messages
    # A library's walk over any text: whatever it stumbles over, nothing is told.
    except Exception:
        return None
    found: dict[str, int] = {}
    for message in sorted(messages, key=lambda one: one.lineno):
        if isinstance(message, UndefinedName):
            found.setdefault(str(message.message_args[0]), message.lineno)
    return found
