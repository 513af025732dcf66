"""One request inside the engine: its tokens, what is computed of them, and what it holds of the cache."""

from dataclasses import dataclass, field
from enum import Enum

from k3agent.backend.cache.radix import Checkpoint, RadixNode
from k3agent.backend.engine.draft import PromptLookup
from k3agent.backend.engine.grammar import Grammar
from k3agent.backend.engine.images import ImageSpan
from k3agent.backend.engine.messages import SamplingParams
from k3agent.backend.engine.sampler import Choice
from k3agent.backend.engine.stops import StopWatch


class Status(Enum):
    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    ENDING = "ending"
    """The answer is reported; its last tokens still go through the model, so that the cache holds them."""
    ENDED = "ended"


@dataclass(slots=True)
class Clock:
    """When a request was added, first admitted and began to decode; in steps, when it last queued and ran."""

    added_s: float = 0.0
    admitted_s: float = 0.0
    decoding_s: float = 0.0
    queued_at: int = 0
    admitted_at: int = 0
    prefilled_at: int = -1


@dataclass(eq=False, kw_only=True)
class Sequence:
    """`token_ids` are the prompt and all that was generated; the first `num_computed` are in the cache.

    Placeholders of images have ids past the vocabulary that tell the images apart (see `images.py`).
    """

    request_id: str
    token_ids: list[int]
    params: SamplingParams
    choice: Choice
    grammar: Grammar | None = None
    stops: StopWatch | None = None
    lookup: PromptLookup | None = None
    anchors: tuple[int, ...] = ()
    """Positions inside the prompt that the client thinks worth a checkpoint."""
    checkpoint_at: list[int] = field(default_factory=list)
    """Positions at which the running prefill files its state, ascending."""
    images: list[ImageSpan] = field(default_factory=list)
    num_prompt: int = 0
    num_cached: int = 0
    num_cached_by_tier: dict[str, int] = field(default_factory=dict)
    num_computed: int = 0
    num_exact: int = 0
    """Leading tokens that were computed as a cold run computes them: by prefill on the grid."""
    page_ids: list[int] = field(default_factory=list)
    state_slot: int | None = None
    node: RadixNode | None = None
    resumed_from: Checkpoint | None = None
    status: Status = Status.WAITING
    clock: Clock = field(default_factory=Clock)
    stop_text: str | None = None
    stop_token_id: int | None = None
    num_draft: int = 0
    num_accepted: int = 0
    num_preempted: int = 0
    is_suspect: bool = False
    """A pass that it took part in failed: it runs alone until it is known whose fault that was."""

    def __post_init__(self) -> None:
        self.num_prompt = len(self.token_ids)

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens that are decided but not in the cache yet."""
        return len(self.token_ids) - self.num_computed

    def forget_cache(self) -> None:
        """Back to the beginning, after everything was given back to the cache."""
        self.num_computed = self.num_exact = 0
        self.checkpoint_at = []
        for span in self.images:
            span.features = None
