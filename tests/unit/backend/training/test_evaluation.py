"""The evaluation drives a command line, judges files, and writes its tables; a stand-in plays the agent."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from k3agent.backend.training import evaluation
from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.programs import write_answering, write_refusing
from k3agent.backend.training.episodes.session import Plan
from k3agent.backend.training.episodes.toolbox import refusal
from k3agent.backend.training.task import FAMILIES, Task

STAND_IN = """
import json, pathlib, sys
prompt = sys.argv[-1]
assert sys.argv[1] == "run" and "--output-format" in sys.argv
if prompt.startswith("write "):
    pathlib.Path(prompt.split()[1]).write_text("done\\n")
print(json.dumps({"type": "assistant", "message": {"content": []}}))
print(json.dumps({"type": "result", "subtype": "success", "result": "I did " + prompt, "session_id": "s1",
                  "num_turns": 2}))
"""


class WriteTask:
    checks: tuple[str, ...] = ()
    name = "write-one"
    family = "create"

    def __init__(self, *prompts: str) -> None:
        self.prompts = list(prompts)

    def build(self, folder: Path) -> None:
        (folder / "here.txt").write_text("here\n")

    def check(self, folder: Path, answers: list[str]) -> str | None:
        if len(answers) != len(self.prompts):
            return "an answer is missing"
        return None if (folder / "new.txt").is_file() else "new.txt is missing"


def runner(tmp_path: Path) -> evaluation.Runner:
    script = tmp_path / "agent.py"
    script.write_text(STAND_IN)
    return evaluation.Runner(f"{sys.executable} {script}", 20, tmp_path / "home")


def test_solved_and_unsolved(tmp_path: Path) -> None:
    assert isinstance(WriteTask(), Task)
    good = runner(tmp_path).run(WriteTask("write new.txt", "thanks"))
    bad = runner(tmp_path).run(WriteTask("look"))
    assert (good.solved, good.turns, good.answers) == (True, 4, ["I did write new.txt", "I did thanks"])
    assert (bad.solved, bad.reason) == (False, "new.txt is missing")


def test_a_check_that_fails_itself_is_a_failed_task(tmp_path: Path) -> None:
    class Odd(WriteTask):
        def check(self, folder: Path, answers: list[str]) -> str | None:
            raise KeyError(folder.name)

    verdict = runner(tmp_path).run(Odd("write new.txt"))
    assert (verdict.solved, verdict.reason) == (False, "KeyError: 'project'")


def test_checks_of_a_task_are_given_to_the_agent(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(STAND_IN.replace('"I did " + prompt', "sys.argv[-4:-2]"))
    task = WriteTask("look")
    task.checks = ("pytest -q",)
    verdict = evaluation.Runner(f"{sys.executable} {script}", 20, tmp_path / "home").run(task)
    assert verdict.answers == ["['--check', 'pytest -q']"]


def test_a_broken_command_is_a_failed_task(tmp_path: Path) -> None:
    verdict = evaluation.Runner(f"{sys.executable} -c 1", 20, tmp_path).run(WriteTask("look"))
    assert not verdict.solved
    assert "no result line" in verdict.reason


def test_reports(tmp_path: Path) -> None:
    verdicts = [evaluation.Verdict(f"t{n}", "list", n > 0, "wrong", ["p"], ["a"]) for n in range(4)]
    shown = evaluation.write_report(tmp_path / "out", verdicts, "Title")
    assert "| list | 3/4 | 75 % |" in shown
    assert "| **all** | 3/4 |" in shown
    assert json.loads((tmp_path / "out.json").read_text())[0]["solved"] is False
    assert "`t0`" in (tmp_path / "out.md").read_text()


def test_what_is_set_up_in_the_folder_counts_as_there_before(tmp_path: Path) -> None:
    def setup(root: str) -> None:
        (Path(root) / "a.txt").write_text("changed\n")

    plan = Plan("g", "run", {}, lambda session: ("", ""), checks.answers("a.txt"), setup=setup)
    task = evaluation.GeneratedTask("t", "run", ["what is changed?"], {"a.txt": "old\n"}, plan)
    task.build(tmp_path)
    assert task.check(tmp_path, ["`a.txt` is changed."]) is None
    (tmp_path / "a.txt").write_text("by the agent\n")
    assert task.check(tmp_path, ["`a.txt` is changed."]) is not None


def test_editions_are_told_apart() -> None:
    verdicts = [
        evaluation.Verdict(f"{name}{n}", name, n == 0, "", ["p"])
        for name in ("list", "git")
        for n in range(2)
    ]
    shown = evaluation.table([*verdicts, evaluation.Verdict("data0", "data", True, "", ["p"])])
    assert "| **first edition** | 1/2 |" in shown
    assert "| **second edition** | 2/3 |" in shown
    assert "edition" not in evaluation.table(verdicts[:2])


def test_every_family_can_be_drawn() -> None:
    for family in FAMILIES:
        assert [task.family for task in evaluation.generate(family, 1, 9, held_out=True)] == [family]


@pytest.mark.parametrize(
    "command",
    ["rm -r a.txt", "mv a.txt b.txt", "cp a.txt sub/b.txt", "mkdir -p new", "mkdir -p sub && cp a c"],
)
def test_programs_refuse_as_in_the_generator(tmp_path: Path, command: str) -> None:
    root, programs = tmp_path / "project", tmp_path / "programs"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("a\n")
    write_refusing(programs, "Read-only file system")
    done = subprocess.run(
        command,
        shell=True,
        cwd=root,
        env={"PATH": f"{programs}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.strip() == refusal(command, "Read-only file system", str(root))
    assert done.returncode == 1
    assert sorted(item.name for item in root.iterdir()) == ["a.txt", "sub"]


def test_a_refused_task_is_run_where_the_system_refuses(tmp_path: Path) -> None:
    plan = Plan("x", "recover", {}, lambda _: ("", ""), checks.unchanged, refused="Permission denied")
    task = evaluation.GeneratedTask("recover-x", "recover", ["rm"], {"a.txt": "a\n"}, plan)
    script = tmp_path / "agent.py"
    script.write_text(STAND_IN.replace("if prompt", 'import os; os.system(f"{prompt} a.txt")\nif prompt', 1))
    verdict = evaluation.Runner(f"{sys.executable} {script}", 5, tmp_path).run(task)
    assert verdict.reason == ""


def test_programs_answer_as_in_the_generator(tmp_path: Path) -> None:
    programs, shown = tmp_path / "programs", "a.py:1:1: F401 `os` it's 100%\nFound 1 error."
    write_answering(programs, {"ls -1 .": f"{shown}\n[exit code 3]", "flake8": "[exit code 0]"})
    environ = {"PATH": f"{programs}:/usr/bin:/bin"}
    told, real, silent = (
        subprocess.run(["/bin/sh", "-c", line], env=environ, capture_output=True, text=True, check=False)
        for line in ("ls -1 .", f"ls -1 {programs}", "flake8")
    )
    assert (told.stdout, told.returncode) == (f"{shown}\n", 3)
    assert (real.stdout, real.returncode) == ("flake8\nls\n", 0)
    assert (silent.stdout, silent.returncode) == ("", 0)
