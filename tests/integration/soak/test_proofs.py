"""The proofs of `make soak` in short: kills, disks, power cuts, writers at once, many turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3agent.soak import appends, disks, faulty, kills, served, turns


@pytest.mark.timeout(600)
def test_killed_anywhere_the_task_ends_as_if_undisturbed(tmp_path: Path) -> None:
    done = kills.prove(tmp_path, num_kills=12, num_chapters=2, kills_per_task=12, seed=3, say=print)
    assert done["killed agent"] >= 5 and done["killed backend"] >= 2
    assert done["lives"] > done["killed agent"]


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not served.is_possible(), reason="needs the engine and the embedded model")
def test_the_real_engine_killed_while_it_streams(tmp_path: Path) -> None:
    done = served.prove(tmp_path, num_kills=2, kills_per_run=2, seed=1, say=print)
    assert sum(done[f"killed {kind}"] for kind in served.KINDS) == 2
    assert done["killed server"] + done["killed both"] + done["killed engine"] >= 1


@pytest.mark.timeout(600)
@pytest.mark.skipif(not faulty.is_possible(), reason="needs seccomp on x86-64 or ARM")
def test_a_disk_that_fails_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    done = disks.prove_faults(tmp_path, num_faults=4, num_chapters=1, per_task=4, seed=2, say=print)
    assert done["full: told"] and done["fsync: told"]


def test_after_a_power_cut_rows_are_whole_or_absent(tmp_path: Path) -> None:
    done = disks.prove_power_cuts(tmp_path, num_cuts=25, seed=1, say=print)
    assert len(done) > 2


def test_a_full_file_system_is_told_and_the_run_goes_on_later(tmp_path: Path) -> None:
    if not disks.is_mountable():
        pytest.skip("no file system can be mounted here")
    environ = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    assert disks.prove_full(tmp_path / "full", environ)


def test_writers_at_once_leave_no_row_unreadable(tmp_path: Path) -> None:
    done = appends.prove(tmp_path, num_appends=240, num_processes=3, seed=1, say=print)
    assert sum(count for name, count in done.items() if name != appends.VICTIM) == 240
    assert done[appends.VICTIM] > 0


async def test_many_turns_hold_what_they_promise(tmp_path: Path) -> None:
    done = await turns.prove(tmp_path, num_turns=120, compact_tokens=14_000, say=print)
    assert done["compactions"] >= 2 and done["requests_compared_bytewise"] >= 4
