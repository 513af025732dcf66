"""Turns hand-written request wordings into user messages: template grammar, slot quoting, noise.

API: `phrase(goal, slots, rng, part="train", noise=True)`; `goal` is `catalog.goal("set_const")` or from a
family's `GOALS`, `slots` gives each name of `goal.slots` its text, which comes out verbatim. In templates
`(a|b)` picks one, `[a]` is optional, `{slot!}` stays bare, `\\n` breaks a line, a backslash escapes the next sign.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

from k3agent.backend.training.wordings.noise import dress
from k3agent.backend.training.wordings.reshape import add_aside, joined, reorder
from k3agent.backend.training.wordings.split import split, unlike
from k3agent.backend.training.wordings.variation import vary

PARTS = ("train", "held_out", "hard")
"""Templates for training, templates it never sees (where `texts/natural.txt` has some: those), and templates far from
the others, many strange on purpose (never seen either)."""

TONGUES = ("german", "chinese")
"""The families whose goals have the names of English ones."""

STYLES = ("name", "value", "text", "code", "raw")
"""How a slot may be quoted: `name` bare or quoted like the other names of the message, `value` too unless it is
a number or code (backticks only), `text` in quotation marks, `code` mostly in backticks, both bare at times where they are plain words, `raw` never."""

_TOKEN = re.compile(r"\\(.)|\{(\w+)(!?)\}|([\[\]()|])", re.DOTALL)
_TEXTS = Path(__file__).parent / "texts"


class WordingError(ValueError):
    """A template or a slot mapping that cannot be used; the text names it and says what to change."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in a template that takes a slot's value."""

    name: str
    bare: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """A place where one of several node sequences stands."""

    options: tuple[tuple["Node", ...], ...]


Node = str | Slot | Choice


@dataclass(frozen=True)
class Goal:
    """What a user may want, with the wordings that say so."""

    name: str
    slots: Mapping[str, str]
    """Slot name to quoting style."""
    train: tuple[str, ...]
    held_out: tuple[str, ...]
    light: bool = False
    """Complete messages (chat, refusals): no greeting, politeness or context is put around them."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Slots that need not be given and need not stand in every template, such as the kind of a definition."""
    hard: tuple[str, ...] = ()
    compiled: dict[str, list[tuple[Node, ...]]] = field(default_factory=dict, repr=False, compare=False)

    def templates(self, part: str) -> list[tuple[Node, ...]]:
        """The compiled templates of one part; a goal without hard ones gives its held-out ones."""
        found = self.compiled.get(part)
        if found is None:
            texts = {"train": self.train, "held_out": self.held_out, "hard": self.hard or self.held_out}[part]
            found = [compile_template(text) for text in texts]
            if not found:
                raise WordingError(f"goal {self.name} has no {part} templates; add some")
            self.compiled[part] = found
        return found


@cache
def compile_template(template: str) -> tuple[Node, ...]:
    """Parse a template once into literals, slots and choices."""
    stack: list[tuple[str, list[list[Node]]]] = [("", [[]])]
    at = 0
    for match in _TOKEN.finditer(template):
        if match.start() > at:
            stack[-1][1][-1].append(template[at : match.start()])
        at = match.end()
        escaped, slot, bare, sign = match.groups()
        if escaped is not None:
            stack[-1][1][-1].append("\n" if escaped == "n" else escaped)
        elif slot is not None:
            stack[-1][1][-1].append(Slot(slot, bool(bare)))
        elif sign in "[(":
            stack.append((sign, [[]]))
        elif sign == "|":
            if len(stack) == 1:
                raise WordingError(f"`|` outside brackets in template {template!r}; put the choice in (a|b)")
            stack[-1][1].append([])
        else:
            opener, options = stack.pop()
            if not opener or "[("["])".index(sign)] != opener:
                raise WordingError(f"unbalanced {sign!r} in template {template!r}; close or escape it")
            stack[-1][1][-1].extend(_close(opener, options))
    if len(stack) != 1:
        raise WordingError(f"unclosed {stack[-1][0]!r} in template {template!r}; close or escape it")
    nodes = stack[0][1][0]
    if at < len(template):
        nodes.append(template[at:])
    return _merge(nodes)


def _close(opener: str, options: list[list[Node]]) -> list[Node]:
    """The nodes a finished bracket stands for."""
    merged = tuple(_merge(option) for option in options)
    if len(merged) == 1:
        if opener == "(":
            return ["(", *merged[0], ")"]
        return [Choice((merged[0], ()))]
    return [Choice(merged)]


def _merge(nodes: list[Node]) -> tuple[Node, ...]:
    """Join neighbouring literals, so that filling handles fewer pieces."""
    out: list[Node] = []
    for node in nodes:
        if isinstance(node, str) and out and isinstance(out[-1], str):
            out[-1] = out[-1] + node
        else:
            out.append(node)
    return tuple(out)


def _flatten(nodes: tuple[Node, ...], rng: Random, out: list[str | Slot]) -> None:
    """Settle all choices, appending literals and slots to `out`."""
    for node in nodes:
        if type(node) is Choice:
            options = node.options
            _flatten(options[int(rng.random() * len(options))], rng, out)
        else:
            out.append(node)  # type: ignore[arg-type]


def expand(template: str, rng: Random) -> str:
    """One expansion of a template with its slots still in it."""
    out: list[str | Slot] = []
    _flatten(compile_template(template), rng, out)
    return "".join(
        piece if isinstance(piece, str) else "{" + piece.name + ("!" if piece.bare else "") + "}"
        for piece in out
    )


def slot_names(nodes: tuple[Node, ...]) -> set[str]:
    """The slots that every expansion has; a choice whose options disagree is an error."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, Slot):
            names.add(node.name)
        elif isinstance(node, Choice):
            sets = [slot_names(option) for option in node.options]
            if any(other != sets[0] for other in sets):
                raise WordingError(
                    f"options with different slots: {node.options!r}; give each the same slots"
                )
            names |= sets[0]
    return names


def _delimited(value: str, order: tuple[str, ...]) -> str:
    """The value in the first quotation mark of `order` that it does not contain."""
    if "\n" in value:
        return f"\n```\n{value}\n```\n"
    for mark in order:
        if mark not in value:
            return mark + value + mark
    return f"`` {value} ``"


_PLAIN_VALUE = re.compile(r"-?[\d.]+$|.*[\"'\[({]|(?i:true|false|none|null)$")
"""Values that people never put in quotation marks: numbers, words of the language, code."""
_LOOSE = re.compile(r"[\w@/:+-][\w.@/:+' -]*\w$")
_JOINERS = frozenset(
    "with by to into in from for of instead and or as at on after before is are be should must can file line that".split()  # noqa: SIM905
)
"""Words that would leave open where a text without quotation marks ends."""
_NAME_MARKS = ("", "", "", "", "", "`", "`", "`", "'", '"')
_TEXT_ORDERS = (('"', "`", "'"), ('"', "`", "'"), ("'", "`", '"'), ("`", '"', "'"))
_CODE_ORDER = ("`", '"', "'")


@dataclass(frozen=True, slots=True)
class Habit:
    """How the writer of one message sets things off: one mark for names, one order for text and code."""

    mark: str
    text: tuple[str, ...]
    code: tuple[str, ...]
    bare: bool
    loose: bool
    """Whether texts of plain words stand without quotation marks."""

    @classmethod
    def draw(cls, rng: Random) -> "Habit":
        """The habit of a new message."""
        mark = _NAME_MARKS[int(rng.random() * len(_NAME_MARKS))]
        text = (mark, "`", '"', "'") if mark else _TEXT_ORDERS[int(rng.random() * len(_TEXT_ORDERS))]
        roll = rng.random()
        order = _CODE_ORDER if roll < 0.65 else text
        return cls(mark, text, order, roll > 0.85, rng.random() < (0.15 if mark else 0.4))

    def quoted(self, value: str, style: str, follower: str) -> str:
        """The value set off from the sentence; `follower` is the text right after it."""
        if style == "raw":
            return value
        if style == "value":
            mark = self.mark if self.mark == "`" or not _PLAIN_VALUE.match(value) else ""
            return value if mark in value else mark + value + mark
        if style == "name":
            mark = "`" if self.mark == "'" and follower.startswith("'") else self.mark
            return mark + value + mark if mark and mark not in value else value
        if self.loose and _LOOSE.match(value) and not _JOINERS & set(value.lower().split()):
            return value
        if style == "code":
            bare = self.bare and not self.mark and "\n" not in value
            return value if bare else _delimited(value, self.code)
        return value if self.bare and not self.mark and value.isidentifier() else _delimited(value, self.text)


def filled(
    goal: Goal, slots: Mapping[str, str], rng: Random, part: str = "train", varied: bool = False
) -> tuple[list[str], list[bool], bool]:
    """A wording in pieces with the slot values in it: the texts, which of them are slots, and whether a full
    stop may follow. `varied`: with other words and in another order (only for English).
    """
    templates = goal.templates(part)
    pieces: list[str | Slot] = []
    _flatten(templates[int(rng.random() * len(templates))], rng, pieces)
    if varied:
        pieces = joined(pieces)
        vary(pieces, goal.name, rng)
        reorder(pieces, rng)
    habit = Habit.draw(rng)
    texts: list[str] = []
    fixed: list[bool] = []
    closable = True
    for index, piece in enumerate(pieces):
        if isinstance(piece, str):
            texts.append(piece)
            fixed.append(False)
            continue
        value = slots.get(piece.name, goal.defaults.get(piece.name))
        if value is None:
            known = ", ".join(goal.slots)
            raise WordingError(f"slot {piece.name} of goal {goal.name} has no value; give {known}")
        if not piece.bare:
            after = pieces[index + 1] if index + 1 < len(pieces) else ""
            value = habit.quoted(value, goal.slots[piece.name], after if isinstance(after, str) else "")
        texts.append(value)
        fixed.append(True)
        closable = not (piece.bare or (goal.slots[piece.name] == "code" and value == slots.get(piece.name)))
    return texts, fixed, closable or isinstance(pieces[-1], str)


def phrase(goal: Goal, slots: Mapping[str, str], rng: Random, part: str = "train", noise: bool = True) -> str:
    """A user message that asks for the goal with these slot values.

    Without `noise` the message is the template, mostly lower case and without final full stop. Training's
    messages have some words replaced by others and some parts moved; those of the other parts never.
    """
    varied = part == "train"
    texts, fixed, closable = filled(goal, slots, rng, part, varied)
    if varied and noise and not goal.light:
        add_aside(texts, fixed, closable, rng)
    return dress(texts, fixed, goal.light, closable, rng) if noise else "".join(texts)


def load_family(family: str) -> dict[str, Goal]:
    """The goals written in `texts/<family>/*.txt`.

    A goal starts with `@goal NAME slot:style ...` (or `@light NAME` for complete messages); its lines are
    templates that earlier weights were trained on, until `@fresh`: of those after it a part is held out. A goal
    with lines in `texts/natural.txt` holds out those instead, and its own held-out ones are hard ones.
    All templates for training come equally often.
    `slot:style=word` is an optional slot with that default. Lines starting with `#` are comments.
    """
    goals: dict[str, Goal] = {}
    for path in sorted((_TEXTS / family).glob("*.txt")):
        for goal in _parse(path):
            if goal.name in goals:
                raise WordingError(f"goal {goal.name} stands twice in family {family}; rename one")
            goals[goal.name] = goal
    if not goals:
        raise WordingError(f"no wordings for family {family} in {_TEXTS}; add texts/{family}/*.txt")
    return goals


@cache
def hard_templates() -> dict[str, tuple[str, ...]]:
    """The hard templates of texts/hard.txt by goal."""
    return _by_goal("hard")


@cache
def natural_templates() -> dict[str, tuple[str, ...]]:
    """The templates of texts/natural.txt by goal: as developers would type, written apart from the others."""
    return _by_goal("natural")


def _by_goal(name: str) -> dict[str, tuple[str, ...]]:
    """The lines of texts/<name>.txt under each `@<name> GOAL`."""
    found: dict[str, list[str]] = {}
    goal = ""
    for line in (_TEXTS / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"@{name} "):
            goal = line.split()[1]
        elif line.strip() and not line.startswith("#"):
            found.setdefault(goal, []).append(line.strip())
    return {goal: tuple(lines) for goal, lines in found.items()}


def _parse(path: Path) -> list[Goal]:
    """The goals of one text file."""
    goals: list[Goal] = []
    head: str | None = None
    parts: tuple[list[str], list[str]] = ([], [])
    into = 0
    for line in [*path.read_text(encoding="utf-8").splitlines(), "@end"]:
        if not line.strip() or line.startswith("#"):
            continue
        if not line.startswith("@"):
            parts[into].append(line.strip())
        elif line.strip() == "@fresh":
            into = 1
        else:
            if head:
                goals.append(_goal(head, path, tuple(parts[0]), tuple(parts[1])))
            parts, into = ([], []), 0
            head = line
    return goals


def _goal(line: str, path: Path, seen: tuple[str, ...], fresh: tuple[str, ...]) -> Goal:
    """The goal whose `@` line this is."""
    kind, *rest = line.split()
    if kind not in ("@goal", "@light") or not rest:
        raise WordingError(f"cannot read {line!r} in {path.name}; write `@goal NAME slot:style ...`")
    slots: dict[str, str] = {}
    defaults: dict[str, str] = {}
    for item in rest[1:]:
        name, _, style = item.partition(":")
        style, optional, default = style.partition("=")
        if style not in STYLES:
            known = ", ".join(STYLES)
            raise WordingError(f"slot {item!r} in {path.name} has no known style; use one of {known}")
        slots[name] = style
        if optional:
            defaults[name] = default
    train, held_out = split(seen, fresh)
    hard = hard_templates().get(rest[0], ())
    if path.parent.name not in TONGUES and (natural := natural_templates().get(rest[0])):
        hard = tuple(item for item in dict.fromkeys(hard + held_out) if item not in natural)
        held_out = unlike(natural, train)
    return Goal(rest[0], slots, train, held_out, kind == "@light", defaults, hard)
