"""Slips that leave a trace: signs, bounds, names and indices exchanged, of which an error, a value or a name
tells.
"""

import random
import re

from k3agent.backend.training.episodes.concepts import Func
from k3agent.backend.training.episodes.mutate import KEY, LOOP_SAFE, Bug, multiplies_other
from k3agent.backend.training.episodes.slips import applied

_SIGNS: tuple[tuple[str, str, float], ...] = (
    (r" \+ ", " - ", 2.5),
    (r" - ", " + ", 2.5),
    (r" \* ", " + ", 2.0),
    (r" // ", " * ", 1.0),
    (r" / ", " * ", 1.0),
    (r" / ", " // ", 0.6),
    (r" \+= ", " = ", 2.5),
    (r" \+= ", " -= ", 1.5),
    (r" -= ", " += ", 2.0),
    (r" < ", " <= ", 1.2),
    (r" <= ", " < ", 1.2),
    (r" > ", " >= ", 1.2),
    (r" >= ", " > ", 1.2),
    (r" < ", " >= ", 1.0),
    (r" <= ", " > ", 0.7),
    (r" > ", " <= ", 1.0),
    (r" >= ", " < ", 1.2),
    (r" >= ", " <= ", 0.8),
    (r"\bmin\(", "max(", 1.5),
    (r"\bmax\(", "min(", 1.5),
    (r"\bany\(", "all(", 1.0),
    (r"\ball\(", "any(", 1.0),
    (r"\blen\(([\w.]+)\)", r"\1", 2.0),
    (r"\bstr\(([\w.]+)\)", r"\1", 1.0),
    (r"\bint\(([\w.]+)\)", r"\1", 1.0),
    (r"(?<=\w)\[(?:\d|'\w+'|\"\w+\")\]", "", 2.5),
    (r"\bself\.(\w+)(?= [-+]?= )", r"\1", 0.8),
    (r"\breturn (?=[^\s])", "", 0.25),
)
"""What is exchanged, and how likely it is."""
_NAME = re.compile(r"(?<![\w.'\"{])(?:self\.)?[a-z_]\w*\b(?!['\"(=])")
_BOUND = re.compile(r"(?<![\w.])((?:self\.)?[a-z_]\w*)(?= [-+*/]?= |, [a-z_]\w* in\b| in\b|\[|\.\w+\()")
_KEEP = frozenset(
    "and or not in is if elif else for return while self cls lambda None True False yield".split()  # noqa: SIM905
)
NAMES, KEYS = 5.0, 1.5
"""How likely one of a line's names is exchanged, or one of its keys."""


def likely(func: Func, rng: random.Random) -> list[Bug]:
    """Slips of a function's lines, the likely ones first."""
    text = "\n".join(func.body)
    is_looping = "while " in text
    names = sorted({*func.params, *_BOUND.findall(text)} - _KEEP)
    keys = sorted({key for _, key in KEY.findall(text)})
    found: list[tuple[float, Bug]] = []
    for index, line in enumerate(func.body):
        row = line.strip()
        if (
            not row
            or row[0] in "#@\"'"
            or row.startswith(("def ", "async def ", "class ", "import ", "from "))
        ):
            continue
        if is_looping and not LOOP_SAFE.match(line):
            continue
        for wrong, weight in _slips(line, names, keys, rng):
            found.append((rng.random() ** (1 / weight), Bug(index, line, wrong)))
    found.sort(key=lambda item: -item[0])
    return [bug for _, bug in found if bug.wrong != bug.right and not multiplies_other(bug)]


def _slips(line: str, names: list[str], keys: list[str], rng: random.Random) -> list[tuple[str, float]]:
    """What could stand there instead of a line, and how likely that is."""
    found: list[tuple[str, float]] = []
    for pattern, new, weight in _SIGNS:
        wrong = applied(pattern, new, line, rng)
        if wrong is not None:
            found.append((wrong, weight))
    used = [match for match in _NAME.finditer(line) if match.group() in names]
    used = [match for match in used if not re.match(r" ([-+*/]?=|in) ", line[match.end() :])]
    for match in rng.sample(used, min(2, len(used))):
        # An attribute is taken for another one, or for a name of the function, and the other way round.
        others = [name for name in names if name != match.group()]
        if others:
            other = rng.choice(others)
            found.append((line[: match.start()] + other + line[match.end() :], NAMES / 2))
    for match in KEY.finditer(line):
        if others := [key for key in keys if key != match[2]]:
            found.append((line[: match.start(2)] + rng.choice(others) + line[match.end(2) :], KEYS))
    return found
