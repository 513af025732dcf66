"""`python -m k3agent.backend.engine.soak`: random work on the engine as long as wanted, checked at each step.

Requests come, are aborted, preempted and forked from each other in any order, in a cache far too small for
them, and the engine is started anew over its folder on disk. Each answer must be the one of a naive engine
that computes every request alone and keeps nothing; the cache's accounts must add up after every step. The
model is the smallest one with all kinds of layers, in float64, where rounding changes no token.
"""

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.engine.engine import Engine
from k3agent.backend.engine.messages import (
    Add,
    EngineSettings,
    Exactness,
    Failed,
    Finished,
    Generated,
    Report,
    SamplingParams,
)
from k3agent.backend.engine.runner import Runner
from k3agent.backend.engine.sampler import Choice, Sampler
from k3agent.backend.engine.sequence import Status
from k3agent.backend.engine.taking import ENDS
from k3agent.backend.model.inputs import ForwardBatch, allocate_cache
from k3agent.backend.model.k3 import K3ForCausalLM
from k3agent.backend.model.random_weights import write_random
from k3agent.backend.model.weights import load_model

NANO = Path(__file__).resolve().parent.parent / "weights" / "nano"
ALPHABET = 5
MAX_PROMPT = 330
SMALLEST: dict[str, Any] = {
    "model_type": "kimi_linear",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "mla_use_output_gate": True,
    "hidden_act": "situ",
    "attn_res_block_size": 2,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 4096,
    "linear_attn_config": {
        "kda_layers": [1],
        "full_attn_layers": [2],
        "head_dim": 16,
        "num_heads": 2,
        "short_conv_kernel_size": 4,
        "use_full_rank_gate": True,
        "gate_lower_bound": -5.0,
    },
}


def write_smallest(folder: Path, vocab_size: int, seed: int = 0) -> None:
    """Write a model folder. It says hardly anything but a few words, so that guesses are often right."""
    raw = {"model_type": "kimi_k3", "text_config": SMALLEST | {"vocab_size": vocab_size}}
    write_random(folder, raw, seed)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if name.endswith("lm_head.weight"):
            tensor[: 2 * ALPHABET] *= 6
    save_file(tensors, file, metadata={"format": "pt"})


class Naive:
    """Answers as they must be: each request alone, from its first token, with a cache of its own."""

    def __init__(self, model: K3ForCausalLM, ends: frozenset[int]) -> None:
        self._model, self._ends = model, ends
        self._sampler = Sampler(model.device)
        self._known: dict[tuple[object, ...], list[int]] = {}

    def answer(self, prompt: list[int], params: SamplingParams) -> list[int]:
        """The tokens of an answer that nothing ends but its length."""
        key = (tuple(prompt), params.seed, params.max_tokens, params.temperature, params.ignore_eos)
        if key not in self._known:
            self._known[key] = self._compute(prompt, params)
        return self._known[key]

    def _compute(self, prompt: list[int], params: SamplingParams) -> list[int]:
        model = self._model
        num_pages = -(-(len(prompt) + params.max_tokens) // PAGE_SIZE)
        cache = allocate_cache(model.config, num_pages, 1, model.dtype)
        pages = torch.arange(num_pages).unsqueeze(0)
        choice = Choice(params, prompt, model.config.vocab_size, model.device)
        ids, done = list(prompt), 0
        while len(ids) < len(prompt) + params.max_tokens:
            new = torch.tensor(ids[done:])
            logits = model(ForwardBatch(new, [0, len(new)], [done], pages, [0], [done > 0]), cache)
            done = len(ids)
            banned = self._ends if params.ignore_eos else frozenset()
            ids.append(self._sampler.sample(logits[0], choice, None, banned).token_id)
        return ids[len(prompt) :]


@dataclass(slots=True)
class Asked:
    """A request under way, and what came of it so far."""

    add: Add
    token_ids: list[int] = field(default_factory=list)
    is_aborted: bool = False


class Soak:
    """One random run on a model folder. `disk` is the folder of its disk tier; None leaves the tiers out."""

    def __init__(
        self,
        model: K3ForCausalLM,
        tokenizer: Tokenizer,
        model_dir: Path,
        seed: int,
        disk: Path | None = None,
        exactness: Exactness = "idle",
        cache_bytes: int = 400_000,
    ) -> None:
        self.random = random.Random(seed)
        ends = {tokenizer.special_tokens[name] for name in ENDS if name in tokenizer.special_tokens}
        self.naive = Naive(model, frozenset(ends))
        self.done: Counter[str] = Counter()
        self.sums: Counter[str] = Counter()
        self.asked: dict[str, Asked] = {}
        self._model, self._tokenizer = model, tokenizer
        self._names = itertools.count()
        self._transcripts: list[list[int]] = [[0]]
        self._settings = EngineSettings(
            model_dir=str(model_dir),
            dtype="float64",
            grid=self.random.choice([64, 128]),
            cache_bytes=cache_bytes,
            exactness=exactness,
            speculation=self.random.choice(["off", "prompt-lookup"]),
            max_running=self.random.choice([1, 3, 6]),
            disk_cache_dir=str(disk) if disk is not None else None,
            host_cache_bytes=self.random.choice([0, 60_000, 1_000_000]) if disk is not None else 0,
            disk_cache_bytes=self.random.choice([100_000, 4 << 20]),
        )
        self.engine = self._open()

    def _open(self) -> Engine:
        engine = Engine(Runner(self._model, self._settings), self._tokenizer, self._settings)
        engine.attach_tiers()
        # small promises and short slices, so that sequences are preempted for memory and for time
        engine.scheduler.open_ended_tokens = self.random.choice([2, 1024])
        engine.scheduler.slice_steps = self.random.choice([10, 512])
        return engine

    def act(self) -> None:
        """Do one random thing, then check the accounts."""
        actions = {self.ask: 12, self.step: 80, self.abort: 3, self.preempt: 4, self.flush: 1}
        action = self.random.choices(list(actions), list(actions.values()))[0]
        if self.random.random() < 0.003:
            action = self.restart
        action()
        self.done[action.__name__] += 1
        self.engine.cache.check()

    def finish(self) -> None:
        """Let all answers end; then nothing may be held any more."""
        while self.engine.has_work:
            self.step()
            self.done["step"] += 1
            self.engine.cache.check()
        if self.asked:
            raise AssertionError(f"{len(self.asked)} requests never ended")
        self._check_idle()

    def _check_idle(self) -> None:
        ledger = self.engine.cache.ledger()
        held = (ledger.private_pages, ledger.running_slots, len(self.engine.cache.holdings))
        if held != (0, 0, 0):
            raise AssertionError(f"an idle engine holds {held} pages, slots and tenants")

    # --- actions

    def ask(self) -> None:
        """A prompt that begins like something known."""
        if len(self.asked) >= 8:
            return
        dice = self.random
        known = dice.choice(self._transcripts)
        cut = dice.choice([len(known), dice.randint(0, len(known))])
        prompt = known[:cut] + [dice.randrange(ALPHABET) for _ in range(dice.choice([1, 3, 40, 150]))]
        prompt = prompt[-MAX_PROMPT:] if len(prompt) > MAX_PROMPT else prompt
        seed = dice.choice([None, None, 7, 8])
        params = SamplingParams(
            temperature=0.0 if seed is None else 1.0,
            top_p=0.9,
            seed=seed,
            max_tokens=dice.choice([1, 2, 9, 40]),
            ignore_eos=dice.random() < 0.5,
        )
        anchors = tuple(dice.sample(range(1, len(prompt) + 1), min(len(prompt), dice.choice([0, 1, 2]))))
        add = Add(request_id=str(next(self._names)), token_ids=prompt, params=params, checkpoint_at=anchors)
        self.asked[add.request_id] = Asked(add)
        self.engine.add(add)

    def step(self) -> None:
        for report in self.engine.step():
            self._take(report)

    def abort(self) -> None:
        if self.asked:
            name = self.random.choice(list(self.asked))
            self.asked[name].is_aborted = True
            self.engine.abort(name)

    def preempt(self) -> None:
        scheduler = self.engine.scheduler
        running = [s for s in scheduler.running if s.status in (Status.PREFILLING, Status.DECODING)]
        if running:
            scheduler.preempt(self.random.choice(running))

    def flush(self) -> None:
        self.engine.cache.flush(30)

    def restart(self) -> None:
        """A new engine over the old folder; requests under way are lost with the old one."""
        for name, asked in self.asked.items():
            asked.is_aborted = True
            self.engine.abort(name)
        while self.engine.scheduler.running:
            self.step()
        self.step()
        self._count()
        self.engine.cache.close()
        self.asked.clear()
        self.engine = self._open()

    def _take(self, report: Report) -> None:
        match report:
            case Generated(request_id, token_ids):
                self.asked[request_id].token_ids += token_ids
            case Failed(request_id, message):
                raise AssertionError(f"request {request_id} failed: {message}")
            case Finished(request_id=request_id):
                self._judge(self.asked.pop(request_id), report)
            case _:
                pass

    def _judge(self, asked: Asked, end: Finished) -> None:
        add, got = asked.add, asked.token_ids
        expected = self.naive.answer(add.token_ids, add.params)
        if not asked.is_aborted and end.reason != "length":
            raise AssertionError(f"request {add.request_id} ended with {end.reason}")
        if got != (expected[: len(got)] if asked.is_aborted else expected):
            raise AssertionError(
                f"request {add.request_id} of {len(add.token_ids)} tokens, {end.num_cached} of them cached"
                f" {end.num_cached_by_tier}, {end.num_preempted} times preempted: {got} is not {expected}"
            )
        self.sums["answers"] += not asked.is_aborted
        self.sums["preempted"] += end.num_preempted
        self.sums["cached"] += end.num_cached
        self.sums["accepted"] += end.num_accepted
        self._transcripts.append(add.token_ids + got)
        if len(self._transcripts) > 12:
            self._transcripts.pop(self.random.randrange(12))

    def _count(self) -> None:
        for name, value in self.engine.counters().values.items():
            if name.startswith(("hit_tokens_", "canonical_", "evicted_")):
                self.sums[name] += int(value)

    def close(self) -> None:
        self._count()
        self.engine.cache.close()


class Bitwise:
    """Resumes on states of cold runs, each beside a cold run of the same prompt; in float32, as served."""

    def __init__(
        self, model: K3ForCausalLM, tokenizer: Tokenizer, folder: Path, seed: int, exactness: Exactness
    ) -> None:
        settings = EngineSettings(
            model_dir=str(folder), grid=64, exactness=exactness, cache_bytes=2 << 20, speculation="off"
        )
        self.random = random.Random(seed)
        self.num_hits = 0
        self._warm, self._cold = (Engine(Runner(model, settings), tokenizer, settings) for _ in range(2))
        self._known = [self._text(400)]

    def compare(self) -> None:
        """One more prompt; AssertionError unless its logits are equal to the bit. In mode idle turns shorter
        than the grid resume from what decoding left; these are not compared."""
        start = self.random.choice(self._known)
        cut = self.random.randint(len(start) // 2, len(start))
        prompt = start[:cut][-400:] + self._text(self.random.choice([1, 5, 70]))
        self._cold.cache.clear()
        expected, num_cached = self._logits(self._cold, prompt)
        if num_cached:
            raise AssertionError(f"the cold engine had {num_cached} tokens cached")
        prefix = self._warm.cache.match(prompt)
        promised = prefix.is_exact or prefix.state_len == 0
        self._warm.cache.drop(prefix)
        found, num_cached = self._logits(self._warm, prompt)
        if promised and not torch.equal(found, expected):
            worst = float((found - expected).abs().max())
            raise AssertionError(f"{num_cached} of {len(prompt)} tokens cached: logits differ by {worst}")
        self.num_hits += promised and num_cached > 0
        self._known = [*self._known[-20:], prompt]

    def _text(self, length: int) -> list[int]:
        return self.random.choices(range(ALPHABET), k=length)

    @staticmethod
    def _logits(engine: Engine, prompt: list[int]) -> tuple[torch.Tensor, int]:
        """Logits behind the prompt, and how many of its tokens were cached."""
        seen: list[torch.Tensor] = []
        runner, num_cached = engine._runner, 0
        forward = runner.forward
        runner.forward = lambda batch: seen.append(forward(batch)) or seen[-1]
        params = SamplingParams(temperature=0, max_tokens=1)
        try:
            engine.add(Add(request_id="", token_ids=prompt, params=params))
            while engine.has_work:
                for report in engine.step():
                    num_cached = report.num_cached if isinstance(report, Finished) else num_cached
        finally:
            del runner.forward
        return next(logits for logits in seen if len(logits)), num_cached


def soak_bitwise(folder: Path, tokenizer: Tokenizer, count: int, seed: int) -> None:
    """Compare `count` prompts, half of them in each mode that promises equality."""
    model = load_model(folder, torch.float32)
    modes: tuple[Exactness, Exactness] = ("always", "idle")
    for mode in modes:
        pair = Bitwise(model, tokenizer, folder, seed, mode)
        for _ in range(count // 2):
            pair.compare()
        print(f"{mode}: {pair.num_hits} exact hits among {count // 2} prompts, all equal to the bit")


def main(arguments: list[str] | None = None) -> int:
    """Run until the time or the number of steps is up; prints what was done."""
    parser = argparse.ArgumentParser(prog="k3agent.backend.engine.soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bitwise", type=int, metavar="N", help="compare N resumes with cold runs instead")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_dir(NANO)
    begun, done, sums = time.monotonic(), Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        write_smallest(Path(folder), tokenizer.vocab_size)
        if options.bitwise is not None:
            soak_bitwise(Path(folder), tokenizer, options.bitwise, options.seed)
            return 0
        model = load_model(folder, torch.float64)
        for seed in itertools.count(options.seed):
            disk = Path(folder) / f"disk-{seed}" if seed % 2 else None
            mode: Exactness = ("idle", "off", "always")[seed % 3]
            soak = Soak(model, tokenizer, Path(folder), seed, disk, mode)
            try:
                for _ in range(500):
                    soak.act()
                soak.finish()
            except BaseException:
                print(f"seed {seed}, {mode}, after {dict(soak.done)}", file=sys.stderr)
                raise
            soak.close()
            done += soak.done
            sums += soak.sums
            if done.total() >= options.steps or time.monotonic() - begun > options.seconds:
                break
    print(f"{done.total()} actions without a difference: {dict(done)}")
    print(dict(sums))
    return 0


if __name__ == "__main__":
    sys.exit(main())
