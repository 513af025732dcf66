"""What a failed comparison says of the bug: how the value that came differs from the one that was wanted."""

import ast
import re
from typing import Any

_SIDES = re.compile(r"^(?:AssertionError: )?(?:assert )?(.+?) (?:==|!=|is not|is) (.+?)(?: : .*)?$")
_KINDS = {bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "dict", tuple: "tuple"}
_LONGEST = 160


def symptom(error: str) -> str:
    """A short sentence about the difference, or nothing where it cannot be told."""
    match = _SIDES.match(error) if len(error) < _LONGEST else None
    if match is None:
        return ""
    try:
        got, wanted = (ast.literal_eval(match[index]) for index in (1, 2))
    except (ValueError, SyntaxError, TypeError):
        return ""
    return "" if repr(got) == repr(wanted) else difference_of(got, wanted)


def difference_of(got: Any, wanted: Any) -> str:
    """How a value differs from what it should be."""
    if got is None:
        return "Nothing comes back: is a return missing?"
    if wanted is None:
        return "Something comes back where nothing should."
    if isinstance(got, bool) and isinstance(wanted, bool):
        return "It is the opposite: look at the conditions."
    if isinstance(got, int | float) and isinstance(wanted, int | float):
        return _of_numbers(got, wanted)
    if type(got) is not type(wanted):
        names = [_KINDS.get(type(value), "value") for value in (got, wanted)]
        return f"It is a {names[0]}, not a {names[1]}."
    if isinstance(got, dict):
        return _of_dicts(got, wanted)
    return _of_rows(got, wanted) if isinstance(got, str | list | tuple) else ""


def _of_numbers(got: float, wanted: float) -> str:
    if got == wanted:
        return "The kind of number is wrong: look at the division."
    if got == -wanted:
        return "The sign is wrong."
    if abs(got - wanted) == 1:
        return "It is off by one: look at bounds and comparisons."
    if got == 0:
        return "Nothing is added up, or it ends too early."
    return "It is too high." if got > wanted else "It is too low."


def _of_dicts(got: dict[Any, Any], wanted: dict[Any, Any]) -> str:
    if got.keys() == wanted.keys():
        return "The keys are right, a value is wrong."
    if len(got) < len(wanted):
        return "Keys are missing."
    return "There are too many keys." if len(got) > len(wanted) else "The keys are wrong."


def _of_rows(got: Any, wanted: Any) -> str:
    what = "Letters" if isinstance(got, str) else "Elements"
    if not len(got):
        return "It is empty."
    if got == wanted[::-1]:
        return "The order is turned round."
    if sorted(map(repr, got)) == sorted(map(repr, wanted)):
        return "The order is wrong."
    if isinstance(got, str) and got.lower() == wanted.lower():
        return "Capitals are wrong."
    if len(got) < len(wanted):
        return f"{what} are missing."
    return f"There are too many {what.lower()}." if len(got) > len(wanted) else f"{what} are wrong."
