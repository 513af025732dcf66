"""How people tell of a slip in a line of code (told.txt), and which line of a function their words mean."""

import random
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from k3agent.backend.training.episodes.concepts import Func
from k3agent.backend.training.episodes.mutate import LOOP_SAFE, Bug, multiplies_other
from k3agent.backend.training.episodes.slips import applied

_TABLE = Path(__file__).parent / "told.txt"
_OPERAND = r"(?<![\w.'\"\])])((?:self\.)?[a-z_]\w*|\d[\d.]*)\b(?![.(\['\"])"
_SLOT = re.compile(r"\{(\d)\}")
_WORD = re.compile(r"(?<![\w.'\"])(?:self\.)?[a-z_]\w*\b(?!['\"(=.])")
_NUMBER = re.compile(r"(?<![\w.'\"])\d+\b(?![\w.'\"])")
_KEY = re.compile(r"\[(['\"])(\w+)\1\]")
_KEEP = frozenset(
    "and or not in is if elif else for return while self cls lambda yield raise from import def del".split()  # noqa: SIM905
)
SHOULD = 0.4
"""Of the slips told, those told by what the function should do."""
PLAIN = 0.55
"""Of the lines, those in which a sign is exchanged before a name or a number is."""
_BY_NAME = (
    "uses {0} instead of {1}",
    "uses {0} where {1} is meant",
    "takes {0}, but it should take {1}",
    "calculates with {0} and not with {1}",
    "mixes up {0} and {1}: it must be {1}",
    "has {0} where {1} belongs",
)
_BY_NAME_SHOULD = ("use {1}, not {0}", "use {1} instead of {0}", "calculate with {1} and not with {0}")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of slip: what becomes what, how the wrong thing looks, and how it is told."""

    right: str
    wrong: str
    seen: str
    why: str
    does: tuple[str, ...]
    should: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """The words about a slip; `should`: they say what is right. `why` joins them with the code."""

    words: str
    should: bool
    why: str


@cache
def kinds() -> tuple[Kind, ...]:
    """All kinds of told.txt. Raises ValueError where a line of it is not understood."""
    blocks: list[dict[str, list[str]]] = []
    for line in _TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        mark, _, rest = line.partition(" ")
        if mark == "=":
            blocks.append({"=": [rest], "seen": [], "why": [], "-": [], "+": []})
        elif not blocks or mark not in blocks[-1]:
            raise ValueError(f"told.txt has a line that nothing reads: {line!r}")
        else:
            blocks[-1][mark].append(rest)
    found: list[Kind] = []
    for block in blocks:
        right, arrow, wrong = block["="][0].partition(" => ")
        if not arrow or not block["seen"] or not block["why"] or not block["-"]:
            raise ValueError(f"the block {block['='][0]!r} of told.txt lacks a part")
        right = right.replace("@", _OPERAND)
        found.append(
            Kind(right, wrong, block["seen"][0], block["why"][0], tuple(block["-"]), tuple(block["+"]))
        )
    return tuple(found)


def tellable(func: Func, rng: random.Random) -> list[Bug]:
    """Slips of a function's lines that can be told of in words, in random order."""
    bound = re.findall(r"((?:self\.)?[a-z_]\w*) [-+*/]?= ", "\n".join(func.body))
    names = sorted({*func.params, *bound})
    is_looping = any("while " in line for line in func.body)
    found: list[tuple[float, Bug]] = []
    for index, line in enumerate(func.body):
        row = line.strip()
        if not row or row.startswith(("#", "@", '"', "'", "def ", "class ", "import ", "from ")):
            continue
        if is_looping and not LOOP_SAFE.match(line):
            continue
        for kind in kinds():
            if wrong := applied(kind.right, kind.wrong, line, rng):
                found.append((rng.random() * PLAIN, Bug(index, line, wrong)))
        found += [(rng.random(), Bug(index, line, wrong)) for wrong in _exchanged(line, names, rng)]
    found.sort(key=lambda item: item[0])
    return [bug for _, bug in found if bug.wrong != bug.right and not multiplies_other(bug)]


def _exchanged(line: str, names: list[str], rng: random.Random) -> list[str]:
    """The line with another name, or another number."""
    found: list[str] = []
    used = [match for match in _WORD.finditer(line) if match.group() in names]
    used = [match for match in used if not re.match(r" ([-+*/]?=|in) ", line[match.end() :])]
    if used and len(names) > 1:
        match = rng.choice(used)
        other = rng.choice([name for name in names if name != match.group()])
        found.append(line[: match.start()] + other + line[match.end() :])
    if numbers := list(_NUMBER.finditer(line)):
        match = rng.choice(numbers)
        value = int(match.group())
        other = rng.choice((value + 1, abs(value - 1), value * 10, value // 10, value + 2))
        found.append(line[: match.start()] + str(other) + line[match.end() :])
    return found


def tell(body: list[str], index: int, right: str, wrong: str, rng: random.Random) -> Told | None:
    """Words that mean this line of a function and no other one, or None; `body` has the wrong line."""
    fitting: list[tuple[Kind, tuple[str, ...]]] = []
    for kind in kinds():
        for match in re.finditer(kind.right, right):
            if right[: match.start()] + match.expand(kind.wrong) + right[match.end() :] == wrong:
                fitting.append((kind, tuple(match.groups())))
    if not fitting:
        return _tell_exchange(body, index, right, wrong, rng)
    kind, groups = rng.choice(fitting)
    is_should = bool(kind.should) and rng.random() < SHOULD
    options = list(kind.should if is_should else kind.does)
    rng.shuffle(options)
    for text in options:
        named = [groups[int(number) - 1] for number in _SLOT.findall(text) if int(number) <= len(groups)]
        if _only(body, index, kind.seen, named):
            words = _SLOT.sub(lambda match: spoken(groups[int(match[1]) - 1], rng), text)
            return Told(words, is_should, kind.why)
    return None


def _only(body: list[str], index: int, seen: str, named: list[str]) -> bool:
    """Whether just this line has what the words tell of."""
    found = [
        number
        for number, line in enumerate(body)
        if re.search(seen, line)
        and not line.lstrip().startswith(("def ", "class ", "#", '"', "'"))
        and all(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", line) for name in named)
    ]
    times = len(re.findall(seen, body[index]))
    return found == [index] and (times == 1 or bool(named))


def _tell_exchange(body: list[str], index: int, right: str, wrong: str, rng: random.Random) -> Told | None:
    """The same of a name or a number that stands for another."""
    for pattern in (_WORD, _NUMBER):
        one, two = (pattern.findall(line) for line in (right, wrong))
        apart = [(a, b) for a, b in zip(one, two, strict=False) if a != b]
        if len(one) != len(two) or len(apart) != 1 or pattern.sub("", right) != pattern.sub("", wrong):
            continue
        good, bad = apart[0]
        if {good, bad} & _KEEP or two.count(bad) != 1:
            return None
        where = _where(body, index, bad)
        if where is None:
            return None
        is_should = rng.random() < SHOULD
        text = rng.choice(_BY_NAME_SHOULD if is_should else _BY_NAME)
        return Told(text.format(bad, good) + where, is_should, f"{bad} must be {good}")
    return None


def _where(body: list[str], index: int, bad: str) -> str | None:
    """What must be said besides, so that a word means one line; None where nothing tells it."""

    def lines(start: str) -> list[int]:
        return [
            number
            for number, line in enumerate(body)
            if line.lstrip().startswith(start)
            and not line.lstrip().startswith(("def ", "class ", "#", '"', "'"))
            and re.search(rf"(?<![\w.'\"]){re.escape(bad)}\b(?! [-+*/]?= )", line)
        ]

    if lines("") == [index]:
        return ""
    for start, said in (
        ("return ", " in the return"),
        ("if ", " in the condition"),
        ("for ", " in the loop's head"),
        ("while ", " in the condition of the loop"),
        ("raise ", " in the error"),
    ):
        if lines(start) == [index]:
            return said
    return None


def spoken(operand: str, rng: random.Random) -> str:
    """An operand as people say it: as it is written, or in words."""
    bare = operand.removeprefix("self.")
    if bare[0].isdigit() or len(bare) < 3 or rng.random() < 0.45:
        return operand if rng.random() < 0.5 else bare
    return f"the {bare.strip('_').replace('_', ' ')}"
