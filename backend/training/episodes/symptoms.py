"""What a failure says of the bug: how the value that came differs from the one that was wanted, what kinds of
values met, for which case it fails.
"""

import ast
import re
from typing import Any

_SIDES = re.compile(
    r"^(?:AssertionError: )?(?:assert )?(.+?) (?:==|!=|is not|is) (.+?)"
    r"(?: ± .+| within \d+ places .+)?(?: : .*)?$"
)
_KINDS = {bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "dict", tuple: "tuple"}
_LONGEST = 160
_MET: tuple[tuple[str, str], ...] = (
    (
        r"'(list|dict|tuple|set|str)' and 'int'|'int' and '(list|dict|tuple|set)'|'(list|dict|tuple|set)'"
        r" object cannot be interpreted as an integer",
        "A {0} stands where a number is wanted: {1}?",
    ),
    (r"can only concatenate (str) \(not \"(?:int|float)\"\)", "A number is joined to a text: str()?"),
    (r"'(int)' object is not (?:iterable|subscriptable)", "A number stands where a list is wanted."),
    (r"'(NoneType)'", "Something is None there."),
    (r"'(builtin_function_or_method|method)'", "A method is not called: ()?"),
)
"""Errors of values that do not go together, and what that means."""


def symptom(error: str) -> str:
    """A short sentence about the difference, or nothing where it cannot be told."""
    if error.startswith("TypeError: "):
        return _of_kinds(error)
    values = values_of(error)
    return "" if values is None or repr(values[0]) == repr(values[1]) else difference_of(*values)


def values_of(error: str) -> tuple[Any, Any] | None:
    """The value that came and the one that was wanted, where an assertion shows both."""
    match = _SIDES.match(error) if len(error) < _LONGEST else None
    if match is None:
        return None
    try:
        return ast.literal_eval(match[1]), ast.literal_eval(match[2])
    except (ValueError, SyntaxError, TypeError):
        return None


def _of_kinds(error: str) -> str:
    """Which value is of another kind than the code wants."""
    for pattern, said in _MET:
        if match := re.search(pattern, error):
            kind = next((group for group in match.groups() if group), "")
            return said.format(kind, "int()" if kind == "str" else "len()")
    return ""


def case_said(code: str) -> str:
    """For which kind of case a line of a test fails, as a thought: nothing, one element, zero."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return ""
    call = next((node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args), None)
    for arg in call.args if call else ():
        match arg:
            case ast.List(elts=[]) | ast.Dict(keys=[]) | ast.Constant(value=""):
                return "It fails for an empty one: is that case missing?"
            case ast.List(elts=[_]):
                return "It fails for one element: is that case missing?"
            case ast.Constant(value=None):
                return "It fails for None: is that case missing?"
            case _:
                continue
    return ""


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
        one, two = (f"{'an' if name == 'int' else 'a'} {name}" for name in names)
        return f"It is {one}, not {two}."
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
