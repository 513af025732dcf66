"""Where a name stands: the files that define it first, as thoughts and reports say them."""

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.policy import Hit, is_definition, several
from k3agent.backend.training.episodes.session import Check, Outcome


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
    return f"Files: {several(rows, 10)}."


def renames(expected: dict[str, str | None]) -> Check:
    """Exactly these files change so, and the answer names each of them."""

    def check(outcome: Outcome) -> str | None:
        return checks.writes(expected)(outcome) or checks.says(outcome, *expected)

    return check
