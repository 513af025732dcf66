"""Batches of given lengths and the model that runs exported weights: what training is compared with."""

from pathlib import Path

import torch

from k3agent.backend.model.inputs import ForwardBatch, allocate_cache
from k3agent.backend.model.weights import load_model
from k3agent.backend.training.network import Batch
from k3agent.backend.training.recurrence import Documents

LENGTHS = (37, 1, 2, 70)


def make_batch(lengths: tuple[int, ...], vocab: int) -> Batch:
    ids = torch.randint(0, vocab, (sum(lengths),), generator=torch.Generator().manual_seed(3))
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    position = torch.cat([torch.arange(n) for n in lengths])[:, None].int()
    return Batch(
        ids, ids.roll(-1), torch.ones(len(ids)), position, Documents.of(offsets, torch.device("cpu"))
    )


def run_model(folder: Path, dtype: torch.dtype, batch: Batch) -> torch.Tensor:
    model = load_model(folder, dtype)
    offsets = batch.documents.offsets.tolist()
    count = len(offsets) - 1
    cache = allocate_cache(model.config, 2 * count, count, dtype)
    step = ForwardBatch(
        batch.token_ids,
        offsets,
        [0] * count,
        torch.arange(2 * count).view(count, 2),
        list(range(count)),
        [False] * count,
        torch.arange(len(batch.token_ids)),
    )
    with torch.inference_mode():
        return model.forward(step, cache)
