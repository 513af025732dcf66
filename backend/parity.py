"""Compares a weights folder with expected numbers in `oracle.npz`: `python -m k3agent.backend.parity FOLDER`.

The file holds input_ids [T], logits [T, vocab], layer_out [L, T, D] (the running sum after each layer) and
kda_state_vk [KDA layers, H, V, K] after the last token, all from another implementation.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.errors import BackendError
from k3agent.backend.model.inputs import ForwardBatch, allocate_cache
from k3agent.backend.model.k3 import K3ForCausalLM
from k3agent.backend.model.weights import load_model
from torch import Tensor

TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-3}
"""Largest absolute difference of logits of size 4. fp32 is loose because random miniatures are badly
conditioned."""


@dataclass(frozen=True)
class Difference:
    """Largest absolute difference of one quantity."""

    name: str
    largest: float


def compare(folder: str | Path, dtype: torch.dtype, pieces: list[int] | None = None) -> list[Difference]:
    """Run the ids of the oracle through the model, in one piece or in the given ones; one entry a
    quantity."""
    folder = Path(folder)
    file = folder / "oracle.npz"
    if not file.exists():
        raise BackendError(f"{file} does not exist. Give a folder with expected numbers.")
    with np.load(file) as stored:
        expected = {name: torch.from_numpy(stored[name]) for name in stored.files}
    model = load_model(folder, dtype)
    found = run(model, expected["input_ids"].long(), pieces)
    return [
        Difference(name, (value - expected[name].to(value.dtype)).abs().max().item())
        for name, value in found.items()
    ]


def run(model: K3ForCausalLM, ids: Tensor, pieces: list[int] | None = None) -> dict[str, Tensor]:
    """The quantities of the oracle by name, computed by our model."""
    num_pages = -(-len(ids) // PAGE_SIZE)
    cache = allocate_cache(model.config, num_pages, 1, model.dtype, model.device)
    logits, layers, done = [], [], 0
    for piece in ids.split(pieces or [len(ids)]):
        count = len(piece)
        pages = torch.arange(num_pages).unsqueeze(0)
        taps: list[Tensor] = []
        batch = ForwardBatch(piece, [0, count], [done], pages, [0], [done > 0], torch.arange(count))
        logits.append(model(batch, cache, taps))
        layers.append(torch.stack(taps))
        done += count
    states = [cache.kda_states[i][0].transpose(-1, -2) for i in sorted(cache.kda_states)]
    return {
        "logits": torch.cat(logits),
        "layer_out": torch.cat(layers, dim=1),
        "kda_state_vk": torch.stack(states),
    }


def main(arguments: list[str] | None = None) -> int:
    """Print one line a quantity; exit status 1 when a difference is above the tolerance of the dtype."""
    parser = argparse.ArgumentParser(prog="k3agent.backend.parity", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    options = parser.parse_args(arguments)
    dtype = getattr(torch, options.dtype)
    try:
        differences = compare(options.folder, dtype)
    except BackendError as error:
        print(error, file=sys.stderr)
        return 2
    for difference in differences:
        print(f"{difference.name:16} {difference.largest:.3g}")
    is_good = all(difference.largest <= TOLERANCES[dtype] for difference in differences)
    print("agrees" if is_good else f"differs by more than {TOLERANCES[dtype]:g}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
