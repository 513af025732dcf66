"""Who is asked for tokens, and who is not trusted to give them: servers that say wrong things."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from k3agent.tools.mcp.oauth import AuthError, StoredLogin, TokenStore, discover, login
from k3agent.types import ServerSpec


@contextlib.contextmanager
def world(**change: Any) -> Iterator[tuple[ServerSpec, list[tuple[str, dict[str, list[str]]]]]]:
    """A server and its giver of tokens on loopback; `change` replaces fields of what they say."""
    posts: list[tuple[str, dict[str, list[str]]]] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self, status: int, body: Any, **headers: str) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
            posts.append((self.path, urllib.parse.parse_qs(body)))
            if self.path == "/mcp":
                place = f'Bearer resource_metadata="{base}/meta", scope="read"'
                self.answer(401, {}, www_authenticate=place)
            elif self.path == "/register":
                self.answer(201, {"client_id": "c1"})
            else:
                self.answer(*change.get("token", (200, {"access_token": "t1", "token_type": "Bearer"})))

        def do_GET(self) -> None:
            if self.path == "/meta":
                self.answer(
                    200, {"resource": change.get("resource", f"{base}/mcp"), "authorization_servers": [base]}
                )
            elif self.path == "/.well-known/oauth-authorization-server":
                said = {
                    "issuer": base,
                    "authorization_endpoint": f"{base}/authorize",
                    "token_endpoint": f"{base}/token",
                    "registration_endpoint": f"{base}/register",
                    "code_challenge_methods_supported": ["S256"],
                }
                self.answer(200, {**said, **change.get("metadata", {})})
            else:
                self.answer(404, {})

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    base = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield ServerSpec(name="far", url=f"{base}/mcp"), posts
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Kept:
    """A store in memory."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.store = TokenStore(load=lambda: self.text, save=self._save)

    def _save(self, text: str) -> None:
        self.text = text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"resource": "https://elsewhere.example/mcp"}, "another place"),
        ({"metadata": {"issuer": "https://elsewhere.example"}}, "not trusted"),
        ({"metadata": {"code_challenge_methods_supported": ["plain"]}}, "PKCE"),
        ({"metadata": {"code_challenge_methods_supported": None}}, "PKCE"),
        ({"metadata": {"token_endpoint": "http://example.org/token"}}, "no https"),
        ({"metadata": {"authorization_endpoint": "file:///etc/passwd"}}, "no https"),
    ],
)
async def test_what_does_not_fit_is_refused(change: dict[str, Any], words: str) -> None:
    with world(**change) as (spec, posts):
        with pytest.raises(AuthError, match=words):
            await discover(spec)
        assert [path for path, _ in posts] == ["/mcp"]


async def test_an_address_without_encryption_is_not_even_asked() -> None:
    with pytest.raises(AuthError, match="no https"):
        await discover(ServerSpec(name="far", url="http://example.org/mcp"))


def back(address: str, **change: str) -> int:
    """The browser is sent back, as the giver of tokens would; the status that it gets."""
    query = {
        name: values[0]
        for name, values in urllib.parse.parse_qs(urllib.parse.urlsplit(address).query).items()
    }
    told = {"code": "k1", "state": query["state"], **change}
    try:
        with urllib.request.urlopen(f"{query['redirect_uri']}?{urllib.parse.urlencode(told)}") as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


async def test_a_login_proves_its_code_and_ignores_other_people_s_answers() -> None:
    kept, statuses = Kept(), []

    async def browse(address: str) -> None:
        statuses.append(await asyncio.to_thread(back, address, state="another", code="stolen"))
        statuses.append(await asyncio.to_thread(back, address))

    with world() as (spec, posts):
        tasks: list[asyncio.Task[None]] = []
        await login(spec, kept.store, lambda address: tasks.append(asyncio.create_task(browse(address))))
        await asyncio.gather(*tasks)
        path, form = posts[-1]
        assert path == "/token"
        assert form["code"] == ["k1"]
        assert len(form["code_verifier"][0]) >= 43
        assert form["resource"] == [spec.url]
        assert statuses == [404, 200]
        assert await StoredLogin(spec, kept.store).header() == "Bearer t1"
        other = ServerSpec(name="far", url="https://elsewhere.example/mcp")
        assert await StoredLogin(other, kept.store).header() is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"error": "access_denied", "code": ""}, "access_denied"),
        ({"iss": "https://other.example"}, "other.example"),
    ],
)
async def test_a_refused_or_foreign_answer_ends_the_login(change: dict[str, str], words: str) -> None:
    kept = Kept()
    with world() as (spec, posts):
        tasks: list[asyncio.Task[int]] = []
        change = {name: value for name, value in change.items() if value}
        drop = {"code": ""} if "error" in change else {}

        def show(address: str) -> None:
            tasks.append(asyncio.create_task(asyncio.to_thread(back, address, **change, **drop)))

        with pytest.raises(AuthError, match=words):
            await login(spec, kept.store, show)
        await asyncio.gather(*tasks)
        assert all(path != "/token" for path, _ in posts)
    assert kept.text == ""


async def test_a_login_that_cannot_be_renewed_is_none() -> None:
    with world(token=(400, {"error": "invalid_grant"})) as (spec, _):
        known = {
            "url": spec.url,
            "access_token": "old",
            "refresh_token": "r",
            "ends_at": 1.0,
            "token_endpoint": spec.url.replace("/mcp", "/token"),
            "client": {"client_id": "c1"},
        }
        kept = Kept(json.dumps(known))
        stored = StoredLogin(spec, kept.store)
        assert await stored.header() == "Bearer old"
        assert not await stored.renew()
        assert json.loads(kept.text) == known


async def test_what_another_process_has_renewed_is_taken_over() -> None:
    with world() as (spec, posts):
        known = {"url": spec.url, "access_token": "old", "refresh_token": "r", "ends_at": 1e12}
        kept = Kept(json.dumps(known))
        stored = StoredLogin(spec, kept.store)
        assert await stored.header() == "Bearer old"
        assert stored._known is not None
        stored._known["ends_at"] = 1.0
        kept.text = json.dumps({**known, "access_token": "new"})
        assert await stored.header() == "Bearer new"
        assert not posts


async def test_what_is_no_address_is_refused_in_words() -> None:
    with (
        world(metadata={"token_endpoint": "https://[half"}) as (spec, _),
        pytest.raises(AuthError, match="no add"),
    ):
        await discover(spec)
