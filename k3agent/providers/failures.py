"""HTTP failures as `ProviderError`s: which kind, what the endpoint said, what to do.

Bodies come in several shapes, flattened or nested by gateways, and as HTML. Texts never hold the key.
Source of the table: kimi-api.md section 1.10.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from k3agent.errors import NobodyListensError, ProviderError, ProviderErrorKind
from k3agent.providers.dialects import is_loopback, other_region
from k3agent.providers.retry import parse_retry_after

Kind = ProviderErrorKind

_QUOTA = re.compile(
    r"exceeded_current_quota|insufficient[_ ](?:quota|balance|credit|funds)|check your (?:account|plan)|"
    r"account balance|please recharge|in arrears|billing|suspended|usage limit for this (?:billing|period)|"
    r"(?:tokens? per day|tpd)\b",
    re.IGNORECASE,
)
_OVERFLOW = re.compile(
    r"context[_ ]length|maximum context|context window|prompt is too long|input token (?:count|length)|"
    r"exceeded model token limit|exceeds the model specification|exceed_context_size|too many tokens",
    re.IGNORECASE,
)
_LIMITS = (
    re.compile(r"token limit:\s*(\d+)\s*\(requested:\s*(\d+)\)", re.IGNORECASE),
    re.compile(r"maximum context length is (\d+) tokens.*?requested (\d+) tokens", re.IGNORECASE | re.DOTALL),
)
_SECRET = re.compile(r"\b(?:sk|rk|pk)-[A-Za-z0-9_\-]{8,}|Bearer\s+[A-Za-z0-9._\-]{8,}")
_TAGS = re.compile(r"<(?:script|style)\b.*?</(?:script|style)>|<[^>]*>", re.IGNORECASE | re.DOTALL)
_MAX_TEXT = 600


def scrub(text: str, *secrets: str) -> str:
    """`text` without the given secrets and without anything that looks like a key."""
    for secret in secrets:
        if len(secret) >= 4:
            text = text.replace(secret, "[key]")
    return _SECRET.sub("[key]", text)


def read_error_body(body: str) -> tuple[str, str]:
    """(message, type) of an error body in any of the known shapes; an HTML page gives its text."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        plain = " ".join(_TAGS.sub(" ", body).split()) if "<" in body else " ".join(body.split())
        return plain[:_MAX_TEXT], ""
    return read_error_object(data)


def read_error_object(data: Any) -> tuple[str, str]:
    """(message, type) from a decoded error; nested errors are opened up."""
    for _ in range(4):
        if isinstance(data, dict) and isinstance(data.get("error"), dict):
            data = data["error"]
        elif isinstance(data, list) and data:
            data = data[0]
    if not isinstance(data, dict):
        return str(data)[:_MAX_TEXT], ""
    message = data.get("message") or data.get("detail") or data.get("msg") or data.get("error") or ""
    kind = " ".join(str(data[key]) for key in ("type", "code") if data.get(key))
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    return text[:_MAX_TEXT], kind


def kind_of(status: int | None, message: str, error_type: str) -> ProviderErrorKind:
    """The kind of a failure from its status (None: an error object inside a stream), text and type."""
    both = f"{error_type} {message}"
    if "content_filter" in both:
        return Kind.FILTER
    if status in {401, 403} or re.search(
        r"invalid_authentication|incorrect_api_key|access_terminated", error_type
    ):
        return Kind.AUTH
    if status == 402 or (status in {None, 429, 400} and _QUOTA.search(both)):
        return Kind.QUOTA
    if status in {None, 400, 413, 422, 500} and _OVERFLOW.search(both):
        return Kind.OVERFLOW
    if status == 404:
        return Kind.NOT_FOUND
    if status == 413:
        return Kind.TOO_LARGE
    if status == 429 or (status is None and re.search(r"rate_limit|overloaded|\b429\b", both)):
        return Kind.RATE
    if status in {408, 409, 499} or (status or 500) >= 500:
        return Kind.BAD_REQUEST if status is None and "invalid_request" in error_type else Kind.SERVER
    return Kind.BAD_REQUEST


_ADVICE = {
    Kind.AUTH: "Check the API key.",
    Kind.QUOTA: "The account's balance or plan is used up. Top up, or name another provider.",
    Kind.NOT_FOUND: "See `k3agent models`, and check --model and --base-url.",
    Kind.OVERFLOW: "The conversation does not fit the model's window.",
    Kind.TOO_LARGE: "The request is larger than the endpoint takes.",
    Kind.FILTER: "The endpoint's content filter refused it.",
}


def provider_error(
    status: int | None,
    message: str,
    error_type: str = "",
    *,
    base_url: str,
    headers: Mapping[str, str] | None = None,
    secrets: tuple[str, ...] = (),
) -> ProviderError:
    """The error for one failed answer. `status` None: the error came inside a stream that began with 200."""
    headers = headers or {}
    kind = kind_of(status, message, error_type)
    trace_id = headers.get("x-trace-id") or headers.get("x-request-id")
    where = f"HTTP {status}" if status is not None else "an error inside the stream"
    said = scrub(message, *secrets).strip() or "without a message"
    text = f"{base_url} answered {where}: {said}"
    if error_type and error_type not in message:
        text += f" [{error_type}]"
    advice = _ADVICE.get(kind, "")
    sister = other_region(base_url) if status == 401 else None
    if sister:
        advice += f" Keys of {sister} are separate: if yours is from there, use that host."
    if advice:
        text += f" {advice}"
    if trace_id:
        text += f" (trace id {trace_id})"
    return ProviderError(
        text,
        kind=kind,
        status=status,
        retry_after_s=parse_retry_after(headers.get("retry-after")),
        trace_id=trace_id,
    )


def is_refused(base_url: str, error: BaseException) -> bool:
    """Whether a port of this computer refused the connection: there is no server behind it."""
    if not is_loopback(base_url):
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return True
        # Several addresses of one name were tried; the library sums the failures up in words.
        if isinstance(cause, OSError) and "Connect call failed" in str(cause):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def nobody_listens(base_url: str) -> NobodyListensError:
    return NobodyListensError(
        f"no server listens at {base_url} (connection refused). Start it (the bundled one: k3agent serve),"
        " or correct --base-url",
        kind=Kind.CONNECTION,
    )


def unreachable(base_url: str, said: str, *, is_our_fault: bool) -> ProviderError:
    kind = Kind.BAD_REQUEST if is_our_fault else Kind.CONNECTION
    return ProviderError(f"{base_url} cannot be reached: {said}. Is the server running?", kind=kind)


def overflow_by(message: str) -> int | None:
    """How many tokens too many an overflow text says there were, if it gives numbers."""
    for pattern in _LIMITS:
        match = pattern.search(message)
        if match:
            return max(0, int(match.group(2)) - int(match.group(1)))
    return None
