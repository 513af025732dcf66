"""The exception tree of the app, and the hints that messages end with.

    K3AgentError
    ├── ConfigError          a setting, flag or file is wrong                 exit 52 (2 for flags)
    ├── StoreError           the session store cannot be read or written      exit 1
    ├── ProviderError        a model endpoint failed; `kind` says how         exit 41, 75 or 1
    ├── ToolError            expected failure of a tool: its text goes to the model
    ├── BlockedError         a hook of the user's stands against it           exit 3
    └── SandboxError         no sandbox although one was required             exit 44

A message names what failed, with which value, and what to do. The backend has its own `BackendError`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class K3AgentError(Exception):
    """Base of every expected error of the app."""


class ConfigError(K3AgentError):
    """A setting is wrong: file, line, key, value and the nearest right key belong into the message."""


class StoreError(K3AgentError):
    """The store cannot do what was asked: locked by another process, missing session, unreadable database."""


class SessionInUseError(StoreError):
    """Another process has the session; `session_id` is its whole id."""

    def __init__(self, session_id: str, holder: str) -> None:
        super().__init__(
            f"session {session_id} is in use by process {holder}; wait for it, or fork the session"
        )
        self.session_id = session_id


class ProviderErrorKind(StrEnum):
    AUTH = "auth"  # 401, 403: the key is wrong or the client is not admitted
    QUOTA = "quota"  # balance or plan used up: never retried
    RATE = "rate"  # 429 that passes with time
    OVERFLOW = "overflow"  # the prompt does not fit the window
    TOO_LARGE = "too_large"  # 413: the body is too big
    BAD_REQUEST = "bad_request"  # other 4xx
    NOT_FOUND = "not_found"  # the model is unknown
    FILTER = "filter"  # refused by a content filter
    SERVER = "server"  # 5xx
    CONNECTION = "connection"  # nothing or half an answer came
    PROTOCOL = "protocol"  # an answer that cannot be understood


class ProviderError(K3AgentError):
    """A model call failed for good (after the retries that make sense).

    `kind` says how; `status` is the HTTP status if there was one; `retry_after_s` what the endpoint asked
    for.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: ProviderErrorKind,
        status: int | None = None,
        retry_after_s: float | None = None,
        trace_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.retry_after_s = retry_after_s
        self.trace_id = trace_id

    @property
    def is_retryable(self) -> bool:
        """Whether the same request may succeed in a moment."""
        return self.kind in {ProviderErrorKind.RATE, ProviderErrorKind.SERVER, ProviderErrorKind.CONNECTION}


class NobodyListensError(ProviderError):
    """A port of this computer that refuses: no server is there, and waiting does not start one."""

    @property
    def is_retryable(self) -> bool:
        return False


class ToolError(K3AgentError):
    """An expected failure of a tool. The text is for the model: it names the thing and the next step."""


class BlockedError(K3AgentError):
    """A prompt did not get through to the model: a hook, or an interrupt while hooks ran."""


class SandboxError(K3AgentError):
    """A sandbox was required and none works here."""


# --- hints in messages

_LEAST_LIKE = 0.55


def nearest(word: str, known: Iterable[str]) -> str | None:
    """None when no known word is near."""
    from difflib import get_close_matches  # lazy: only for errors

    return next(iter(get_close_matches(word, list(known), n=1, cutoff=_LEAST_LIKE)), None)


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """` Did you mean X?`, or `otherwise` when no known word is near."""
    found = nearest(word, known)
    return otherwise if found is None else f" Did you mean {found}?"
