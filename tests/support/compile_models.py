"""Compiles all kernels that Kimi-Linear and a rank of K3 run on a GPU, at their real widths, and prints what
they take; fails where one needs more shared memory than Hopper has. Nothing is run.
"""

import copy
import sys
import tempfile
from typing import Any

import torch

from k3agent.backend.bench import standins
from k3agent.backend.bench.standins import Standin
from k3agent.backend.engine.messages import EngineSettings
from k3agent.backend.engine.runner import Runner
from k3agent.backend.engine.work import Work
from k3agent.backend.kernels import registry
from k3agent.backend.released import K3, KIMI_LINEAR
from support.compile_attention import as_on_h200
from support.gpu_compiler import Compiled, compiling, has_assembler

MOST_SHARED = 232_448
SMALL: dict[str, Any] = {"num_hidden_layers": 2, "vocab_size": 1024, "intermediate_size": 512}
LAYERS = {"kda_layers": [1], "full_attn_layers": [2]}


def linear() -> dict[str, Any]:
    raw: dict[str, Any] = copy.deepcopy(KIMI_LINEAR)
    raw |= SMALL | {"num_experts": 8}
    raw["linear_attn_config"] |= LAYERS
    return raw


def rank() -> dict[str, Any]:
    raw = copy.deepcopy(K3)
    del raw["vision_config"]
    raw["text_config"] |= SMALL | {"num_experts": 16, "first_k_dense_replace": 0, "attn_res_block_size": 1}
    raw["text_config"]["linear_attn_config"] |= LAYERS
    return raw


MODELS = {
    "linear": Standin("linear", "", linear, is_packed=False),
    "rank": Standin("rank", "", rank, is_packed=True, ranks=16),
}


def passes(runner: Runner) -> list[list[Work]]:
    """Decodes of several sizes, short and long prefills."""
    decodes = [
        [Work(token_ids=[1], context_len=5, page_ids=[b], state_slot=b) for b in range(count)]
        for count in (1, 8, min(32, runner.num_slots))
    ]
    pages = list(range(40))
    prefills = [
        [Work(token_ids=[1] * count, context_len=64, page_ids=pages, state_slot=0)]
        for count in (16, 64, 512, 2048)
    ]
    return decodes + prefills


def compile_model(name: str) -> list[Compiled]:
    model = standins.build(MODELS[name], torch.device("cpu"), kernels="triton")
    assert model.is_capturable
    with tempfile.TemporaryDirectory() as folder:
        settings = EngineSettings(
            model_dir=folder, graphs="padded", cache_bytes=300 << 20, max_model_len=8192, max_running=32
        )
        runner = Runner(model, settings)
    with compiling() as found:
        for works in passes(runner):
            runner.forward(works)
    return found


def main(names: list[str]) -> int:
    if not has_assembler():
        print("ptxas cannot be run", file=sys.stderr)
        return 1
    # as if there were a GPU: what is compiled here is not run
    registry.runs_triton = lambda device: True
    as_on_h200()
    worst = 0
    for name in names or list(MODELS):
        compiled = compile_model(name)
        for one in sorted({(c.name, c.registers, c.spilled_bytes, c.shared_bytes) for c in compiled}):
            print(name, *one)
            worst = max(worst, one[3])
    return int(worst > MOST_SHARED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
