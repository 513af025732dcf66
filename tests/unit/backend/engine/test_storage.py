"""Pages and states through host memory: every byte comes back, in every layer, the tails too."""

import gc
import zlib
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from k3agent.backend.engine import storage as module  # noqa: E402  # after the skip
from k3agent.backend.engine.storage import TorchStorage, buffer_over  # noqa: E402
from k3agent.backend.errors import BackendError  # noqa: E402
from k3agent.backend.model.inputs import CacheTensors  # noqa: E402


def storage(dtype: Any, device: str = "cpu") -> TorchStorage:
    generator = torch.Generator().manual_seed(0)

    def fill(*shape: int, of: Any) -> Any:
        return torch.randn(shape, generator=generator).to(of).to(device)

    return TorchStorage(
        CacheTensors(
            latents={1: fill(5, 64, 7, of=dtype), 3: fill(5, 64, 7, of=dtype)},
            kda_states={0: fill(4, 2, 3, 3, of=torch.float32), 2: fill(4, 2, 3, 3, of=torch.float32)},
            conv_tails={0: fill(4, 3, 18, of=dtype), 2: fill(4, 3, 18, of=dtype)},
        )
    )


def tables(store: TorchStorage) -> list[Any]:
    tensors = store.tensors
    return [*tensors.kda_states.values(), *tensors.conv_tails.values()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_t23_a_state_comes_back_whole(dtype: Any) -> None:
    store = storage(dtype)
    saved = store.read_state(1)
    assert len(saved) == store.state_bytes
    before = [table.clone() for table in tables(store)]
    store.zero_state(1)
    store.write_state(3, bytes(saved))
    for table, old in zip(tables(store), before, strict=True):
        assert torch.equal(table[3], old[1])
        assert not table[1].any()
        assert torch.equal(table[0], old[0]) and torch.equal(table[2], old[2])


def test_a_page_comes_back_whole() -> None:
    store = storage(torch.bfloat16)
    saved = store.read_page(4)
    assert len(saved) == store.page_bytes == 2 * 64 * 7 * 2
    before = {i: latents.clone() for i, latents in store.tensors.latents.items()}
    store.write_pages([0], [saved])
    for layer, latents in store.tensors.latents.items():
        assert torch.equal(latents[0], before[layer][4])
        assert torch.equal(latents[1:], before[layer][1:])


@pytest.mark.parametrize("count", [1, 3, 300])
def test_several_pages_are_each_as_one(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    store = storage(torch.bfloat16)
    pages = [page % 5 for page in range(3, 3 + count)]
    copies = store.read_pages(pages)
    assert [bytes(copy) for copy in copies] == [bytes(store.read_page(page)) for page in pages]
    kept = bytes(copies[0])
    store.write_pages([4, 1], [copies[0], bytes(copies[0])])
    assert bytes(store.read_page(4)) == bytes(store.read_page(1)) == kept
    assert store.read_pages([]) == []
    store.write_pages([], [])


def test_t20_a_copy_keeps_what_was_there_then() -> None:
    store = storage(torch.float32)
    saved = bytes(store.read_page(2))
    again = store.read_page(2)
    for latents in store.tensors.latents.values():
        latents[2].zero_()
    assert bytes(again) == saved != bytes(store.read_page(2))


def test_a_record_of_another_size_is_refused() -> None:
    store = storage(torch.float32)
    with pytest.raises(BackendError, match="bytes"):
        store.write_state(0, b"short")
    with pytest.raises(BackendError, match="bytes"):
        store.write_pages([0], [bytes(store.page_bytes + 1)])


def test_a_spoiled_slot_shows() -> None:
    store = storage(torch.float32)
    store.poison_state(2)
    assert all(table[2].isnan().all() for table in tables(store))
    assert not any(table[1].isnan().any() for table in tables(store))


def test_buffers_over_tensors_are_buffers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a GPU has them, pinned; here without the pinning."""

    def read(tensors: Any, row: int, num_bytes: int) -> memoryview:
        data = buffer_over(torch.empty(num_bytes, dtype=torch.uint8))
        data[:] = plain(tensors, row, num_bytes)
        return data

    plain = module._read
    store = storage(torch.bfloat16)
    expected = bytes(store.read_state(1))
    monkeypatch.setattr(module, "_read", read)
    saved = store.read_state(1)
    gc.collect()
    assert isinstance(saved, memoryview) and not saved.readonly
    assert bytes(saved) == expected and len(saved) == store.state_bytes
    assert zlib.crc32(saved) == zlib.crc32(expected)
    (tmp_path / "file").write_bytes(saved)
    assert (tmp_path / "file").read_bytes() == expected
    store.write_state(2, saved)
    assert bytes(store.read_state(2)) == expected


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pages_and_states_cross_to_a_gpu_and_back() -> None:
    store = storage(torch.bfloat16, "cuda")
    state, page = bytes(store.read_state(1)), bytes(store.read_page(1))
    store.write_state(2, state)
    store.write_pages([2], [page])
    assert bytes(store.read_state(2)) == state
    assert bytes(store.read_page(2)) == page
