"""Names that are nearly right: what an unknown name is like, and slips of names with the error they raise."""

import keyword
import random
import re
import traceback
from collections.abc import Iterator
from difflib import get_close_matches
from functools import partial

from k3agent.backend.training.episodes.bugs import Broken
from k3agent.backend.training.episodes.concepts import Func
from k3agent.backend.training.episodes.editing import changed_part, letters_apart
from k3agent.backend.training.episodes.mutate import Bug, TooManySteps, limited
from k3agent.backend.training.episodes.policy import View
from k3agent.backend.training.episodes.slips import name_typo
from k3agent.backend.training.episodes.units import UnitSample

NEAR = 0.7
"""How alike two names are of which one may stand for the other."""
LONGEST_ERROR = 110
ONLY_HERE = "stands only"
"""What is said of a name that only one line has."""
_NAME = re.compile(r"[A-Za-z_]\w{2,}")
_SLIPPING = re.compile(r"(?<![\w'\"])(self\.|\w+\.)?([A-Za-z_]\w{3,})\b(?!['\"])|\[['\"](\w{4,})['\"]\]")
_TEXT = re.compile(
    r"#.*|(?<!\w)[A-Za-z]{0,2}(?P<block>\"\"\"|''')"
    r"|(?<!\w)(?P<kind>[A-Za-z]{0,2})(?P<quote>['\"])(?P<text>(?:\\.|(?!(?P=quote)).)*)(?P=quote)"
)
"""A comment, the begin of a text of several lines, a text."""
_KEEP = frozenset((*keyword.kwlist, "self"))


def near_hint(view: View, line: int, old: str, new: str) -> str:
    """Where a wrong name stands, where in view the one that it is like does, and the letters in which they
    differ, as a thought, if that is the right one.
    """
    wrong, right = changed_part(old, new)
    if not _NAME.fullmatch(wrong) or not _NAME.fullmatch(right):
        return ""
    code = dict(_code(view.lines))
    places = {number: set(_NAME.findall(text)) for number, text in code.items() if number != line}
    rest = re.sub(rf"\b{wrong}\b", " ", code.get(line, old))
    words = set(_NAME.findall(rest)).union(*places.values())
    is_elsewhere = any(wrong in _NAME.findall(text) for number, text in view.lines if number != line)
    if is_elsewhere or _closest(wrong, words) != [right]:
        return ""
    above = [number for number, names in places.items() if right in names and number < line]
    if not above and right in _NAME.findall(rest):
        there = f"line {line} also"
    else:
        there = f"line {max(above) if above else min(n for n, names in places.items() if right in names)}"
    return f" {wrong} {ONLY_HERE} in line {line}; {there} has {right}: {letters_apart(wrong, right)}."


def _code(rows: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Lines without their comments and texts, but for what is filled in and for single words, like keys."""
    block = ""
    for number, line in rows:
        kept, rest = "", line
        while rest:
            if block:
                _, end, rest = rest.partition(block)
                block = "" if end else block
                continue
            match = _TEXT.search(rest)
            if match is None:
                kept += rest
                break
            kept += rest[: match.start()]
            rest, block = rest[match.end() :], match["block"] or ""
            text = match["text"] or ""
            if text.isidentifier():
                kept += match.group()
            elif "f" in (match["kind"] or "").lower():
                kept += f" {' '.join(re.findall(r'{([^{}]*)}', text))} "
        yield number, kept


def _closest(wrong: str, words: set[str]) -> list[str]:
    """The name that a wrong one is like; else those that it is a part of, in any style."""
    near = get_close_matches(wrong, sorted(words), 1, NEAR)
    if near:
        return near
    bare = wrong.replace("_", "").lower()
    return [word for word in words if bare in (word.replace("_", "").lower(), *word.lower().split("_"))]


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
