"""Words that are spelled wrongly: those that people often get wrong, and slips in words of plain English."""

import random
import re
from collections import Counter
from functools import cache
from pathlib import Path

from k3agent.backend.training.episodes.openwords import sentences

TYPOS = dict(
    line.split(" ", 1)
    for line in Path(__file__).with_name("typos.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
)
"""Misspelled words and how they are spelled."""
LISTED = 0.45
"""Of misspelled words, those of the list."""
_OFTEN = 3
"""Sentences that a word stands in, at least, if everybody should know it."""
_VOWELS = {"a": "e", "e": "a", "i": "e", "o": "a", "u": "o"}


@cache
def common_words() -> tuple[str, ...]:
    """Words of six letters and more that the library's sentences have often."""
    counts = Counter(
        word for text in sentences(held_out=False) for word in set(re.findall(r"\b[a-z]{6,13}\b", text))
    )
    return tuple(sorted(word for word, count in counts.items() if count >= _OFTEN))


@cache
def _known() -> frozenset[str]:
    """All words that are right."""
    texts = (*sentences(False), *sentences(True))
    return frozenset(word for text in texts for word in re.findall(r"[a-z]+", text.lower()))


def _slips(word: str) -> list[str]:
    """A word with one letter too few, too many, in the other order, or another vowel."""
    found = []
    for at in range(1, len(word) - 1):
        here, after = word[at], word[at + 1]
        if here == after:
            found += [word[:at] + word[at + 1 :]] * 3
        elif word[at - 1] != here:
            found += [word[:at] + after + here + word[at + 2 :], word[: at + 1] + word[at:]]
            found.append(word[:at] + word[at + 1 :])
        if here in _VOWELS:
            found += [word[:at] + _VOWELS[here] + word[at + 1 :]] * 2
    return found


def misspelled(rng: random.Random, *, listed: bool = False) -> tuple[str, str]:
    """A misspelled word and how it is spelled; `listed`: one that is known for it."""
    if listed or rng.random() < LISTED:
        return rng.choice(sorted(TYPOS.items()))
    while True:
        right = rng.choice(common_words())
        wrong = rng.choice(_slips(right))
        if wrong not in _known() and wrong not in TYPOS:
            return wrong, right
