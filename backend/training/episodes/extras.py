"""Second ideas of a function: a guard with its error or result, what is done to an argument first, what is
done to the result. Each is said in words, has its code, and shows itself in calls.
"""

import ast
import contextlib
import io
import logging
import random
import re
import sys
import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from k3agent.backend.training.episodes.concepts import Func, copy_value
from k3agent.backend.training.episodes.mutate import limited
from k3agent.backend.training.episodes.words import Words


@dataclass(frozen=True, slots=True)
class Extra:
    """A second idea: `action` and `cond` in words ("return None", "if items is empty"), and its lines."""

    action: str
    cond: str = ""
    lines: tuple[str, ...] = ()
    wraps: str = ""
    """What becomes of a returned expression, with {0} in its place."""
    exact: bool = False
    """Whether the text of the error was asked for."""
    needs: str = ""
    """A module that must be imported."""

    @property
    def said(self) -> str:
        """All of it, as what somebody should do."""
        return f"{self.action} {self.cond}".strip()

    @property
    def third(self) -> str:
        """All of it, as what the function does."""
        return third(self.said)


def in_one_line(lines: list[str] | tuple[str, ...]) -> str:
    """Lines of code joined, as thoughts say them."""
    text = ""
    for line in (line.strip() for line in lines if line.strip()):
        link = "" if not text else " " if text.endswith((":", "{", ";")) or line.startswith("}") else "; "
        text += link + line
    return text


def third(said: str) -> str:
    """What somebody should do, as what is done: `return 0` is `returns 0`."""
    verb, _, rest = said.partition(" ")
    return f"{verb}s {rest}"


def tag_of(values: list[Any]) -> str:
    """What kind of argument these are examples of."""
    if all(isinstance(value, str) for value in values):
        return "text"
    if all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return "num"
    if all(isinstance(value, dict) for value in values):
        return "dict"
    if values and all(isinstance(value, list) for value in values):
        inside = [item for value in values for item in value]
        for tag, kind in (("ints", int), ("words", str)):
            if inside and all(type(item) is kind for item in inside):
                return tag
        return "list"
    return ""


def _conditions(tag: str, param: str, rng: random.Random) -> list[tuple[str, str]]:
    """(words, test) of what an argument may be that it should not be."""
    n = rng.randint(2, 4)
    many, kind = rng.randint(5, 60), {"text": "str", "dict": "dict", "num": "int"}.get(tag, "list")
    word = {"str": "string", "int": "number"}.get(kind, kind)
    empty = [
        (f"if {param} is empty", f"not {param}"),
        (f"when {param} is empty", f"not {param}"),
        (f"if the {word} is empty", f"not {param}"),
        (f"for an empty {word}", f"not {param}"),
        (f"if {param} has no {'characters' if tag == 'text' else 'items'}", f"not {param}"),
    ]
    other = [
        (f"if {param} is None", f"{param} is None"),
        (f"when {param} is None", f"{param} is None"),
        (f"if {param} is not a {word}", f"not isinstance({param}, {kind})"),
    ]
    match tag:
        case "num":
            numbers = [
                (f"if {param} is negative", f"{param} < 0"),
                (f"when {param} is negative", f"{param} < 0"),
                (f"for negative {param}", f"{param} < 0"),
                (f"if {param} is 0", f"{param} == 0"),
                (f"when {param} is zero", f"{param} == 0"),
                (f"if {param} is not positive", f"{param} <= 0"),
                (f"if {param} is below {n}", f"{param} < {n}"),
                (f"when {param} is less than {n}", f"{param} < {n}"),
                (f"if {param} is above {many}", f"{param} > {many}"),
                (f"when {param} is greater than {many}", f"{param} > {many}"),
                (f"if {param} > {many}", f"{param} > {many}"),
            ]
            return numbers + other
        case "text":
            mark = rng.choice((".", "@", "-", "/", ":"))
            return [
                *empty,
                (f"if {param} is blank", f"not {param}.strip()"),
                (f"when {param} is only white space", f"not {param}.strip()"),
                (f"if {param} is longer than {many} characters", f"len({param}) > {many}"),
                (f"when {param} is shorter than {n} characters", f"len({param}) < {n}"),
                (f'if {param} has no "{mark}"', f'"{mark}" not in {param}'),
                (f'if {param} contains "{mark}"', f'"{mark}" in {param}'),
                *other,
            ]
    return [
        *empty,
        (f"if {param} has fewer than {n} items", f"len({param}) < {n}"),
        (f"when {param} has less than {n} entries", f"len({param}) < {n}"),
        (f"if {param} has more than {n} items", f"len({param}) > {n}"),
        *other,
    ]


RETURNED = (
    ("None", "None"),
    ("None", "None"),
    ("None", "None"),
    ("0", "0"),
    ("-1", "-1"),
    ("False", "False"),
    ("an empty list", "[]"),
    ("an empty string", '""'),
    ("an empty dict", "{}"),
    ("[]", "[]"),
)
ERRORS = ("ValueError",) * 5 + ("KeyError", "IndexError", "RuntimeError", "LookupError")


def guard(param: str, tag: str, rng: random.Random, words: Words) -> Extra:
    """A case that is handled first: by an error, a result, a message."""
    cond, test = rng.choice(_conditions(tag, param, rng))
    text = rng.choice((words.phrase(), f"no {words.noun()}", f"{words.adjective()} {words.noun()}"))
    text = text.replace('"', "").replace("\\", "")
    roll = rng.random()
    if roll < 0.5:
        error = "TypeError" if "isinstance" in test and rng.random() < 0.85 else rng.choice(ERRORS)
        if rng.random() < 0.5:
            told = rng.choice((f'raise {error}("{text}")', f'raise a {error} with the message "{text}"'))
            told = told.replace("a IndexError", "an IndexError")
            return Extra(told, cond, (f"if {test}:", f'    raise {error}("{text}")'), exact=True)
        must = re.sub(r"^(if|when|for) ", "", cond)
        told = rng.choice((f"raise {error}", f"raise a {error}")).replace("a IndexError", "an IndexError")
        return Extra(told, cond, (f"if {test}:", f'    raise {error}("{must.replace(chr(34), chr(39))}")'))
    if roll < 0.82:
        said, value = rng.choice(
            (*RETURNED, (f'"{text}"', f'"{text}"'), (number := str(rng.randint(1, 99)), number))
        )
        return Extra(f"return {said}", cond, (f"if {test}:", f"    return {value}"))
    if roll < 0.91:
        return Extra(f'print "{text}"', cond, (f"if {test}:", f'    print("{text}")'))
    lines = (f"if {test}:", f'    logging.warning("{text}")')
    return Extra(f'log a warning "{text}"', cond, lines, needs="logging")


def before(param: str, tag: str, rng: random.Random, words: Words) -> Extra:
    """Something done to an argument first."""
    n, mark = rng.randint(2, 40), rng.choice(("-", "_", ".", words.noun()))
    each = f"[item for item in {param} if {{}}]"
    table: dict[str, list[tuple[str, str]]] = {
        "text": [
            (f"strip {param} first", f"{param}.strip()"),
            ("strip whitespace first", f"{param}.strip()"),
            (f"remove white space around {param} first", f"{param}.strip()"),
            (f"lowercase {param} first", f"{param}.lower()"),
            (f"convert {param} to lower case first", f"{param}.lower()"),
            (f"convert {param} to upper case first", f"{param}.upper()"),
            (f"remove all spaces from {param} first", f'{param}.replace(" ", "")'),
            (f'replace "{mark}" by a space in {param} first', f'{param}.replace("{mark}", " ")'),
            (f'remove every "{mark}" from {param} first', f'{param}.replace("{mark}", "")'),
            (f"collapse repeated spaces in {param}", f'" ".join({param}.split())'),
            (f"cut {param} to {n} characters first", f"{param}[:{n}]"),
        ],
        "num": [
            (f"use the absolute value of {param}", f"abs({param})"),
            (f"treat negative {param} as 0", f"max({param}, 0)"),
            (f"cap {param} at {n}", f"min({param}, {n})"),
            (f"limit {param} to at most {n}", f"min({param}, {n})"),
            (f"use at least {n} for {param}", f"max({param}, {n})"),
            (f"convert {param} to int first", f"int({param})"),
            (f"round {param} first", f"round({param})"),
        ],
        "ints": [
            (f"ignore negative numbers in {param}", each.format("item >= 0")),
            (f"skip negative values in {param}", each.format("item >= 0")),
            (f"skip zeros in {param}", each.format("item != 0")),
            (f"ignore values above {n} in {param}", each.format(f"item <= {n}")),
            (f"use only the even numbers of {param}", each.format("item % 2 == 0")),
            (f"use the absolute values of {param}", f"[abs(item) for item in {param}]"),
        ],
        "words": [
            (f"skip empty strings in {param}", each.format("item")),
            (f"ignore blank entries in {param}", each.format("item.strip()")),
            (f"strip every one of {param} first", f"[item.strip() for item in {param}]"),
            (f"lowercase all of {param} first", f"[item.lower() for item in {param}]"),
            (
                f'skip those of {param} that start with "{mark}"',
                each.format(f'not item.startswith("{mark}")'),
            ),
        ],
    }
    lists = [
        (f"skip None in {param}", each.format("item is not None")),
        (f"ignore None values in {param}", each.format("item is not None")),
        (f"sort {param} first", f"sorted({param})"),
        (f"ignore duplicates in {param}", f"list(dict.fromkeys({param}))"),
        (f"look only at the first {n % 4 + 1} of {param}", f"{param}[:{n % 4 + 1}]"),
    ]
    pool = table.get(tag, []) + (lists if tag in ("ints", "words", "list") else [])
    if tag == "dict":
        pool = [(f"work on a copy of {param}", f"dict({param})")]
    said, code = rng.choice(pool)
    return Extra(said, lines=(f"{param} = {code}",))


def after(result: Any, rng: random.Random) -> Extra | None:
    """Something done to the result, where it is of a kind that this suits."""
    n = rng.randint(1, 3)
    pool: list[tuple[str, str]] = [("return the result as a string", "str({0})")]
    if isinstance(result, list):
        pool += [
            ("sort the result", "sorted({0})"),
            ("return a tuple instead of a list", "tuple({0})"),
            ("return the result in reverse order", "list(reversed({0}))"),
            ("remove duplicates from the result", "list(dict.fromkeys({0}))"),
            ("return a set", "set({0})"),
        ]
    elif isinstance(result, str):
        pool = [
            ("return the result in upper case", "({0}).upper()"),
            ("return the result in lower case", "({0}).lower()"),
            ("strip the result", "({0}).strip()"),
            ("return None instead of an empty result", "({0}) or None"),
        ]
    elif isinstance(result, float):
        pool += [
            (f"round the result to {n} digits", f"round({{0}}, {n})"),
            (f"round the result to {n} decimals", f"round({{0}}, {n})"),
            ("round the result to an integer", "round({0})"),
            ("return an int", "int({0})"),
        ]
    elif isinstance(result, bool):
        pool = [("return the opposite", "not ({0})"), ("return 1 or 0 instead of a bool", "int({0})")]
    elif isinstance(result, int):
        pool += [
            ("never return less than 0", "max({0}, 0)"),
            (f"cap the result at {n * 10}", f"min({{0}}, {n * 10})"),
            ("return the absolute value of the result", "abs({0})"),
            ("return a float", "float({0})"),
        ]
    else:
        return None
    said, code = rng.choice(pool)
    return Extra(said, wraps=code)


def wrapped(line: str, wraps: str) -> str:
    """A line `return X` that returns more."""
    lead, _, value = line.partition("return ")
    if re.fullmatch(r"[\w.]+|\w[\w.]*\([^()]*\)|\[[^\[\]]*\]", value):
        wraps = wraps.replace("({0})", "{0}") if wraps.startswith("({0})") or "not (" in wraps else wraps
    return f"{lead}return {wraps.format(value)}"


def with_extra(func: Func, extra: Extra) -> Func | None:
    """The function with a second idea in its body; None where it has no place for it."""
    if extra.wraps:
        returns = [line for line in func.body if "return" in line]
        if len(returns) != 1 or not func.body[-1].startswith("    return "):
            return None
        body = [*func.body[:-1], wrapped(func.body[-1], extra.wraps)]
    else:
        body = [f"    {line}" for line in extra.lines] + func.body
    return replace(func, body=body)


UNIT = "unit"
"""What code that is judged takes itself for."""


def loaded(text: str, name: str) -> Any:
    """A function of a file with what the file's standard modules, constants and definitions give it."""
    scope: dict[str, Any] = {"__name__": UNIT}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            first = node.names[0].name if isinstance(node, ast.Import) else node.module or ""
            if first.split(".")[0] not in sys.stdlib_module_names:
                continue
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign):
            continue
        with contextlib.suppress(Exception, SystemExit):
            limited(partial(exec, compile(ast.Module([node], []), "file", "exec"), scope))
    return scope.get(name)


class _Told(logging.Handler):
    """Keeps what its thread logs: tasks are judged side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[str] = []
        self.thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self.thread:
            self.rows.append(f"{record.levelname} {record.getMessage()}")


def plain(value: Any) -> Any:
    """A value without what equal ones may differ in: last digits of floats, the order of sets and dicts."""
    match value:
        case float():
            return float(f"{value:.9g}")
        case list():
            return [plain(item) for item in value]
        case tuple():
            return tuple(plain(item) for item in value)
        case dict():
            pairs = [(key, plain(item)) for key, item in value.items()]
            return dict(sorted(pairs, key=lambda pair: repr(pair[0])))
        case set():
            return ("set", sorted(value, key=repr))
    return value


def told(function: Any, args: tuple[Any, ...], exact: bool = False) -> tuple[str, str]:
    """What a call gives or raises, and what it prints and logs, as text."""
    keeper, out = _Told(), io.StringIO()
    scope: dict[str, Any] = getattr(function, "__globals__", {})
    if scope.get("__name__") == UNIT:
        # a print of its own: the process's output belongs to all threads
        scope["print"] = partial(print, file=out)
    root = logging.getLogger()
    root.addHandler(keeper)
    try:
        shown = repr(plain(limited(partial(function, *[copy_value(arg) for arg in args]))))
    except RecursionError:
        shown = "!endless"
    except (Exception, SystemExit) as error:
        shown = f"!{type(error).__name__}{f': {error}' if exact else ''}"
    finally:
        root.removeHandler(keeper)
    return shown, "\n".join([out.getvalue(), *keeper.rows]).strip("\n")


def probes(value: Any) -> list[Any]:
    """Unusual arguments in the place of one."""
    if isinstance(value, str):
        return [
            *("", "  ", f"  {value} ", value.upper(), f"{value}-{value}", f"{value}  {value}"),
            *(f"{value}.", value[:1], value * 9),
        ]
    if isinstance(value, bool) or not isinstance(value, int | list | dict):
        return [None]
    if isinstance(value, int):
        return [0, -1, -7, 1, 5, 9, 13, 15, 65, 99, None]
    if isinstance(value, dict):
        return [{}, dict(list(value.items())[:1]), None]
    first = value[:1]
    more = [[-3, 0, *value]] if first and isinstance(first[0], int) else [["", " b ", "A", *value]]
    return [[], first, value + first, value * 3, list(reversed(value)), [*value, None], *more, None]


def _foreseen(value: Any, extra: Extra) -> bool:
    """Whether an argument is or has None only where the idea is about that: functions take it in ways of
    their own.
    """
    head, is_guard = "".join(extra.lines[:1]), len(extra.lines) > 1
    if value is None:
        return is_guard and re.search("None|isinstance", head) is not None
    return not (isinstance(value, list) and None in value) or (not is_guard and "None" in head)


def _other_reading(extra: Extra) -> Extra | None:
    """The idea as its words may be meant too, with code that does otherwise in a few calls."""
    if "only white space" in extra.cond:
        head = re.sub(r"not (\w+)\.strip\(\)", r"\1.isspace()", extra.lines[0])
    elif extra.action.startswith("collapse"):
        squeezed = r'__import__("re").sub(" +", " ", \1)'
        head = re.sub(r'" "\.join\((\w+)\.split\(\)\)', squeezed, extra.lines[0])
    else:
        return None
    return replace(extra, lines=(head, *extra.lines[1:]))


def _far_out(func: Func, at: int, args: tuple[Any, ...]) -> bool:
    """Whether a number is negative where those of all cases are not, or larger than all: what functions do
    with it, and in which time, is their own.
    """
    numbers = [case[at] for case, _ in func.cases] if isinstance(args[at], int) else []
    return bool(numbers) and (args[at] < 0 <= min(numbers) or args[at] > max(20, *numbers))


def calls_showing(old: Func, new: Func, at: int, extra: Extra, header: str = "") -> list[tuple[Any, ...]]:
    """Calls in which the function with the idea does something else than without it, and some others. None of
    them is one for which the words leave open what comes.
    """
    reading = _other_reading(extra)
    read = (reading and with_extra(old, reading)) or new
    one, two, three = (loaded(header + "\n".join(func.source()), func.name) for func in (old, new, read))
    args = old.cases[0][0]
    shows: list[tuple[Any, ...]] = []
    same: list[tuple[Any, ...]] = []
    extreme = [(*args[:at], value, *args[at + 1 :]) for value in probes(args[at]) if _foreseen(value, extra)]
    for given in [case for case, _ in old.cases] + ([] if extra.wraps else extreme):
        have, want = told(one, given, extra.exact), told(two, given, extra.exact)
        if want != told(three, given, extra.exact):
            continue
        raises = want[0].startswith("!")
        meant = bool(extra.lines) and f"raise {want[0][1:].split(':')[0]}(" in extra.lines[-1]
        if have != want and (not raises or meant):
            shows.append(given)
        elif have == want and not raises and not _far_out(old, at, given):
            same.append(given)
    if not shows or (len(extra.lines) > 1 and not same):
        return []
    return shows + same


def behaves(text: str, func: Func, calls: list[tuple[Any, ...]], exact: bool) -> bool:
    """Whether the function in a file does what the right one does, in all calls. Where something must be
    printed or logged that is all: whether the function goes on then is not said.
    """
    try:
        ours = loaded("import logging\n" + "\n".join(func.source()), func.name)
        theirs = loaded(text, func.name)
    except SyntaxError:
        return False
    if theirs is None:
        return False
    pairs = ((told(ours, args, exact), told(theirs, args, exact)) for args in calls)
    return all(one == two or (one[1] != "" and one[1] == two[1]) for one, two in pairs)
