"""Composed functions: their cases hold, constants of the module are used, and there are very many."""

import random
import re

import pytest

from k3agent.backend.training.episodes.composed import (
    Composer,
    _alike,
    composed_function,
    constants_of,
    rules,
)
from k3agent.backend.training.episodes.concepts import same_results
from k3agent.backend.training.episodes.words import Words

LITERAL = re.compile(r"\"[^\"]*\"|'[^']*'|\d+(\.\d+)?")


def test_composed_functions_do_what_their_cases_say_and_few_are_alike() -> None:
    rng = random.Random(5)
    seen: set[tuple[str, ...]] = set()
    for _ in range(300):
        func = composed_function(rng, Words(rng), {"LOW_MARK": 7, "UNIT": "km"})
        assert same_results("\n".join(func.source()), func)
        assert len({repr(value) for _, value in func.cases}) > 1
        text = "\n".join([*func.body, func.description])
        for number, name in enumerate(func.params):
            text = re.sub(rf"\b{name}\b", f"p{number}", text)
        seen.add((LITERAL.sub("L", text),))
    assert len(seen) > 240


def test_every_rule_gives_python_that_works() -> None:
    rng = random.Random(6)
    for kind, items in rules().items():
        for rule in items:
            assert all(phrase for phrase in rule.phrases), rule
        if not kind.startswith(("test", "map")):
            for _ in range(200):
                code, said, _ = Composer(rng, Words(rng), {}).make(kind, 2)
                compile(code, "rule", "eval")
                assert "$" not in said and "#n" not in said and "%test" not in said


def test_words_of_one_expression_do_not_run_into_those_of_another() -> None:
    rng = random.Random(8)
    said = [Composer(rng, Words(rng), {}).make("num", 2)[1] for _ in range(3000)]
    loose = re.compile(r"^(?:half of|twice|double|the square of) \w+ (?:plus|minus|times|less)\b")
    assert not [text for text in said if loose.match(text)]
    assert any(text.startswith("half of the ") for text in said)


@pytest.mark.parametrize(
    ("code", "is_alike"),
    [
        ("a - a", True),
        ("max(a, a)", True),
        ("a if a > 3 else a", True),
        ("len(a) == len(a)", True),
        ("a - b", False),
        ("max(a, b)", False),
        ("a if a > 3 else 3", False),
    ],
)
def test_two_of_the_same(code: str, is_alike: bool) -> None:
    assert _alike(code) is is_alike


def test_constants_of_a_module() -> None:
    text = 'LOW = -3\nRATE = 0.25\nNAME: str = "x"\nlower = 2\nLIST = [1]\n    DEEP = 3\n'
    assert constants_of(text) == {"LOW": -3, "RATE": 0.25, "NAME": "x"}


def test_a_constant_of_the_module_is_known_to_the_check() -> None:
    rng = random.Random(7)
    func = next(
        item for _ in range(200) if (item := composed_function(rng, Words(rng), {"LOW_MARK": 7})).constants
    )
    code = "\n".join(func.source())
    assert "LOW_MARK" in code and "LOW_MARK" in func.description
    assert same_results(f"LOW_MARK = 7\n{code}", func)
    assert not same_results(code.replace("LOW_MARK", "UNKNOWN"), func)
