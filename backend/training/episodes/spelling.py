"""Words that are spelled wrongly: those that people often get wrong, and slips in words of plain English."""

import random
import re
from collections import Counter
from functools import cache
from pathlib import Path

from k3agent.backend.training.episodes.openwords import sentences


def _rows(name: str) -> list[str]:
    """The lines of a text beside this module, without remarks."""
    rows = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return [row for row in rows if not row.startswith("#")]


TYPOS = dict(row.split(" ", 1) for row in _rows("typos.txt"))
"""Misspelled words and how they are spelled."""
PLAIN = frozenset(" ".join(_rows("plainwords.txt")).split())
"""Words that everybody knows."""
LISTED = 0.35
"""Of misspelled words, those of the list."""
SHORTEST, LONGEST = 5, 15
_OFTEN = 3
"""Sentences that a word of the library stands in, at least, if everybody should know it."""
_SWAPS = (("ie", "ei"), ("ance", "ence"), ("ant", "ent"), ("able", "ible"), ("ary", "ery"), ("tion", "sion"))
"""Groups of letters that are taken for each other."""
_SHORT = (
    ("ally", "aly"),
    ("fully", "fuly"),
    ("ely", "ly"),
    ("ph", "f"),
    ("qu", "q"),
    ("wh", "w"),
    ("sc", "s"),
)
_SHORT = (
    *_SHORT,
    ("ou", "uo"),
    ("ough", "ogh"),
    ("rh", "r"),
    ("ck", "k"),
    ("ui", "iu"),
    ("ea", "ae"),
    ("mn", "m"),
)
"""Groups of letters and what is written for them."""
_VOWELS = {"a": "e", "e": "ai", "i": "e", "o": "ua", "u": "o", "y": "i"}


@cache
def common_words() -> tuple[str, ...]:
    """Plain words, and those that the library's sentences have often."""
    counts = Counter(
        word for text in sentences(held_out=False) for word in set(re.findall(r"\b[a-z]{6,13}\b", text))
    )
    plain = (word for word in PLAIN if SHORTEST <= len(word) <= LONGEST)
    return tuple(sorted({*plain, *(word for word, count in counts.items() if count >= _OFTEN)}))


@cache
def _known() -> frozenset[str]:
    """All words that are right."""
    texts = (*sentences(False), *sentences(True), *_rows("words.txt"))
    found = {word for text in texts for word in re.findall(r"[a-z]+", text.lower())}
    return frozenset({*found, *PLAIN, *TYPOS.values(), *" ".join(_rows("slipwords.txt")).split()})


def slips(word: str) -> list[str]:
    """The word with one letter too few, too many, in the other order, or another vowel, or with an ending
    that sounds like its own; likelier ones more often.
    """
    found: list[str] = []
    for old, new in (*_SWAPS, *(pair[::-1] for pair in _SWAPS), *_SHORT):
        at = word.find(old, 1)
        if at > 0:
            found += [word[:at] + new + word[at + len(old) :]] * 2
    for at in range(1, len(word) - 1):
        here, after = word[at], word[at + 1]
        if here == after:
            found += [word[:at] + word[at + 1 :]] * 3
        elif word[at - 1] != here:
            found += [word[: at + 1] + word[at:], word[:at] + word[at + 1 :]]
            found.append(word[:at] + after + here + word[at + 2 :])
        found += [word[:at] + vowel + word[at + 1 :] for vowel in _VOWELS.get(here, "")]
    return [item for item in found if item != word]


@cache
def slipped() -> dict[str, str]:
    """Every misspelled word that can be told, and the only word that it can be."""
    known, found, unclear = _known(), dict(TYPOS), set[str]()
    for right in common_words():
        for wrong in set(slips(right)):
            if found.get(wrong, right) != right and wrong not in TYPOS:
                unclear.add(wrong)
            elif wrong not in known:
                found.setdefault(wrong, right)
    return {wrong: right for wrong, right in found.items() if wrong not in unclear}


def wrong_words(text: str) -> list[str]:
    """The misspelled words of a text as they stand there, in order."""
    return [word for word in re.findall("[A-Za-z]+", text) if word.lower() in slipped()]


def misspelled(rng: random.Random, listed: float = LISTED) -> tuple[str, str]:
    """A misspelled word and how it is spelled; `listed`: the share of those of the list."""
    if rng.random() < listed:
        return rng.choice(tuple(TYPOS.items()))
    while True:
        right = rng.choice(common_words())
        wrong = rng.choice(slips(right))
        if wrong not in TYPOS and slipped().get(wrong) == right:
            return wrong, right
