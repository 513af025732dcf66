"""What goes through the pipe between server and engine: plain dataclasses, pickled."""

from dataclasses import dataclass, field
from typing import Literal

from k3agent.backend.chat.template import PlacedImage
from k3agent.backend.engine.grammar import GrammarSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. `temperature` 0 is greedy; `max_tokens` bounds what is generated."""

    temperature: float = 1.0
    top_p: float = 0.95
    seed: int | None = None
    max_tokens: int = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How the engine process is set up. Sizes in bytes and tokens; None: chosen from model and device."""

    model_dir: str
    device: str = "cpu"
    dtype: str = "auto"
    max_model_len: int | None = None
    cache_bytes: int | None = None
    threads: int | None = None
    grid: int = 512
    """Prefill is cut at multiples of this many tokens: equal cuts, equal numbers."""
    max_waiting: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """A new request. `checkpoint_at` are prompt positions worth a checkpoint, e.g. the end of the system
    text.
    """

    request_id: str
    token_ids: list[int]
    params: SamplingParams
    grammar: GrammarSpec | None = None
    checkpoint_at: tuple[int, ...] = ()
    images: tuple[PlacedImage, ...] = ()
    """In the order of their positions."""


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    pass


Command = Add | Abort | Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The model is loaded and warm."""

    max_model_len: int
    num_pages: int
    num_slots: int
    cache_bytes: int
    weights_bytes: int
    load_s: float
    device: str
    dtype: str
    min_cacheable_tokens: int = 1


@dataclass(frozen=True, slots=True)
class FailedToStart:
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """Progress of a prompt: `num_computed` of `num_prompt` tokens, `num_cached` of them from the cache."""

    request_id: str
    num_computed: int
    num_prompt: int
    num_cached: int


@dataclass(frozen=True, slots=True)
class Generated:
    request_id: str
    token_ids: list[int]


FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last message of a request. Times in seconds since it was added."""

    request_id: str
    reason: FinishReason
    num_prompt: int
    num_cached: int
    num_generated: int
    queued_s: float
    prefill_s: float
    decode_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    request_id: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Sums since the start, and levels now; sent after each request."""

    values: dict[str, float] = field(default_factory=dict)


Report = Ready | FailedToStart | Prefilled | Generated | Finished | Failed | Counters
