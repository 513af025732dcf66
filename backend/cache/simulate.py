"""`python -m k3agent.backend.cache.simulate`: recomputed tokens of an agent trace, by number of checkpoints.

The real cache runs without tensors: every match, checkpoint and eviction is as in the engine, only nothing is
computed. Latents are unlimited here, as in the table of peers that this is compared with; states are not.
"""

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from k3agent.backend.cache.hybrid import HybridCache
from k3agent.backend.cache.interfaces import Exactness
from k3agent.backend.cache.radix import Checkpoint, RadixNode
from k3agent.backend.cache.trace import Trace, TraceRequest, TraceSettings
from k3agent.backend.config import PAGE_SIZE

GRID = 512
UNLIMITED = 100_000
_PAGES = 150_000


class NoTensors:
    """A storage of nothing."""

    page_bytes = 0
    state_bytes = 0

    def copy_page(self, src_page: int, dst_page: int) -> None:
        pass

    def copy_state(self, src_slot: int, dst_slot: int) -> None:
        pass

    def zero_state(self, slot: int) -> None:
        pass

    def poison_state(self, slot: int) -> None:
        pass


@dataclass(eq=False, slots=True)
class SimulatedSequence:
    """A sequence of tokens that nobody computes."""

    token_ids: list[int]
    num_computed: int = 0
    num_exact: int = 0
    page_ids: list[int] = field(default_factory=list)
    state_slot: int | None = None
    node: RadixNode | None = None
    resumed_from: Checkpoint | None = None


@dataclass(slots=True)
class Outcome:
    """Sums of one or more traces."""

    recomputed: list[int] = field(default_factory=list)
    oracle: list[int] = field(default_factory=list)
    plain: list[int] = field(default_factory=list)
    by_kind: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    prompt_tokens: int = 0
    idle_tokens: int = 0
    live: list[int] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def mean(self) -> float:
        return statistics.fmean(self.recomputed)

    @property
    def of_oracle(self) -> float:
        """Hit tokens as a share of those that a cache without any limit or unit would hit."""
        return (self.prompt_tokens - sum(self.recomputed)) / (self.prompt_tokens - sum(self.oracle))

    @property
    def oracle_rate(self) -> float:
        return 1 - sum(self.oracle) / self.prompt_tokens


class Replay:
    """One trace on one cache. `num_slots` counts the slot of the running sequence, too."""

    def __init__(self, num_slots: int, exactness: Exactness = "idle", idle_chance: float = 1.0) -> None:
        self.cache = HybridCache(_PAGES, num_slots, NoTensors(), grid=GRID, exactness=exactness)
        self._exactness = exactness
        self._idle_chance = idle_chance
        self._idle_share = 0.0

    def run(self, trace: Iterable[TraceRequest], outcome: Outcome) -> None:
        """Replay; one request runs at a time, and the idle work comes between two."""
        begun = time.perf_counter()
        for request in trace:
            recomputed, oracle = self._serve(request)
            outcome.recomputed.append(recomputed)
            outcome.oracle.append(oracle)
            outcome.by_kind[request.kind].append(recomputed)
            outcome.prompt_tokens += len(request.prompt)
            outcome.live.append(request.num_live)
            if request.kind == "plain":
                outcome.plain.append(recomputed)
            self._idle_share += self._idle_chance
            if self._idle_share >= 1:
                self._idle_share -= 1
                outcome.idle_tokens += self._idle()
        outcome.seconds += time.perf_counter() - begun

    def _serve(self, request: TraceRequest) -> tuple[int, int]:
        cache, num_prompt = self.cache, len(request.prompt)
        sequence = SimulatedSequence(list(request.prompt))
        prefix = cache.match(sequence.token_ids)
        oracle = num_prompt - min(prefix.kv_len, num_prompt - 1)
        stops = cache.plan(prefix, num_prompt)
        if not cache.adopt(sequence, prefix):
            raise RuntimeError("no slot for a single sequence")
        begin = sequence.num_computed
        self._prefill(sequence, [*stops, num_prompt])
        sequence.token_ids += request.answer
        self._advance(sequence, len(sequence.token_ids))
        cache.checkpoint(sequence, give_slot=True)
        cache.release(sequence)
        return num_prompt - begin, oracle

    def _prefill(self, sequence: SimulatedSequence, stops: list[int]) -> None:
        is_on_grid = sequence.num_computed == sequence.num_exact and sequence.num_computed % GRID == 0
        for stop in stops:
            self._advance(sequence, stop)
            if is_on_grid:
                sequence.num_exact = stop
            if stop != stops[-1]:
                self.cache.checkpoint(sequence)

    def _advance(self, sequence: SimulatedSequence, end: int) -> None:
        if not self.cache.reserve(sequence, end):
            raise RuntimeError(f"the trace outgrew {_PAGES} pages of {PAGE_SIZE}")
        sequence.num_computed = end

    def _idle(self) -> int:
        """Class B gives way to class A; how many tokens that computed."""
        num_tokens = 0
        while (token_ids := self.cache.next_inexact()) is not None:
            sequence = SimulatedSequence(token_ids)
            prefix = self.cache.match(token_ids, exact_only=True)
            if not self.cache.adopt(sequence, prefix):
                self.cache.skip_inexact(token_ids)
                continue
            num_tokens += len(token_ids) - sequence.num_computed
            self._prefill(sequence, [len(token_ids)])
            if not self.cache.checkpoint(sequence, give_slot=True):
                self.cache.skip_inexact(token_ids)
            self.cache.release(sequence)
        return num_tokens


def simulate(
    num_slots: int,
    seeds: Iterable[int],
    settings: TraceSettings | None = None,
    exactness: Exactness = "idle",
    idle_chance: float = 1.0,
) -> Outcome:
    """Replay the trace of each seed on a cache of its own."""
    outcome = Outcome()
    for seed in seeds:
        Replay(num_slots, exactness, idle_chance).run(Trace(seed, settings), outcome)
    return outcome


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m k3agent.backend.cache.simulate", description=__doc__)
    parser.add_argument("--slots", type=int, nargs="*", default=[32, 64, 96, 128, UNLIMITED])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--exactness", choices=["idle", "always", "off"], default="idle")
    parser.add_argument("--idle", type=float, default=1.0, help="share of gaps in which idle work is done")
    parser.add_argument("--kinds", action="store_true", help="means by kind of request, too")
    options = parser.parse_args(arguments)
    settings = TraceSettings(sessions=options.sessions)
    print("slots      of oracle   mean   p50 plain   p99   oracle mean   idle/request   requests   live   s")
    for num_slots in options.slots:
        done = simulate(num_slots, range(options.seeds), settings, options.exactness, options.idle)
        p99 = sorted(done.recomputed)[int(len(done.recomputed) * 0.99)]
        name = "no limit" if num_slots >= UNLIMITED else str(num_slots)
        print(
            f"{name:<10} {done.of_oracle:8.1%} {done.mean:8,.0f} {statistics.median(done.plain):9,.0f}"
            f" {p99:9,} {statistics.fmean(done.oracle):8,.0f} ({done.oracle_rate:.1%})"
            f" {done.idle_tokens / len(done.recomputed):8,.0f} {len(done.recomputed):10,}"
            f" {statistics.fmean(done.live):8.1f} {done.seconds:6.0f}"
        )
        if options.kinds:
            for kind, values in sorted(done.by_kind.items()):
                print(f"    {kind:<12} {len(values):5}  mean {statistics.fmean(values):8,.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
