"""What decides for a change: the types of an error, values, names; slips that leave such a trace."""

import random

import pytest

from k3agent.backend.training.episodes import goals
from k3agent.backend.training.episodes.concepts import Func
from k3agent.backend.training.episodes.evidence import evidence
from k3agent.backend.training.episodes.likely import likely
from k3agent.backend.training.episodes.registry import GOALS
from k3agent.backend.training.episodes.testruns import Failure
from k3agent.backend.training.episodes.trying import lead_to

assert goals.GOALS is GOALS

LISTED = "TypeError: unsupported operand type(s) for -: 'list' and 'int'"
UNLIKE = "TypeError: '<' not supported between instances of 'str' and 'int'"

CODE = """\
LEAST_TOTAL = 50
class Pages:
    def __init__(self, items, size):
        self.items = items
        self.page = 1
    def current_with_fee(self, first, size, fee):
        total = 0
        rows = []
        for first in first:
            LINE
        return total
"""


def said(old: str, new: str, error: str, code: str = "assert f(3) == 4") -> str:
    rows = list(enumerate(CODE.replace("LINE", old).splitlines(), 1))
    places = [("test_pages.py", 4, "test_current", code), ("pages.py", 10, "current_with_fee", old)]
    return evidence(rows, 10, old, new, Failure("test_current", places, error))


@pytest.mark.parametrize(
    ("old", "new", "error", "wanted"),
    [
        (
            "total = self.items - 1",
            "total = self.page - 1",
            LISTED,
            "self.items is a list; self.page is a number (line 5).",
        ),
        (
            "total = sum(size)",
            "total = sum(rows)",
            "TypeError: 'int' object is not iterable",
            "size is an int; rows is a list (line 8).",
        ),
        (
            "total += fee[0]",
            "total += rows[0]",
            "TypeError: 'int' object is not subscriptable",
            "fee is an int; rows is a list (line 8).",
        ),
        (
            "if rows < size:",
            "if total < size:",
            "TypeError: '<' not supported between instances of 'list' and 'int'",
            "rows is a list; total is a number (line 7).",
        ),
        (
            "rows.push(1)",
            "rows.append(1)",
            "AttributeError: 'list' object has no attribute 'push'",
            "A list has append, not push.",
        ),
        (
            "for row in row:",
            "for row in size:",
            "UnboundLocalError: cannot access local variable 'row'",
            "row is made only there, and nothing reads size.",
        ),
        (
            "total = first",
            "total += first",
            "assert 3 == 6",
            "total is set anew each time: only the last stays.",
        ),
        (
            "total -= first",
            "total += first",
            "TypeError: unsupported operand type(s) for -=: 'str' and 'str'",
            "Two texts: only + joins them.",
        ),
        (
            "total = first - 2",
            "total = first + 2",
            "assert 1 == 5",
            "current_with_fee adds: it takes away where it should add.",
        ),
        (
            "total = first * 7",
            "total = first + 7",
            "assert 21 == 10.0 ± 1.0e-05",
            "current_with_fee adds: it multiplies where it should add.",
        ),
        (
            "if first <= LEAST_TOTAL:",
            "if first >= LEAST_TOTAL:",
            "assert 3 == 4",
            "LEAST_TOTAL is the least: from it on.",
        ),
        ("total = size % 61", "total = size % 60", "assert 3 == 4", "60 is usual there, not 61."),
        ("total / 2", "return total / 2", "assert None == 4", "The line computes and gives nothing back."),
    ],
)
def test_the_evidence_names_what_is_wrong(old: str, new: str, error: str, wanted: str) -> None:
    assert said(old, new, error) == wanted


def test_the_bound_itself_decides_between_with_and_without_it() -> None:
    change = ("if first > LEAST_TOTAL:", "if first >= LEAST_TOTAL:", "assert 1 == 0")
    assert "50, the bound, which belongs to it" in said(*change, "assert fee_of(50) == 0")
    assert said(*change, "assert fee_of(51) == 0") == ""


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("total = first - 2", "total = first + 2", "assert 5 == 1 + x"),
        ("total = len(first) - 1", "total = len(self.page) - 1", LISTED),
        ("total = first * 2", "total = first * 3", "assert 4 == 6"),
        ("total = first", "total = self", "NameError: name 'x' is not defined"),
        ("a\nb", "a\nc", "assert 1 == 2"),
    ],
)
def test_nothing_is_said_where_nothing_decides(old: str, new: str, error: str) -> None:
    assert said(old, new, error) in ("", "current_with_fee adds.")


@pytest.mark.parametrize(
    ("old", "new", "error", "wrong"),
    [
        ("total = fee / (size - 1)", "total = fee / (first - 1)", "ZeroDivisionError: division by zero", "0"),
        ("if first > limit:", "if first < limit:", "assert 3 == 4", "up to"),
        ("if first <= LEAST_TOTAL:", "if first > LEAST_TOTAL:", "assert 3 == 4", "from it on"),
        (
            "total = min(rows)",
            "total = min(fee)",
            "TypeError: '<' not supported between instances of 'str' and 'int'",
            "is a",
        ),
        (
            "total = sum(len(rows))",
            "total = sum(rows)",
            "TypeError: 'int' object is not iterable",
            "rows is an",
        ),
        ("rows = rows.pop()", "rows.pop()", "assert 3 == 4", "gives none"),
        (
            "rows[fee:] = []",
            "rows[size:] = []",
            "TypeError: slice indices must be integers or None",
            "no number",
        ),
    ],
)
def test_nothing_wrong_is_said(old: str, new: str, error: str, wrong: str) -> None:
    assert wrong not in said(old, new, error).lower()


def test_of_two_that_are_compared_each_has_its_type() -> None:
    assert said("total = min(size, fee)", "total = min(size, first)", UNLIKE) == "fee is a str."
    assert said("total = min(fee, size)", "total = min(first, size)", UNLIKE) == "fee is an int."


def test_what_another_method_reads_is_read() -> None:
    code = ["def f(self, a):", "    return a + a", "def g(self):", "    return self.most"]
    rows, failure = list(enumerate(["self.most = 3", *code], 1)), Failure("test_a", [], "assert 3 == 6")
    change = ("return a + a", "return a + self.most")
    assert "nothing reads self.most" not in evidence(rows, 3, *change, failure).lower()
    assert "nothing reads self.most" in evidence(rows[:3], 3, *change, failure).lower()


def test_only_what_a_loop_does_is_done_each_time() -> None:
    failure = Failure("test_a", [], "assert 3 == 6")
    flat = list(enumerate(["def f(a, b):", "    total = a", "    total = b", "    return total"], 1))
    assert evidence(flat, 3, "total = b", "total += b", failure) == "total is set anew."
    loop = list(enumerate(["def f(a, b):", "    for b in a:", "        total = b", "    return total"], 1))
    assert evidence(loop, 3, "total = b", "total += b", failure).endswith("each time: only the last stays.")


def test_types_of_another_line_are_not_told_of_this_one() -> None:
    failure = Failure("test_a", [("pages.py", 3, "f", "x - 1")], LISTED)
    assert evidence([(9, "y = rows - 1")], 9, "y = rows - 1", "y = size - 1", failure) == ""


def test_the_general_word_gives_way_to_the_clue() -> None:
    why, word = "TypeError: a. A list stands there: len()?", "A list stands there: len()?"
    assert lead_to(why, word, "rows is a list.") == "TypeError: a."
    assert (
        lead_to(why, word, "") == why and lead_to("It is too low.", "It is too low.", "x") == "It is too low."
    )


def test_likely_slips_exchange_signs_bounds_names_and_indices() -> None:
    body = [
        "    def net_of(self, order, rate):",
        "        total = 0",
        "        for item in order['items']:",
        "            total += item['price'] * item['count']",
        "        if total >= self.limit:",
        "            total -= total * rate // 100",
        "        return total",
    ]
    seen: set[str] = set()
    for seed in range(60):
        bugs = likely(Func("net_of", ["order", "rate"], body, ""), random.Random(seed))
        assert all(bug.wrong != bug.right and body[bug.index] == bug.right for bug in bugs)
        assert not any(bug.wrong.lstrip().startswith("def ") for bug in bugs)
        seen |= {bug.wrong.strip() for bug in bugs[:12]}
    for wrong in (
        "total = item['price'] * item['count']",
        "total += item['price'] + item['count']",
        "if total < self.limit:",
        "total += total * rate // 100",
        "for item in order:",
        "return rate",
    ):
        assert wrong in seen, wrong


def test_a_loop_that_may_not_end_is_left_alone() -> None:
    body = ["def f(n, step):", "    while n > 0:", "        n -= step", "    return n"]
    bugs = likely(Func("f", ["n", "step"], body, ""), random.Random(1))
    assert bugs and {bug.index for bug in bugs} == {3}


SHOP = """\
FREE_FROM = 5000
def shipping(net):
    if net <= FREE_FROM:
        return 0
    return 490
def charge(price, count):
    \"\"\"The price times the count.\"\"\"
    return price + count
"""


def test_the_wanted_value_of_another_branch_points_to_the_condition() -> None:
    rows = list(enumerate(SHOP.splitlines(), 1))
    failure = Failure("test_shipping", [("shop.py", 3, "shipping", "")], "assert 490 == 0")
    found = evidence(rows, 3, "if net <= FREE_FROM:", "if net >= FREE_FROM:", failure)
    assert found == "The 0 that is wanted is in line 4: the condition in line 3 is wrong."
    failure = Failure("test_shipping", [("shop.py", 3, "shipping", "")], "assert 490 == 12")
    assert evidence(rows, 3, "if net <= FREE_FROM:", "if net >= FREE_FROM:", failure) != found


def test_a_word_of_the_docstring_names_the_sign() -> None:
    rows = list(enumerate(SHOP.splitlines(), 1))
    failure = Failure("test_charge", [], "assert 5 == 6")
    found = evidence(rows, 8, "return price + count", "return price * count", failure)
    assert found == "The docstring says times: it adds where it should multiply."


def test_two_branches_that_do_the_same_are_told() -> None:
    text = "def streak(days):\n    if is_next(days):\n        n = 1\n    else:\n        n = 1\n    return n"
    rows, failure = list(enumerate(text.split("\n"), 1)), Failure("test_streak", [], "assert 1 == 3")
    assert evidence(rows, 3, "n = 1", "n = 2", failure) == "Lines 3 and 5 do the same in both cases."
    assert evidence(rows, 5, "n = 1", "n = 0", failure) == "Lines 3 and 5 do the same in both cases."
    assert not evidence(rows, 6, "return n", "return n + 1", failure)
    longer = [*rows[:5], (6, "        n += 2"), (7, "    return n")]
    assert evidence(longer, 3, "n = 1", "n = 2", failure) != "Lines 3 and 5 do the same in both cases."


@pytest.mark.parametrize(("old", "new"), [("rows = n - 0", "rows = n - 1"), ("x = y * 1", "x = y * 2")])
def test_what_changes_nothing_is_told(old: str, new: str) -> None:
    assert "nothing changes" in said(old, new, "assert 1 == 3")
