"""The command of a vLLM server: flags by model, GPU and version.

Source of the flags: vLLM's recipes for Kimi K3 and its own parser of arguments, 0.27 to 0.33.
"""

import json
from collections.abc import Iterator

from k3agent.backend.errors import BackendError
from k3agent.backend.handover.asked import Asked, Family, Launch, Split, node_notes

Version = tuple[int, ...]

K3_FROM: Version = (0, 27, 1)
KIMI_LINEAR_FROM: Version = (0, 11, 2)
KIMI_LINEAR_BROKEN: Version = (0, 12, 0)
MATCH_UNIT_FROM: Version = (0, 33)
DP_PORT = 13345
DRAFT_TOKENS = 7
READY_TIMEOUT_S = 3600
# beginning of an architecture or of a model's name to the parsers of calls and of reasoning
_PARSERS: dict[str, tuple[str, str | None]] = {
    "KimiK2": ("kimi_k2", "kimi_k2"),
    "GptOss": ("openai", "openai_gptoss"),
    "Qwen3": ("hermes", "qwen3"),
    "Qwen2": ("hermes", None),
    # Not by architecture, which many others share.
    "Llama-3": ("llama3_json", None),
    "Meta-Llama-3": ("llama3_json", None),
    "Mistral": ("mistral", None),
}
HOPPER = ("H100", "H200")


def check(asked: Asked, version: Version | None) -> None:
    """Raises BackendError for what vLLM, or this version of it, cannot do."""
    family, shown = asked.model.family, ".".join(map(str, version or ()))
    if version is not None and family is Family.K3 and version < K3_FROM:
        raise BackendError(f"vLLM {shown} does not know Kimi K3; install 0.27.1 or newer")
    if version is not None and family is Family.KIMI_LINEAR:
        if version < KIMI_LINEAR_FROM:
            raise BackendError(f"vLLM {shown} does not know Kimi-Linear; install 0.11.2 or newer, not 0.12.0")
        if version[:3] == KIMI_LINEAR_BROKEN:
            raise BackendError(
                "vLLM 0.12.0 fails on Kimi-Linear (`indexer_rotary_emb`); install another version"
            )
    check_cache(asked)
    if asked.draft and asked.layout.pipeline > 1:
        raise BackendError("a draft model does not work with --pp: vLLM refuses it; leave one of the two out")
    if asked.draft and asked.gpu is None:
        raise BackendError("a draft model needs a GPU")


def check_cache(asked: Asked) -> None:
    """Raises BackendError for a precision that no engine's attention reads on that GPU."""
    if asked.has_fp8_cache and asked.gpu is not None and not asked.gpu.has_fp8_latents:
        raise BackendError(
            f"no attention kernel reads an FP8 cache on {asked.gpu.name}; leave --cache-dtype fp8 out"
        )


def launch(asked: Asked, version: Version | None, program: list[str]) -> Launch:
    """The commands, one for each node. `program`: what starts the server, model and flags left out.

    Raises BackendError for what cannot be. A version of None: the newest.
    """
    check(asked, version)
    head = [*program, *_model(asked, is_module="-m" in program)]
    common = [word for part in (_serving(asked), _shape(asked), _cache(asked, version)) for word in part]
    common += [*_parsers(asked), *_recipe(asked), *_draft(asked), *_split(asked)]
    commands = [[*head, *common, *_node(asked, rank), *asked.extra] for rank in range(asked.nodes)]
    return Launch(commands=commands, environ=_environ(asked), notes=[*_notes(asked), *node_notes(asked)])


def _model(asked: Asked, *, is_module: bool) -> list[str]:
    return ["--model", asked.model.name] if is_module else [asked.model.name]


def _serving(asked: Asked) -> Iterator[str]:
    yield from ("--host", asked.host, "--port", str(asked.port))
    if asked.served_name:
        yield from ("--served-model-name", asked.served_name)
    if asked.model.family is not Family.OTHER:
        # Both bring code of their own for tokens and chat.
        yield "--trust-remote-code"
    yield "--enable-prompt-tokens-details"


def _shape(asked: Asked) -> Iterator[str]:
    layout = asked.layout
    if asked.gpu is not None:
        yield from ("--tensor-parallel-size", str(layout.tensor))
    if layout.pipeline > 1:
        yield from ("--pipeline-parallel-size", str(layout.pipeline))
    if layout.data > 1:
        yield from ("--data-parallel-size", str(layout.data))
    if layout.has_expert_parallel:
        yield "--enable-expert-parallel"
    for flag, value in (
        ("--max-model-len", asked.context),
        ("--max-num-seqs", asked.max_seqs),
        ("--max-num-batched-tokens", asked.chunk),
    ):
        if value is not None:
            yield from (flag, str(value))
    if asked.gpu is None:
        yield from ("--enforce-eager", "--dtype", "float32")
    elif asked.memory_share is not None:
        yield from ("--gpu-memory-utilization", f"{asked.memory_share:g}")
    if asked.is_text_only and asked.model.family is Family.K3:
        yield "--language-model-only"


def _cache(asked: Asked, version: Version | None) -> Iterator[str]:
    is_hybrid = asked.model.family is not Family.OTHER
    if asked.model.family is Family.KIMI_LINEAR and asked.gpu and asked.gpu.name.startswith("MI"):
        yield "--no-enable-prefix-caching"
        return
    yield "--enable-prefix-caching"
    if is_hybrid and (version is None or version >= MATCH_UNIT_FROM):
        yield from ("--prefix-match-unit", "128")
    elif is_hybrid:
        yield from ("--mamba-cache-mode", "align")
    if asked.has_fp8_cache:
        yield from ("--kv-cache-dtype", "fp8")
        options = {"use_prefill_query_quantization": True, "mla_prefill_backend": "flashinfer"}
        if asked.model.family is Family.K3:
            yield from ("--attention-config", _json(options))
    if asked.offload_bytes:
        yield from ("--kv-offloading-size", f"{asked.offload_bytes / 2**30:g}")
        yield from ("--kv-offloading-backend", "native")


def parsers_of(asked: Asked) -> tuple[str | None, str | None]:
    """vLLM's parsers of calls and of reasoning for the model; None where none is known."""
    if asked.tool_parser:
        return asked.tool_parser, None
    if asked.model.family is Family.K3:
        return "kimi_k3", "kimi_k3"
    if asked.model.family is Family.KIMI_LINEAR:
        return "kimi_k2", None
    names = [*map(str, asked.model.config.get("architectures") or ()), asked.model.name.rpartition("/")[2]]
    for beginning, found in _PARSERS.items():
        if any(_plain(name).startswith(_plain(beginning)) for name in names):
            return found
    return None, None


def _plain(name: str) -> str:
    return name.replace("-", "").lower()


def _parsers(asked: Asked) -> Iterator[str]:
    calls, reasoning = parsers_of(asked)
    if calls:
        yield from ("--enable-auto-tool-choice", "--tool-call-parser", calls)
    if reasoning:
        yield from ("--reasoning-parser", reasoning)


def _recipe(asked: Asked) -> Iterator[str]:
    """What K3 needs on some GPUs."""
    if asked.model.family is not Family.K3 or asked.gpu is None:
        return
    yield from ("--load-format", "fastsafetensors")
    if asked.gpu.name in HOPPER:
        yield from ("--moe-backend", "marlin", "--attention-backend", "FLASHMLA")
        yield from ("--disable-custom-all-reduce", "--no-enable-flashinfer-autotune")


def _draft(asked: Asked) -> Iterator[str]:
    if asked.draft:
        speculative = {
            "model": asked.draft,
            "method": "dspark",
            "num_speculative_tokens": DRAFT_TOKENS,
            "draft_sample_method": "probabilistic",
            "rejection_sample_method": "block",
        }
        if asked.gpu is not None and asked.gpu.name not in HOPPER:
            speculative["attention_backend"] = "FLASHINFER_MLA"
        yield from ("--speculative-config", _json(speculative))


_CONNECTORS = {"nixl": "NixlConnector", "mooncake": "MooncakeConnector"}
_ROLES = {Split.PREFILL: "kv_producer", Split.DECODE: "kv_consumer"}


def _split(asked: Asked) -> Iterator[str]:
    if asked.split is not None:
        role = "kv_both" if asked.connector == "nixl" else _ROLES[asked.split]
        transfer = {"kv_connector": _CONNECTORS[asked.connector], "kv_role": role}
        yield from ("--kv-transfer-config", _json(transfer))
        if asked.model.family is not Family.OTHER:
            yield "--no-disable-hybrid-kv-cache-manager"


def _node(asked: Asked, rank: int) -> Iterator[str]:
    """What differs from node to node."""
    if asked.nodes == 1:
        return
    layout = asked.layout
    if layout.data > 1 and layout.data % asked.nodes == 0:
        local = layout.data // asked.nodes
        yield from ("--data-parallel-size-local", str(local))
        yield from ("--data-parallel-address", asked.master, "--data-parallel-rpc-port", str(DP_PORT))
        if rank:
            yield from ("--data-parallel-start-rank", str(rank * local), "--headless")
        return
    yield from ("--nnodes", str(asked.nodes), "--node-rank", str(rank), "--master-addr", asked.master)
    if rank:
        yield "--headless"


def _environ(asked: Asked) -> dict[str, str]:
    found = {"VLLM_ENGINE_READY_TIMEOUT_S": str(READY_TIMEOUT_S), "VLLM_NO_USAGE_STATS": "1"}
    if asked.model.family is Family.K3:
        found["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    if asked.split is not None and asked.model.family is not Family.OTHER:
        found["VLLM_SSM_CONV_STATE_LAYOUT"] = "DS"
    if asked.gpu is None:
        found["VLLM_CPU_KVCACHE_SPACE"] = "1"
    return found


def _notes(asked: Asked) -> Iterator[str]:
    calls, _ = parsers_of(asked)
    if calls is None:
        yield "no parser of calls is known for this model: k3agent reads them in the text; see --tool-parser"
    if asked.model.is_folder is False and asked.model.family is Family.OTHER:
        yield "the size of this model is not known here: whether it fits was not checked"
    if asked.split is not None:
        yield "the other half needs the same command with the other --split, and a router before both"


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
