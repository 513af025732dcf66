"""Packing, the stage plan, and workers that die."""

import random
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import pytest

from k3agent.backend.training.data import (
    SYNTHETIC,
    Feed,
    FeedError,
    FeedSettings,
    StagePlan,
    mixed_episodes,
    pack,
)


@dataclass
class Document:
    token_ids: list[int]
    loss_weight: list[float]


def test_labels_and_weights_are_those_of_the_next_token_of_the_same_document() -> None:
    documents = [("a", Document([1, 2, 3], [0.0, 0.1, 1.0])), ("b", Document([7, 8], [1.0, 1.0]))]
    batch = pack(cycle(documents), 25, 100, pad_id=9)
    assert batch.offsets.tolist()[:4] == [0, 3, 5, 8]
    assert batch.token_ids[:5].tolist() == [1, 2, 3, 7, 8]
    assert batch.labels[:2].tolist() == [2, 3]
    assert batch.weights[:5].tolist() == pytest.approx([0.1, 1.0, 0.0, 1.0, 0.0])
    assert batch.position[:5].tolist() == [0, 1, 2, 0, 1]
    # Fewer than 16 tokens are left after the fourth document: filled without loss.
    assert batch.offsets.tolist()[-2:] == [10, 25]
    assert batch.weights[10:].sum() == 0
    assert set(batch.token_ids[10:].tolist()) == {9}
    assert batch.stages == {"a": 2, "b": 2}


def test_long_documents_are_cut_to_the_limit_and_the_room() -> None:
    batch = pack(cycle([("a", Document(list(range(60)), [1.0] * 60))]), 70, 40, pad_id=0)
    assert batch.offsets.tolist() == [0, 40, 70]
    assert batch.weights[39] == 0
    assert batch.weights[69] == 0
    assert batch.token_ids[40] == 0
    assert batch.token_ids[69] == 29


def test_a_shared_beginning_stands_once() -> None:
    beginning = list(range(20))
    documents = [
        ("a", Document([*beginning, *own], [0.0] * 20 + [0.05] * len(own)))
        for own in ([50, 51, 52], [60] * 90)
    ]
    batch = pack(cycle(documents), 60, 50, pad_id=9, beginning=np.array(beginning))
    # The second document is cut to 50 tokens, of which 30 are its own; what is left is too short for another.
    assert batch.offsets.tolist() == [0, 20, 23, 53, 60]
    assert batch.token_ids[:23].tolist() == [*beginning, 50, 51, 52]
    assert batch.labels[20:22].tolist() == [51, 52]
    assert batch.weights[:20].sum() == 0
    assert batch.weights[20:23].tolist() == pytest.approx([0.05, 0.05, 0.0])
    assert batch.position[20:24].tolist() == [0, 1, 2, 0]
    assert batch.shared == 20


def test_a_document_without_the_shared_beginning_is_an_error() -> None:
    with pytest.raises(ValueError, match="beginning"):
        pack(cycle([("a", Document([1, 2, 3], [1.0] * 3))]), 60, 50, pad_id=9, beginning=np.array([1, 3]))


def test_stage_plan() -> None:
    plan = StagePlan.parse("0:short,0.05:broad,0.8:broad=1+long=3")
    assert plan.weights(0.0) == {"short": 1.0}
    assert plan.weights(0.5) == {"broad": 1.0}
    assert plan.weights(1.0) == {"broad": 1.0, "long": 3.0}
    rng = random.Random(0)
    drawn = [plan.choose(0.9, rng) for _ in range(400)]
    assert 0.65 < drawn.count("long") / 400 < 0.85


@pytest.mark.parametrize("text", ["", "0.1:a", "0:", "x:a"])
def test_bad_stage_plans_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        StagePlan.parse(text)


def settings(workers: int, **changes: object) -> FeedSettings:
    values = {
        "source": SYNTHETIC,
        "plan": StagePlan.parse("0:64"),
        "num_tokens": 256,
        "max_length": 128,
        "pad_id": 63,
        "seed": 5,
        "num_workers": workers,
        "depth": 4,
        "max_failures": 3,
        **changes,
    }
    return FeedSettings(**values)


def test_seed_and_worker_decide_the_episodes() -> None:
    def first(worker: int, seed: int) -> list[list[int]]:
        episodes = mixed_episodes(settings(1), worker, seed, lambda: 0.0)
        return [np.asarray(episode.token_ids).tolist() for _, episode in islice(episodes, 3)]

    assert first(0, 5) == first(0, 5)
    assert first(0, 5) != first(1, 5)
    assert first(0, 5) != first(0, 6)


def test_batches_come_from_processes() -> None:
    feed = Feed(settings(2))
    try:
        batches = [feed.next(60) for _ in range(12)]
    finally:
        feed.close()
    assert all(batch.offsets[-1] == 256 for batch in batches)
    assert len({batch.token_ids.tobytes() for batch in batches}) == 12
    assert feed.num_failures == 0


def test_a_reader_that_is_ahead_gets_earlier_batches_a_bounded_number_of_times() -> None:
    feed = Feed(settings(1, max_uses=3))
    try:
        uses: dict[bytes, int] = {}
        for _ in range(4000):
            key = feed.next(60).token_ids.tobytes()
            uses[key] = uses.get(key, 0) + 1
    finally:
        feed.close()
    assert feed.num_repeated > 0
    assert feed.num_batches == len(uses)
    assert max(uses.values()) <= 3


def test_a_worker_that_dies_is_replaced_until_too_many_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K3AGENT_SYNTHETIC_FAIL", "16")
    feed = Feed(settings(1))
    seen = []
    try:
        with pytest.raises(FeedError, match="have ended"):
            for _ in range(100):
                seen.append(feed.next(60))
    finally:
        feed.close()
    # Each life gives a batch or two; the first worker and three replacements were tried, each with a new
    # seed.
    assert feed.num_failures == 4
    assert len(seen) >= 4
    assert len({batch.token_ids.tobytes() for batch in seen}) == len(seen)


def test_a_worker_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K3AGENT_SYNTHETIC_HANG", "1")
    feed = Feed(settings(1, stall_s=2.0))
    try:
        # The first worker has seed 5 and hangs, the next has 6.
        assert feed.next(60).offsets[-1] == 256
    finally:
        feed.close()
    assert feed.num_failures == 1
