"""`python -m k3agent.backend.training.run`: train nano for a given time and export it.

This module only reads options and starts the workers: they must be there before torch is loaded and CUDA
starts, and they import it again as their main module.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from k3agent.backend.training.data import (
    EPISODES,
    HELD_OUT_SEED,
    SYNTHETIC,
    Feed,
    FeedSettings,
    StagePlan,
)

STARTED = time.monotonic()
DEFAULT_PLAN = "0:start,0.05:broad,0.8:final"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m k3agent.backend.training.run", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=9.3, help="length of this command, start and export included")
    add("--out", type=Path, required=True, help="folder for weights, log and plot: flat, no file over 15 MiB")
    add("--state", type=Path, default=Path("/tmp/k3agent-training"), help="folder for the full state")
    add("--resume", type=Path, help="folder with a full state to go on from")
    add("--init", type=Path, help="exported weights folder to start from, with a fresh optimizer")
    add("--progress-from", type=float, help="where in the schedule to start; default 0, or the saved one")
    add("--progress-to", type=float, default=1.0, help="where in the schedule this command ends")
    add("--stage-plan", default=DEFAULT_PLAN, help="START:STAGE[=WEIGHT][+...],...")
    add("--warmup", type=float, default=0.03)
    add("--fall-from", type=float, default=0.5)
    add("--quantize-from", type=float, default=0.5)
    add("--muon-rate", type=float, default=4e-3)
    add("--adam-rate", type=float, default=3e-3)
    add("--workers", type=int, default=14)
    add("--source", default=EPISODES, help="module:function that yields episodes")
    add("--tokens", type=int, default=65_536, help="tokens of a step")
    add("--max-length", type=int, default=4096, help="longest document; longer ones are cut")
    add("--seed", type=int, default=1)
    add("--eval-batches", type=int, default=2)
    add("--eval-every-s", type=float, default=45)
    add("--save-every-s", type=float, default=150)
    add("--log-every-s", type=float, default=8)
    add("--reserve-s", type=float, default=20, help="kept at the end of the command for the export")
    add("--device", default="cuda")
    add("--tiny", action="store_true", help="a miniature model on synthetic text, for a check on a CPU")
    add(
        "--preflight",
        action="store_true",
        help="compile, check against a CPU and time ten steps; no training",
    )
    add("--cache", type=Path, default=Path("/tmp/k3agent-compiled"), help="folder of compiled kernels")
    add("--cache-from", type=Path, help="folder with cache.tar.xz.part* to unpack there first")
    add("--cache-to", type=Path, help="folder to pack the cache into at the end")
    add("--tokenizer", type=Path, default=Path(__file__).parents[1] / "weights" / "nano")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.source, options.stage_plan = SYNTHETIC, "0:64"
        options.tokens, options.max_length = min(options.tokens, 512), 128
        options.workers, options.eval_batches = min(options.workers, 1), 1
        options.reserve_s = min(options.reserve_s, 3.0)
    return options


def start_feeds(options: argparse.Namespace) -> tuple[Feed, Feed]:
    """The training feed and the one for evaluation, on held-out seeds in the mixture that training ends
    with.
    """
    plan = StagePlan.parse(options.stage_plan)
    pad_id = 63 if options.tiny else 4091
    shared = {
        "source": options.source,
        "num_tokens": options.tokens,
        "max_length": options.max_length,
        "pad_id": pad_id,
    }
    # A later command must not repeat the episodes of an earlier one.
    seed = options.seed + int(1000 * (options.progress_from or 0)) + (100_000 if options.resume else 0)
    feed = Feed(FeedSettings(plan=plan, seed=seed, num_workers=options.workers, **shared))
    last = StagePlan(((0.0, plan.weights(1.0)),))
    held_out = Feed(
        FeedSettings(plan=last, seed=HELD_OUT_SEED, num_workers=1, depth=options.eval_batches, **shared)
    )
    return feed, held_out


def set_environment(options: argparse.Namespace) -> None:
    """Where compiled kernels lie, and one thread for each worker."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(options.cache / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(options.cache / "triton")
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")


def main() -> int:
    options = parse()
    options.out.mkdir(parents=True, exist_ok=True)
    set_environment(options)
    if options.cache_from:
        from k3agent.backend.training.compiled import unpack_cache  # lazy: not for workers

        unpack_cache(options.cache_from, options.cache)
    if options.preflight:
        from k3agent.backend.training.preflight import preflight  # lazy: 3 s, and not for workers

        return preflight(options, STARTED)
    feeds = start_feeds(options)
    try:
        from k3agent.backend.training.loop import train  # lazy: 3 s, and workers are to start first

        return train(options, feeds, STARTED)
    finally:
        for feed in feeds:
            feed.close()


if __name__ == "__main__":
    sys.exit(main())
