"""10,000 random steps in each mode, and proof that the checks see mistakes: broken storages and policies."""

from collections.abc import Callable
from pathlib import Path

import pytest

from k3agent.backend.cache.hybrid import HybridCache
from k3agent.backend.cache.resident import Resident
from k3agent.backend.cache.soak import Soak, main
from k3agent.backend.cache.toy import ToyStorage


def soak(seed: int, steps: int, folder: Path | None, exactness: str = "idle") -> Soak:
    run = Soak(seed, folder, exactness)
    for _ in range(steps):
        run.step()
    run.end()
    return run


@pytest.mark.parametrize("exactness", ["idle", "always", "off"])
def test_device_alone(exactness: str) -> None:
    soak(1, 1700, None, exactness)


@pytest.mark.parametrize(("exactness", "seed"), [("idle", 2), ("idle", 3), ("always", 4), ("off", 5)])
def test_all_tiers(tmp_path: Path, exactness: str, seed: int) -> None:
    run = soak(seed, 1700, tmp_path, exactness)
    assert run.done["start"] > 50 and run.done["finish"] > 50


def test_the_command_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--steps", "200", "--no-tiers"]) == 0
    assert "200 steps" in capsys.readouterr().out


# --- mistakes that other caches made: each must be noticed


def nothing(*arguments: object, **named: object) -> None:
    return None


def copy_half_a_page(self: ToyStorage, src_page: int, dst_page: int) -> None:
    self.pages[dst_page][:2] = self.pages[src_page][:2]


write_pages = ToyStorage.write_pages


def write_half_a_page(self: ToyStorage, pages: list[int], data: list[bytes]) -> None:
    write_pages(self, pages, data)
    self.pages[pages[-1]][-1] = 0


def keep_locked(self: Resident, node: object) -> None:
    return None


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [
        (ToyStorage, "zero_state", nothing),
        (ToyStorage, "copy_state", nothing),
        (ToyStorage, "copy_page", copy_half_a_page),
        (ToyStorage, "write_state", nothing),
        (ToyStorage, "write_pages", write_half_a_page),
        (Resident, "unlock", keep_locked),
    ],
)
def test_mistakes_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, wrong: Callable[..., object]
) -> None:
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises(AssertionError):
        for seed in range(4):
            (tmp_path / str(seed)).mkdir()
            soak(seed, 1500, tmp_path / str(seed))


def test_a_false_claim_of_exactness_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = HybridCache._file

    def claim(
        self: HybridCache, tenant: object, node: object, offset: int, is_exact: bool, give: bool
    ) -> object:
        return original(self, tenant, node, offset, True, give)

    monkeypatch.setattr(HybridCache, "_file", claim)
    with pytest.raises(AssertionError):
        for seed in range(4):
            soak(seed, 1500, None)
