"""Saved states that are damaged: they are told of, put aside, and saving goes on whole."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from k3agent.errors import StoreError
from k3agent.store import restoring
from k3agent.store.filetree import Rules
from k3agent.store.snapshots import Snapshots

FILES = {"a.txt": "one\n", "d/b.txt": "two\n", "d/e/c.txt": "three\n"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def repository(home: Path) -> Path:
    return next((home / "snapshots").glob("*/repo.git"))


def objects(home: Path, kind: str = "") -> list[Path]:
    found = [path for path in (repository(home) / "objects").glob("??/*")]
    for path in found:
        path.chmod(0o644)
    if not kind:
        return found
    git = ("git", "--git-dir", str(repository(home)), "cat-file", "-t")

    def kind_of(path: Path) -> str:
        command = (*git, path.parent.name + path.name)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    return [path for path in found if kind_of(path) == kind]


def remove(home: Path, kind: str = "") -> None:
    for path in objects(home, kind):
        path.unlink()


def empty(home: Path) -> None:
    for path in objects(home):
        path.write_bytes(b"")


def put_pipe(home: Path, name: str) -> None:
    path = repository(home) / name
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no objects": remove,
    "no blobs": lambda home: remove(home, "blob"),
    "no trees": lambda home: remove(home, "tree"),
    "empty objects": empty,
    "HEAD cut off": lambda home: (repository(home) / "HEAD").write_text(""),
    "no HEAD": lambda home: (repository(home) / "HEAD").unlink(),
    "config cut off": lambda home: (repository(home) / "config").write_text("[co"),
    "HEAD a pipe": lambda home: put_pipe(home, "HEAD"),
    "config a pipe": lambda home: put_pipe(home, "config"),
    "no refs": lambda home: shutil.rmtree(repository(home) / "refs"),
    "no folder of objects": lambda home: shutil.rmtree(repository(home) / "objects"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_saving_goes_on_whole_and_the_damage_is_told_once(
    tmp_path: Path, root: Path, damage: Callable[[Path], object]
) -> None:
    home = tmp_path / "home"
    first = Snapshots(home, root)
    old = first.save("s", Rules()).commit
    first.remember()
    assert first.take_damage() == ""
    damage(home)
    # as the next process sees it
    place = Snapshots(home, root)
    with pytest.raises(StoreError, match=r"what was saved of .* is damaged.*cannot bring files back"):
        place.load(old)
    commit = place.save("s", Rules()).commit
    assert "are damaged" in place.take_damage()
    assert place.take_damage() == ""
    shutil.rmtree(root)
    with place.contents() as contents:
        restorer = restoring.Restorer(root, target := place.load(commit), contents)
        restorer.apply(restoring.plan(place.save("s", Rules()).tree, target))
    assert restorer.failures == {}
    assert {name: (root / name).read_text() for name in FILES} == FILES


def test_what_is_whole_is_neither_told_of_nor_saved_again(tmp_path: Path, root: Path) -> None:
    home = tmp_path / "home"
    first = Snapshots(home, root)
    first.save("s", Rules())
    first.remember()
    before = {path: path.stat().st_ino for path in objects(home)}
    place = Snapshots(home, root)
    place.save("t", Rules())
    assert place.take_damage() == ""
    assert {path: path.stat().st_ino for path in objects(home)}.items() >= before.items()


def test_a_disk_that_takes_nothing_is_no_damage(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    place = Snapshots(home, root)
    place.save("s", Rules())

    def fails(*_: object) -> None:
        raise StoreError("No space left on device")

    monkeypatch.setattr(place, "_import", fails)
    (root / "new.txt").write_text("new")
    with pytest.raises(StoreError, match="No space left"):
        place.save("s", Rules())
    assert place.take_damage() == ""
    assert place.is_begun


def test_one_file_that_is_lost_keeps_no_other_from_coming_back(tmp_path: Path, root: Path) -> None:
    home = tmp_path / "home"
    place = Snapshots(home, root)
    saved = place.save("s", Rules())
    blob = saved.tree.files["a.txt"].blob
    path = repository(home) / "objects" / blob[:2] / blob[2:]
    path.unlink()
    target = place.load(saved.commit)
    shutil.rmtree(root)
    root.mkdir()
    with place.contents() as contents:
        restorer = restoring.Restorer(root, target, contents)
        restorer.apply(restoring.plan(Snapshots(tmp_path / "other", root).save("s", Rules()).tree, target))
    assert list(restorer.failures) == ["a.txt"]
    assert "is missing in" in restorer.failures["a.txt"]
    assert (root / "d/e/c.txt").read_text() == "three\n"


def test_what_a_failed_git_has_left_does_not_keep_the_disk_full(tmp_path: Path, root: Path) -> None:
    home = tmp_path / "home"
    place = Snapshots(home, root)
    place.save("s", Rules())
    pack = repository(home) / "objects" / "pack"
    pack.mkdir(exist_ok=True)
    old, new, others = pack / "tmp_pack_old", pack / "tmp_pack_named", pack / "tmp_pack_others"
    for path in (old, new, others):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    with pytest.raises(StoreError, match="cannot be saved"), place._importer() as stream:
        stream.write(f"no order of {new}\n".encode())
    # That of another process may be whole in a moment.
    assert list(pack.glob("tmp_*")) == [others]
