"""Failing tests of JavaScript and Go: what is said of them is what node says; only a repair is accepted."""

import json
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from k3agent.backend.training.episodes import webbugs, weblogs
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.families.webrepairs import Repair, draw_repair
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.programs import Turning, write_answering
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.session import Outcome, Plan, Session, played
from k3agent.backend.training.episodes.webcode import Raised, call, draw_arguments, literal
from k3agent.backend.training.episodes.wording import say
from k3agent.backend.training.episodes.words import Words

REPAIRS = ("web_fix_tests", "web_fix_lang_tests", "web_fix_runner")
RUNS = ("web_run_tests", "web_run_lang_tests")
NODE = shutil.which("node")


def _plans(name: str, count: int) -> list[Plan]:
    rng = random.Random(f"webrepairs/{name}")
    drawn = (GOALS[name].make(Setting(Facts({}), rng, Words(rng))) for _ in range(4 * count))
    return [plan for plan in drawn if plan is not None][:count]


def _start(player: Player, plan: Plan) -> tuple[Session, dict[str, str]]:
    files: dict[str, str] = {}
    assert plan.prepare is not None
    plan.prepare(files)
    player.box.workspace.reset(files)
    player.box.new_session()
    session = Session(player.box, random.Random(1), max_chars=10**6)
    session.user(say(plan.goal, plan.slots, session.rng, "train"))
    return session, files


def _commands(session: Session) -> list[str]:
    calls = [call for row in session.messages for call in row.get("tool_calls", [])]
    found = [json.loads(item["function"]["arguments"]) for item in calls]
    return [args["command"] for args in found if "command" in args]


@pytest.mark.parametrize("name", REPAIRS)
def test_the_oracle_repairs_it_and_nothing_else_is_accepted(name: str) -> None:
    player = Player(21, 0, strict=True)
    try:
        for plan in _plans(name, 60):
            session, before = _start(player, plan)
            answer = played(plan, session)[1]
            after = player.box.workspace.snapshot()
            assert plan.check(Outcome(before, after, answer)) is None, answer
            assert plan.check(Outcome(before, before, answer)) is not None
            assert plan.check(Outcome(before, after, "Done.")) is not None
            changed = next(path for path in after if after[path] != before[path])
            other = {**after, changed: after[changed] + "\nlet x = 1;\n"}
            assert plan.check(Outcome(before, other, answer)) is not None
            commands = [item for item in _commands(session) if "pytest" not in item]
            assert len(commands) == 2 and commands[0] == commands[1] and commands[0] in answer
            assert ("pytest" in _commands(session)[0]) == (name == "web_fix_tests")
            thoughts = " ".join(row.get("reasoning_content", "") for row in session.messages)
            assert "first place in the project is" in thoughts and "node_modules" not in thoughts
    finally:
        player.close()


def test_a_pasted_run_is_repaired_without_running_anything() -> None:
    player = Player(23, 0, strict=True)
    try:
        for plan in _plans("web_fix_run", 40):
            session, before = _start(player, plan)
            answer = played(plan, session)[1]
            after = player.box.workspace.snapshot()
            assert plan.check(Outcome(before, after, answer)) is None, answer
            assert plan.check(Outcome(before, before, answer)) is not None
            assert not _commands(session) and "have not run" in answer
            assert weblogs.ROOT not in session.messages[0]["content"]
    finally:
        player.close()


@pytest.mark.parametrize("name", RUNS)
def test_what_a_run_showed_is_told(name: str) -> None:
    player = Player(22, 0, strict=True)
    said: set[str] = set()
    try:
        for plan in _plans(name, 30):
            session, before = _start(player, plan)
            answer = played(plan, session)[1]
            assert plan.check(Outcome(before, player.box.workspace.snapshot(), answer)) is None, answer
            wrong = "All tests pass." if "pass" not in answer else "The tests fail."
            assert plan.check(Outcome(before, before, wrong)) is not None, answer
            said.add(re.split(r" \(|`", answer)[0].strip())
    finally:
        player.close()
    assert said >= {"The tests pass", "The tests fail", "I could not run"}


def _scripts(count: int) -> tuple[str, list[tuple[webbugs.BodyFunc, object, object]]]:
    """Functions with their slips and without, called, as one script for node."""
    rng = random.Random(31)
    rows, drawn = [], []
    while len(drawn) < count:
        words = Words(rng)
        func = webbugs.draw_body(rng, words, "js")
        found = draw_arguments(func, rng, words) if func else None
        if func is None or found is None:
            continue
        func.documented = False
        given = call(func, found[0])[len(func.name) :]
        wrong, right = ("\n".join(func.source(wrong=flag)) for flag in (True, False))
        rows.append(f"run(({wrong}), (f) => f{given}, ({right}));")
        drawn.append((func, *found[1:]))
    head = """const { inspect } = require('util');
function run(wrong, call, right) {
  let said;
  try { said = [inspect(call(wrong)), inspect(call(right))]; } catch (e) {
    const place = e.stack.split('\\n')[1].match(/:(\\d+):(\\d+)\\)?$/);
    said = [`${e.name}: ${e.message}`, inspect(call(right)), Number(place[1]), Number(place[2])];
  }
  console.log(JSON.stringify(said));
}
"""
    return head + "\n".join(rows), drawn


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_node_gives_and_raises_what_is_said(tmp_path: Path) -> None:
    script, drawn = _scripts(250)
    (tmp_path / "all.cjs").write_text(script)
    done = subprocess.run([str(NODE), "all.cjs"], cwd=tmp_path, capture_output=True, text=True, check=True)
    starts = [n for n, row in enumerate(script.split("\n"), 1) if row.startswith("run((")]
    rows = [json.loads(row) for row in done.stdout.splitlines()]
    for (func, want, have), said, start in zip(drawn, rows, starts, strict=True):
        assert said[:2] == [literal(have, "js"), literal(want, "js")], func.wrong
        if isinstance(have, Raised):
            below, column = func.raised_at(have.text)
            assert said[2:] == [start + below, column], (func.wrong, have)


def _repairs(language: str, count: int) -> list[Repair]:
    rng = random.Random(f"repairs/{language}")
    found: list[Repair] = []
    while len(found) < count:
        repair = draw_repair(Setting(Facts({}), rng, Words(rng)), language)
        found += [repair] if repair else []
    return found


def _plain(text: str) -> list[str]:
    """A TAP run without times and node's own frames."""
    rows = [re.sub(r"duration_ms:? [\d.]+", "duration_ms", row) for row in text.splitlines()]
    return [row.rstrip() for row in rows if "node:" not in row]


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_a_run_reads_as_with_node_20(tmp_path: Path) -> None:
    version = subprocess.run([str(NODE), "--version"], capture_output=True, text=True, check=True).stdout
    if not version.startswith("v20."):
        pytest.skip(f"other versions word it otherwise: {version}")
    tested = 0
    for number, repair in enumerate(_repairs("js", 60)):
        said = repair.programs.get("node --test")
        if not isinstance(said, Turning) or not said.before.startswith("TAP") or tested == 8:
            continue
        folder = tmp_path / str(number)
        for path, text in repair.project.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        for expected in (said.before, said.after):
            done = subprocess.run(
                [str(NODE), "--test"], cwd=folder, capture_output=True, text=True, check=False
            )
            whole = f"{done.stdout.rstrip()}\n[exit code {done.returncode}]".replace(
                str(folder), weblogs.ROOT
            )
            assert _plain(whole) == _plain(expected)
            (folder / repair.path).write_text(repair.right)
        tested += 1
    assert tested == 8


@pytest.mark.parametrize("language", ["js", "go"])
def test_the_first_place_is_in_the_project(language: str) -> None:
    kinds: set[str] = set()
    for repair in _repairs(language, 60):
        said = next(iter(repair.programs.values()))
        assert isinstance(said, Turning)
        told = weblogs.read_run(said.before)
        assert told is not None
        assert any(path == told.path or path.endswith(f"/{told.path}") for path in repair.project.files)
        assert told.error and (told.title or "build failed" in said.before)
        text = next(t for p, t in repair.project.files.items() if p.endswith(told.path))
        assert told.line <= text.count("\n")
        assert weblogs.read_run(said.after) is None
        kinds.add("test" if "test" in told.path else "module")
    assert kinds == {"test", "module"}


def test_a_program_turns_with_its_file(tmp_path: Path) -> None:
    said = Turning("src/a b.js", "const x = 'it is';\n\nx();\n", "at @/a\n[exit code 1]", "ok\n[exit code 0]")
    said = Turning(said.path, said.text, said.before.replace("@", weblogs.ROOT), said.after)
    root, programs = tmp_path / "project", tmp_path / "programs"
    (root / "src").mkdir(parents=True)
    write_answering(programs, {"npm test": said, "npm run lint": "fine\n[exit code 0]"})

    def run(command: str) -> tuple[str, int]:
        environ = {"PATH": f"{programs}:/usr/bin:/bin"}
        done = subprocess.run(
            ["sh", "-c", command], cwd=root, env=environ, capture_output=True, text=True, check=False
        )
        return done.stdout, done.returncode

    file = root / said.path
    file.write_text("const x = 'it  is';\nx();\n")
    assert run("npm test") == (f"at {root}/a\n", 1) and "[exit code 1]" in said.now(str(root))
    file.write_text("const x = 'it is';\nx();\n\n")
    assert run("npm test") == ("ok\n", 0) and "[exit code 0]" in said.now(str(root))
    assert run("npm run lint") == ("fine\n", 0)
    file.unlink()
    assert run("npm test")[1] == 1 and "[exit code 1]" in said.now(str(root))
