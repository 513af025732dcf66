"""Repairs worth a try: one-line changes that would undo a bug of mutate.py, drawn from code as read."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from k3agent.backend.training.episodes.mutate import KEY, RULES

EVIDENT = re.compile(
    r"^(E +)?((NameError|AttributeError|SyntaxError|IndentationError|UnboundLocalError|ImportError"
    r"|ModuleNotFoundError|KeyError)\b|TypeError: .*(expected|takes|missing|given|callable))"
)
"""Errors that name their cause: nothing to search for."""
_NUMBER = re.compile(r"(?<![\w.'\"])\d+(?![\w.'\"])")
_NAME = re.compile(r"(?<![\w.'\"])[a-z_]\w*\b(?!['\"(])")
_BOUND = re.compile(r"\b([a-z_]\w*)(?: [-+*/]?= |, [a-z_]\w* in\b| in\b)")
_STATEMENT = re.compile(
    r"(return|raise|for|if|else|elif|with|try|except|pass|break|continue|del)\b|.* [-+*/]?= |.*\.\w+\(.*\)$"
)
_NOT_NAMES = frozenset("and or not in is if else for return while def None True False lambda".split())  # noqa: SIM905
_BY_HAND: tuple[tuple[str, str, float], ...] = (
    (r"\((\w+), (\w+)\)", r"(\2, \1)", 1.0),
    (r"\breturn (\w+), (\w+)$", r"return \2, \1", 1.0),
    (r" not in ", " in ", 2.0),
    (r"\bif (?!not )", "if not ", 0.7),
    (r"\bif not ", "if ", 1.0),
    (r"\breturn not ", "return ", 1.0),
    (r"\blen\((\w+)\) - 1", r"len(\1)", 1.2),
    (r"\(len\((\w+)\) \+ 1\)", r"len(\1)", 1.2),
    (r"range\(1, (\w+)\)", r"range(1, \1 + 1)", 1.2),
    (r"range\((\w+) - 1\)", r"range(\1)", 1.2),
    (r"range\((\w+)\)", r"range(1, \1 + 1)", 0.7),
    (r"range\(len\((\w+)\)\)", r"range(len(\1) - 1)", 0.7),
    (r"range\(len\((\w+)\)\)", r"range(1, len(\1))", 0.7),
    (r"range\((.+) \+ 1\)", r"range(\1)", 1.0),
    (r"\bsorted\((\w+)\)", r"sorted(\1, reverse=True)", 0.6),
    (r"\benumerate\((\w+)\)", r"enumerate(\1, 1)", 0.8),
    (r"\b([\w.]+ [-+] [\w.]+) (\*|//|/|%) ", r"(\1) \2 ", 1.0),
    (r"(?<= )(\*|//|/|%) ([\w.]+ [-+] [\w.]+)", r"\1 (\2)", 0.6),
    (r"\[1:\]", "", 0.4),
    (r"(?<=\w) = (?=\w)", " += ", 0.25),
    (r"\b((?:self\.)?[a-z_]\w*)(?= [-+*/<>] ?\d)", r"len(\1)", 0.3),
)
"""Repairs that are no plain exchange of words: pattern, replacement, weight."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change of one line: its number, its text now and then (without indentation), how likely it is."""

    line: int
    old: str
    new: str
    weight: float


@cache
def reversed_rules() -> tuple[tuple[re.Pattern[str], str], ...]:
    """The rules of mutate.py that exchange plain words, the other way round."""
    found: dict[tuple[str, str], tuple[re.Pattern[str], str]] = {}
    for pattern, wrong in RULES:
        literal = pattern.removesuffix("$").replace(r"\b", "")
        right = re.sub(r"\\(.)", r"\1", literal)
        if (
            wrong.strip() in ("", ")")
            or "\\" in wrong
            or re.escape(right).replace("\\", "") != literal.replace("\\", "")
        ):
            continue
        if re.search(r"(?<!\\)[\[\](){}*+?|.^]", literal):
            continue
        before = r"\b" if wrong[0].isalnum() else ""
        after = r"\b" if wrong[-1].isalnum() else ""
        end = "$" if pattern.endswith("$") else ""
        found.setdefault((wrong, right), (re.compile(before + re.escape(wrong) + after + end), right))
    return tuple(found.values())


def _changes(text: str, names: dict[str, float], keys: list[str]) -> Iterator[tuple[int, int, str, float]]:
    """What in a line may be something else: from, to, what instead, with which weight."""
    for pattern, right in reversed_rules():
        for match in pattern.finditer(text):
            yield *match.span(), right, 2.0
    for source, right, weight in _BY_HAND:
        for match in re.finditer(source, text):
            yield *match.span(), match.expand(right), weight
    for match in _NUMBER.finditer(text):
        value = int(match.group())
        for other in sorted({abs(value - 1), value + 1}):
            yield *match.span(), str(other), 0.7
        if value > 2 and value % 2:
            yield *match.span(), str(value // 2), 0.2
    for match in _NAME.finditer(text):
        if match.group() in names and not text[match.end() :].startswith((" = ", " += ", " in ")):
            for other, weight in names.items():
                yield *match.span(), other, weight
    for match in KEY.finditer(text):
        for other in keys:
            yield *match.span(2), other, 0.8


def _of_line(text: str, names: dict[str, float], keys: list[str]) -> dict[str, float]:
    """What a line (without indentation) could become instead, each with a weight."""
    found: dict[str, float] = {}
    for start, end, instead, weight in _changes(text, names, keys):
        new = text[:start] + instead + text[end:]
        if new.strip() and new != text:
            found[new] = max(weight, found.get(new, 0.0))
    return found


def _function(rows: list[tuple[int, str]], line: int) -> list[tuple[int, str]]:
    """The lines read of the function that holds a line."""
    at = next((index for index, (number, _) in enumerate(rows) if number == line), None)
    if at is None:
        return []
    start = at
    while start and not re.match(r"\s*(async )?def ", rows[start][1]):
        start -= 1
    head = rows[start][1]
    indent = len(head) - len(head.lstrip())
    end = at + 1
    while end < len(rows):
        text = rows[end][1]
        if text.strip() and len(text) - len(text.lstrip()) <= indent:
            break
        end += 1
    return rows[start:end]


def candidates_for(rows: list[tuple[int, str]], line: int) -> list[Candidate]:
    """All one-line changes worth a try in the function around a line, a few of them no Python; none where a
    loop may not end.
    """
    function = _function(rows, line)
    body: list[tuple[int, str]] = []
    quoted = ""
    for number, row in function:
        text = row.strip()
        if quoted:
            quoted = "" if quoted in text else quoted
            continue
        if text.startswith(('"""', "'''")):
            quoted = "" if text.count(text[:3]) > 1 else text[:3]
            continue
        if text and not text.startswith(("#", "@", "def ", "async def ", "class ")):
            body.append((number, text))
    if any(text.startswith("while ") for _, text in body):
        return []
    code = "\n".join(text for _, text in body)
    head = next((text for _, text in function if re.match(r"\s*(async )?def ", text)), "")
    inside = head.partition("(")[2].rpartition(")")[0]
    params = re.findall(r"(?:^|, )([a-z_]\w*)", inside)
    bound = set(_BOUND.findall(code)) | set(params)
    names = {name: 0.35 for name in sorted(bound - _NOT_NAMES - {"self", "cls"})}
    # A parameter that nothing uses is the best hint there is.
    names |= {name: 1.5 for name in params if name in names and not re.search(rf"\b{name}\b", code)}
    keys = sorted({key for _, key in KEY.findall(code)})
    found: list[Candidate] = []
    for number, text in body:
        lines = _of_line(text, names, keys)
        if (number, text) == body[-1] and not _STATEMENT.match(text):
            lines[f"return {text}"] = 1.5
        found += [Candidate(number, text, new, weight) for new, weight in lines.items()]
    return found
