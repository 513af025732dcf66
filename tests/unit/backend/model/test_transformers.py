"""Kimi-Linear against the class of `transformers` on fresh random checkpoints, where that is installed."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.model_harness import Harness

from k3agent.backend.model.random_weights import write_random
from k3agent.backend.model.weights import load_model

transformers = pytest.importorskip("transformers")
if not hasattr(transformers, "KimiLinearForCausalLM"):
    pytest.skip("this transformers has no Kimi-Linear", allow_module_level=True)

CONFIG: dict[str, Any] = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 6,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-5,
    "q_lora_rank": None,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "mla_use_nope": True,
    "hidden_act": "silu",
    "num_experts": 10,
    "num_experts_per_token": 3,
    "num_shared_experts": 1,
    "moe_intermediate_size": 40,
    "moe_router_activation_func": "sigmoid",
    "moe_renormalize": True,
    "routed_scaling_factor": 2.446,
    "num_expert_group": 1,
    "topk_group": 1,
    "use_grouped_topk": True,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "linear_attn_config": {
        "kda_layers": [1, 2, 3, 5],
        "full_attn_layers": [4, 6],
        "head_dim": 16,
        "num_heads": 5,
        "short_conv_kernel_size": 4,
    },
}
CASES: dict[str, dict[str, Any]] = {
    "as-released": {},
    "one-head": {"num_attention_heads": 1, "num_key_value_heads": 1, "linear_attn_config": {"num_heads": 1}},
    "two-shared": {"num_shared_experts": 2, "num_experts_per_token": 1},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("num_tokens", [1, 37, 131])
def test_logits_agree(tmp_path: Path, case: str, num_tokens: int) -> None:
    raw = copy.deepcopy(CONFIG)
    overrides = copy.deepcopy(CASES[case])
    raw["linear_attn_config"] |= overrides.pop("linear_attn_config", {})
    raw |= overrides
    write_random(tmp_path, raw, seed=num_tokens, pack="none")
    ids = torch.randint(3, 211, (num_tokens,), generator=torch.Generator().manual_seed(num_tokens))
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"], report
    assert not report.get("mismatched_keys")
    # reading the folder must leave it as it was
    assert json.loads((tmp_path / "config.json").read_text()) == raw
    with torch.inference_mode():
        expected = theirs(ids.unsqueeze(0)).logits[0]
    found = Harness(load_model(tmp_path, torch.float32)).run(ids, [num_tokens])
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)
    single = Harness(load_model(tmp_path, torch.float32)).run(ids, [1] * num_tokens)
    torch.testing.assert_close(single, expected, rtol=0, atol=2e-4)
