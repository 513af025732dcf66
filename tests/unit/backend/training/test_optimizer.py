"""Muon's blocks and updates, AdamW against torch's own, the schedule."""

import pytest
import torch

from k3agent.backend.training import export
from k3agent.backend.training.optimizer import UPDATE_RMS, Optimizer, Settings, orthogonalise, rate_factor
from k3agent.backend.training.parameters import Parameters


@pytest.fixture
def parameters() -> Parameters:
    made = Parameters(export.model_config(export.tiny_config(64)), torch.float32, torch.device("cpu"))
    made.initialise(0)
    return made


def give_gradients(parameters: Parameters, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for leaf in parameters.leaves.values():
        leaf.grad = torch.randn(leaf.shape, generator=generator)


def test_singular_values_end_near_one() -> None:
    x = torch.randn(3, 16, 48, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(x))
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_each_weight_of_a_matrix_is_in_one_block(parameters: Parameters) -> None:
    optimizer = Optimizer(parameters)
    for group in optimizer._groups:
        for view in group.views:
            view += 1
    for entry in parameters.matrices.entries:
        covered = sum(piece.rows[1] * piece.cols[1] for piece in entry.pieces)
        view = parameters.matrices.view_of(optimizer.direction, entry)
        assert view.max() == 1
        assert view.sum() == covered


def test_heads_and_experts_are_blocks_of_their_own(parameters: Parameters) -> None:
    config = parameters.config
    optimizer = Optimizer(parameters, Settings(weight_decay=0.0))
    before = parameters.matrices.master.clone()
    give_gradients(parameters, 1)
    optimizer.step(1.0, rounded=False)
    change = (parameters.matrices.master - before) / optimizer.settings.muon_rate
    seen = 0
    for buffer, entry, piece in parameters.pieces():
        if not entry.is_matrix:
            continue
        blocks = buffer.piece(change, entry, piece).unflatten(0, (piece.num_blocks, -1))
        for block in blocks:
            # Random squares have singular values near zero; the size of the update tells without them.
            assert block.square().mean().sqrt() == pytest.approx(UPDATE_RMS, rel=0.25), piece.name
            assert torch.linalg.svdvals(block).max() < 1.4 * UPDATE_RMS * max(block.shape) ** 0.5, piece.name
            seen += 1
    linear = config.linear_attn_config
    assert seen > linear.num_heads * 3 * len(linear.kda_layers) + config.num_experts * 3  # pyright: ignore[reportOptionalOperand]


def test_vectors_follow_torch_adam(parameters: Parameters) -> None:
    settings = Settings()
    optimizer = Optimizer(parameters, settings)
    copy = parameters.vectors.master.clone().requires_grad_()
    reference = torch.optim.Adam([copy], settings.adam_rate, (settings.beta1, settings.beta2), settings.eps)
    for seed in range(3):
        give_gradients(parameters, seed)
        parameters.vectors.gather_grads()
        copy.grad = parameters.vectors.grad.clone()
        give_gradients(parameters, seed)
        optimizer.step(1.0, rounded=False)
        reference.step()
    assert torch.allclose(parameters.vectors.master, copy.detach(), atol=1e-6)
    assert torch.equal(parameters.vectors.compute, parameters.vectors.master)


def test_state_survives(parameters: Parameters) -> None:
    optimizer = Optimizer(parameters)
    give_gradients(parameters, 0)
    optimizer.step(1.0, rounded=False)
    again = Optimizer(parameters)
    again.load_state(optimizer.state())
    assert torch.equal(again.momentum, optimizer.momentum)
    assert again.num_steps == 1


def test_schedule() -> None:
    assert rate_factor(0.0, 0.03, 0.5) == 0.01
    assert rate_factor(0.015, 0.03, 0.5) == pytest.approx(0.5)
    assert rate_factor(0.3, 0.03, 0.5) == 1.0
    assert rate_factor(0.75, 0.03, 0.5) == pytest.approx(0.5)
    assert rate_factor(1.0, 0.03, 0.5) == 0.0
    assert rate_factor(1.2, 0.03, 0.5) == 0.0
