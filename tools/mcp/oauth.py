"""Signing in at a server with an address: OAuth 2.1, codes with PKCE, clients that register themselves.

A session only uses and renews what `login` has stored: a browser opens where the user has asked for it and
nowhere else. Tokens go to the server that they are for (RFC 8707), over HTTPS or to this machine.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import logging
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from k3agent.errors import ToolError
from k3agent.tools.mcp.http import PLAIN, bounded, refuse_packed
from k3agent.types import JsonObject, ServerSpec

log = logging.getLogger(__name__)

LOGIN_WAIT_S = 300.0
HTTP_S = 20.0
# A token that ends so soon is renewed before it is used.
SKEW_S = 30.0
MAX_BODY_BYTES = 1 << 20
LOOPBACK = ("127.0.0.1", "localhost", "::1")
DONE_PAGE = "<!doctype html><title>k3agent</title><p>k3agent is signed in. You can close this page."
FAILED_PAGE = "<!doctype html><title>k3agent</title><p>k3agent was not signed in. The terminal says why."


class AuthError(ToolError):
    """Signing in failed; the text says where and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Of the server that gives tokens. `resource` is what they are for."""

    issuer: str
    authorize: str
    token: str
    register: str
    resource: str
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStore:
    """Where one server's tokens are kept: a JSON text, '' for none."""

    load: Callable[[], str]
    save: Callable[[str], None]


class StoredLogin:
    """What `login` has stored, used and renewed; an `Authority` of http.py."""

    def __init__(self, spec: ServerSpec, store: TokenStore) -> None:
        self._spec = spec
        self._store = store
        self._known: JsonObject | None = None
        self._lock = asyncio.Lock()

    async def header(self) -> str | None:
        async with self._lock:
            if self._known is None:
                self._known = await asyncio.to_thread(self._load)
            if _is_over(self._known):
                # Another process may have renewed it, and a token for renewal often counts only once.
                self._known = await asyncio.to_thread(self._load)
                if _is_over(self._known):
                    await self._renew()
            token = self._known.get("access_token")
            return f"Bearer {token}" if isinstance(token, str) and token else None

    async def renew(self) -> bool:
        async with self._lock:
            # Another process may have renewed it meanwhile.
            old = self._known or {}
            self._known = await asyncio.to_thread(self._load)
            if self._known.get("access_token") not in (None, old.get("access_token")):
                return True
            return await self._renew()

    async def _renew(self) -> bool:
        known = self._known or {}
        token = known.get("refresh_token")
        if not isinstance(token, str) or not token:
            return False
        form = {"grant_type": "refresh_token", "refresh_token": token, "resource": known.get("resource", "")}
        try:
            fresh = await request_token(str(known.get("token_endpoint", "")), form, known.get("client", {}))
        except AuthError as error:
            log.warning("the login at MCP server %s cannot be renewed: %s", self._spec.name, error)
            return False
        self._known = {**known, **fresh}
        await asyncio.to_thread(self._store.save, json.dumps(self._known))
        return True

    def _load(self) -> JsonObject:
        try:
            known = json.loads(self._store.load() or "{}")
        except ValueError:
            return {}
        # What was stored for another address under the same name stays unused.
        return known if isinstance(known, dict) and known.get("url") == self._spec.url else {}


def _is_over(known: JsonObject) -> bool:
    ends_at = known.get("ends_at")
    return isinstance(ends_at, int | float) and time.time() > ends_at - SKEW_S


# --- logging in ---------------------------------------------------------------------------------------------


async def login(spec: ServerSpec, store: TokenStore, show: Callable[[str], None]) -> None:
    """Ask the user in a browser, then store the tokens. `show` is given the address to open. Raises
    AuthError.
    """
    endpoints = await discover(spec)
    verifier = secrets.token_urlsafe(64)
    state = secrets.token_urlsafe(24)
    answer: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
    listener = await asyncio.start_server(
        lambda reader, writer: _callback(reader, writer, state, answer), "127.0.0.1", 0
    )
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        redirect = f"http://127.0.0.1:{port}/callback"
        client = {"client_id": spec.client_id} if spec.client_id else await _register(endpoints, redirect)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")
        scope = spec.scope or endpoints.scope
        query = {
            "response_type": "code",
            "client_id": str(client["client_id"]),
            "redirect_uri": redirect,
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "resource": endpoints.resource,
            **({"scope": scope} if scope else {}),
        }
        joint = "&" if "?" in endpoints.authorize else "?"
        show(f"{endpoints.authorize}{joint}{urlencode(query)}")
        try:
            async with asyncio.timeout(LOGIN_WAIT_S):
                found = await answer
        except TimeoutError as error:
            raise AuthError(f"nobody signed in within {LOGIN_WAIT_S:.0f} s; try again") from error
    if "code" not in found:
        said = found.get("error_description") or found.get("error") or "no code"
        raise AuthError(f"{endpoints.issuer} refused: {said[:300]}")
    if found.get("iss") not in (None, endpoints.issuer):
        raise AuthError(f"the answer comes from {found['iss'][:200]}, not from {endpoints.issuer}")
    form = {
        "grant_type": "authorization_code",
        "code": found["code"],
        "redirect_uri": redirect,
        "code_verifier": verifier,
        "resource": endpoints.resource,
    }
    tokens = await request_token(endpoints.token, form, client)
    kept = {
        "url": spec.url,
        "client": client,
        "token_endpoint": endpoints.token,
        "resource": endpoints.resource,
        **tokens,
    }
    await asyncio.to_thread(store.save, json.dumps(kept))


async def _callback(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    state: str,
    answer: asyncio.Future[dict[str, str]],
) -> None:
    """The browser comes back. Requests without our own state are somebody else's."""
    try:
        async with asyncio.timeout(10.0):
            head = await reader.readuntil(b"\r\n\r\n")
    except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
        writer.close()
        return
    words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    try:
        place = urlsplit(words[1] if len(words) == 3 else "")
    except ValueError:
        place = urlsplit("")
    query = {name: values[0] for name, values in parse_qs(place.query).items()}
    is_ours = place.path == "/callback" and hmac.compare_digest(
        query.get("state", "").encode(), state.encode()
    )
    status, page = (
        ("200 OK", DONE_PAGE if "code" in query else FAILED_PAGE) if is_ours else ("404 Not Found", "")
    )
    body = page.encode()
    writer.write(
        f"HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
        "connection: close\r\n\r\n".encode()
        + body
    )
    try:
        await writer.drain()
    except OSError:
        log.debug("the browser left before it saw the page")
    writer.close()
    if is_ours and not answer.done():
        answer.set_result(query)


async def _register(endpoints: Endpoints, redirect: str) -> JsonObject:
    if not endpoints.register:
        raise AuthError(
            f"{endpoints.issuer} lets no programs register themselves: register k3agent there by hand and"
            " give its client id (`k3agent mcp add --client-id ID`)"
        )
    wish = {
        "client_name": "k3agent",
        "redirect_uris": [redirect],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
        **({"scope": endpoints.scope} if endpoints.scope else {}),
    }
    client = await _json("POST", endpoints.register, json=wish)
    if not isinstance(client.get("client_id"), str):
        raise AuthError(f"{endpoints.register} gave no client id")
    kept = ("client_id", "client_secret", "token_endpoint_auth_method")
    return {name: client[name] for name in kept if client.get(name)}


async def request_token(endpoint: str, form: dict[str, str], client: JsonObject) -> JsonObject:
    """Tokens, with the time at which they end. Raises AuthError."""
    _check_address(endpoint)
    form = {name: value for name, value in form.items() if value}
    form["client_id"] = str(client.get("client_id", ""))
    headers = {}
    secret = client.get("client_secret")
    if isinstance(secret, str) and secret:
        if client.get("token_endpoint_auth_method") == "client_secret_basic":
            pair = f"{quote(form.pop('client_id'), safe='')}:{quote(secret, safe='')}"
            headers["authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        else:
            form["client_secret"] = secret
    answer = await _json("POST", endpoint, data=form, headers=headers)
    token = answer.get("access_token")
    if not isinstance(token, str) or str(answer.get("token_type", "bearer")).lower() != "bearer":
        raise AuthError(f"{endpoint} gave no bearer token")
    found: JsonObject = {"access_token": token, "ends_at": None}
    ends_in = answer.get("expires_in")
    if isinstance(ends_in, int | float | str) and str(ends_in).replace(".", "", 1).isdecimal():
        found["ends_at"] = time.time() + float(ends_in)
    if isinstance(answer.get("refresh_token"), str):
        found["refresh_token"] = answer["refresh_token"]
    return found


# --- who gives tokens ---------------------------------------------------------------------------------------


async def discover(spec: ServerSpec) -> Endpoints:
    """Ask the server who gives tokens for it, and that one for its addresses. Raises AuthError."""
    import httpx  # lazy: 0.15 s

    _check_address(spec.url)
    try:
        async with asyncio.timeout(HTTP_S), httpx.AsyncClient(timeout=HTTP_S) as client:
            headers = {"accept": "application/json, text/event-stream"}
            ping = {"jsonrpc": "2.0", "method": "ping", "id": 1}
            # Only the head counts; the body of a server that takes everybody may never end.
            async with client.stream("POST", spec.url, json=ping, headers=headers) as refused:
                wanted = refused.headers.get("www-authenticate", "")
            named, scope = _parameter(wanted, "resource_metadata"), _parameter(wanted, "scope")
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        raise AuthError(f"{spec.url} cannot be reached: {error or type(error).__name__}") from error
    place = urlsplit(spec.url)
    origin, path = f"{place.scheme}://{place.netloc}", place.path.rstrip("/")
    well_known = f"{origin}/.well-known/oauth-protected-resource"
    about = await _first([named] if named else [f"{well_known}{path}", well_known])
    resource = str(about.get("resource") or spec.url)
    _check_address(resource)
    if not _covers(resource, spec.url):
        raise AuthError(f"{spec.url} says that its tokens are for {resource[:200]}, which is another place")
    issuer = next(iter(_list(about, "authorization_servers")), origin)
    metadata = await _first(_metadata_places(issuer))
    if not metadata and not about:
        # Servers of before the discovery have fixed places.
        places = {"authorization": "authorize", "token": "token", "registration": "register"}
        metadata = {f"{what}_endpoint": f"{origin}/{name}" for what, name in places.items()}
        metadata["issuer"] = issuer
    elif "S256" not in _list(metadata, "code_challenge_methods_supported"):
        raise AuthError(
            f"{issuer} does not say that it knows PKCE (S256), without which k3agent does not sign in"
        )
    if str(metadata.get("issuer", "")).rstrip("/") != issuer.rstrip("/"):
        raise AuthError(f"{issuer} calls itself {str(metadata.get('issuer'))[:200]}; that is not trusted")
    found = Endpoints(
        issuer=str(metadata["issuer"]),
        authorize=str(metadata.get("authorization_endpoint", "")),
        token=str(metadata.get("token_endpoint", "")),
        register=str(metadata.get("registration_endpoint") or ""),
        resource=resource,
        scope=scope or " ".join(_list(about, "scopes_supported")),
    )
    for name, address in asdict(found).items():
        if name in ("authorize", "token") or (name == "register" and address):
            _check_address(address)
    return found


def _list(data: JsonObject, name: str) -> list[str]:
    value = data.get(name)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _metadata_places(issuer: str) -> list[str]:
    _check_address(issuer)
    place = urlsplit(issuer)
    origin, path = f"{place.scheme}://{place.netloc}", place.path.rstrip("/")
    names = ("oauth-authorization-server", "openid-configuration")
    places = [f"{origin}/.well-known/{name}{path}" for name in names]
    return [*places, f"{origin}{path}/.well-known/openid-configuration"] if path else places


def _covers(resource: str, url: str) -> bool:
    """Whether a token for `resource` is one for `url`: the same place, or above it."""
    outer, inner = urlsplit(resource), urlsplit(url)
    same = (outer.scheme, outer.netloc.lower()) == (inner.scheme, inner.netloc.lower())
    return same and f"{inner.path.rstrip('/')}/".startswith(f"{outer.path.rstrip('/')}/")


def _parameter(header: str, name: str) -> str:
    found = re.search(rf'\b{name}\s*=\s*(?:"([^"]*)"|([^\s,]+))', header)
    return (found[1] or found[2] or "") if found else ""


def _check_address(url: str) -> None:
    """Tokens and codes travel encrypted, or not at all."""
    try:
        place = urlsplit(url)
    except ValueError as error:
        raise AuthError(f"{url[:200]!r} is no address: {error}") from error
    if place.scheme == "https" and place.hostname:
        return
    if place.scheme == "http" and place.hostname in LOOPBACK:
        return
    raise AuthError(f"{url[:200]!r} is no https address; k3agent sends no tokens there")


async def _first(places: list[str]) -> JsonObject:
    """The first document that is there; {} for none."""
    for place in places:
        try:
            return await _json("GET", place)
        except AuthError as error:
            log.info("%s", error)
    return {}


async def _json(method: str, url: str, **options: Any) -> JsonObject:
    """A JSON object over HTTP. Redirects are not followed: they could lead codes elsewhere."""
    import httpx  # lazy: 0.15 s

    _check_address(url)
    try:
        hooks = refuse_packed()
        async with (
            asyncio.timeout(HTTP_S),
            httpx.AsyncClient(timeout=HTTP_S, headers=PLAIN, event_hooks=hooks) as client,
            client.stream(method, url, **options) as answer,
        ):
            body = await bounded(answer, MAX_BODY_BYTES)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        raise AuthError(f"{url} cannot be reached: {str(error) or type(error).__name__}") from error
    try:
        data = json.loads(body) if len(body) <= MAX_BODY_BYTES else None
    except (ValueError, RecursionError):
        data = None
    if answer.status_code >= 300 or not isinstance(data, dict):
        said = data.get("error_description") or data.get("error") if isinstance(data, dict) else ""
        raise AuthError(f"{url} answered HTTP {answer.status_code} {str(said or '')[:200]}".rstrip())
    return data
