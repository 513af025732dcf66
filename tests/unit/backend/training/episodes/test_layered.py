"""Repairs in layers: tests fail, the fix makes them pass, and the oracle finds what no traceback shows."""

import random
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k3agent.backend.training.episodes import goals, memory
from k3agent.backend.training.episodes.bugs import Broken
from k3agent.backend.training.episodes.concepts import Func
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.families.repair import fixed, play_fix
from k3agent.backend.training.episodes.layered import draw_layered
from k3agent.backend.training.episodes.mutate import ENDLESS, find_bug, outcome
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.policy import View
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.session import Outcome, Session
from k3agent.backend.training.episodes.testforms import KINDS, Claim, Target, claim, write_tests
from k3agent.backend.training.episodes.testruns import name_under_test, parse_run
from k3agent.backend.training.episodes.tracing import called_in
from k3agent.backend.training.episodes.words import Words
from k3agent.backend.training.episodes.zygote import Zygote

assert goals.GOALS is GOALS


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    made = Player(13, 0, strict=True)
    yield made
    made.close()


@pytest.fixture(scope="module")
def box() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


def drawn(seed: int, count: int) -> list[Broken]:
    rng, found = random.Random(seed), []
    for _ in range(200):
        broken = draw_layered(Setting(Facts({}), rng, Words(rng)))
        found += [broken] if broken is not None else []
        if len(found) == count:
            break
    return found


def test_layered_bugs_fail_the_tests_and_the_right_line_passes_them(player: Player) -> None:
    for broken in drawn(1, 12):
        assert broken.wrong != broken.right and not broken.works(broken.bad) and broken.works(broken.good)
        player.box.workspace.reset(broken.files)
        player.box.new_session()
        shown = player.box.call("shell", {"command": "python -m pytest -q --tb=short"})
        assert broken.failing in {
            item.name.split("[")[0].split(".")[-1] for item in parse_run(shown.text).failures
        }
        player.box.workspace.reset({**broken.files, broken.path: broken.good})
        assert player.box.call("shell", {"command": "python -m pytest -q --tb=short"}).text.endswith(
            "[exit code 0]"
        )


def test_code_that_takes_all_memory_is_no_bug_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MORE_BYTES", 64 << 20)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    scope: dict[str, Any] = {}
    exec("def fill(size):\n    return len(bytearray(size))\n", scope)
    assert outcome(scope["fill"], (1 << 20,)) == str(1 << 20)
    assert outcome(scope["fill"], (128 << 20,)) == ENDLESS
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


def test_code_without_end_is_no_bug_that_is_used() -> None:
    scope: dict[str, Any] = {}
    exec("def grow(items):\n    for item in items:\n        items.append(item)\n    return items\n", scope)
    assert outcome(scope["grow"], ([1],)) == ENDLESS
    assert outcome(scope["grow"], ([],)) == "[]"
    body = ["    found = [0]", "    for item in items:", "        found.append(item)", "    return found"]
    func = Func("copied", ["items"], body, "", cases=[(([1, 2],), [0, 1, 2])])
    for seed in range(30):
        bug = find_bug(func, random.Random(seed))
        assert bug is None or "in found" not in bug.wrong


def test_the_oracle_follows_calls_to_the_bug(player: Player) -> None:
    rng, followed = random.Random(3), 0
    for broken in drawn(2, 25):
        player.box.workspace.reset(broken.files)
        player.box.new_session()
        session = Session(player.box, rng, max_chars=10**6)
        _, answer = play_fix(session, [broken], "Fix the tests.")
        outcome = Outcome(broken.files, player.box.workspace.snapshot(), answer)
        assert fixed([broken])(outcome) is None, session.messages
        followed += any("looks right" in item.get("reasoning_content", "") for item in session.messages)
    assert followed >= 3


@pytest.mark.parametrize("kind", sorted(set(KINDS)))
def test_every_kind_of_test_file_passes_on_right_code(box: Zygote, tmp_path: Path, kind: str) -> None:
    code = (
        "class Crate:\n    def __init__(self, load):\n        self.load = load\n\n"
        "    def heavy(self, limit):\n        if limit < 0:\n            raise ValueError('no limit')\n"
        "        return [item for item in self.load if item > limit]\n"
    )
    (tmp_path / "crate.py").write_text(code)
    cases = [(([1, 5, 9], 4), [5, 9]), (([2], 7), []), (([8, 3], 2), [8, 3])]
    target = Target(
        "heavy",
        ["load", "limit"],
        "box = Crate({load})",
        "box.heavy({limit})",
        cases,
        [(([1], -1), "ValueError")],
    )
    for seed in range(4):
        rng = random.Random(seed)
        text, written = write_tests(rng, Words(rng), [target], ["from crate import Crate"], "Crate", kind)
        assert len(written.claims) == 3 and len(written.names) >= 2
        (tmp_path / "test_crate.py").write_text(text)
        output, status = box.run(str(tmp_path), ["-m", "pytest", "-q", "test_crate.py"])
        assert status == 0, text + output


@pytest.mark.parametrize("value", [3, -2.5, True, None, "some text", ["a", "b"], {"k": 1}, (1, 2), [], ""])
def test_claims_hold_for_the_value_and_not_for_another(value: object) -> None:
    other = not value if isinstance(value, bool) else 77
    for seed in range(30):
        one = claim(random.Random(seed), "f()", value)
        assert one.holds({"f": lambda: value}), one
        assert not one.holds({"f": lambda: other}), one


def test_claims_in_both_frameworks() -> None:
    assert Claim("f()", "in", "g()").unittest() == "self.assertIn(f(), g())"
    assert Claim("f()", "approx", "2.5").pytest() == "assert f() == pytest.approx(2.5)"
    assert Claim("f()", "is", "None").unittest() == "self.assertIsNone(f())"
    assert Claim("f()", "false").pytest() == "assert not f()"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("assert stock.take_item('a', 2) == 3", "take_item"),
        ("assert sorted(low_parts(stock)) == ['a']", "low_parts"),
        ("assert Basket([1, 2]).total() == 3", "total"),
        ("assert 'red' in render(page)", "render"),
        ("assert len(find(rows)) == 2", "find"),
        ("assert price(3) == pytest.approx(2.5)", "price"),
        ("self.assertAlmostEqual(shop.price(3), 2.5)", "price"),
        ("self.assertRaises(ValueError, parse, 'x')", ""),
        ("with pytest.raises(ValueError):", ""),
        ("box = Crate(3)", "Crate"),
        ("assert result == 3", ""),
        ("def test_take(self):", ""),
        ("@pytest.mark.parametrize(", ""),
    ],
)
def test_the_name_under_test(line: str, name: str) -> None:
    assert name_under_test(line) == name


def test_failures_of_tables_and_fixtures_are_read() -> None:
    run = parse_run(
        "_______ test_total[big cat-3] _______\ntest_a.py:9: in test_total\n    assert total(name) == want\n"
        "E   assert 4 == 3\n_______ ERROR at setup of TestBox.test_b _______\ntest_a.py:4: in box\n"
        "    return Box(1)\nE   TypeError: Box() takes no arguments\n1 failed, 1 error in 0.1s\n[exit code 1]"
    )
    assert [(item.name, item.error) for item in run.failures] == [
        ("test_total[big cat-3]", "assert 4 == 3"),
        ("TestBox.test_b", "TypeError: Box() takes no arguments"),
    ]


def test_calls_in_a_definition() -> None:
    rows = [
        "def outer(x):",
        '    """Call nobody()."""',
        "    y = prices.inner(len(x))",
        "    return Box(y).look()",
        "",
        "z()",
    ]
    view = View("a.py", list(enumerate(rows, 1)), 6)
    assert called_in(view, "outer") == ["inner", "Box", "look"]
