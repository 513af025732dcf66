"""Steps of fixed shapes: inputs in buffers that never move, padded to a few sizes, captured in CUDA graphs.

A short pass costs more in launches than in arithmetic; a graph launches it at once, but only ever the same
shapes at the same addresses. So decodes are padded to a few numbers of sequences, short prefills of one
sequence to a few numbers of tokens. Padding is made of sequences of its own, on a page and a slot that nobody
reads. Without a GPU the same buffers and padding run through the ordinary model: tests compare both.

Several ranks each capture a graph of their own with the exchanges in it. Those in a graph meet those of the
other ranks' graphs, so all make, capture and replay the same steps in the same order, and keep a graph only
if every rank has one.
"""

import bisect
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.engine.work import Work
from k3agent.backend.errors import PeerLostError
from k3agent.backend.kernels.ahead import compiling_ahead
from k3agent.backend.kernels.gpu import failures
from k3agent.backend.model.inputs import CacheTensors, ForwardBatch
from k3agent.backend.model.k3 import K3ForCausalLM
from k3agent.backend.model.tables import Tables

log = logging.getLogger(__name__)

DECODE_SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
"""Sequences of one token each."""
PREFILL_SIZES = (16, 32, 64, 128, 256, 512)
"""Tokens of one sequence; one more sequence takes the padding."""
EXPANDING_TOKENS, EXPANDING_CONTEXT = 160, 8192
"""From so many new tokens behind so many others on, a step is no static one. Kernels of MLA make keys and
values anew from as many new tokens on (`least_tokens`): bits should not depend on what a step runs in.
"""
Progress = Callable[[int, int, str], None]
"""Called with the number of steps that are prepared, of how many, and what the next one is."""


def no_progress(num_done: int, num_steps: int, what: str) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """What padding writes to; no sequence ever has them."""

    page: int
    slot: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A size of step: so many sequences, rows, and tokens of the longest sequence."""

    num_sequences: int
    num_rows: int
    longest: int

    def __str__(self) -> str:
        if self.longest == 1:
            return f"decode of {self.num_sequences}"
        return f"prefill of {self.num_rows}"


class StaticSteps:
    """Runs what fits one of its shapes; `run` gives None for other passes."""

    def __init__(
        self,
        model: K3ForCausalLM,
        cache: CacheTensors,
        scratch: Scratch,
        *,
        max_model_len: int,
        max_running: int,
        prefill_sizes: Iterable[int] = PREFILL_SIZES,
        captures: bool = False,
    ) -> None:
        self.captures = captures
        """Are steps made from now on captured? The same on all ranks."""
        self._model, self._cache, self._scratch = model, cache, scratch
        self._device = model.device
        self._num_pages = -(-max_model_len // PAGE_SIZE)
        self._comm = model.shard.comm
        # a rank that fails alone fails for good: the others wait in the pass that it has left
        self._outlived = failures() if self._comm.world == 1 else ()
        self._pool: Any = None
        most = next((n for n in DECODE_SIZES if n >= max_running), DECODE_SIZES[-1])
        self._decodes = [Shape(n, n, 1) for n in DECODE_SIZES if n <= most]
        longest = self._num_pages * PAGE_SIZE
        self._prefills = [Shape(2, n, n) for n in sorted(prefill_sizes) if n <= longest]
        self._steps: dict[Shape, StaticStep] = {}

    def prepare(self, progress: Progress) -> None:
        """Make all steps, and capture them: the largest first, whose memory the others then share."""
        shapes = [*reversed(self._prefills), *reversed(self._decodes)]
        if self.captures:
            progress(0, len(shapes), "kernels")
            self._compile(shapes)
        for done, shape in enumerate(shapes):
            progress(done, len(shapes), str(shape))
            self._step(shape)
        progress(len(shapes), len(shapes), "")

    def _compile(self, shapes: Sequence[Shape]) -> None:
        """The kernels of all steps side by side; what fails here is told when it is launched."""
        try:
            with compiling_ahead(self._device):
                for shape in shapes:
                    self._make(shape).run([])
        except self._outlived as error:
            log.warning("kernels are compiled one after the other: %s", error)

    def release(self) -> None:
        """Give up all graphs. NCCL takes no group down whose exchanges are in one."""
        self.captures = False
        for step in self._steps.values():
            step.release()

    def fits(self, works: Sequence[Work]) -> bool:
        """Has the pass one of the shapes?"""
        return self._shape_of(works) is not None

    def run(self, works: Sequence[Work]) -> Tensor | None:
        """The wanted logits as `Runner.forward` gives them, valid until the next pass; None: does not fit."""
        shape = self._shape_of(works)
        if shape is None:
            return None
        logits = self._step(shape).run(works)
        wanted = [row for row, work in enumerate(works) if work.num_logits]
        return logits[: len(works)] if len(wanted) == len(works) else logits[wanted]

    def _shape_of(self, works: Sequence[Work]) -> Shape | None:
        if any(w.trail_slots or w.image_rows is not None or w.num_logits > 1 for w in works):
            return None
        if all(len(work.token_ids) == 1 for work in works):
            return _least(self._decodes, len(works))
        if len(works) > 1 or _is_expanding(works[0]):
            return None
        return _least(self._prefills, len(works[0].token_ids))

    def _step(self, shape: Shape) -> "StaticStep":
        step = self._steps.get(shape)
        if step is None:
            step = self._make(shape)
            if self.captures:
                self._capture(step, shape)
            self._steps[shape] = step
        return step

    def _capture(self, step: "StaticStep", shape: Shape) -> None:
        """A step that any rank cannot capture runs as it is, and so do all that come after it."""
        try:
            step.warm_up()
        except self._outlived as error:
            self._give_up(shape, str(error))
            return
        why = ""
        try:
            self._pool = step.capture(self._pool)
        except (*failures(), PeerLostError) as error:
            # nothing was exchanged, so the ranks are still at the same place
            why = str(error) or type(error).__name__
        if not self._comm.least(int(not why)):
            step.release()
            self._give_up(shape, why or "another rank could not capture it")

    def _give_up(self, shape: Shape, why: str) -> None:
        log.warning("no CUDA graphs from the %s on, short passes are slower: %s", shape, why)
        self.captures = False

    def _make(self, shape: Shape) -> "StaticStep":
        return StaticStep(shape, self._model, self._cache, self._scratch, self._num_pages)


def _is_expanding(work: Work) -> bool:
    """Does the work outweigh its launches, and attention go faster with keys and values made anew, for which
    the host has to know the length of the prefix?"""
    return len(work.token_ids) >= EXPANDING_TOKENS and work.context_len > EXPANDING_CONTEXT


def _least(shapes: list[Shape], num_rows: int) -> Shape | None:
    """The smallest that holds so many rows."""
    place = bisect.bisect_left(shapes, num_rows, key=lambda shape: shape.num_rows)
    return shapes[place] if place < len(shapes) else None


class StaticStep:
    """One shape: its buffers on the device, their twins on the host, and the graph if it was captured."""

    def __init__(
        self, shape: Shape, model: K3ForCausalLM, cache: CacheTensors, scratch: Scratch, num_pages: int
    ) -> None:
        self._shape, self._model, self._cache, self._scratch = shape, model, cache, scratch
        device, count = model.device, shape.num_sequences
        is_cuda = device.type == "cuda"
        # token ids and all counts lie in one buffer: one copy to the device
        self._sizes = [shape.num_rows, count + 1, count, count, count, 1]
        self._numbers = torch.zeros(sum(self._sizes), dtype=torch.int32, device=device)
        self._host_numbers = torch.zeros(sum(self._sizes), dtype=torch.int32, pin_memory=is_cuda)
        self._pages = torch.full((count, num_pages), scratch.page, dtype=torch.int32, device=device)
        self._host_pages = torch.full((count, num_pages), scratch.page, dtype=torch.int32, pin_memory=is_cuda)
        self._held: list[list[int]] = [[] for _ in range(count)]
        """Of each row of the page table what it says."""
        self._copied = torch.cuda.Event() if is_cuda else None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: Tensor | None = None

    def run(self, works: Sequence[Work]) -> Tensor:
        """Logits [B, V], those of the works first."""
        batch = self._fill(works)
        if self._graph is None:
            return self._model(batch, self._cache)
        # a graph cannot wait between layers
        self._cache.await_all()
        self._graph.replay()
        assert self._logits is not None
        return self._logits

    def warm_up(self) -> None:
        """Run the step as a capture would: compiles kernels, connects ranks and makes the workspaces of
        libraries, none of which a graph must do."""
        batch = self._fill([])
        stream = torch.cuda.Stream(self._model.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._model(batch, self._cache)
        torch.cuda.current_stream().wait_stream(stream)

    def capture(self, pool: Any) -> Any:
        """Record the step as a graph, in the memory of `pool`; returns that, to be shared by the next one.
        Nothing runs, and no rank waits for another."""
        batch = self._fill([])
        graph = torch.cuda.CUDAGraph()
        # other threads, such as NCCL's watch, may go on working with the device meanwhile
        recording = torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")
        # a recording that fails leaves its stream the current one, which the outer context makes good
        with torch.cuda.stream(torch.cuda.current_stream()), recording:
            logits = self._model(batch, self._cache)
        self._graph, self._logits = graph, logits
        return graph.pool()

    def release(self) -> None:
        """Give up the graph; the step then runs as it is."""
        graph, self._graph, self._logits = self._graph, None, None
        if graph is not None:
            graph.reset()

    def _fill(self, works: Sequence[Work]) -> ForwardBatch:
        """Write the works and the padding into the buffers."""
        if self._copied is not None:
            # the twins on the host may still be on their way to the device
            self._copied.synchronize()
        shape, scratch = self._shape, self._scratch
        num_rows = sum(len(work.token_ids) for work in works)
        lengths = [len(work.token_ids) for work in works]
        padding = shape.num_rows - num_rows
        if shape.longest == 1:
            lengths += [1] * padding
        else:
            lengths += [0] * (shape.num_sequences - len(lengths))
            lengths[-1] += padding
        starts = list(accumulate(lengths, initial=0))
        idle = shape.num_sequences - len(works)
        contexts = [work.context_len for work in works] + [0] * idle
        slots = [work.state_slot for work in works] + [scratch.slot] * idle
        ids = [i for work in works for i in work.token_ids] + [0] * padding
        has_state = [int(context > 0) for context in contexts]
        flat = [*ids, *starts, *contexts, *slots, *has_state, num_rows]
        self._host_numbers.copy_(torch.tensor(flat, dtype=torch.int32))
        self._numbers.copy_(self._host_numbers, non_blocking=True)
        self._fill_pages([work.page_ids for work in works] + [[]] * idle)
        if self._copied is not None:
            self._copied.record()
        return self._batch(lengths, contexts, slots, num_rows)

    def _fill_pages(self, page_lists: list[list[int]]) -> None:
        """Only rows that changed: contexts of a million tokens have thousands of pages."""
        for row, pages in enumerate(page_lists):
            if self._held[row] == pages:
                continue
            line = self._host_pages[row]
            line[: len(pages)] = torch.tensor(pages, dtype=torch.int32)
            line[len(pages) : max(len(self._held[row]), len(pages))] = self._scratch.page
            end = max(len(self._held[row]), len(pages))
            self._pages[row, :end].copy_(line[:end], non_blocking=True)
            self._held[row] = list(pages)

    def _batch(
        self, lengths: list[int], contexts: list[int], slots: list[int], num_rows: int
    ) -> ForwardBatch:
        """The buffers as the model takes them. The host's lists leave out sequences without tokens; kernels
        that read the tables see no lists."""
        token_ids, cu_seqlens, context_lens, device_slots, has_state, rows = self._numbers.split(self._sizes)
        tables = Tables(
            cu_seqlens=cu_seqlens,
            context_lens=context_lens,
            slots=device_slots,
            has_state=has_state,
            page_table=self._pages,
            num_rows=rows,
            longest=self._shape.longest,
        )
        held = [b for b, length in enumerate(lengths) if length]
        return ForwardBatch(
            token_ids=token_ids,
            cu_seqlens=list(accumulate((lengths[b] for b in held), initial=0)),
            context_lens=[contexts[b] for b in held],
            page_table=self._pages[: len(held)] if held == list(range(len(held))) else self._pages[held],
            state_slots=[slots[b] for b in held],
            has_state=[contexts[b] > 0 for b in held],
            tables=tables,
            scratch_slot=self._scratch.slot,
        )
