"""Requests beyond its skills, many of them close to a task it can do: an honest refusal that names what
it cannot do and the nearest thing it can.
"""

import re
from dataclasses import dataclass

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan

_CANNOT = re.compile(r"\b(cannot|can't|can not|unable|not able|beyond|outside|only|instead)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Limit:
    """Something it cannot do: in words, a word that names it, and what it can do instead."""

    what: str
    key: str
    instead: str


LIMITS: dict[str, Limit] = {
    "tests": Limit(
        "think up tests",
        "test",
        "I can run tests, repair what they show, and write a small test of a function into a named file",
    ),
    "async": Limit(
        "make code asynchronous or parallel",
        "asynchronous",
        "I can show or explain the code and change lines that you give me",
    ),
    "optimise": Limit(
        "make code faster or leaner",
        "fast",
        "I can show or explain the code and change lines that you give me",
    ),
    "types": Limit(
        "add type hints to code",
        "type",
        "I can replace text or lines that you give me, such as one signature",
    ),
    "refactor": Limit(
        "restructure code",
        "restructure",
        "I can rename things, move a function or a file, delete a function, replace text that you give me",
    ),
    "port": Limit(
        "rewrite code for another language or library",
        "another language",
        "I can show or explain the code and make small changes in it",
    ),
    "feature": Limit(
        "build features",
        "feature",
        "I can add lines that you give me and small functions whose result you describe",
    ),
    "design": Limit(
        "design systems, schemas or diagrams",
        "design",
        "I can show what is there: files, definitions, and where things are used",
    ),
    "review": Limit(
        "review code or judge how good it is",
        "review",
        "I can run the tests, explain a function, and repair a bug that you describe",
    ),
    "docs": Limit(
        "write or translate documentation",
        "documentation",
        "I can add a heading, a line or a docstring whose text you give me, and replace text",
    ),
    "online": Limit(
        "reach the internet, servers or other services",
        "internet",
        "I only work on the files of this folder: reading, small edits, running tests and commands",
    ),
    "media": Limit(
        "work with pictures, sound or printers",
        "pictures",
        "I only work with text files: I can find, show and change them",
    ),
    "know": Limit(
        "answer general questions",
        "general",
        "I can find, show and explain the code of this project and make small changes in it",
    ),
}
"""By the last part of the goal's name; the first part is `cannot`."""


def refuses(limit: Limit) -> Check:
    """Nothing touched, and a no that names what it cannot do, or what it can, or that the text is nowhere."""

    def offers(outcome: Outcome) -> str | None:
        # a question back that promises help is no refusal
        if not _CANNOT.search(outcome.answer):
            return "the answer does not say that it cannot"
        return checks.declines("I can ")(outcome)

    return checks.any_of(checks.declines(limit.key), offers, checks.declines("nowhere"))


def _register(kind: str, limit: Limit) -> None:
    who = "I am nano, a small model for small tasks"
    answer = f"I cannot {limit.what}: {who}. {limit.instead}. Nothing was changed."

    def make(ctx: Setting) -> Plan | None:
        names = [item.name for item in ctx.facts.definitions if not item.name.startswith("__")]
        paths = ctx.facts.code_paths() or sorted(ctx.facts.files)
        if not names or not paths:
            return None
        slots = {"name": ctx.rng.choice(names), "path": ctx.path(ctx.rng.choice(paths))}
        think = f"They want me to {limit.what}. That is beyond what I can do. Say so and what I can."
        if kind in ("online", "media", "know"):
            think = f"For that I would have to {limit.what}. I cannot. Say so and what I can."
        return Plan(f"cannot_{kind}", "refuse", slots, lambda session: (think, answer), refuses(limit))

    goal(f"cannot_{kind}", "refuse", 0.4)(make)


for _kind, _limit in LIMITS.items():
    _register(_kind, _limit)
