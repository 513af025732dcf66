"""File states: what was destroyed comes back byte for byte: modes, links, empty folders, odd names."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.trees import grow, picture, wreck

from k3agent.errors import StoreError
from k3agent.store import filetree, restoring, snapshots
from k3agent.store.filetree import Extra, Rules, TooMuch, Tree
from k3agent.store.snapshotforms import open_file
from k3agent.store.snapshots import Snapshots, delete_session

CHILD = Path(__file__).resolve().parents[2] / "support" / "undo_child.py"


def restore(place: Snapshots, commit: str, session: str = "s") -> Tree:
    """What undo does: save what is there, plan, carry out. Returns what was saved."""
    target = place.load(commit)
    extra = [Extra(path) for path in (*target.whole, *target.files)]
    now = place.save(session, Rules(), extra=extra)
    with place.contents() as contents:
        restorer = restoring.Restorer(place.root, target, contents)
        restorer.apply(restoring.plan(now.tree, target))
    assert restorer.failures == {}
    return now.tree


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_wrecked_comes_back(tmp_path: Path, seed: int) -> None:
    root, home = tmp_path / "ws", tmp_path / "home"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    chance = random.Random(seed)
    grow(root, chance, chance.randint(0, 14))
    place = Snapshots(home, root)
    states = []
    for _ in range(3):
        states.append((picture(root), place.save("s", Rules()).commit))
        wreck(root, chance)
    wrecked = picture(root)
    chance.shuffle(states)
    undone = place.save("s", Rules()).commit
    for seen, commit in states:
        restore(place, commit)
        assert picture(root) == seen
    # The undo is undone, by a process that knows nothing yet.
    restore(Snapshots(home, root), undone)
    assert picture(root) == wrecked


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_undo_cut_short_anywhere_is_made_again(tmp_path: Path, seed: int) -> None:
    """As after `kill -9`: some of the actions have been done, one of them half."""
    root, home = tmp_path / "ws", tmp_path / "home"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    chance = random.Random(seed)
    grow(root, chance, 12)
    place = Snapshots(home, root)
    before, commit = picture(root), place.save("s", Rules()).commit
    wreck(root, chance)
    wrecked, undone = picture(root), place.save("s", Rules()).commit
    for _ in range(3):
        target = place.load(commit)
        plan = restoring.plan(place.save("s", Rules()).tree, target)
        left = chance.randint(0, len(plan.paths))

        class Cut(BaseException):
            pass

        class Dying(restoring.Restorer):
            def _try(self, path: str, act: Callable[[str], None]) -> None:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Cut
                super()._try(path, act)

        with place.contents() as contents, contextlib.suppress(Cut):
            Dying(root, target, contents).apply(plan)
        if chance.random() < 0.5:
            (root / f"{restoring.DRAFT}0123456789abcdef").write_bytes(b"half of a fi")
    restore(Snapshots(home, root), commit)
    assert picture(root) == before
    restore(place, undone)
    assert picture(root) == wrecked


def kill_soon(action: str, root: Path, home: Path, commit: str, delay_s: float) -> bool:
    """Start the child, kill it after a while; whether it was still at work."""
    child = subprocess.Popen(
        [sys.executable, str(CHILD), action, str(home), str(root), commit],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None and child.stdin is not None
    assert child.stdout.readline() == b"ready\n"
    child.stdin.write(b"\n")
    child.stdin.flush()
    if action == "restore":
        child.stdout.readline()
    time.sleep(delay_s)
    was_busy = child.poll() is None
    if was_busy:
        os.killpg(child.pid, signal.SIGKILL)  # an unreaped child keeps its group, so it is there
    child.wait()
    child.stdin.close()
    child.stdout.close()
    return was_busy


def test_killed_while_saving_and_restoring(tmp_path: Path) -> None:
    root, home = tmp_path / "ws", tmp_path / "home"
    for number in range(600):
        path = root / f"d{number % 20}" / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.Random(number).randbytes(2000))
    before = picture(root)
    chance = random.Random(7)
    # The first delays are nearly none: on any machine some child is killed at work.
    num_busy = sum(kill_soon("save", root, home, "", chance.random() * 0.04 * i) for i in range(5))
    commit = Snapshots(home, root).save("s", Rules()).commit
    for number in range(20):
        shutil.rmtree(root / f"d{number}")
    num_busy += sum(kill_soon("restore", root, home, commit, chance.random() * 0.02 * i) for i in range(5))
    assert num_busy, "nothing was killed at work: the test shows nothing"
    restore(Snapshots(home, root), commit)
    assert picture(root) == before
    Snapshots(home, root).git("fsck", "--strict", "--no-dangling")


# --- what is covered --------------------------------------------------------------------------------------


def files(root: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_what_was_not_covered_then_is_not_deleted_now(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    files(root, a="1", dist__x="old")
    place = Snapshots(tmp_path / "home", root)
    then = place.save("s", Rules(ignored=frozenset(("dist",)))).commit
    files(root, a="2", dist__y="new", b="new")
    restore(place, then)
    assert (root / "dist" / "y").read_text() == "new" and (root / "dist" / "x").read_text() == "old"
    assert (root / "a").read_text() == "1" and not (root / "b").exists()


def test_what_is_in_the_way_and_not_covered_is_saved_first(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    files(root, a="a file")
    place = Snapshots(tmp_path / "home", root)
    then = place.save("s", Rules()).commit
    (root / "a").unlink()
    files(root, a__node_modules__x="in the way")
    rules = Rules(by_products=frozenset(("node_modules",)))
    target = place.load(then)
    now = place.save("s", rules, extra=[Extra(path) for path in target.files])
    with place.contents() as contents:
        restorer = restoring.Restorer(root, target, contents)
        restorer.apply(restoring.plan(now.tree, target))
    assert restorer.failures == {} and (root / "a").read_text() == "a file"
    restore(place, now.commit)
    assert (root / "a" / "node_modules" / "x").read_text() == "in the way"


def test_nothing_new_is_no_new_state_and_a_change_under_the_same_times_is_seen(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    files(root, a="1", b="1")
    place = Snapshots(tmp_path / "home", root)
    first = place.save("s", Rules()).commit
    assert place.save("s", Rules()).commit == first
    info = (root / "a").stat()
    (root / "a").write_text("2")
    os.utime(root / "a", ns=(info.st_atime_ns, info.st_mtime_ns))
    assert place.save("s", Rules()).tree.files["a"].blob != place.load(first).files["a"].blob


def test_a_known_state_makes_a_new_process_read_only_what_changed(tmp_path: Path, monkeypatch) -> None:
    root = tmp_path / "ws"
    files(root, a="1", b="1")
    for name in "ab":
        os.utime(root / name, (1, 1))
    place = Snapshots(tmp_path / "home", root)
    monkeypatch.setattr(filetree, "RACY_NS", 0)
    place.save("s", Rules())
    place.remember()
    opened: list[tuple[Path, str]] = []
    monkeypatch.setattr(snapshots, "open_file", lambda *place: opened.append(place) or open_file(*place))
    files(root, b="2 is longer")
    again = Snapshots(tmp_path / "home", root)
    saved = again.save("s", Rules())
    assert opened == [(root, "b")]
    assert again.load(saved.commit).files.keys() == {"a", "b"}


def test_links_are_never_followed_on_the_way(tmp_path: Path) -> None:
    root, outside = tmp_path / "ws", tmp_path / "outside"
    files(root, d__a="1")
    files(outside, a="not ours")
    place = Snapshots(tmp_path / "home", root)
    then = place.save("s", Rules()).commit
    shutil.rmtree(root / "d")
    (root / "d").symlink_to(outside)
    restore(place, then)
    assert (outside / "a").read_text() == "not ours"
    assert not (root / "d").is_symlink() and (root / "d" / "a").read_text() == "1"


def test_pipes_and_unreadable_things_do_not_stop_it(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    files(root, a="1")
    os.mkfifo(root / "pipe")
    saved = Snapshots(tmp_path / "home", root).save("s", Rules(), extra=[Extra("")])
    assert saved.tree.left_out == {"pipe": filetree.SPECIAL} and set(saved.tree.files) == {"a"}


def test_too_many_files_is_said_and_what_is_named_is_saved(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    files(root, **{f"f{number}": "x" for number in range(9)})
    place = Snapshots(tmp_path / "home", root)
    with pytest.raises(TooMuch, match="more files"):
        place.save("s", Rules(max_files=5))
    then = place.save("s", Rules(max_files=0), extra=[Extra("f3")]).commit
    files(root, f3="changed", f4="changed")
    restore(place, then)
    assert (root / "f3").read_text() == "x" and (root / "f4").read_text() == "changed"


def test_too_many_bytes_are_not_copied(tmp_path: Path, monkeypatch) -> None:
    root = tmp_path / "ws"
    files(root, a="x" * 50, b="x" * 60)
    monkeypatch.setattr(snapshots, "MAX_NEW_BYTES", 100)
    place = Snapshots(tmp_path / "home", root)
    with pytest.raises(TooMuch, match="not saved yet"):
        place.save("s", Rules())
    assert set(place.save("s", Rules(max_files=0), extra=[Extra("a")]).tree.files) == {"a"}


def test_a_file_that_cannot_be_written_to_is_named_and_the_others_come_back(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    files(root, a="1", b="1")
    place = Snapshots(tmp_path / "home", root)
    target = place.load(place.save("s", Rules()).commit)
    files(root, a="2", b="2")
    (root / "a").unlink()
    os.mkfifo(root / "a")
    (root / "a").unlink()
    (root / "a").mkdir()
    os.mkfifo(root / "a" / "pipe")
    now = place.save("s", Rules())
    with place.contents() as contents:
        restorer = restoring.Restorer(root, target, contents)
        restorer.apply(restoring.plan(now.tree, target))
    assert set(restorer.failures) == {"a"}
    assert (root / "b").read_text() == "1" and (root / "a" / "pipe").exists()


def test_a_missing_blob_is_said(tmp_path: Path) -> None:
    place = Snapshots(tmp_path / "home", tmp_path)
    with pytest.raises(StoreError, match="not in"):
        place.load("0" * 40)


def test_ids_that_are_no_ref_names(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    files(root, a="1")
    place = Snapshots(tmp_path / "home", root)
    for session_id in ("a..b", "x/../y", "Ü", "-", "ok-1"):
        assert place.load(place.save(session_id, Rules()).commit).files.keys() == {"a"}
        delete_session(tmp_path / "home", session_id)
        assert not place.folder.exists()


def test_a_data_folder_named_by_a_relative_path(tmp_path: Path, monkeypatch) -> None:
    root = tmp_path / "ws"
    files(root, a="1")
    monkeypatch.chdir(root)
    commit = Snapshots(Path("../home"), root).save("s", Rules()).commit
    assert Snapshots(tmp_path / "home", root).load(commit).files.keys() == {"a"}


def test_a_folder_that_has_become_a_link_is_not_read_through(tmp_path: Path) -> None:
    root, outside = tmp_path.resolve() / "ws", tmp_path.resolve() / "outside"
    for folder in (root / "a" / "c", outside / "c"):
        folder.mkdir(parents=True)
        (folder / "b.txt").write_text(folder.parent.name)
    by_link = tmp_path.resolve() / "link"
    by_link.symlink_to(root)
    for place in (root, by_link):
        with os.fdopen(open_file(place, "a/c/b.txt")) as file:
            assert file.read() == "a"
    (root / "a").rename(root / "old")
    (root / "a").symlink_to(outside)
    for place in (root, by_link):
        with pytest.raises(OSError, match="a"):
            open_file(place, "a/c/b.txt")
