"""Two things in one message, docstrings without given words, moves with imports, names in part, `@path`."""

import random
import shutil
from pathlib import Path

import pytest

from k3agent.backend.training.episodes import goals
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.families.documenting import docstring_of
from k3agent.backend.training.episodes.families.moving import needed_imports
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.project import draw_project
from k3agent.backend.training.episodes.registry import GOALS, Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Session, played
from k3agent.backend.training.episodes.testnames import note_full_name
from k3agent.backend.training.episodes.testruns import Failure, Run
from k3agent.backend.training.episodes.wording import say
from k3agent.backend.training.episodes.words import Words

assert goals.GOALS is GOALS
NEW = (
    "set_two set_two_in rename_two add_line_both docstring_for move_with_imports"
    " create_print create_says ignore_line require fix_typo fix_typos add_param_only"
    " fix_bug_in raise_when set_default remove_unused about_project"
    " find_todos project_version set_project_version set_project_version_in python_needed list_deps copy_file"
    " create_folder create_heading create_headed create_class add_class comment_out comment_in hint_param"
    " hint_return undo_nothing count_files"
)

PLAYER_SEED = 15


def drawn(name: str, rng: random.Random) -> tuple[Plan, dict[str, str]]:
    while True:
        words = Words(rng)
        project = draw_project(rng, words)
        plan = GOALS[name].make(Setting(Facts(dict(project.files)), rng, words, project))
        if plan is not None:
            files = dict(project.files)
            if plan.prepare is not None:
                plan.prepare(files)
            return plan, files


@pytest.mark.parametrize("name", NEW.split())
def test_oracles_are_accepted_and_half_of_the_work_is_not(player: Player, name: str) -> None:
    rng = random.Random(name)
    for _ in range(3):
        plan, files = drawn(name, rng)
        player.box.workspace.reset(files)
        player.box.new_session()
        session = Session(player.box, rng, max_chars=10**6)
        session.user("a task")
        _, answer = played(plan, session)
        after = player.box.workspace.snapshot()
        outcome = Outcome(files, after, answer, player.box.workspace.root)
        assert plan.check(outcome) is None, (plan.slots, answer)
        changed = sorted(path for path in after if files.get(path) != after[path])
        if changed:
            half = {**after, changed[0]: files.get(changed[0], "")}
            assert plan.check(Outcome(files, half, answer)) is not None


@pytest.mark.parametrize(
    ("name", "rows", "said"),
    [
        ("area", ["def area(a, b):", "    return a * b"], "Return a * b."),
        (
            "is_low",
            ["def is_low(n):", "    if n < 3:", "        return True", "    return False"],
            "Tell whether it is low.",
        ),
        ("read_all_rows", ["def read_all_rows(path):", "    x = 1", "    return x"], "Read all rows."),
        ("text_to_rows", ["def text_to_rows(t):", "    x = 1", "    return x"], "Turn text into rows."),
        ("loadItems", ["def loadItems():", "    # soon", "    return 'a'"], "Load items."),
    ],
)
def test_docstrings_say_what_is_there(name: str, rows: list[str], said: str) -> None:
    assert docstring_of(name, rows) == said


def test_imports_that_a_function_needs() -> None:
    lines = ["import re", "import os, sys", "from a import b as c", "from d import e", "x = 1"]
    assert needed_imports("return re.sub(sys.path, c)", lines) == [
        "import re",
        "import os, sys",
        "from a import b as c",
    ]
    assert needed_imports("return core.e + more", lines) == []


def test_the_beginning_of_a_tests_name_is_enough(player: Player) -> None:
    session = Session(player.box, random.Random(1))
    run = Run("2 failed", [Failure("TestBox.test_total_of_two[a-b]"), Failure("test_other")], False)
    note_full_name(session, run, "test_other")
    assert not session.notes
    note_full_name(session, run, "test_total")
    assert session.notes == ["I took `test_total_of_two`, the failing test that begins with `test_total`."]


def test_of_two_tasks_each_is_judged_by_the_folders_that_are_there(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {family: [GOALS["create_folder"]] for family in goals.JOINABLE}
    monkeypatch.setattr(goals, "by_family", lambda _: table)
    rng = random.Random(8)
    words = Words(rng)
    project = draw_project(rng, words)
    plan = goals.joined(Setting(Facts(dict(project.files)), rng, words, project))
    assert plan is not None
    files, workspace = dict(project.files), player.box.workspace
    workspace.reset(files)
    player.box.new_session()
    there = {path for path in Path(workspace.root).rglob("*") if path.is_dir()}
    answer = played(plan, Session(player.box, rng, max_chars=10**6))[1]
    outcome = Outcome(files, workspace.snapshot(), answer, workspace.root)
    assert plan.check(outcome) is None
    made = {path for path in Path(workspace.root).rglob("*") if path.is_dir()} - there
    for path in made:
        shutil.rmtree(path, ignore_errors=True)
        assert "there is no folder" in (plan.check(outcome) or "")
        path.mkdir(parents=True)
    assert len(made) > 1


def test_some_messages_name_files_with_an_at_sign_and_new_files_never() -> None:
    rng = random.Random(2)
    texts = [say("show_file", {"path": "src/a.py"}, rng, "train") for _ in range(400)]
    assert 5 < sum("@src/a.py" in text for text in texts) < 60
    assert not any("@b.txt" in say("create_empty", {"path": "b.txt"}, rng, "train") for _ in range(200))


def test_a_goal_of_another_family_is_not_replaced() -> None:
    with pytest.raises(ValueError, match="find_todos"):
        goal("find_todos", "list")(lambda ctx: None)
    assert GOALS["find_todos"].family == "find"
