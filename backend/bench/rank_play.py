"""Plays requests on an engine and prints what came of them, for `tokens` and `graphs` of `bench.ranks`.

Two lives of one engine: in the first one prompts share a beginning, strangers drive them out of the device,
and they come back to it from host memory; the second one finds them on disk. Sizes of the cache are the same
whatever the number of ranks, so that evictions fall alike.
"""

import argparse
import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from k3agent.backend.bench.rank_results import is_symmetric
from k3agent.backend.cache.disk_writer import at_once
from k3agent.backend.cache.tiers import PageRecord, StateRecord
from k3agent.backend.cache.tiers_disk import DiskTier
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.engine.engine import Engine
from k3agent.backend.engine.messages import Add, EngineSettings, Failed, Finished, Generated, SamplingParams
from k3agent.backend.engine.runner import Runner
from k3agent.backend.errors import BackendError

NUM_PAGES, NUM_SLOTS = 20, 10
WAVES, REQUESTS, STRANGERS = 3, 4, 1
"""The wave of strangers is number 1."""
_IDS = 190
"""Of the tokens in prompts: all tiny models have so many."""


def requests(wave: int) -> list[Add]:
    """Of one wave; half of them sampled, and all with something to guess from."""
    dice = random.Random(3)
    shared = [dice.randrange(_IDS) for _ in range(2 * PAGE_SIZE + 20)]
    dice = random.Random(f"wave {wave}")
    made = []
    for number in range(REQUESTS):
        length = 4 * PAGE_SIZE + 40 if wave == STRANGERS else 20 * number + 1
        prompt = shared * (wave != STRANGERS) + [dice.randrange(_IDS) for _ in range(length)]
        prompt += prompt[:30]
        params = SamplingParams(temperature=0.8 * (number % 2), seed=number, max_tokens=32, ignore_eos=True)
        made.append(Add(request_id=f"{wave}-{number}", token_ids=prompt, params=params))
    return made


def await_writes(disk: DiskTier) -> None:
    """From now on what is saved is on disk at once. Else hits depend on when the writer's thread gets to it:
    only what is written can be found, and a state that a longer one supersedes while it waits is left out.
    """
    save = disk.save

    def save_at_once(
        pages: list[PageRecord], state: StateRecord, now: int, settled: Callable[[], None] = at_once
    ) -> bool:
        is_saved = save(pages, state, now, settled)
        disk.flush(now)
        return is_saved

    disk.save = save_at_once


def life(settings: EngineSettings) -> dict[str, Any]:
    """All waves; tokens, and cached tokens by tier, of each request."""
    runner, _ = Runner.load(settings)
    if runner.num_pages < NUM_PAGES or runner.num_slots < NUM_SLOTS:
        raise BackendError(
            f"{runner.num_pages} pages and {runner.num_slots} states are too few; raise the cache"
        )
    runner.num_pages, runner.num_slots = NUM_PAGES, NUM_SLOTS
    runner.max_model_len = NUM_PAGES * PAGE_SIZE // 2
    engine = Engine(runner, Tokenizer.from_dir(settings.model_dir), settings)
    engine.attach_tiers()
    if engine.cache.lower is not None and engine.cache.lower.disk is not None:
        await_writes(engine.cache.lower.disk)
    tokens: dict[str, list[int]] = {}
    cached: dict[str, dict[str, int]] = {}
    num_guessed = 0
    for wave in range(WAVES):
        for request in requests(wave):
            engine.add(request)
        while engine.has_work:
            for report in engine.step():
                if isinstance(report, Failed):
                    raise BackendError(f"request {report.request_id}: {report}")
                if isinstance(report, Generated):
                    tokens.setdefault(report.request_id, []).extend(report.token_ids)
                elif isinstance(report, Finished):
                    cached[report.request_id] = dict(report.num_cached_by_tier)
                    num_guessed += report.num_draft
    # asked at the end: a capture that fails ends them
    how = {"has_graphs": runner.has_graphs, "is_symmetric": is_symmetric(runner.model.shard.comm)}
    engine.close()
    return {"tokens": tokens, "cached": cached, "num_guessed": num_guessed} | how


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m k3agent.backend.bench.rank_play", description=__doc__)
    add = parser.add_argument
    add("folder")
    add("--tp", type=int, default=1)
    add("--expert-parallel", type=int, default=1)
    add("--device", default="cpu")
    add("--dtype", default="float64")
    add("--graphs", choices=["auto", "off", "padded"], default="off")
    add("--sums", choices=["auto", "symmetric"], default="auto")
    add("--disk", required=True, help="an empty folder for the disk cache")
    options = parser.parse_args(argv)
    settings = EngineSettings(
        model_dir=options.folder,
        device=options.device,
        dtype=options.dtype,
        threads=options.tp,
        cache_bytes=32 << 20,
        max_model_len=NUM_PAGES * PAGE_SIZE,
        tensor_parallel=options.tp,
        expert_parallel=options.expert_parallel,
        speculation="prompt-lookup",
        exactness="off",
        graphs=options.graphs,
        sums=options.sums,
        host_cache_bytes=16 << 20,
        disk_cache_dir=options.disk,
    )
    lives = [life(settings), life(replace(settings, host_cache_bytes=0))]
    print(json.dumps(lives))
    return 0


if __name__ == "__main__":
    sys.exit(main())
