"""Host memory and disk: budgets, what leaves first, restarts, damage, other builds, two processes, kills."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from k3agent.backend.cache.record_file import SUFFIX
from k3agent.backend.cache.tiers import HostTier, LostRecordError, PageRecord, StateRecord
from k3agent.backend.cache.tiers_disk import DiskTier
from k3agent.backend.cache.toy import TOY_GRID, TOY_PAGE, ToyEngine, ToySequence
from k3agent.backend.errors import BackendError

LONG = [7, *range(40)]


def engine(
    host: HostTier | None = None,
    disk: DiskTier | None = None,
    num_pages: int = 60,
    num_slots: int = 12,
    exactness: str = "off",
) -> ToyEngine:
    return ToyEngine.open(num_pages, num_slots, exactness, host, disk)


def disk(folder: Path, fingerprint: str = "one", quota: int = 1 << 20) -> DiskTier:
    return DiskTier(folder, fingerprint, quota)


def page(number: int, start: int = 0) -> PageRecord:
    return PageRecord(bytes([number]), start, (number,) * TOY_PAGE, False, bytes(32))


def state(number: int, saved: int = 100) -> StateRecord:
    return StateRecord(bytes([number]), 4, (), False, saved, bytes(8), None)


# --- host


def test_the_host_keeps_its_budget_and_the_most_valuable() -> None:
    host = HostTier(3 * 32)
    for number in range(5):
        assert host.put(page(number), last_used=number * 100)
        host.check()
    assert [host.page_is_exact(bytes([n])) for n in range(5)] == [None, None, False, False, False]
    assert not host.accepts(-1000.0, 32)
    assert not host.put(page(9), last_used=-1000)
    assert not host.accepts(1000.0, 97)  # larger than all of it


def test_a_used_record_stays_and_a_demoted_one_leaves() -> None:
    host = HostTier(16)
    host.put(state(1), last_used=10)
    host.put(state(2), last_used=11)
    host.load_state(bytes([1]), (), now=20)
    host.put(state(3), last_used=20)
    assert host.states_at(bytes([2])) == {}
    host.demote(bytes([3]), ())
    host.put(state(4), last_used=20)
    assert host.states_at(bytes([3])) == {}
    assert host.states_at(bytes([1])) == {(): False}
    host.check()


def test_a_record_put_twice_is_held_once() -> None:
    host = HostTier(1000)
    host.put(page(1), 0)
    host.put(page(1), 5)
    assert host.used_bytes == 32
    host.check()


def test_other_tokens_under_a_known_key_are_no_hit() -> None:
    host = HostTier(1000)
    host.put(page(1), 0)
    with pytest.raises(LostRecordError):
        host.load_page(bytes([1]), (8, 8, 8, 8), 1)


def test_what_leaves_the_device_comes_back_from_the_host() -> None:
    toy = engine(HostTier(10_000), num_pages=14, num_slots=3)
    assert toy.run(LONG) == 0
    for other in range(2, 5):
        toy.run([other] * 40)
    assert toy.run([*LONG, 1]) == len(LONG)
    assert toy.cache.counters.hit_tokens_by_tier["host"] > 30
    toy.cache.check()


def test_a_state_outlives_its_pages_on_the_device() -> None:
    toy = engine(HostTier(10_000))
    whole = LONG[: 10 * TOY_PAGE]
    toy.run(whole)
    while toy.cache.resident.evict_page():
        pass
    assert toy.cache.ledger().tree_pages == 0
    assert toy.cache.resident.num_exact + toy.cache.resident.num_inexact == 1
    toy.cache.check()
    assert toy.run([*whole, 1]) == len(whole)


def test_pages_outlive_their_state() -> None:
    toy = engine()
    toy.run(LONG)
    assert toy.cache.resident.evict_state()
    prefix = toy.cache.match([*LONG, 1])
    assert (prefix.kv_len, prefix.state_len) == (len(LONG), 0)
    assert prefix.losses["evicted"] == len(LONG)
    toy.cache.drop(prefix)


def test_a_state_inside_a_page_that_no_tier_has_is_not_resumed() -> None:
    toy = engine(HostTier(10_000))
    start = LONG[: 2 * TOY_PAGE]
    toy.run(start)
    toy.run([*start, 5, 6])
    toy.run([*start, 5, 6, 7, 8])
    while toy.cache.resident.evict_page():
        pass
    assert toy.cache.lower is not None
    assert toy.cache.lower.host is not None
    (last,) = [node for node in toy.cache.tree.nodes() if node.start == len(start)]
    toy.cache.lower.host._discard(toy.cache.lower.host._pages[last.key])
    # it parts from the known path inside the lost page, behind the state there
    assert toy.run([*start, 5, 6, 1]) == len(start)
    toy.cache.check()


def test_a_page_that_no_tier_has_takes_its_states_along() -> None:
    host = HostTier(10_000)
    toy = engine(host)
    toy.run(LONG)
    while toy.cache.resident.evict_page():
        pass
    host.clear()
    assert toy.run([*LONG, 1]) == 0
    toy.cache.check()


# --- disk


def test_a_restart_goes_on_where_it_was(tmp_path: Path) -> None:
    first = engine(disk=disk(tmp_path))
    first.run(LONG, [1, 2, 3])
    first.cache.close()
    second = engine(disk=disk(tmp_path))
    assert second.run([*LONG, 1, 2, 3, 9]) == len(LONG) + 3
    assert second.cache.counters.hit_tokens_by_tier["disk"] == len(LONG) + 3
    second.cache.check()


def test_a_class_a_state_is_exact_after_a_restart(tmp_path: Path) -> None:
    first = engine(disk=disk(tmp_path), exactness="idle")
    first.run(LONG)
    assert first.canonicalise()
    first.cache.close()
    second = engine(disk=disk(tmp_path), exactness="always")
    sequence = second.start([*LONG, 1])
    assert sequence is not None
    assert sequence.num_computed == sequence.num_exact == len(LONG) // TOY_GRID * TOY_GRID
    second.check(sequence)


def test_other_fingerprints_are_ignored_and_counted(tmp_path: Path) -> None:
    first = engine(disk=disk(tmp_path))
    first.run(LONG)
    first.cache.close()
    other = disk(tmp_path, "two")
    assert other.counters.foreign == len(list(tmp_path.glob(f"*{SUFFIX}"))) > 0
    assert engine(disk=other).run([*LONG, 1]) == 0
    other.close()
    assert engine(disk=disk(tmp_path)).run([*LONG, 1]) == len(LONG)


@pytest.mark.parametrize("kind", ["cut", "flipped", "longer", "empty", "swapped"])
def test_damaged_files_are_ignored_and_counted(tmp_path: Path, kind: str) -> None:
    first = engine(disk=disk(tmp_path))
    first.run(LONG)
    first.cache.close()
    paths = sorted(tmp_path.glob(f"*{SUFFIX}"))
    for path in paths:
        content = bytearray(path.read_bytes())
        if kind == "cut":
            content = content[:-1]
        elif kind == "flipped":
            content[-3] ^= 4
        elif kind == "longer":
            content += b"x"
        elif kind == "empty":
            content = bytearray()
        path.write_bytes(content)
    if kind == "swapped":
        paths[0].write_bytes(paths[1].read_bytes())
    tier = disk(tmp_path)
    again = engine(disk=tier)
    assert again.run([*LONG, 1]) == 0
    assert kind == "swapped" or tier.counters.torn >= 1
    again.cache.check()


def test_foreign_things_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / f"folder{SUFFIX}").mkdir()
    (tmp_path / f"link{SUFFIX}").symlink_to(tmp_path / "nowhere")
    toy = engine(disk=disk(tmp_path))
    toy.run(LONG)
    toy.cache.close()
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / f"folder{SUFFIX}").is_dir()


def test_the_quota_is_kept(tmp_path: Path) -> None:
    tier = disk(tmp_path, quota=4000)
    toy = engine(disk=tier)
    for other in range(20):
        toy.run([other, *LONG])
        assert toy.cache.flush(60)
        toy.cache.check()
        on_disk = sum(path.stat().st_size for path in tmp_path.glob(f"*{SUFFIX}"))
        assert on_disk == tier.used_bytes <= 4000
    assert tier.counters.evicted_files > 0
    toy.cache.close()
    again = engine(disk=disk(tmp_path, quota=4000))
    assert again.run([19, *LONG, 1]) == len(LONG) + 1  # the newest is what stayed


def test_a_smaller_quota_is_kept_from_the_start(tmp_path: Path) -> None:
    toy = engine(disk=disk(tmp_path))
    for other in range(5):
        toy.run([other, *LONG])
    toy.cache.close()
    tier = disk(tmp_path, quota=1500)
    assert tier.used_bytes <= 1500
    tier.check()


def test_a_record_larger_than_the_quota_is_skipped(tmp_path: Path) -> None:
    tier = disk(tmp_path, quota=100)
    toy = engine(disk=tier)
    toy.run(LONG)
    assert tier.counters.skipped_writes == 1
    toy.cache.close()
    assert list(tmp_path.glob(f"*{SUFFIX}")) == []


def test_the_second_process_only_reads(tmp_path: Path) -> None:
    tier = disk(tmp_path)
    first = engine(disk=tier)
    first.run(LONG)
    first.cache.flush()
    reader = disk(tmp_path)
    assert tier.is_writable and not reader.is_writable
    second = engine(disk=reader)
    assert second.run([*LONG, 1]) == len(LONG)
    num_files = len(list(tmp_path.glob(f"*{SUFFIX}")))
    second.run([3] * 30)
    second.cache.close()
    assert len(list(tmp_path.glob(f"*{SUFFIX}"))) == num_files
    first.cache.close()
    assert disk(tmp_path).is_writable


def test_files_that_vanish_shorten_the_hit(tmp_path: Path) -> None:
    first = engine(disk=disk(tmp_path))
    first.run(LONG[:20])
    first.run(LONG)
    first.cache.close()
    tier = disk(tmp_path)
    second = engine(disk=tier)
    prefix = second.cache.match([*LONG, 1])
    assert prefix.state_len == len(LONG)
    for path in tmp_path.glob(f"p-*{SUFFIX}"):
        path.unlink()
    sequence = ToySequence([*LONG, 1])
    assert second.cache.adopt(sequence, prefix)
    assert sequence.num_computed == 0
    second.check(sequence)
    second.cache.check()
    second.cache.release(sequence)


def test_a_full_disk_costs_only_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("k3agent.backend.cache.disk_writer.write_file", full)
    tier = disk(tmp_path)
    toy = engine(disk=tier)
    toy.run(LONG)
    toy.cache.flush()
    toy.cache.check()
    assert tier.counters.failed_writes > 0
    assert toy.run([*LONG, 1]) == len(LONG)


def test_a_folder_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(BackendError, match="cannot be used"):
        disk(tmp_path / "file")
    with pytest.raises(BackendError, match="cannot be used"):
        disk(tmp_path / "file" / "below")


def test_a_file_that_cannot_be_removed_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = disk(tmp_path, quota=3000)
    toy = engine(disk=tier)
    toy.run(LONG)
    toy.cache.flush()

    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise PermissionError(f"{self} may not be removed")

    monkeypatch.setattr(Path, "unlink", refuse)
    for other in range(6):
        toy.run([other, *LONG])
        toy.cache.flush()
    assert tier.counters.evicted_files > 0
    toy.cache.check()


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    (tmp_path / "tmp-1-1").write_bytes(b"half")
    disk(tmp_path)
    assert not (tmp_path / "tmp-1-1").exists()


def test_tiers_are_attached_to_an_empty_cache(tmp_path: Path) -> None:
    toy = engine()
    toy.run(LONG)
    with pytest.raises(BackendError, match="empty"):
        toy.cache.attach_tiers(HostTier(100), None)
    toy.cache.clear()
    toy.cache.attach_tiers(HostTier(100), disk(tmp_path))


def test_clear_leaves_the_disk_alone(tmp_path: Path) -> None:
    toy = engine(HostTier(10_000), disk(tmp_path))
    toy.run(LONG)
    toy.cache.flush()
    toy.cache.clear()
    assert toy.cache.ledger().host_bytes == 0
    assert toy.run([*LONG, 1]) == len(LONG)


WRITER = """
import itertools, sys
from k3agent.backend.cache.hybrid import HybridCache
from k3agent.backend.cache.tiers_disk import DiskTier
from k3agent.backend.cache.toy import TOY_GRID, TOY_PAGE, ToyEngine, ToyStorage

storage = ToyStorage(200, 20)
cache = HybridCache(200, 20, storage, page_size=TOY_PAGE, grid=TOY_GRID, exactness="off",
                    disk=DiskTier(sys.argv[1], "one", 60_000))
engine = ToyEngine(cache, storage)
for number in itertools.count():
    engine.run([number % 50, *range(40 + number % 7)])
    if number == 5:
        cache.flush()  # so that there is something to resume from, however early the kill
        print("writing", flush=True)
"""


def test_a_writer_killed_at_any_time_leaves_a_usable_folder(tmp_path: Path) -> None:
    resumed = 0
    for attempt in range(6):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, env=dict(os.environ)
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"writing\n"
        time.sleep(0.03 * attempt)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        tier = disk(tmp_path, quota=60_000)
        assert tier.is_writable
        assert tier.counters.torn == 0
        toy = engine(disk=tier, num_pages=200, num_slots=20)
        for number in range(50):
            resumed += toy.run([number, *range(47)])
        assert tier.counters.torn == 0
        toy.cache.check()
        toy.cache.close()
    assert resumed > 0
