"""Steps `rates` and `slice`: prefill and decode of stand-ins of real shape, and the share of the time that
ranks spend on each other.

`rates`: four layers of K3, on one rank and on several; with `--sums symmetric` those with graphs also with
small sums through symmetric memory. `slice`: as many layers as only several cards hold, up to 24. Both run
the engine's own runner, prefix cache and rank processes.
"""

import argparse
import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from k3agent.backend.bench import rank_results as results
from k3agent.backend.bench import rank_standin
from k3agent.backend.bench.standin_runs import Session, decode_step_s
from k3agent.backend.engine.messages import EngineSettings
from k3agent.backend.engine.ranks import Ranks
from k3agent.backend.engine.runner import Runner
from k3agent.backend.errors import BackendError
from k3agent.backend.parallel.shard import Shard
from k3agent.backend.rankcheck import TimedComm

CARD_BYTES = 139 << 30
"""Of a card that is not there, in tests."""


@dataclass(frozen=True)
class Plan:
    """What is measured, and the sizes of the cache."""

    prefills: tuple[int, ...] = (512, 2048, 8192)
    users: tuple[int, ...] = (1, 8, 32)
    context: int = 512
    steps: int = 32
    repeats: int = 3
    chunk: int = 2048
    cache_bytes: int = 4 << 30
    max_model_len: int = 32768


TINY = Plan((64, 128), (1, 3), 70, 6, 1, 128, 16 << 20, 512)


@dataclass(frozen=True)
class Layout:
    """Ranks, groups of experts, whether short passes run as graphs, and how small sums are made."""

    ranks: int
    dealt: int
    has_graphs: bool = False
    sums: Literal["auto", "symmetric"] = "auto"

    @property
    def name(self) -> str:
        graphs = ", with graphs" if self.has_graphs else ""
        near = ", sums by symmetric memory" if self.sums == "symmetric" else ""
        return results.name_of(self.ranks, self.dealt) + graphs + near


@dataclass
class Running:
    """A stand-in in a session, with the clock of its collectives; None on one rank, and with graphs, which
    hold no clock."""

    session: Session
    comm: TimedComm | None

    def share(self, seconds: float) -> str:
        """Of the seconds since the last time, what went into collectives."""
        if self.comm is None:
            return ""
        count, spent = self.comm.take()
        return f", {spent / seconds:.0%} of it in {count} collectives"

    def forget(self) -> None:
        if self.comm is not None:
            self.comm.take()


@contextmanager
def running(layout: Layout, model_dir: str, device: str, plan: Plan) -> Iterator[Running]:
    """The model on the devices, warm; ended afterwards."""
    settings = EngineSettings(
        model_dir=model_dir,
        device=device,
        cache_bytes=plan.cache_bytes,
        max_model_len=plan.max_model_len,
        max_running=max(plan.users),
        graphs="auto" if layout.has_graphs else "off",
        sums=layout.sums,
        speculation="off",
        tensor_parallel=layout.ranks,
        expert_parallel=layout.dealt,
    )
    ranks, comm, shard = None, None, Shard()
    if layout.ranks > 1:
        ranks = Ranks.start(settings, worker=rank_standin.MODULE)
        shard = ranks.shard
        if not layout.has_graphs:
            comm = TimedComm(ranks.shard.comm, torch.device(device))
            shard = Shard(comm, layout.dealt)
    runner = Runner(rank_standin.load(settings, shard), settings, ranks)
    try:
        runner.prepare(lambda _done, _count, _what: None)
        session = Session(runner, plan.chunk)
        for length in plan.prefills:
            session.first_token_s(session.draw(length), keep=False)
        yield Running(session, comm)
    finally:
        runner.close()
        del runner
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()


def prefill(run: Running, plan: Plan, table: results.Table, layout: str) -> None:
    """Prompts of which nothing is cached."""
    for length in plan.prefills:
        run.session.cache.clear()
        run.forget()
        times = [
            run.session.first_token_s(run.session.draw(length), keep=False)[0] for _ in range(plan.repeats)
        ]
        rate = length / statistics.median(times)
        share = run.share(sum(times))
        table.add(f"prefill of {length}", layout, f"{rate:,.0f} tokens/s{share}")


def decode(run: Running, plan: Plan, table: results.Table, layout: str) -> None:
    """A token at a time for several at once, each taken to the host before the next."""
    session = run.session
    for users in plan.users:
        session.cache.clear()
        sequences = []
        for _ in range(users):
            sequence = session.begin(session.draw(plan.context))
            sequence.token_ids.append(int(session.prefill(sequence, checkpoints=False).argmax()))
            sequences.append(sequence)
        for _ in range(4):
            decode_step_s(session, sequences)
        run.forget()
        times = [decode_step_s(session, sequences) for _ in range(plan.steps)]
        share = run.share(sum(times))
        for sequence in sequences:
            session.leave(sequence, keep=False)
        median = statistics.median(times)
        value = f"{users / median:,.1f} tokens/s, {median * 1e3:.2f} ms a step{share}"
        table.add(f"decode, {users} at once behind {plan.context}", layout, value)


def reuse(run: Running, plan: Plan, table: results.Table, layout: str) -> None:
    """A prompt again, and as the beginning of a longer one: time, and how much the cache had."""
    session, length = run.session, plan.prefills[-1]
    session.cache.clear()
    prompt = session.draw(length)
    cold_s, _ = session.first_token_s(prompt, keep=True)
    warm_s, num_cached = session.first_token_s([*prompt, *session.draw(plan.prefills[0] // 8)], keep=False)
    value = f"{cold_s * 1e3:.1f} ms cold, {warm_s * 1e3:.1f} ms behind {num_cached} cached tokens"
    # a resume is exact where passes of a cold run begin
    table.add(f"prefix of {length}", layout, value, num_cached >= length // plan.chunk * plan.chunk)


def used_bytes(ranks: int) -> list[str]:
    """Memory in use of each card, as the driver says."""
    command = ["nvidia-smi", "--query-gpu=memory.used,memory.total", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return [f"not known: {error}"]
    return found.stdout.strip().splitlines()[:ranks]


def measure(
    layout: Layout, raw: dict[str, Any], table: results.Table, options: argparse.Namespace, plan: Plan
) -> None:
    """All rates of one layout; what fails is a row, and the next layout goes on."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        model_dir = rank_standin.write_config(Path(folder), raw)
        try:
            with running(layout, model_dir, options.device, plan) as run:
                seconds = time.monotonic() - begun
                own = results.gib(run.session.runner.weights_bytes + _stack_bytes(run))
                table.add("weights of rank 0", layout.name, f"{own}, drawn and warm after {seconds:.0f} s")
                if options.device != "cpu":
                    has = run.session.runner.has_graphs
                    value = "CUDA graphs" if has else "as they are"
                    table.add("short passes", layout.name, value, has == layout.has_graphs)
                    if layout.sums == "symmetric":
                        near = results.is_symmetric(run.session.runner.model.shard.comm)
                        value = "symmetric memory" if near else "NCCL"
                        table.add("small sums", layout.name, value, near)
                    table.add("memory in use", layout.name, "; ".join(used_bytes(layout.ranks)))
                prefill(run, plan, table, layout.name)
                decode(run, plan, table, layout.name)
                reuse(run, plan, table, layout.name)
        except (RuntimeError, BackendError) as error:
            table.fail("rates", layout.name, f"{type(error).__name__}: {error}")


def _stack_bytes(run: Running) -> int:
    """Experts are no parameters."""
    found = run.session.runner.model.destinations().items()
    return sum(value.nbytes for name, value in found if ".experts.w" in name)


def order(ranks: int, sums: str) -> list[Layout]:
    """The layouts to measure; what is worth most comes first."""
    plain = [Layout(*layout) for layout in results.layouts(ranks)]
    captured = [replace(layout, has_graphs=True) for layout in plain]
    one = (Layout(1, 1, has_graphs=True), Layout(1, 1))
    if sums == "symmetric":
        near = [replace(layout, sums=sums) for layout in captured]
        return [captured[-1], near[-1], captured[0], near[0], one[0]]
    return [captured[0], plain[0], one[0], captured[-1], plain[-1], one[1]]


def rates(options: argparse.Namespace, plan: Plan) -> int:
    """Four layers on one rank and on several."""
    table = results.Table("rates", options.out, options.device)
    deadline = time.monotonic() + options.limit_s
    raw = rank_standin.group_of_k3(options.tiny, options.ranks)
    longest = 0.0
    for layout in order(options.ranks, options.sums):
        begun = time.monotonic()
        if begun + 0.7 * longest > deadline:
            table.add("rates", layout.name, "no time was left")
            continue
        measure(layout, raw, table, options, plan)
        longest = max(longest, time.monotonic() - begun)
    return table.status


def longest_slice(options: argparse.Namespace, plan: Plan) -> int:
    """Layers that one card does not hold."""
    table = results.Table("slice", options.out, options.device)
    card = CARD_BYTES
    if options.device != "cpu":
        card = torch.cuda.get_device_properties(0).total_memory
    count = options.layers or rank_standin.layers_that_fit(options.ranks, card)
    raw = rank_standin.slice_of_k3(count)
    whole, part = rank_standin.rank_bytes(raw, options.ranks)
    layout = Layout(*results.layouts(options.ranks)[-1])
    fits = f"{results.gib(whole)} whole, {results.gib(part)} a rank, {results.gib(card)} a card"
    table.add(f"weights of {count} layers", layout.name, fits, part < card < whole)
    if options.tiny:
        raw = rank_standin.group_of_k3(options.tiny, options.ranks)
    measure(layout, raw, table, options, plan)
    return table.status


def main(arguments: list[str]) -> int:
    parser = results.parser("rates", __doc__)
    parser.add_argument("--slice", action="store_true", help="the step `slice`")
    parser.add_argument("--layers", type=int, help="of the slice (default: what fits)")
    options = parser.parse_args(arguments)
    plan = TINY if options.tiny else Plan()
    return longest_slice(options, plan) if options.slice else rates(options, plan)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
