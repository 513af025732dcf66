"""Names that are nearly right: what an unknown name is like, and slips of names with the error they raise."""

import builtins
import keyword
import random
import re
import traceback
from difflib import get_close_matches
from functools import partial

from k3agent.backend.training.episodes.bugs import Broken
from k3agent.backend.training.episodes.concepts import Func
from k3agent.backend.training.episodes.editing import changed_part
from k3agent.backend.training.episodes.mutate import Bug, TooManySteps, limited
from k3agent.backend.training.episodes.policy import View
from k3agent.backend.training.episodes.slips import name_typo
from k3agent.backend.training.episodes.units import UnitSample

NEAR = 0.7
"""How alike two names are of which one may stand for the other."""
LONGEST_ERROR = 110
MOST_NAMES = 10
_NAME = re.compile(r"[A-Za-z_]\w{2,}")
_FUNCTION = re.compile(r"\s*(async )?def ")
_TEXTS = re.compile(r"'[^'\n]*'|\"[^\"\n]*\"|#.*")
_DOCUMENTED = re.compile(r"(\"{3}|'{3}).*?\1", re.DOTALL)
_SLIPPING = re.compile(r"(?<![\w'\"])(self\.|\w+\.)?([A-Za-z_]\w{3,})\b(?!['\"])|\[['\"](\w{4,})['\"]\]")
_KEEP = frozenset((*keyword.kwlist, "self"))
_USUAL = _KEEP | frozenset(dir(builtins))


def near_hint(view: View, line: int, old: str, new: str) -> str:
    """Which name in view a wrong one is like and where it stands, as a thought, if that is the right one."""
    wrong, right = changed_part(old, new)
    if not _NAME.fullmatch(wrong) or not _NAME.fullmatch(right):
        return ""
    places = {number: set(_NAME.findall(text)) for number, text in view.lines if number != line}
    rest = re.sub(rf"\b{wrong}\b", " ", old)
    words = set(_NAME.findall(rest)).union(*places.values())
    if wrong in words or _closest(wrong, words) != [right]:
        return ""
    there = _names_there(view, line, rest)
    if right in there:
        return f" Names there: {', '.join(there)}. {wrong} is like {right}."
    numbers = [number for number, names in places.items() if right in names]
    above = [number for number in numbers if number < line]
    return f" {wrong} is like {right} of line {max(above) if above else min(numbers)}." if numbers else ""


def names_in(view: View, first: int, last: int) -> list[str]:
    """All names in some lines as they come, each once: a wrong one stands among those that it is like."""
    text = "\n".join(row for number, row in view.lines if first <= number <= last)
    text = _TEXTS.sub(" ", _DOCUMENTED.sub(" ", text))
    return [name for name in dict.fromkeys(_NAME.findall(text)) if name not in _USUAL]


def _closest(wrong: str, words: set[str]) -> list[str]:
    """The name that a wrong one is like; else those that it is a part of, in any style."""
    near = get_close_matches(wrong, sorted(words), 1, NEAR)
    if near:
        return near
    bare = wrong.replace("_", "").lower()
    return [word for word in words if bare in (word.replace("_", "").lower(), *word.lower().split("_"))]


def _names_there(view: View, line: int, rest: str) -> list[str]:
    """Names from the function's beginning to a line, of which `rest` is left: the last MOST_NAMES of them."""
    above = [text for number, text in view.lines if number < line]
    start = max((at for at, text in enumerate(above) if _FUNCTION.match(text)), default=0)
    text = "\n".join((*above[start:], rest))
    names = dict.fromkeys(_NAME.findall(_TEXTS.sub(" ", text)))
    return [name for name in names if name not in _USUAL][-MOST_NAMES:]


def name_slips(func: Func, rng: random.Random) -> list[Bug]:
    """Names of a function's lines, each written wrongly in one place."""
    found: list[Bug] = []
    for index, line in enumerate(func.body):
        if index == 0 or line.strip()[:1] in ("", "#", '"', "'", "@"):
            continue
        for match in _SLIPPING.finditer(line):
            group = 3 if match[3] else 2
            if match[group] in _KEEP:
                continue
            wrong = line[: match.start(group)] + name_typo(match[group], rng) + line[match.end(group) :]
            found.append(Bug(index, line, wrong))
    rng.shuffle(found)
    return found


def raised(broken: Broken) -> tuple[str, int, str] | None:
    """The error that the tests of natural code meet first, the line that raises it, the function."""
    if not isinstance(broken.sample, UnitSample):
        return None
    scope: dict[str, object] = {"__name__": "unit"}
    code = compile(broken.bad, broken.path, "exec")
    try:
        exec(code, scope)
        for group in broken.sample.expected:
            limited(partial(exec, "\n".join(group.setup), scope))
            for expression, _, error in group.claims:
                if not error:
                    limited(partial(eval, expression, scope))
    except TooManySteps:
        return None
    except Exception as error:
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == broken.path
        ]
        text = f"{type(error).__name__}: {error}"
        if frames and "\n" not in text and len(text) <= LONGEST_ERROR:
            inside = next((one.name for one in reversed(frames) if one.name[0] != "<"), broken.func.name)
            return text, frames[-1].lineno or 0, inside
    return None
