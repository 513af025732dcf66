"""A whole tiny model with kernels in Triton's interpreter says nearly what it says without."""

from pathlib import Path

import pytest
from support.triton_interpreter import interpreter_or_skip

interpreter_or_skip()

import torch  # noqa: E402  # after the skip
from support.model_harness import KIMI_LINEAR, Harness  # noqa: E402
from support.tiny_k3 import write_tiny_k3  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from k3agent.backend.bench import standins  # noqa: E402
from k3agent.backend.engine.messages import EngineSettings  # noqa: E402
from k3agent.backend.engine.runner import Runner  # noqa: E402
from k3agent.backend.engine.work import Work  # noqa: E402
from k3agent.backend.model.k3 import K3ForCausalLM  # noqa: E402
from k3agent.backend.model.moe import Experts  # noqa: E402
from k3agent.backend.model.step import Step  # noqa: E402
from k3agent.backend.model.weights import load_model  # noqa: E402

WIDE_ENOUGH = {"routed_expert_hidden_size": 64, "moe_intermediate_size": 64, "num_experts_per_token": 8}
"""For the matrix unit; and all experts are chosen, since one that is chosen by a hair changes everything."""


def models(folder: Path, **overrides: object) -> list[K3ForCausalLM]:
    write_tiny_k3(folder, **{**WIDE_ENOUGH, **overrides})
    return [load_model(folder, torch.bfloat16, kernels=kernels) for kernels in ("reference", "triton")]


@pytest.mark.parametrize("packed", ["experts", "none"])
def test_both_say_the_same(tmp_path: Path, packed: str) -> None:
    plain, fast = models(tmp_path, pack=packed)
    grouped = [module.is_capturable for module in fast.modules() if isinstance(module, Experts)]
    assert grouped and all(grouped)
    ids = torch.tensor([3, 1, 4, 1, 5, 9, 2])
    expected, found = Harness(plain).run(ids, [5, 1, 1]), Harness(fast).run(ids, [5, 1, 1])
    error = (found - expected).norm() / expected.norm()
    assert 0 < error < 0.05


def test_kimi_linear(tmp_path: Path) -> None:
    plain, fast = models(tmp_path, **KIMI_LINEAR, pack="none")
    ids = torch.tensor([3, 1, 4, 1, 5])
    expected, found = Harness(plain).run(ids, [4, 1]), Harness(fast).run(ids, [4, 1])
    assert (found - expected).norm() / expected.norm() < 0.05


class NoHost(TorchDispatchMode):
    """Raises where a value would have to come to the host, which ends the capture of a graph."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "bincount", "equal.default")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not any(name in str(func) for name in self.FORBIDDEN), f"{func} asks for a value"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["tiny-linear", "tiny-k3"])
def test_padded_steps_of_kernels_say_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a graph holds: tables with padding, and no list of the host."""
    torch.manual_seed(0)
    model = standins.build(standins.find(name), torch.device("cpu"), kernels="triton")
    assert model.is_capturable
    limits = {"cache_bytes": 4 << 20, "max_model_len": 256, "max_running": 4}
    runners = [
        Runner(model, EngineSettings(model_dir=str(tmp_path), graphs=graphs, **limits))
        for graphs in ("off", "padded")
    ]
    works = [
        Work(token_ids=[5, 3, 8, 1, 2], context_len=0, page_ids=[1], state_slot=0),
        Work(token_ids=[9] * 20, context_len=0, page_ids=[3], state_slot=2),
    ]
    decodes = [
        Work(token_ids=[7], context_len=5, page_ids=[1], state_slot=0),
        Work(token_ids=[6], context_len=0, page_ids=[2], state_slot=1),
        Work(token_ids=[4], context_len=20, page_ids=[3], state_slot=2),
    ]
    for batch in ([works[0]], [works[1]], decodes):
        plain = runners[0].forward(batch).clone()
        with monkeypatch.context() as patch, NoHost():
            patch.setattr(Step, "spans", property(lambda step: pytest.fail("a layer reads the host's lists")))
            patch.setattr(Step, "latent_places", property(lambda step: pytest.fail("the host's lists")))
            patch.setattr(Step, "last_rows", property(lambda step: step.tables.last_rows))
            padded = runners[1].forward(batch).clone()
        assert plain.isfinite().all()
        assert (padded - plain).norm() / plain.norm() < 0.03
