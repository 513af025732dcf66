"""Failing checks, calls that fail again, and what the reports say of tools that did not work."""

import contextlib
import random
from types import SimpleNamespace
from typing import Any

import pytest

from k3agent.agent import checks
from k3agent.agent.repetition import RepetitionPolicy
from k3agent.agent.safekeeping import restore_notices
from k3agent.backend.training.episodes import goals
from k3agent.backend.training.episodes.continuing import PUT_BACK, put_back
from k3agent.backend.training.episodes.editing import failed
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.families.checked import MESSAGE
from k3agent.backend.training.episodes.families.repair import not_run
from k3agent.backend.training.episodes.families.running import denied
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.project import draw_project
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.session import Outcome, Plan, Session, TooLong
from k3agent.backend.training.episodes.toolbox import FAILED_BEFORE, Result
from k3agent.backend.training.episodes.words import Words
from k3agent.providers.base import Profile
from k3agent.store.records import CallRow, CallState
from k3agent.types import MessageId, SessionId

PLAYER_SEED = 14


def drawn(name: str, seed: int) -> tuple[Plan, dict[str, str]]:
    rng = random.Random(seed)
    while True:
        words = Words(rng)
        project = draw_project(rng, words)
        plan = GOALS[name].make(Setting(Facts(dict(project.files)), rng, words, project))
        if plan is not None:
            files = dict(project.files)
            assert plan.prepare is not None
            plan.prepare(files)
            return plan, files


def messages_of(player: Player, plan: Plan, files: dict[str, str]) -> tuple[list[dict[str, Any]], str]:
    player.box.workspace.reset(files)
    player.box.new_session()
    session = Session(player.box, random.Random(1), max_chars=10**6)
    session.user(plan.prompt or "")
    _, answer = plan.play(session)
    return session.messages, answer


@pytest.mark.parametrize("name", ["check_failed", "check_call"])
def test_a_failing_check_comes_in_the_agents_words_and_passes_in_the_end(player: Player, name: str) -> None:
    for seed in range(4):
        plan, files = drawn(name, seed)
        try:
            messages, answer = messages_of(player, plan, files)
        except TooLong:
            continue
        said = [item["content"] for item in messages if item["role"] == "user"]
        assert len(said) >= 2 and all(text.startswith(checks.HEAD) for text in said[1:])
        assert f"$ {plan.commands[0]}" in said[-1]
        assert f"The check `{plan.commands[0]}` passes now." in answer
        after = player.box.workspace.snapshot()
        assert plan.check(Outcome(files, after, answer)) is None
        assert plan.check(Outcome(files, files, answer)) is not None


def test_a_hopeless_check_is_reported_as_failing(player: Player) -> None:
    num_played = 0
    for seed in range(8):
        plan, files = drawn("check_hopeless", seed)
        # How long outputs are differs a little from machine to machine, and what is long is dropped.
        with contextlib.suppress(TooLong):
            _, answer = messages_of(player, plan, files)
            assert "still fails" in answer and plan.commands[0] in answer and "passes" not in answer
            num_played += 1
    assert num_played


def test_the_message_of_a_failing_check_is_the_agents() -> None:
    shown = checks.CheckResult(command="make test", exit_code=2, output="one\ntwo")
    assert MESSAGE.format("make test", "one\ntwo", 2) == checks.failure_text([shown])


def test_the_words_about_a_repeated_call_are_the_agents() -> None:
    row = CallRow(
        turn=1, message_id=MessageId("m"), call_id="c", tool="edit", arguments="{}", state=CallState.FAILED
    )
    policy = RepetitionPolicy(Profile.COMPACT, [row])
    assert policy.refusal_before("edit", "{}") == FAILED_BEFORE


def test_the_words_about_an_undo_are_the_agents() -> None:
    row = SimpleNamespace(target=7, details={"files": ["src/a.py"]})
    store: Any = SimpleNamespace(take_untold_restores=lambda session_id: [row])
    assert restore_notices(store, SessionId("s")) == [PUT_BACK.format(7, "src/a.py")]


def test_a_file_that_was_put_back_is_read_again_before_it_is_changed(player: Player) -> None:
    rng = random.Random(6)
    while True:
        words = Words(rng)
        project = draw_project(rng, words)
        path = next(path for path, text in project.files.items() if path.endswith(".py") and text.strip())
        first = project.files[path].split("\n")[0]
        player.box.workspace.reset(project.files)
        player.box.new_session()
        session = Session(player.box, rng, max_chars=10**6)
        session.call("edit", "Add a line.", path=path, old=first, new=f"# new one\n{first}", line=1)
        facts = Facts(player.box.workspace.snapshot())
        done = Plan("add_line_start", "addline", {}, lambda _: ("", ""), lambda _: None)
        plan = put_back(Setting(facts, rng, words, project), done, session)
        if plan is not None:
            break
    assert player.play(session, plan), player.reasons
    said = [item for item in session.messages if item["role"] == "user"]
    assert said[-1]["content"].startswith("The user has undone changes") and path in said[-1]["content"]
    after = session.messages[session.messages.index(said[-1]) + 1]
    assert after["tool_calls"][0]["function"]["name"] == "read"
    assert "# new one" not in player.box.workspace.snapshot()[path]


def test_an_edit_that_failed_is_refused_until_something_changed(player: Player) -> None:
    box = player.box
    box.workspace.reset({"a.txt": "one\n"})
    box.new_session()
    box.call("read", {"path": "a.txt"})
    wrong = {"path": "a.txt", "old": "two", "new": "three"}
    assert "not found" in box.call("edit", wrong).text
    assert box.call("edit", wrong).text == f"Error: {FAILED_BEFORE}"
    box.call("edit", {"path": "a.txt", "old": "one", "new": "four"})
    assert "not found" in box.call("edit", wrong).text
    box.new_turn()
    assert "not found" in box.call("edit", wrong).text


def test_a_run_without_tests_is_marked_as_the_tool_marks_it(player: Player) -> None:
    player.box.workspace.reset({"a.txt": "Ran 0 tests in 0.000s\n\nOK\n"})
    player.box.new_session()
    shown = player.box.call("shell", {"command": "cat a.txt # the tests"}).text
    assert shown.endswith("\nOK\n[no tests ran]\n[exit code 0]")
    assert "[no" not in player.box.call("shell", {"command": "cat a.txt; exit 5 # the tests"}).text


def test_the_oracle_never_learns_an_edit_that_changes_nothing(player: Player) -> None:
    session = Session(player.box, random.Random(1))
    with pytest.raises(ValueError, match="changes nothing"):
        session.call("edit", "Change it.", path="a", old="x", new="x")


@pytest.mark.parametrize("text", goals.NOT_WRITTEN)
def test_only_a_denied_edit_is_reported_as_denied(text: str) -> None:
    answer = failed("a.py", Result(f"Error: {text.format(path='a.py')}", True)).answer
    assert answer.startswith("I could not change `a.py`") and text.format(path="a.py") in answer


@pytest.mark.parametrize("text", goals.NOT_RUN)
def test_only_a_denied_command_is_reported_as_denied(text: str) -> None:
    is_denied = text.startswith("permission denied")
    for report in (not_run(Result(f"Error: {text}", True), "run the tests"), denied(f"Error: {text}")):
        assert ("I may not run commands here" in report.answer) == is_denied
        assert is_denied or text in report.answer


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("old text not found in a.py.", "was not found"),
        ("old and new are the same.", "were the same"),
        ("a.py does not exist.", "does not exist"),
        ("old text occurs 2 times in a.py (lines 1, 4). Add context.", "occurs 2 times"),
        (FAILED_BEFORE, "failed twice"),
    ],
)
def test_other_errors_are_never_reported_as_denied(error: str, said: str) -> None:
    answer = failed("a.py", Result(f"Error: {error}", True)).answer
    assert said in answer and "denied" not in answer.lower()
