"""Searching for a bug: candidates undo bugs, nothing is tried twice, what is wrong is put back."""

import json
import random
import re

import pytest

from k3agent.backend.training.episodes import goals, searching
from k3agent.backend.training.episodes.bugs import Broken, draw_broken, draw_several
from k3agent.backend.training.episodes.candidates import candidates_for
from k3agent.backend.training.episodes.concepts import compile_function, copy_value
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.families.repair import fixed, play_fix
from k3agent.backend.training.episodes.mutate import find_bug, with_bug
from k3agent.backend.training.episodes.parts import goes_on, left_in, parts_of, said_of
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.routines import routine_function
from k3agent.backend.training.episodes.session import Outcome, Report, Session
from k3agent.backend.training.episodes.symptoms import case_said, points_to, symptom
from k3agent.backend.training.episodes.words import Words

assert goals.GOALS is GOALS

PLAYER_SEED = 17


def drawn(seed: int, count: int) -> list[Broken]:
    rng, found = random.Random(seed), []
    for _ in range(300):
        broken = draw_broken(Setting(Facts({}), rng, Words(rng)))
        if broken is None or broken.bug.is_syntax:
            continue
        rows = list(enumerate(broken.bad.splitlines(), 1))
        wanted = (broken.line, broken.wrong.strip(), broken.right.strip())
        if any((item.line, item.old, item.new) == wanted for item in candidates_for(rows, broken.line)):
            found.append(broken)
        if len(found) == count:
            break
    return found


def played(player: Player, broken: Broken, rng: random.Random, *, may_stop: bool = False) -> Session:
    player.box.workspace.reset(broken.files)
    player.box.new_session()
    session = Session(player.box, rng, max_chars=10**6, slips=True)
    try:
        think, answer = play_fix(session, [broken], "Fix it.", may_stop=may_stop)
    except Report as report:
        think, answer = report.think, report.answer
    session.answer(answer, think)
    return session


def attempts(session: Session) -> list[tuple[int, str]]:
    """The lines and the texts that were tried; edits back and what was refused are left out."""
    found = []
    for index, message in enumerate(session.messages):
        calls = message.get("tool_calls", [])
        refused = calls and session.messages[index + 1]["content"].startswith("Error: ")
        if calls and calls[0]["function"]["name"] == "edit" and not refused:
            args = json.loads(calls[0]["function"]["arguments"])
            if " back: it was " not in message["reasoning_content"]:
                found.append((args["line"], args["new"]))
    return found


def test_candidates_hold_the_repair_of_most_bugs() -> None:
    rng, hits, bugs = random.Random(4), 0, 0
    for _ in range(80):
        func = routine_function(rng, Words(rng))
        bug = find_bug(func, rng)
        if bug is None or bug.is_syntax:
            continue
        source = with_bug(func, bug).source()
        line = len(source) - len(func.body) + bug.index + 1
        pool = candidates_for(list(enumerate(source, 1)), line)
        bugs += 1
        hits += (line, bug.right.strip()) in {(item.line, item.new) for item in pool}
        for item in pool:
            assert item.old != item.new and item.old == source[item.line - 1].strip()
    assert hits > 0.6 * bugs


def test_docstrings_comments_and_endless_loops_are_left_alone() -> None:
    code = 'def f(a, b):\n    """Return a + b.\n\n    More a - b.\n    """\n    # a + b\n    return a - b\n'
    pool = candidates_for(list(enumerate(code.splitlines(), 1)), 7)
    assert {item.line for item in pool} == {7} and "return a + b" in {item.new for item in pool}
    loop = "def f(a):\n    while a > 1:\n        a -= 1\n    return a\n"
    assert candidates_for(list(enumerate(loop.splitlines(), 1)), 3) == []


def test_an_unused_parameter_is_the_likeliest_name() -> None:
    code = "def area(width, height, deep):\n    return width * width + deep\n"
    pool = {item.new: item.weight for item in candidates_for(list(enumerate(code.splitlines(), 1)), 2)}
    assert pool["return width * height + deep"] > pool["return width * deep + deep"]


@pytest.mark.parametrize("wrong", [0, 1, 3])
def test_wrong_attempts_come_first_each_once_and_are_put_back(
    player: Player, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    monkeypatch.setattr(searching, "SEARCHED", 1.0)
    monkeypatch.setattr(searching, "STRAY", 0.3)
    monkeypatch.setattr(searching, "POSITIONS", tuple(float(index == wrong) for index in range(4)))
    monkeypatch.setattr(searching, "POINTED", 0.0)
    monkeypatch.setattr(searching, "DECIDED", 0.0)
    rng, lengths = random.Random(wrong), []
    for broken in drawn(wrong, 8):
        session = played(player, broken, rng)
        outcome = Outcome(broken.files, player.box.workspace.snapshot(), session.messages[-1]["content"])
        if "That did not help." in str(session.messages):
            # A wrong turn of a repair that is evident: no search.
            continue
        if session.gave_up or "nothing to fix" in outcome.answer:
            # A slip that ended the task, or tests that leave out the case that the bug breaks.
            continue
        assert fixed([broken])(outcome) is None, session.messages
        tried = attempts(session)
        assert len(set(tried)) == len(tried)
        before, after = (text.splitlines() for text in (broken.bad, outcome.after[broken.path]))
        assert sum(one != two for one, two in zip(before, after, strict=True)) == 1
        lengths.append(len(tried))
    assert max(lengths) == wrong + 1


def test_a_search_that_finds_nothing_puts_all_back_and_says_so(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SEARCHED", 1.0)
    monkeypatch.setattr(searching, "GIVEN_UP", 1.0)
    monkeypatch.setattr(searching, "UNLIKELY", 1.0)
    monkeypatch.setattr(searching, "STUCK", 0.0)
    rng, stopped = random.Random(5), 0
    for broken in drawn(6, 12):
        right = broken.right.strip()

        def without(rows: list[tuple[int, str]], line: int, right: str = right) -> list[searching.Candidate]:
            return [item for item in candidates_for(rows, line) if item.new != right]

        monkeypatch.setattr(searching, "candidates_for", without)
        session = played(player, broken, rng, may_stop=True)
        answer = session.messages[-1]["content"]
        if "I put everything back" not in answer:
            continue
        stopped += 1
        assert player.box.workspace.snapshot() == broken.files
        tried = attempts(session)
        assert searching.ENOUGH <= len(tried) <= searching.MOST_WRONG and all(
            new in answer for _, new in tried
        )
        assert session.gave_up and "could not " in answer
    assert stopped >= 3


def test_after_a_right_change_another_bug_is_not_taken_for_the_same(player: Player) -> None:
    rng, told = random.Random(4), 0
    for _ in range(40):
        found = draw_several(Setting(Facts({}), rng, Words(rng)))
        if not found or told > 2:
            continue
        files = {path: text for item in found for path, text in item.files.items()}
        player.box.workspace.reset(files)
        player.box.new_session()
        session = Session(player.box, rng, max_chars=10**6)
        try:
            _, answer = play_fix(session, found, "Fix it.")
        except Report:
            continue
        thoughts = " ".join(item.get("reasoning_content", "") for item in session.messages)
        if "That is another bug" in thoughts:
            told += 1
            assert "pass now" in answer
            assert fixed(found)(Outcome(files, player.box.workspace.snapshot(), answer)) is None
    assert told


def test_what_is_refused_is_followed_by_another_candidate(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "SEARCHED", 1.0)
    monkeypatch.setattr(searching, "STRAY", 1.0)
    monkeypatch.setattr(searching, "POSITIONS", (0.0, 0.0, 1.0))
    monkeypatch.setattr(searching, "POINTED", 0.0)
    monkeypatch.setattr(searching, "DECIDED", 0.0)
    rng, strays = random.Random(8), 0
    for broken in drawn(9, 6):
        session = played(player, broken, rng)
        for index in session.unlearned:
            shown, following = session.messages[index + 1], session.messages[index + 2]
            if " did not help" in following["reasoning_content"]:
                strays += 1
                assert shown["content"].startswith("Error: ")
                assert (
                    following["tool_calls"][0]["function"]
                    != session.messages[index]["tool_calls"][0]["function"]
                )
    assert strays >= 2


def test_a_call_that_is_refused_twice_ends_the_search(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SEARCHED", "STRAY", "STUCK"):
        monkeypatch.setattr(searching, name, 1.0)
    monkeypatch.setattr(searching, "POSITIONS", (0.0, 0.0, 1.0))
    monkeypatch.setattr(searching, "POINTED", 0.0)
    monkeypatch.setattr(searching, "DECIDED", 0.0)
    rng, stopped = random.Random(8), 0
    for broken in drawn(9, 6):
        session = played(player, broken, rng, may_stop=True)
        if "must change. I know no more" in str(session.messages):
            stopped += 1
            assert player.box.workspace.snapshot() == broken.files
            assert "I put everything back" in session.messages[-1]["content"]
    assert stopped >= 2


def test_a_failure_says_which_changes_are_likely() -> None:
    code = "def last_page(items, size):\n    return (items - 1) // size\n"
    rows = list(enumerate(code.splitlines(), 1))
    assert "return (len(items) - 1) // size" in {item.new for item in candidates_for(rows, 2)}
    said = symptom("TypeError: unsupported operand type(s) for -: 'list' and 'int'")
    assert "len()" in said and points_to(said, "return items - 1", "return len(items) - 1")
    assert not points_to(said, "return items - 1", "return items + 1")
    assert points_to(symptom("assert 3 == 4"), "return a[1:]", "return a[0:]")
    assert case_said("assert join_names(['ann']) == 'ann'").startswith("It fails for one element")
    assert case_said("assert total([1, 2]) == 3") == "" and case_said("with x:") == ""


def test_routine_functions_are_many_and_do_what_their_cases_say() -> None:
    rng, bodies = random.Random(2), set()
    for _ in range(120):
        func = routine_function(rng, Words(rng))
        bodies.add("\n".join(func.body))
        function = compile_function(func)
        assert all(function(*[copy_value(arg) for arg in args]) == value for args, value in func.cases)
        assert len({repr(value) for _, value in func.cases}) > 1
    assert len(bodies) == 120


def test_after_an_attempt_the_parts_that_are_left_are_named() -> None:
    line = "started = (extra + 1000 - 1) // 1000"
    assert [part.text for part in parts_of(line)] == ["extra", "+", "1000", "-", "1", "//", "1000"]
    tried = line.replace("+", "*")
    assert left_in(line, [tried]) == ["extra", "+ as -", "1000", "-", "1", "//", "1000"]
    assert said_of(line, tried) == "+ as *"
    assert goes_on(line, [tried], line.replace("+", "-"))
    assert not goes_on(line, [tried], line.replace("+", "/"))
    assert goes_on(line, [tried], line.replace("//", "/"))
    fewer = line.replace(" - 1)", ")")
    assert goes_on(line, [tried], fewer) and said_of(line, fewer) == "no - 1"
    assert said_of("return name.lower == word", "return name.lower() == word") == "lower with ()"
    assert [part.text for part in parts_of("a += b['c']")] == ["a", "+=", "b", "'c'"]


def test_no_thought_after_a_failed_attempt_can_be_copied_into_the_same_change(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("POINTED", "DECIDED", "STRAY"):
        monkeypatch.setattr(searching, name, 0.0)
    monkeypatch.setattr(searching, "SEARCHED", 1.0)
    monkeypatch.setattr(searching, "POSITIONS", (0.0, 0.0, 1.0))
    rng, went_on = random.Random(5), 0
    for broken in drawn(3, 8):
        before: list[str] = []
        for message in played(player, broken, rng).messages:
            thought = message.get("reasoning_content", "")
            if " Try " not in thought:
                continue
            lead, _, change = thought.rpartition(" Try ")
            assert " -> " not in lead and change not in before, thought
            before.append(change)
            if "; left: " in lead and " -> " in change:
                left = re.split(r", (?=\S)", lead.rpartition("; left: ")[2].removesuffix("."))
                went_on += 1
                assert any(part.split(" as ")[0] in change.split(" -> ")[0] for part in left), thought
    assert went_on > 2
