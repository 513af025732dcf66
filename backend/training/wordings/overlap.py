"""How alike two wordings are: the share of a held-out template's words that one training template has too."""

from k3agent.backend.training.wordings.split import word_sets


def overlap(held_out: str, train: str) -> float:
    """The largest share of the held-out template's words in one expansion of the training template."""
    return max(len(a & b) / max(len(a), 1) for a in word_sets(held_out) for b in word_sets(train))


def worst(held_out: str, train: tuple[str, ...]) -> tuple[float, str]:
    """The training template most like a held-out one, and how alike they are."""
    return max((overlap(held_out, text), text) for text in train)
