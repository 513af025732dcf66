"""Searches by the tool that tries small changes: what is kept, where it goes on, what it says in the end."""

import json
import random

from k3agent.backend.training.episodes import goals
from k3agent.backend.training.episodes.bugs import Broken, draw_broken, draw_several
from k3agent.backend.training.episodes.concepts import compile_function, copy_value
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.families.gaps import play_tests
from k3agent.backend.training.episodes.families.repair import fixed, play_fix
from k3agent.backend.training.episodes.gapbugs import draw_gap
from k3agent.backend.training.episodes.layered import draw_layered
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.policy import View
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.routines import routine_function
from k3agent.backend.training.episodes.session import Message, Outcome, Report, Session
from k3agent.backend.training.episodes.symptoms import case_said, symptom
from k3agent.backend.training.episodes.testruns import PYTEST, Failure
from k3agent.backend.training.episodes.toolbox import Machine
from k3agent.backend.training.episodes.trying import Tried, bare, command_of, is_evident
from k3agent.backend.training.episodes.unitbugs import draw_unit_bug
from k3agent.backend.training.episodes.words import Words

assert goals.GOALS is GOALS

PLAYER_SEED = 17


def setting(rng: random.Random) -> Setting:
    return Setting(Facts({}), rng, Words(rng))


def drawn(seed: int, count: int) -> list[Broken]:
    rng, found = random.Random(seed), []
    while len(found) < count:
        broken = draw_broken(setting(rng))
        if broken is not None and not broken.bug.is_syntax:
            found.append(broken)
    return found


def played(
    player: Player, found: list[Broken], *, may_stop: bool = False, machine: Machine | None = None
) -> Session:
    player.box.workspace.reset({path: text for item in found for path, text in item.files.items()})
    player.box.new_session(machine)
    session = Session(player.box, random.Random(1), max_chars=10**6)
    try:
        think, answer = play_fix(session, found, "Fix it.", may_stop=may_stop)
    except Report as report:
        think, answer = report.think, report.answer
    session.answer(answer, think)
    return session


def searches(session: Session) -> list[tuple[Message, str]]:
    """The calls of `try` with what came back."""
    return [
        (message, session.messages[index + 1]["content"])
        for index, message in enumerate(session.messages)
        if message.get("tool_calls") and message["tool_calls"][0]["function"]["name"] == "try"
    ]


def test_most_bugs_are_found_by_a_small_change_and_the_report_tells_it(player: Player) -> None:
    helped, tried = 0, 0
    for broken in drawn(3, 30):
        session = played(player, [broken])
        outcome = Outcome(broken.files, player.box.workspace.snapshot(), session.messages[-1]["content"])
        ended = [text.endswith("[exit code 0]") for _, text in searches(session)]
        tried += bool(ended)
        if ended and ended[-1]:
            helped += 1
            assert fixed([broken])(outcome) is None, session.messages
            old, new = (
                next(row[1:].strip() for row in searches(session)[-1][1].split("\n")[1:] if row[:1] == sign)
                for sign in "-+"
            )
            assert f"`{old}` became `{new}`" in outcome.answer and "The tests pass now" in outcome.answer
    assert tried > 15 and helped > 0.7 * tried


def test_the_tests_of_what_is_broken_fail(player: Player) -> None:
    for broken in drawn(2, 40):
        player.box.workspace.reset(broken.files)
        player.box.new_session()
        assert not player.box.shell(f"{PYTEST} {broken.test_path}").endswith("[exit code 0]"), broken.tests


def test_the_failing_test_alone_is_run_and_all_of_them_afterwards(player: Player) -> None:
    seen = 0
    for broken in drawn(4, 12):
        session = played(player, [broken])
        for message, text in searches(session):
            args = json.loads(message["tool_calls"][0]["function"]["arguments"])
            assert " -k test" in args["command"] and " --tb=no" in args["command"]
            if text.endswith("[exit code 0]"):
                seen += 1
                after = session.messages[session.messages.index(message) + 2]
                command = json.loads(after["tool_calls"][0]["function"]["arguments"])["command"]
                assert "-k" not in command and after["reasoning_content"].endswith("Run all tests.")
    assert seen > 5


def test_bugs_of_inner_layers_are_mostly_found_by_the_first_search(player: Player) -> None:
    rng, first, elsewhere, tried = random.Random(9), 0, 0, 0
    while tried < 25:
        broken = draw_layered(setting(rng))
        if broken is None:
            continue
        session = played(player, [broken])
        found = searches(session)
        if not found:
            continue
        tried += 1
        if not found[0][1].endswith("[exit code 0]"):
            continue
        first += 1
        answer = session.messages[-1]["content"]
        named = json.loads(found[0][0]["tool_calls"][0]["function"]["arguments"])["path"]
        changed = [
            path for path, text in player.box.workspace.snapshot().items() if text != broken.files.get(path)
        ]
        assert changed == [broken.path] and f"` in `{broken.path}` (line {broken.line})" in answer
        assert broken.works(player.box.workspace.snapshot()[broken.path])
        if named != broken.path:
            elsewhere += 1
            assert f"After this one in {broken.path} the command succeeds:" in found[0][1]
    assert first > 0.6 * tried and elsewhere > 3, (first, elsewhere, tried)


def test_a_report_names_the_file_that_was_changed() -> None:
    view = View("a.py", [(1, "def f():")], 1)
    assert Tried("a.py", 2, "x", "y").place(view, "f") == "`f` in `a.py` (line 2)"
    assert Tried("b.py", 2, "x", "y").place(view, "f") == "what `f` calls in `b.py` (line 2)"


def test_where_nothing_small_helps_the_file_is_as_before_and_the_search_goes_on(player: Player) -> None:
    rng, seen = random.Random(8), 0
    for _ in range(60):
        gap = draw_gap(setting(rng))
        if gap is None or seen > 3:
            continue
        player.box.workspace.reset(gap.files)
        player.box.new_session()
        session = Session(player.box, rng, max_chars=10**6)
        try:
            _, answer = play_tests(session, gap)
        except Report as report:
            answer = report.answer
        failed = [item for item in searches(session) if not item[1].endswith("[exit code 0]")]
        if failed and "The tests pass now" in answer:
            seen += 1
            assert f"{gap.path} is as it was." in failed[0][1]
            after = session.messages[session.messages.index(failed[0][0]) + 2]
            assert after["reasoning_content"].startswith("No small change of ")
            assert gap.works(player.box.workspace.snapshot()[gap.path])
    assert seen > 1


def test_several_bugs_are_found_one_after_the_other(player: Player) -> None:
    rng, told = random.Random(4), 0
    for _ in range(60):
        found = draw_several(setting(rng))
        if not found or told > 3:
            continue
        session = played(player, found)
        answer = session.messages[-1]["content"]
        if len(searches(session)) > 1 and "pass now" in answer:
            told += 1
            files = {path: text for item in found for path, text in item.files.items()}
            assert fixed(found)(Outcome(files, player.box.workspace.snapshot(), answer)) is None
    assert told


def test_an_honest_end_changes_nothing(player: Player) -> None:
    rng, stopped = random.Random(5), 0
    for _ in range(250):
        broken = draw_unit_bug(setting(rng))
        if broken is None:
            continue
        session = played(player, [broken], may_stop=True)
        if session.gave_up:
            stopped += 1
            answer = session.messages[-1]["content"]
            assert player.box.workspace.snapshot() == broken.files
            assert answer.endswith("No small change helps. Nothing was changed.")
        if stopped == 2:
            break
    assert stopped


def test_what_is_not_allowed_is_reported(player: Player) -> None:
    denied = "permission denied: {path} may not be written here. Do without it, or say what is needed."
    seen = 0
    for broken in drawn(6, 8):
        session = played(player, [broken], machine=Machine(edits_denied=denied))
        if searches(session):
            seen += 1
            assert session.messages[-1]["content"].startswith("I could not change `")
            assert player.box.workspace.snapshot() == broken.files
    assert seen > 3


def test_the_command_is_the_last_run_with_the_failing_test_alone(player: Player) -> None:
    session = Session(player.box, random.Random(1))
    failure = Failure("TestA.test_b[1-x y]")
    session.command = "python -m pytest -q --tb=short -rN -x"
    assert command_of(session, failure) == "python -m pytest -q --tb=no -x -k test_b"
    session.command = "python -m pytest -q --tb=short -rN -x -k test_c"
    assert command_of(session, failure) == "python -m pytest -q --tb=no -x -k test_c"
    session.command = "python -m unittest discover -s tests -t . -f"
    assert command_of(session, Failure("test_b (tests.test_a.TestA.test_b)")) == (
        "python -m unittest discover -s tests -t . -f -k test_b"
    )


def test_an_error_that_names_its_cause_needs_no_search() -> None:
    assert is_evident(Failure("", error="NameError: name 'a' is not defined"))
    assert not is_evident(Failure("", error="assert 1 == 2"))
    assert bare("tests/test_a.py::TestA::test_b[1]") == "test_b"


def test_a_failure_says_what_is_likely() -> None:
    said = symptom("TypeError: unsupported operand type(s) for -: 'list' and 'int'")
    assert "len()" in said
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
