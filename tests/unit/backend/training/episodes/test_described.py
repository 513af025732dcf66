"""Code described in words: functions of two ideas, methods on what a class keeps, guards, JavaScript."""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k3agent.backend.training.episodes import goals
from k3agent.backend.training.episodes.concepts import Func, concepts, instantiate
from k3agent.backend.training.episodes.extras import (
    Extra,
    behaves,
    calls_showing,
    in_one_line,
    tag_of,
    third,
    with_extra,
)
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.families.describing import _clash
from k3agent.backend.training.episodes.families.methodsaid import new_method, with_method
from k3agent.backend.training.episodes.families.webdescribed import arrows, compared
from k3agent.backend.training.episodes.looped import looped_function
from k3agent.backend.training.episodes.methods import (
    Home,
    draw_method,
    drawn_home,
    method_ideas,
    natural_home,
)
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.project import draw_project
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.session import Outcome, Plan, Session, TooLong, played
from k3agent.backend.training.episodes.wording import say
from k3agent.backend.training.episodes.words import Words

assert goals.GOALS is GOALS
MINE = (
    "add_func_ideas",
    "create_func_ideas",
    "add_func_named",
    "add_idea",
    "add_guard_lines",
    "add_method_ideas",
    "add_method_unnamed",
    "web_func_ideas",
    "web_guard_in",
    "create_js_func",
)


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    made = Player(31, 0, strict=True)
    yield made
    made.close()


def _played(player: Player, name: str, rng: random.Random) -> tuple[Plan, Outcome, Session] | None:
    """One episode of a goal with the real tools."""
    words = Words(rng)
    project = draw_project(rng, words)
    plan = GOALS[name].make(Setting(Facts(dict(project.files)), rng, words, project))
    if plan is None:
        return None
    player.box.workspace.reset(project.files)
    player.box.new_session()
    if plan.prepare:
        files = player.box.workspace.snapshot()
        plan.prepare(files)
        player.box.workspace.reset(files)
    before = player.box.workspace.snapshot()
    session = Session(player.box, rng, max_chars=9000)
    session.user(say(plan.goal, plan.slots, rng, "train"))
    try:
        think, answer = played(plan, session)
    except TooLong:
        return None
    session.answer(answer, think)
    return plan, Outcome(before, player.box.workspace.snapshot(), answer), session


def _damaged(outcome: Outcome) -> list[dict[str, str]]:
    """What wrong work leaves: nothing done, another file too, another error or result."""
    after = outcome.after
    path = next(path for path in after if after[path] != outcome.before.get(path))
    old = outcome.before.get(path, "").splitlines()
    rows = after[path].splitlines()
    fresh = [at for at, row in enumerate(rows) if row.strip() and row not in old]
    wrong = [outcome.before, {**after, "other_zq.txt": "x\n"}, {**after, path: after[path] + "def zq(:\n"}]
    for at in {*fresh[:3], fresh[-1]}:
        worse = re.sub(r"raise \w+|throw new \w+", "raise OSError", rows[at])
        if at == fresh[-1] and not "".join(rows[at + 1 : at + 2]).strip():
            worse = re.sub(r"^(\s+return) (?!None$).*", r"\1 'zq'", worse)
        if worse != rows[at]:
            wrong.append({**after, path: "\n".join([*rows[:at], worse, *rows[at + 1 :]]) + "\n"})
    return wrong


@pytest.mark.parametrize("name", MINE)
def test_right_work_is_accepted_and_wrong_work_is_not(player: Player, name: str) -> None:
    rng = random.Random(name)
    count = 0
    for _ in range(60):
        found = _played(player, name, rng)
        if found is None:
            continue
        plan, outcome, session = found
        assert plan.check(outcome) is None, (session.messages[0], outcome.answer)
        for wrong in _damaged(outcome):
            assert plan.check(Outcome(outcome.before, wrong, outcome.answer)), (session.messages[0], wrong)
        count += 1
        if count == 12:
            break
    assert count == 12


def test_the_thought_says_what_the_class_keeps_it_in(player: Player) -> None:
    rng = random.Random(3)
    for _ in range(12):
        found = _played(player, "add_method_ideas", rng)
        if found is None:
            continue
        _, outcome, session = found
        path = next(path for path in outcome.after if outcome.after[path] != outcome.before.get(path))
        thought = session.messages[-3]["reasoning_content"]
        match = re.search(
            r"keeps it in (self\.\w+), an? (\w+|\w+ \w+): line (\d+) is (.*?)\. Its|\bCall it", thought
        )
        assert match and match[1] in match[4]
        assert outcome.before[path].splitlines()[int(match[3]) - 1].strip() == match[4]


def test_every_method_works_in_some_class() -> None:
    rng = random.Random(4)
    seen: set[str] = set()
    for _ in range(1500):
        words = Words(rng)
        home = (natural_home(rng, words) if rng.random() < 0.3 else None) or drawn_home(rng, words)
        method = draw_method(rng, words, home)
        if method is None:
            continue
        results = method.results(with_method(home, method), home.name)
        assert not any(item.startswith(("!NameError", "!AttributeError", "!SyntaxError")) for item in results)
        assert "{" not in method.description and "$" not in method.description
        seen.add(re.sub(r"_\w+$", "", method.name))
    assert len(method_ideas()) > 100 and len(seen) > 90


def test_a_method_without_its_second_idea_is_noticed() -> None:
    rng = random.Random(1)
    home = drawn_home(rng, Words(rng))
    home.text, home.name, home.kept = (
        "class Box:\n    def __init__(self):\n        self.boxes = []\n",
        "Box",
        {"boxes": "list"},
    )
    for _ in range(400):
        method = draw_method(rng, Words(rng), home)
        if method and method.body[0].startswith("    if not self.boxes:") and "raise" in method.body[1]:
            right = with_method(home, method)
            lazy = right.replace("if not self.boxes:", "if False:")
            assert method.results(right, "Box") != method.results(lazy, "Box")
            return
    pytest.fail("no such method was drawn")


@pytest.mark.parametrize(
    ("idea", "right", "accepted", "rejected"),
    [
        ("copy", "self.boxes.copy()", "list(self.boxes)", "self.boxes"),
        ("__str__", "", "f'Box: {len(self.boxes)}'", "f'Box of {self.boxes}'"),
        ("remove_at", "pop(index)", "pop(dict(enumerate(range(len(self.boxes))))[index])", "pop()"),
        ("highest", "max(self.boxes, default=None)", "sorted(self.boxes)[-1] if self.boxes else None", "0"),
        ("spread", "max(self.boxes) - min(self.boxes)", "sorted(self.boxes)[-1] - min(self.boxes)", "0"),
    ],
)
def test_other_methods_that_do_as_the_words_say_are_right(
    idea: str, right: str, accepted: str, rejected: str
) -> None:
    rng = random.Random(5)
    text = "class Box:\n    def __init__(self):\n        self.boxes = []\n"
    home = Home(text, "Box", {"boxes": "nums"})
    methods = (draw_method(rng, Words(rng), home) for _ in range(3000))
    method = next(item for item in methods if item and re.match(rf"{idea}(_|$)", item.name))
    file = with_method(home, method)
    right = right or method.body[-1].strip().removeprefix("return ")
    assert right in file
    wanted = method.results(file, "Box")
    assert method.is_as_wanted(method.results(file.replace(right, accepted), "Box"), wanted)
    assert not method.is_as_wanted(method.results(file.replace(right, rejected), "Box"), wanted)
    ended = file.replace(method.head, f"{method.head}\n        raise SystemExit")
    assert not method.is_as_wanted(method.results(ended, "Box"), wanted)


def test_the_new_method_is_found_by_what_was_there() -> None:
    old = "class A:\n    def a(self):\n        pass\n"
    assert new_method(old, old + "\n    def b(self):\n        pass\n", "A") == "b"
    assert new_method(old, old, "A") == new_method(old, "class A:\n  def", "A") == ""


def test_a_guard_counts_only_with_its_error_and_its_text() -> None:
    func = Func("mean", ["xs"], ["    return sum(xs) / len(xs)"], "the mean of xs")
    func.cases = [(([1, 3],), 2.0)]
    extra = Extra(
        'raise ValueError("nothing")',
        "if xs is empty",
        ("if not xs:", '    raise ValueError("nothing")'),
        exact=True,
    )
    fresh = with_extra(func, extra)
    assert fresh is not None and extra.third == 'raises ValueError("nothing") if xs is empty'
    calls = calls_showing(func, fresh, 0, extra)
    assert ([],) in calls
    text = "\n".join(fresh.source())
    assert behaves(text, fresh, calls, True)
    assert behaves(text.replace("not xs", "len(xs) == 0"), fresh, calls, True)
    assert not behaves(text.replace("nothing", "none"), fresh, calls, True)
    assert behaves(text.replace("nothing", "none"), fresh, calls, False)
    assert not behaves(text.replace("ValueError", "KeyError"), fresh, calls, False)
    assert not behaves("\n".join(func.source()), fresh, calls, False)


def test_what_is_logged_and_printed_counts() -> None:
    func = Func("twice", ["n"], ["    return n * 2"], "twice n")
    func.cases = [((3,), 6)]
    for line in ('logging.warning("small")', 'print("small")'):
        extra = Extra("tell", "if n < 1", ("if n < 1:", f"    {line}"))
        fresh = with_extra(func, extra)
        assert fresh is not None
        calls = calls_showing(func, fresh, 0, extra, "import logging\n")
        text = "import logging\n" + "\n".join(fresh.source())
        assert behaves(text, fresh, calls, False)
        assert not behaves(text.replace("small", "large"), fresh, calls, False)


def _judged(source: str, extra: Extra, case: tuple[Any, ...], others: dict[str, str]) -> bool:
    """Whether the function with the idea is accepted in other words: each text replaced by another."""
    name, _, params = source.split("\n")[0].removeprefix("def ").removesuffix("):").partition("(")
    func = Func(name, params.split(", "), source.split("\n")[1:], "")
    scope: dict[str, Any] = {}
    exec(source, scope)
    func.cases = [(case, scope[name](*case))]
    fresh = with_extra(func, extra)
    assert fresh is not None
    calls = calls_showing(func, fresh, 0, extra)
    text = "\n".join(fresh.source())
    assert calls and behaves(text, fresh, calls, extra.exact)
    assert not behaves(source, fresh, calls, extra.exact)
    for old, new in others.items():
        assert old in text
        text = text.replace(old, new)
    return behaves(text, fresh, calls, extra.exact)


@pytest.mark.parametrize(
    ("source", "extra", "case", "others"),
    [
        (
            "def mean(xs):\n    return sum(xs) / len(xs)",
            Extra("return None", "if xs is empty", ("if not xs:", "    return None")),
            ([1, 3],),
            {"not xs": "len(xs) == 0"},
        ),
        (
            "def smallest(xs):\n    return min(xs)",
            Extra("skip negative values in xs", lines=("xs = [item for item in xs if item >= 0]",)),
            ([-4, -3],),
            {"min(xs)": "sorted(xs)[0]"},
        ),
        (
            "def clamped(n, low, high):\n    return max(low, min(n, high))",
            Extra("use the absolute value of n", lines=("n = abs(n)",)),
            (-3, 2, 8),
            {"max(low, min(n, high))": "low if n < low else high if n > high else n"},
        ),
        (
            "def reduced(price, percent):\n    return price - price * percent / 100",
            Extra("return 0", "if price is negative", ("if price < 0:", "    return 0")),
            (19, 7),
            {"price - price * percent / 100": "price * (100 - percent) / 100"},
        ),
        (
            "def sum_to(n):\n    return sum(range(1, n + 1))",
            Extra('print "low"', "if n is negative", ("if n < 0:", '    print("low")')),
            (4,),
            {'print("low")': 'print("low")\n        return None'},
        ),
        (
            "def fib(n):\n    return int((((1 + 5**0.5) / 2) ** n) / 5**0.5 + 0.5)",
            Extra("return -1", "if n is negative", ("if n < 0:", "    return -1")),
            (6,),
            {"int((((1 + 5**0.5) / 2) ** n) / 5**0.5 + 0.5)": "n if n < 2 else fib(n-1) + fib(n-2)"},
        ),
        (
            "def shout(text):\n    return text + '!'",
            Extra("collapse repeated spaces in text", lines=('text = " ".join(text.split())',)),
            ("ab",),
            {
                " ".join(
                    ("text", "=", '" ".join(text.split())')
                ): 'while "  " in text: text = text.replace("  ", " ")'
            },
        ),
        (
            "def shout(text):\n    return text + '!'",
            Extra("return 0", "when text is only white space", ("if not text.strip():", "    return 0")),
            ("ab",),
            {"not text.strip()": "text.isspace()"},
        ),
        (
            "def tally(words):\n    return {word: words.count(word) for word in words}",
            Extra("return None", "if words is None", ("if words is None:", "    return None")),
            (["b", "a"],),
            {"for word in words}": "for word in sorted(words)}"},
        ),
    ],
)
def test_other_code_that_does_as_the_words_say_is_right(
    source: str, extra: Extra, case: tuple[Any, ...], others: dict[str, str]
) -> None:
    assert _judged(source, extra, case, others)


def test_code_that_ends_or_never_ends_is_wrong_work_and_harms_nobody() -> None:
    func = Func("twice", ["n"], ["    return n * 2"], "twice n")
    text = "\n".join(func.source())
    assert behaves(text, func, [(3,)], False)
    for start in ("x = exit()", "import sys\nx = sys.exit(1)", "x = [0 for _ in iter(int, 1)]"):
        assert behaves(f"{start}\n{text}", func, [(3,)], False)
    for body in ("exit()", "[0 for _ in iter(int, 1)]", "print('n')"):
        assert not behaves(text.replace("n * 2", body), func, [(3,)], False)


def test_a_function_that_writes_to_its_file_changes_none_of_ours() -> None:
    concept = next(item for item in concepts("described.txt") if "read_text" in item.names)
    rng = random.Random(2)
    func = next(func for _ in range(10) if (func := instantiate(concept, rng, Words(rng))))
    assert func.cases and not any("episodes" in args[0] for args, _ in func.cases)
    assert all(Path(args[0]).read_text(encoding="utf-8") == text for args, text in func.cases)


@pytest.mark.parametrize(
    ("one", "two", "is_clash"),
    [
        ("counts the negative numbers", "ignore negative numbers", True),
        ("the numbers in ascending order", "turn the order round", True),
        ("joins the words with a comma", "ignore negative numbers", False),
    ],
)
def test_two_ideas_about_the_same_may_contradict(one: str, two: str, is_clash: bool) -> None:
    assert _clash(one, two) is is_clash


def test_kinds_of_arguments() -> None:
    assert tag_of(["a", ""]) == "text" and tag_of([1, 2]) == "num" and tag_of([True]) == ""
    assert tag_of([[1], []]) == "ints" and tag_of([["a"]]) == "words" and tag_of([[[1]]]) == "list"
    assert third("return 0 if x") == "returns 0 if x"
    assert in_one_line(["if (a) {", "  return 1;", "}"]) == "if (a) { return 1; }"


def test_loops_do_what_they_say() -> None:
    rng = random.Random(6)
    found = [func for _ in range(200) if (func := looped_function(rng, Words(rng)))]
    assert len({func.description.split(" ")[1] for func in found}) > 3 and len(found) > 150
    assert any("for " in func.body[1] for func in found if len(func.body) > 1)


def test_every_described_function_runs() -> None:
    rng = random.Random(1)
    assert len(concepts("described.txt")) > 45
    for concept in concepts("described.txt"):
        assert any(instantiate(concept, rng, Words(rng)) for _ in range(10)), concept.names


def test_javascript_may_say_its_own_error_and_leave_out_brackets() -> None:
    long = "if (n < 0) {\n    throw new RangeError('n is negative');\n  }\n  return n;"
    short = 'if (n < 0) throw new RangeError("below (0)");\n  return n;'
    assert compared(long, "throw a RangeError") == compared(short, "throw a RangeError")
    said = 'throw new RangeError("n is negative")'
    assert compared(long, said) != compared(short, said)
    for wrong in (
        long.replace("Range", "Type"),
        long.replace("<", "<="),
        long.replace("return n", "return 0"),
    ):
        assert compared(long, "throw a RangeError") != compared(wrong, "throw a RangeError")
    after = "if (n < 0) {\n  return 0;\n}\nreturn n;"
    assert compared(after, "return 0") == compared("if (n < 0) return 0;\nreturn n;", "return 0")
    assert compared(after, "return 0") != compared("if (n < 0) {\n  return 0;\nreturn n;}", "return 0")


def test_declared_functions_become_arrows() -> None:
    text = "export function sum(a, b) {\n  return a + b;\n}\n"
    assert arrows(text) == "export const sum = (a, b) => {\n  return a + b;\n};\n"
