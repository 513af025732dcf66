"""Equal beginnings of requests that come together are computed once."""

import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from k3agent.backend.chat.tokenizer import Tokenizer  # noqa: E402  # after the skip
from k3agent.backend.engine.engine import Engine  # noqa: E402
from k3agent.backend.engine.messages import (  # noqa: E402
    Add,
    EngineSettings,
    Exactness,
    Finished,
    Report,
    SamplingParams,
)
from k3agent.backend.engine.runner import Runner  # noqa: E402


def ids(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(250), k=length)


@pytest.mark.parametrize("mode", ["off", "always"])
@pytest.mark.parametrize("aborted", [None, "0"])
def test_only_the_first_computes_a_common_beginning(
    tiny_dir: Path, mode: Exactness, aborted: str | None
) -> None:
    settings = EngineSettings(
        model_dir=str(tiny_dir), threads=1, cache_bytes=8 << 20, grid=64, exactness=mode, max_model_len=1024
    )
    engine = Engine(Runner.load(settings)[0], Tokenizer.from_dir(tiny_dir), settings)
    common = ids(1, 300)
    prompts = [common + ids(2 + n, 20) for n in range(4)] + [ids(9, 40)]
    params = SamplingParams(temperature=0, max_tokens=3)
    for n, prompt in enumerate(prompts):
        engine.add(Add(request_id=str(n), token_ids=prompt, params=params))
    reports: list[Report] = engine.step()
    assert {s.request_id for s in engine.scheduler.running} == {"0", "4"}, (
        "who begins otherwise need not wait"
    )
    if aborted is not None:
        engine.abort(aborted)
    while engine.has_work:
        reports += engine.step()
        engine.cache.check()
    cached = {r.request_id: r.num_cached for r in reports if isinstance(r, Finished)}
    assert len(cached) == 5
    followers = ["1", "2", "3"] if aborted is None else ["2", "3"]
    assert all(cached[name] == 256 for name in followers), cached
