"""All goals by name, and what makers share: choosing paths as people write them, names that do not exist."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from k3agent.backend.training.episodes.facts import Definition, Facts
from k3agent.backend.training.episodes.project import Project
from k3agent.backend.training.episodes.session import Plan
from k3agent.backend.training.episodes.words import Words


@dataclass(slots=True)
class Setting:
    """What a maker draws from."""

    facts: Facts
    rng: random.Random
    words: Words
    project: Project | None = None

    def path(self, path: str) -> str:
        """A path as people write it: whole, only its name, sometimes in the wrong folder."""
        rng = self.rng
        kind = rng.random()
        base = path.rsplit("/", 1)[-1]
        unique = sum(1 for other in self.facts.files if other.rsplit("/", 1)[-1].lower() == base.lower()) == 1
        if "/" not in path:
            return f"./{path}" if kind > 0.97 else path
        if kind < 0.62 or not unique:
            return path
        if kind < 0.93:
            return base
        return f"./{path}" if kind < 0.95 else f"{self.words.noun()}/{base}"

    def called(self, item: Definition) -> str:
        """A name as people write it: `Class.method` and `name()` now and then."""
        kind = self.rng.random()
        if item.owner and kind < 0.35:
            return f"{item.owner}.{item.name}"
        return f"{item.name}()" if kind > 0.96 and item.kind != "class" else item.name

    def choose(self, items: list) -> object | None:
        """A random item, or None."""
        return self.rng.choice(items) if items else None

    def unused(self, make: Callable[[], str]) -> str:
        """A name that occurs nowhere in the project."""
        for _ in range(50):
            name = make()
            if not any(name.lower() in text.lower() for text in self.facts.files.values()):
                return name
        return make() + "_zq"


Maker = Callable[[Setting], Plan | None]


@dataclass(frozen=True, slots=True)
class GoalEntry:
    """A goal that plans can be drawn for."""

    name: str
    family: str
    weight: float
    make: Maker
    level: int


GOALS: dict[str, GoalEntry] = {}


def goal(name: str, family: str, weight: float = 1.0, level: int = 0) -> Callable[[Maker], Maker]:
    """Register a maker. Level 0 goals come in the first stage, 1 and 2 later."""

    def register(make: Maker) -> Maker:
        if name in GOALS:
            raise ValueError(f"goal {name} is registered twice, in {family} too; give one another name")
        GOALS[name] = GoalEntry(name, family, weight, make, level)
        return make

    return register
