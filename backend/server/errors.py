"""Errors as HTTP: status and body for each exception that a request may end with."""

from k3agent.backend.chat.template import Json
from k3agent.backend.errors import BackendError, BadRequestError, EngineUnavailableError

_MAX_TEXT = 2000


class HttpError(BackendError):
    """An answer with a status, an error type and perhaps headers."""

    def __init__(self, status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.headers = headers or {}


class OverloadedError(HttpError):
    """Status 429: the request may be sent again after a while."""

    def __init__(self, detail: str = "") -> None:
        text = "The engine is currently overloaded, please try again later"
        super().__init__(
            429, "engine_overloaded_error", f"{text} ({detail})" if detail else text, {"retry-after": "2"}
        )


def status_of(error: Exception) -> int:
    match error:
        case HttpError():
            return error.status
        case BadRequestError():
            return 400
        case EngineUnavailableError():
            return 503
    return 500


def error_body(error: Exception) -> Json:
    """`{"error": {...}}`; the text of unexpected exceptions stays in the log."""
    match error:
        case HttpError():
            kind, text = error.kind, str(error)
        case BadRequestError():
            kind, text = "invalid_request_error", str(error)
        case EngineUnavailableError():
            kind, text = "server_unavailable", str(error)
        case BackendError():
            kind, text = "server_error", str(error)
        case _:
            kind, text = "server_error", "internal error; the server's log has the details"
    return {"error": {"message": text[:_MAX_TEXT], "type": kind, "code": kind}}
