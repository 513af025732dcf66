"""Bugs: one changed line in a correct function, kept only when a test case notices it."""

import contextlib
import io
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from k3agent.backend.training.episodes.concepts import Func, copy_value
from k3agent.backend.training.episodes.memory import bounded
from k3agent.backend.training.episodes.slips import Around, applied, slips

Rule = tuple[str, str]
RULES: tuple[Rule, ...] = (
    (r" \+ ", " - "),
    (r" \+ ", " * "),
    (r" - ", " + "),
    (r" - ", " * "),
    (r" \* ", " + "),
    (r" \* ", " / "),
    (r" \* ", " ** "),
    (r" / ", " * "),
    (r" / ", " // "),
    (r" // ", " / "),
    (r" // ", " % "),
    (r" % ", " // "),
    (r" % ", " / "),
    (r" \*\* ", " * "),
    (r" == ", " != "),
    (r" != ", " == "),
    (r" > ", " < "),
    (r" > ", " >= "),
    (r" < ", " > "),
    (r" < ", " <= "),
    (r" >= ", " > "),
    (r" >= ", " <= "),
    (r" <= ", " < "),
    (r" <= ", " >= "),
    (r" and ", " or "),
    (r" or ", " and "),
    (r"\+= ", "-= "),
    (r"-= ", "+= "),
    (r"\*= ", "+= "),
    (r"\+= ", "= "),
    (r"\[0\]", "[1]"),
    (r"\[0\]", "[-1]"),
    (r"\[-1\]", "[0]"),
    (r"\[1\]", "[0]"),
    (r"\[1:\]", "[:1]"),
    (r"\[:-1\]", "[1:]"),
    (r"\[::-1\]", "[::1]"),
    (r"\[::-1\]", "[::2]"),
    (r"\bTrue\b", "False"),
    (r"\bFalse\b", "True"),
    (r"return -1\b", "return 0"),
    (r"return 0$", "return 1"),
    (r"return None", "return 0"),
    (r" = 0$", " = 1"),
    (r" = 1$", " = 0"),
    (r"\.upper\(\)", ".lower()"),
    (r"\.lower\(\)", ".upper()"),
    (r"\.title\(\)", ".upper()"),
    (r"\.strip\(\)", ""),
    (r"\bmax\(", "min("),
    (r"\bmin\(", "max("),
    (r"\bsum\(", "len("),
    (r"\blen\(", "sum("),
    (r"\bany\(", "all("),
    (r"\ball\(", "any("),
    (r"(?<!not) in (?!range|enumerate|zip|reversed)", " not in "),
    (r" not in ", " in "),
    (r"\bif not ", "if "),
    (r", reverse=True", ""),
    (r"' '", "''"),
    (r"','", "' '"),
    (r"'-'", "'_'"),
    (r"'_'", "'-'"),
    (r"\blen\((\w+)\)", r"len(\1) - 1"),
    (r"\blen\((\w+)\)", r"(len(\1) + 1)"),
    (r"range\(1, (\w+) \+ 1\)", r"range(1, \1)"),
    (r"range\(1, (\w+) \+ 1\)", r"range(\1)"),
    (r"range\(2, (\w+)\)", r"range(1, \1)"),
    (r"range\((\w+)\)", r"range(\1 - 1)"),
    (r"\.startswith\(", ".endswith("),
    (r"\.endswith\(", ".startswith("),
    (r"\.values\(\)", ".keys()"),
    (r"\.isdigit\(\)", ".isalpha()"),
    (r"\.append\(", ".extend("),
    (r"\.items\(\)", ""),
    (r"\.append\(", ".push("),
    (r"\.strip\(\)", ".trim()"),
    (r"\.upper\(\)", ".to_upper()"),
    (r"\.lower\(\)", ".lowercase()"),
    (r"\.split\(", ".splits("),
    (r"\.startswith\(", ".starts_with("),
    (r"\blen\(", "length("),
    (r"\breturn ", ""),
    (r":$", ""),
    (r"\.replace\(", ".substitute("),
    (r"\['(\w+)'\]", r"['\1s']"),
    (r"\['name'\]", "['title']"),
    (r"\.get\(", ".fetch("),
    (r"\bNone\b", "0"),
    (r" is None", " is not None"),
    (r"\bint\(", "str("),
    (r"\bstr\(", "int("),
    (r"%$", "%%"),
    (r"\bnot ", ""),
    (r" \+ 1\b", " - 1"),
    (r" - 1\b", " + 1"),
    (r" \+ 1\b", ""),
    (r"\b2\b", "3"),
    (r"\b100\b", "10"),
    (r"\b60\b", "24"),
    (r"\b7\b", "5"),
    (r"\b32\b", "30"),
    (r"\b9 / 5\b", "5 / 9"),
    (r"\b5 / 9\b", "9 / 5"),
    (r"\)$", ""),
    (r"== ''", "== ' '"),
    (r" continue$", " break"),
    (r"\['price'\]", "['quantity']"),
    (r"\['quantity'\]", "['price']"),
    (r"\['(total|age|status|active)'\]", "['id']"),
    (r"\.append\(", ".add("),
    (r"\.append\(", ".insert("),
    (r"\.rsplit\(", ".split("),
    (r"\.split\(", ".rsplit("),
    (r"\.split\(\)", ".splitlines()"),
    (r"\[1:\]", "[2:]"),
    (r"\[1:\]", ""),
    (r"\[:-1\]", "[:-2]"),
    (r"\[:-1\]", ""),
    (r"\[-1\]", "[-2]"),
    (r"\[:3\]", "[3:]"),
    (r"\[:4\]", "[:3]"),
    (r"\[5:7\]", "[5:6]"),
    (r"\.capitalize\(\)", ".upper()"),
    (r"\.upper\(\)", ".capitalize()"),
    (r"\.isupper\(\)", ".islower()"),
    (r"\.rstrip\(\)", ".lstrip()"),
    (r"\.lower\(\)", ""),
    (r":02d", ":2d"),
    (r":02d", ""),
    (r":04d", ":4d"),
    (r"\.2f", ".1f"),
    (r"== 'open'", "!= 'open'"),
    (r"== 'paid'", "== 'open'"),
    (r"\((\w+), (\w+)\)", r"(\2, \1)"),
    (r"range\(len\((\$?\w+)\) - 1\)", r"range(len(\1))"),
    (r"range\(1, len\((\w+)\)\)", r"range(len(\1))"),
    (r"range\((.+)\)", r"range(\1 + 1)"),
    (r"return (result|total|count|best)\b", "return None"),
    (r"\.get\((\w+), 0\)", r".get(\1, 1)"),
    (r"\.get\((\w+), 0\)", r"[\1]"),
    (r" \+= ", " -= "),
    (r" \+= ", " = "),
    (r"\bsorted\((.+), reverse=True\)", r"sorted(\1)"),
    (r"enumerate\((.+), 1\)", r"enumerate(\1)"),
    (r"'\\n'", "' '"),
    (r"<=", "<"),
    (r"\bfloat\(", "int("),
    (r"\bround\((.+), 2\)", r"round(\1)"),
    (r", key=len\)", ")"),
    (r", key=[\w.]+\)", ")"),
    (r"key=lambda (\w+): \1\['age'\]", r"key=lambda \1: \1['name']"),
    (r"key=lambda (\w+): \1\['price'\]", r"key=lambda \1: \1['name']"),
    (r"key=lambda (\w+): \1\['total'\]", r"key=lambda \1: \1['id']"),
    (r", key=lambda (\w+): \w+\[[^\]]+\]", ""),
    (r"\bsorted\(([\w.]+)\)", r"\1"),
    (r"\bset\((\w+)\)", r"\1"),
    (r"\bsorted\((\w+)\)", r"reversed(\1)"),
    (r"\.capitalize\(\)", ""),
    (r"\.strip\(\)", ".lstrip()"),
    (r"\.split\(\)", ""),
    (r"\.isupper\(\)", ".isalpha()"),
    (r"\.partition\('='\)", ".partition(':')"),
    (r"\.split\('='\)", ".split(':')"),
    (r"\.split\('&'\)", ".split(';')"),
    (r"\.rsplit\(('.'), 1\)", r".split(\1, 1)"),
    (r"\.setdefault\((.+?), \[\]\)", r".get(\1, [])"),
    (r"\bkey: value for", "value: key for"),
    (r"\[value\] = key\b", "[key] = value"),
    (r"\bafter - before\b", "before - after"),
    (r"\bif (.+) else (.+)$", r"if not (\1) else \2"),
    (r" \+ '\.\.\.'", ""),
    (r"\breturn (\w+), (\w+)$", r"return \2, \1"),
    (r"\bmax\((\w+), min\((\w+), (\w+)\)\)", r"min(\1, max(\2, \3))"),
    (r"\.index\(max\(", ".index(min("),
    (r"self\.(\w+) \+= (\w+)", r"self.\1 = \2"),
    (r"\['(name|status)'\]", "['id']"),
    (r"\['age'\]", "['name']"),
    (r"\[::2\]", "[1::2]"),
    (r"\[-3:\]", "[:3]"),
    (r"except \w+:", "except TypeError:"),
    (r"\.zfill\(6\)", ".ljust(6)"),
    (r"\.count\(", ".index("),
)
MAX_STEPS = 20_000
"""Lines that a changed function may run: one that fills a list without end would take all memory."""
ENDLESS = "TooManySteps"
LOST = 0.3
"""Of the lost returns, those that stay."""
KEY = re.compile(r"\[(['\"])(\w+)\1\]")
"""A key in quotes that something is looked into by."""
LOOP_SAFE = re.compile(r"^\s*(return\b|result =|total =)")


@dataclass(frozen=True, slots=True)
class Bug:
    """A changed line of a body: `index` in Func.body, the right and the wrong text."""

    index: int
    right: str
    wrong: str
    is_syntax: bool = False


def candidates(func: Func, rng: random.Random) -> list[Bug]:
    """All single-line changes that the rules and the names in use allow, shuffled."""
    found: list[Bug] = []
    has_while = any("while " in line for line in func.body)
    names = func.params + sorted(
        {m for line in func.body for m in re.findall(r"\b([a-z_]+)(?: = | \+= |, )", line)} - {"self", "cls"}
    )
    around = Around.of(func.body)
    for index, line in enumerate(func.body):
        if (has_while and not LOOP_SAFE.match(line)) or line.strip()[:1] in ("", "#"):
            continue
        for pattern, new in RULES:
            wrong = applied(pattern, new, line, rng)
            if wrong is not None:
                found.append(Bug(index, line, wrong))
        found += [Bug(index, line, wrong) for wrong in slips(line, rng, around)]
        for number in re.finditer(r"(?<![\w.])\d+(?![\w.])", line):
            value = int(number.group())
            other = rng.choice((value + 1, max(0, value - 1), value * 2 + 1))
            found.append(Bug(index, line, f"{line[: number.start()]}{other}{line[number.end() :]}"))
        for name in re.finditer(r"(?<![\w.'\"])[a-z_]\w*\b(?!['\"(])", line):
            text = name.group()
            if text not in names or line[name.end() : name.end() + 3] == " = ":
                continue
            others = [item for item in names if item != text]
            if others:
                found.append(
                    Bug(index, line, f"{line[: name.start()]}{rng.choice(others)}{line[name.end() :]}")
                )
            if len(text) > 3 and rng.random() < 0.3:
                cut = rng.randrange(1, len(text))
                typo = rng.choice(
                    (text[:cut] + text[cut + 1 :], text + "s", text[:cut] + text[cut - 1] + text[cut:])
                )
                if typo not in names:
                    found.append(Bug(index, line, f"{line[: name.start()]}{typo}{line[name.end() :]}"))
        indent = len(line) - len(line.lstrip())
        if line.strip().startswith("return ") and index and not has_while:
            before = func.body[index - 1]
            deeper = len(before) - len(before.lstrip())
            if deeper > indent:
                found.append(Bug(index, line, " " * (indent + 4) + line.strip()))
    rng.shuffle(found)
    return [
        bug
        for bug in found
        if bug.wrong != bug.right
        and bug.wrong.strip()
        and not multiplies_other(bug)
        and (not _loses(bug) or rng.random() < LOST)
    ]


def _loses(bug: Bug) -> bool:
    """Whether a value is lost: two rules do that to nearly each last line, and each test notices."""
    return "return " in bug.right and "return " not in bug.wrong


def multiplies_other(bug: Bug) -> bool:
    """Whether another name than before is multiplied in place: a list that a loop runs over would grow until
    the memory is full.
    """
    right, wrong = (re.match(r"\s*(\w+) \*= ", line) for line in (bug.right, bug.wrong))
    return bool(wrong) and (not right or right[1] != wrong[1])


class TooManySteps(Exception):
    """Code with a bug in it does not come to an end, or takes all memory."""


def limited(call: Callable[[], Any]) -> Any:
    """What a call gives, if it ends within so many lines and so much memory. Raises TooManySteps."""
    steps = 0

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > MAX_STEPS:
            raise TooManySteps
        return trace

    before = sys.gettrace()
    with bounded():
        sys.settrace(trace)
        try:
            return call()
        except MemoryError:
            raise TooManySteps from None
        finally:
            sys.settrace(before)


def outcome(function: Any, args: tuple[Any, ...]) -> str:
    """What calling gives, as text that can be compared."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return limited(lambda: repr(function(*[copy_value(arg) for arg in args])))
    except RecursionError:
        return "RecursionError"
    except Exception as error:
        return type(error).__name__


def with_bug(func: Func, bug: Bug) -> Func:
    """The function with the wrong line in place."""
    body = list(func.body)
    body[bug.index] = bug.wrong
    return replace(func, body=body)


def find_bug(func: Func, rng: random.Random, scope: dict[str, Any] | None = None) -> Bug | None:
    """A bug that a case of the function notices, or None. `scope` holds what the function needs
    besides itself.
    """
    for bug in candidates(func, rng)[:12]:
        broken = with_bug(func, bug)
        names: dict[str, Any] = dict(scope or {})
        try:
            exec("\n".join(broken.source()), names)
        except SyntaxError:
            if rng.random() < 0.25:
                return replace(bug, is_syntax=True)
            continue
        function = names[func.name]
        found = [outcome(function, args) for args, _ in func.cases]
        if ENDLESS not in found and found != [repr(expected) for _, expected in func.cases]:
            return bug
    return None
