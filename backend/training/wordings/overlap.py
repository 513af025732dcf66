"""How alike two wordings are: the share of a held-out template's words that one training template has too."""

import re
from functools import cache
from random import Random

from k3agent.backend.training.wordings.grammar import expand

_SLOT = re.compile(r"\{\w+!?\}")
_WORD = re.compile(r"[a-z']+")
_EXPANSIONS = 12


@cache
def word_sets(template: str) -> tuple[frozenset[str], ...]:
    """The word sets of some expansions of a template, slots left out."""
    rng = Random(0)
    count = _EXPANSIONS if "[" in template or "|" in template else 1
    texts = {expand(template, rng) for _ in range(count)}
    return tuple(frozenset(_WORD.findall(_SLOT.sub(" ", text).lower())) for text in sorted(texts))


def overlap(held_out: str, train: str) -> float:
    """The largest share of the held-out template's words in one expansion of the training template."""
    return max(len(a & b) / max(len(a), 1) for a in word_sets(held_out) for b in word_sets(train))


def worst(held_out: str, train: tuple[str, ...]) -> tuple[float, str]:
    """The training template most like a held-out one, and how alike they are."""
    return max((overlap(held_out, text), text) for text in train)
