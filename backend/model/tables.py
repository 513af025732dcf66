"""A step as tensors on the device, for kernels that take a whole step at once.

Nothing here has to be known to the host, so a captured graph serves every step that fits the shapes: contents
change, sizes do not. Rows behind `num_rows` and sequences without tokens are padding.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from k3agent.backend.config import PAGE_SIZE


@dataclass
class Tables:
    """B sequences and T rows, some of which may be padding. All counts are int32."""

    cu_seqlens: Tensor
    """[B+1], the first row of each sequence, and T."""
    context_lens: Tensor
    """[B], tokens that the cache held before the step."""
    slots: Tensor
    """[B], slot of KDA state."""
    has_state: Tensor
    """[B], 0: start from zero, whatever the slot holds."""
    page_table: Tensor
    """[B, P]"""
    num_rows: Tensor
    """[1], rows in use; rows behind it are padding, and need no expert."""
    longest: int
    """No sequence has more tokens in this step: known to the host, fixed in a graph."""
    shortest: int = 0
    """No sequence has fewer; 0: not known, as in a graph."""
    exports: Tensor | None = None
    """[T], slot that also receives the state after this row, or -1 (`kernels.arguments.StepTables`)."""

    @property
    def is_decode(self) -> bool:
        """Has every sequence one token?"""
        return self.longest == 1

    def latent_places(self, num_rows: int) -> Tensor:
        """[T], row of each token when the pages of a layer are seen as one table."""
        rows = torch.arange(num_rows, dtype=torch.int32, device=self.cu_seqlens.device)
        owner = torch.searchsorted(self.cu_seqlens[1:], rows, right=True)
        position = self.context_lens[owner] + rows - self.cu_seqlens[owner]
        return self.page_table[owner, position // PAGE_SIZE].long() * PAGE_SIZE + position % PAGE_SIZE

    @property
    def last_rows(self) -> Tensor:
        """[B], the last row of each sequence."""
        return self.cu_seqlens[1:].long() - 1
