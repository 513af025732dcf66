"""`python -m k3agent.backend.training.run`: train nano for a given time and export it.

This module only reads options and starts the workers: they must be there before torch is loaded and CUDA
starts, and they import it again as their main module.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from k3agent.backend.errors import PeerLostError
from k3agent.backend.training import variants
from k3agent.backend.training.data import (
    EPISODES,
    HELD_OUT_SEED,
    SYNTHETIC,
    Feed,
    FeedSettings,
    StagePlan,
)
from k3agent.backend.training.ranks import (
    SEEDS_PER_RANK,
    cache_of,
    choose_gpu,
    num_workers_of,
    start_ranks,
)

STARTED = time.monotonic()
DEFAULT_PLAN = "0:0,0.05:1=3+0=1,0.7:2=3+1=1"
"""The stages of encode.stream: 0 short and simple, 1 broad, 2 everything and long."""


def share(text: str) -> float:
    """A number from 0 to 1 on the command line."""
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


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
    add("--second-share", type=share, help="share of sessions with the second edition's skills, 0 to 1")
    add("--warmup", type=float, default=0.03)
    add("--fall-from", type=float, default=0.5)
    add("--quantize-from", type=float, default=0.5)
    add("--muon-rate", type=float, default=4e-3)
    add("--adam-rate", type=float, default=3e-3)
    add("--ranks", type=int, default=1, help="processes that train one model, each on a GPU of its own")
    add("--workers", type=int, default=14, help="processes that make episodes, of all ranks together")
    add("--max-uses", type=int, default=5, help="how often a batch is used when workers fall behind")
    add("--source", default=EPISODES, help="module:function that yields episodes")
    add("--tokens", type=int, default=65_536, help="tokens of a step, of each rank")
    add("--max-length", type=int, default=4096, help="longest document; longer ones are cut")
    add(
        "--shared-beginning",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compute it once a batch",
    )
    add("--seed", type=int, default=1)
    add("--eval-batches", type=int, default=1)
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
    add("--tokenizer", type=Path, default=Path(__file__).parents[1] / "weights" / "nano")
    variants.add_options(parser)
    add_expert_options(parser)
    add_cache_options(parser)
    parser.set_defaults(rank=0)
    options = parser.parse_args(arguments)
    if options.ranks < 1 or (options.ranks > 1 and options.device not in ("cuda", "cpu")):
        parser.error(f"--ranks {options.ranks} on {options.device}: 1 or more, several on cuda or cpu only")
    check_expert_options(parser, options)
    if options.preflight and options.ranks > 1:
        parser.error("--preflight rehearses one rank: leave --ranks out")
    if options.tiny:
        shrink(options)
    return options


def shrink(options: argparse.Namespace) -> None:
    """A miniature model on synthetic text."""
    options.source, options.stage_plan = SYNTHETIC, "0:64"
    options.tokens, options.max_length = min(options.tokens, 512), 128
    options.workers, options.eval_batches = min(options.workers, options.ranks), 1
    options.reserve_s = min(options.reserve_s, 3.0)


def add_cache_options(parser: argparse.ArgumentParser) -> None:
    """Compiling takes minutes, and a GPU machine may be bare."""
    add = parser.add_argument_group("compiled kernels").add_argument
    add("--cache", type=Path, default=Path("/tmp/k3agent-compiled"), help="folder of compiled kernels")
    add("--cache-from", type=Path, help="folder with cache.tar.xz.part* to unpack there first")
    add("--cache-to", type=Path, help="folder to pack the cache into at the end")


def add_expert_options(parser: argparse.ArgumentParser) -> None:
    """How routed experts are computed; the result is the same while every token finds a place."""
    add = parser.add_argument_group("routed experts").add_argument
    add("--experts", choices=("wide", "batched"), default="wide", help="one product of all, or batches")
    add("--room", type=float, default=1.25, help="places of a batched expert over its even share of tokens")
    add("--expert-parallel", action="store_true", help="batched experts, dealt out among the ranks")


def check_expert_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the command if they do not fit together."""
    if options.room < 1:
        parser.error(f"--room {options.room}: an expert needs at least its even share, 1")
    if options.expert_parallel and options.ranks < 2:
        parser.error("--expert-parallel deals experts to several ranks: give --ranks 2 or more")


def constant_beginning() -> np.ndarray:
    """Tokens that all episodes start with: system prompt and tool declarations."""
    from k3agent.backend.chat.tokenizer import Tokenizer  # lazy: not for workers of other sources
    from k3agent.backend.training.encode import NANO, Encoder  # lazy: as above

    return np.array(Encoder(Tokenizer.from_dir(NANO)).prefix, np.uint16)


def start_feeds(options: argparse.Namespace) -> dict[str, Feed]:
    """The feed for training, and on rank 0 those for evaluation in the mixture that training ends with:
    `eval` on unseen seeds, `heldout` on held-out words and wordings too.
    """
    plan = StagePlan.parse(options.stage_plan)
    shared: dict[str, Any] = {
        "source": options.source,
        "num_tokens": options.tokens,
        "max_length": options.max_length,
        "pad_id": 63 if options.tiny else 4091,
    }
    if options.shared_beginning and options.source == EPISODES:
        shared["beginning"] = constant_beginning()
    # A later command must not repeat the episodes of an earlier one.
    seed = options.seed + (100_000 if options.resume or options.init else 0)
    seed += options.rank * SEEDS_PER_RANK
    extra: dict[str, Any] = {}
    if options.second_share is not None and options.source == EPISODES:
        extra["second_share"] = options.second_share
    shared["extra"] = extra
    workers = {"num_workers": num_workers_of(options), "max_uses": options.max_uses}
    feeds = {"train": Feed(FeedSettings(plan=plan, seed=seed, **workers, **shared))}
    shared["plan"] = StagePlan(((0.0, plan.weights(1.0)),))
    shared |= {"num_workers": 1, "depth": max(options.eval_batches, 1)}
    if options.eval_batches and options.rank == 0:
        feeds["eval"] = Feed(FeedSettings(seed=HELD_OUT_SEED, **shared))
        if options.source == EPISODES:
            shared["extra"] = {**extra, "held_out": True}
            feeds["heldout"] = Feed(FeedSettings(seed=HELD_OUT_SEED, **shared))
    return feeds


def set_environment(options: argparse.Namespace) -> None:
    """This rank's GPU, where compiled kernels lie, and one thread for each worker."""
    choose_gpu(options)
    cache = cache_of(options)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")
    # What the kernels prepare for a batch's lengths must outlive the batches fetched ahead.
    os.environ["FLA_TENSOR_CACHE_SIZE"] = "64"


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
    processes = start_ranks(options, STARTED) if options.ranks > 1 else None
    feeds = start_feeds(options)
    try:
        from k3agent.backend.training.loop import train  # lazy: 3 s, and workers are to start first

        return train(options, feeds, STARTED, processes)
    except PeerLostError as error:
        if processes is None:
            raise
        processes.lose(str(error))
    finally:
        for feed in feeds.values():
            feed.close()
        if processes is not None:
            processes.close()


if __name__ == "__main__":
    sys.exit(main())
