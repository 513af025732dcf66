"""Routed experts as batches of fixed size, on one rank or dealt out among several.

Each expert has a fixed number of places for the tokens of a rank's batch; who stands where is worked out on
the device, so nothing waits for the host and shapes never change. A token that finds no place left goes
without that expert; balanced routing makes this rare, and it is counted. Both ways, forward and backward,
only gather: no atomics, so a step is the same each time.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from k3agent.backend.training.team import Team

PLACE_MULTIPLE = 8
"""Places are rounded up to this, for aligned products."""


@dataclass(frozen=True)
class Batching:
    """How experts are run as batches."""

    room: float = 1.25
    """Places of an expert over its even share of tokens."""
    is_parallel: bool = False
    """Has each rank some of the experts, whole? Else all ranks have all."""

    def num_places(self, num_tokens: int, top: int, num_experts: int) -> int:
        """Places of one expert for one rank's tokens."""
        even = num_tokens * top / num_experts * self.room
        return min(-(-math.ceil(even) // PLACE_MULTIPLE) * PLACE_MULTIPLE, num_tokens)


@dataclass
class Places:
    """T tokens, each at up to k of E*C places."""

    token: Tensor
    """[E*C] int64: who stands at a place; T: nobody."""
    place: Tensor
    """[T, k] int64: where a token's choices stand; E*C: nowhere."""
    expert: Tensor
    """[T, k] int64: a token's choices."""
    num_lost: Tensor
    """Choices that found no place, a scalar on the device."""


def find_places(chosen: Tensor, top: int, num_places: int) -> Places:
    """Deal tokens to places in their order. chosen: bool [T, E], `top` in each row."""
    num_tokens, num_experts = chosen.shape
    order = chosen.long().cumsum(0) - 1
    is_placed = chosen & (order < num_places)
    # Those without a place share a column that is cut off.
    column = torch.where(is_placed, order, num_places)
    token = torch.full((num_experts, num_places + 1), num_tokens, device=chosen.device)
    numbers = torch.arange(num_tokens, device=chosen.device).expand(num_experts, num_tokens)
    token.scatter_(1, column.t(), numbers)
    expert = chosen.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :top]
    at = expert * num_places + column.gather(1, expert)
    place = torch.where(is_placed.gather(1, expert), at, num_experts * num_places)
    num_lost = chosen.sum() - is_placed.sum()
    return Places(token[:, :num_places].flatten(), place, expert, num_lost)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x; the number one past the last is a row of zeros."""
    return torch.cat((x, x.new_zeros(1, *x.shape[1:])))[index]


class _ToPlaces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return _rows(x, token)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (place,) = ctx.saved_tensors
        return _rows(grads[0], place).sum(1), None, None


class _FromPlaces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, gates: Tensor, token: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(y, gates, token, place)
        return (_rows(y, place).to(gates.dtype) * gates[..., None]).sum(1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        y, gates, token, place = ctx.saved_tensors
        (grad,) = grads
        by_place = gates.new_zeros(len(token) + 1)
        # Only the last, which is cut off, is written by several.
        by_place.scatter_(0, place.flatten(), gates.flatten())
        to_y = _rows(grad, token) * by_place[:-1, None]
        to_gates = (_rows(y, place).to(grad.dtype) * grad[:, None]).sum(-1)
        return to_y.to(y.dtype), to_gates, None, None


class _Exchange(torch.autograd.Function):
    """To the ranks of the experts, or back; the gradient goes the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, team: Team, is_back: bool) -> Tensor:
        ctx.team, ctx.is_back = team, is_back
        return team.from_experts(x) if is_back else team.to_experts(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        team: Team = ctx.team
        return (team.to_experts if ctx.is_back else team.from_experts)(grads[0].contiguous()), None, None


def to_places(x: Tensor, places: Places, num_experts: int) -> Tensor:
    """x [T, Z] to each expert's batch [E, C, Z]; empty places are zero."""
    out = _apply(_ToPlaces, x, places.token, places.place)
    return out.view(num_experts, -1, x.shape[1])


def from_places(y: Tensor, gates: Tensor, places: Places) -> Tensor:
    """Outputs [E, C, Z] weighted by gates [T, k], summed for each token: [T, Z] in the gates' dtype."""
    return _apply(_FromPlaces, y.flatten(0, 1), gates, places.token, places.place)


def exchange(x: Tensor, team: Team, *, is_back: bool) -> Tensor:
    """Batches of all experts [E, C, Z] of this rank's tokens to those of this rank's experts, of all ranks'
    tokens, [E/W, W*C, Z]; or back.
    """
    return _apply(_Exchange, x.contiguous(), team, is_back)


def _apply(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    found = function.apply(*args)
    assert isinstance(found, Tensor)
    return found
