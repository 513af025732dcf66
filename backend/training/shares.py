"""Experts dealt out among ranks: which elements of the whole flat matrices a rank's own flat tensor holds.

A rank has all common matrices and, behind them, its own experts. States and exported weights always have the
whole, so they are read by any number of ranks.
"""

import torch
from torch import Tensor

from k3agent.backend.config import ModelConfig
from k3agent.backend.errors import BackendError
from k3agent.backend.training.parameters import Layout, entries
from k3agent.backend.training.team import Team


def experts_of(config: ModelConfig, rank: int, world: int) -> range:
    """Numbers of the experts that a rank has. Raises BackendError if they cannot be dealt evenly."""
    total = config.num_experts or 0
    if not total or total % world:
        raise BackendError(f"{total} experts cannot be dealt evenly to {world} ranks")
    return range(rank * total // world, (rank + 1) * total // world)


class Shares:
    """From a rank's flat matrices to the whole and back."""

    def __init__(self, config: ModelConfig, team: Team) -> None:
        self._team = team
        whole = Layout.of(entries(config), is_matrix=True)
        self.size = whole.size
        parts = [
            Layout.of(entries(config, experts_of(config, rank, team.world)), is_matrix=True)
            for rank in range(team.world)
        ]
        self._num_common, self._num_dealt = parts[0].num_common, parts[0].size - parts[0].num_common
        # Where an element of the whole stands in: the common ones, then those of rank 0, of rank 1 and so on.
        self._source = torch.full((self.size,), -1)
        place_of = {piece.name: (entry, piece) for entry in whole.entries for piece in entry.pieces}
        for rank, part in enumerate(parts):
            numbers = torch.arange(part.size)
            numbers[part.num_common :] += rank * self._num_dealt
            for entry in part.entries:
                for piece in entry.pieces:
                    target = whole.piece(self._source, *place_of[piece.name])
                    target.copy_(part.piece(numbers, entry, piece))

    def whole(self, flat: Tensor) -> Tensor:
        """The whole from all ranks' parts; all ranks are to ask together."""
        parts = self._team.gather_flat(flat[self._num_common :])
        line = torch.cat((flat[: self._num_common], parts, flat.new_zeros(1)))
        return line[self._source.to(flat.device)]

    def own(self, whole: Tensor) -> Tensor:
        """This rank's part of the whole."""
        line = whole.new_zeros(self._num_common + self._num_dealt * self._team.world)
        is_there = self._source >= 0
        line[self._source[is_there].to(whole.device)] = whole[is_there.to(whole.device)]
        start = self._num_common + self._num_dealt * self._team.rank
        return torch.cat((line[: self._num_common], line[start : start + self._num_dealt]))
