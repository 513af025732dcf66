"""Who may ask: the key, and for servers without one, only pages and programs of this machine."""

import hashlib
import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.requests import Request

from k3agent.backend.server.errors import HttpError


class Access:
    """Checks each request. Without a key the server is for this machine, which includes its browser: a page
    of another site must not use it, neither directly nor under a name that leads here.
    """

    def __init__(self, api_key: str | None) -> None:
        self._digest = _digest(api_key) if api_key is not None else None

    def check(self, request: Request) -> None:
        """Raise HttpError 401 or 403."""
        if self._digest is None:
            self._check_local(request)
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if not hmac.compare_digest(_digest(given), self._digest):
            raise HttpError(
                401,
                "invalid_authentication_error",
                "The API key appears to be missing or invalid; send it as `Authorization: Bearer KEY`.",
            )

    def check_name(self, request: Request) -> None:
        """For what is told without the key: pages of other sites may not learn it either."""
        if self._digest is None:
            self._check_local(request)

    @staticmethod
    def _check_local(request: Request) -> None:
        """The name under which it was asked is this machine's, and a page that asks is its own."""
        host = request.headers.get("host", "localhost")
        origin = request.headers.get("origin")
        is_own = origin is None or origin.partition("://")[2] == host
        is_foreign = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if not is_loopback(_host_of(f"//{host}")) or not is_own or is_foreign:
            raise HttpError(
                403,
                "permission_denied_error",
                "this server has no API key and answers only this machine; start it with --api-key to use it"
                " from pages or under other names",
            )


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Is it `localhost` or a loopback address? Names are not resolved."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _digest(key: str) -> bytes:
    """Of one length, so that comparing tells nothing about the key's."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
