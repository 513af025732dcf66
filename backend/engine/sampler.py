"""Logits to one token id: the grammar, raised copies, penalties, temperature, truncation, and the draw."""

import secrets
from dataclasses import dataclass

import torch
from torch import Tensor

from k3agent.backend.engine.grammar import Allowed, Free, Masked
from k3agent.backend.engine.messages import SamplingParams, TokenLogprobs
from k3agent.backend.errors import BackendError
from k3agent.backend.kernels import registry

_MAX_MASKS = 64
_MASK = (1 << 64) - 1


@dataclass(slots=True)
class Chosen:
    token_id: int
    logprobs: TokenLogprobs | None = None


class Choice:
    """What choosing the tokens of one request needs to remember: its random source, and what was said."""

    def __init__(
        self,
        params: SamplingParams,
        prompt_ids: list[int],
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self.params = params
        self.generator = _generator(params, device)
        self.seed = secrets.randbits(63) if params.seed is None else params.seed
        """Of what is drawn on the device."""
        self.counts: Tensor | None = None
        """[V], how often each token was generated; kept only for penalties."""
        self.is_known: Tensor | None = None
        """[V], whether a token stands in the prompt or the answer."""
        if params.presence_penalty or params.frequency_penalty:
            self.counts = torch.zeros(vocab_size, device=device)
        if params.repetition_penalty != 1:
            self.is_known = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            # images have ids past the vocabulary
            self._know([i for i in prompt_ids if i < vocab_size])

    @property
    def is_plain(self) -> bool:
        """Is the likeliest token all that is asked for?"""
        return self.is_free and self.generator is None

    @property
    def is_free(self) -> bool:
        """Do the logits and the parameters say everything, without a memory of what was said?"""
        is_bare = self.counts is None and self.is_known is None
        return is_bare and self.params.logprobs is None

    def seed_at(self, position: int) -> int:
        """A number for the token at a position, mixed so that neighbours have nothing in common."""
        mixed = (self.seed + (position + 1) * 0x9E3779B97F4A7C15) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (mixed ^ (mixed >> 31)) >> 1

    def took(self, token_ids: list[int]) -> None:
        """Note tokens that were added to the answer, chosen or forced."""
        if self.counts is not None:
            ids = torch.tensor(token_ids, dtype=torch.long, device=self.counts.device)
            self.counts.index_add_(0, ids, torch.ones_like(ids, dtype=self.counts.dtype))
        if self.is_known is not None:
            self._know(token_ids)

    def _know(self, token_ids: list[int]) -> None:
        assert self.is_known is not None
        ids = torch.tensor(token_ids, dtype=torch.long, device=self.is_known.device)
        self.is_known.index_fill_(0, ids, True)

    def penalise(self, logits: Tensor, ids: Tensor | None) -> Tensor:
        """Logits after the penalties; `ids` are those of the logits when they are not all."""
        params = self.params
        if self.is_known is not None:
            known = self.is_known if ids is None else self.is_known[ids]
            factor = params.repetition_penalty
            logits = torch.where(known, torch.where(logits > 0, logits / factor, logits * factor), logits)
        if self.counts is not None:
            counts = self.counts if ids is None else self.counts[ids]
            logits = logits - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
        return logits


def _generator(params: SamplingParams, device: torch.device) -> torch.Generator | None:
    """The random source of a request; None for greedy ones. Without a seed the system gives one."""
    if params.temperature <= 0:
        return None
    generator = torch.Generator(device=device)
    if params.seed is None:
        generator.seed()
    else:
        generator.manual_seed(params.seed)
    return generator


@dataclass(frozen=True, slots=True)
class Draw:
    """One row to draw from on the device: for whom, and which token of its text it is."""

    choice: Choice
    position: int


class Sampler:
    """Keeps the index tensors of the latest masks, which are used at every step. `kernels`: see
    kernels.registry; with one for drawing, rows that need no more are drawn together on the device."""

    def __init__(self, device: torch.device, kernels: str = registry.REFERENCE) -> None:
        self._device = device
        kernel = registry.choose("sample", kernels, device)
        self._kernel = None if kernel is registry.get("sample") else kernel
        self._banned: dict[frozenset[int], Tensor] = {}

    @property
    def draws_together(self) -> bool:
        """Can `draw` be asked for more than the likeliest token?"""
        return self._kernel is not None

    @torch.inference_mode()
    def draw(self, logits: Tensor, draws: list[Draw | None]) -> list[int] | None:
        """A token for each row [N, V], of those without a draw the likeliest; one copy to the host. None when
        a logit is NaN: whose fault it is comes out row by row.
        """
        if not draws:
            return []
        if self._kernel is None:
            values, places = logits.max(dim=-1)
            chosen = torch.where(torch.isnan(values), -1, places).tolist()
        else:
            chosen = self._kernel(logits, *self._columns(draws)).tolist()
        return None if -1 in chosen else chosen

    def _columns(self, draws: list[Draw | None]) -> list[Tensor]:
        params = [None if draw is None else draw.choice.params for draw in draws]
        floats = [[p.temperature if p else 0.0, p.top_p if p else 1.0, p.min_p if p else 0.0] for p in params]
        wholes = [
            [draw.choice.params.top_k, draw.choice.seed_at(draw.position)] if draw else [0, 0]
            for draw in draws
        ]
        temperature, top_p, min_p = torch.tensor(floats).to(self._device, non_blocking=True).unbind(-1)
        top_k, seed = torch.tensor(wholes, dtype=torch.int64).to(self._device, non_blocking=True).unbind(-1)
        return [column.contiguous() for column in (temperature, top_k, top_p, min_p, seed)]

    @torch.inference_mode()
    def sample(
        self,
        logits: Tensor,
        choice: Choice,
        allowed: Allowed | None = None,
        banned: frozenset[int] = frozenset(),
    ) -> Chosen:
        """logits: [V], changed in place by the mask; `banned` ones are out as long as others are left.

        Ties go to the lowest id when greedy.
        """
        ids: Tensor | None = None
        if isinstance(allowed, Free):
            banned = allowed.banned | banned if banned else allowed.banned
        elif isinstance(allowed, Masked):
            logits.masked_fill_(allowed.is_forbidden.to(self._device), -torch.inf)
            if banned and bool((self._ban(logits.clone(), banned) == -torch.inf).all()):
                banned = frozenset()
        elif allowed is not None:
            kept = allowed.ids - banned or allowed.ids
            ids = torch.tensor(sorted(kept), device=self._device)
            logits = logits[ids]
        if banned and ids is None:
            logits = self._ban(logits, banned)
        params = choice.params
        penalised = choice.penalise(logits, ids)
        place = int(torch.argmax(penalised)) if choice.generator is None else _draw(penalised, choice)
        if torch.isnan(penalised.sum()):
            raise BackendError("the model gave NaN logits; its weights or this device are damaged")
        token_id = int(ids[place]) if ids is not None else place
        if params.logprobs is None:
            return Chosen(token_id)
        return Chosen(token_id, _logprobs(logits, place, ids, params.logprobs))

    def _ban(self, logits: Tensor, banned: frozenset[int]) -> Tensor:
        index = self._banned.get(banned)
        if index is None:
            # requests may name stop tokens that the vocabulary does not have
            known = sorted(i for i in banned if i < len(logits))
            index = torch.tensor(known, dtype=torch.long, device=self._device)
            if len(self._banned) >= _MAX_MASKS:
                self._banned.clear()
            self._banned[banned] = index
        return logits.index_fill_(0, index, -torch.inf)


def _draw(logits: Tensor, choice: Choice) -> int:
    params, generator = choice.params, choice.generator
    probabilities = torch.softmax(logits.float() / params.temperature, dim=-1)
    if torch.isnan(probabilities[0]):
        return 0  # one NaN makes them all so; the caller sees it in the logit
    is_whole = params.top_p >= 1 and params.min_p <= 0 and not 0 < params.top_k < len(probabilities)
    if is_whole:
        return int(torch.multinomial(probabilities, 1, generator=generator))
    ordered, places = torch.sort(probabilities, descending=True)
    if params.top_k > 0:
        ordered[params.top_k :] = 0
        ordered /= ordered.sum()
    if params.top_p < 1:
        # a token stays if the mass before it is below top_p: the first one always does
        ordered[1:][(ordered.cumsum(0) - ordered)[1:] >= params.top_p] = 0
    if params.min_p > 0:
        ordered[1:][ordered[1:] < params.min_p * ordered[0]] = 0
    return int(places[torch.multinomial(ordered, 1, generator=generator)])


def _logprobs(logits: Tensor, place: int, ids: Tensor | None, num_top: int) -> TokenLogprobs:
    values = torch.log_softmax(logits.float(), dim=-1)
    top, places = torch.topk(values, min(num_top, len(values)))
    top_ids = places if ids is None else ids[places]
    token_id = place if ids is None else int(ids[place])
    # what the grammar forbids has no probability to speak of
    pairs = [
        (i, value) for i, value in zip(top_ids.tolist(), top.tolist(), strict=True) if value > -torch.inf
    ]
    return TokenLogprobs(token_id, float(values[place]), pairs)


def forced_logprobs(token_ids: list[int]) -> list[TokenLogprobs]:
    """Of tokens that have no alternative: certain."""
    return [TokenLogprobs(i, 0.0, [(i, 0.0)]) for i in token_ids]
