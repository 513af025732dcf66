"""Logits to one token id: greedy, or temperature and nucleus, within what the grammar allows."""

import torch
from torch import Tensor

from k3agent.backend.engine.grammar import Allowed, Free
from k3agent.backend.engine.messages import SamplingParams
from k3agent.backend.errors import BackendError


class Sampler:
    """Keeps the index tensors of the masks, which are few and used at every step."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._banned: dict[frozenset[int], Tensor] = {}

    def generator(self, params: SamplingParams) -> torch.Generator | None:
        """The random source of a request; None for greedy ones. Without a seed the system gives one."""
        if params.temperature <= 0:
            return None
        generator = torch.Generator(device=self._device)
        if params.seed is None:
            generator.seed()
        else:
            generator.manual_seed(params.seed)
        return generator

    @torch.inference_mode()
    def sample(
        self,
        logits: Tensor,
        params: SamplingParams,
        allowed: Allowed | None = None,
        generator: torch.Generator | None = None,
    ) -> int:
        """logits: [V], changed in place by the mask. Ties go to the lowest id when greedy."""
        ids: Tensor | None = None
        if isinstance(allowed, Free):
            logits.index_fill_(0, self._banned_index(allowed.banned), -torch.inf)
        elif allowed is not None:
            ids = torch.tensor(sorted(allowed.ids), device=self._device)
            logits = logits[ids]
        if params.temperature <= 0 or generator is None:
            place = int(torch.argmax(logits))
        else:
            place = self._draw(logits, params, generator)
        if torch.isnan(logits[place]):
            raise BackendError("the model gave NaN logits; its weights or this device are damaged")
        return int(ids[place]) if ids is not None else place

    def _draw(self, logits: Tensor, params: SamplingParams, generator: torch.Generator) -> int:
        probabilities = torch.softmax(logits.float() / params.temperature, dim=-1)
        if params.top_p < 1:
            ordered, places = torch.sort(probabilities, descending=True)
            # a token stays if the mass before it is below top_p: the first one always does
            ordered[ordered.cumsum(0) - ordered >= params.top_p] = 0
            return int(places[torch.multinomial(ordered, 1, generator=generator)])
        return int(torch.multinomial(probabilities, 1, generator=generator))

    def _banned_index(self, banned: frozenset[int]) -> Tensor:
        index = self._banned.get(banned)
        if index is None:
            index = torch.tensor(sorted(banned), dtype=torch.long, device=self._device)
            self._banned[banned] = index
        return index
