"""Later goals of the second edition: what their oracles derive, read and leave, on real files."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from k3agent.backend.training.episodes import goals
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.families.creating import ENDINGS
from k3agent.backend.training.episodes.families.gitauthors import tells_of_last
from k3agent.backend.training.episodes.families.gitmore import NAMED
from k3agent.backend.training.episodes.families.gittasks import subject_for
from k3agent.backend.training.episodes.families.longer import bare_functions
from k3agent.backend.training.episodes.families.nested import draw_deep, places_of
from k3agent.backend.training.episodes.families.requirements import VERSION, entry_like
from k3agent.backend.training.episodes.families.requiring import importers, moved_files
from k3agent.backend.training.episodes.gitrepo import git
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.policy import View
from k3agent.backend.training.episodes.project import draw_project
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session, in_turn, played, told
from k3agent.backend.training.episodes.webproject import draw_web_project
from k3agent.backend.training.episodes.wording import say
from k3agent.backend.training.episodes.words import Words
from k3agent.safety.secretfiles import is_secret_file

NEW = """
    git_commit_own git_log_n git_last_commit git_diff_all git_stash git_discard_all git_unstash
    set_whole_version add_requirement remove_requirement add_checkbox set_deep edit_commit
    chain_list no_docstring log_errors bump_all
    git_undo_commit git_reword commit_refused git_init git_last_author
""".split()  # noqa: SIM905


@pytest.mark.parametrize(
    ("found", "added", "subject"),
    [
        ({"src/a.py": " M"}, "", "Update a.py"),
        ({"a.py": " M"}, "LIMIT", "Add LIMIT to a.py"),
        ({"a.py": "??"}, "", "Add a.py"),
        ({"a.py": " M", "b.md": " M"}, "", "Update a.py and b.md"),
        ({"a.py": " M", "n.txt": "??"}, "", "Add n.txt and update a.py"),
        ({f"{n}.py": " M" for n in range(5)}, "", "Update 5 files"),
    ],
)
def test_a_subject_says_what_changed(found: dict[str, str], added: str, subject: str) -> None:
    assert subject_for(found, added) == subject


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ("+LIMIT = 3", "LIMIT"),
        ("+def load(path):", "load"),
        ("+class Box:", "Box"),
        ("+print('x')", None),
        ("+# a b", None),
    ],
)
def test_an_added_line_may_have_a_name(row: str, name: str | None) -> None:
    match = NAMED.match(row)
    assert (match and (match[1] or match[2])) == name


@pytest.mark.parametrize(
    ("path", "other", "spec", "entry"),
    [
        ("pyproject.toml", '"a>=1.2.3",', "rich 13.7.0", '"rich>=13.7.0"'),
        ("pyproject.toml", '"a>=1.2.3",', "rich==13.7.0", '"rich==13.7.0"'),
        ("pyproject.toml", '"a>=1.2.3",', "rich", '"rich"'),
        ("package.json", '"a": "~1.2.3"', "left-pad@1.3.0", '"left-pad": "~1.3.0"'),
        ("package.json", '"a": "1.2.3"', "left-pad 1.3.0", '"left-pad": "1.3.0"'),
        ("package.json", '"a": "^1.2.3"', "left-pad", '"left-pad": "*"'),
        ("Cargo.toml", 'a = "1.2.3"', "serde 1.0.2", 'serde = "1.0.2"'),
    ],
)
def test_a_dependency_is_written_like_the_others(path: str, other: str, spec: str, entry: str) -> None:
    assert entry_like(path, other, spec) == entry


@pytest.mark.parametrize("row", ['version = "1.2.3-rc.1",', '  "version": "2024.10.1",', "version: 1.2.3.4"])
def test_whole_versions_are_found(row: str) -> None:
    match = VERSION.match(row)
    assert match is not None and match[1] in ("1.2.3-rc.1", "2024.10.1", "1.2.3.4")


def test_deep_keys_are_found_by_their_whole_names() -> None:
    rng = random.Random(3)
    for _ in range(60):
        words = Words(rng)
        drawn = draw_deep(Setting(Facts({}), rng, words))
        if drawn is None:
            continue
        rows = list(enumerate(drawn.text.splitlines(), 1))
        found = places_of(View(drawn.path, rows, len(rows)))
        assert {names: line for names, (line, _) in found.items()} == drawn.places


@pytest.mark.parametrize("name", NEW)
def test_the_oracle_solves_it_and_doing_nothing_does_not(name: str) -> None:
    rng = random.Random(f"new/{name}")
    player = Player(11, 0, strict=True)
    workspace = player.box.workspace
    solved = count = 0
    try:
        for _ in range(40):
            words = Words(rng)
            project = draw_project(rng, words)
            plan = GOALS[name].make(Setting(Facts(dict(project.files)), rng, words, project))
            if plan is None or (plan.family == "git" and plan.setup is None):
                continue
            files = dict(project.files)
            if plan.prepare is not None:
                plan.prepare(files)
            workspace.reset(files)
            if plan.setup is not None:
                plan.setup(workspace.root)
            before = workspace.snapshot()
            player.box.new_session()
            session = Session(player.box, rng, max_chars=10**6)
            session.user(plan.prompt or say(plan.goal, plan.slots, rng, "train"))
            assert plan.check(Outcome(before, before, "Done.", workspace.root)) is not None
            answer = played(plan, session)[1]
            solved += plan.check(Outcome(before, workspace.snapshot(), answer, workspace.root)) is None
            count += 1
            if count == 8:
                break
    finally:
        player.close()
    assert count >= 4 and solved >= count - 1


def test_several_tasks_are_counted_and_what_ends_one_ends_not_all() -> None:
    player = Player(12, 0, strict=True)
    try:
        session = Session(player.box, random.Random(1))

        def look(session: Session) -> tuple[str, str]:
            session.notes.append("There is no `x`; I took `y`.")
            session.call("glob", "Look.", pattern="*")
            return "Seen.", "Nothing here."

        def stop(session: Session) -> tuple[str, str]:
            raise Report("Not there.", "There is no `z`.")

        answers: list[str] = []
        session.user("Three wishes.")
        session.answer(*reversed(told(in_turn([stop, look, look], answers), session)))
        thoughts = [row["reasoning_content"] for row in session.messages if row["role"] == "assistant"]
        assert thoughts == [
            "3 tasks. The first: Not there. Task 2 of 3: Look.",
            "Seen. Task 3 of 3: Look.",
            "Seen.",
        ]
        assert answers == ["There is no `z`.", *["There is no `x`; I took `y`. Nothing here."] * 2]
        assert session.messages[-1]["content"].startswith("1. There is no `z`.\n2. There is no `x`; I took")
    finally:
        player.close()


@pytest.mark.parametrize("make", [GOALS["chain_list"].make, goals.joined], ids=["chain", "joined"])
def test_tasks_are_counted_once(make: Callable[[Setting], Plan | None]) -> None:
    rng = random.Random(5)
    played_ones = 0
    player = Player(14, 0, strict=True)
    try:
        while played_ones < 8:
            words = Words(rng)
            project = draw_project(rng, words)
            plan = make(Setting(Facts(dict(project.files)), rng, words, project))
            if plan is None:
                continue
            player.box.workspace.reset(project.files)
            player.box.new_session()
            session = Session(player.box, rng, max_chars=10**6)
            session.user(plan.prompt or "")
            session.answer(*reversed(played(plan, session)))
            said = " ".join(row.get("reasoning_content", "") for row in session.messages)
            assert said.count("tasks. The first:") == 1, said
            played_ones += 1
    finally:
        player.close()


def test_functions_without_a_docstring_are_told_by_their_lines_or_not_at_all() -> None:
    whole = 'def a(x):\n    """One."""\n\n\nclass B:\n    async def c(self):\n        return 1\n'
    assert bare_functions(whole) == ["c"]
    assert bare_functions("def a(\n    x,\n):\n    return x\n") is None
    assert bare_functions("def a(:\n") is None


def test_no_new_file_is_one_for_secrets() -> None:
    assert is_secret_file("a.env") and not any(is_secret_file(f"a.{ending}") for ending in ENDINGS)


def test_a_script_that_moves_takes_its_paths_along() -> None:
    files = {
        "src/a.js": "import { b } from './b.js';\nimport x from './sub/c';\n",
        "src/b.js": "export const b = 1;\n",
        "src/sub/c.js": "const { b } = require('../b');\n",
        "test/b.test.js": "import { b } from '../src/b.js';\nimport c from './b.js';\n",
    }
    assert importers(files, "src/b.js") == ["src/a.js", "src/sub/c.js", "test/b.test.js"]
    assert moved_files(files, "src/b.js", "lib/new.js") == {
        "src/b.js": None,
        "lib/new.js": "export const b = 1;\n",
        "src/a.js": "import { b } from '../lib/new.js';\nimport x from './sub/c';\n",
        "src/sub/c.js": "const { b } = require('../../lib/new');\n",
        "test/b.test.js": "import { b } from '../lib/new.js';\nimport c from './b.js';\n",
    }
    assert moved_files(files, "src/sub/c.js", "src/c.js") == {
        "src/sub/c.js": None,
        "src/c.js": "const { b } = require('./b');\n",
        "src/a.js": "import { b } from './b.js';\nimport x from './c';\n",
    }


@pytest.mark.parametrize("name", ["rename_file", "move_file"])
def test_the_oracle_moves_scripts_with_their_paths(name: str) -> None:
    rng = random.Random(f"moves/{name}")
    player = Player(13, 0, strict=True)
    adapted = 0
    try:
        for _ in range(25):
            words = Words(rng)
            project = draw_web_project(rng, words, "js")
            plan = GOALS[name].make(Setting(Facts(dict(project.files)), rng, words))
            if plan is None:
                continue
            workspace = player.box.workspace
            workspace.reset(project.files)
            player.box.new_session()
            session = Session(player.box, rng, max_chars=10**6)
            session.user(say(plan.goal, plan.slots, rng, "train"))
            answer = played(plan, session)[1]
            assert plan.check(Outcome(dict(project.files), workspace.snapshot(), answer)) is None
            adapted += "Imports adapted" in answer
    finally:
        player.close()
    assert adapted > 8


def test_what_shall_go_is_put_aside_and_can_come_back() -> None:
    rng = random.Random(6)
    player = Player(12, 0, strict=True)
    workspace = player.box.workspace
    try:
        words = Words(rng)
        project = draw_project(rng, words)
        plan = None
        while plan is None or plan.setup is None:
            plan = GOALS["git_discard_all"].make(Setting(Facts(dict(project.files)), rng, words, project))
        files = dict(project.files)
        assert plan.prepare is not None
        plan.prepare(files)
        workspace.reset(files)
        plan.setup(workspace.root)
        player.box.new_session()
        played(plan, Session(player.box, rng, max_chars=10**6))
        assert not git(workspace.root, "status", "--short")
        git(workspace.root, "stash", "pop")
        assert workspace.snapshot() == files
    finally:
        player.close()


def test_a_last_change_is_told_by_its_author_or_its_day_and_by_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    git(str(tmp_path), "init", "-q")
    git(str(tmp_path), "add", "-A")
    who = ("-c", "user.name=Mia", "-c", "user.email=mia@example.com")
    git(str(tmp_path), *who, "commit", "-q", "-m", "Add a", day=3)
    check, files = tells_of_last("a.py"), {"a.py": "x = 1\n"}
    for answer, is_right in (
        ("`a.py` was last changed by Mia on 2026-03-04.", True),
        ("Mia.", True),
        ("On 2026-03-04.", True),
        ("By Mia on 2026-03-05.", False),
        ("By Jonas on 2026-03-04.", False),
        ("I do not know.", False),
    ):
        assert (check(Outcome(files, files, answer, str(tmp_path))) is None) == is_right, answer
    assert check(Outcome(files, {}, "Mia.", str(tmp_path))) is not None
