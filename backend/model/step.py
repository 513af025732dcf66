"""What all layers of one step need to know about its batch, worked out once: which rows, pages and slots
belong together.

Sequences with one token take the recurrent and absorbed paths together; short pieces take them one by one,
longer ones the chunkwise and expanded paths.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.kernels.arguments import SHORT
from k3agent.backend.model.inputs import ForwardBatch
from k3agent.backend.model.tables import Tables


@dataclass
class Span:
    """One sequence of the step."""

    start: int
    stop: int
    """Its rows of the packed tokens."""
    context_len: int
    slot: int
    has_state: bool
    pages: Tensor | slice
    """Where its latents are: a slice when the pages follow each other, so that reading copies nothing."""
    trail: list[int]
    """Slots for the states before its last tokens."""

    @property
    def is_short(self) -> bool:
        """So few tokens that they are better taken one after another; always with a trail."""
        return self.stop - self.start <= SHORT or bool(self.trail)

    @property
    def end_position(self) -> int:
        """Tokens of the sequence after this step."""
        return self.context_len + self.stop - self.start

    def latent_rows(self, latents: Tensor) -> Tensor:
        """Rows of the whole sequence, [end_position, width], from the pages of one layer."""
        return latents[self.pages].flatten(0, 1)[: self.end_position]


class Step:
    """The batch, seen by layers: as spans that the host knows, or as tables on the device.

    Each view is made when it is first asked for: a layer whose kernels read `tables` keeps the host out of
    it, which is what makes a step capturable in a graph.
    """

    def __init__(self, batch: ForwardBatch) -> None:
        batch.check()
        self._batch = batch
        self.num_tokens = batch.token_ids.shape[0]
        self._device = batch.token_ids.device

    @cached_property
    def spans(self) -> list[Span]:
        """All sequences, in the order of their rows."""
        batch = self._batch
        page_lists = self._page_lists
        return [self._span(batch, b, page_lists[b]) for b in range(len(batch.context_lens))]

    @cached_property
    def _page_lists(self) -> list[list[int]]:
        return self._batch.page_table.tolist()

    @cached_property
    def singles(self) -> list[Span]:
        """Sequences with one token."""
        return [s for s in self.spans if s.stop - s.start == 1]

    @cached_property
    def pieces(self) -> list[Span]:
        """Sequences with more."""
        return [s for s in self.spans if s.stop - s.start > 1]

    @cached_property
    def single_rows(self) -> Tensor:
        return torch.tensor([s.start for s in self.singles], device=self._device)

    @cached_property
    def single_slots(self) -> Tensor:
        return torch.tensor([s.slot for s in self.singles], device=self._device)

    @cached_property
    def fresh_slots(self) -> list[int]:
        """Slots that begin from zero."""
        return [s.slot for s in self.spans if not s.has_state]

    @cached_property
    def tables(self) -> Tables:
        """The step as tensors; made here from the host's lists unless the batch came with them."""
        batch = self._batch
        if batch.tables is not None:
            return batch.tables
        starts, count = batch.cu_seqlens, len(batch.context_lens)
        # one copy to the device for all counts
        flat = [*starts, *batch.context_lens, *batch.state_slots, *batch.has_state, self.num_tokens]
        counts = torch.tensor(flat, dtype=torch.int32, device=self._device)
        cu_seqlens, context_lens, slots, has_state, num_rows = counts.split([count + 1, *[count] * 3, 1])
        return Tables(
            cu_seqlens=cu_seqlens,
            context_lens=context_lens,
            slots=slots,
            has_state=has_state,
            page_table=batch.page_table.int(),
            num_rows=num_rows,
            longest=max(stop - start for start, stop in pairwise(starts)),
            shortest=min(stop - start for start, stop in pairwise(starts)),
            exports=self._exports() if batch.trail_slots else None,
        )

    def _exports(self) -> Tensor:
        """[T], the slot of its trail that receives the state after a row, or -1."""
        targets = [-1] * self.num_tokens
        for stop, trail in zip(self._batch.cu_seqlens[1:], self._batch.trail_slots or [], strict=True):
            for back, slot in enumerate(reversed(trail), 2):
                targets[stop - back] = slot
        return torch.tensor(targets, dtype=torch.int32, device=self._device)

    @cached_property
    def lengths(self) -> list[tuple[int, int]] | None:
        """Tokens and cached tokens of each sequence; None where a graph keeps the host from knowing."""
        if self._batch.tables is not None:
            return None
        tokens = (stop - start for start, stop in pairwise(self._batch.cu_seqlens))
        return list(zip(tokens, self._batch.context_lens, strict=True))

    @property
    def num_rows(self) -> Tensor | None:
        """[1], rows in use of a step that came with padding; None: all are."""
        return None if self._batch.tables is None else self._batch.tables.num_rows

    @cached_property
    def latent_places(self) -> Tensor:
        """[T], row of each token when the pages of a layer are seen as one table."""
        if self._device.type != "cpu":
            return self.tables.latent_places(self.num_tokens)
        # on a CPU a few numbers in Python cost less than operations on tensors
        page_lists = self._page_lists
        places = [
            page_lists[b][position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE
            for b, span in enumerate(self.spans)
            for position in range(span.context_len, span.end_position)
        ]
        return torch.tensor(places)

    @cached_property
    def last_rows(self) -> Tensor:
        """[B], the last token of each sequence."""
        if self._device.type != "cpu":
            return self.tables.last_rows
        return torch.tensor([s.stop - 1 for s in self.spans])

    @staticmethod
    def _span(batch: ForwardBatch, b: int, page_list: list[int]) -> Span:
        start, stop, context_len = batch.cu_seqlens[b], batch.cu_seqlens[b + 1], batch.context_lens[b]
        num_pages = -(-(context_len + stop - start) // PAGE_SIZE)
        first = page_list[0]
        pages: Tensor | slice = batch.page_table[b, :num_pages]
        if page_list[:num_pages] == list(range(first, first + num_pages)):
            pages = slice(first, first + num_pages)
        trail = batch.trail_slots[b] if batch.trail_slots else []
        return Span(start, stop, context_len, batch.state_slots[b], batch.has_state[b], pages, trail)

    def spread(
        self,
        width: tuple[int, ...],
        like: Tensor,
        on_singles: Callable[[Tensor | slice], Tensor],
        on_piece: Callable[[Span], Tensor],
    ) -> Tensor:
        """Run each kind of sequence through its own path; collect [T, *width] in the order of the tokens.

        `on_singles` gets the rows of all one-token sequences (a slice when these are the whole step),
        `on_piece` one longer sequence.
        """
        if not self.pieces:
            return on_singles(slice(None))
        if not self.singles and len(self.pieces) == 1:
            return on_piece(self.pieces[0])
        out = like.new_empty((self.num_tokens, *width))
        if self.singles:
            out[self.single_rows] = on_singles(self.single_rows)
        for span in self.pieces:
            out[span.start : span.stop] = on_piece(span)
        return out
