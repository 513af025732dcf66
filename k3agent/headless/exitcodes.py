"""The one table of exit codes, and how an end becomes one of them."""

from __future__ import annotations

import signal
from enum import IntEnum

from k3agent.errors import (
    BlockedError,
    ConfigError,
    K3AgentError,
    ProviderError,
    ProviderErrorKind,
    SandboxError,
)
from k3agent.events import TurnOutcome


class ExitCode(IntEnum):
    OK = 0
    ERROR = 1
    USAGE = 2
    BLOCKED = 3
    CHECKS_FAILED = 4
    LIMIT = 5
    INTERRUPTED = 6
    AUTH = 41
    NO_SANDBOX = 44
    CONFIG = 52
    PROVIDER = 75
    HUP = 129
    INT = 130
    TERM = 143


BY_SIGNAL = {signal.SIGHUP: ExitCode.HUP, signal.SIGINT: ExitCode.INT, signal.SIGTERM: ExitCode.TERM}

_BY_OUTCOME = {
    TurnOutcome.SUCCESS: ExitCode.OK,
    TurnOutcome.CHECKS_FAILED: ExitCode.CHECKS_FAILED,
    TurnOutcome.MAX_TURNS: ExitCode.LIMIT,
    TurnOutcome.MAX_TOKENS: ExitCode.LIMIT,
    TurnOutcome.MAX_BUDGET: ExitCode.LIMIT,
    TurnOutcome.MAX_TIME: ExitCode.LIMIT,
    TurnOutcome.MAX_DISK: ExitCode.LIMIT,
    TurnOutcome.CONTEXT: ExitCode.LIMIT,
    TurnOutcome.THRASH: ExitCode.LIMIT,
    TurnOutcome.PROVIDER: ExitCode.ERROR,
    TurnOutcome.PERMISSION: ExitCode.BLOCKED,
    TurnOutcome.EXECUTION: ExitCode.ERROR,
    TurnOutcome.INTERRUPTED: ExitCode.INTERRUPTED,
}

_BY_PROVIDER_KIND = {
    ProviderErrorKind.AUTH: ExitCode.AUTH,
    ProviderErrorKind.QUOTA: ExitCode.PROVIDER,
    ProviderErrorKind.RATE: ExitCode.PROVIDER,
    ProviderErrorKind.SERVER: ExitCode.PROVIDER,
    ProviderErrorKind.CONNECTION: ExitCode.PROVIDER,
}


def code_of_error(error: BaseException) -> ExitCode:
    if isinstance(error, ProviderError):
        return _BY_PROVIDER_KIND.get(error.kind, ExitCode.ERROR)
    if isinstance(error, ConfigError):
        return ExitCode.CONFIG
    if isinstance(error, BlockedError):
        return ExitCode.BLOCKED
    if isinstance(error, SandboxError):
        return ExitCode.NO_SANDBOX
    return ExitCode.ERROR


def outcome_of_error(error: BaseException) -> TurnOutcome:
    if isinstance(error, ProviderError):
        is_overflow = error.kind is ProviderErrorKind.OVERFLOW
        return TurnOutcome.CONTEXT if is_overflow else TurnOutcome.PROVIDER
    return TurnOutcome.PERMISSION if isinstance(error, BlockedError) else TurnOutcome.EXECUTION


def code_of_turn(outcome: TurnOutcome, error: K3AgentError | None, signum: int | None) -> ExitCode:
    """A signal decides when it ended the turn; a turn that was over by then keeps its own end."""
    if signum is not None and outcome is TurnOutcome.INTERRUPTED:
        return BY_SIGNAL.get(signal.Signals(signum), ExitCode.INTERRUPTED)
    if error is not None and outcome in {TurnOutcome.PROVIDER, TurnOutcome.EXECUTION}:
        return code_of_error(error)
    return _BY_OUTCOME[outcome]
