"""Flags of `k3agent serve` that concern other engines."""

import argparse

from k3agent.backend.handover.asked import Split

COMMAND, SGLANG, KUBERNETES = "command", "sglang", "kubernetes"
NO_MASTER = "HOST-0"
DRAFT = "Inferact/Kimi-K3-DSpark"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Two groups: what to do instead of serving, and how vLLM is to run."""
    group = parser.add_argument_group("instead of serving")
    group.add_argument(
        "--print",
        nargs="?",
        const=COMMAND,
        choices=[COMMAND, SGLANG, KUBERNETES],
        help="show vLLM's command for the GPUs, SGLang's, or a Kubernetes manifest, and end",
    )
    group.add_argument(
        "--probe", metavar="URL", help="ask a running server what it can do: models, calls, reasoning, reuse"
    )
    group = parser.add_argument_group("vLLM, with --engine vllm or --print (its own flags go behind --)")
    add = group.add_argument
    add("--gpus", metavar="NxTYPE", help="GPUs of all nodes, e.g. 8xB300 or 2xNAME=96 (default: those here)")
    add("--nodes", type=int, metavar="N", help="machines that share the model (default: by the GPUs)")
    add("--node-rank", type=int, default=0, metavar="R", help="which of them this is, from 0")
    add("--master", default=NO_MASTER, metavar="HOST", help="address of node 0 for the others")
    add("--pp", type=int, metavar="N", help="pipeline stages")
    add("--dp", type=int, metavar="N", help="data-parallel groups; experts are dealt out among all")
    add("--cache-dtype", choices=["bf16", "fp8"], default="bf16", help="precision of the latent cache")
    add("--memory-share", type=float, metavar="X", help="part of a GPU's memory to use (default: 0.95)")
    add("--text-only", action="store_true", help="leave the image encoder out")
    add(
        "--draft", nargs="?", const=DRAFT, metavar="MODEL", help=f"guess ahead with a draft (default {DRAFT})"
    )
    add("--split", choices=[part.value for part in Split], help="only this half; the other runs elsewhere")
    add("--connector", choices=["nixl", "mooncake"], default="nixl", help="what joins the halves")
    add("--tool-parser", metavar="NAME", help="vLLM's parser of tool calls (default: by model)")
    add(
        "--python",
        metavar="FILE",
        help="the Python that has vLLM (default: `vllm` on the path, else this one)",
    )
    add("--ready-timeout", type=float, default=3600.0, metavar="S", help="seconds that loading may take")
    add("--no-probe", action="store_true", help="do not try the server out when it is ready")
