"""The command of an SGLang server. It is only shown: `k3agent serve` starts vLLM.

Source of the flags: SGLang's documentation of Kimi K3 and of its hierarchical cache.
"""

from collections.abc import Iterator

from k3agent.backend.errors import BackendError
from k3agent.backend.handover.asked import Asked, Family, Launch, node_notes
from k3agent.backend.handover.vllm import DRAFT_TOKENS, HOPPER, check_cache

MASTER_PORT = 20000


def launch(asked: Asked) -> Launch:
    """The commands, one for each node. Raises BackendError for what SGLang cannot do."""
    if asked.gpu is None:
        raise BackendError("SGLang's command is for GPUs; name them with --gpus")
    check_cache(asked)
    if asked.split is not None:
        raise BackendError("--split is built for vLLM only")
    head = ["sglang", "serve", "--model-path", asked.model.name]
    common = [*_serving(asked), *_shape(asked), *_cache(asked), *_parsers(asked), *_draft(asked)]
    commands = [[*head, *common, *_node(asked, rank), *asked.extra] for rank in range(asked.nodes)]
    is_far = asked.model.family is Family.K3 and asked.nodes > 1
    environ = {"NCCL_MNNVL_ENABLE": "1", "NCCL_CUMEM_ENABLE": "1"} if is_far else {}
    if asked.model.family is Family.K3:
        environ["SGLANG_K3_ATTN_RES_MODE"] = "jit"
    return Launch(commands=commands, environ=environ, notes=node_notes(asked))


def _serving(asked: Asked) -> Iterator[str]:
    yield from ("--host", asked.host, "--port", str(asked.port))
    if asked.served_name:
        yield from ("--served-model-name", asked.served_name)
    if asked.model.family is not Family.OTHER:
        yield "--trust-remote-code"
    yield from ("--enable-metrics", "--enable-cache-report")


def _shape(asked: Asked) -> Iterator[str]:
    layout = asked.layout
    # Its --tp counts all ranks that share the weights; experts are dealt out among the same ones.
    total = layout.tensor * layout.data
    yield from ("--tp", str(total))
    if layout.has_expert_parallel:
        yield from ("--ep-size", str(total))
    if layout.pipeline > 1:
        yield from ("--pp-size", str(layout.pipeline))
    if asked.context is not None:
        yield from ("--context-length", str(asked.context))
    if asked.max_seqs is not None:
        yield from ("--max-running-requests", str(asked.max_seqs))
    if asked.chunk is not None:
        yield from ("--chunked-prefill-size", str(asked.chunk))
    if asked.model.family is Family.K3 and asked.gpu is not None and asked.gpu.name in HOPPER:
        yield from (
            "--moe-runner-backend",
            "marlin",
            "--decode-attention-backend",
            "flashmla",
            "--enable-symm-mem",
        )
        yield from ("--mem-fraction-static", "0.85")


def _cache(asked: Asked) -> Iterator[str]:
    if asked.model.family is not Family.OTHER:
        yield from ("--mamba-full-memory-ratio", "0.9", "--mamba-radix-cache-strategy", "extra_buffer_lazy")
    if asked.has_fp8_cache:
        yield from ("--kv-cache-dtype", "fp8_e4m3")
    if asked.offload_bytes:
        yield from ("--enable-hierarchical-cache", "--hicache-size", f"{asked.offload_bytes / 1e9:.0f}")


def _parsers(asked: Asked) -> Iterator[str]:
    if asked.model.family is Family.K3:
        yield from ("--reasoning-parser", "kimi_k3", "--tool-call-parser", "kimi_k3")
    elif asked.tool_parser:
        yield from ("--tool-call-parser", asked.tool_parser)


def _draft(asked: Asked) -> Iterator[str]:
    if asked.draft:
        yield from ("--speculative-algorithm", "DSPARK", "--speculative-dspark-block-size", str(DRAFT_TOKENS))
        yield from ("--speculative-draft-model-path", asked.draft)


def _node(asked: Asked, rank: int) -> Iterator[str]:
    if asked.nodes > 1:
        yield from ("--nnodes", str(asked.nodes), "--node-rank", str(rank))
        yield from ("--dist-init-addr", f"{asked.master}:{MASTER_PORT}")
