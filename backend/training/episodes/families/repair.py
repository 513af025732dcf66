"""Repairing: run the tests, read the failure, find the function, change the wrong line, run again, report."""

import re
from collections.abc import Sequence
from pathlib import Path

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.bugs import Broken, draw_broken, draw_broken_class, draw_several
from k3agent.backend.training.episodes.editing import around, difference, edit_text, error_of
from k3agent.backend.training.episodes.evidence import evidence
from k3agent.backend.training.episodes.layered import draw_layered
from k3agent.backend.training.episodes.nearby import ONLY_HERE, near_hint
from k3agent.backend.training.episodes.policy import View, one_definition, several
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Play, Report, Session
from k3agent.backend.training.episodes.symptoms import symptom
from k3agent.backend.training.episodes.testnames import beginning, failing_names, note_full_name
from k3agent.backend.training.episodes.testruns import (
    PYTEST,
    STOP,
    STOP_UNITTEST,
    UNITTEST,
    Failure,
    Run,
    parse_run,
)
from k3agent.backend.training.episodes.toolbox import Result
from k3agent.backend.training.episodes.tracing import follow, view_function
from k3agent.backend.training.episodes.trying import (
    Bug,
    Found,
    Search,
    Tried,
    command_of,
    is_evident,
    is_there,
    lead_to,
)
from k3agent.backend.training.episodes.unitbugs import NATURAL_REPAIRS, draw_any, draw_unit_bug
from k3agent.tools.support import textio

LONGEST = 2200
"""Layered code and its tests in one repair: with two test runs around it, more would not fit."""
VAGUE = (
    "gives wrong results",
    "is wrong",
    "does not work",
    "has a bug",
    "has a bug in one line",
    "returns the wrong value",
)
"""What is said of a function where nothing is said of it."""
SEVERAL = 0.16
"""Of the repairs, those with several bugs of one kind of code."""
LONGEST_OF_SEVERAL = 1100
"""The same of code with several bugs."""


def run_tests(
    session: Session, think: str, target: str = "", python: str = "python", *, stop: bool = False
) -> tuple[Run, str]:
    """Run the tests with what works here; the run, and the python that works. `stop`: after one failure."""
    command = PYTEST.replace("python", python, 1) + (STOP if stop else "") + (f" {target}" if target else "")
    result = session.call("shell", think, command=command)
    if result.is_error:
        raise not_run(result, "run the tests")
    if "command not found" in result.text and python == "python":
        return run_tests(session, "There is no python. Try python3.", target, "python3", stop=stop)
    if "[timed out after" in result.lines[-1]:
        raise _endless(result.lines[-1])
    if "No module named pytest" in result.text:
        return _run_unittest(session, target, python, STOP_UNITTEST if stop else ""), python
    return parse_run(result.text), python


def _run_unittest(session: Session, target: str, python: str, flags: str) -> Run:
    """The same with unittest, where there is no pytest."""
    module = "" if target.startswith("-k ") else target.split("::")[0].removesuffix(".py").replace("/", ".")
    flags += f" {target}" if target.startswith("-k ") else ""
    base = UNITTEST.replace("python", python, 1)
    command = f"{base}{flags}" + (f" {module}" if module else "")
    result = session.call("shell", "There is no pytest. Try unittest.", command=command)
    if "[timed out after" in result.lines[-1]:
        raise _endless(result.lines[-1])
    if "Ran 0 tests" in result.text and not module:
        command = f"{base} discover -s tests -t .{flags}"
        result = session.call("shell", "It found none. Look in tests.", command=command)
    if "Ran 0 tests" in result.text or "Start directory is not importable" in result.text:
        raise Report(
            "unittest finds no tests; they need pytest.",
            "I could not run the tests: pytest is not installed here and unittest finds none."
            " Nothing was changed.",
        )
    return parse_run(result.text)


def not_run(result: Result, what: str) -> Report:
    """The report of a command that was not run: not allowed, or what else the tool said."""
    if "permission denied" in result.text:
        return Report(
            "The shell is not allowed.",
            f"I may not run commands here, so I could not {what}. Nothing was changed.",
        )
    return Report(
        "The command was not run. Say why.", f"I could not {what}: {error_of(result)} Nothing was changed."
    )


def _endless(last: str) -> Report:
    """The tests were killed: whether they pass is not known."""
    limit = last.strip("[]").removeprefix("timed out after ").split(";")[0]
    return Report(
        "They did not end and were killed. Say so.",
        f"The tests did not end: they were killed after {limit}, so I do not know whether they pass."
        " Nothing was changed.",
    )


def mend(session: Session, view: View, broken: Broken, why: str) -> None:
    """Change the wrong line to the right one."""
    wrong, right = broken.wrong, broken.right
    hint = "" if f" {ONLY_HERE} " in why else near_hint(view, broken.line, wrong.strip(), right.strip())
    why += hint or _purpose(view, broken.line)
    if wrong.lstrip() == right.lstrip():
        think = f"{why} Line {broken.line} is indented wrongly: {wrong.strip()}. It belongs further out."
        old, new = wrong, right
    else:
        old, new = wrong.strip(), right.strip()
        think = f"{why} Line {broken.line} has {old}. {difference(old, new)}: {new}"
    if (
        broken.tests
        and not hint
        and session.rng.random() < 0.02
        and not broken.bug.is_syntax
        and not session.box.machine.edits_denied
    ):
        wrong_turn(session, view, broken, why)
        old = session.edits[-1][2]
        around(session, view.path, broken.line, "That did not help. Read it again.")
        think = f"Another cause then. Line {broken.line} has {old}. {difference(old, new)}: {new}"
    edit_text(session, view.path, old, new, think, line=broken.line)


def change_of(broken: Broken) -> str:
    """What was changed, for the report."""
    wrong, right = broken.wrong.strip(), broken.right.strip()
    return f"`{right}` was indented too far" if wrong == right else f"`{wrong}` became `{right}`"


def _purpose(view: View, line: int) -> str:
    """What the docstring above a line says that the function does, as a thought."""
    above = [text.strip() for number, text in view.lines if number < line]
    while above:
        text = above.pop()
        if re.match(r"(async )?def ", text):
            return ""
        match = re.match(r"(\"{3}|'{3})([A-Z].{3,90}?)\.?(\1|$)", text)
        if match and above and re.match(r"(async )?def ", above[-1]):
            return f" It should do this: {match[2]}."
    return ""


def wrong_turn(session: Session, view: View, broken: Broken, why: str, command: str = "") -> Result:
    """A first attempt that does not help; nothing is learned from it, only from the way out. What the run
    after it showed.
    """
    old = broken.wrong.strip()
    for before, after in (
        ("+", "*"),
        ("-", "*"),
        ("<", "=="),
        (">", "=="),
        ("==", "<"),
        ("return ", "return not "),
        ("= ", "= 1 + "),
    ):
        if before in old:
            new = old.replace(before, after, 1)
            if new not in (old, broken.right.strip()):
                break
    else:
        new = old + "  # checked"
    session.call(
        "edit",
        f"{why} Line {broken.line} has {old}. Try {new}.",
        learn=False,
        path=view.path,
        old=old,
        new=new,
        line=broken.line,
    )
    if command:
        return session.call("shell", f"Run it again: {command}", command=command)
    command = PYTEST.replace("python", session.box.machine.python, 1) + STOP
    return session.call("shell", "Run the tests again.", command=command)


def reason(failure: Failure) -> str:
    """What failed, and what that says, in a few words."""
    said = f"{failure.error}." if failure.error and len(failure.error) < 100 else "It fails."
    return " ".join(filter(None, (said, symptom(failure.error))))


def told(view: View, broken: Broken, failure: Failure) -> str:
    """What failed, and what decides for the change of the wrong line."""
    wrong, right = broken.wrong.strip(), broken.right.strip()
    is_near = near_hint(view, broken.line, wrong, right)
    clue = "" if is_near else evidence(view.lines, broken.line, wrong, right, failure)
    return " ".join(filter(None, (lead_to(reason(failure), symptom(failure.error), clue), clue)))


def locate(session: Session, failure: Failure, left: list[Broken]) -> Found:
    """Go to where the failure comes from. Where the error does not name its cause, small changes are tried at
    each function that is read.
    """
    name, view = view_function(session, failure)
    search = None if is_evident(failure) else Search(session, left, command_of(session, failure), failure)
    ends = search.ends_at if search else lambda seen, _: is_there(left, seen)
    if not (search.ends_at(view, name, reason(failure)) if search else is_there(left, view)):
        name, view = follow(session, failure, name, view, ends) or (name, view)
    seen = [item for item in left if is_there([item], view)]
    broken = next((item for item in seen if item.func.name == name), seen[0] if seen else None)
    tried = search.tried if search else None
    if tried is not None:
        text = textio.load(Path(session.box.workspace.root, tried.path), tried.path).view
        broken = next((item for item in left if item.path == tried.path and item.works(text)), broken)
    return Found(name, view, broken, tried)


def play_found(
    session: Session, found: Found, failure: Failure, *, may_stop: bool = False
) -> tuple[int, str]:
    """Change the line where no small change helped; the line, and what was changed. Raises Report where the
    bug is not in view, or nothing says what to do.
    """
    if found.tried is not None:
        return found.tried.line, found.tried.said
    view, broken = found.view, found.broken
    start = f"`{failure.name}` fails: {failure.error}. I could not find the cause in `{view.path}`."
    if broken is None:
        raise Report("I see no bug there.", start)
    if not is_evident(failure) and may_stop and not says_what(view, broken, failure):
        session.gave_up = True
        raise Report("I know no more. Say so.", f"{start} No small change helps. Nothing was changed.")
    mend(session, view, broken, told(view, broken, failure))
    return broken.line, change_of(broken)


def says_what(view: View, broken: Broken, failure: Failure) -> bool:
    """Whether something in view decides for the right change."""
    wrong, right = broken.wrong.strip(), broken.right.strip()
    return bool(
        near_hint(view, broken.line, wrong, right) or evidence(view.lines, broken.line, wrong, right, failure)
    )


def play_fix(
    session: Session, all_broken: list[Broken], task: str, *, wanted: str = "", may_stop: bool = False
) -> tuple[str, str]:
    """The loop for some bugs; `wanted`: the test that the user named; `may_stop`: a search may fail."""
    target = f"-k {wanted}" if wanted else ""
    run, python = run_tests(session, task, target, stop=True)
    if run.ok:
        raise Report("Nothing fails.", f"All tests pass: {run.summary}. There was nothing to fix.")
    if wanted:
        if not run.failures and "deselected" in run.summary:
            raise Report(
                "No test has that name.", f"There is no test `{wanted}`: {run.summary}. Nothing was changed."
            )
        note_full_name(session, run, wanted)
    done: list[str] = []
    mended: list[Broken] = []
    for _ in range(len(all_broken) + 1):
        if run.ok:
            break
        if not run.failures:
            raise Report("I cannot read that.", f"The tests do not run: {run.summary}. Nothing was changed.")
        failure = run.failures[0]
        found = locate(session, failure, [item for item in all_broken if item not in mended])
        more = len(mended) + 1 < len(all_broken)
        line, said = play_found(session, found, failure, may_stop=may_stop and not more)
        think = "The diff is right. Run the tests again."
        if found.tried is not None:
            think, target = "It passes with that. Run all tests.", ""
        run, python = run_tests(session, think, target, python, stop=True)
        if found.broken is not None:
            mended.append(found.broken)
        done.append(f"{said} in `{found.path}` (line {line})")
        if run.ok and target:
            target = ""
            run, python = run_tests(session, "It passes. Now all tests.", "", python, stop=True)
    if not run.ok:
        names = [failure.name for failure in run.failures]
        raise Report(
            "It still fails; I stop.", f"Changed: {'; '.join(done)}. Still failing: {several(names)}."
        )
    return "All pass.", f"Fixed: {'; '.join(done)}. The tests pass now: {run.summary}."


def fixed(all_broken: list[Broken]) -> Check:
    """Every function works, tests and all else are as they were."""

    def check(outcome: Outcome) -> str | None:
        for item in all_broken:
            after = outcome.after.get(item.path, "")
            if not item.works(after):
                return f"{item.func.name} in {item.path} is still wrong"
        for path in {item.path for item in all_broken}:
            if not _near(outcome.before[path], outcome.after[path], 4 * len(all_broken)):
                return f"{path} was changed a lot"
        return checks.unchanged(outcome, *(item.path for item in all_broken))

    return check


def _near(before: str, after: str, limit: int) -> bool:
    """Only a few lines differ."""
    old, new = before.splitlines(), after.splitlines()
    return abs(len(old) - len(new)) <= limit and sum(1 for line in new if line not in old) <= limit


def draw_bugs(ctx: Setting) -> list[Broken] | None:
    """One bug, now and then two or three, in one file or in different ones."""
    several_bugs = draw_several(ctx) if ctx.rng.random() < SEVERAL else None
    if several_bugs and len(several_bugs[0].bad + several_bugs[0].tests) < LONGEST_OF_SEVERAL:
        return several_bugs
    if ctx.rng.random() < NATURAL_REPAIRS and (slip := draw_unit_bug(ctx)):
        return [slip]
    if ctx.rng.random() < 0.4 and (deep := draw_layered(ctx)) and len(deep.bad + deep.tests) < LONGEST:
        return [deep]
    first = draw_broken_class(ctx) if ctx.rng.random() < 0.22 else draw_broken(ctx)
    if first is None:
        return None
    found = [first]
    if ctx.rng.random() < SEVERAL and not first.bug.is_syntax:
        second = draw_broken(ctx)
        if second and {first.path, first.test_path} & {second.path, second.test_path}:
            return found
        texts = first.bad + first.tests + (second.bad + second.tests if second else "")
        if second and len(texts) < LONGEST_OF_SEVERAL and not second.bug.is_syntax:
            found.append(second)
    return found


def repair_plan(
    ctx: Setting,
    name: str,
    slots: dict[str, str],
    play: Play,
    found: list[Broken],
    prompt: str | None = None,
) -> Plan:
    files = {path: text for item in found for path, text in item.files.items()}
    return Plan(
        name,
        "fix",
        slots,
        play,
        fixed(found),
        ("def", found[0].func.name),
        prompt,
        prepare=lambda current: current.update(files),
    )


@goal("fix_tests", "fix", 5.0)
def fix_tests(ctx: Setting) -> Plan | None:
    """Make the failing tests pass."""
    found = draw_bugs(ctx)
    if found is None:
        return None
    return repair_plan(
        ctx,
        "fix_tests",
        {},
        lambda s: play_fix(s, found, "Fix the failing tests. Run them first.", may_stop=True),
        found,
    )


@goal("fix_test_named", "fix", 2.5)
def fix_test_named(ctx: Setting) -> Plan | None:
    """Make one named test pass."""
    broken = draw_any(ctx)
    if broken is None:
        return None
    names = [broken.failing] if broken.failing else failing_names(broken)
    if not names or broken.bug.is_syntax:
        return None
    name = names[0]
    if ctx.rng.random() < 0.06:
        name = f"test_{ctx.unused(ctx.words.function)}"
        task = f"Make {name} pass. Run it first."
        plan = repair_plan(
            ctx,
            "fix_test_named",
            {"test_name": name},
            lambda s: play_fix(s, [broken], task, wanted=name),
            [broken],
        )
        plan.check = checks.declines(name)
        return plan
    if ctx.rng.random() < 0.3:
        name = beginning(ctx.rng, name, broken.tests)
    task = f"Make {name} pass. Run it first."
    return repair_plan(
        ctx,
        "fix_test_named",
        {"test_name": name},
        lambda s: play_fix(s, [broken], task, wanted=name, may_stop=True),
        [broken],
    )


def play_known(session: Session, broken: Broken, task: str, *, vague: bool = False) -> tuple[str, str]:
    """The function is named: read it, change it, run the tests that there are."""
    name, hit = one_definition(session, broken.func.name, f"{task} Find its definition.")
    view = around(session, hit.path, hit.line, f"It is at {hit.at}. Read it.")
    return repair_and_run(session, view, broken, name, "", vague=vague)


def repair_and_run(
    session: Session,
    view: View,
    broken: Broken,
    name: str,
    why: str,
    *,
    vague: bool = False,
    decided: bool = False,
) -> tuple[str, str]:
    """Change the line, run the tests, report both. `vague`: only the tests can say what is wrong; `decided`:
    `why` says what to change, where no test can be tried.
    """
    if vague:
        return _by_tests(session, view, broken, name)
    why = why or f"{name} is wrong."
    if broken.tests and session.box.machine.python == "python" and session.box.machine.has_pytest:
        run, _ = run_tests(session, f"{why} See what the tests say.", stop=True)
        if run.failures:
            return _after_tests(session, view, broken, name, run.failures[0], why if decided else "")
    return change_and_run(session, view, broken, name, why)


def _by_tests(session: Session, view: View, broken: Broken, name: str) -> tuple[str, str]:
    """Nobody said what is wrong: the tests must; where none fails, nothing is changed."""
    run, _ = run_tests(session, f"{name} is wrong. See what the tests say.", stop=True)
    if not run.failures:
        last = view.lines[-1][0]
        return nothing_evident(name, view.path, view.lines[0][0], last, f"The tests pass: {run.summary}.")
    return _after_tests(session, view, broken, name, run.failures[0])


def try_at(session: Session, left: Sequence[Bug], view: View, name: str, failure: Failure) -> Tried | None:
    """Try small changes of the function in view with the test that has just failed."""
    return Search(session, left, command_of(session, failure), failure).attempt(view, name, reason(failure))


def _after_tests(
    session: Session, view: View, broken: Broken, name: str, failure: Failure, why: str = ""
) -> tuple[str, str]:
    """The tests have failed: try small changes, or change what `why` says, else what the error names."""
    why, tried = why or told(view, broken, failure), None
    if not is_evident(failure):
        tried = try_at(session, [broken], view, name, failure)
    return change_and_run(session, view, broken, name, why, tried)


def nothing_evident(name: str, path: str, first: int, last: int, tests: str) -> tuple[str, str]:
    """Last thought and answer where reading and tests do not say what is wrong: nothing is guessed."""
    return (
        "Neither the code nor a test says what is wrong. A guess could break it: ask.",
        f"I read `{name}` in `{path}` (lines {first} to {last}) and see nothing evidently wrong. {tests}"
        " Nothing was changed. What do you call it with, what comes back, and what should come back?",
    )


def change_and_run(
    session: Session, view: View, broken: Broken, name: str, why: str, tried: Tried | None = None
) -> tuple[str, str]:
    """Change the line, if no search has done so, run the tests, report both."""
    if tried is None:
        mend(session, view, broken, why)
    think = "It passes with that. Run all tests." if tried else "The diff is right. Run the tests."
    where = tried.place(view, name) if tried else f"`{name}` in `{view.path}` (line {broken.line})"
    place = f"{where}: {tried.said if tried else change_of(broken)}."
    what = f"Changed {place}"
    try:
        run = run_tests(session, think, stop=True)[0]
    except Report:
        return "I could not run the tests.", f"{what} I could not run the tests here."
    if run.ok:
        return "All pass.", f"Fixed {place} The tests pass: {run.summary}."
    if "no tests ran" in run.summary:
        return "There are no tests.", f"{what} There are no tests to run."
    names = [failure.name for failure in run.failures]
    return "Some fail; say so.", f"{what} Still failing: {several(names)}."
