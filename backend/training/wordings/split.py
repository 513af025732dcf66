"""Which templates training never sees: near-duplicates stay together, and a checksum chooses among those that no
earlier training saw.
"""

import re
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from random import Random

ALIKE = 0.6
"""Templates that share more of their words than this stay on one side."""
HELD_OUT_PERCENT = 35
"""Of the groups that no training saw."""
FEWEST = 4
"""Held-out templates that every goal has, where it has so many that no training saw."""
_SLOT = re.compile(r"\{\w+!?\}")
_WORD = re.compile(r"[a-zäöüß']+|[\u4e00-\u9fff]")
_EXPANSIONS = 8
_SIGNS = re.compile(r"[\\()\[\]|]")
"""Without any of these a template is its own only expansion."""


@cache
def word_sets(template: str) -> tuple[frozenset[str], ...]:
    """The word sets of some expansions of a template, slots left out."""
    from k3agent.backend.training.wordings.grammar import (
        expand,  # lazy: the grammar loads texts with this module
    )

    texts = {template}
    if _SIGNS.search(template):
        rng = Random(0)
        count = _EXPANSIONS if "[" in template or "|" in template else 1
        texts = {expand(template, rng) for _ in range(count)}
    return tuple(frozenset(_WORD.findall(_SLOT.sub(" ", text).lower())) for text in sorted(texts))


def alike(one: str, two: str) -> float:
    """The largest share of common words of two templates' expansions."""
    return max(len(a & b) / max(len(a | b), 1) for a in word_sets(one) for b in word_sets(two))


def unlike(templates: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    """The templates that are alike to none of the others."""
    masks = _masks(templates + others)
    known = {mask for other in masks[len(templates) :] for mask in other}

    def fresh(mine: list[int]) -> bool:
        return all((a & b).bit_count() / max((a | b).bit_count(), 1) < ALIKE for a in mine for b in known)

    return tuple(item for item, mine in zip(templates, masks, strict=False) if fresh(mine))


def groups(templates: tuple[str, ...]) -> list[list[str]]:
    """Templates in groups such that no two of different groups are alike."""
    parent = list(range(len(templates)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    for one, two in _perhaps_alike(_masks(templates)):
        if (top := root(one[0])) != (other := root(two[0])) and _alike(one[1], two[1]):
            parent[top] = other
    found: dict[int, list[str]] = {}
    for index, template in enumerate(templates):
        found.setdefault(root(index), []).append(template)
    return list(found.values())


def _masks(templates: tuple[str, ...]) -> list[list[int]]:
    """The word sets of each template as bits, which compare fast."""
    bits: dict[str, int] = {}
    return [
        [sum(1 << bits.setdefault(word, len(bits)) for word in words) for words in word_sets(template)]
        for template in templates
    ]


def _perhaps_alike(masks: list[list[int]]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs (number of the template, mask) among which all are that are alike.

    Of n words two alike sets share more than ALIKE * n, so they share one of the n - ALIKE * n + 1 that are
    rarest in all templates: only sets with such a word in common are compared.
    """
    common = Counter(word for mine in masks for mask in mine for word in _places(mask))
    rare: dict[int, list[tuple[int, int]]] = {}
    first: dict[int, int] = {}
    for index, mine in enumerate(masks):
        for mask in mine:
            if (earlier := first.setdefault(mask, index)) != index:
                yield (index, mask), (earlier, mask)
                continue
            words = sorted(_places(mask), key=lambda word: (common[word], word))
            for word in words[: len(words) - int(ALIKE * len(words)) + 1]:
                known = rare.setdefault(word, [])
                for other in known:
                    yield (index, mask), other
                known.append((index, mask))


def _places(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length()
        mask ^= lowest


def _alike(one: int, two: int) -> bool:
    """Whether two expansions share more than the limit of their words."""
    return (one & two).bit_count() > ALIKE * (one | two).bit_count()


def split(seen: tuple[str, ...], fresh: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(for training, held out); held-out ones come from `fresh` and are like nothing in training."""
    known = set(seen)
    ranked = sorted(
        (zlib.crc32(min(group).encode()) % 10_000, group)
        for group in groups(seen + fresh)
        if not known & set(group)
    )
    held_out: set[str] = set()
    for rank, group in ranked:
        if rank < HELD_OUT_PERCENT * 100 or len(held_out) < FEWEST:
            held_out |= set(group)
    return seen + tuple(item for item in fresh if item not in held_out), tuple(
        item for item in fresh if item in held_out
    )
