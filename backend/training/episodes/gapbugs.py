"""Natural code in which a line is missing, or a list is a default, and the edit that mends it."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from k3agent.backend.training.episodes.mutate import ENDLESS
from k3agent.backend.training.episodes.project import layout
from k3agent.backend.training.episodes.pycode import Style
from k3agent.backend.training.episodes.registry import Setting
from k3agent.backend.training.episodes.unitbugs import functions_of, unit_file, unit_tests
from k3agent.backend.training.episodes.units import Unit, UnitSample, draw_unit, units
from k3agent.backend.training.episodes.words import importable

KINDS = {"return": 3.0, "guard": 3.0, "first": 2.0, "kept": 1.5, "step": 2.0, "default": 5.0}
"""How often each kind comes where code has several: what is missing, or a default that all calls share."""
SHARED = 0.12
"""Of all gaps, those drawn from units with a default that all calls could share."""
_FIRST = re.compile(r"(\w+) = (0|1|\[\]|\{\}|set\(\)|''|\"\"|None)$")
_KEPT = re.compile(r"self\.(\w+) = \1$")
_STEP = re.compile(r"([\w.]+)\.(append|add)\(.+\)$|([\w.\[\]']+) \+= .+$")
_SHARED = re.compile(r"(\w+)=None(?=[,)])")


@dataclass(frozen=True, slots=True)
class Gap:
    """Code with something missing at a line, where `old` becomes `new`; `thought` says what is missing."""

    name: str
    path: str
    good: str
    bad: str
    line: int
    old: str
    new: str
    thought: str
    test_path: str
    tests: str
    sample: UnitSample

    def works(self, text: str) -> bool:
        """Whether a text of the file has it right."""
        return self.sample.works(text)

    @property
    def files(self) -> dict[str, str]:
        """What is written before the task."""
        return {self.path: self.bad, self.test_path: self.tests}

    @property
    def said(self) -> str:
        """The change in the words of a report."""
        if self.new.startswith(f"{self.old}\n"):
            return f"added `{_listed(self.new.split(chr(10))[1:])}`"
        return f"`{self.old}` became `{self.new.partition(chr(10))[0]}`, and the value is made in each call"


@dataclass(frozen=True, slots=True)
class _Cut:
    """Lines `start` to `end` (from 0) that are taken out; `head`: what the `def` above becomes, if at all."""

    kind: str
    start: int
    end: int
    thought: str
    head: str = ""


@cache
def _sharing() -> tuple[Unit, ...]:
    """Units with a default that all calls could share."""
    return tuple(unit for unit in units() if re.search(r"if (\w+) is None:\n +\1 = [\[{]", unit.text))


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _cuts(rows: list[str], start: int, end: int) -> Iterator[_Cut]:
    """What may be missing in a function from line `start` to before `end`."""
    last = end - 1
    text = rows[last].strip()
    if re.match(r"return [\w.]+$", text) and last - start > 1:
        yield _Cut("return", last, end, f"It does not return {text[7:]}")
    for index in range(start + 1, end):
        row = rows[index].strip()
        if index + 1 < end and re.match(r"if .+:$", row):
            inside = rows[index + 1].strip()
            after = _depth(rows[index + 2]) if index + 2 < end else 0
            if re.match(r"(return\b|continue$)", inside) and after == _depth(rows[index]):
                yield _Cut("guard", index, index + 2, f"Nothing is done for {row[3:-1]}")
        if match := _FIRST.match(row):
            yield _Cut("first", index, index + 1, f"{match[1]} has no first value")
        elif match := _KEPT.match(row):
            yield _Cut("kept", index, index + 1, f"{match[1]} is not kept")
        elif match := _STEP.match(row):
            yield _Cut("step", index, index + 1, f"Nothing is put into {match[1] or match[3]}")
    yield from _shared(rows, start, end)


def _shared(rows: list[str], start: int, end: int) -> Iterator[_Cut]:
    """A parameter whose default could be one list for all calls."""
    for match in _SHARED.finditer(rows[start]):
        for index in range(start + 1, min(start + 3, end - 1)):
            made = re.match(rf"{match[1]} = (\[\]|\{{\}})$", rows[index + 1].strip())
            if rows[index].strip() == f"if {match[1]} is None:" and made:
                head = rows[start].replace(match[0], f"{match[1]}={made[1]}")
                yield _Cut("default", index, index + 2, f"All calls share one {match[1]}", head)


def _find(rows: list[str], part: slice, sample: UnitSample, rng: random.Random) -> tuple[str, _Cut] | None:
    """A function's name and what is taken out of it, which the tests notice."""
    places = [item for item in functions_of("\n".join(rows) + "\n") if part.start < item[2] <= part.stop]
    pool = [(name, cut) for name, _, start, end in places for cut in _cuts(rows, start - 1, end)]
    while pool:
        name, cut = rng.choices(pool, [KINDS[cut.kind] for _, cut in pool])[0]
        pool.remove((name, cut))
        source = "\n".join(without(rows, cut)) + "\n"
        try:
            compile(source, "file", "exec")
        except SyntaxError:
            continue
        results = sample.results(source)
        if ENDLESS not in results and results != sample.wanted:
            return name, cut
    return None


def without(rows: list[str], cut: _Cut) -> list[str]:
    """The lines with the cut made."""
    left = [*rows[: cut.start], *rows[cut.end :]]
    if cut.head:
        at = next(i for i in range(cut.start - 1, -1, -1) if rows[i].lstrip().startswith("def "))
        left[at] = cut.head
    return left


def draw_gap(ctx: Setting) -> Gap | None:
    """A gap in natural code, in a new module with its tests."""
    rng, words = ctx.rng, ctx.words
    style = Style.draw(rng) if ctx.project is None else ctx.project.style
    unit, sample = draw_unit(rng, words, _sharing() if rng.random() < SHARED else ())
    lines, at = unit_file(rng, words, unit)
    found = _find(lines, slice(at, at + len(unit.code)), sample, rng)
    if found is None or any(name in text for name in unit.names for text in ctx.facts.files.values()):
        return None
    name, cut = found
    folder, _, tests = layout(rng, words)
    stem = rng.choice((importable(unit.names[-1].lower()), words.module(), words.module()))
    path, test_path = f"{folder}{stem}.py", f"{tests}test_{stem}.py"
    if path in ctx.facts.files or test_path in ctx.facts.files or path == test_path or stem in unit.names:
        return None
    good, bad = style.dress(lines), style.dress(without(lines, cut))
    if len(good) != len(lines):
        return None
    shown, failing = unit_tests(
        ctx, unit, sample, "\n".join(bad) + "\n", path.removesuffix(".py").replace("/", "."), style
    )
    anchor = cut.start - 1
    while cut.head and not good[anchor].lstrip().startswith("def "):
        anchor -= 1
    if not failing or not good[anchor].strip() or (cut.head and anchor != cut.start - 1):
        return None
    old = bad[anchor].strip()
    new = "\n".join([good[anchor].strip(), *good[cut.start : cut.end]])
    thought = f"{cut.thought}: {_listed(good[cut.start : cut.end])} is missing after line {anchor + 1}, {old}"
    if cut.head:
        thought = f"{cut.thought}, that of line {anchor + 1}. {old} -> {good[anchor].strip()}"
    return Gap(
        name,
        path,
        "\n".join(good) + "\n",
        "\n".join(bad) + "\n",
        anchor + 1,
        old,
        new,
        thought,
        test_path,
        shown,
        sample,
    )


def _listed(rows: list[str]) -> str:
    return " ".join(row.strip() for row in rows)
