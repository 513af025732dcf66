"""What counts as an answer that says no."""

import pytest

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.session import Outcome


@pytest.mark.parametrize(
    ("answer", "is_no"),
    [
        ("`f` is defined in `a.py`, line 3. It is used nowhere else.", True),
        ("No, `f` is not used anywhere.", True),
        ("Which `f` do you mean?", True),
        ("`f` is used in `b.py`, line 1.", False),
    ],
)
def test_an_answer_that_says_no(answer: str, is_no: bool) -> None:
    files = {"a.py": "f = 1\n"}
    assert (checks.declines("f")(Outcome(files, files, answer, "")) is None) is is_no


def test_no_answer_excuses_a_change() -> None:
    outcome = Outcome({"a.py": "f = 1\n"}, {"a.py": "f = 2\n"}, "No.", "")
    assert checks.declines()(outcome) is not None
