"""ModelConfig: every feature from the file, and each fault with its field and a remedy."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from k3agent.backend.config import ModelConfig
from k3agent.backend.errors import BackendError, ModelFilesError
from k3agent.backend.released import K3, KIMI_LINEAR


def test_k3() -> None:
    config = ModelConfig.from_dict(K3)
    kda = [i for i in range(93) if config.is_kda(i)]
    assert len(kda) == 69 and [i for i in range(93) if i not in kda] == [*range(3, 92, 4), 92]
    assert [i for i in range(93) if not config.is_moe(i)] == [0]
    assert (config.latent_width, config.expert_width, config.shared_width) == (576, 3584, 6144)
    assert config.linear_attn_config.gate_lower_bound == -5.0 and config.linear_attn_config.width == 12288
    assert config.vision_config is not None and config.vision_config.head_dim == 128
    assert (config.eos_token_id, config.media_placeholder_token_id) == (163586, 163605)


def test_kimi_linear() -> None:
    config = ModelConfig.from_dict(KIMI_LINEAR)
    assert [i + 1 for i in range(27) if not config.is_kda(i)] == [4, 8, 12, 16, 20, 24, 27]
    assert config.attn_res_block_size is None and config.q_lora_rank is None and config.vision_config is None
    assert (
        not config.linear_attn_config.use_full_rank_gate
        and config.linear_attn_config.gate_lower_bound is None
    )
    assert config.expert_width == 2304 and config.shared_width == 1024


def test_null_is_as_good_as_absent() -> None:
    raw = copy.deepcopy(K3)
    raw["text_config"]["attn_res_block_size"] = None
    raw["text_config"]["linear_attn_config"]["gate_lower_bound"] = None
    config = ModelConfig.from_dict(raw)
    assert config.attn_res_block_size is None and config.linear_attn_config.gate_lower_bound is None


REMOVED = object()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("architectures", ["LlamaForCausalLM"], "architectures 'LlamaForCausalLM' is not supported; use"),
        ("text_config.model_type", "llama", "model_type 'llama' is not supported"),
        ("text_config.vocab_size", REMOVED, "vocab_size is missing"),
        ("text_config.kv_lora_rank", None, "kv_lora_rank is missing"),
        ("text_config.hidden_size", "7168", "hidden_size is '7168', not of type int"),
        ("text_config.hidden_size", 0, "hidden_size 0 is too small"),
        ("text_config.rms_norm_eps", "x", "rms_norm_eps is 'x', not of type float"),
        ("text_config.moe_renormalize", 1, "moe_renormalize is 1, not of type bool"),
        ("text_config.num_experts_per_token", 897, "num_experts_per_token 897 is over num_experts 896"),
        ("text_config.hidden_act", "gelu", "hidden_act 'gelu' is not one of situ, silu"),
        ("text_config.moe_router_activation_func", "tanh", "moe_router_activation_func 'tanh'"),
        ("text_config.num_expert_group", 8, "num_expert_group 8 is not supported"),
        ("text_config.mla_use_nope", False, "mla_use_nope False is not supported"),
        ("text_config.tie_word_embeddings", True, "tie_word_embeddings true is not supported"),
        ("text_config.linear_attn_config", REMOVED, "linear_attn_config is missing"),
        ("text_config.linear_attn_config", [], "linear_attn_config is a list, not an object"),
        ("text_config.linear_attn_config.num_heads", REMOVED, "linear_attn_config.num_heads is missing"),
        ("text_config.linear_attn_config.kda_layers", [1, 2], "each of 1..93 must be"),
        ("text_config.linear_attn_config.kda_layers", ["1"], "kda_layers is .*not of type list of integers"),
        ("vision_config.patch_size", REMOVED, "vision_config.patch_size is missing"),
        ("text_config", [1], "text_config is a list, not an object"),
    ],
)
def test_faults_are_named(tmp_path: Path, path: str, value: Any, message: str) -> None:
    raw = copy.deepcopy(K3)
    *parents, last = path.split(".")
    part = raw
    for name in parents:
        part = part[name]
    if value is REMOVED:
        del part[last]
    else:
        part[last] = value
    file = tmp_path / "config.json"
    file.write_text(json.dumps(raw))
    with pytest.raises(ModelFilesError, match=message) as caught:
        ModelConfig.from_dir(tmp_path)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory. Give the folder of a model"),
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "holds a list, not an object"),
        ("{}", "architectures and model_type are missing"),
    ],
)
def test_bad_files(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(BackendError, match=message) as caught:
        ModelConfig.from_dir(tmp_path)
    assert "config.json" in str(caught.value)
