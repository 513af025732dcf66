"""The training forward pass against the model that will run the exported weights."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from support.training_batch import LENGTHS, make_batch, run_model

from k3agent.backend.config import ModelConfig
from k3agent.backend.training import export
from k3agent.backend.training.network import Network, route
from k3agent.backend.training.parameters import Parameters
from k3agent.backend.training.recurrence import Documents, chunked_kda


def shaken(config: ModelConfig, dtype: torch.dtype) -> tuple[Parameters, Network]:
    """Parameters with nothing left at its start value: zeros and ones would hide what they multiply."""
    parameters = Parameters(config, dtype, torch.device("cpu"))
    parameters.initialise(1)
    generator = torch.Generator().manual_seed(2)
    for buffer in (parameters.matrices, parameters.vectors):
        noise = torch.randn(buffer.size, generator=generator, dtype=buffer.master.dtype)
        buffer.master += noise * 0.1
        buffer.compute.copy_(buffer.master)
    network = Network(config, parameters)
    network.bias.copy_(torch.randn(network.bias.shape, generator=generator) * 0.1)
    return parameters, network


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-9), (torch.float32, 2e-4)])
def test_unrounded_export_gives_the_same_logits(tmp_path: Path, dtype: torch.dtype, tolerance: float) -> None:
    raw = export.tiny_config(300)
    parameters, network = shaken(export.model_config(raw), dtype)
    batch = make_batch(LENGTHS, 300)
    export.write_folder(tmp_path, raw, parameters, network.bias, packed=False)
    expected = run_model(tmp_path, dtype, batch)
    with torch.no_grad():
        logits = network.logits(batch)
    assert expected.std() > 0.1
    assert (logits - expected).abs().max() < tolerance * expected.abs().max()


def test_packed_export_gives_the_same_logits_as_rounded_compute(tmp_path: Path) -> None:
    raw = export.tiny_config(300)
    parameters, network = shaken(export.model_config(raw), torch.float32)
    batch = make_batch(LENGTHS, 300)
    export.write_folder(tmp_path, raw, parameters, network.bias)
    expected = run_model(tmp_path, torch.float32, batch)
    with torch.no_grad():
        unrounded = network.logits(batch)
        export.compute_as_exported(parameters)
        # The vectors of the file are bf16: the fp32 network must read the same.
        parameters.vectors.compute.copy_(parameters.vectors.compute.bfloat16())
        logits = network.logits(batch)
    scale = expected.abs().max()
    assert (logits - expected).abs().max() < 1e-3 * scale
    assert (unrounded - expected).abs().max() > 2e-3 * scale


def test_masters_survive_a_round_trip(tmp_path: Path) -> None:
    raw = export.tiny_config(300)
    config = export.model_config(raw)
    parameters, network = shaken(config, torch.float32)
    export.write_folder(tmp_path, raw, parameters, network.bias)
    export.compute_as_exported(parameters)
    again = Parameters(config, torch.float32, torch.device("cpu"))
    bias = torch.zeros_like(network.bias)
    export.read_masters(tmp_path, again, bias)
    assert torch.equal(bias, network.bias)
    for buffer, entry, piece in again.pieces():
        if entry.is_matrix:
            expected = parameters.matrices.piece(parameters.matrices.compute, entry, piece)
            assert torch.equal(buffer.piece(buffer.master, entry, piece), expected), piece.name


def test_documents_do_not_see_each_other() -> None:
    config = export.model_config(export.tiny_config(300))
    _, network = shaken(config, torch.float64)
    together = make_batch((20, 35), 300)
    with torch.no_grad():
        both = network.logits(together)
        alone = make_batch((35,), 300)
        alone.token_ids = together.token_ids[20:]
        assert torch.allclose(network.logits(alone), both[20:], atol=1e-9)


def test_a_shared_beginning_is_the_same_as_one_in_each_document() -> None:
    config = export.model_config(export.tiny_config(300))
    parameters, network = shaken(config, torch.float64)
    shared, lengths = 19, (2, 30, 1, 7)
    whole = make_batch(tuple(shared + n for n in lengths), 300)
    starts = whole.documents.offsets.tolist()
    for start in starts[:-1]:
        whole.token_ids[start : start + shared] = whole.token_ids[:shared]
    whole.weights = (whole.position[:, 0] >= shared).double()
    own = [slice(start + shared, end) for start, end in pairwise(starts)]
    brief = make_batch((shared, *lengths), 300)
    brief.token_ids = torch.cat((whole.token_ids[:shared], *(whole.token_ids[part] for part in own)))
    brief.labels = torch.cat((brief.token_ids[:shared], *(whole.labels[part] for part in own)))
    brief.weights = (torch.arange(len(brief.token_ids)) >= shared).double()
    brief.documents = Documents.of(brief.documents.offsets, torch.device("cpu"), shared)
    with torch.no_grad():
        expected = torch.cat([network.logits(whole)[part] for part in own])
        assert torch.allclose(network.logits(brief)[shared:], expected, atol=1e-9)
    grads = []
    for batch in (whole, brief):
        network.forward(batch).loss.backward()
        grads.append({name: leaf.grad for name, leaf in parameters.leaves.items() if leaf.grad is not None})
        for leaf in parameters.leaves.values():
            leaf.grad = None
    assert len(grads[0]) > 50
    for name, expected_grad in grads[0].items():
        assert torch.allclose(grads[1][name], expected_grad, atol=1e-9), name


def test_chunked_kda_equals_the_recurrence() -> None:
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    tokens, heads, width = 53, 2, 8
    q, k = (torch.nn.functional.normalize(random(tokens, heads, width), dim=-1) for _ in range(2))
    v, g_log, beta = (
        random(tokens, heads, width),
        -5 * random(tokens, heads, width).sigmoid(),
        random(tokens, heads),
    )
    beta = beta.sigmoid()
    documents = Documents.of(torch.tensor([0, 21, tokens]), torch.device("cpu"))
    expected = []
    for t in range(tokens):
        if t in (0, 21):
            state = torch.zeros(heads, width, width, dtype=torch.float64)
        state = g_log[t].exp()[..., None] * state  # pyright: ignore[reportPossiblyUnboundVariable]
        seen = (k[t][:, None] @ state)[:, 0]
        state = state + beta[t][:, None, None] * k[t][..., None] * (v[t] - seen)[:, None]
        expected.append((q[t][:, None] @ state)[:, 0] * width**-0.5)
    assert torch.allclose(chunked_kda(q, k, v, g_log, beta, documents)[0], torch.stack(expected), atol=1e-12)


def test_route_agrees_with_sorting() -> None:
    scores = torch.rand(200, 16, generator=torch.Generator().manual_seed(5))
    bias = torch.linspace(-0.2, 0.2, 16)
    chosen, cutoff = route(scores, bias, 4)
    values, index = (scores + bias).topk(5)
    expected = torch.zeros_like(chosen).scatter(1, index[:, :4], True)
    assert torch.equal(chosen, expected)
    assert torch.equal(cutoff[:, 0], values[:, 4])


def test_equal_scores_still_choose_exactly_the_top() -> None:
    chosen, _ = route(torch.full((3, 8), 0.5), torch.zeros(8), 2)
    assert chosen.sum(-1).tolist() == [2, 2, 2]
