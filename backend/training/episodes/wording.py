"""What the user says for a goal."""

import random

from k3agent.backend.training.wordings import catalog, grammar


def say(name: str, slots: dict[str, str], rng: random.Random, held_out: bool) -> str:
    """A wording of the goal with its slots."""
    goal = catalog.GOALS.get(name)
    if goal is None:
        raise LookupError(f"no wordings for the goal {name!r}; add them to backend/training/wordings")
    return grammar.phrase(goal, slots, rng, held_out=held_out)
