"""One request inside the engine: its tokens, what is computed of them, and what it holds of the cache."""

from dataclasses import dataclass, field
from enum import Enum

from k3agent.backend.cache.radix import Checkpoint, RadixNode
from k3agent.backend.engine.grammar import Grammar
from k3agent.backend.engine.images import ImageSpan
from k3agent.backend.engine.messages import SamplingParams


class Status(Enum):
    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    ENDED = "ended"


@dataclass(eq=False, kw_only=True)
class Sequence:
    """`token_ids` are the prompt and all that was generated; the first `num_computed` are in the cache.

    Placeholders of images have ids past the vocabulary that tell the images apart (see `images.py`).
    """

    request_id: str
    token_ids: list[int]
    params: SamplingParams
    grammar: Grammar | None = None
    checkpoint_at: list[int] = field(default_factory=list)
    """Positions inside the prompt at which the state is filed, ascending."""
    images: list[ImageSpan] = field(default_factory=list)
    num_prompt: int = 0
    num_cached: int = 0
    num_computed: int = 0
    page_ids: list[int] = field(default_factory=list)
    state_slot: int | None = None
    node: RadixNode | None = None
    resumed_from: Checkpoint | None = None
    status: Status = Status.WAITING

    def __post_init__(self) -> None:
        self.num_prompt = len(self.token_ids)

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_prompt
