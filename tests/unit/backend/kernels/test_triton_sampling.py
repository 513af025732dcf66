"""Drawing tokens on the device, in Triton's interpreter; tests/gpu runs the same checks for real."""

from support.triton_interpreter import interpreter_or_skip

interpreter_or_skip()

from support.sampling_checks import (  # noqa: E402  # after the skip
    check_frequencies,
    check_greedy,
    check_independence,
    check_truncation,
)


def test_greedy_and_nan() -> None:
    check_greedy(50, "cpu")


def test_truncation_keeps_what_the_reference_keeps() -> None:
    check_truncation(40, 12, "cpu")


def test_frequencies_follow_the_probabilities() -> None:
    check_frequencies(300, "cpu")


def test_a_row_depends_on_itself_alone() -> None:
    check_independence(60, "cpu")
