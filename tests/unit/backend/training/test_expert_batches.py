"""Experts as batches of fixed size: the wide product's results, and what happens when room is short."""

import pytest
import torch
from support.training_batch import LENGTHS, make_batch

from k3agent.backend.errors import BackendError
from k3agent.backend.training import export
from k3agent.backend.training.expert_batches import Batching, find_places, from_places, to_places
from k3agent.backend.training.network import route
from k3agent.backend.training.shares import experts_of
from k3agent.backend.training.trainer import Trainer


def trainer(batching: Batching | None) -> Trainer:
    config = export.model_config(export.tiny_config(300))
    cpu = torch.device("cpu")
    made = Trainer(config, cpu, dtype=torch.float64, compiled=False, seed=0, batching=batching)
    made.refresh(rounded=False)
    return made


def test_with_room_for_all_it_is_the_wide_product() -> None:
    batch = make_batch(LENGTHS, 300)
    wide, batched = trainer(None), trainer(Batching(room=8.0))
    for made in (wide, batched):
        for _ in range(2):
            made.step(batch, 1.0, rounded=False)
    assert torch.allclose(wide.parameters.matrices.master, batched.parameters.matrices.master, atol=1e-9)
    assert torch.allclose(wide.parameters.vectors.master, batched.parameters.vectors.master, atol=1e-9)
    assert torch.allclose(wide.network.bias, batched.network.bias, atol=1e-9)
    one, two = wide.read_measures(), batched.read_measures()
    assert torch.equal(one.loads, two.loads)
    assert two.num_lost == 0


def test_a_step_is_the_same_each_time() -> None:
    batch, found = make_batch(LENGTHS, 300), []
    for _ in range(2):
        made = trainer(Batching(room=1.0))
        made.step(batch, 1.0, rounded=False)
        found.append(made.parameters.matrices.master)
    assert torch.equal(*found)


def test_the_last_go_without_when_room_is_short() -> None:
    chosen = torch.zeros(6, 3, dtype=torch.bool)
    chosen[:, 0] = True
    chosen[:3, 1] = True
    chosen[3:, 2] = True
    places = find_places(chosen, 2, 4)
    assert places.token.view(3, 4).tolist() == [[0, 1, 2, 3], [0, 1, 2, 6], [3, 4, 5, 6]]
    assert int(places.num_lost) == 2
    assert places.expert.tolist() == [[0, 1]] * 3 + [[0, 2]] * 3
    x = torch.arange(6.0)[:, None] + 1
    batches = to_places(x, places, 3)
    assert batches[:, :, 0].tolist() == [[1, 2, 3, 4], [1, 2, 3, 0], [4, 5, 6, 0]]
    gates = torch.tensor([[0.75, 0.25]]).expand(6, 2)
    out = from_places(batches, gates, places)
    assert out[:, 0].tolist() == [1, 2, 3, 4, 0.25 * 5, 0.25 * 6]


def test_gradients_are_those_of_the_sum() -> None:
    generator = torch.Generator().manual_seed(4)
    scores = torch.rand(20, 8, generator=generator, dtype=torch.float64)
    chosen, _ = route(scores, torch.zeros(8, dtype=torch.float64), 3)
    places = find_places(chosen, 3, 6)
    assert int(places.num_lost) > 0
    x = torch.randn(20, 4, generator=generator, dtype=torch.float64).requires_grad_()
    gates = scores.gather(1, places.expert).requires_grad_()

    def work(x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        return from_places(torch.sin(to_places(x, places, 8)), gates, places)

    assert torch.autograd.gradcheck(work, (x, gates))


@pytest.mark.parametrize(
    "tokens, top, experts, room, expected",
    [(65_536, 4, 16, 1.25, 20_480), (100, 2, 8, 1.0, 32), (100, 2, 8, 9.0, 100)],
)
def test_places(tokens: int, top: int, experts: int, room: float, expected: int) -> None:
    assert Batching(room).num_places(tokens, top, experts) == expected


def test_experts_are_dealt_evenly_or_not_at_all() -> None:
    config = export.model_config(export.tiny_config(64))
    assert [experts_of(config, rank, 4) for rank in (0, 3)] == [range(2), range(6, 8)]
    with pytest.raises(BackendError, match="8 experts cannot be dealt evenly to 3 ranks"):
        experts_of(config, 0, 3)
