"""Random interleavings on the whole engine against a naive one; and the comparison does see mistakes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from k3agent.backend.chat.tokenizer import Tokenizer  # noqa: E402  # after the skip
from k3agent.backend.engine.messages import Exactness  # noqa: E402
from k3agent.backend.engine.sequence import Sequence  # noqa: E402
from k3agent.backend.engine.soak import NANO, Soak, write_smallest  # noqa: E402
from k3agent.backend.model.weights import load_model  # noqa: E402

ACTIONS = 420
MakeSoak = Callable[..., Soak]


@pytest.fixture(scope="module")
def make_soak(tmp_path_factory: pytest.TempPathFactory) -> MakeSoak:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("smallest")
    tokenizer = Tokenizer.from_dir(NANO)
    write_smallest(folder, tokenizer.vocab_size)
    model = load_model(folder, torch.float64)

    def make(seed: int, disk: Path | None = None, exactness: Exactness = "idle") -> Soak:
        return Soak(model, tokenizer, folder, seed, disk, exactness)

    return make


@pytest.mark.parametrize("seed", range(6))
def test_any_interleaving_gives_the_naive_answers(make_soak: MakeSoak, seed: int, tmp_path: Path) -> None:
    mode: Exactness = ("idle", "off", "always")[seed % 3]
    soak = make_soak(seed, tmp_path / "disk" if seed % 2 else None, mode)
    for _ in range(ACTIONS):
        soak.act()
    soak.finish()
    soak.close()
    assert soak.sums["answers"] > 5


def without_copies(soak: Soak) -> None:
    """A resumed sequence goes on with whatever its slot held."""
    soak.engine._runner.storage.copy_state = lambda src_slot, dst_slot: None  # type: ignore[method-assign]


def without_zeroing(soak: Soak) -> None:
    """A new sequence starts from the state of the slot's former holder."""
    forward = soak.engine._runner.forward

    def as_if_begun(batch: list[Any]) -> Any:
        model = soak.engine._runner.model
        begin = model.forward

        def never_fresh(step: Any, cache: Any) -> Any:
            step.has_state = [True] * len(step.has_state)
            return begin(step, cache)

        model.forward = never_fresh  # type: ignore[method-assign]
        try:
            return forward(batch)
        finally:
            del model.forward

    soak.engine._runner.forward = as_if_begun  # type: ignore[method-assign]
    soak.engine._runner.storage.zero_state = lambda slot: None  # type: ignore[method-assign]
    soak.engine.cache.states._zero = lambda slot: None  # type: ignore[attr-defined]


def with_guesses_believed(soak: Soak) -> None:
    """Guessed tokens count as computed before they are known to be right."""
    take = soak.engine._taker.take

    def believe(sequence: Sequence, rows: Any, guess: list[int], *more: Any) -> Any:
        taken = take(sequence, rows, guess, *more)
        taken.num_right = min(len(guess), len(taken.token_ids))
        return taken

    soak.engine._taker.take = believe  # type: ignore[method-assign]


def with_a_leak(soak: Soak) -> None:
    """An aborted sequence keeps a page."""
    release = soak.engine.cache.release

    def leak(tenant: Any) -> None:
        if tenant.page_ids:
            tenant.page_ids.pop()
        release(tenant)

    soak.engine.cache.release = leak  # type: ignore[method-assign]


@pytest.mark.parametrize("mistake", [without_copies, without_zeroing, with_guesses_believed, with_a_leak])
def test_mistakes_are_seen(make_soak: MakeSoak, mistake: Callable[[Soak], None]) -> None:
    for seed in range(100, 110):
        soak = make_soak(seed, None, "off")
        soak.restart = lambda: None  # type: ignore[method-assign]  # a new engine would be without the mistake
        mistake(soak)
        try:
            for _ in range(300):
                soak.act()
        except AssertionError:
            return
    pytest.fail(f"{mistake.__name__} was not seen")
