"""Lines that are alike: slips of who copies a line and changes too little, lost brackets, and what the lines
beside, a name or the values say of them.
"""

import ast
import random
import re

from k3agent.backend.training.episodes.concepts import Func
from k3agent.backend.training.episodes.mutate import Bug
from k3agent.backend.training.episodes.symptoms import values_of
from k3agent.backend.training.episodes.testruns import Failure

Rows = list[tuple[int, str]]
NEAR = 3
"""Lines between two that are alike, at most."""
LONGEST_VALUE = 40
_GIVES = re.compile(r"(?:(?P<head>return|yield) )?(?P<target>[\w.\[\]'\"]+)(?: = |: )(?P<value>[^{}]+?),?$")
_TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
_OPERAND = r"[\w.]+(?:\[[^\[\]]+\])?"
_SUM = rf"(?P<one>{_OPERAND}) (?P<sign>[-+]) (?P<two>{_OPERAND})"
_BEFORE = re.compile(
    rf"(?<![\w.)\]*/%])(?<![*/%] )(?P<by>{_OPERAND} (?:\*|//|/|%)) \({_SUM}\)(?![.\[]| ?\*\*)"
)
_AFTER = re.compile(rf"(?<![\w.)\]])\({_SUM}\) (?P<by>(?:\*|//|/|%) {_OPERAND})(?![\w.(\[]| ?\*\*)")
"""A sum in brackets before or after a factor that nothing binds more tightly than the sign beside it."""
_PLACE = re.compile(r"(?!(?:None|True|False)\b)[A-Za-z_][\w.]*(?:\[[^\[\]]+\])?$")
"""A name, an attribute, or what stands at a key or an index: no constant."""


def gives(text: str) -> tuple[str, str]:
    """The name or key that a line gives a value, and the value; empty where it gives none."""
    match = _GIVES.match(text.strip())
    return (match["target"], match["value"]) if match else ("", "")


def alike_slips(func: Func, rng: random.Random) -> list[Bug]:
    """Lines that have the value of a line beside that is built like theirs, and lines that lost brackets."""
    found: list[Bug] = []
    for index, line in enumerate(func.body):
        for pattern in (_BEFORE, _AFTER):
            found += [
                Bug(index, line, line[: match.start()] + _bare(match.group()) + line[match.end() :])
                for match in pattern.finditer(line)
            ]
        target, value = gives(line)
        for other in func.body[max(0, index - NEAR) : index + NEAR + 1]:
            name, copied = gives(other)
            if target and name not in ("", target) and copied != value and _is_like(value, copied):
                at = line.rindex(value)
                found.append(Bug(index, line, line[:at] + copied + line[at + len(value) :]))
    rng.shuffle(found)
    return found


def _bare(text: str) -> str:
    """A text without its outer brackets."""
    return re.sub(r"\(([^()]*)\)", r"\1", text, count=1)


def _is_like(one: str, two: str) -> bool:
    """Whether two values are built alike: one word of them differs."""
    first, second = _TOKEN.findall(one), _TOKEN.findall(two)
    apart = [(a, b) for a, b in zip(first, second, strict=False) if a != b]
    is_word = len(apart) == 1 and all(part.replace("_", "").isalnum() for part in apart[0])
    return len(first) == len(second) and is_word and len(one) <= LONGEST_VALUE


def alike_said(rows: Rows, head: str, line: int, old: str, new: str) -> str:
    """That two lines take the same value where they should not, or which value a name or key tells of."""
    target, value = gives(old)
    name, right = gives(new)
    if not target or name != target or value == right or len(value) > LONGEST_VALUE:
        return ""
    beside = [(number, *gives(text)) for number, text in rows if 0 < abs(number - line) <= NEAR]
    same = [number for number, other, has in beside if has == value and other != target]
    is_free = all(has != right for _, _, has in beside)
    if same and is_free and _is_like(value, right) and _is_in_view([(0, head), *rows], target, right):
        one, two = sorted((line, same[0]))
        return f"lines {one} and {two} both take {value}, none takes {right}"
    before, after = (set(re.findall(r"[a-z]{3,}", text.lower())) for text in (value, right))
    own = set(re.findall(r"[a-z]{3,}", target.lower()))
    if own & (after - before) and not own & (before - after):
        return f"the name {target} tells of {right}, not of {value}"
    return ""


def _is_in_view(rows: Rows, target: str, right: str) -> bool:
    """Whether a value is a name, a key or an index whose words the lines or the target have."""
    seen = set(re.findall(r"[A-Za-z_]\w*", "\n".join([target, *(text for _, text in rows)])))
    seen.update(target.split("_"))
    return bool(_PLACE.match(right)) and set(re.findall(r"[A-Za-z_]\w*", right)) <= seen


def brackets_said(rows: Rows, head: str, old: str, new: str, failure: Failure) -> str:
    """That a sum lost its brackets, with the values of the failing call where the line says them."""
    for pattern in (_BEFORE, _AFTER):
        for match in pattern.finditer(new):
            bare = _bare(match.group())
            if new[: match.start()] + bare + new[match.end() :] != old:
                continue
            first = f"{match['by']} {match['one']}" if pattern is _BEFORE else f"{match['two']} {match['by']}"
            said = f"without brackets {first} comes first"
            return _with_values(rows, head, bare, match.group(), failure) or said
    return ""


def _with_values(rows: Rows, head: str, bare: str, right: str, failure: Failure) -> str:
    """What both forms of a sum give with the arguments of the failing call, where that is the difference."""
    values, given = values_of(failure.error), _arguments(head, failure)
    names = set(re.findall(r"[A-Za-z_]\w*", right))
    changed = any(re.match(rf"\s*({'|'.join(names)}) [-+*/]?= ", text) for _, text in rows) if names else True
    if values is None or changed or not names <= given.keys():
        return ""
    one, two = (re.sub(r"[A-Za-z_]\w*", lambda match: given[match[0]], text) for text in (bare, right))
    try:
        before, after = (eval(text, {"__builtins__": {}}) for text in (one, two))
    except (ArithmeticError, TypeError, SyntaxError):
        return ""
    got, wanted = (value if isinstance(value, list | tuple) else [value] for value in values)
    if before not in got or after not in wanted or before == after:
        return ""
    return f"the brackets are lost: {one} is {before}, {two} is {after} as wanted"


def _arguments(head: str, failure: Failure) -> dict[str, str]:
    """The plain numbers that the failing line of a test gives to a function's parameters."""
    match = re.match(r"\s*def (\w+)\((.*)\)", head)
    if match is None:
        return {}
    try:
        tree = ast.parse(failure.test_code)
    except SyntaxError:
        return {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rsplit(".", 1)[-1] == match[1]:
            params = re.findall(r"(?:^|, )(\w+)", match[2])
            texts = [ast.unparse(arg) for arg in node.args]
            return {
                name: text
                for name, text in zip([one for one in params if one != "self"], texts, strict=False)
                if re.fullmatch(r"\d[\d.]*", text)
            }
    return {}
