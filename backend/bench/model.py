"""Times decode and prefill of a model alone: `k3agent bench model --model DIR|random-nano`.

`random-nano` is the embedded model's configuration with random weights: its speed is that of the trained one.
"""

import argparse
import platform
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import torch

from k3agent.backend.bench.cli import RANDOM_NANO
from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.errors import BackendError
from k3agent.backend.model.inputs import ForwardBatch, allocate_cache
from k3agent.backend.model.k3 import K3ForCausalLM
from k3agent.backend.model.random_weights import write_random
from k3agent.backend.model.weights import load_model

NANO_CONFIG: dict[str, Any] = {
    "model_type": "kimi_k3",
    "text_config": {
        "vocab_size": 4096,
        "hidden_size": 448,
        "intermediate_size": 1024,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "q_lora_rank": 192,
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 48,
        "qk_rope_head_dim": 16,
        "v_head_dim": 64,
        "mla_use_output_gate": True,
        "hidden_act": "situ",
        "attn_res_block_size": 4,
        "num_experts": 16,
        "num_experts_per_token": 4,
        "num_shared_experts": 2,
        "moe_intermediate_size": 128,
        "routed_expert_hidden_size": 224,
        "latent_moe_use_norm": True,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 16384,
        "linear_attn_config": {
            "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11],
            "full_attn_layers": [4, 8, 12],
            "head_dim": 128,
            "num_heads": 4,
            "use_full_rank_gate": True,
            "gate_lower_bound": -5.0,
        },
    },
}
PREFILL_PIECE = 512
"""Tokens of one prefill step, as an engine would cut them."""


@dataclass(frozen=True)
class Timing:
    """Tokens a second of one phase."""

    phase: str
    tokens_per_s: float


class Runner:
    """One sequence, advanced step by step over random ids."""

    def __init__(self, model: K3ForCausalLM, max_tokens: int) -> None:
        self._model = model
        self._num_pages = -(-max_tokens // PAGE_SIZE)
        self._pages = torch.arange(self._num_pages).unsqueeze(0)
        self._cache = allocate_cache(model.config, self._num_pages, 1, model.dtype, model.device)
        self._ids = torch.randint(0, model.config.vocab_size, (max_tokens,), generator=torch.Generator())
        self.length = 0

    def step(self, num_tokens: int) -> None:
        ids = self._ids[self.length : self.length + num_tokens]
        batch = ForwardBatch(ids, [0, num_tokens], [self.length], self._pages, [0], [self.length > 0])
        self._model(batch, self._cache)
        self.length += num_tokens


def measure(model: K3ForCausalLM, context: int, decode_tokens: int) -> list[Timing]:
    """Prefill `context` tokens in pieces, then decode one token at a time after them; the first pass warms
    up."""
    timings: list[Timing] = []
    for _ in range(2):
        runner = Runner(model, context + decode_tokens)
        start = time.perf_counter()
        while runner.length < context:
            runner.step(min(PREFILL_PIECE, context - runner.length))
        middle = time.perf_counter()
        for _ in range(decode_tokens):
            runner.step(1)
        end = time.perf_counter()
        timings = [
            Timing("prefill", context / (middle - start)),
            Timing("decode", decode_tokens / (end - middle)),
        ]
    return timings


def load(name: str, dtype: torch.dtype, int8_decode: bool = False) -> K3ForCausalLM:
    """A model folder, or the embedded configuration with random weights."""
    if name != RANDOM_NANO:
        return load_model(name, dtype, packed_experts=False, int8_decode=int8_decode)
    with tempfile.TemporaryDirectory() as folder:
        write_random(folder, NANO_CONFIG, seed=0, pack="all")
        return load_model(folder, dtype, packed_experts=False, int8_decode=int8_decode)


def run(options: argparse.Namespace) -> int:
    """Print hardware, settings and tokens a second."""
    threads = options.threads or torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        model = load(options.model, getattr(torch, options.dtype), options.int8)
    except BackendError as error:
        print(error, file=sys.stderr)
        return 2
    kind = f"{options.dtype}, int8 decode" if options.int8 else options.dtype
    print(f"{options.model}, {kind}, {threads} threads, torch {torch.__version__}", end=", ")
    print(f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}, context {options.context}")
    for timing in measure(model, options.context, options.tokens):
        print(f"{timing.phase:8} {timing.tokens_per_s:9.1f} tokens/s")
    return 0
