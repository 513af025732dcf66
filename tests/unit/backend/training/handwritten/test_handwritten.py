"""Hand-written tasks build, seeded bugs break tests, their repair is accepted and doing nothing is not."""

import subprocess
import sys

import pytest

from k3agent.backend.training.handwritten import load_tasks
from k3agent.backend.training.task import FAMILIES

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


@pytest.mark.parametrize("task", FIXES, ids=lambda task: task.name)
def test_bug_breaks_the_tests_and_repair_is_accepted(task, tmp_path):
    task.build(tmp_path)
    command = [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 1
    name, old, new = task.patch
    path = tmp_path / name
    path.write_text(path.read_text().replace(new, old, 1))
    assert task.check(tmp_path, ["Fixed."]) is None
