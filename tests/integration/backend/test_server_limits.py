"""Clients that are slow, rude or broken: each gets the documented error, and the next request works."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.serving import MODEL, USER, Running, Start

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
ROUTE = "/v1/chat/completions"


@pytest.fixture(scope="module")
def open_server(start: Start) -> Running:
    """Without a key; clients may be slow for two seconds; texts of a megabyte."""
    return start("--client-timeout", "2", "--max-body-bytes", "1M", key=None)


@pytest.fixture(autouse=True)
def _the_next_request_works(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "open_server" in request.fixturenames:
        answer = request.getfixturevalue("open_server").post(max_tokens=2)
        assert answer.status_code == 200, answer.text


def talk(server: Running, data: bytes, timeout_s: float = 30) -> bytes:
    """Send raw bytes; all that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s) as sock:
        sock.sendall(data)
        return until_closed(sock)


def until_closed(sock: socket.socket) -> bytes:
    got = b""
    while piece := sock.recv(65536):
        got += piece
    return got


def body_of(answer: bytes) -> dict[str, Any]:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": [USER], "max_tokens": 2, **fields}).encode()


def whole(body: bytes, *headers: bytes) -> bytes:
    lines = [b"Content-Length: %d" % len(body), *headers]
    return HEAD + b"\r\n".join(lines) + b"\r\n\r\n" + body


def error_of(response: httpx.Response, status: int) -> str:
    assert response.status_code == status, response.text
    assert response.headers["x-trace-id"]
    error = response.json()["error"]
    assert error["type"] and error["message"]
    return error["message"]


def post_raw(server: Running, content: bytes) -> httpx.Response:
    return httpx.post(server.url + ROUTE, content=content, headers=server.headers, timeout=60)


@pytest.mark.parametrize("how", ["declared", "chunked"])
def test_a_huge_body_is_refused_with_words(open_server: Running, how: str) -> None:
    piece = b" " * (1 << 20)
    content: Any = piece * 100 if how == "declared" else iter([piece] * 3)
    response = httpx.post(open_server.url + ROUTE, content=content, timeout=60)
    assert "maximum size" in error_of(response, 413)


def test_tools_beyond_the_window_are_refused_before_they_are_cut_into_tokens(open_server: Running) -> None:
    function = {"name": "f", "description": "x " * 200_000}
    response = open_server.post(tools=[{"type": "function", "function": function}])
    assert "which are at least" in error_of(response, 400)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b'{"model": "\xc3"}', "utf-8"),
        (b"[]", "object"),
        (b"nul", "JSON"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": ' + b"1" * 5000 + b"}", "JSON"),
        (b'{"a":' * 150 + b"1" + b"}" * 150, "nested"),
        (b"[" * 100_000, "nested"),
        (chat(messages=[1] * 10), "object"),
        (chat(temperature=1e300), "temperature"),
        (chat(temperature="NaN"), "temperature"),
        (chat(max_tokens=10**30), "max_tokens"),
        (chat(max_tokens=-1), "max_tokens"),
        (chat(seed=2**70), "seed"),
        (chat(top_k=1.5), "top_k"),
        (chat(n=3), "invalid n"),
        (chat(top_logprobs=21, logprobs=True), "top_logprobs"),
        (chat(stop_token_ids=[-1]), "stop_token_ids"),
        (chat(messages=[{"role": "user", "content": "x " * 400_000}]), "context length"),
        (chat(messages=[{"role": "user", "content": "x" * 9000}]), "context length"),
        (chat(model="m" * 100_000), "not served"),
    ],
)
def test_bad_bodies(open_server: Running, content: bytes, words: str) -> None:
    response = post_raw(open_server, content)
    message = error_of(response, 404 if words == "not served" else 400)
    assert words in message
    assert len(message) <= 2000


def test_what_is_no_unicode_is_taken_as_text(open_server: Running) -> None:
    half = '{"model": "%s", "max_tokens": 2, "messages": [{"role": "user", "content": "\\ud800"}]%s}'
    assert post_raw(open_server, (half % (MODEL, "")).encode()).status_code == 200
    assert "not served" in error_of(post_raw(open_server, (half % ("\\ud800", "")).encode()), 404)
    stop = half % (MODEL, ', "stop": "\\ud800"')
    assert "no Unicode" in error_of(post_raw(open_server, stop.encode()), 400)


@pytest.mark.parametrize(
    "data",
    [b"", b"POST /v1", HEAD, HEAD + b"X-A: 1\r\nX-B: "],
    ids=["nothing", "half a line", "no end", "half a header"],
)
def test_a_head_that_does_not_come_is_not_waited_for(open_server: Running, data: bytes) -> None:
    begun = time.monotonic()
    answer = talk(open_server, data)
    assert time.monotonic() - begun >= 1
    if data:
        assert answer.startswith(b"HTTP/1.1 408")
        assert body_of(answer)["error"]["type"] == "invalid_request_error"


def test_a_dripping_head_is_cut(open_server: Running) -> None:
    with socket.create_connection(("127.0.0.1", open_server.port), timeout=30) as sock:
        sock.sendall(HEAD)
        with pytest.raises(OSError):
            for _ in range(200):
                sock.sendall(b"X-A: 1\r\n")
                time.sleep(0.1)


def test_a_body_that_stalls_is_answered(open_server: Running) -> None:
    answer = talk(open_server, whole(chat())[:-5])
    assert answer.startswith(b"HTTP/1.1 408")
    assert "too slowly" in body_of(answer)["error"]["message"]


def test_half_a_request_and_gone(open_server: Running) -> None:
    for cut in (10, 60, -5):
        with socket.create_connection(("127.0.0.1", open_server.port)) as sock:
            sock.sendall(whole(chat())[:cut])


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        HEAD + b"X: " + b"a" * 1_000_000 + b"\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=["tls", "no host", "negative", "two lengths", "long header", "bad chunk"],
)
def test_what_is_no_http_is_answered_in_json(open_server: Running, data: bytes) -> None:
    answer = talk(open_server, data)
    assert answer.startswith(b"HTTP/1.1 400"), answer[:200]
    assert b"x-trace-id: " in answer
    assert body_of(answer)["error"]["type"] == "invalid_request_error"


def test_pipelined_requests_are_answered_in_order(open_server: Running) -> None:
    requests = [whole(chat(seed=seed, temperature=1)) for seed in range(3)]
    requests[-1] = whole(chat(seed=2, temperature=1), b"Connection: close")
    answers = talk(open_server, b"".join(requests)).split(b"HTTP/1.1 200 OK\r\n")[1:]
    assert len(answers) == 3
    alone = [
        open_server.post(seed=seed, temperature=1, max_tokens=2).json()["choices"][0]["message"]
        for seed in range(3)
    ]
    assert [body_of(answer)["choices"][0]["message"] for answer in answers] == alone


def test_foreign_pages_and_names_are_refused_without_a_key(open_server: Running) -> None:
    foreign = (
        {"origin": "https://evil.example"}, {"host": "evil.example"}, {"origin": "null"},
        {"host": "evil.example:8333"}, {"host": "127.0.0.1.evil.example"}, {"host": "localhost.evil.example"},
        {"origin": "http://localhost:3000"}, {"origin": "http://127.0.0.1.evil.example"},
        {"sec-fetch-site": "cross-site"},
    )  # fmt: skip
    for headers in foreign:
        for path in ("/v1/models", "/health", "/metrics", "/v1/files"):
            response = httpx.get(open_server.url + path, headers=headers)
            assert "no API key" in error_of(response, 403)
        response = httpx.post(open_server.url + "/v1/chat/completions", headers=headers, content=chat())
        assert "no API key" in error_of(response, 403)
    for headers in ({"origin": open_server.url}, {"host": "localhost:1"}, {"host": "[::1]:1"}):
        assert httpx.get(open_server.url + "/v1/models", headers=headers).status_code == 200


def test_a_client_that_does_not_read_is_dropped(open_server: Running) -> None:
    body = chat(stream=True, max_tokens=7000, temperature=0)
    before = open_server.metric("k3agent_dropped_readers_total")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(60)
        sock.connect(("127.0.0.1", open_server.port))
        sock.sendall(whole(body))
        deadline = time.monotonic() + 90
        while open_server.metric("k3agent_dropped_readers_total") == before:
            assert time.monotonic() < deadline, "the client is still being served"
            time.sleep(0.2)
        with pytest.raises(ConnectionResetError):
            until_closed(sock)
    assert open_server.metric("k3agent_engine_running_requests") == 0
    assert open_server.metric("k3agent_open_chats") == 0


def test_more_requests_than_may_wait_get_429(start: Start, tiny_dir: Path) -> None:
    server = start("--max-seqs", "1")
    body = {"model": MODEL, "messages": [USER], "max_tokens": 7000, "temperature": 0, "stream": True}
    with httpx.stream("POST", server.url + ROUTE, json=body, headers=server.headers, timeout=60) as first:
        lines = first.iter_lines()
        # the iterator is kept: letting go of it would close the stream
        next(lines)
        refused = server.post(max_tokens=2)
        assert "overloaded" in error_of(refused, 429)
        assert refused.json()["error"]["type"] == "engine_overloaded_error"
        assert int(refused.headers["retry-after"]) >= 1
        assert next(lines) is not None
    deadline = time.monotonic() + 30
    while (again := server.post(max_tokens=2)).status_code == 429 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert again.status_code == 200
