"""Pages and states through host memory: every byte comes back, in every layer, the tails too."""

import gc
import zlib
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from support.deferred_copies import DeferredCopies  # noqa: E402  # after the skip

from k3agent.backend.chat.tokenizer import Tokenizer  # noqa: E402
from k3agent.backend.engine import storage as module  # noqa: E402
from k3agent.backend.engine.messages import (  # noqa: E402
    Add,
    EngineSettings,
    Failed,
    Generated,
    SamplingParams,
)
from k3agent.backend.engine.process import load  # noqa: E402
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

    store = storage(torch.bfloat16)
    expected = bytes(store.read_state(1))
    pinned = lambda size, device: buffer_over(torch.empty(size, dtype=torch.uint8))  # noqa: E731
    monkeypatch.setattr(module, "host_buffer", pinned)
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
    saved = [store.read_state(1), store.read_page(1)]
    store.settled()()
    state, page = (bytes(copy) for copy in saved)
    store.write_state(2, state)
    store.write_pages([2], [page])
    copies = [store.read_state(2), store.read_page(2)]
    store.settled()()
    assert [bytes(copy) for copy in copies] == [state, page]


def test_t20_copies_that_take_their_time_are_waited_for() -> None:
    store, copies = storage(torch.float32), DeferredCopies()
    late = TorchStorage(store.tensors, copies)
    expected = bytes(store.read_page(1)), bytes(store.read_state(1))
    page, state = late.read_page(1), late.read_state(1)
    # overwritten while the copies are on their way
    for table in (*store.tensors.latents.values(), *tables(store)):
        table[1].zero_()
    late.write_pages([2], [page])
    late.write_state(3, state)
    assert not any(page) and not any(state)
    assert copies.num_deferred == 2 + 1 + 2 + 4
    # layer by layer: the first ones do not wait for the others
    store.tensors.await_layer(0)
    assert any(page) and any(state)
    store.tensors.await_layer(3)
    late.copy_page(2, 4)
    late.copy_state(3, 2)
    found = late.read_page(4), late.read_state(2)
    late.settled()()
    assert (bytes(found[0]), bytes(found[1])) == expected


def test_an_engine_waits_for_what_comes_back(tiny_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts evict each other to host memory and come back, with copies that are never early."""
    made: list[DeferredCopies] = []

    def deferred(device: Any) -> DeferredCopies:
        made.append(DeferredCopies())
        return made[-1]

    settings = {"model_dir": str(tiny_dir), "dtype": "float64", "max_model_len": 512, "exactness": "off"}
    plain = answers(EngineSettings(cache_bytes=16 << 20, **settings))
    monkeypatch.setattr(module, "copies_for", deferred)
    small = EngineSettings(cache_bytes=900 << 10, host_cache_bytes=64 << 20, **settings)
    hits: dict[str, int] = {}
    assert answers(small, hits) == plain
    assert hits["host"] > 0 and made[0].num_deferred > 0


def answers(settings: EngineSettings, hits: dict[str, int] | None = None) -> dict[str, list[int]]:
    engine, _ = load(settings)
    words = Tokenizer.from_dir(settings.model_dir).encode("the cat sat on the mat and ran away ") * 30
    greedy = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    found: dict[str, list[int]] = {}
    for turn in range(3):
        for number in range(5):
            name = f"{turn}-{number}"
            ids = words[7 * number : 7 * number + 150 + 40 * turn]
            engine.add(Add(request_id=name, token_ids=ids, params=greedy))
            while engine.scheduler.waiting or engine.scheduler.running:
                for report in engine.step():
                    assert not isinstance(report, Failed), report
                    if isinstance(report, Generated):
                        found.setdefault(name, []).extend(report.token_ids)
    if hits is not None:
        hits |= engine.cache.counters.hit_tokens_by_tier
    engine.close()
    return found
