"""Step `layers`: every layer of a stand-in of real shape on several ranks beside the same layer on one.

One rank computes a prefill and a decode, and what each layer read and gave is kept. Then all ranks together
are given the same inputs, so that no layer's rounding reaches the next one.
"""

import argparse
import gc
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from k3agent.backend.bench import rank_results as results
from k3agent.backend.bench import rank_standin
from k3agent.backend.engine.messages import EngineSettings
from k3agent.backend.model.inputs import CacheTensors, ForwardBatch
from k3agent.backend.model.k3 import DecoderLayer, K3ForCausalLM
from k3agent.backend.model.step import Step
from k3agent.backend.parallel.comm import GroupComm
from k3agent.backend.parallel.shard import Shard

MODULE = "k3agent.backend.bench.rank_layers"
TOLERANCE = 5e-3
"""Of the difference, as a share of what the layer gives (both as root mean squares)."""
LENGTHS, TINY_LENGTHS = (300, 212), (70, 13)


@dataclass
class Seen:
    """What one part of a layer read and gave."""

    given: Tensor
    found: Tensor


@dataclass
class Phase:
    """A pass: its batch, and what each part of each layer saw, in order."""

    name: str
    batch: ForwardBatch
    seen: list[Seen] = field(default_factory=list)
    logits: Tensor | None = None


def phases(vocab_size: int, lengths: Sequence[int], device: torch.device) -> list[Phase]:
    """Prompts side by side, then a token for each; the same on all ranks."""
    names = ("prefill", "decode")
    return [
        Phase(*both) for both in zip(names, rank_standin.batches(vocab_size, lengths, device), strict=True)
    ]


def parts_of(model: K3ForCausalLM) -> Iterator[tuple[DecoderLayer, torch.nn.Module]]:
    """Attention and MLP of each layer."""
    for layer in model.model.layers:
        assert isinstance(layer, DecoderLayer)
        yield layer, layer.self_attn
        yield layer, layer.block_sparse_moe if layer.is_moe else layer.mlp


def name_of(part: torch.nn.Module) -> str:
    return type(part).__name__


def record(model: K3ForCausalLM, several: list[Phase], cache: CacheTensors) -> None:
    """Run the passes and keep what each part of each layer sees."""
    now = several[0]

    def keep(_part: torch.nn.Module, given: tuple[Tensor, ...], found: Tensor) -> None:
        now.seen.append(Seen(given[0].clone(), found.clone()))

    hooks = [part.register_forward_hook(keep) for _, part in parts_of(model)]
    for phase in several:
        now = phase
        phase.logits = model(phase.batch, cache).clone()
    for hook in hooks:
        hook.remove()


@torch.inference_mode()
def replay(model: K3ForCausalLM, phase: Phase, cache: CacheTensors, comm: GroupComm) -> Iterator[Tensor]:
    """What each part of each layer gives on all ranks for rank 0's inputs."""
    step = Step(phase.batch)
    width, rows = model.config.hidden_size, phase.batch.token_ids.shape[0]
    for place, (layer, part) in enumerate(parts_of(model)):
        given = torch.empty(rows, width, dtype=model.dtype, device=model.device)
        if phase.seen:
            given.copy_(phase.seen[place].given)
        comm.broadcast(given)
        if part is layer.self_attn:
            yield comm.all_reduce(part(given, step, cache))
        elif layer.is_moe:
            yield part(given, step.num_rows)
        else:
            yield comm.all_reduce(part(given))


def relative(found: Tensor, expected: Tensor) -> float:
    """The difference as a share of what was expected."""
    a, b = found.double(), expected.double()
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def compare(
    model: K3ForCausalLM,
    several: list[Phase],
    cache: CacheTensors,
    comm: GroupComm,
    table: results.Table | None,
) -> None:
    """Replay all passes; rank 0, which has a table, judges. All run the model freely at the end."""
    layout = results.name_of(comm.world, model.shard.expert_parallel)
    for phase in several:
        errors: dict[str, list[float]] = {}
        largest: dict[str, float] = {}
        for (_, part), place, found in zip(
            parts_of(model),
            range(len(model.model.layers) * 2),
            replay(model, phase, cache, comm),
            strict=True,
        ):
            if table is None:
                continue
            name, expected = name_of(part), phase.seen[place].found
            errors.setdefault(name, []).append(relative(found, expected))
            largest[name] = max(largest.get(name, 0.0), float((found - expected).abs().max()))
        for name, values in errors.items():
            if table is not None:
                value = f"{max(values):.1e} at most, in {len(values)} layers; one number {largest[name]:.1e}"
                table.add(f"{phase.name}, {name}", layout, value, max(values) <= TOLERANCE)
    fresh = new_cache(model, several)
    for phase in several:
        logits = model(phase.batch, fresh)
        if table is None or phase.logits is None:
            continue
        cosine = torch.nn.functional.cosine_similarity(logits, phase.logits, dim=-1).median()
        value = f"median cosine of logits {float(cosine):.5f}"
        table.add(f"{phase.name}, whole model without forcing", layout, value)


def new_cache(model: K3ForCausalLM, several: list[Phase]) -> CacheTensors:
    return rank_standin.cache_for(model, several[0].batch)


def work(options: argparse.Namespace, comm: GroupComm) -> int:
    """One rank's part of the comparison."""
    device = results.device_of(comm.rank, options)
    table = results.Table("layers", options.out, options.device) if comm.rank == 0 else None
    with tempfile.TemporaryDirectory() as folder:
        raw = rank_standin.group_of_k3(options.tiny, options.ranks)
        model_dir = rank_standin.write_config(Path(folder), raw)
        settings = EngineSettings(model_dir=model_dir, device=options.device)
        several = phases(raw["text_config"]["vocab_size"], TINY_LENGTHS if options.tiny else LENGTHS, device)
        if table is not None:
            model = rank_standin.load(settings, Shard())
            record(model, several, new_cache(model, several))
            del model
            _free(device)
        for ranks, dealt in results.layouts(options.ranks):
            assert ranks == comm.world
            model = rank_standin.load(settings, Shard(comm, dealt))
            compare(model, several, new_cache(model, several), comm, table)
            del model
            _free(device)
    return 0 if table is None else table.status


def _free(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def main(arguments: list[str]) -> int:
    return results.run_on_all(MODULE, "layers", __doc__, work, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
