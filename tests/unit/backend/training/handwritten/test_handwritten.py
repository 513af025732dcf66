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
from k3agent.backend.training.task import FAMILIES, FIRST_EDITION

PYTEST = [sys.executable, "-B", "-m", "pytest"]
TASKS = load_tasks()
FIXES = [task for task in TASKS if task.patch and not task.checks]
CHECKED = [task for task in TASKS if task.checks]
SOLUTIONS = {
    "c001-fix": [("billing/rates.py", "REMINDER_DAYS = 14", "REMINDER_DAYS = 21")],
    "c002-fix": [
        ("lending/fines.py", "fine_for", "late_fee"),
        ("test_catalogue.py", "fine_for", "late_fee"),
    ],
    "c003-fix": [("data/2024-readings.csv", "-4.0,1.9\n", "-4.0,1.9\n2024-01-03,-2.2,4.0\n")],
}
"""The small tasks that come before the checks, done."""
EDITS = [
    task for task in TASKS if task.family in {"setvalue", "rename", "replace", "addline", "addfunc", "create"}
]


def test_there_are_enough_over_all_families():
    assert len(TASKS) >= 150
    assert len({task.name for task in TASKS}) == len(TASKS)
    assert set(FIRST_EDITION) <= {task.family for task in TASKS} <= set(FAMILIES)


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


@pytest.mark.parametrize("task", CHECKED, ids=lambda task: task.name)
def test_a_check_fails_and_only_both_repair_and_task_are_accepted(
    task: HandwrittenTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    task.build(tmp_path)
    assert task.patch is not None
    command = [sys.executable, *task.checks[0].split()[1:]]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 1
    for name, old, new in SOLUTIONS[task.name]:
        path = tmp_path / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    assert task.check(tmp_path, ["Done."]) is not None
    name, old, new = task.patch
    path = tmp_path / name
    path.write_text(path.read_text().replace(new, old, 1))
    assert task.check(tmp_path, ["Fixed."]) is None
