"""Slips that people make in a line of code: bounds, arguments, attributes, keys, calls, names, conditions."""

import random
import re
from dataclasses import dataclass
from functools import cache

_PART = r"[\w.]+(?:\[[^\[\]]+\])?"
RULES: tuple[tuple[str, str], ...] = (
    (rf"range\(({_PART}), ({_PART})\)", r"range(\1, \2 + 1)"),
    (rf"range\(({_PART}), ({_PART})\)", r"range(\1 + 1, \2)"),
    (rf"range\(({_PART}), ({_PART}) \+ 1\)", r"range(\1, \2)"),
    (rf"range\(({_PART}), ({_PART}) - 1\)", r"range(\1, \2)"),
    (r"range\(1, ", "range("),
    (r"range\(2, ", "range("),
    (r"\[(\w+):(\w+)\]", r"[\1:\2 + 1]"),
    (r"\[(\w+):(\w+)\]", r"[\1 + 1:\2]"),
    (r"\[(\w+):(\w+ \+ \w+)\]", r"[\1:\2 - 1]"),
    (r"\[(\w+):(\w+) \+ (\w+)\]", r"[\1:\3]"),
    (r"\[(\w+):(\w+)\]", r"[:\2]"),
    (r"\[:(\w+)\]", r"[:\1 - 1]"),
    (r"\[:(\w+)\]", r"[:\1 + 1]"),
    (r"\[:(\w+)\]", r"[\1:]"),
    (r"\[(\w+):\]", r"[\1 + 1:]"),
    (r"\[(\w+):\]", r"[:\1]"),
    (r"\[(\w+) \+ 1:\]", r"[\1:]"),
    (r"\[(\w+) \+ 1\]", r"[\1]"),
    (r"\[(\w+) - 1\]", r"[\1]"),
    (r"(?<=\w)\[([a-z]\w*)\]", r"[\1 + 1]"),
    (r"(?<=\w)\[([a-z]\w*)\]", r"[\1 - 1]"),
    (r"(?<=\w)\[1\]", "[0]"),
    (r"(?<=\w)\[0\]", "[1]"),
    (r"(?<=\w)\[-1\]", "[0]"),
    (rf"\(({_PART}), ({_PART})\)", r"(\2, \1)"),
    (rf"\(({_PART}), ({_PART}), ({_PART})\)", r"(\2, \1, \3)"),
    (rf"({_PART}) - ({_PART})", r"\2 - \1"),
    (rf"({_PART}) // ({_PART})", r"\2 // \1"),
    (rf"({_PART}) / ({_PART})", r"\2 / \1"),
    (rf"\(({_PART}) ([+-]) ({_PART})\) ([*/%]|//) ", r"\1 \2 \3 \4 "),
    (r"\bif (?!not\b)(\w[\w.]*):", r"if not \1:"),
    (r"\bif (?!not\b)(\w[\w.]*) ", r"if not \1 "),
    (r"\bif not ", "if "),
    (r"\breturn not ", "return "),
    (r" and not ", " and "),
    (r"\bnot in\b", "in"),
    (r"\belif ", "if "),
    (r"(?<=\w) == (?=\w)", " >= "),
    (r" is None", " is not None"),
    (r" is not None", " is None"),
    (r"\.(\w+)\(\)", r".\1"),
    (r"\.append\((.+)\)$", r".append([\1])"),
    (r"\.append\(", ".extend("),
    (r"\.extend\(", ".append("),
    (r"\.append\((\w+)\)$", r".insert(0, \1)"),
    (r"\.pop\(0\)", ".pop()"),
    (r"\.pop\(\)", ".pop(0)"),
    (r"\.get\(([^,()]+), 0\)", r".get(\1, 1)"),
    (r"\.get\(([^,()]+), [^()]+\)", r".get(\1)"),
    (r"\.items\(\)", ".values()"),
    (r"\.values\(\)", ".items()"),
    (r"\.add\(", ".discard("),
    (r"\.discard\(", ".add("),
    (r"\.remove\(", ".append("),
    (r"\.find\(", ".rfind("),
    (r"\.lstrip\(", ".rstrip("),
    (r"\.rstrip\(", ".lstrip("),
    (r"\.islower\(", ".isupper("),
    (r"\.isalpha\(", ".isdigit("),
    (r"\.isalnum\(", ".isalpha("),
    (r"\.keys\(\)", ".values()"),
    (r"\.update\(", ".get("),
    (r"\.partition\(", ".rpartition("),
    (r"\.rpartition\(", ".partition("),
    (r"\.ljust\(", ".rjust("),
    (r"\.setdefault\(", ".get("),
    (r"\.join\(", ".split("),
    (r"'[^'\s]+'\.join\(", "''.join("),
    (r"' '\.join\(", "''.join("),
    (r"\byield ", "return "),
    (r"\babs\((.+?)\)", r"(\1)"),
    (r"\bround\(([^()]+), \d\)", r"round(\1)"),
    (r"\bint\((\w+)\)", r"\1"),
    (r"\bstr\((\w+)\)", r"\1"),
    (r"\blist\((\w+)\)", r"\1"),
    (r"\blen\((\w[\w.]*)\)", r"\1"),
    (r"\bsorted\((\w+)\)", r"\1"),
    (r"\bset\((\w+)\)", r"list(\1)"),
    (r", reverse=True", ""),
    (r"reverse=True", "reverse=False"),
    (r", start\)", ")"),
    (r"= \[\]$", "= {}"),
    (r"= \{\}$", "= []"),
    (r"= ''$", "= ' '"),
    (r"= 0$", "= 1"),
    (r"= 1$", "= 0"),
    (r"= -1$", "= 1"),
    (r"= None$", "= 0"),
    (r"\breturn \[\]", "return None"),
    (r"\breturn True\b", "return False"),
    (r"\breturn False\b", "return True"),
    (r"\breturn -1\b", "return 1"),
    (r"\breturn None\b", "return 0"),
    (r"\bbreak\b", "continue"),
    (r"\bcontinue\b", "break"),
    (r"\braise ", "return "),
    (r"\breturn ", ""),
    (r" \+ 1\b", ""),
    (r" - 1\b", ""),
    (r" // ", " / "),
    (r" % ", " // "),
    (r" \*\* ", " * "),
    (r"(?<= )min\(", "max("),
    (r"(?<= )max\(", "min("),
    (r"\bself\.(\w+)(?= [+-]?= )", r"\1"),
    (r"\{(\w+)\}", "{{\\1}}"),
    (r"\bf(?=['\"])", ""),
    (r"\breturn (.+)$", r"print(\1)"),
    (r"^(\s*)([\w.]+)\.(append|add|update|extend|sort)\(", r"\1\2 = \2.\3("),
    (r"\.replace\(('[^']*'), ('[^']*')\)", r".replace(\2, \1)"),
    (r"\braise ValueError\b", "raise TypeError"),
    (r"\braise (?:KeyError|TypeError|IndexError|LookupError)\b", "raise ValueError"),
    (r"\bexcept ValueError:", "except KeyError:"),
    (r"\bexcept (?:KeyError|IndexError|TypeError):", "except ValueError:"),
    (r"%Y-%m-%d", "%d-%m-%Y"),
    (r"%Y-%m-%d", "%Y-%d-%m"),
    (r"%d\.%m\.%Y", "%m.%d.%Y"),
    (r"\bfor (\w+), (\w+) in", r"for \2, \1 in"),
    (r"\bdivmod\((\w+), (\w+)\)", r"divmod(\2, \1)"),
    (r"(\w+) <= (\w+) <= (\w+)", r"\1 < \2 < \3"),
    (r"\bsorted\((\w+), key=(.+), reverse=True\)", r"sorted(\1, key=\2)"),
    (r"\.strip\(\)\.lower\(\)", ".lower()"),
    (r"\.strip\(\)\.lower\(\)", ".strip()"),
    (r"\b(\w+)\[len\((\w+)\):\]", r"\1[:len(\2)]"),
    (r"\bsum\((\w+)\) / len\(\1\)", r"sum(\1) // len(\1)"),
    (r"\bkey=lambda (\w+): \1\[(\d)\]", r"key=lambda \1: \1"),
    (r" / len\((\w+)\)", ""),
    (r" / 100\b", ""),
    (r"\.lower\(\)(?= ==| in )", ""),
    (r", default\b", ""),
)
"""Pattern and what people write instead."""
_NAME = re.compile(r"(?<![\w'\"])[a-z_]\w{3,}\b(?!['\"]| = )")
_KEEP = frozenset(
    (
        "self",
        "return",
        "else",
        "elif",
        "while",
        "break",
        "continue",
        "class",
        "from",
        "import",
        "None",
        "True",
        "False",
        "lambda",
        "yield",
    )
)


@dataclass(frozen=True, slots=True)
class Around:
    """What stands around a line: attributes of self, quoted words."""

    attributes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    @staticmethod
    def of(lines: list[str]) -> "Around":
        """What some lines use."""
        text = "\n".join(lines)
        attributes = sorted(set(re.findall(r"\bself\.(\w+)\b(?!\()", text)))
        keys = sorted(set(re.findall(r"['\"]([a-z_]{2,14})['\"]", text)))
        return Around(tuple(attributes), tuple(keys))


def typo(word: str, rng: random.Random) -> str:
    """A word written wrongly."""
    at = rng.randrange(1, len(word) - 1)
    return rng.choice(
        (
            word[:at] + word[at + 1 :],
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + word[at] + word[at:],
            word[:-1] if word.endswith("s") else f"{word}s",
        )
    )


def name_typo(name: str, rng: random.Random) -> str:
    """A name written wrongly: a part left out, another style, a wrong letter, or as any word."""
    first, _, rest = name.strip("_").partition("_")
    kind = rng.random()
    if rest and kind < 0.5:
        last = name.rsplit("_", 1)[-1]
        camel = first + "".join(part.capitalize() for part in rest.split("_"))
        return rng.choice((first, last, name.removesuffix(f"_{last}"), camel, name.replace("_", "")))
    if kind < 0.7:
        at = rng.randrange(1, len(name))
        return name[:at] + rng.choice("aeiourstnlmdcp") + name[at + 1 :]
    return typo(name, rng)


@cache
def _rule(pattern: str) -> re.Pattern[str]:
    """A rule's pattern: there are more than `re` remembers."""
    return re.compile(pattern)


def applied(pattern: str, new: str, line: str, rng: random.Random) -> str | None:
    """A line with a rule applied at one of its places; None where it has none."""
    matches = list(_rule(pattern).finditer(line))
    if not matches:
        return None
    match = rng.choice(matches)
    return line[: match.start()] + match.expand(new) + line[match.end() :]


def slips(line: str, rng: random.Random, around: Around) -> list[str]:
    """What could stand there instead of a line: each rule once, at one of its places."""
    changed = (applied(pattern, new, line, rng) for pattern, new in RULES)
    found = [item for item in changed if item is not None]
    for pattern, options in (
        (r"\bself\.(\w+)\b(?!\()", around.attributes),
        (r"['\"](\w+)['\"]", around.keys),
    ):
        matches = [match for match in re.finditer(pattern, line) if match[1] in options]
        others = [item for item in options if matches and item != matches[0][1]]
        if others:
            match = matches[0]
            found.append(line[: match.start(1)] + rng.choice(others) + line[match.end(1) :])
    names = [match for match in _NAME.finditer(line) if match.group() not in _KEEP]
    if names and rng.random() < 0.5:
        match = rng.choice(names)
        found.append(line[: match.start()] + typo(match.group(), rng) + line[match.end() :])
    return [item for item in found if item != line]
