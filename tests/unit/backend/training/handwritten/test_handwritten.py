"""Hand-written tasks build, seeded bugs break tests, their repair is accepted and doing nothing is not."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from k3agent.backend.training.episodes.zygote import Zygote
from k3agent.backend.training.handwritten import checks, load_tasks
from k3agent.backend.training.handwritten.load import HandwrittenTask
from k3agent.backend.training.task import FAMILIES

PYTEST = [sys.executable, "-B", "-m", "pytest"]
TASKS = load_tasks()
FIXES = [task for task in TASKS if task.patch]
EDITS = [
    task for task in TASKS if task.family in {"setvalue", "rename", "replace", "addline", "addfunc", "create"}
]


def test_there_are_a_hundred_over_all_families():
    assert len(TASKS) >= 100
    assert len({task.name for task in TASKS}) == len(TASKS)
    assert {task.family for task in TASKS} == set(FAMILIES)


@pytest.mark.parametrize("task", EDITS, ids=lambda task: task.name)
def test_doing_nothing_solves_no_edit(task, tmp_path):
    task.build(tmp_path)
    assert task.check(tmp_path, ["Done."]) is not None


@pytest.mark.parametrize(
    "task", [t for t in TASKS if t.family in {"refuse", "chat"}], ids=lambda task: task.name
)
def test_damage_is_seen(task, tmp_path):
    task.build(tmp_path)
    assert task.check(tmp_path, ["No."]) is None
    (tmp_path / "junk.txt").write_text("x")
    assert task.check(tmp_path, ["No."]) is not None


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    started = Zygote()
    yield started
    started.close()


@pytest.fixture
def forked(zygote: Zygote, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`subprocess.run` for `python -m pytest`, in a fork with pytest loaded: starting it costs most."""

    def run(command: list[str], *, cwd: Path, **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[:5] == [*PYTEST, "-q"]
        output, code = zygote.run(str(cwd), command[2:])
        return subprocess.CompletedProcess(command, code, output, "")

    monkeypatch.setattr(checks.subprocess, "run", run)
    return run


def breaks_and_mends(task: HandwrittenTask, folder: Path, run: Callable[..., Any]) -> None:
    task.build(folder)
    assert task.patch is not None
    broken = run(
        [*PYTEST, "-q", "-x", "-p", "no:cacheprovider"], cwd=folder, capture_output=True, check=False
    )
    assert broken.returncode == 1
    name, old, new = task.patch
    path = folder / name
    path.write_text(path.read_text().replace(new, old, 1))
    assert task.check(folder, ["Fixed."]) is None


@pytest.mark.parametrize("task", FIXES, ids=lambda task: task.name)
def test_bug_breaks_the_tests_and_repair_is_accepted(
    task: HandwrittenTask, tmp_path: Path, forked: Callable[..., Any]
) -> None:
    breaks_and_mends(task, tmp_path, forked)


def test_one_bug_with_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    breaks_and_mends(FIXES[0], tmp_path, subprocess.run)
