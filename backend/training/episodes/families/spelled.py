"""Questions about spelling that need no file: how words are spelled, and which words of a text are wrong."""

import random

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Plan
from k3agent.backend.training.episodes.spelling import misspelled, slipped, wrong_words

FEWEST, MOST = 4, 14
"""Words that a message lists."""
SENTENCES = (1, 1, 2, 3)
WRONG = (0, 1, 1, 2, 3, 4)
"""Misspelled words of a text."""
LISTED = 0.175
"""Of the words, those of the list; the others are plain words, each as often as any other."""
ALL_RIGHT = "All words are spelled right."


def _pairs(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Misspelled words and how they are spelled, no right word twice."""
    found: dict[str, str] = {}
    while len(found) < count:
        wrong, right = misspelled(rng, LISTED)
        found.setdefault(right, wrong)
    return [(wrong, right) for right, wrong in found.items()]


def _answer(pairs: list[tuple[str, str]]) -> str:
    return "\n".join(f"{wrong}: {right}" for wrong, right in pairs) or ALL_RIGHT


def _right(pairs: list[tuple[str, str]]) -> checks.Check:
    return checks.answers(*(right for _, right in pairs), *([] if pairs else [ALL_RIGHT]))


@goal("spell_words", "chat", 2.5)
def spell_words(ctx: Setting) -> Plan | None:
    """How some words are spelled."""
    rng = ctx.rng
    pairs = _pairs(rng, rng.randint(FEWEST, MOST))
    mark = rng.choice((", ", ", ", ", ", " ", "\n", " / "))
    words = mark.join(wrong for wrong, _ in pairs)
    slots = {"words": f"\n{words}" if mark == "\n" else words}
    think = "Words and their spelling."
    return Plan("spell_words", "chat", slots, lambda session: (think, _answer(pairs)), _right(pairs))


@goal("spell_text", "chat", 1.8)
def spell_text(ctx: Setting) -> Plan | None:
    """Which words of a text are misspelled."""
    rng, words = ctx.rng, ctx.words
    parts = " | ".join(words.phrase() for _ in range(rng.choice(SENTENCES))).split()
    if wrong_words(" ".join(parts)):
        return None
    pairs = _pairs(rng, rng.choice(WRONG))
    places = sorted(rng.sample(range(len(parts) + 1), min(len(pairs), len(parts) + 1)))
    pairs = pairs[: len(places)]
    for at, (wrong, _) in reversed(list(zip(places, pairs, strict=True))):
        parts.insert(at, wrong)
    text = ". ".join(part.strip() for part in " ".join(parts).split("|") if part.strip())
    found = [(word, slipped()[word]) for word in wrong_words(text.lower())]
    think = "Look at each word." if found else "Look at each word. None is wrong."
    return Plan("spell_text", "chat", {"text": text}, lambda session: (think, _answer(found)), _right(found))
