"""Stop strings, usage, chunks, keep-alive and metrics."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3agent.backend.errors import BackendError, BadRequestError, EngineUnavailableError
from k3agent.backend.server.assembly import StopStrings, make_usage
from k3agent.backend.server.errors import HttpError, error_body, status_of
from k3agent.backend.server.metrics import Metrics
from k3agent.backend.server.stream import with_keep_alive


@given(
    text=st.text("abc", max_size=30),
    stops=st.lists(st.text("abc", min_size=1, max_size=3), max_size=3),
    sizes=st.lists(st.integers(1, 4), max_size=30),
)
def test_stop_strings_cut_at_the_first_one(text: str, stops: list[str], sizes: list[int]) -> None:
    matcher = StopStrings(tuple(stops))
    given_out = ""
    position = 0
    for size in [*sizes, len(text)]:
        if not matcher.is_hit:
            given_out += matcher.feed(text[position : position + size])
            position += size
    if not matcher.is_hit:
        given_out += matcher.flush()
    places = [text.find(s) for s in stops if s in text]
    if not places:
        assert given_out == text
    else:
        assert matcher.is_hit
        # a longer stop string that began earlier may be found later: the cut is where the first one was
        # complete
        assert text.startswith(given_out)
        assert not any(s in given_out for s in stops)
        assert any(text[len(given_out) :].startswith(s) for s in stops)


def test_usage_adds_up() -> None:
    usage = make_usage(100, 20, 103, 7)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] == 120
    assert usage["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] == 100
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 7


async def test_silence_is_filled() -> None:
    async def slow() -> AsyncIterator[str]:
        yield "a"
        await asyncio.sleep(0.15)
        yield "b"

    got = [text async for text in with_keep_alive(slow(), 0.05)]
    assert got[0] == "a"
    assert got[-1] == "b"
    assert set(got[1:-1]) == {": keep-alive\n\n"}
    assert len(got) >= 3


async def test_closing_the_stream_closes_the_source() -> None:
    closed = asyncio.Event()

    async def source() -> AsyncIterator[str]:
        try:
            yield "a"
            await asyncio.sleep(60)
        finally:
            closed.set()

    stream = with_keep_alive(source(), 0.01)
    assert await anext(stream) == "a"
    assert await anext(stream) == ": keep-alive\n\n"
    await stream.aclose()  # type: ignore[attr-defined]
    assert closed.is_set()


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BadRequestError("x"), 400, "invalid_request_error"),
        (EngineUnavailableError("x"), 503, "server_unavailable"),
        (BackendError("x"), 500, "server_error"),
        (HttpError(404, "resource_not_found_error", "x"), 404, "resource_not_found_error"),
    ],
)
def test_errors_have_type_and_message(error: Exception, status: int, kind: str) -> None:
    assert status_of(error) == status
    assert error_body(error)["error"] == {"message": "x", "type": kind, "code": kind}


def test_unexpected_errors_tell_nothing() -> None:
    assert status_of(ValueError("secret")) == 500
    assert "secret" not in str(error_body(ValueError("secret")))


def test_metrics_are_prometheus_text() -> None:
    metrics = Metrics()
    metrics.answers[200] += 2
    metrics.first_token_s.add(0.3)
    text = metrics.text({"requests": 2.0, "free_pages": 5.0}, 1, True)
    assert 'k3agent_http_answers_total{status="200"} 2' in text
    assert "k3agent_engine_requests_total 2" in text
    assert 'k3agent_first_token_seconds_bucket{le="0.5"} 1' in text
    for line in text.splitlines():
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2
