"""What the user says for a goal, or for two goals in one message, or as the next thing in a conversation."""

import random

from k3agent.backend.training.wordings import catalog, grammar, join

Said = tuple[str, dict[str, str]]
FOLLOW_SHARE = 0.35
AT_SHARE = 0.06
"""Of all messages, those that name files as `@path`, the way the terminal UI completes them."""
PATHS = ("path", "path2", "old_path")


def say(name: str, slots: dict[str, str], rng: random.Random, part: str, *, later: bool = False) -> str:
    """A wording of the goal with its slots, from one part of the templates; `later`: not the first wish."""
    if rng.random() < AT_SHARE and not name.startswith("create"):
        slots = {slot: f"@{text}" if slot in PATHS else text for slot, text in slots.items()}
    text = grammar.phrase(catalog.goal(name), slots, rng, part=part)
    return join.follow_up(text, rng) if later and rng.random() < FOLLOW_SHARE else text


def say_joined(first: Said, second: Said, rng: random.Random, part: str) -> str:
    """Both in one message."""
    texts = [
        grammar.phrase(catalog.goal(name), slots, rng, part=part, noise=False)
        for name, slots in (first, second)
    ]
    return join.join(texts[0], texts[1], rng)
