"""Refusals, questions back, moved imports, and ends that the computer forces."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3agent.backend.training.episodes import goals
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.families.beyond import LIMITS, refuses
from k3agent.backend.training.episodes.families.linting import command_for
from k3agent.backend.training.episodes.families.moving import module_import, moved_import
from k3agent.backend.training.episodes.families.roles import roles
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.policy import Hit
from k3agent.backend.training.episodes.project import draw_project
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.session import Outcome, Plan, Session, TooLong
from k3agent.backend.training.episodes.toolbox import refusal
from k3agent.backend.training.episodes.words import Words

NEW = (
    "two_files two_names move_def move_module fix_case fix_import fix_script contradiction default_of "
    "result_of show_lines is_used env_used longest_file count_tests count_dir methods_of importers_of "
    "explain_file find_kind near_name near_names near_file ask_role set_role "
    "set_spoken_from value_spoken run_endless tests_endless "
    "check_failed check_call check_missing check_hopeless create_in_folder "
    "delete_folder empty_folder delete_kind change_refused run_linter web_run_tests no_tests gitignore_for"
)

PLAYER_SEED = 12


def plans(player: Player, name: str, rng: random.Random, tries: int) -> Iterator[Plan]:
    """Wishes of a goal, each with the player in its project."""
    for _ in range(tries):
        words = Words(rng)
        project = draw_project(rng, words)
        plan = GOALS[name].make(Setting(Facts(dict(project.files)), rng, words, project))
        if plan is not None:
            player.box.workspace.reset(project.files)
            player.box.new_session()
            yield plan


@pytest.mark.parametrize("name", [*NEW.split(), *(f"cannot_{kind}" for kind in LIMITS)])
def test_oracle_of_goal_is_accepted(player: Player, name: str) -> None:
    rng, made = random.Random(name), 0
    for plan in plans(player, name, rng, 40):
        try:
            accepted = player.play(Session(player.box, rng, max_chars=10**6), plan)
        except TooLong:
            continue  # drawn, but dropped: what was to fail happens to pass
        assert accepted, player.reasons
        made += 1
        if made == 3:
            return
    assert made


@pytest.mark.parametrize(
    "name", ["set_const", "set_const_in", "set_const_from", "set_key", "set_equal", "ignore_line"]
)
def test_what_is_so_already_is_told_and_left(player: Player, name: str) -> None:
    rng, made = random.Random(name), 0
    for plan in plans(player, name, rng, 200):
        session = Session(player.box, rng, max_chars=10**6)
        assert player.play(session, plan), player.reasons
        last = session.messages[-1]
        if "already" not in last["content"]:
            continue
        after = player.box.workspace.snapshot()
        assert "edit" not in [call["function"]["name"] for row in session.messages for call in _calls(row)]
        assert "already" in last["reasoning_content"]
        done = f"Set `{plan.slots.get('name', '')}` to `{plan.slots.get('value', '')}`."
        assert plan.check(Outcome(after, after, done, player.box.workspace.root)) is not None
        made += 1
        if made == 3:
            return
    raise AssertionError(f"{made} were drawn")


def test_each_setting_is_asked_for_in_many_ways_that_mean_no_other() -> None:
    asked = [question for role in roles() for question in role.questions]
    assert len(set(asked)) == len(asked)
    assert min(len(role.questions) for role in roles()) >= 6


def test_the_thought_says_which_way_imports_are_asked_for(player: Player) -> None:
    player.box.workspace.reset({"sums.py": "import math\n", "shop.py": "from sums import add\n"})
    player.box.new_session()
    rng = random.Random(3)
    facts = Facts(player.box.workspace.snapshot())
    plans = [GOALS["importers_of"].make(Setting(facts, rng, Words(rng), None)) for _ in range(20)]
    plan = next(plan for plan in plans if plan is not None and plan.slots["module"] in ("sums", "sums.py"))
    session = Session(player.box, rng, max_chars=10**6)
    assert player.play(session, plan), player.reasons
    thoughts = " ".join(row.get("reasoning_content") or "" for row in session.messages)
    assert "who imports sums, not what sums imports" in thoughts and "1 line." in thoughts
    assert "shop.py:1" in session.messages[-1]["content"]
    files = player.box.workspace.snapshot()
    wrong = "`sums.py` imports:\n- import math"
    assert plan.check(Outcome(files, files, wrong, player.box.workspace.root)) is not None


def _calls(row: dict) -> list[dict]:
    return row.get("tool_calls", [])


@pytest.mark.parametrize("name", ["delete_folder", "empty_folder", "list_dir", "count_dir", "create_folder"])
def test_a_folder_without_files_is_no_missing_one(player: Player, name: str) -> None:
    rng = random.Random(name)
    for _ in range(200):
        words = Words(rng)
        project = draw_project(rng, words)
        plan = GOALS[name].make(Setting(Facts(dict(project.files)), rng, words, project))
        if plan is not None and plan.setup is not None:
            break
    else:
        raise AssertionError("none was drawn")
    player.box.workspace.reset(project.files)
    player.box.new_session()
    session = Session(player.box, rng, max_chars=10**6)
    assert player.play(session, plan), player.reasons
    answer = session.messages[-1]["content"]
    assert "There is no folder" not in answer
    folder = Path(player.box.workspace.root, plan.slots["dir"])
    assert folder.is_dir() is (name != "delete_folder")
    if name == "delete_folder":
        folder.mkdir()
        assert plan.check(Outcome({}, {}, answer, player.box.workspace.root)) is not None


def test_a_refusal_may_offer_what_it_can_do_but_not_help_with_this() -> None:
    check = refuses(LIMITS["media"])
    for answer, is_right in (
        ("I cannot do that. I can find and show text files.", True),
        ("I can only read, change and run files here.", True),
        ("I can draw it. Which colours shall it have?", False),
        ("Done.", False),
    ):
        assert (check(Outcome({}, {}, answer)) is None) == is_right, answer
    assert check(Outcome({}, {"logo.svg": ""}, "I cannot work with pictures.")) is not None


def test_a_refusal_must_name_what_it_cannot_do() -> None:
    rng = random.Random(1)
    words = Words(rng)
    project = draw_project(rng, words)
    plan = GOALS["cannot_types"].make(Setting(Facts(project.files), rng, words, project))
    assert plan is not None
    assert plan.check(Outcome({}, {}, "I cannot add type hints.")) is None
    assert plan.check(Outcome({}, {}, "I cannot do that.")) is not None
    assert plan.check(Outcome({}, {"new.py": ""}, "I cannot add type hints.")) is not None


def test_a_refused_edit_is_an_honest_end_only_if_it_is_said(player: Player) -> None:
    player.box.machine.edits_denied = goals.NOT_WRITTEN[0]
    assert player.honestly_stopped(Outcome({}, {}, "I could not change `a.py`: permission denied."))
    assert not player.honestly_stopped(Outcome({}, {}, "Done."))
    assert not player.honestly_stopped(Outcome({}, {"a.py": ""}, "I could not change `b.py`."))
    player.box.machine.edits_denied = ""
    assert not player.honestly_stopped(Outcome({}, {}, "I could not change `a.py`."))


@pytest.mark.parametrize(
    ("line", "new", "wanted"),
    [
        ("from a.b import f", "c", "from c import f"),
        ("from a.b import f, g", "c", "from a.b import g\nfrom c import f"),
        ("from a.b import f, g", "", "from a.b import g"),
        ("from a.b import f", "", ""),
        ("from a.bb import f", "c", "from a.bb import f"),
    ],
)
def test_an_import_of_a_moved_name(line: str, new: str, wanted: str) -> None:
    assert moved_import(line, "f", "a.b", new) == wanted


@pytest.mark.parametrize(
    ("line", "old", "new", "wanted"),
    [
        ("from a.b import f", "a.b", "c.b", "from c.b import f"),
        ("from a import b", "a.b", "c.d.b", "from c.d import b"),
        ("import b", "b", "c.b", "from c import b"),
        ("    from b import f", "b", "c.b", "    from c.b import f"),
        ("import bb", "b", "c.b", "import bb"),
    ],
)
def test_an_import_of_a_moved_module(line: str, old: str, new: str, wanted: str) -> None:
    assert module_import(line, old, new) == wanted


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("rm -r a", "rm: cannot remove 'a': No."),
        ("rm a b", "rm: cannot remove 'a': No.\nrm: cannot remove 'b': No."),
        ("mv a b", "mv: cannot move 'a' to 'b': No."),
        ("mkdir -p new && mv a new/", "mkdir: cannot create directory ‘new’: No."),
        ("mkdir -p there && mv a there/", "mv: cannot move 'a' to 'there/': No."),
        ("rm -r there/*", "rm: cannot remove 'there/a': No.\nrm: cannot remove 'there/b': No."),
    ],
)
def test_a_refused_command_says_what_it_cannot_do(tmp_path: Path, command: str, said: str) -> None:
    (tmp_path / "there" / "a").mkdir(parents=True)
    (tmp_path / "there" / "b").touch()
    assert refusal(command, "No.", str(tmp_path)) == said


@pytest.mark.parametrize(
    ("path", "row", "command"),
    [
        ("Makefile", "lint:", "make lint"),
        ("package.json", '    "lint": "eslint .",', "npm run lint"),
        ("web/package.json", '    "eslint": "^9.0.0"', "npx eslint ."),
        ("pyproject.toml", "[tool.ruff]", "ruff check ."),
        ("setup.cfg", "[flake8]", "flake8"),
        ("Makefile", "# no lint here", ""),
    ],
)
def test_the_settings_say_which_linter(path: str, row: str, command: str) -> None:
    assert command_for([Hit(path, 1, row)]) == command


def test_a_refused_change_must_not_be_told_as_done(player: Player) -> None:
    rng = random.Random(4)
    for _ in range(20):
        words = Words(rng)
        project = draw_project(rng, words)
        plan = GOALS["change_refused"].make(Setting(Facts(dict(project.files)), rng, words, project))
        if plan is None or plan.goal != "delete_file":
            continue
        player.box.workspace.reset(project.files)
        player.box.new_session()
        session = Session(player.box, rng, max_chars=10**6)
        assert player.play(session, plan) and player.box.machine.refused == ""
        assert plan.check(Outcome({}, {}, "Deleted `a.py`.")) is not None
        return
    raise AssertionError("no deletion was drawn")
