"""Names of modules and packages: none that is there already, so that tests import the project's own."""

import random
import sys

import pytest

from k3agent.backend.training.episodes.project import layout
from k3agent.backend.training.episodes.words import HIDING, Words, importable

THERE = (
    "textual",
    "torch",
    "numpy",
    "httpx",
    "requests",
    "pytest",
    "xdist",
    "hypothesis",
    "queue",
    "tokenize",
)


@pytest.mark.parametrize("name", THERE)
def test_what_is_installed_is_no_name_of_a_module_or_package(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Words, "open", lambda self: None)
    monkeypatch.setattr(Words, "noun", lambda self: name)
    drawn: set[str] = set()
    for seed in range(60):
        words = Words(random.Random(seed))
        drawn |= {words.module(), words.file_stem("py"), layout(words.rng, words)[0].strip("/")}
    assert {f"{name}_tools", f"{name}_app"} <= drawn
    assert name not in drawn


def test_drawn_names_are_free_and_mostly_as_they_were() -> None:
    names: list[str] = []
    for seed in range(400):
        words = Words(random.Random(seed))
        names += [words.module(), words.module()]
    assert not HIDING.intersection(names) and not sys.stdlib_module_names & set(names)
    assert sum(name.endswith("_tools") for name in names) < len(names) / 10
    assert importable("invoices") == "invoices"
