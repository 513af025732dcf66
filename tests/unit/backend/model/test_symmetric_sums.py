"""Small sums through memory that all ranks see: what goes there, that results outlive the next sum, and that
either all ranks have it or none."""

import os
import threading
from typing import Any

import pytest
import torch
from support.threads import ThreadComm, on_ranks
from torch import Tensor

from k3agent.backend.parallel import groups
from k3agent.backend.parallel.symmetric import (
    MOST_BYTES,
    MULTICAST,
    ONE_SHOT,
    TWO_SHOT,
    SymmetricSums,
    TorchMemory,
    agree,
)

BF16, FP32 = torch.bfloat16, torch.float32


class Meeting:
    """Where the ranks of one test lay their buffers open."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world, timeout=60)
        self.buffers: dict[int, Tensor] = {}
        self.values: dict[int, int] = {}


class FeignedMemory:
    """As strict as torch's kernels, and as careless with what lies in the buffer. One-shot sums begin with
    the rank's own numbers, which no kernel has promised not to do."""

    def __init__(self, rank: int, meeting: Meeting, kernel: str, breaks: str = "") -> None:
        self.is_in_place = kernel == TWO_SHOT
        self._rank, self._meeting, self._breaks = rank, meeting, breaks
        self.steps: list[str] = []

    def allocate(self, num_bytes: int) -> Tensor:
        self._step("allocate")
        return torch.full((num_bytes // 4,), float("nan"))

    def meet(self, buffer: Tensor) -> None:
        self._step("meet")
        self._meeting.buffers[self._rank] = buffer

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if self._breaks == name:
            raise RuntimeError(f"cannot {name}")

    def add(self, x: Tensor) -> Tensor:
        self.steps.append("add")
        buffers, barrier = self._meeting.buffers, self._meeting.barrier
        assert x.data_ptr() == buffers[self._rank].data_ptr() and x.is_contiguous()
        assert x.dtype in (BF16, FP32) and x.nbytes % 4 == 0
        barrier.wait()
        world = len(buffers)
        order = range(world) if self.is_in_place else [(self._rank + r) % world for r in range(world)]
        parts = [buffers[r].view(x.dtype)[: x.numel()].view(x.shape) for r in order]
        total = sum(parts[1:], start=parts[0].clone())
        barrier.wait()
        if self._breaks == "add":
            total += 1
        if self.is_in_place:
            return x.copy_(total)
        x.fill_(float("nan"))
        return total


def least(meeting: Meeting, rank: int, value: int) -> int:
    """The smallest of the ranks' values."""
    meeting.values[rank] = value
    meeting.barrier.wait()
    found = min(meeting.values.values())
    meeting.barrier.wait()
    return found


def on_all(world: int, kernel: str, work: Any, breaks: dict[int, str] | None = None) -> list[Any]:
    """`work` on each rank, with its sums and memory."""
    meeting = Meeting(world)

    def with_sums(comm: ThreadComm) -> Any:
        memory = FeignedMemory(comm.rank, meeting, kernel, (breaks or {}).get(comm.rank, ""))
        sums = agree(memory, comm.rank, world, lambda value: least(meeting, comm.rank, value))
        return work(comm.rank, sums, memory)

    return on_ranks(world, with_sums)


def numbers(rank: int, number: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(100 * number + rank)
    return torch.randn(number + 1, 24, generator=generator).to(dtype)


@pytest.mark.parametrize(("world", "kernel"), [(2, ONE_SHOT), (2, TWO_SHOT), (3, TWO_SHOT)])
def test_all_ranks_have_the_same_bits_and_later_sums_leave_them_alone(world: int, kernel: str) -> None:
    cases = [(number, dtype) for number in range(4) for dtype in (BF16, FP32)]

    def work(rank: int, sums: SymmetricSums, _memory: FeignedMemory) -> list[Tensor]:
        given = [numbers(rank, *case) for case in cases]
        assert all(sums.takes(x) for x in given)
        return [sums.add(x) for x in given]

    expected = []
    for case in cases:
        parts = [numbers(rank, *case) for rank in range(world)]
        expected.append(sum(parts[1:], start=parts[0]))
    for found in on_all(world, kernel, work):
        assert [x.shape for x in found] == [x.shape for x in expected]
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_one_shot_sums_of_three_ranks_may_differ() -> None:
    """Which is why they are left to two."""

    def work(rank: int, sums: SymmetricSums, _memory: FeignedMemory) -> Tensor:
        return torch.cat([sums.add(numbers(rank, number, BF16)).flatten() for number in range(4)])

    first, *others = on_all(3, ONE_SHOT, work)
    assert not all(torch.equal(first, other) for other in others)


def test_rows_that_do_not_lie_side_by_side_are_added_up_too() -> None:
    def work(rank: int, sums: SymmetricSums, _memory: FeignedMemory) -> Tensor:
        return sums.add(numbers(rank, 3, FP32).t())

    for found in on_all(2, ONE_SHOT, work):
        assert torch.equal(found, (numbers(0, 3, FP32) + numbers(1, 3, FP32)).t())


def test_what_the_kernels_cannot_add_goes_another_way() -> None:
    sums = SymmetricSums(FeignedMemory(0, Meeting(1), ONE_SHOT), torch.empty(MOST_BYTES // 4))
    taken = [torch.zeros(8, dtype=BF16), torch.zeros(3, 4), torch.zeros(MOST_BYTES // 2, dtype=BF16)]
    assert all(sums.takes(x) for x in taken)
    others = [
        torch.zeros(0),
        torch.zeros(7, dtype=BF16),
        torch.zeros(5),
        torch.zeros(MOST_BYTES // 4 + 4),
        torch.zeros(8, dtype=torch.float64),
        torch.zeros(8, dtype=torch.float16),
        torch.zeros(8, dtype=torch.int64),
    ]
    assert not any(sums.takes(x) for x in others)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("breaks", "steps", "why"),
    [
        ("allocate", ["allocate"], "cannot allocate"),
        ("meet", ["allocate", "meet"], "cannot meet"),
        ("add", ["allocate", "meet", "add"], "came out wrong"),
    ],
)
def test_what_one_rank_cannot_have_none_has(
    breaks: str, steps: list[str], why: str, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    def work(_rank: int, sums: SymmetricSums | None, memory: FeignedMemory) -> tuple[Any, list[str]]:
        return sums, memory.steps

    # a sum that comes out wrong does so on all ranks: those of a trial are over when they are compared
    both = {0: breaks, 1: breaks} if breaks == "add" else {rank: breaks}
    assert on_all(2, ONE_SHOT, work, both) == [(None, steps), (None, steps)]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2 and all("no sums through symmetric memory" in text for text in told)
    assert sum(why in text for text in told) == len(both)


class Group:
    """As much of a process group as is asked for without a GPU."""

    group_name = "0"

    def __init__(self, world: int) -> None:
        self._world = world

    def size(self) -> int:
        return self._world


@pytest.mark.parametrize(("world", "kernel"), [(2, ONE_SHOT), (3, TWO_SHOT), (8, TWO_SHOT)])
def test_torch_has_the_kernel_that_is_asked_for(world: int, kernel: str) -> None:
    memory = TorchMemory(Group(world), torch.device("cuda", 0))  # pyright: ignore[reportArgumentType]
    assert memory.kernel == kernel and memory.is_in_place == (world > 2)
    schema = getattr(torch.ops.symm_mem, kernel).default._schema
    assert [argument.name for argument in schema.arguments] == ["input", "reduce_op", "group_name"]
    is_written = schema.arguments[0].alias_info is not None and schema.arguments[0].alias_info.is_write
    assert is_written == memory.is_in_place


def test_without_gpus_or_with_multicast_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MULTICAST, raising=False)
    with pytest.raises(RuntimeError, match="compute on cpu"):
        TorchMemory(Group(2), torch.device("cpu")).allocate(16)  # pyright: ignore[reportArgumentType]
    on_gpus = TorchMemory(Group(2), torch.device("cuda", 0))  # pyright: ignore[reportArgumentType]
    with pytest.raises(RuntimeError, match=MULTICAST):
        on_gpus.allocate(16)
    groups.set_environment()
    assert os.environ[MULTICAST] == "1"
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda _own, _peer: False)
    with pytest.raises(RuntimeError, match="cuda:0 does not see the memory of cuda:1"):
        on_gpus.allocate(16)
