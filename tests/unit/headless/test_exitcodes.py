"""The table of exit codes covers every outcome and every kind of provider failure."""

import signal

import pytest

from k3agent.errors import ConfigError, K3AgentError, ProviderError, ProviderErrorKind, SandboxError
from k3agent.events import TurnOutcome
from k3agent.headless.exitcodes import code_of_error, code_of_turn


@pytest.mark.parametrize("outcome", TurnOutcome)
def test_every_outcome_has_a_code(outcome: TurnOutcome) -> None:
    code = code_of_turn(outcome, None, None)
    assert (code == 0) is (outcome is TurnOutcome.SUCCESS)


def test_signals_count_only_when_they_ended_the_turn() -> None:
    assert code_of_turn(TurnOutcome.INTERRUPTED, None, signal.SIGTERM) == 143
    assert code_of_turn(TurnOutcome.INTERRUPTED, None, signal.SIGINT) == 130
    assert code_of_turn(TurnOutcome.INTERRUPTED, None, None) == 6
    assert code_of_turn(TurnOutcome.SUCCESS, None, signal.SIGINT) == 0


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("auth", 41),
        ("rate", 75),
        ("server", 75),
        ("connection", 75),
        ("quota", 75),
        ("bad_request", 1),
        ("filter", 1),
    ],
)
def test_provider_failures(kind: str, code: int) -> None:
    error = ProviderError("x", kind=ProviderErrorKind(kind))
    assert code_of_turn(TurnOutcome.PROVIDER, error, None) == code


def test_other_errors() -> None:
    assert code_of_error(ConfigError("x")) == 52
    assert code_of_error(SandboxError("x")) == 44
    assert code_of_error(K3AgentError("x")) == 1
    assert code_of_turn(TurnOutcome.EXECUTION, SandboxError("x"), None) == 44
