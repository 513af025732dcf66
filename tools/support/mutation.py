"""Small changes of a function that may mend it: signs, bounds, names, values and calls exchanged in one line.

The idea is that of mutation-based program repair: a slip is one small step from the code that was meant, so
the small steps from the code that is there include the way back. No line is changed in code that removes
or overwrites files, runs programs or talks to others (harm.py): a change there could do harm when it is run.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from k3agent.errors import ToolError
from k3agent.tools.support import harm
from k3agent.tools.support.exchanges import exchanged, rewritten

MAX_CHANGES = 160
"""As many are tried at most, the likeliest."""
MAX_LINES = 120
"""A longer function is cut to the lines around the one that was named."""
MAX_WIDTH = 300
"""A longer row is data or made by a program: nothing is tried in it."""
MAX_CHARS = 30_000
"""Of the function and what belongs to it; so many are looked through in a fraction of a second."""
MAX_STEPS = 40_000
MAX_COMPARED = 200_000
SIMILAR = 0.75
"""From this likeness on one word may be a misspelling of the other."""
BLANK = "\0"
RELATED = 0.3
"""How much less likely one is in what belongs to the function: the rest of its class, what it calls."""
AT_LINE = 2.0
"""How much likelier a change is in the line that was named."""

_HEAD = re.compile(
    r"\s*((async )?def |(export )?(default )?(async )?function\b|func "
    r"|(public |private |static )*\w+\(.*\) ?\{$)"
)
_STRING = re.compile(
    r"(?P<start>(?<!\w)[rbufRBUF]{0,2})(?P<quote>['\"])(?:\\.|(?!(?P=quote))[^\\])*(?P=quote)"
)
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.]|\.\d)")
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w(])")
_ATTRIBUTE = re.compile(r"\b(?P<owner>self|this|cls)\.(?P<name>[A-Za-z_]\w*)(?!\w|\()")
_CALLED = re.compile(r"(?<![\w.])[a-z_]\w*(?=\()")
_KEY = re.compile(r"(?<=\[)(['\"])(\w+)\1(?=\])|(?<=\.get\()(['\"])(\w+)\3")
_BOUND = re.compile(
    r"(?<![\w.])([A-Za-z_]\w*)(?=(?:, [A-Za-z_]\w*)* (?:[-+*/%|&]|//|\*\*|:)?= )"
    r"|\bfor ([A-Za-z_]\w*)(?:, ([A-Za-z_]\w*))?(?: in|,)|\bas ([A-Za-z_]\w*)"
)
_KEYWORDS = frozenset(
    """and or not in is if else elif for return while def None True False lambda self cls this
    raise try except with as import from class pass break continue yield await async global
    nonlocal assert del let const var function func new true false null nil undefined typeof of
    range len print str int float list dict set tuple bool""".split()  # noqa: SIM905 - a list of names reads better so
)
_COMMON = tuple(
    """append extend insert remove clear count index sort reverse keys values items update
    setdefault split rsplit splitlines strip lstrip rstrip upper lower title capitalize casefold
    startswith endswith replace find rfind join format isdigit isalpha isalnum isupper islower
    isspace zfill ljust rjust center encode decode discard range enumerate sorted reversed print
    filter isinstance round tuple float bool super append popleft""".split()  # noqa: SIM905 - a list of names reads better so
)
"""Names that a misspelt one may stand for besides those of the file."""
_STATEMENT = re.compile(
    r"(return|raise|for|if|else|elif|with|try|except|finally|pass|break|continue|del|assert|yield|global|while|import"
    r"|from|class|def|async|await|nonlocal)\b|[\w.\[\]'\", ()]+ (?:[-+*/%|&]|//|\*\*)?= |.*\.(append|add"
    r"|extend|update"
    r"|insert|sort|reverse|pop|remove|clear|write|close)\(|print\(|[\])}'\"#@]"
)

_TEXTS = (
    ("' '", "''", 0.6),
    ("''", "' '", 0.6),
    ("','", "', '", 0.4),
    ("', '", "','", 0.5),
    ("'-'", "'_'", 0.5),
    ("'_'", "'-'", 0.5),
)
Block = tuple[int, int]
"""Rows from, to (behind the last), counted from 0."""
Step = tuple[int, int, str, float]
"""From, to, what stands there instead, and how likely that is."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one line: its number, its text now and then, both without indentation."""

    line: int
    old: str
    new: str


class NothingToTry(ToolError):
    """The code there has nothing that a small change would alter."""


_EXCHANGED, _REWRITTEN = exchanged(), rewritten()


def changes_in(text: str, line: int) -> list[Change]:
    """The changes worth a try in the function that holds a line (counted from 1), the likeliest first, then
    those in the rest of its class and in what it calls in the same file; where it is in no function, of that
    line alone. Raises ToolError where nothing may be tried.
    """
    rows = text.split("\n")
    if not 1 <= line <= len(rows):
        raise ToolError(f"line {line} is not in the file: it has {len(rows)} lines.")
    file = _File(rows)
    block = _block(rows, line - 1)
    if found := file.harm(block):
        raise ToolError(
            f"the code there has `{found}`: changes of it are not tried, since one could do harm. Use edit."
        )
    first = _cut(block, line - 1)
    weighed = _weighed(file, first, line)
    for other in _near(file, first, _related(rows, first)):
        if not file.harm(other):
            for key, (weight, begin) in _weighed(file, other, line).items():
                weighed.setdefault(key, (weight * RELATED, begin))
    if not weighed:
        raise NothingToTry(
            f"there is nothing in the function around line {line} that a small change would alter."
        )
    order = sorted(weighed, key=lambda key: (-weighed[key][0], key[0], weighed[key][1], key[2]))
    return [Change(*key) for key in order[:MAX_CHANGES]]


def blocks_around(text: str, line: int) -> list[Block]:
    """The function that holds a line, and what belongs to it in the same file."""
    rows = text.split("\n")
    if not 1 <= line <= len(rows):
        return []
    first = _cut(_block(rows, line - 1), line - 1)
    return [first, *_related(rows, first)]


class _File:
    """What the functions of a file share: its rows, those that are too long left blank, and its words."""

    def __init__(self, rows: list[str]) -> None:
        self.full = rows
        self.rows = [row if len(row) <= MAX_WIDTH else "" for row in rows]
        whole = "\n".join(self.rows)
        self.globals = {name: 0.3 for name in re.findall(r"^([a-z_]\w*) = ", whole, re.MULTILINE)}
        self.attributes = sorted({match["name"] for match in _ATTRIBUTE.finditer(whole)})
        self.constants = sorted(set(re.findall(r"^([A-Z][A-Z\d_]+)\b", whole, re.MULTILINE)))
        self.functions = sorted(set(re.findall(r"^def (\w+)\(", whole, re.MULTILINE)))
        self.keys = sorted({match[2] or match[4] for match in _KEY.finditer(whole)})
        self.words = Counter(re.findall(r"[A-Za-z_]\w{3,}", whole))
        self.values = [
            (match[1], number, row)
            for number, row in enumerate(self.rows, 1)
            if (match := re.match(r"([A-Z][A-Z\d_]+)\b.* = ", row))
        ]
        self.steps = MAX_STEPS
        self.compared = MAX_COMPARED
        self._known = [(word, len(word), _letters(word)) for word in (*self.words, *_COMMON)]
        self._aliases = harm.aliases(whole)

    def harm(self, block: Block) -> str:
        """What in a block could do harm, if anything."""
        return harm.found("\n".join(self.full[slice(*block)]), self._aliases)

    def alike(self, word: str) -> list[str]:
        """The words that one resembles: what difflib finds, without a look at what cannot be among it."""
        if self.compared < 0:
            return []
        size, letters = len(word), _letters(word)
        known = [
            other
            for other, length, others in self._known
            # As many letters as this, at most, are in both.
            if 2 * min(length, size - (letters & ~others).bit_count()) >= SIMILAR * (size + length)
            and other != word
        ]
        self.compared -= len(self._known) + 20 * len(known)
        return difflib.get_close_matches(word, known, n=3, cutoff=SIMILAR)


def _letters(word: str) -> int:
    """The set of a word's letters."""
    found = 0
    for letter in word:
        found |= 1 << (ord(letter) & 127)
    return found


def _near(file: _File, first: Block, blocks: list[Block]) -> list[Block]:
    """The blocks, in their order, but for the farthest where all of them are too much."""
    left = MAX_CHARS - _size(file, first)
    near: set[Block] = set()
    for block in sorted(blocks, key=lambda block: abs(block[0] - first[0])):
        left -= _size(file, block)
        if left < 0:
            break
        near.add(block)
    return [block for block in blocks if block in near]


def _size(file: _File, block: Block) -> int:
    return sum(map(len, file.rows[slice(*block)]))


def _weighed(file: _File, block: Block, line: int) -> dict[tuple[int, str, str], tuple[float, int]]:
    """The changes in a block (number, old and new line): how likely each is, and where in its line it is."""
    scope = _Scope(file, *block)
    weighed: dict[tuple[int, str, str], tuple[float, int]] = {}
    for number, row in sorted(scope.lines, key=lambda one: abs(one[0] - line)):
        old = row.strip()
        for begin, stop, instead, weight in scope.steps(number, old):
            file.steps -= 1
            if file.steps < 0:
                return weighed
            new = re.sub(r"  +", " ", old[:begin] + instead + old[stop:]).strip()
            if not new or new == old:
                continue
            weight *= AT_LINE if number == line else 1.0
            key = (number, old, new)
            if weight > weighed.get(key, (0.0, 0))[0]:
                weighed[key] = (weight, begin)
    return weighed


def _related(rows: list[str], block: Block) -> list[Block]:
    """The other methods of a method's class, and the functions of the file that a function calls."""
    start, end = block
    base = _indent(rows[start])
    if base and _HEAD.match(rows[start]):
        above = (at for at in range(start, -1, -1) if rows[at].strip() and _indent(rows[at]) < base)
        first = next(above, 0)
        whole = (first, _end(rows, first))
        heads = [at for at in range(*whole) if _indent(rows[at]) == base and _HEAD.match(rows[at])]
    else:
        called = set(_CALLED.findall("\n".join(map(_masked, rows[start:end]))))
        heads = [
            at
            for at, row in enumerate(rows)
            if (match := re.match(r"(?:async )?(?:def|function|func) (\w+)", row)) and match[1] in called
        ]
    return [found for at in heads if (found := _cut(_block(rows, at), at)) != block]


def _indent(row: str) -> int:
    return len(row) - len(row.lstrip())


def _block(rows: list[str], at: int) -> Block:
    """The rows of the innermost function that holds row `at`, or that row alone: from, to (from 0)."""
    start = at
    if re.match(r"\s*(export )?class ", rows[at]):
        return at, _end(rows, at)
    if not _HEAD.match(rows[at]):
        limit = _indent(rows[at]) if rows[at].strip() else 1 << 30
        while start and not (_HEAD.match(rows[start]) and _indent(rows[start]) < limit):
            start -= 1
            if rows[start].strip() and _indent(rows[start]) < limit and not _HEAD.match(rows[start]):
                limit = _indent(rows[start])
            if limit == 0:
                break
        if not _HEAD.match(rows[start]):
            return at, at + 1
    return start, _end(rows, start)


def _cut(block: Block, at: int) -> Block:
    """The block, or of a long one the rows around `at`."""
    start, end = block
    if end - start > MAX_LINES:
        start = max(start, at - MAX_LINES // 2)
        end = min(end, start + MAX_LINES)
    return start, end


def _end(rows: list[str], start: int) -> int:
    """Behind the last row of what begins at `start`: all that is indented further."""
    base, end = _indent(rows[start]), start + 1
    while end < len(rows):
        row = rows[end]
        if row.strip() and _indent(row) <= base and not re.match(r"\s*[)}\]]", row):
            break
        end += 1
    return end


class _Scope:
    """What the lines of a function may use: the names, attributes and keys that are known there."""

    def __init__(self, file: _File, start: int, end: int) -> None:
        rows = file.rows
        block = rows[start:end]
        code = "\n".join(_masked(row) for row in block)
        is_function = bool(_HEAD.match(rows[start]))
        head = _masked(rows[start]) if is_function else ""
        inside = head.partition("(")[2].rpartition(")")[0]
        params = [
            name for name in re.findall(r"(?:^|, ?)\*{0,2}([A-Za-z_]\w*)", inside) if name not in _KEYWORDS
        ]
        bound = {name for match in _BOUND.findall(code) for name in match if name}
        body = code.partition("\n")[2]
        self.names = {name: 0.5 for name in sorted({*params, *bound} - _KEYWORDS)}
        # A parameter that nothing uses is the best hint there is.
        self.names |= {name: 2.0 for name in params if not re.search(rf"\b{name}\b", body)}
        self.names |= file.globals
        self.attributes, self.constants, self.functions = file.attributes, file.constants, file.functions
        self.file, self.keys = file, file.keys
        self.lines = _lines(block, start)
        self.last = self.lines[-1][0] if self.lines and is_function else 0
        # A value that the function takes from the module may be the wrong one.
        used = set(re.findall(r"\w+", code)).intersection(self.constants)
        self.values = [(number, row) for name, number, row in file.values if name in used]
        self.lines += self.values

    def steps(self, number: int, text: str) -> Iterator[Step]:
        """The small steps from a line (without its indentation)."""
        code = _masked(text)
        if (number, text) in self.values:
            yield from _numbers(code, 0.6)
            return
        is_head = bool(_HEAD.match(text))
        yield from _numbers(code, 0.9)
        for match in re.finditer(r"\{(\d)\}", text):
            for other in range(1, 7):
                yield *match.span(1), str(other), 0.5
        if is_head:
            return
        for pattern, new, weight in _EXCHANGED:
            for match in pattern.finditer(code):
                yield *match.span(), new, weight
        for pattern, new, weight in _REWRITTEN:
            for match in pattern.finditer(code if "'" not in pattern.pattern else text):
                yield *match.span(), _expanded(match, new, text), weight
        yield from self._names(code)
        yield from self._texts(text)
        yield from self._truths(code)
        for match in re.finditer(r"\bNone$", code):
            for other in self.names:
                yield *match.span(), other, 0.5
        if number == self.last and not _STATEMENT.match(text):
            yield 0, 0, "return ", 3.0

    def _truths(self, code: str) -> Iterator[Step]:
        """True and False for a number that is given to what is asked for like them."""
        if match := re.search(r"(?:^(?P<target>\S+) = |\breturn )(?P<value>[01])$", code):
            target = match["target"]
            asked = (
                rf"(?:\bnot|\b(?:el)?if|\bwhile|\band|\bor) {re.escape(target)}(?=:| and | or |$|\))"
                if target
                else ""
            )
            is_asked = bool(asked) and any(re.search(asked, _masked(row.strip())) for _, row in self.lines)
            for value in ("True", "False"):
                yield *match.span("value"), value, 2.0 if is_asked else 0.3

    def _names(self, code: str) -> Iterator[Step]:
        """One name for another: values for values, attributes for attributes, functions for functions."""
        for match in _NAME.finditer(code):
            name = match.group()
            if name in _KEYWORDS or _is_given(code, match):
                continue
            others, weight = self._others(name)
            for other in others:
                if other != name:
                    yield *match.span(), other, max(weight, self.names.get(other, 0.0))
            if name in self.attributes:
                yield *match.span(), f"self.{name}", 1.2
        yield from self._owned(code)
        for match in _CALLED.finditer(code):
            if match.group() in self.functions:
                for other in self.functions:
                    if other != match.group():
                        yield *match.span(), other, 0.4
        yield from self._misspelt(code)

    def _owned(self, code: str) -> Iterator[Step]:
        """An attribute for another one, or for the name that is called like it."""
        for match in _ATTRIBUTE.finditer(code):
            for other in self.attributes:
                if other != match["name"]:
                    yield *match.span("name"), other, 0.5
            if match["name"] in self.names:
                yield *match.span(), match["name"], 0.8

    def _others(self, name: str) -> tuple[Sequence[str], float]:
        """What else may stand where a name stands, and how likely that is."""
        if name in self.constants:
            return self.constants, 0.7
        # One that is not known here stands perhaps for one that is.
        return tuple(self.names), 0.3

    def _misspelt(self, code: str) -> Iterator[Step]:
        """A word that stands nowhere else in the file for the ones that it resembles."""
        for match in re.finditer(r"(?<!\w)[A-Za-z_]\w{3,}", code):
            word = match.group()
            if self.file.words[word] == 1 and word not in _KEYWORDS:
                for other in self.file.alike(word):
                    yield *match.span(), other, 1.5

    def _texts(self, text: str) -> Iterator[Step]:
        """One key for another, and the signs that join or part texts."""
        for match in _KEY.finditer(text):
            group = 2 if match[2] else 4
            for other in self.keys:
                yield *match.span(group), other, 0.9
        for old, new, weight in _TEXTS:
            for one, two in ((old, new), (old.replace("'", '"'), new.replace("'", '"'))):
                for match in re.finditer(re.escape(one), text):
                    yield *match.span(), two, weight


def _expanded(match: re.Match[str], new: str, text: str) -> str:
    """The replacement with the groups as they stand in the text that is not blanked."""
    return re.sub(r"\\(\d)", lambda group: text[slice(*match.span(int(group[1])))], new)


def _is_given(code: str, name: re.Match[str]) -> bool:
    """Whether a name is one that gets a value there, or that of an argument."""
    rest = code[name.end() :]
    if rest.startswith((" in ", ", ")) and re.search(r"\bfor (\w+, )*$", code[: name.start()]):
        return True
    return rest.startswith((" = ", "=")) and not rest.startswith("==")


def _lines(block: list[str], start: int) -> list[tuple[int, str]]:
    """The numbers and rows of a block that are code: no empty ones, comments, decorators and docstrings."""
    found: list[tuple[int, str]] = []
    quoted = ""
    for number, row in enumerate(block, start + 1):
        text = row.strip()
        if quoted:
            quoted = "" if quoted in text else quoted
        elif text.startswith(('"""', "'''")):
            quoted = "" if text.count(text[:3]) > 1 else text[:3]
        elif text and not text.startswith(("#", "//", "@")):
            found.append((number, row))
    return found


def _masked(row: str) -> str:
    """A row with the insides of its texts made blank, so that nothing is found in them, and no comment; what
    stands in the braces of an f-string is code.
    """
    blank = _STRING.sub(_blank, row)
    comment = re.search(r"\s#", blank)
    return blank[: comment.start()] + BLANK * (len(blank) - comment.start()) if comment else blank


def _blank(match: re.Match[str]) -> str:
    text, start, quote = match.group(), match["start"], match["quote"]
    inside = text[len(start) + 1 : -1]
    if "f" in start.lower():
        pieces = re.split(r"(\{[^{}!]*)", inside)
        inside = "".join(one if one.startswith("{") else BLANK * len(one) for one in pieces)
    else:
        inside = BLANK * len(inside)
    return f"{start}{quote}{inside}{quote}"


def _numbers(code: str, weight: float) -> Iterator[Step]:
    """A number that is one too great or too small, or a digit too long or too short."""
    for match in _NUMBER.finditer(code):
        value = int(match.group())
        if value > 9:
            for other in (value - 2, value + 2):
                yield *match.span(), str(other), weight / 3
        near = weight * 1.5 if value in (0, 1) else weight
        for other in sorted({abs(value - 1), value + 1}):
            yield *match.span(), str(other), near
        if value > 1:
            yield *match.span(), str(value * 10), weight / 2
        if value >= 10 and value % 10 == 0:
            yield *match.span(), str(value // 10), weight / 2
        if value > 1 and len(match.group()) < 5:
            yield *match.span(), str(value * 2), weight / 4
            if value % 2 == 0:
                yield *match.span(), str(value // 2), weight / 4
