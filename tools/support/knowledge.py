"""What a session may use that outlasts its conversation: skills, memory, earlier sessions, symbols."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from k3agent.errors import ToolError


class SymbolStore(Protocol):
    """Keeps what was found in files, as texts that only tools/support/symbols.py reads. For any thread."""

    def known(self, root: str) -> dict[str, tuple[str, str]]:
        """What is known of files below `root`: path to (stamp, symbols)."""
        ...

    def by_hash(self, hashes: Sequence[str]) -> dict[str, str]:
        """The symbols of files with these contents, wherever they lay."""
        ...

    def keep(self, found: Sequence[tuple[str, str, str, str]], gone: Sequence[str] = ()) -> None:
        """Take up (path, stamp, hash, symbols); forget the paths that are `gone`."""
        ...


def _unknown_skill(name: str) -> str:
    raise ToolError(f"there is no skill {name!r}.")


def _no_memory(text: str, everywhere: bool) -> str:
    raise ToolError("nothing is remembered here.")


def _nothing_to_forget(number: int) -> str:
    raise ToolError(f"there is no memory {number}.")


async def _no_recall(words: str, limit: int) -> str:
    raise ToolError("earlier sessions cannot be searched here.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """`skill` gives the text of one by name; `remember(text, everywhere)` and `forget(number)` say what was
    done; `memories` lists what is kept, a line each; `recall(words, limit)` tells of earlier sessions. All
    raise ToolError. `symbols`: None where nothing is kept.
    """

    skill: Callable[[str], str] = _unknown_skill
    remember: Callable[[str, bool], str] = _no_memory
    forget: Callable[[int], str] = _nothing_to_forget
    memories: Callable[[], list[str]] = field(default=list)
    recall: Callable[[str, int], Awaitable[str]] = _no_recall
    symbols: SymbolStore | None = None


NO_KNOWLEDGE = Knowledge()
