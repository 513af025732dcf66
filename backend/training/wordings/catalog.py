"""All goals of all families by name; the one place an episode generator needs besides `grammar.phrase`."""

from importlib import import_module

from k3agent.backend.training.wordings.grammar import Goal, WordingError

FAMILIES = (
    "inspect",
    "change",
    "add",
    "create",
    "repair",
    "limits",
    "join",
    "second",
    "everyday",
    "described",
)


def _load() -> dict[str, Goal]:
    goals: dict[str, Goal] = {}
    for family in FAMILIES:
        for name, goal in import_module(f"k3agent.backend.training.wordings.{family}").GOALS.items():
            if name in goals:
                raise WordingError(f"goal {name} stands in two families; rename one")
            goals[name] = goal
    return goals


GOALS: dict[str, Goal] = _load()


def goal(name: str) -> Goal:
    """The goal of this name."""
    try:
        return GOALS[name]
    except KeyError:
        raise WordingError(f"unknown goal {name!r}; known: {', '.join(sorted(GOALS))}") from None
