"""Which definitions matter: files lean on those that define what they mention, and rank flows along."""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from k3agent.tools.support.symbols import Definition, FileSymbols

ROUNDS = 10
DAMPING = 0.85
# A name that so many files define, or that so many mention, tells little of any one of them.
MAX_DEFINED, MAX_MENTIONED = 5, 400
# The same for plain words, which stand for many other things.
MAX_PLAIN = 30
# What is inside of something else is found through it.
KINDS = {"method": 0.15, "constant": 0.5}
# Tests lean on the rest, and nothing on them.
TEST = 0.2
# How much more a file counts that the question is about.
FOCUS = 50.0
# What the place of a definition's own file adds, so that nothing is without a rank.
OWN = 0.01
_TESTS = re.compile(r"(?:^|/)(?:tests?|spec|__tests__)/|(?:^|/)test_|[._]test\.|[._]spec\.")
_COMPOUND = re.compile(r"[a-z0-9]_[a-z0-9]|[a-z0-9][A-Z]|[A-Z][A-Z]_|[A-Z][a-z]+[A-Z]")


@dataclass(frozen=True, slots=True)
class Ranked:
    path: str
    definition: Definition
    score: float


# Target and weight, for each name that leads there.
_Edges = dict[int, list[tuple[int, str, float]]]


def rank(files: Mapping[str, FileSymbols], focus: Collection[str] = (), most: int = 2000) -> list[Ranked]:
    """The most important definitions first, ties by path and line. `focus`: files, or words in names of
    definitions and paths, that the rank comes from.
    """
    paths = sorted(files)
    start = _start(paths, files, focus)
    edges = _edges(paths, files)
    ranks = _flow(start, edges)
    shares: dict[tuple[int, str], float] = defaultdict(float)
    for source, out in edges.items():
        unit = ranks[source] / sum(weight for _, _, weight in out)
        for target, name, weight in out:
            shares[target, name] += unit * weight
    scores = (
        (-shares.get((number, item.name), 0.0) - ranks[number] * start[number] * OWN, number, at)
        for number, path in enumerate(paths)
        for at, item in enumerate(files[path].definitions)
    )
    return [
        Ranked(paths[number], files[paths[number]].definitions[at], -score)
        for score, number, at in heapq.nsmallest(most, scores)
    ]


def _start(paths: Sequence[str], files: Mapping[str, FileSymbols], focus: Collection[str]) -> list[float]:
    words = [word.lower() for word in focus if word]
    weights = [1.0] * len(paths)
    for number, path in enumerate(paths if words else ()):
        names = "\n".join([path, *(item.name for item in files[path].definitions)]).lower()
        if any(word in names for word in words):
            weights[number] = FOCUS
    total = sum(weights) or 1.0
    return [weight / total for weight in weights]


def _telling(name: str) -> float:
    """How surely a mention of this name means its definition: compound names do, plain words seldom."""
    if name.startswith("_"):
        return 0.1
    if _COMPOUND.search(name):
        return 3.0 if len(name) >= 8 else 1.5
    return 1.0 if name[0].isupper() else 0.1


def _edges(paths: Sequence[str], files: Mapping[str, FileSymbols]) -> _Edges:
    defined: dict[str, dict[int, float]] = defaultdict(dict)
    for number, path in enumerate(paths):
        place = TEST if _TESTS.search(path) else 1.0
        for item in files[path].definitions:
            weight = place * KINDS.get(item.kind, 1.0)
            targets = defined[item.name]
            targets[number] = max(targets.get(number, 0.0), weight)
    mentioned: dict[str, list[int]] = defaultdict(list)
    for number, path in enumerate(paths):
        for name in files[path].mentions:
            if name in defined:
                mentioned[name].append(number)
    edges: _Edges = defaultdict(list)
    for name, sources in mentioned.items():
        targets, weight = defined[name], _telling(name)
        if len(targets) > MAX_DEFINED or len(sources) > (MAX_MENTIONED if weight >= 1 else MAX_PLAIN):
            continue
        weight /= len(targets) * len(sources) ** 0.5
        for source in sources:
            for target, share in targets.items():
                if source != target:
                    edges[source].append((target, name, weight * share))
    return edges


def _flow(start: Sequence[float], edges: _Edges) -> list[float]:
    ranks = list(start)
    flows: list[tuple[int, list[tuple[int, float]]]] = []
    for source, out in edges.items():
        sums: dict[int, float] = defaultdict(float)
        for target, _, weight in out:
            sums[target] += weight
        total = sum(sums.values())
        flows.append((source, [(target, weight / total) for target, weight in sums.items()]))
    for _ in range(ROUNDS):
        after = [(1 - DAMPING) * weight for weight in start]
        passed = 0.0
        for source, out in flows:
            amount = DAMPING * ranks[source]
            passed += amount
            for target, share in out:
                after[target] += amount * share
        # What ends in files that mention nothing comes back to all.
        lost = DAMPING - passed
        ranks = [value + lost * weight for value, weight in zip(after, start, strict=True)]
    return ranks
