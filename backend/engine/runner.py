"""Runs the model for sequences: the step as tensors, and the cache tensors behind the page and slot
numbers.
"""

import os
import time
from collections.abc import Callable
from collections.abc import Sequence as Several
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Literal, NoReturn

import torch
from torch import LongTensor, Tensor

from k3agent.backend.cache.hybrid import split_budget
from k3agent.backend.chat.images import ImageSettings
from k3agent.backend.config import PAGE_SIZE, ModelConfig
from k3agent.backend.engine.draft import MAX_DRAFT
from k3agent.backend.engine.images import ImageFeatures
from k3agent.backend.engine.messages import EngineSettings
from k3agent.backend.engine.ranks import RankedStorage, Ranks, is_ranked
from k3agent.backend.engine.sequence import Sequence
from k3agent.backend.engine.static_steps import Progress, Scratch, StaticSteps
from k3agent.backend.engine.storage import TorchStorage
from k3agent.backend.engine.work import Work
from k3agent.backend.errors import CacheFullError, ModelFilesError
from k3agent.backend.model.inputs import ForwardBatch, allocate_cache
from k3agent.backend.model.k3 import K3ForCausalLM
from k3agent.backend.model.weights import SMALL_EXPERTS_BYTES, load_model, unpacked_experts_bytes
from k3agent.backend.parallel.groups import device_of
from k3agent.backend.parallel.processes import end_process
from k3agent.backend.parallel.shard import Shard

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
_CPU_CACHE_BYTES = 512 << 20
_SMALL_HIDDEN = 1024
_CPU_CHUNK, _GPU_CHUNK = 512, 4096


class Runner:
    """A loaded model with its cache tensors on one device."""

    def __init__(self, model: K3ForCausalLM, settings: EngineSettings, ranks: Ranks | None = None) -> None:
        self.model = model
        self._ranks = ranks
        self.config: ModelConfig = model.config
        self.device = model.device
        self._features = ImageFeatures(model, ImageSettings.from_dir(settings.model_dir))
        page_bytes, slot_bytes = _unit_bytes(self.config, model.dtype)
        self.cache_bytes = model.shard.comm.least(settings.cache_bytes or _default_cache_bytes(self.device))
        self.num_pages, self.num_slots = split_budget(self.cache_bytes, page_bytes, slot_bytes)
        wanted = settings.max_model_len or self.config.max_position_embeddings
        # one page is kept for the copy that a resume inside a page needs
        self.max_model_len = min(wanted, (self.num_pages - 1) * PAGE_SIZE)
        if self.max_model_len < 1 or (settings.max_model_len and self.max_model_len < wanted):
            raise CacheFullError(
                f"{self.cache_bytes} bytes of cache hold {self.num_pages} pages of {PAGE_SIZE} tokens besides"
                f" {self.num_slots} states, not {wanted} tokens; raise --cache-bytes or lower --max-model-len"
            )
        num_trail = (
            min(MAX_DRAFT, self.cache_bytes // 4 // slot_bytes) if speculates(settings, self.config) else 0
        )
        self.trail_slots = list(range(self.num_slots, self.num_slots + num_trail))
        """Slots besides those of the cache, for the states behind guessed tokens; free between passes."""
        # padding takes one page and one slot more
        scratch = Scratch(page=self.num_pages, slot=self.num_slots + num_trail)
        # what one rank captures, all must, whatever kernels each has found
        captures = bool(model.shard.comm.least(int(captures_graphs(settings, model))))
        is_static = captures or settings.graphs == "padded"
        tensors = allocate_cache(
            self.config, scratch.page + is_static, scratch.slot + is_static, model.dtype, self.device
        )
        self._static: StaticSteps | None = None
        if is_static:
            self._static = StaticSteps(
                model,
                tensors,
                scratch,
                max_model_len=self.max_model_len,
                max_running=settings.max_running,
                captures=captures,
            )
        own = TorchStorage(tensors)
        self.storage = own if ranks is None else RankedStorage(own, ranks)

    @classmethod
    def load(
        cls, settings: EngineSettings, on_loss: Callable[[str], NoReturn] = end_process
    ) -> "tuple[Runner, float]":
        """Read the weights; returns the runner and the seconds it took.

        With several ranks this one is rank 0, and `on_loss` is told when another one is lost.
        """
        begun = time.perf_counter()
        ranks = Ranks.start(settings, on_loss) if is_ranked(settings) else None
        model = load_part(settings, ranks.shard if ranks is not None else Shard())
        return cls(model, settings, ranks), time.perf_counter() - begun

    def run(self, batch: ForwardBatch) -> Tensor:
        """One step of the model, on all ranks."""
        if self._ranks is None:
            return self.model(batch, self.storage.tensors)
        return self._ranks.forward(self.model, batch, self.storage.tensors)

    def check_device(self) -> None:
        """Raise RuntimeError when a fault has left the device of no use to this process: every later call
        would fail, too, and only a new process helps.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def close(self) -> None:
        """End the other ranks, if there are any."""
        if self._ranks is not None:
            # also after a fault of the device, of which giving up a graph may tell
            try:
                self.release()
            finally:
                self._ranks.close()

    def release(self) -> None:
        """Give up graphs, before the ranks part."""
        if self._static is not None:
            self._static.release()

    @property
    def has_graphs(self) -> bool:
        """Do short passes run as CUDA graphs?"""
        return self._static is not None and self._static.captures

    @property
    def weights_bytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self.model.parameters())

    def work(
        self,
        sequence: Sequence,
        end: int,
        num_logits: int,
        guess: Several[int] = (),
        trail: Several[int] = (),
    ) -> Work:
        """The tokens of a sequence that are not computed yet, up to before `end`, and a guess behind them."""
        begin = sequence.num_computed
        image_rows, features = None, None
        if sequence.images:
            token_ids, image_rows, features = self._features.of_step(sequence, begin, end)
        else:
            token_ids = sequence.token_ids[begin:end]
        assert sequence.state_slot is not None
        return Work(
            token_ids=[*token_ids, *guess],
            context_len=begin,
            page_ids=sequence.page_ids,
            state_slot=sequence.state_slot,
            num_logits=num_logits,
            trail_slots=list(trail),
            image_rows=image_rows,
            image_features=features,
        )

    def prepare(self, progress: Progress) -> None:
        """Compile and capture what passes will need, so that no request waits for it."""
        if self._static is None:
            return
        prepare = partial(self._static.prepare, progress)
        if self._ranks is None:
            prepare()
        else:
            self._ranks.together(prepare, "prepare")

    def forward(self, batch: list[Work]) -> Tensor:
        """Run one pass; logits [N, V] of the wanted tokens of each work, in order, valid until the next pass.
        Pages must reach far enough.
        """
        if self._static is not None and self._static.fits(batch):
            run = partial(self.run_static, batch)
            return run() if self._ranks is None else self._ranks.together(run, "static", batch)
        widest = max(len(work.page_ids) for work in batch)
        starts = list(accumulate((len(work.token_ids) for work in batch), initial=0))
        is_plain = all(work.num_logits == 1 for work in batch)
        rows = [
            r for work, end in zip(batch, starts[1:], strict=True) for r in range(end - work.num_logits, end)
        ]
        image_rows, image_features = self._images_of(batch, starts)
        step = ForwardBatch(
            token_ids=self._index([i for work in batch for i in work.token_ids]),
            cu_seqlens=starts,
            context_lens=[work.context_len for work in batch],
            page_table=self._index([[*w.page_ids, *[0] * (widest - len(w.page_ids))] for w in batch]),
            state_slots=[work.state_slot for work in batch],
            has_state=[work.context_len > 0 for work in batch],
            logits_at=None if is_plain else self._index(rows),
            trail_slots=[w.trail_slots for w in batch] if any(w.trail_slots for w in batch) else None,
            image_rows=image_rows,
            image_features=image_features,
        )
        return self.run(step)

    def run_static(self, batch: list[Work]) -> Tensor:
        """This rank's part of a pass that fits one of the fixed shapes."""
        assert self._static is not None, "rank 0 pads its passes, and this one was not told to"
        logits = self._static.run(batch)
        assert logits is not None, "rank 0 has shapes that this one has not"
        return logits

    def _images_of(self, batch: list[Work], starts: list[int]) -> tuple[LongTensor | None, Tensor | None]:
        seeing = [(w, start) for w, start in zip(batch, starts, strict=False) if w.image_rows is not None]
        if not seeing:
            return None, None
        rows = torch.cat([work.image_rows + start for work, start in seeing if work.image_rows is not None])
        features = [work.image_features for work, _ in seeing if work.image_features is not None]
        return rows, torch.cat(features)  # pyright: ignore[reportReturnType]

    def _index(self, values: list[int] | list[list[int]]) -> LongTensor:
        made = torch.tensor(values, dtype=torch.long, device=self.device)
        return made  # pyright: ignore[reportReturnType]  # torch.tensor is typed as plain Tensor


def load_part(settings: EngineSettings, shard: Shard) -> K3ForCausalLM:
    """What one rank has of the model. Images are encoded by rank 0 alone."""
    config, dtype = ModelConfig.from_dir(settings.model_dir), _dtype(settings)
    set_threads(settings, config)
    is_small = unpacked_experts_bytes(config, dtype) <= SMALL_EXPERTS_BYTES
    return load_model(
        Path(settings.model_dir),
        dtype,
        device_of(shard.rank, shard.world, settings.device),
        packed_experts=False if is_small else None,
        shard=shard,
        vision=shard.rank == 0,
        kernels=settings.kernels,
    )


def is_light(settings: EngineSettings, config: ModelConfig) -> bool:
    """A small model on a CPU: its user's own cores do the work."""
    return settings.device == "cpu" and config.hidden_size <= _SMALL_HIDDEN


def chunk_of(settings: EngineSettings, device: torch.device) -> int:
    """Tokens of a prefill pass, which is the grid. A GPU reads all experts for a few hundred tokens already:
    on an H200 64K tokens of Kimi-Linear-48B take 3.5, 2.6, 2.2 and 2.0 s in passes of 1,024, 2,048, 4,096 and
    8,192. A longer pass keeps those waiting who decode, and leaves fewer points to resume from.
    """
    usual = _GPU_CHUNK if device.type == "cuda" else _CPU_CHUNK
    most = settings.max_step_tokens or usual
    return min(settings.grid or usual, max(most // PAGE_SIZE, 1) * PAGE_SIZE)


def exactness_of(settings: EngineSettings, config: ModelConfig) -> Literal["idle", "always", "off"]:
    """What a prefix may be resumed from. Exact prefill while idle would cost a user's own cores."""
    if settings.exactness == "auto":
        return "off" if is_light(settings, config) else "idle"
    return settings.exactness


def speculates(settings: EngineSettings, config: ModelConfig) -> bool:
    """Are tokens guessed ahead? Unless told, only where it was measured to be faster."""
    if settings.speculation == "auto":
        return is_light(settings, config)
    return settings.speculation == "prompt-lookup"


def captures_graphs(settings: EngineSettings, model: K3ForCausalLM) -> bool:
    """Are short passes captured in graphs? Unless told otherwise, where graphs can hold them."""
    return settings.graphs == "auto" and model.device.type == "cuda" and model.is_capturable


def set_threads(settings: EngineSettings, config: ModelConfig) -> None:
    """Small models lose more by waking threads than these bring; larger ones get every core."""
    if settings.device != "cpu":
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    most = 2 if config.hidden_size <= _SMALL_HIDDEN else cores
    threads = settings.threads or min(cores, most)
    torch.set_num_threads(max(1, threads // settings.tensor_parallel))


def _dtype(settings: EngineSettings) -> torch.dtype:
    if settings.dtype == "auto":
        return torch.float32 if settings.device == "cpu" else torch.bfloat16
    try:
        return _DTYPES[settings.dtype]
    except KeyError:
        raise ModelFilesError(
            f"dtype {settings.dtype!r} is unknown; use auto, {', '.join(_DTYPES)}"
        ) from None


def _unit_bytes(config: ModelConfig, dtype: torch.dtype) -> tuple[int, int]:
    """Bytes of one page and of one state slot over all layers, measured on a cache of one of each."""
    one = allocate_cache(config, 1, 1, dtype, torch.device("meta"))
    slot = [*one.kda_states.values(), *one.conv_tails.values()]
    return (
        sum(t.numel() * t.element_size() for t in one.latents.values()),
        sum(t.numel() * t.element_size() for t in slot),
    )


def _default_cache_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _total = torch.cuda.mem_get_info(device)
        return int(free * 0.85)
    return _CPU_CACHE_BYTES
