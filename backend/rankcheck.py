"""`python -m k3agent.backend.rankcheck --ranks 2 [--device cuda]`: does a model on several ranks compute what
one rank computes?

Plays one script of prefills, batched decodes, prefix hits, resumes inside a page, aborts and evictions on one
rank and on several, with given tokens, and compares the logits of every step. Prints a table with the share
of the time that the ranks spent on each other.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from k3agent.backend.cache.hybrid import HybridCache
from k3agent.backend.cache.radix import Checkpoint, RadixNode
from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.engine.messages import EngineSettings
from k3agent.backend.engine.ranks import Ranks
from k3agent.backend.engine.runner import Runner, load_part
from k3agent.backend.engine.work import Work
from k3agent.backend.errors import BackendError
from k3agent.backend.model.random_weights import write_random
from k3agent.backend.parallel.comm import Comm
from k3agent.backend.parallel.shard import Shard

VOCAB_SIZE = 512
TOLERANCES = {"float64": 1e-9, "float32": 2e-3}
"""Largest difference of two logits that the order of sums explains; bfloat16 is shown but not judged, since a
router that almost ties may choose another expert."""
DIFFERS = "DIFFERS"
_SYSTEM, _QUESTION, _ANSWER = 3 * PAGE_SIZE + 10, 50, 12
_NUM_PAGES, _NUM_SLOTS = 24, 7
"""Of the cache, whatever memory there is: evictions fall alike on every layout."""
_CACHE_BYTES = 32 << 20


def raw_config(scale: int, ranks: int) -> dict[str, Any]:
    """A small K3 whose widths grow with `scale` and whose heads divide among the ranks."""
    heads = 4 * max(1, ranks // 4)
    return {
        "model_type": "kimi_linear",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64 * scale,
        "intermediate_size": 32 * scale * ranks,
        "num_hidden_layers": 5,
        "num_attention_heads": heads,
        "rms_norm_eps": 1e-5,
        "q_lora_rank": 32,
        "kv_lora_rank": 32 * scale,
        "qk_nope_head_dim": 16 * scale,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16 * scale,
        "mla_use_output_gate": True,
        "hidden_act": "situ",
        "activation_situ_beta": 4.0,
        "activation_situ_linear_beta": 25.0,
        "attn_res_block_size": 2,
        "num_experts": 4 * ranks,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 32 * scale * ranks,
        "routed_expert_hidden_size": 32 * scale,
        "latent_moe_use_norm": True,
        "moe_router_activation_func": "sigmoid",
        "moe_renormalize": True,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "max_position_embeddings": 4096,
        "linear_attn_config": {
            "kda_layers": [1, 2, 3],
            "full_attn_layers": [4, 5],
            "head_dim": 32,
            "num_heads": heads,
            "short_conv_kernel_size": 4,
            "use_full_rank_gate": True,
            "gate_lower_bound": -5.0,
        },
    }


class TimedComm:
    """Collectives of another Comm, with the seconds that they took."""

    def __init__(self, comm: Comm, device: torch.device) -> None:
        self._comm, self._device = comm, device
        self.rank, self.world, self.is_capturable = comm.rank, comm.world, False
        self.num_calls = 0
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def all_reduce(self, x: Tensor) -> Tensor:
        begun = self._begin()
        result = self._comm.all_reduce(x)
        self._end(begun)
        return result

    def all_gather(self, x: Tensor) -> Tensor:
        begun = self._begin()
        result = self._comm.all_gather(x)
        self._end(begun)
        return result

    def least(self, value: int) -> int:
        return self._comm.least(value)

    def take(self) -> tuple[int, float]:
        """Calls and seconds since the last time."""
        if self._events:
            torch.cuda.synchronize(self._device)
        seconds = self._seconds + sum(a.elapsed_time(b) for a, b in self._events) / 1000
        count = self.num_calls
        self.num_calls, self._seconds = 0, 0.0
        self._events.clear()
        return count, seconds

    def _begin(self) -> "float | torch.cuda.Event":
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _end(self, begun: "float | torch.cuda.Event") -> None:
        self.num_calls += 1
        if not isinstance(begun, torch.cuda.Event):
            self._seconds += time.perf_counter() - begun
            return
        # the stream waits for the collective, so an event behind it has the wait in it
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append((begun, event))


@dataclass
class Run:
    """What one layout computed, and how long it took."""

    name: str
    logits: list[Tensor] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    seconds: float = 0.0
    num_tokens: int = 0
    num_calls: int = 0
    comm_seconds: float = 0.0


@dataclass(eq=False)
class Held:
    """What a sequence is to the cache."""

    token_ids: list[int]
    num_computed: int = 0
    num_exact: int = 0
    page_ids: list[int] = field(default_factory=list)
    state_slot: int | None = None
    node: RadixNode | None = None
    resumed_from: Checkpoint | None = None


class Script:
    """The scenario, as a driver of runner and cache. What is fed never depends on what comes out."""

    def __init__(self, runner: Runner, run: Run) -> None:
        self._runner, self._run = runner, run
        if runner.num_pages < _NUM_PAGES or runner.num_slots < _NUM_SLOTS:
            raise BackendError(f"{runner.cache_bytes} bytes of cache are too few; use a smaller --scale")
        self.cache = HybridCache(_NUM_PAGES, _NUM_SLOTS, runner.storage, exactness="off")
        self._generator = torch.Generator().manual_seed(11)

    def play(self) -> None:
        """All of it; the cache must be left empty-handed."""
        system = self._tokens(_SYSTEM)
        first = self._begin(system + self._tokens(_QUESTION))
        self._prefill(first, (PAGE_SIZE, 2 * PAGE_SIZE, _SYSTEM))
        self._decode([first])
        self._end(first)
        # a prefix hit, a resume inside a page, and an unknown prompt, decoded side by side
        side_by_side = [
            self._begin(system + self._tokens(_QUESTION)),
            self._begin(first.token_ids + self._tokens(_QUESTION)),
            self._begin(self._tokens(_QUESTION)),
        ]
        for sequence in side_by_side[:2]:
            self._prefill(sequence, ())
        self._show_image(side_by_side[2])
        self._decode(side_by_side)
        # one is aborted, one preempted with what it has; the second one comes back
        self.cache.release(side_by_side[0])
        self._end(side_by_side[1])
        self._end(side_by_side[2])
        again = self._begin(side_by_side[1].token_ids + self._tokens(_QUESTION))
        self._prefill(again, ())
        self._save_and_load(again)
        self._decode([again])
        self._end(again)
        self._press()
        self.cache.clear()
        assert self.cache.pages.num_free == _NUM_PAGES, "pages leaked"

    def _press(self) -> None:
        """More prompts than the cache holds, so that slots and pages change hands."""
        for _ in range(_NUM_PAGES // 6 + 2):
            sequence = self._begin(self._tokens(6 * PAGE_SIZE))
            self._prefill(sequence, (PAGE_SIZE,))
            self._end(sequence)

    def _tokens(self, count: int) -> list[int]:
        size = self._runner.model.whole_config.vocab_size
        return torch.randint(size, (count,), generator=self._generator).tolist()

    def _begin(self, token_ids: list[int]) -> Held:
        held = Held(token_ids)
        prefix = self.cache.match(held.token_ids)
        if not self.cache.adopt(held, prefix):
            raise BackendError("the script needs more slots or pages than it has")
        self._run.hits.append(held.num_computed)
        return held

    def _prefill(self, held: Held, stops: Several[int]) -> None:
        ends = [stop for stop in stops if held.num_computed < stop < len(held.token_ids)]
        for end in [*ends, len(held.token_ids)]:
            self._forward([(held, end - held.num_computed)])
            if end in stops:
                self.cache.checkpoint(held)

    def _show_image(self, held: Held) -> None:
        """A prompt that has features of an image in the place of some of its tokens."""
        rows = torch.arange(3, 9)
        width = self._runner.config.hidden_size
        features = torch.randn(len(rows), width, generator=self._generator, dtype=torch.float64)
        self._forward([(held, len(held.token_ids))], rows, features)

    def _decode(self, several: list[Held]) -> None:
        for _ in range(_ANSWER):
            for held in several:
                held.token_ids += self._tokens(1)
            self._forward([(held, 1) for held in several])

    def _end(self, held: Held) -> None:
        self.cache.checkpoint(held, give_slot=True)
        self.cache.release(held)

    def _save_and_load(self, held: Held) -> None:
        """What host and disk tiers do: everything leaves the device, is lost there, and comes back."""
        storage = self._runner.storage
        assert held.state_slot is not None
        state = storage.read_state(held.state_slot)
        storage.zero_state(held.state_slot)
        storage.write_state(held.state_slot, state)
        for page in held.page_ids:
            saved = bytes(storage.read_page(page))
            storage.write_pages([page], [bytes(len(saved))])
            storage.write_pages([page], [saved])

    def _forward(
        self, work: list[tuple[Held, int]], rows: Tensor | None = None, features: Tensor | None = None
    ) -> None:
        for held, count in work:
            if not self.cache.reserve(held, held.num_computed + count):
                raise BackendError("the script needs more pages than it has")
        batch = [
            Work(
                token_ids=held.token_ids[held.num_computed : held.num_computed + count],
                context_len=held.num_computed,
                page_ids=held.page_ids,
                state_slot=held.state_slot if held.state_slot is not None else -1,
                num_logits=1,
            )
            for held, count in work
        ]
        if rows is not None and features is not None:
            device = self._runner.device
            batch[0].image_rows = rows.to(device)  # pyright: ignore[reportAttributeAccessIssue]  # `to` says Tensor
            batch[0].image_features = features.to(device, self._runner.model.dtype)
        begun = time.perf_counter()
        logits = self._runner.forward(batch).to("cpu", torch.float64)
        self._run.seconds += time.perf_counter() - begun
        self._run.num_tokens += sum(count for _, count in work)
        self._run.logits.append(logits)
        for held, count in work:
            held.num_computed += count


def play(settings: EngineSettings, warms_up: bool = True) -> Run:
    """The script on one layout, once to warm up and once for the figures."""
    world, groups = settings.tensor_parallel, settings.expert_parallel
    name = "1 rank" if world == 1 else f"{world} ranks, experts {'whole' if groups == world else 'cut'}"
    if 1 < groups < world:
        name = f"{world} ranks, experts in {groups} groups"
    ranks, comm, shard = None, None, Shard()
    if world > 1:
        ranks = Ranks.start(settings)
        comm = TimedComm(ranks.shard.comm, torch.device(settings.device))
        shard = Shard(comm, groups)
    runner = Runner(load_part(settings, shard), settings, ranks)
    try:
        if warms_up:
            Script(runner, Run(name)).play()
        if comm is not None:
            comm.take()
        run = Run(name)
        Script(runner, run).play()
        if comm is not None:
            run.num_calls, run.comm_seconds = comm.take()
    finally:
        runner.close()
    return run


@dataclass(frozen=True, slots=True)
class Comparison:
    """One layout beside one rank."""

    run: Run
    largest: float
    num_same: int
    num_choices: int
    verdict: str


def compare(expected: Run, found: Run, dtype: str) -> Comparison:
    """Largest difference of logits, and how many greedy choices are the same."""
    assert expected.hits == found.hits, f"prefix hits {found.hits}, on one rank {expected.hits}"
    pairs = list(zip(expected.logits, found.logits, strict=True))
    largest = max(float((a - b).abs().max()) for a, b in pairs)
    same = [a.argmax(-1) == b.argmax(-1) for a, b in pairs]
    num_same, count = sum(int(s.sum()) for s in same), sum(s.numel() for s in same)
    tolerance = TOLERANCES.get(dtype)
    verdict = "not judged" if tolerance is None else "ok" if largest <= tolerance else DIFFERS
    return Comparison(found, largest, num_same, count, verdict)


def layouts(ranks: int) -> list[tuple[int, int]]:
    """Every layout of that many ranks: experts cut, dealt to groups, dealt out whole."""
    return [(ranks, groups) for groups in range(1, ranks + 1) if ranks % groups == 0]


def table(rows: list[Comparison]) -> list[str]:
    """For people."""
    head = ("layout", "largest difference", "same choices", "tokens/s", "collectives", "of the time", "")
    cells: list[tuple[str, ...]] = [head]
    for row in rows:
        run = row.run
        share = run.comm_seconds / run.seconds if run.seconds else 0.0
        cells.append(
            (
                run.name,
                f"{row.largest:.1e}",
                f"{row.num_same} of {row.num_choices}",
                f"{run.num_tokens / run.seconds:,.0f}",
                f"{run.num_calls:,}",
                f"{share:.0%}",
                row.verdict,
            )
        )
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    return ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells]


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = argparse.ArgumentParser(
        prog="python -m k3agent.backend.rankcheck",
        description="compare a model on several ranks with the same model on one",
        allow_abbrev=False,
    )
    made.add_argument("--model", help="a model folder (default: a small K3 with random weights)")
    made.add_argument("--ranks", type=int, default=2, help="number of processes (default 2)")
    made.add_argument("--expert-parallel", type=int, help="one layout only (default: all that divide)")
    made.add_argument("--device", default="cpu", help="cpu (gloo) or cuda (NCCL)")
    made.add_argument("--dtype", default="float64", help="float64, float32 or bfloat16 (default float64)")
    made.add_argument("--scale", type=int, default=1, help="widths of the random model, 1 is tiny")
    made.add_argument("--threads", type=int, default=1, help="CPU threads of each rank (default 1)")
    made.add_argument("--no-warm-up", action="store_true", help="play once only: quicker, worse figures")
    return made


def main(argv: Several[str] | None = None) -> int:
    """0 when all layouts agree with one rank, 1 when one does not, 2 when it cannot be run."""
    args = parser().parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        if args.model is None:
            write_random(Path(folder), raw_config(args.scale, args.ranks), seed=1, pack="none")
        settings = {
            "model_dir": args.model or folder,
            "device": args.device,
            "dtype": args.dtype,
            "cache_bytes": _CACHE_BYTES * args.scale,
        }
        warms_up = not args.no_warm_up
        chosen = [(args.ranks, args.expert_parallel)] if args.expert_parallel else layouts(args.ranks)
        try:
            alone = play(EngineSettings(**settings, threads=args.threads), warms_up)
            rows = [compare(alone, alone, args.dtype)]
            for world, groups in chosen:
                made = EngineSettings(
                    **settings, threads=args.threads * world, tensor_parallel=world, expert_parallel=groups
                )
                rows.append(compare(alone, play(made, warms_up), args.dtype))
        except BackendError as error:
            print(f"rankcheck: {error}", file=sys.stderr)
            return 2
    device = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    print(f"{device}, {args.dtype}, torch {torch.__version__}")
    print("\n".join(table(rows)))
    return 0 if all(row.verdict != DIFFERS for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
