"""From ids to events: stop strings and tokens, log-probabilities, streams that agree with whole answers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tiny_tokenizer import write_tiny_tokenizer

from k3agent.backend.chat.parser import ReasoningDelta, TextDelta
from k3agent.backend.chat.template import render_assistant
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.engine.messages import Finished, Generated, SamplingParams, TokenLogprobs
from k3agent.backend.server.assembly import Assembly, Done
from k3agent.backend.server.logprobs import Scored
from k3agent.backend.server.metrics import Metrics
from k3agent.backend.server.schema import ChatRequest
from k3agent.backend.server.stream import Outbox, SlowReaderError


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder)
    return Tokenizer.from_dir(folder)


FINISHED = Finished(
    request_id="r",
    reason="stop",
    num_prompt=10,
    num_cached=4,
    num_generated=5,
    queued_s=0.1,
    prefill_s=0.5,
    decode_s=0.4,
    num_cached_by_tier={"device": 4},
)


CONTENT = "héllo wörld"


def answered(
    tokenizer: Tokenizer,
    sizes: list[int],
    reasoning: str = "why",
    **params: Any,
) -> tuple[list[Any], Done]:
    """Events and end of an answer whose ids come in pieces of the given sizes."""
    request = ChatRequest(model="m", messages=[], params=SamplingParams(**params))
    answer = Assembly(tokenizer, request, "think")
    ids = render_assistant(
        tokenizer, {"role": "assistant", "content": CONTENT, "reasoning_content": reasoning}
    )
    events: list[Any] = []
    begin = 0
    for size in [*sizes, len(ids)]:
        piece = ids[begin : begin + size]
        begin += size
        scores = None
        if request.params.logprobs is not None:
            scores = [TokenLogprobs(i, -float(i), [(i, -float(i)), (0, float("-inf"))]) for i in piece]
        if piece and not answer.is_over:
            events += answer.feed(Generated("r", piece, scores))
    events += answer.end()
    return events, answer.done(10, 4, FINISHED)


def text_of(events: list[Any], kind: type) -> str:
    plain = [event.event if isinstance(event, Scored) else event for event in events]
    return "".join(event.text for event in plain if isinstance(event, kind))


SIZES = st.lists(st.integers(1, 4), max_size=40)


@given(sizes=SIZES, stop=st.sampled_from([(), ("wör",), ("o w", "zz"), ("h",), ("d",)]), scored=st.booleans())
def test_streams_agree_with_whole_answers(
    tokenizer: Tokenizer, sizes: list[int], stop: tuple[str, ...], scored: bool
) -> None:
    events, done = answered(tokenizer, sizes, stop=stop, logprobs=1 if scored else None)
    content = CONTENT
    for text in stop:
        content = content.partition(text)[0] if text in content else content
    assert text_of(events, TextDelta) == done.message["content"] == content
    assert text_of(events, ReasoningDelta) == done.message["reasoning_content"] == "why"
    assert done.finish_reason == "stop"
    if not scored:
        assert done.logprobs is None
        return
    assert done.logprobs is not None
    streamed = [entry for event in events if isinstance(event, Scored) for entry in event.entries]
    assert streamed == [*done.logprobs["reasoning_content"], *done.logprobs["content"]]
    told = b"".join(bytes(entry["bytes"]) for entry in done.logprobs["content"])
    assert told.decode(errors="replace") == content
    assert all(entry["top_logprobs"][1]["logprob"] == -9999 for entry in streamed)


def test_a_stop_token_ends_the_answer_and_is_not_shown(tokenizer: Tokenizer) -> None:
    (token,) = tokenizer.encode("w")
    _, done = answered(tokenizer, [], stop_token_ids=(token,))
    # the reasoning, `why`, begins with it
    assert (done.message["reasoning_content"], done.message["content"]) == ("", None)
    assert done.finish_reason == "stop"
    _, done = answered(tokenizer, [], reasoning="", stop_token_ids=(token,))
    assert done.message["content"] == "héllo "


def test_usage_and_metrics_of_an_end(tokenizer: Tokenizer) -> None:
    _, done = answered(tokenizer, [])
    assert done.usage["prompt_tokens_details"] == {
        "cached_tokens": 4,
        "cached_tokens_by_tier": {"device": 4},
    }
    metrics = Metrics()
    metrics.ended(done, 1.0)
    engine = {
        "hit_tokens_disk": 7.0,
        "lost_tokens_evicted": 3.0,
        "checkpoint_bytes_exact": 5.0,
        "tier_bytes_host": 1e15 + 1,
        "requests": 1.0,
        "free_pages": 2.5,
    }
    lines = metrics.text(engine, 0, True).splitlines()
    for line in (
        'k3agent_finish_total{reason="stop"} 1',
        f'k3agent_finish_tokens_total{{reason="stop"}} {done.usage["completion_tokens"]}',
        'k3agent_prefix_hit_tokens_total{tier="disk"} 7',
        'k3agent_prefix_lost_tokens_total{cause="evicted"} 3',
        'k3agent_checkpoint_bytes{class="exact"} 5',
        'k3agent_cache_tier_bytes{tier="host"} 1000000000000001',
        "k3agent_engine_requests_total 1",
        "k3agent_engine_free_pages 2.500000",
        'k3agent_prefill_tokens_per_second_bucket{le="30"} 1',
        'k3agent_decode_tokens_per_second_bucket{le="10"} 1',
        'k3agent_decode_tokens_per_second_bucket{le="3"} 0',
    ):
        assert line in lines, line
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(names) == len(set(names))


async def test_an_outbox_gives_out_all_that_waits_and_then_ends() -> None:
    outbox = Outbox(100)
    outbox.put("a")
    outbox.put("é\ud800")
    assert await outbox.take() == "aé?".encode()
    later = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    assert not later.done()
    outbox.put("b")
    outbox.close()
    assert (await later, await outbox.take()) == (b"b", b"")


async def test_an_outbox_that_nobody_empties_refuses() -> None:
    outbox = Outbox(10)
    outbox.put("x" * 10)
    await outbox.take()
    outbox.put("x" * 10)
    with pytest.raises(SlowReaderError):
        outbox.put("x")
