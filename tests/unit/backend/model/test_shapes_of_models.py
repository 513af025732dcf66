"""Laws on models of any shape: other head counts, odd widths, one expert, unequal batches, odd lengths."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.model_harness import Harness, Place
from support.tiny_k3 import write_tiny_k3

from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.model.weights import load_model

EXACT = {"rtol": 0.0, "atol": 1e-9}


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    """Overrides of tiny K3 in all directions that the configuration has."""
    num_layers = draw(st.integers(1, 5))
    kinds = draw(st.lists(st.booleans(), min_size=num_layers, max_size=num_layers))
    num_experts = draw(st.integers(1, 9))
    is_kimi_linear = draw(st.booleans())
    latent = None if is_kimi_linear else draw(st.sampled_from([None, 17, 32, 64]))
    shape: dict[str, Any] = {
        "num_hidden_layers": num_layers,
        "hidden_size": draw(st.sampled_from([32, 33, 50, 96])),
        "intermediate_size": draw(st.sampled_from([24, 65])),
        "num_attention_heads": draw(st.integers(1, 5)),
        "q_lora_rank": draw(st.sampled_from([None, 9, 32])),
        "kv_lora_rank": draw(st.sampled_from([7, 32])),
        "qk_nope_head_dim": draw(st.sampled_from([5, 16])),
        "qk_rope_head_dim": draw(st.sampled_from([1, 8])),
        "v_head_dim": draw(st.sampled_from([3, 16])),
        "mla_use_output_gate": draw(st.booleans()),
        "hidden_act": draw(st.sampled_from(["situ", "silu"])),
        "attn_res_block_size": None if is_kimi_linear else draw(st.sampled_from([None, 1, 2, 3, 7])),
        "num_experts": num_experts,
        "num_experts_per_token": draw(st.integers(1, num_experts)),
        "num_shared_experts": draw(st.integers(0, 2)),
        "moe_intermediate_size": draw(st.sampled_from([13, 32])),
        "routed_expert_hidden_size": latent,
        "latent_moe_use_norm": latent is not None and draw(st.booleans()),
        "moe_renormalize": draw(st.booleans()),
        "moe_router_activation_func": draw(st.sampled_from(["sigmoid", "softmax"])),
        "routed_scaling_factor": draw(st.sampled_from([1.0, 2.446])),
        "first_k_dense_replace": draw(st.integers(0, 2)),
        "moe_layer_freq": draw(st.integers(1, 2)),
        "pack": draw(st.sampled_from(["none", "experts", "all"])),
        "linear_attn_config": {
            "kda_layers": [i + 1 for i, is_kda in enumerate(kinds) if is_kda],
            "full_attn_layers": [i + 1 for i, is_kda in enumerate(kinds) if not is_kda],
            "head_dim": draw(st.sampled_from([4, 12, 32])),
            "num_heads": draw(st.integers(1, 5)),
            "short_conv_kernel_size": draw(st.integers(1, 5)),
            "use_full_rank_gate": draw(st.booleans()),
            "gate_lower_bound": draw(st.sampled_from([None, -5.0, -1.0])),
        },
    }
    return shape


def cut(draw: st.DrawFn, total: int) -> list[int]:
    """Lengths of pieces that add up to `total`."""
    borders = sorted(draw(st.sets(st.integers(1, total - 1), max_size=4))) if total > 1 else []
    return [b - a for a, b in zip([0, *borders], [*borders, total], strict=True)]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_unequal_batches_and_pieces_equal_each_sequence_alone(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    lengths = data.draw(st.lists(st.integers(1, 140), min_size=1, max_size=3))
    with tempfile.TemporaryDirectory() as name:
        write_tiny_k3(Path(name), seed=data.draw(st.integers(0, 99)), **shape)
        packed = data.draw(st.sampled_from([None, False]))
        model = load_model(name, torch.float64, packed_experts=packed)
    generator = torch.Generator().manual_seed(sum(lengths))
    texts = [torch.randint(0, 256, (n,), generator=generator) for n in lengths]
    expected = [Harness(model).run(text, [len(text)]) for text in texts]
    assert all(logits.isfinite().all() for logits in expected)
    harness = Harness(model, num_pages=3 * len(texts))
    order = data.draw(st.permutations(range(3 * len(texts))))
    places = [Place(list(order[3 * i : 3 * i + 3]), i) for i in range(len(texts))]
    assert max(lengths) <= 3 * PAGE_SIZE
    plans = [cut(data.draw, len(text)) for text in texts]
    found: list[list[torch.Tensor]] = [[] for _ in texts]
    while any(plans):
        # whoever still has a piece takes part in the step
        active = [i for i, plan in enumerate(plans) if plan]
        work = [(places[i], texts[i][places[i].length : places[i].length + plans[i].pop(0)]) for i in active]
        for i, logits in zip(active, harness.step(work), strict=True):
            found[i].append(logits)
    for pieces, logits in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.cat(pieces), logits, **EXACT)
