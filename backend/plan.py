"""`k3agent plan`: what a model needs in memory, what fits on which GPUs, and which engine to start how.

Works from a configuration alone, without torch and without weights.
"""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from k3agent.backend.cli import Parser
from k3agent.backend.config import ModelConfig
from k3agent.backend.errors import BackendError
from k3agent.backend.handover import vllm
from k3agent.backend.handover.asked import HUB_NAMES, Asked, Family, Launch, Layout, Served, released_name
from k3agent.backend.handover.hardware import Machine, parse_type
from k3agent.backend.handover.layout import nodes_of
from k3agent.backend.memory import (
    CACHE_BYTES,
    GPUS,
    STATE_BYTES,
    Gpu,
    Model,
    Placement,
    Workload,
    best_placement,
)
from k3agent.backend.released import RELEASED
from k3agent.backend.shapes import as_stored, checkpoint_tensors, num_active_parameters, num_tensors

NANO_DIR = Path(__file__).resolve().parent / "weights" / "nano"
DEFAULT_COUNTS = (1, 2, 4, 8, 16, 32, 64)
# Most counts are of no interest to most models; without --gpus these types stand for the rest.
DEFAULT_GPUS = ("H100", "H200", "B200", "B300", "GB300", "MI300X", "MI355X", "RTX-PRO-6000")
# Weights in memory, at most; the rest is for caches, steps and the system.
CPU_SHARE = 0.6
_UNITS = {"k": 1 << 10, "m": 1 << 20}


def parser() -> argparse.ArgumentParser:
    """The flags of `k3agent plan`."""
    made = Parser(
        prog="k3agent plan",
        description="what a model needs in memory, and what fits on which GPUs",
        allow_abbrev=False,
    )
    add = made.add_argument
    add(
        "model",
        nargs="?",
        default="k3",
        help="k3 or kimi-k3, kimi-linear, nano, or a model folder",
    )
    add(
        "--gpus",
        action="append",
        metavar="NxTYPE",
        help="GPUs of all nodes, e.g. 8xB300 or 2xNAME=96; without a number the smallest that fits;"
        f" repeatable; types: {', '.join(GPUS)}",
    )
    add("--context", type=_tokens, metavar="N", help="tokens of a sequence, e.g. 131072, 128k or 1m")
    add("--cache-dtype", choices=list(CACHE_BYTES), default="bf16", help="precision of the latent cache")
    add("--state-dtype", choices=list(STATE_BYTES), default="fp32", help="precision of the KDA states")
    add("--chunk", type=_tokens, default=8192, metavar="N", help="tokens of one prefill chunk (default 8192)")
    add(
        "--memory-share",
        type=_share,
        default=0.95,
        metavar="X",
        help="part of a GPU's memory to use (default 0.95)",
    )
    add("--text-only", action="store_true", help="leave the image encoder out")
    add("--json", action="store_true", help="print JSON")
    add("--plot", type=Path, metavar="FILE", help="write a PNG: memory of one GPU against context")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Print the plan; the exit status."""
    args = parser().parse_args(argv)
    try:
        model = load(args.model)
        gpus = [parse_type(text) for text in args.gpus or DEFAULT_GPUS]
        workload = Workload(
            context=args.context or model.config.max_position_embeddings,
            cache_dtype=args.cache_dtype,
            state_dtype=args.state_dtype,
            chunk=args.chunk,
            memory_share=args.memory_share,
            keeps_vision=not args.text_only,
        )
        placements = plan(model, gpus, workload)
        if args.plot:
            write_plot(args.plot, model, placements, workload)
    except BackendError as error:
        print(f"k3agent plan: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(report(model, placements, workload), indent=2))
    else:
        print("\n".join(table(model, placements, workload)))
        if args.plot:
            print(f"\nplot: {args.plot}")
    return 0


# --- inputs


def load(name: str) -> Model:
    """A released model by name, or a folder: its weights if it has them, else what its configuration says."""
    name = name if Path(name).expanduser().is_dir() else released_name(name) or name
    raw, folder = RELEASED.get(name), None
    if raw is None:
        folder = NANO_DIR if name == "nano" else Path(name).expanduser()
        if not folder.is_dir():
            raise BackendError(f"no model {name!r}; give {', '.join(RELEASED)}, nano, or a model folder")
        ModelConfig.from_dir(folder)  # the checks of a damaged file
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = ModelConfig.from_dict(raw)
    text = raw.get("text_config") or raw
    is_packed = bool(text.get("quantization_config") or raw.get("quantization_config"))
    is_nested = "text_config" in raw
    if folder is None or not any(folder.glob("*.safetensors")):
        tensors = checkpoint_tensors(config, is_packed=is_packed, is_nested=is_nested)
        return Model(name, config, list(tensors))
    # lazy: safetensors is there only with the extra for local models
    try:
        from k3agent.backend.model.files import read_folder
    except ImportError as error:
        raise BackendError(
            f"{folder} has weights, reading them needs {error.name}: pip install k3agent[local]"
        ) from error
    found = {key: (stored.dtype, stored.shape) for key, stored in read_folder(folder).items()}
    plain = checkpoint_tensors(config, is_packed=False, is_nested=is_nested)
    return Model(name, config, list(as_stored(plain, found)))


def plan(model: Model, gpus: Sequence[tuple[Gpu, int | None]], workload: Workload) -> list[Placement]:
    """The best layout of each type and number. Without a number: the smallest that fits, and the next one."""
    found: list[Placement] = []
    for gpu, count in gpus:
        counts = (count,) if count else DEFAULT_COUNTS
        row = [best_placement(model, gpu, number, workload) for number in counts]
        placements = [p for p in row if p is not None]
        if not placements:
            raise BackendError(
                f"{model.name} cannot be cut for {', '.join(map(str, counts))} x {gpu.name}: the number must"
                " divide its heads or its experts"
            )
        if count is None:
            first = next((i for i, p in enumerate(placements) if p.fits), len(placements) - 1)
            placements = placements[first : first + 2]
        found += placements
    return found


def _tokens(text: str) -> int:
    number, unit = (text[:-1], _UNITS[text[-1].lower()]) if text[-1:].lower() in _UNITS else (text, 1)
    if not number.isdigit() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tokens such as 131072, 128k or 1m")
    return int(number) * unit


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share above 0 and at most 1")
    return share


# --- what to start


def recommend(model: Model, placement: Placement) -> tuple[str, Launch] | None:
    """Engine and commands for a placement; None when it does not fit, or no engine can run it so."""
    is_fp8 = placement.workload.cache_dtype == "fp8"
    if not placement.fits or (is_fp8 and (placement.count == 1 or not placement.gpu.has_fp8_latents)):
        return None
    if placement.count == 1:
        limits = _limits(placement)
        command = ["k3agent", "serve", "--model", _model_name(model), "--device", "cuda", *limits]
        return "bundled", Launch(commands=[command])
    cut, workload = placement.layout, placement.workload
    asked = Asked(
        model=Served(
            name=HUB_NAMES.get(model.name, _model_name(model)),
            family=Family.KIMI_LINEAR if model.config.attn_res_block_size is None else Family.K3,
        ),
        gpu=placement.gpu,
        layout=Layout(tensor=cut.tensor_ranks, data=cut.groups, has_expert_parallel=cut.groups > 1),
        nodes=nodes_of(Machine(placement.gpu, placement.count)),
        context=workload.context,
        max_seqs=max(1, placement.num_sequences // cut.groups),
        chunk=workload.chunk,
        memory_share=workload.memory_share,
        has_fp8_cache=is_fp8,
        is_text_only=not workload.keeps_vision,
    )
    return "vllm", vllm.launch(asked, None, ["vllm", "serve"])


def _model_name(model: Model) -> str:
    return "DIR" if model.name in RELEASED else model.name


def _limits(placement: Placement) -> list[str]:
    one, workload = placement.latent_bytes + placement.state_bytes, placement.workload
    size = placement.free_bytes // one * one
    return ["--max-model-len", str(workload.context), "--cache-bytes", str(size)]


# --- output


def summary(model: Model, workload: Workload) -> dict[str, Any]:
    """The figures that no GPU changes."""
    tensors = model.tensors
    parts: dict[str, int] = {}
    for tensor in tensors:
        parts[tensor.part] = parts.get(tensor.part, 0) + tensor.num_bytes
    return {
        "name": model.name,
        "num_tensors": num_tensors(tensors),
        "weight_bytes": model.weight_bytes,
        "weight_bytes_by_part": dict(sorted(parts.items(), key=lambda item: -item[1])),
        "parameters": sum(t.num_parameters for t in tensors),
        "active_parameters": num_active_parameters(model.config, tensors),
        "layers": {"kda": model.num_kda, "mla": model.num_mla},
        "latent_bytes_per_token": {dtype: model.latent_bytes(1, dtype) for dtype in CACHE_BYTES},
        "latent_bytes_at_context": {
            dtype: model.latent_bytes(workload.context, dtype) for dtype in CACHE_BYTES
        },
        "state_bytes_per_sequence": {dtype: model.state_bytes(dtype) for dtype in STATE_BYTES},
        "conv_tail_bytes_per_sequence": model.tail_bytes(),
        "attn_res_bytes_per_chunk": model.attn_res_bytes(workload.chunk),
        "workspace_bytes_per_chunk": model.workspace_bytes(workload.chunk),
    }


def report(model: Model, placements: Sequence[Placement], workload: Workload) -> dict[str, Any]:
    """Everything as JSON values; sizes in bytes, those of a placement for its fullest GPU."""
    rows = []
    for p in placements:
        engine, launch = recommend(model, p) or (None, None)
        rows.append(
            {
                "gpu": p.gpu.name,
                "gpu_bytes": p.gpu.memory_bytes,
                "count": p.count,
                "layout": p.layout.name,
                "tensor_parallel": p.layout.tensor_ranks,
                "data_parallel": p.layout.groups,
                "weight_bytes": p.weight_bytes,
                "activation_bytes": p.activation_bytes,
                "latent_bytes_per_sequence": p.latent_bytes,
                "state_bytes_per_sequence": p.state_bytes,
                "free_bytes": p.free_bytes,
                "fits": p.fits,
                "max_sequences": p.num_sequences,
                "max_context": p.max_context,
                "notes": p.reasons,
                "engine": engine,
                "commands": launch.lines if launch else [],
                "command_notes": launch.notes if launch else [],
            }
        )
    return {
        "model": summary(model, workload),
        "window": model.config.max_position_embeddings,
        "workload": {
            "context": workload.context,
            "cache_dtype": workload.cache_dtype,
            "state_dtype": workload.state_dtype,
            "chunk": workload.chunk,
            "memory_share": workload.memory_share,
            "vision": workload.keeps_vision and model.config.vision_config is not None,
        },
        "placements": rows,
    }


def table(model: Model, placements: Sequence[Placement], workload: Workload) -> list[str]:
    """The same for people; GB are 10^9 bytes."""
    figures = summary(model, workload)
    context, chunk = workload.context, workload.chunk
    lines = [
        f"{model.name}: {figures['parameters']:,} parameters,"
        f" {figures['active_parameters']:,} active for a token",
        f"  weights            {model.weight_bytes:,} bytes in {figures['num_tensors']:,} tensors"
        f" (routed experts {model.expert_bytes:,})",
        *(
            f"  latents in {dtype:<4}    {model.latent_bytes(1, dtype):,} bytes a token,"
            f" {_gb(model.latent_bytes(context, dtype))} at {context:,} tokens, on each tensor-parallel GPU"
            for dtype in CACHE_BYTES
        ),
        f"  state              {model.state_bytes(workload.state_dtype):,} bytes a sequence in"
        f" {workload.state_dtype}, and {model.tail_bytes():,} of convolution inputs",
        f"  activations        {_gb(model.attn_res_bytes(chunk))} of attention residuals and"
        f" {_gb(model.workspace_bytes(chunk))} of workspace for a chunk of {chunk:,} tokens",
        "",
    ]
    head = ("GPUs", "layout", "weights", "activations", "free", "sequences", "longest", "verdict")
    rows: list[tuple[str, ...]] = [head]
    for p in placements:
        verdict = "fits" if p.fits else "too small"
        rows.append(
            (
                f"{p.count} x {p.gpu.name}",
                p.layout.name,
                _gb(p.weight_bytes),
                _gb(p.activation_bytes),
                _gb(p.free_bytes),
                f"{p.num_sequences:,}",
                f"{min(p.max_context, model.config.max_position_embeddings):,}",
                verdict,
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines += [
        "",
        f"sequences: of {context:,} tokens each, over all GPUs; longest: one sequence alone, within"
        f" the model's window of {model.config.max_position_embeddings:,}; sizes a GPU",
    ]
    lines += [f"{p.count} x {p.gpu.name}: {reason}" for p in placements for reason in p.reasons]
    commands = [*_on_the_cpu(model), *_commands(model, placements)]
    return lines + (["", "to start:", *commands] if commands else [])


def _on_the_cpu(model: Model) -> list[str]:
    """The command for this machine without a GPU, if its memory holds the weights unpacked in float32."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    unpacked = 4 * sum(tensor.num_parameters for tensor in model.tensors)
    if unpacked > CPU_SHARE * memory:
        return []
    return [
        "# this machine's CPU:",
        f"k3agent serve --model {shlex.quote(_model_name(model))} --device cpu",
    ]


def _commands(model: Model, placements: Sequence[Placement]) -> list[str]:
    """For each type, for the smallest number of GPUs that fits: a command for each node."""
    lines, notes, seen = list[str](), list[str](), set[str]()
    for p in placements:
        advice = recommend(model, p)
        if advice is None or p.gpu.name in seen:
            continue
        seen.add(p.gpu.name)
        launch = advice[1]
        for rank, line in enumerate(launch.lines):
            node = f", node {rank}" if len(launch.lines) > 1 else ""
            lines += [f"# {p.count} x {p.gpu.name}{node}:", line]
        notes += [f"# {note}" for note in launch.notes if f"# {note}" not in notes]
    return notes + lines


def _gb(size: int) -> str:
    return f"{size / 1e9:,.3f} GB"


def write_plot(file: Path, model: Model, placements: Sequence[Placement], workload: Workload) -> None:
    """Memory of one GPU with one sequence against its context, a line for each placement."""
    try:
        # lazy: 1 s, and only this option needs it
        from matplotlib.figure import Figure
        from matplotlib.ticker import MultipleLocator
    except ImportError as error:
        raise BackendError(f"--plot needs matplotlib ({error}): pip install 'k3agent[plots]'") from error
    points = [workload.context * step // 64 for step in range(1, 65)]
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    for number, p in enumerate(placements):
        base = p.weight_bytes + p.activation_bytes + p.state_bytes
        sizes = [(base + model.latent_bytes(n, workload.cache_dtype)) / 1e9 for n in points]
        colour = f"C{number % 10}"
        axes.plot(points, sizes, color=colour, label=f"{p.count} x {p.gpu.name}, {p.layout.name}")
        axes.axhline(p.usable_bytes / 1e9, color=colour, linestyle=":", linewidth=0.8)
    axes.set_xlabel("context of one sequence, tokens")
    axes.set_ylabel("memory of a GPU, GB (dotted: what may be used)")
    axes.set_title(f"{model.name}: weights, activations, state and {workload.cache_dtype} latents")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.set_xlim(0, points[-1])
    axes.xaxis.set_major_locator(MultipleLocator(points[-1] / 8))
    axes.xaxis.set_major_formatter(lambda n, _: f"{n / 1024:g}k")
    axes.legend(fontsize="small", loc="lower right")
    try:
        figure.savefig(file, format="png", dpi=120)
    except OSError as error:
        raise BackendError(f"--plot {file}: {error.strerror or error}; choose another file") from error


if __name__ == "__main__":
    sys.exit(main())
