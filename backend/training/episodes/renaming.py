"""Where a name stands: the files that define it first, as thoughts and reports say them."""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.policy import Hit, is_definition, several
from k3agent.backend.training.episodes.session import Check, Outcome

MOST_TOLD = 10
"""Files that a thought or a report names, where there are more of them."""


def by_path(found: list[Hit]) -> dict[str, list[Hit]]:
    """Hits grouped by file."""
    table: dict[str, list[Hit]] = {}
    for hit in found:
        table.setdefault(hit.path, []).append(hit)
    return table


def definition_first(name: str, found: list[Hit]) -> dict[str, list[Hit]]:
    """Hits by file, the files that define the name first."""
    table = by_path(found)
    order = sorted(table, key=lambda path: not any(is_definition(name, hit.text) for hit in table[path]))
    return {path: table[path] for path in order}


def where_found(name: str, table: dict[str, list[Hit]]) -> str:
    """Each file with its lines, as a thought says it; the line that defines the name is told."""
    rows: list[str] = []
    for path, found in table.items():
        lines = several([str(hit.line) for hit in found], 8)
        defined = next((hit.line for hit in found if is_definition(name, hit.text)), None)
        rows.append(f"{path} ({lines})" if defined is None else f"{path} ({lines}; defined in {defined})")
    return f"Files: {several(rows, MOST_TOLD)}."


def renames(expected: dict[str, str | None]) -> Check:
    """Exactly these files change so, and the answer names each of them; of many, as many as a report does."""

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.writes(expected)(outcome):
            return wrong
        left = [path for path in expected if not _names(outcome.answer, path)]
        enough = len(expected) - len(left) >= min(len(expected), MOST_TOLD)
        return None if enough else f"the answer lacks {left[0]!r}"

    return check


def _names(answer: str, path: str) -> bool:
    """Whether an answer names a file, not only another one whose path ends with it."""
    return re.search(rf"(?<![\w/-])(\./)?{re.escape(path)}(?!\w)", answer) is not None
