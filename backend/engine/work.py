"""One sequence's part of a pass, as the engine asks the runner for it."""

from dataclasses import dataclass, field

from torch import LongTensor, Tensor


@dataclass(slots=True, kw_only=True)
class Work:
    """One sequence's part of a pass: its next tokens, and where its pages and its state are."""

    token_ids: list[int]
    context_len: int
    page_ids: list[int]
    state_slot: int
    num_logits: int = 1
    """The logits of so many of the last tokens are wanted."""
    trail_slots: list[int] = field(default_factory=list)
    """Slots for the states before the last token, before the one before it, and so on, latest at the end."""
    image_rows: LongTensor | None = None
    """Which of the tokens are placeholders of images, and what stands there instead of embeddings."""
    image_features: Tensor | None = None
