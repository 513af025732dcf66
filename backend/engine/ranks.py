"""A model on several ranks, as rank 0 sees it: what it tells the others, so that they do the same as it.

Rank 0 is the engine: it alone schedules, holds the cache's tree and samples. The others do what it does to
tensors, in the same order: a step as plain lists, and each copy or clearing of a page or state, one small
message each. Latents are the same on every rank, so a page leaves the device once, from rank 0; of a state
each rank has the heads it computes. `worker.py` is the other end.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

from k3agent.backend.cache.interfaces import Buffer
from k3agent.backend.config import PAGE_SIZE, ModelConfig
from k3agent.backend.engine.messages import EngineSettings
from k3agent.backend.engine.storage import TorchStorage
from k3agent.backend.errors import BackendError, PeerLostError
from k3agent.backend.kernels.gpu import failures
from k3agent.backend.model.inputs import CacheTensors, ForwardBatch
from k3agent.backend.model.k3 import K3ForCausalLM
from k3agent.backend.parallel import groups
from k3agent.backend.parallel.comm import GroupComm
from k3agent.backend.parallel.processes import RankProcesses, end_process
from k3agent.backend.parallel.shard import Shard, check_layout

log = logging.getLogger(__name__)

WORKER = "k3agent.backend.engine.worker"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A ForwardBatch as plain lists, without the features of images: they come from rank 0 as a tensor."""

    token_ids: list[int]
    cu_seqlens: list[int]
    context_lens: list[int]
    pages: list[bytes]
    """Of each sequence the numbers of its pages, four bytes each: long contexts have thousands."""
    state_slots: list[int]
    has_state: list[bool]
    logits_at: list[int] | None
    image_rows: list[int] | None
    trail_slots: list[list[int]] | None = None

    @classmethod
    def of(cls, batch: ForwardBatch) -> "StepPlan":
        counts = zip(batch.context_lens, batch.cu_seqlens, batch.cu_seqlens[1:], strict=False)
        num_pages = [-(-(held + stop - start) // PAGE_SIZE) for held, start, stop in counts]
        table = batch.page_table.to("cpu", torch.int32).numpy()
        return cls(
            token_ids=batch.token_ids.tolist(),
            cu_seqlens=batch.cu_seqlens,
            context_lens=batch.context_lens,
            pages=[row[:count].tobytes() for row, count in zip(table, num_pages, strict=True)],
            state_slots=batch.state_slots,
            has_state=batch.has_state,
            logits_at=None if batch.logits_at is None else batch.logits_at.tolist(),
            image_rows=None if batch.image_rows is None else batch.image_rows.tolist(),
            trail_slots=batch.trail_slots,
        )

    def batch(self, device: torch.device, features: Callable[[int], Tensor]) -> ForwardBatch:
        """As tensors; `features` gives as many rows of image features as it is asked for."""

        def ids(values: list[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        rows = [torch.frombuffer(bytearray(pages), dtype=torch.int32) for pages in self.pages]
        return ForwardBatch(
            token_ids=ids(self.token_ids),
            cu_seqlens=self.cu_seqlens,
            context_lens=self.context_lens,
            page_table=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device, torch.int64),
            state_slots=self.state_slots,
            has_state=self.has_state,
            logits_at=None if self.logits_at is None else ids(self.logits_at),
            trail_slots=self.trail_slots,
            image_rows=None if self.image_rows is None else ids(self.image_rows),
            image_features=None if self.image_rows is None else features(len(self.image_rows)),
        )


class Ranks:
    """Rank 0's hold on the others. One rank has none of this."""

    def __init__(self, processes: RankProcesses, shard: Shard, comm: GroupComm) -> None:
        self.processes, self.shard = processes, shard
        self._comm = comm

    @classmethod
    def start(
        cls,
        settings: EngineSettings,
        on_loss: Callable[[str], NoReturn] = end_process,
        worker: str = WORKER,
    ) -> "Ranks":
        """Start the processes and meet them; they load their parts of the model meanwhile.

        `worker` is the module that they run. Raises BackendError when the model cannot be divided so; a rank
        that is lost later goes to `on_loss`.
        """
        world = settings.tensor_parallel
        check_layout(ModelConfig.from_dir(settings.model_dir), world, settings.expert_parallel)
        device = groups.device_of(0, world, settings.device)
        groups.set_environment()
        store = groups.open_store(world)
        processes = RankProcesses(worker, world, on_loss)
        processes.tell(settings, store.port)
        try:
            comm = groups.join_group(
                store, 0, world, backend_of(settings), device, is_symmetric=settings.sums == "symmetric"
            )
        except (RuntimeError, PeerLostError) as error:
            processes.lose(f"the ranks did not meet: {error}")
        return cls(processes, Shard(comm, settings.expert_parallel), comm)

    def forward(self, model: K3ForCausalLM, batch: ForwardBatch, cache: CacheTensors) -> Tensor:
        """One step on all ranks; the logits as one rank would give them."""
        batch.check()

        def own() -> Tensor:
            if batch.image_features is not None:
                self._comm.broadcast(batch.image_features.to(model.dtype).contiguous())
            return model(batch, cache)

        return self.together(own, "forward", StepPlan.of(batch))

    def together(self, own: Callable[[], T], *command: Any) -> T:
        """Tell the others `command`, and do the same here. Returns when it is done here."""
        self.processes.tell(*command)
        try:
            return own()
        except PeerLostError as error:
            self.processes.lose(str(error))
        except (BackendError, *failures()) as error:
            log.exception("rank 0 failed in a step")
            self.processes.fail(error)

    def close(self) -> None:
        """End the other ranks."""
        self.processes.ask_to_stop()
        # NCCL takes a group down when all ranks do
        groups.leave_group()
        self.processes.close()


class RankedStorage:
    """Pages and states of all ranks: whatever happens to them here happens there too.

    `state_bytes` counts the parts of all ranks, which is what a saved state takes; a page is saved once.
    """

    def __init__(self, own: TorchStorage, ranks: Ranks) -> None:
        self._own, self._processes, self._tell = own, ranks.processes, ranks.processes.tell
        self._world = ranks.shard.world
        self.tensors = own.tensors
        self.page_bytes, self.state_bytes = own.page_bytes, own.state_bytes * self._world

    def copy_page(self, src_page: int, dst_page: int) -> None:
        self._tell("copy_page", src_page, dst_page)
        self._own.copy_page(src_page, dst_page)

    def copy_state(self, src_slot: int, dst_slot: int) -> None:
        self._tell("copy_state", src_slot, dst_slot)
        self._own.copy_state(src_slot, dst_slot)

    def zero_state(self, slot: int) -> None:
        self._tell("zero_state", slot)
        self._own.zero_state(slot)

    def poison_state(self, slot: int) -> None:
        self._tell("poison_state", slot)
        self._own.poison_state(slot)

    def read_page(self, page: int) -> Buffer:
        return self._own.read_page(page)

    def read_pages(self, pages: Sequence[int]) -> list[Buffer]:
        return self._own.read_pages(pages)

    def write_pages(self, pages: Sequence[int], data: Sequence[Buffer]) -> None:
        self._own.settled()()
        self._tell("write_pages", list(pages), [bytes(content) for content in data])
        self._own.write_pages(pages, data)

    def read_state(self, slot: int) -> Buffer:
        self._tell("read_state", slot)
        own = self._own.read_state(slot)
        self._own.settled()()
        return b"".join([own, *self._processes.answers()])

    def settled(self) -> Callable[[], None]:
        return self._own.settled()

    def write_state(self, slot: int, data: Buffer) -> None:
        if len(data) != self.state_bytes:
            raise BackendError(
                f"a saved state has {len(data)} bytes where {self._world} ranks want {self.state_bytes}."
            )
        size = self._own.state_bytes
        parts = [bytes(data[begin : begin + size]) for begin in range(0, len(data), size)]
        for number, part in enumerate(parts[1:], 1):
            self._processes.tell_one(number, "write_state", slot, part)
        self._own.write_state(slot, parts[0])


def is_ranked(settings: EngineSettings) -> bool:
    """Is the model spread over several ranks? A layout that makes no sense counts, to be refused."""
    return settings.tensor_parallel > 1 or settings.expert_parallel > 1


def layout_of(settings: EngineSettings) -> str:
    """How the model is divided; saved states of one layout mean nothing to another."""
    sums = "symmetric" if settings.sums == "symmetric" else ""
    return f"tp{settings.tensor_parallel}ep{settings.expert_parallel}{sums}"


def backend_of(settings: EngineSettings) -> str:
    return settings.backend or groups.backend_for(settings.device)
