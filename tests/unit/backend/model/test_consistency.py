"""Laws of the model that need no expected numbers: pieces, packing, pages, slots, order of rows, mixing."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.model_harness import KIMI_LINEAR, Harness, Place
from support.tiny_k3 import write_tiny_k3

from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.errors import BackendError
from k3agent.backend.model.inputs import ForwardBatch
from k3agent.backend.model.weights import load_model

MakeHarness = Callable[..., Harness]
EXACT = {"rtol": 0.0, "atol": 1e-10}


def ids(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("overrides", [{}, KIMI_LINEAR], ids=["k3", "kimi-linear"])
@pytest.mark.parametrize("pieces", [[1] * 150, [64, 64, 22], [3, 70, 1, 1, 75], [149, 1]], ids=str)
def test_pieces_equal_one_pass(make_harness: MakeHarness, overrides: dict, pieces: list[int]) -> None:
    tokens = ids(150)
    whole, cut = make_harness(**overrides), make_harness(**overrides)
    torch.testing.assert_close(cut.run(tokens, pieces), whole.run(tokens, [150]), **EXACT)
    for table in ("kda_states", "conv_tails", "latents"):
        for layer, expected in getattr(whole.cache, table).items():
            torch.testing.assert_close(getattr(cut.cache, table)[layer], expected, **EXACT)


def test_sequences_packed_in_one_batch_equal_each_alone(make_harness: MakeHarness) -> None:
    texts = [ids(90, 1), ids(5, 2), ids(70, 3)]
    expected = [make_harness().run(text, [len(text)]) for text in texts]
    harness = make_harness()
    # Pages neither in order nor together; slots not in order.
    places = [Place([7, 2], 3), Place([5], 0), Place([0, 9], 1)]
    steps = [
        [(0, 0, 64), (1, 0, 1), (2, 0, 66)],
        [(1, 1, 2), (0, 64, 65), (2, 66, 67)],
        [(2, 67, 70), (0, 65, 90), (1, 2, 3)],
        [(1, 3, 5)],
    ]
    found: list[list[torch.Tensor]] = [[], [], []]
    for step in steps:
        results = harness.step([(places[i], texts[i][start:stop]) for i, start, stop in step])
        for (i, _, _), logits in zip(step, results, strict=True):
            found[i].append(logits)
    for i, logits in enumerate(expected):
        torch.testing.assert_close(torch.cat(found[i]), logits, **EXACT)


def test_default_logits_are_those_of_the_last_tokens(make_harness: MakeHarness) -> None:
    tokens = ids(9)
    expected = make_harness().run(tokens, [9])
    harness = make_harness()
    batch = ForwardBatch(tokens, [0, 9], [0], torch.tensor([[0]]), [0], [False])
    torch.testing.assert_close(harness.model(batch, harness.cache), expected[-1:], **EXACT)


def test_has_state_false_ignores_what_the_slot_holds(make_harness: MakeHarness) -> None:
    harness = make_harness()
    first = harness.run(ids(20), [20], Place([0], 2))
    harness.run(ids(30, 5), [30], Place([1], 2))
    for pieces in ([20], [1, 19]):
        torch.testing.assert_close(harness.run(ids(20), pieces, Place([3], 2)), first, **EXACT)


def test_copied_state_continues_like_the_original(make_harness: MakeHarness) -> None:
    harness = make_harness()
    original = Place([0], 0)
    harness.step([(original, ids(20))])
    harness.cache.copy_state(0, 3)
    # The latents are shared up to here, the branch writes its own page.
    for latents in harness.cache.latents.values():
        latents[5] = latents[0]
    branch = Place([5], 3, original.length)
    a = harness.step([(original, ids(8, 7))])[0]
    b = harness.step([(branch, ids(8, 7))])[0]
    torch.testing.assert_close(a, b, **EXACT)
    harness.cache.zero_state(3)
    assert all(not t[3].any() for t in harness.cache.kda_states.values())
    assert all(not t[3].any() for t in harness.cache.conv_tails.values())
    assert all(t[0].any() for t in harness.cache.kda_states.values())


def test_mla_output_ignores_the_order_of_earlier_rows(make_harness: MakeHarness) -> None:
    """No position enters: permuting the cached rows of a sequence changes nothing for its next token."""
    harness = make_harness()
    place = Place([0, 1], 0)
    harness.step([(place, ids(100))])
    harness.cache.copy_state(0, 1)
    plain = harness.step([(place, ids(1, 9))])[0]
    order = torch.randperm(100, generator=torch.Generator().manual_seed(3))
    for latents in harness.cache.latents.values():
        rows = latents.view(-1, latents.shape[-1])
        rows[:100] = rows[:100][order]
    shuffled = harness.step([(Place([0, 1], 1, 100), ids(1, 9))])[0]
    torch.testing.assert_close(shuffled, plain, **EXACT)
    assert PAGE_SIZE < 100


def test_zero_projections_mix_to_the_mean(make_harness: MakeHarness) -> None:
    """With all queries zero, attention after the first finished block reads (embedding + s) / 2."""
    harness = make_harness()
    for site in harness.model.model.sites():
        site.query.zero_()
    layers = harness.model.model.layers
    seen: list[torch.Tensor] = []
    layers[2].input_layernorm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))  # pyright: ignore[reportAttributeAccessIssue]
    tokens, taps = ids(6), []
    harness.step([(Place([0], 0), tokens)], taps)
    embedding = harness.model.model.embed_tokens(tokens)
    torch.testing.assert_close(seen[0], (embedding + taps[1]) / 2, **EXACT)


def test_order_of_experts_does_not_matter(make_harness: MakeHarness) -> None:
    harness, permuted = make_harness(), make_harness()
    order = torch.randperm(8, generator=torch.Generator().manual_seed(2))
    for name, tensor in permuted.model.destinations().items():
        if ".experts.w" in name or ".gate." in name:
            tensor.copy_(tensor[order].clone())
    text = ids(40)
    for pieces in ([40], [1] * 40):
        torch.testing.assert_close(permuted.run(text, pieces), harness.run(text, pieces), **EXACT)


def test_packed_experts_equal_unpacked_ones(tmp_path: Path) -> None:
    write_tiny_k3(tmp_path / "m")
    plain = Harness(load_model(tmp_path / "m", torch.float64, packed_experts=False))
    packed = Harness(load_model(tmp_path / "m", torch.float64))
    text = ids(20)
    torch.testing.assert_close(packed.run(text, [19, 1]), plain.run(text, [19, 1]), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_near(make_harness: MakeHarness, dtype: torch.dtype) -> None:
    text = ids(80)
    exact = make_harness().run(text, [80])
    found = make_harness(dtype=dtype).run(text, [64, 15, 1])
    assert found.dtype == torch.float32
    cosine = torch.nn.functional.cosine_similarity(found.double(), exact, dim=-1)
    assert cosine.median() > (0.999999 if dtype == torch.float32 else 0.99)


def test_bad_batches_are_named(make_harness: MakeHarness) -> None:
    harness = make_harness()
    table = torch.tensor([[0]])
    bad = {
        "spans": ForwardBatch(ids(3), [0, 2], [0], table, [0], [False]),
        "past its 1 pages": ForwardBatch(ids(3), [0, 3], [62], table, [0], [True]),
        "state_slots is for 2": ForwardBatch(ids(3), [0, 3], [0], table, [0, 1], [False]),
        "one slot to two": ForwardBatch(ids(2), [0, 1, 2], [0, 0], table.repeat(2, 1), [1, 1], [False] * 2),
    }
    for message, batch in bad.items():
        with pytest.raises(BackendError, match=message):
            harness.model(batch, harness.cache)


def test_a_loaded_model_refuses_to_be_cast(make_harness: MakeHarness) -> None:
    with pytest.raises(BackendError, match="load_model"):
        make_harness().model.half()


def test_a_cut_on_the_grid_is_within_rounding_in_float32(make_harness: MakeHarness) -> None:
    """KDA keeps every bit over such a cut; matrix products may choose another order of sums for another
    length."""
    tokens = ids(5 * PAGE_SIZE)
    whole = make_harness(torch.float32).run(tokens, [len(tokens)])
    cut = make_harness(torch.float32).run(tokens, [2 * PAGE_SIZE, PAGE_SIZE, 2 * PAGE_SIZE])
    torch.testing.assert_close(cut, whole, rtol=0, atol=2e-3)
    assert (cut - whole).abs().median() < 1e-5


def test_int8_decode_is_near(tmp_path: Path) -> None:
    """Weights are the same, activations are rounded to bf16."""
    write_tiny_k3(tmp_path / "m", pack="all")
    tokens = ids(40)
    exact = Harness(load_model(tmp_path / "m", torch.float32)).run(tokens, [20, *[1] * 20])
    found = Harness(load_model(tmp_path / "m", torch.float32, int8_decode=True)).run(tokens, [20, *[1] * 20])
    assert torch.equal(found[:20], exact[:20])
    cosine = torch.nn.functional.cosine_similarity(found[20:], exact[20:], dim=-1)
    assert cosine.median() > 0.99
    assert not torch.equal(found[20:], exact[20:])
