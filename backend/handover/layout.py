"""How the GPUs share a model, and the reasons when they cannot hold it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3agent.backend.errors import BackendError
from k3agent.backend.handover.asked import Family, Layout, Served
from k3agent.backend.handover.hardware import Machine
from k3agent.backend.memory import GPUS, Gpu, Model, Workload, best_placement, place
from k3agent.backend.memory import Layout as Cut

NODE_GPUS = 8
"""GPUs of a machine, unless the user says otherwise."""
OTHER_SHARE = 0.75
"""Part of the memory that weights of a model whose caches are not worked out may take."""
CPU_SHARE = 0.5
KIMI_LINEAR_TENSOR = 4
"""GPUs among which its makers cut it; more of them serve other sequences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The user's own division, None where it is left open."""

    tensor: int | None = None
    pipeline: int | None = None
    data: int | None = None

    def __bool__(self) -> bool:
        return (self.tensor, self.pipeline, self.data) != (None, None, None)


# K3 as it is known to run; (type, GPUs) to the division. Source: launch recipes of vLLM, spec of serving 5.1.
_K3_LAYOUTS: Mapping[tuple[str, int], Layout] = {
    **{(name, 8): Layout(tensor=8) for name in ("B300", "GB300", "MI355X")},
    **{(name, 16): Layout(tensor=8, pipeline=2) for name in ("B200", "GB200")},
    ("H200", 16): Layout(tensor=8, data=2, has_expert_parallel=True),
    ("H100", 32): Layout(tensor=8, data=4, has_expert_parallel=True),
}


def choose(
    model: Served, sizes: Model | None, machine: Machine, workload: Workload, wanted: Wanted, nodes: int
) -> Layout:
    """The division. Raises BackendError, with figures, if the model does not fit.

    sizes: of K3 and Kimi-Linear, whose caches are worked out; None for others, of which weights count alone.
    """
    if machine.gpu is None:
        return _on_the_cpu(model, wanted)
    if machine.count % nodes:
        raise BackendError(f"--nodes {nodes} does not divide {machine}; give the GPUs of all nodes together")
    if wanted:
        layout = _filled(wanted, machine.count)
    elif model.family is Family.K3 and (machine.gpu.name, machine.count) in _K3_LAYOUTS:
        layout = _K3_LAYOUTS[machine.gpu.name, machine.count]
    elif model.family is Family.KIMI_LINEAR and machine.count % KIMI_LINEAR_TENSOR == 0:
        groups = machine.count // KIMI_LINEAR_TENSOR
        layout = Layout(tensor=KIMI_LINEAR_TENSOR, data=groups, has_expert_parallel=groups > 1)
    elif sizes is not None:
        found = best_placement(sizes, machine.gpu, machine.count, workload)
        if found is None:
            raise BackendError(f"{model.name} cannot be cut for {machine}: heads or experts do not divide")
        cut = found.layout
        layout = Layout(tensor=cut.tensor_ranks, data=cut.groups, has_expert_parallel=cut.groups > 1)
    else:
        layout = Layout(tensor=_dividing(model.config, machine.count // nodes), pipeline=nodes)
    _check(model, sizes, machine, machine.gpu, workload, layout)
    return layout


def nodes_of(machine: Machine) -> int:
    """How many machines so many GPUs usually are."""
    link = machine.gpu.link if machine.gpu else 1
    return -(-machine.count // max(link, NODE_GPUS)) if machine.count else 1


def _filled(wanted: Wanted, count: int) -> Layout:
    """What the user left open is worked out from the number of GPUs."""
    pipeline, data = wanted.pipeline or 1, wanted.data or 1
    tensor = wanted.tensor or max(count // (pipeline * data), 1)
    layout = Layout(tensor=tensor, pipeline=pipeline, data=data, has_expert_parallel=data > 1)
    if layout.num_gpus > count:
        raise BackendError(
            f"--tp {tensor} x --pp {pipeline} x --dp {data} needs {layout.num_gpus} GPUs, {count} are there"
        )
    return layout


def _dividing(config: Mapping[str, Any], count: int) -> int:
    """The most GPUs, of those there are, that divide the heads."""
    text = config.get("text_config") or config
    heads = text.get("num_attention_heads")
    if not isinstance(heads, int):
        return count
    return next(number for number in range(min(count, heads), 0, -1) if heads % number == 0)


def _check(
    model: Served, sizes: Model | None, machine: Machine, gpu: Gpu, workload: Workload, layout: Layout
) -> None:
    if sizes is None:
        share = layout.tensor * layout.pipeline
        room = int(gpu.memory_bytes * OTHER_SHARE) * share
        if model.weight_bytes is not None and model.weight_bytes > room:
            raise BackendError(
                f"{model.name}: weights of {_gb(model.weight_bytes)} do not fit {share} x {gpu.name}, which"
                f" have room for {_gb(room)} beside caches"
            )
        return
    pipelined = layout.tensor * layout.pipeline
    cut = Cut(layout.num_gpus, layout.tensor) if layout.data > 1 else Cut(layout.tensor, layout.tensor)
    placement = place(sizes, gpu, layout.num_gpus, cut, workload)
    weights = placement.weight_bytes // (layout.pipeline if layout.data == 1 else 1)
    free = placement.usable_bytes - weights - placement.activation_bytes
    one = (placement.latent_bytes + placement.state_bytes) // layout.pipeline
    if free < one:
        needed = _smallest(sizes, gpu, workload)
        raise BackendError(
            f"{model.name} does not fit {machine}: its weights are {_gb(sizes.weight_bytes)}, {_gb(weights)}"
            f" for each of {pipelined * layout.data} GPUs with {_gb(placement.usable_bytes)} to use;"
            f" {_gb(max(free, 0))} are left for caches, a sequence of {workload.context:,} tokens needs"
            f" {_gb(one)}. {needed}"
        )


def _smallest(sizes: Model, gpu: Gpu, workload: Workload) -> str:
    """What would do, in words."""
    for count in (1, 2, 4, 8, 16, 32, 64):
        found = best_placement(sizes, gpu, count, workload)
        if found is not None and found.fits:
            return f"{count} x {gpu.name} would do; `k3agent plan` says more."
    larger = [other.name for other in GPUS.values() if other.memory_gb > gpu.memory_gb]
    return f"Take larger GPUs ({', '.join(larger)}), or a shorter --max-model-len; `k3agent plan` says more."


def _on_the_cpu(model: Served, wanted: Wanted) -> Layout:
    if wanted:
        raise BackendError("--tp, --pp and --dp divide a model among GPUs; no GPU was found here")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if model.family is not Family.OTHER:
        raise BackendError(
            f"{model.name} needs GPUs: other engines have kernels for KDA and attention residuals for them"
            " only. Name the GPUs to plan for with --gpus, or use --engine bundled."
        )
    if model.weight_bytes is not None and model.weight_bytes > CPU_SHARE * memory:
        raise BackendError(
            f"{model.name}: weights of {_gb(model.weight_bytes)} are too much for the {_gb(memory)} of memory"
            " here"
        )
    return Layout()


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
