"""k3agent: a coding agent for the terminal with its own backend for Kimi K3."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Agent", "ApprovalAsked", "K3AgentError", "Limits", "Result", "TurnOutcome", "__version__", "run"]

if TYPE_CHECKING:  # importing k3agent is to cost nothing
    from k3agent.sdk import Agent, ApprovalAsked, K3AgentError, Limits, Result, TurnOutcome, run


def __getattr__(name: str) -> Any:
    """The names above, loaded when they are used."""
    if name in __all__:
        from k3agent import sdk  # lazy: 0.2 s

        return getattr(sdk, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
