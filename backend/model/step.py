"""What all layers of one step need to know about its batch, worked out once: which rows, pages and slots
belong together.

Sequences with one token take the recurrent and absorbed paths together; short pieces take them one by one,
longer ones the chunkwise and expanded paths.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.model.inputs import ForwardBatch

SHORT = 16


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
    """The batch, seen by layers."""

    def __init__(self, batch: ForwardBatch) -> None:
        batch.check()
        self.num_tokens = batch.token_ids.shape[0]
        device = batch.token_ids.device
        page_lists = batch.page_table.tolist()
        spans = [self._span(batch, b, page_lists[b]) for b in range(len(batch.context_lens))]
        self.singles = [s for s in spans if s.stop - s.start == 1]
        self.pieces = [s for s in spans if s.stop - s.start > 1]
        self.single_rows = torch.tensor([s.start for s in self.singles], device=device)
        self.single_slots = torch.tensor([s.slot for s in self.singles], device=device)
        self.fresh_slots = [s.slot for s in spans if not s.has_state]
        places = [
            page_lists[b][position // PAGE_SIZE] * PAGE_SIZE + position % PAGE_SIZE
            for b, span in enumerate(spans)
            for position in range(span.context_len, span.end_position)
        ]
        self.latent_places = torch.tensor(places, device=device)
        """[T], row of each token when the pages of a layer are seen as one table."""
        self.last_rows = torch.tensor([s.stop - 1 for s in spans], device=device)

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
