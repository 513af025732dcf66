"""What was probably meant by a word that is not known."""

import pytest

from k3agent.errors import did_you_mean, nearest

KNOWN = ("--model", "--max-turns", "limits.max_turns", "kimi-k3")


@pytest.mark.parametrize(
    "word, meant",
    [("--mdel", "--model"), ("limit.maxturns", "limits.max_turns"), ("kimi", "kimi-k3"), ("zzz", None)],
)
def test_nearest(word: str, meant: str | None) -> None:
    assert nearest(word, KNOWN) == meant
    assert did_you_mean(word, KNOWN) == ("" if meant is None else f" Did you mean {meant}?")


def test_what_is_said_instead() -> None:
    assert did_you_mean("zzz", KNOWN, " See --help.") == " See --help."
    assert did_you_mean("x", ()) == ""
