"""The switches of training: each does what it says, and what it makes can be loaded."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.training_batch import LENGTHS, make_batch, run_model

from k3agent.backend.errors import BackendError
from k3agent.backend.training import export, variants
from k3agent.backend.training.network import Network
from k3agent.backend.training.optimizer import UPDATE_RMS, Optimizer, Settings
from k3agent.backend.training.parameters import Parameters
from k3agent.backend.training.trainer import SIGN_RATE, Trainer
from k3agent.backend.training.variants import ABLATIONS, Variant

CPU = torch.device("cpu")


def trainer(variant: Variant, dtype: torch.dtype = torch.float32) -> Trainer:
    config = export.model_config(variant.config(export.tiny_config(300)))
    made = Trainer(config, CPU, dtype=dtype, compiled=False, seed=0, variant=variant)
    made.refresh(rounded=False)
    return made


def options(*words: str) -> Variant:
    parser = argparse.ArgumentParser()
    variants.add_options(parser)
    return variants.of_options(parser.parse_args(words))


@pytest.mark.parametrize("variant", [Variant(residuals="plain"), Variant(mla_every=2)])
def test_other_shapes_are_what_the_model_computes(tmp_path: Path, variant: Variant) -> None:
    raw = variant.config(export.tiny_config(300))
    config = export.model_config(raw)
    parameters = Parameters(config, torch.float64, CPU)
    parameters.initialise(1)
    noise = torch.randn(parameters.vectors.size, generator=torch.Generator().manual_seed(2)).double()
    parameters.vectors.master += noise * 0.1
    parameters.vectors.compute.copy_(parameters.vectors.master)
    network = Network(config, parameters)
    batch = make_batch(LENGTHS, 300)
    export.write_folder(tmp_path, raw, parameters, network.bias, packed=False)
    with torch.no_grad():
        logits = network.logits(batch)
    expected = run_model(tmp_path, torch.float64, batch)
    assert (logits - expected).abs().max() < 1e-9 * expected.abs().max()


def test_layers_are_dealt_as_asked() -> None:
    config = export.model_config(Variant(mla_every=2).config(export.nano_config()))
    assert [i for i in range(12) if not config.is_kda(i)] == [1, 3, 5, 7, 9, 11]
    assert options("--mla-every", "6").mla_every == 6
    assert options() == Variant()
    with pytest.raises(BackendError, match="--mla-every 1: give 2 or more"):
        options("--mla-every", "1")


def test_rows_of_the_table_differ_in_one_switch_from_the_first() -> None:
    first, *others = ABLATIONS.values()
    assert first == Variant(round_inputs=True)
    assert len(set(ABLATIONS.values())) == len(ABLATIONS)
    for variant in others:
        changed = [name for name in vars(first) if getattr(variant, name) != getattr(first, name)]
        # Without rounded weights rounded inputs make no sense.
        assert changed in ([changed[0]], ["round_weights", "round_inputs"])


def test_the_bias_follows_its_rule() -> None:
    batch = make_batch(LENGTHS, 300)
    by_rule: dict[str, torch.Tensor] = {}
    # All rules begin with the same weights and no bias.
    loads = trainer(Variant()).network.forward(batch).loads
    for rule in variants.CHOICES["balancing"]:
        made = trainer(Variant(balancing=rule))
        made.step(batch, 1.0, rounded=False)
        by_rule[rule] = made.network.bias
    assert torch.equal(by_rule["none"], torch.zeros_like(loads, dtype=torch.float32))
    less = loads.double() < loads.double().mean(-1, keepdim=True)
    assert torch.equal(by_rule["sign"][less], torch.full((int(less.sum()),), SIGN_RATE))
    assert by_rule["quantile"].abs().max() > SIGN_RATE


def give_gradients(parameters: Parameters, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for leaf in parameters.leaves.values():
        leaf.grad = torch.randn(leaf.shape, generator=generator)


def test_muon_on_whole_matrices_does_not_cut_heads() -> None:
    made = trainer(Variant())
    optimizer = Optimizer(made.parameters, Settings(matrices="muon-whole", weight_decay=0.0))
    before = made.parameters.matrices.master.clone()
    give_gradients(made.parameters, 1)
    optimizer.step(1.0, rounded=False)
    change = (made.parameters.matrices.master - before) / optimizer.settings.muon_rate
    seen = 0
    for buffer, entry, piece in made.parameters.pieces():
        if not entry.is_matrix or piece.num_blocks == 1:
            continue
        whole = buffer.piece(change, entry, piece)
        assert torch.linalg.svdvals(whole).max() < 1.4 * UPDATE_RMS * max(whole.shape) ** 0.5, piece.name
        # A whole matrix is orthogonal, so its heads are to each other.
        one, two = whole.unflatten(0, (piece.num_blocks, -1))[:2]
        if whole.shape[0] <= whole.shape[1]:
            assert (one @ two.mT).abs().max() < 0.5 * (one @ one.mT).abs().max(), piece.name
        seen += 1
    assert seen


def test_matrices_by_adam_follow_torch() -> None:
    made = trainer(Variant(matrices="adamw"))
    matrices, settings = made.parameters.matrices, made.optimizer.settings
    peer = matrices.master.clone().requires_grad_()
    adam = torch.optim.AdamW(
        [peer],
        lr=settings.adam_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
    for seed in range(3):
        give_gradients(made.parameters, seed)
        made.optimizer.step(1.0, rounded=False)
        peer.grad = matrices.grad.clone()
        adam.step()
    assert torch.allclose(matrices.master, peer.detach(), atol=1e-6)


@pytest.mark.parametrize("variant", [Variant(matrices="adamw"), Variant(round_inputs=True)])
def test_a_saved_state_goes_on_exactly_and_only_with_its_switches(tmp_path: Path, variant: Variant) -> None:
    first, batch = trainer(variant), make_batch(LENGTHS, 300)
    first.step(batch, 1.0, rounded=True)
    first.save(tmp_path)
    second = trainer(variant)
    second.load(tmp_path)
    second.refresh(rounded=True)
    for made in (first, second):
        made.step(batch, 1.0, rounded=True)
    assert torch.equal(first.parameters.matrices.master, second.parameters.matrices.master)
    with pytest.raises(BackendError, match="was trained with"):
        trainer(replace(variant, balancing="none")).load(tmp_path)


def test_inputs_are_rounded_only_while_weights_are() -> None:
    batch = make_batch(LENGTHS, 300)
    plain, rounding = trainer(Variant()), trainer(Variant(round_inputs=True))
    for made in (plain, rounding):
        made.step(batch, 1.0, rounded=False)
    assert torch.equal(plain.parameters.matrices.master, rounding.parameters.matrices.master)
    for made in (plain, rounding):
        made.step(batch, 1.0, rounded=True)
    assert not torch.equal(plain.parameters.matrices.master, rounding.parameters.matrices.master)
