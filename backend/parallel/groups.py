"""How the ranks of one model find each other: the meeting place, the device of each, the process group.

All ranks live on one machine. They meet at a store that listens on loopback alone; what they exchange goes
over loopback (gloo) or between the GPUs (NCCL).
"""

import os
import socket
import sys
from datetime import timedelta

import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]  # documented there

from k3agent.backend.errors import BackendError
from k3agent.backend.parallel.comm import GroupComm
from k3agent.backend.parallel.symmetric import MULTICAST, SymmetricSums, TorchMemory, agree

LOOPBACK = "127.0.0.1"
TIMEOUT_S = 600.0
"""How long a rank waits for the slowest one, to start, to load or in a step, before that counts as stuck."""

SET_UP_S = 60.0
"""How long ranks wait for one that cannot make symmetric memory, before they go on without it."""


def open_store(world: int) -> TCPStore:
    """Rank 0's meeting place, on a free port of loopback that nobody else can take meanwhile."""
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    return TCPStore(
        LOOPBACK,
        port,
        world,
        is_master=True,
        timeout=timedelta(seconds=TIMEOUT_S),
        wait_for_workers=False,
        # the store closes it
        master_listen_fd=listener.detach(),
    )


def join_store(world: int, port: int) -> TCPStore:
    """The meeting place as another rank sees it."""
    timeout = timedelta(seconds=TIMEOUT_S)
    return TCPStore(LOOPBACK, port, world, is_master=False, timeout=timeout, wait_for_workers=False)


def join_group(
    store: TCPStore, rank: int, world: int, backend: str, device: torch.device, *, is_symmetric: bool = False
) -> GroupComm:
    """Become `rank` of the group; returns when all have. `is_symmetric`: with small sums through symmetric
    memory, if all ranks can have them.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(
        backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=TIMEOUT_S)
    )
    comm = GroupComm(device=device)
    # connections are made at the first collective: whoever cannot be reached is known now
    comm.least(rank)
    if is_symmetric:
        comm.small_sums = _symmetric_sums(store, comm, device)
    return comm


def _symmetric_sums(store: TCPStore, comm: GroupComm, device: torch.device) -> SymmetricSums | None:
    group = torch.distributed.group.WORLD
    assert group is not None
    # torch's ranks meet at the store
    store.set_timeout(timedelta(seconds=SET_UP_S))
    try:
        return agree(TorchMemory(group, device), comm.rank, comm.world, comm.least)
    finally:
        store.set_timeout(timedelta(seconds=TIMEOUT_S))


def leave_group() -> None:
    """Take the process group down; harmless without one."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def backend_for(device: str) -> str:
    """The collectives of a kind of device."""
    return "nccl" if torch.device(device).type == "cuda" else "gloo"


def device_of(rank: int, world: int, device: str) -> torch.device:
    """Rank r has GPU r of those that this process sees; all share the CPU."""
    kind = torch.device(device)
    if kind.type == "cuda" and not torch.cuda.is_available():
        raise BackendError(
            f"device {device}: this process sees no GPU (torch {torch.__version__}); use --device cpu, or"
            " install a CUDA build of torch and its driver"
        )
    if kind.type != "cuda" or world == 1:
        return kind
    if kind.index is not None:
        raise BackendError(f"device {device} is one GPU, tensor_parallel {world} needs as many; use cuda")
    found = torch.cuda.device_count()
    if found < world:
        raise BackendError(
            f"tensor_parallel {world} needs {world} GPUs, this process sees {found}; use fewer ranks, or show"
            " it more of them with CUDA_VISIBLE_DEVICES"
        )
    return torch.device("cuda", rank)


def set_environment() -> None:
    """Keep what ranks exchange on this machine; what the user has set stays. Call before joining.

    NVLink multicast stays off: where GPUs are shared between machines, it can take them out of service. NCCL
    registers no buffers of graphs: it would do so in a capture, where ranks wait for each other, so one that
    fails there would leave the others waiting.
    """
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    for name, value in (
        ("GLOO_SOCKET_IFNAME", loopback),
        ("NCCL_SOCKET_IFNAME", loopback),
        ("NCCL_NVLS_ENABLE", "0"),
        ("NCCL_GRAPH_REGISTER", "0"),
        (MULTICAST, "1"),
    ):
        os.environ.setdefault(name, value)
