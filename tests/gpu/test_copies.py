"""Copies on a stream of their own: nothing is read before it is there, or overwritten before it has left."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from k3agent.backend.engine.storage import TorchStorage  # noqa: E402  # after the skip
from k3agent.backend.model.inputs import CacheTensors  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
PAGES, SLOTS = 300, 4


def storage() -> TorchStorage:
    def noise(*shape: int, dtype: Any) -> Any:
        return torch.randn(shape, device="cuda").to(dtype)

    return TorchStorage(
        CacheTensors(
            latents={layer: noise(PAGES, 64, 576, dtype=torch.bfloat16) for layer in (3, 7)},
            kda_states={layer: noise(SLOTS, 32, 128, 128, dtype=torch.float32) for layer in (0, 1, 2)},
            conv_tails={layer: noise(SLOTS, 3, 12288, dtype=torch.bfloat16) for layer in (0, 1, 2)},
        )
    )


def test_what_leaves_may_be_overwritten_at_once() -> None:
    store = storage()
    tensors = store.tensors
    pages = [tensors.latents[3][page].clone() for page in range(200)]
    state = tensors.kda_states[1][2].clone()
    for _ in range(3):
        copies, saved = store.read_pages(list(range(200))), store.read_state(2)
        for table in (*tensors.latents.values(), *tensors.kda_states.values(), *tensors.conv_tails.values()):
            table.zero_()
        # and back, without waiting on the host
        store.write_pages(list(range(100, 300)), copies)
        store.write_state(0, saved)
        for layer in (0, 1, 2, 3, 7):
            tensors.await_layer(layer)
        assert all(torch.equal(tensors.latents[3][100 + page], pages[page]) for page in range(200))
        assert torch.equal(tensors.kda_states[1][0], state)
        store.copy_state(0, 2)
        for page in range(100):
            store.copy_page(100 + page, page)
        pages = [tensors.latents[3][page].clone() for page in range(200)]


def test_the_host_sees_what_has_settled() -> None:
    store = storage()
    expected = store.tensors.latents[7][11].cpu()
    page = store.read_page(11)
    store.settled()()
    found = torch.frombuffer(page, dtype=torch.bfloat16)[64 * 576 :].view(64, 576)
    assert torch.equal(found, expected)
