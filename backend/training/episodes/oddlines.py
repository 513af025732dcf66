"""A slip in a function of the standard library that no test runs: the line must be found by reading, or
the user must be asked, where reading does not tell.
"""

import random
import re
from dataclasses import dataclass
from difflib import SequenceMatcher

from k3agent.backend.training.episodes.bugs import Broken
from k3agent.backend.training.episodes.concepts import Func
from k3agent.backend.training.episodes.editing import changed_part
from k3agent.backend.training.episodes.evident import Oddity, oddities
from k3agent.backend.training.episodes.mutate import Bug, candidates
from k3agent.backend.training.episodes.nearby import NEAR
from k3agent.backend.training.episodes.registry import Setting
from k3agent.backend.training.episodes.stdlib import one_definition
from k3agent.backend.training.episodes.unitbugs import functions_of

SHORTEST, LONGEST = 4, 26
"""Lines of a function in which to look."""
LONGEST_FILE = 2400
TRIES = 24
EVIDENT = 0.6
"""Of the functions, those in which an evident slip is looked for first."""
RIGHT = 0.3
"""Of the functions in which nothing evident is to be found, those in which nothing is wrong."""

_NAME = re.compile(r"[A-Za-z_]\w{2,}")


@dataclass(frozen=True, slots=True)
class Odd:
    """A function with a slip (or none: then both its lines are the same), and what is evidently odd."""

    broken: Broken
    said: str


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


def draw_odd(ctx: Setting) -> Odd | None:
    """A function of the library in a new file, with a slip or without."""
    return next((found for found in (_draw(ctx) for _ in range(4)) if found is not None), None)


def _draw(ctx: Setting) -> Odd | None:
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
    name, params, start, end = rng.choice(places)
    if oddities(good, name):
        return None
    func = Func(name, params, good.split("\n")[start - 1 : end], "")
    return _odd(rng, path, good, func, start)


def _odd(rng: random.Random, path: str, good: str, func: Func, start: int) -> Odd | None:
    """The file with a slip in one of its functions; which slips are evident, their text alone says."""
    is_evident = rng.random() < EVIDENT
    if not is_evident and rng.random() < RIGHT:
        row = func.body[-1]
        return Odd(_broken(path, good, good, func, start, Bug(len(func.body) - 1, row, row)), "")
    quoted = _quoted_rows(func.body)
    for bug in candidates(func, rng)[:TRIES]:
        if bug.index == 0 or bug.index in quoted or bug.wrong.strip() == bug.right.strip():
            continue
        row = start - 1 + bug.index
        lines = good.split("\n")
        bad = "\n".join([*lines[:row], bug.wrong, *lines[row + 1 :]])
        try:
            found = oddities(bad, func.name)
        except (SyntaxError, ValueError):
            continue
        if not found and not is_evident and not is_misspelt(bug, bad):
            return Odd(_broken(path, good, bad, func, start, bug), "")
        if len(found) == 1 and is_evident and (said := _said(found[0], row + 1, bug)):
            return Odd(_broken(path, good, bad, func, start, bug), said)
    return None


def is_misspelt(bug: Bug, text: str) -> bool:
    """Whether a slip is a name that is nearly the right one and stands nowhere else: whoever reads sees it,
    though no rule may tell.
    """
    wrong, right = changed_part(bug.wrong, bug.right)
    if not _NAME.fullmatch(wrong) or not _NAME.fullmatch(right):
        return False
    is_near = wrong in right or right in wrong or SequenceMatcher(None, wrong, right).ratio() >= NEAR
    return is_near and len(re.findall(rf"\b{wrong}\b", text)) == 1


def _said(oddity: Oddity, line: int, bug: Bug) -> str:
    """What is odd, if that says what the line should be."""
    if oddity.line == line:
        return f"{oddity.said}."
    name = oddity.said.removeprefix("nothing reads ")
    is_read = name != oddity.said and re.search(rf"\b{name}\b", bug.right)
    return f"{oddity.said} of line {oddity.line}." if is_read else ""


def _broken(path: str, good: str, bad: str, func: Func, start: int, bug: Bug) -> Broken:
    line = start + bug.index
    return Broken(func, bug, path, good, bad, line, bug.wrong, bug.right, "", "", {}, Original(good))


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
