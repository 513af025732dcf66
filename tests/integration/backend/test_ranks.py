"""Two processes that share a model over gloo give the logits of one."""

import subprocess
import sys
from pathlib import Path

import torch
from support.tiny_k3 import write_tiny_k3

from k3agent.backend.model.inputs import ForwardBatch, allocate_cache
from k3agent.backend.model.weights import load_model

RANK = """
import sys, torch
from k3agent.backend.model.inputs import ForwardBatch, allocate_cache
from k3agent.backend.model.weights import load_model
from k3agent.backend.parallel.comm import GroupComm
from k3agent.backend.parallel.shard import Shard
folder, rank, ep = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
meet = f"file://{folder}/meet-{ep}"
torch.distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=2)
model = load_model(folder, torch.float64, shard=Shard(GroupComm(), expert_parallel=ep))
ids = torch.arange(30)
batch = ForwardBatch(ids, [0, 30], [0], torch.tensor([[0]]), [0], [False], ids)
logits = model(batch, allocate_cache(model.config, 1, 1, torch.float64))
torch.save(logits, f"{folder}/{rank}.pt")
torch.distributed.destroy_process_group()
"""


def test_two_processes_equal_one(tmp_path: Path) -> None:
    write_tiny_k3(tmp_path, moe_intermediate_size=64)
    model = load_model(tmp_path, torch.float64)
    ids = torch.arange(30)
    batch = ForwardBatch(ids, [0, 30], [0], torch.tensor([[0]]), [0], [False], ids)  # type: ignore[arg-type]
    expected = model(batch, allocate_cache(model.config, 1, 1, torch.float64))
    for ep in ("1", "2"):
        command = [sys.executable, "-P", "-c", RANK, str(tmp_path)]
        ranks = [subprocess.Popen([*command, str(rank), ep]) for rank in range(2)]
        assert [process.wait(100) for process in ranks] == [0, 0]
        for rank in range(2):
            found = torch.load(tmp_path / f"{rank}.pt")
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
