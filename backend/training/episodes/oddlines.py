"""A slip in a function of the standard library that no test runs: the line must be found by reading."""

import random
import re
from dataclasses import dataclass

from k3agent.backend.training.episodes.bugs import Broken
from k3agent.backend.training.episodes.concepts import Func
from k3agent.backend.training.episodes.editing import changed_part
from k3agent.backend.training.episodes.mutate import candidates
from k3agent.backend.training.episodes.registry import Setting
from k3agent.backend.training.episodes.stdlib import one_definition
from k3agent.backend.training.episodes.unitbugs import functions_of

SHORTEST, LONGEST = 4, 26
"""Lines of a function in which to look."""
LONGEST_FILE = 2400
UNTOLD = frozenset((("<", "<="), ("<=", "<"), (">", ">="), (">=", ">"), ("==", ">="), ("-", "+"), ("+", "-")))
"""Changes that reading cannot tell."""
TRIES = 10


@dataclass(frozen=True, slots=True)
class Original:
    """Judges by the text: nothing of it runs."""

    text: str

    def works(self, source: str) -> bool:
        """Whether it is the original text."""
        return source == self.text

    def results(self, source: str) -> list[str]:
        """Nothing can be asked."""
        return [str(self.works(source))]


def draw_odd(ctx: Setting) -> Broken | None:
    """A function of the library with one odd line, in a new file."""
    return next((found for found in (_draw(ctx) for _ in range(4)) if found is not None), None)


def _draw(ctx: Setting) -> Broken | None:
    """One try: most files have functions that are too long or too short."""
    rng = ctx.rng
    drawn = one_definition(rng, ctx.words.held_out)
    if drawn is None:
        return None
    name, good = drawn
    path = rng.choice(("", "", "lib/", "core/", "src/")) + rng.choice(
        (name, f"{ctx.unused(ctx.words.module)}.py")
    )
    if path in ctx.facts.files or len(good) > LONGEST_FILE or "\t" in good:
        return None
    try:
        places = [item for item in functions_of(good) if SHORTEST <= item[3] - item[2] < LONGEST]
    except SyntaxError:
        return None
    names = [item[0] for item in functions_of(good)]
    places = [item for item in places if names.count(item[0]) == 1 and not item[0].startswith("__")]
    if not places or any(place[0] in text for place in places for text in ctx.facts.files.values()):
        return None
    return _broken(rng, path, good, rng.choice(places))


def _broken(
    rng: random.Random, path: str, good: str, place: tuple[str, list[str], int, int]
) -> Broken | None:
    """The file with a slip in one of its functions."""
    name, params, start, end = place
    lines = good.split("\n")
    func = Func(name, params, lines[start - 1 : end], "")
    quoted = _quoted_rows(func.body)
    for bug in candidates(func, rng)[:TRIES]:
        wrong, right = bug.wrong.strip(), bug.right.strip()
        before, after = changed_part(right, wrong)
        if bug.index == 0 or bug.index in quoted or wrong == right or (before, after) in UNTOLD:
            continue
        if re.fullmatch(r"[\d.]*", before) and re.fullmatch(r"[\d.]*", after):
            continue
        row = start - 1 + bug.index
        bad = "\n".join([*lines[:row], bug.wrong, *lines[row + 1 :]])
        try:
            compile(bad, "file", "exec")
        except (SyntaxError, ValueError):
            continue
        return Broken(func, bug, path, good, bad, row + 1, bug.wrong, bug.right, "", "", {}, Original(good))
    return None


def _quoted_rows(body: list[str]) -> set[int]:
    """The rows of a function that belong to texts of several lines."""
    found: set[int] = set()
    is_inside = False
    for index, row in enumerate(body):
        marks = row.count('"""') + row.count("'''")
        if is_inside or marks:
            found.add(index)
        is_inside ^= marks % 2 == 1
    return found
