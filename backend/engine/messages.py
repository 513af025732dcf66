"""What goes through the pipe between server and engine: plain dataclasses, pickled."""

from dataclasses import dataclass, field
from typing import Literal

from k3agent.backend.chat.template import Channel, PlacedImage
from k3agent.backend.engine.grammar import GrammarSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is chosen. `temperature` 0 is greedy; `max_tokens` bounds what is generated.

    Penalties come first, on what stands in the text so far; then temperature; then `top_k`, `top_p`, `min_p`.
    """

    temperature: float = 1.0
    top_p: float = 0.95
    top_k: int = 0
    """Only the so many likeliest tokens; 0: all."""
    min_p: float = 0.0
    """Only tokens at least this share as likely as the likeliest."""
    presence_penalty: float = 0.0
    """Taken from the logit of each token that was generated before."""
    frequency_penalty: float = 0.0
    """Taken from the logit of a token for each time that it was generated."""
    repetition_penalty: float = 1.0
    """Divides positive logits and multiplies negative ones of tokens in the prompt or the answer."""
    seed: int | None = None
    """The same request with the same seed gives the same tokens, whatever runs beside it."""
    max_tokens: int = 2048
    min_tokens: int = 0
    """Nothing that ends the answer is chosen before so many tokens."""
    stop: tuple[str, ...] = ()
    """The answer ends with the token that completes one of these in the text of the response."""
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    """Log-probabilities of the chosen token and of this many likeliest ones; None: none at all."""
    ignore_eos: bool = False


Exactness = Literal["auto", "idle", "always", "off"]
"""What a prefix may be resumed from. `idle`: anything, and states made while decoding are replaced by those
of a cold run when nothing else is to do; `always`: only states of cold runs; `off`: anything; `auto`: `off`
for small models on a CPU, else `idle`.
"""
Speculation = Literal["auto", "off", "prompt-lookup"]
"""Guess what follows from the sequence's own text and check the guess in one pass; `auto`: where faster."""


Graphs = Literal["auto", "off", "padded"]
"""Short passes at fixed shapes: `auto`: captured in CUDA graphs where all kernels and sums over ranks allow
that; `padded`: the same shapes anywhere, without capture."""


Sums = Literal["auto", "collectives", "symmetric"]
"""Small sums over ranks: `collectives`: like all others; `symmetric`: through symmetric memory, where all
ranks can have it; `auto`: as `collectives`."""


Kernels = Literal["auto", "triton", "reference"]
"""Who computes: `reference`: PyTorch; `triton`: Triton wherever it has the operation; `auto`: on a GPU Triton
where it was measured to be faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How the engine process is set up. Sizes in bytes and tokens; None: chosen from model and device."""

    model_dir: str
    device: str = "cpu"
    dtype: str = "auto"
    max_model_len: int | None = None
    cache_bytes: int | None = None
    threads: int | None = None
    grid: int | None = None
    """Prefill is cut at multiples of this many tokens: equal cuts, equal numbers. None: by device."""
    max_waiting: int = 64
    max_running: int = 16
    """Sequences that are computed side by side; further ones wait."""
    max_step_tokens: int | None = None
    """Tokens of prefill beside one pass of decodes; below `grid` it takes the grid's place."""
    exactness: Exactness = "auto"
    host_cache_bytes: int = 0
    """Host memory for what the device cache evicts."""
    disk_cache_dir: str | None = None
    disk_cache_bytes: int = 4 << 30
    speculation: Speculation = "auto"
    kernels: Kernels = "auto"
    graphs: Graphs = "auto"
    compile_cache_dir: str | None = None
    """Where compiled kernels are kept; None: where Triton puts them."""
    tensor_parallel: int = 1
    expert_parallel: int = 1
    backend: str | None = None
    """Of the collectives between ranks: `gloo` or `nccl`; None: by device."""
    sums: Sums = "auto"


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
    channel: Channel | None = None
    """Which element of an answer the prompt left open; None: what the grammar says, or plain text."""


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
    """Of a prompt that is sent again; a turn that is continued hits whatever its length."""


@dataclass(frozen=True, slots=True)
class WarmingUp:
    """Progress of the start once the weights are there: `num_done` of `num_steps`, and what comes next."""

    num_done: int
    num_steps: int
    what: str


@dataclass(frozen=True, slots=True)
class FailedToStart:
    message: str


@dataclass(frozen=True, slots=True)
class RankLost:
    """A rank of a model on several ranks is gone, and so will the engine be in a moment."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """Progress of a prompt: `num_computed` of `num_prompt` tokens, `num_cached` of them from the cache."""

    request_id: str
    num_computed: int
    num_prompt: int
    num_cached: int


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of one generated token, under the distribution before temperature and truncation; `top` from the
    likeliest on, as (id, log-probability).
    """

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Generated:
    """Tokens in the order in which they follow; `logprobs` has one entry for each if they were asked for."""

    request_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None


FinishReason = Literal["stop", "length", "abort"]
FailureKind = Literal["error", "bad_request", "overloaded"]
"""`bad_request`: it can never be served as it is; `overloaded`: it could be served later."""


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
    num_cached_by_tier: dict[str, int] = field(default_factory=dict)
    """`num_cached` by where it lay: `device`, `host`, `disk`."""
    num_draft: int = 0
    """Tokens guessed ahead, and how many of them were right."""
    num_accepted: int = 0
    num_preempted: int = 0
    stop_text: str | None = None
    """The stop string that ended the answer."""
    stop_token_id: int | None = None
    """The member of `stop_token_ids` that ended the answer; it is the last one generated."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A request that ends without an answer; `kind` says whose fault it is."""

    request_id: str
    message: str
    kind: FailureKind = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Sums since the start, and levels now; sent as each request ends, each second of work, and after it."""

    values: dict[str, float] = field(default_factory=dict)


Report = Ready | WarmingUp | FailedToStart | RankLost | Prefilled | Generated | Finished | Failed | Counters
