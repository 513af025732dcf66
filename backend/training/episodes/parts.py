"""The parts of a line of code that a search may change, and which of them are left after attempts."""

import re
from dataclasses import dataclass

from k3agent.backend.training.episodes.editing import changed_part

MOST_PARTS = 14
"""Parts of a line that a thought names."""
_PIECE = re.compile(
    r"(?P<text>f?'[^'\n]*'|f?\"[^\"\n]*\")|(?P<name>(?:self\.)?[A-Za-z_]\w*)|(?P<number>\d[\d_.]*)"
    r"|(?P<sign>\*\*|//=?|==|!=|<=|>=|[-+*/%]=?|[<>])"
)
_NONE = frozenset(
    "return if elif else for while with as assert raise try except pass lambda yield from self cls".split()  # noqa: SIM905
)
_TARGET = re.compile(r"[\w.\[\]'\", ]+? = ")
_ALTERNATIVES: dict[str, tuple[str, ...]] = {
    "+": ("-", "*"),
    "-": ("+", "*"),
    "*": ("+", "/"),
    "/": ("*", "//"),
    "//": ("/", "*"),
    "%": ("//", "/"),
    "<": ("<=", ">"),
    "<=": ("<", ">"),
    ">": (">=", "<"),
    ">=": (">", "<"),
    "==": ("!=", ">="),
    "+=": ("-=", "="),
    "-=": ("+=", "="),
}
"""What a sign may be besides: the first one that was not tried is said."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a line: its text, and where it begins."""

    text: str
    start: int


def parts_of(line: str) -> list[Part]:
    """What may be something else in a line without its indentation: names, numbers, texts and signs; not
    the name that `=` gives a value.
    """
    target = _TARGET.match(line)
    found: list[Part] = []
    for match in _PIECE.finditer(line, target.end() if target else 0):
        text = match.group()
        if text not in _NONE and not (text == "in" and re.search(r"\bfor ", line)):
            found.append(Part(text, match.start()))
    return found


def part_changed(old: str, new: str) -> int:
    """Which part of a line a change is about: the first one in what differs, else the one before; -1 where
    there is none.
    """
    parts = parts_of(old)
    before = changed_part(old, new)[0]
    start = next((at for at, (one, two) in enumerate(zip(old, new, strict=False)) if one != two), len(new))
    if before and (found := old.rfind(before, 0, start + len(before))) >= 0:
        start = found
    inside = [at for at, part in enumerate(parts) if start <= part.start < start + len(before)]
    above = [at for at, part in enumerate(parts) if part.start < start]
    return inside[0] if inside else above[-1] if above else 0 if parts else -1


def said_of(old: str, new: str) -> str:
    """An attempt as it is told afterwards: never with an arrow, which announces a change."""
    before, after = changed_part(old, new)
    if before and after:
        return f"{before} as {after}"
    if before:
        return f"no {before}"
    parts = parts_of(old)
    at = part_changed(old, new)
    return f"{parts[at].text} with {after}" if at >= 0 else f"with {after}"


def alternative(part: str, tried: list[str]) -> str:
    """What a sign may be after one attempt with it; nothing for all else and after two."""
    options = [item for item in _ALTERNATIVES.get(part, ()) if item not in tried]
    return options[0] if options and len(tried) < 2 else ""


def left_in(line: str, attempts: list[str]) -> list[str]:
    """The parts of a line that are left after attempts (each the whole line as it was tried)."""
    tried: dict[int, list[str]] = {}
    for new in attempts:
        tried.setdefault(part_changed(line, new), []).append(changed_part(line, new)[1])
    found: list[str] = []
    for at, part in enumerate(parts_of(line)):
        if at not in tried:
            found.append(part.text)
        elif other := alternative(part.text, tried[at]):
            found.append(f"{part.text} as {other}")
    return found


def goes_on(line: str, attempts: list[str], new: str) -> bool:
    """Whether a change is of a part that is left after attempts, as `left_in` says it."""
    at = part_changed(line, new)
    before = [changed_part(line, one)[1] for one in attempts if part_changed(line, one) == at]
    if at < 0 or not before:
        return at >= 0
    part, (old, after) = parts_of(line)[at].text, changed_part(line, new)
    return old == part and after == alternative(part, before)
