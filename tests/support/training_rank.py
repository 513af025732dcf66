"""One of two ranks in training, as a process of its own, and the batches that it shares with the tests."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from k3agent.backend.parallel import groups
from k3agent.backend.training import export
from k3agent.backend.training.data import HostBatch, pack, synthetic_stream
from k3agent.backend.training.expert_batches import Batching
from k3agent.backend.training.team import Plan, Team
from k3agent.backend.training.trainer import Trainer, to_device, write

CPU = torch.device("cpu")
STEPS = 3


PARALLEL = Batching(room=8.0, is_parallel=True)
"""Room for every token at every expert."""


def trainer(team: Team | None = None, seed: int = 0, batching: Batching | None = None) -> Trainer:
    config = export.model_config(export.tiny_config(64))
    made = Trainer(config, CPU, dtype=torch.float64, compiled=False, seed=seed, team=team, batching=batching)
    made.refresh(rounded=False)
    return made


def half(step: int, rank: int) -> HostBatch:
    """128 tokens; the loss weights of one rank's are a third of the other's."""
    documents = (("64", document) for document in synthetic_stream(10 * step + rank, 0, stage="64"))
    host = pack(documents, 128, 64, 63)
    host.weights *= 1.0 if rank else 1 / 3
    return host


def joined(a: HostBatch, b: HostBatch) -> HostBatch:
    names = ("token_ids", "labels", "weights", "position")
    parts: dict[str, Any] = {name: np.concatenate((getattr(a, name), getattr(b, name))) for name in names}
    return HostBatch(**parts, offsets=np.concatenate((a.offsets, b.offsets[1:] + a.offsets[-1])))


def tensors_of(made: Trainer) -> dict[str, torch.Tensor]:
    p = made.parameters
    return {"matrices": p.matrices.master, "vectors": p.vectors.master, "bias": made.network.bias}


def meet(rank: int, port: int) -> Team:
    torch.set_num_threads(1)
    groups.set_environment()
    return Team(groups.join_group(groups.join_store(2, port), rank, 2, "gloo", CPU))


def train_with_dealt_experts(rank: int, port: int, folder: str) -> None:
    """A process: a rank that has half of the experts, from the same seed as one that has all."""
    team = meet(rank, port)
    made = trainer(team, batching=PARALLEL)
    start = made.collect()
    for step in range(STEPS):
        host = half(step, rank)
        plan = team.agree(Plan(0.0, False, False, False, float(host.weights.sum())))
        made.step(to_device(host, CPU), 1.0, rounded=False, share=plan.weight)
    measures, state = made.read_measures(), made.collect()
    again = trainer(team, seed=9, batching=PARALLEL)
    if rank == 0:
        write(Path(folder), state)
    team.sums([1.0])
    again.load(Path(folder))
    is_same = torch.equal(again.parameters.matrices.master, made.parameters.matrices.master)
    is_same &= torch.equal(again.optimizer.momentum, made.optimizer.momentum)
    found = {"start": start["matrices"], "state": state, "loss": measures.loss, "is_same": is_same}
    found |= {"own": made.parameters.matrices.size, "lost": measures.num_lost}
    torch.save(found, f"{folder}/{rank}.pt")
    # Rank 0 has the store; nobody leaves before both are done.
    team.sums([1.0])
    team.leave()


def train_beside(rank: int, port: int, folder: str) -> None:
    """A process: a rank's side of everything the tests below look at."""
    team = meet(rank, port)
    # Another seed: what rank 0 has goes to all.
    made = trainer(team, seed=rank)
    apart, again = made.align(rounded=False), made.align(rounded=False)
    plans = []
    for step in range(STEPS):
        host = half(step, rank)
        wish = Plan(0.1 * step + 0.5 * rank, step == rank, step == 2 * rank, False, float(host.weights.sum()))
        plans.append(team.agree(wish))
        made.step(to_device(host, CPU), 1.0, rounded=False, share=plans[-1].weight)
    measures = made.read_measures()
    plans.append(team.agree(Plan(0.9, False, False, is_over=rank == 1)))
    found = {"plans": [vars(plan) for plan in plans], "apart": (apart, again), **tensors_of(made)}
    found |= {"loss": measures.loss, "num_tokens": made.num_tokens, "loads": measures.loads}
    torch.save(found, f"{folder}/{rank}.pt")
    # Rank 0 has the store; nobody leaves before both are done.
    team.sums([1.0])
    team.leave()
