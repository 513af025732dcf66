"""After the report k3agent runs the user's check; where it fails, its message comes back: repair, run the
check again, tell the truth about it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.bugs import Broken, draw_broken
from k3agent.backend.training.episodes.editing import around
from k3agent.backend.training.episodes.families.mending import asserting
from k3agent.backend.training.episodes.families.repair import (
    change_of,
    fixed,
    locate,
    mend,
    play_found,
    reason,
    run_tests,
    wrong_turn,
)
from k3agent.backend.training.episodes.families.running import output_of
from k3agent.backend.training.episodes.policy import one_definition
from k3agent.backend.training.episodes.registry import GOALS, Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Session, TooLong, played
from k3agent.backend.training.episodes.testruns import Failure, parse_run
from k3agent.backend.training.episodes.tracing import view_function
from k3agent.backend.training.episodes.trying import Search, is_there
from k3agent.backend.training.episodes.unitbugs import draw_any
from k3agent.backend.training.episodes.wording import say

FIRST = (
    "set_const set_const set_const_in set_key add_line_end add_line_start add_const add_import create_file "
    "replace_text delete_line add_after set_spoken create_file_lines add_bullet"
)
"""Small tasks that come before the check; their checkers look at files only."""
LONGEST_FIRST = 1000
"""So many characters the first task may take: the repair is what the episode is about."""
MESSAGE = "A check of the result failed:\n\n$ {0}\n{1}\n[exit code {2}]\n\nFix the cause, then report."
"""What k3agent says (a test compares the words)."""
LONGEST_CODE = 1000
"""The same of the broken file and its tests."""
SETTINGS = ("pyproject.toml", ".ini", ".cfg", "conftest.py")
"""Files whose change may keep the tests from running."""
COMMANDS = (
    "python -m pytest -q",
    "python -m pytest -q -x",
    "python -m pytest -q --tb=short",
    "python -m pytest -x -q --tb=short",
    "python -m pytest -q --tb=no",
    "pytest -q",
    "pytest -q -x",
    "pytest -q -x --tb=short",
    "python -m pytest -q --no-header --tb=short",
    "pytest -q {path}",
    "python -m pytest {path} -q -x",
)
MISSING = (
    "ruff check .",
    "mypy .",
    "make test",
    "npm test",
    "tox -q",
    "black --check .",
    "flake8",
    "cargo test",
    "go test ./...",
    "nox",
    "pre-commit run --all-files",
)


def first_task(ctx: Setting, files: dict[str, str]) -> Plan | None:
    """A small change elsewhere: none of its words stands in the files of the bug."""
    names = FIRST.split()
    before = dict(ctx.facts.files)
    known = [item.name for item in (*ctx.facts.constants, *ctx.facts.keys)]
    for _ in range(8):
        plan = GOALS[ctx.rng.choice(names)].make(ctx)
        if plan is None or plan.prepare or plan.setup:
            continue
        if any(value.endswith(SETTINGS) for value in plan.slots.values()):
            continue
        if any(value in text for value in plan.slots.values() for text in files.values() if len(value) > 2):
            continue
        # Plans that end in a question or a refusal accept that nothing is done.
        idle = f"No, which one? It is already so: {', '.join(known)}."
        if plan.check(Outcome(before, before, idle)) is not None:
            return plan
    return None


def both(first: Plan, found: list[Broken]) -> Check:
    """The first task is done, and the bug is repaired."""

    def check(outcome: Outcome) -> str | None:
        paths = {item.path for item in found}
        if wrong := fixed(found)(Outcome({**outcome.after, **_of(outcome.before, paths)}, outcome.after, "")):
            return wrong
        return first.check(Outcome(outcome.before, {**outcome.after, **_of(outcome.before, paths)}, "Done."))

    return check


def _of(files: dict[str, str], paths: set[str]) -> dict[str, str]:
    return {path: files[path] for path in paths}


def message_of(session: Session, command: str) -> str:
    """What k3agent says about a check that fails here; an episode where it passes is dropped."""
    result = session.box.call("shell", {"command": command})
    rows, code = output_of(result.text)
    is_run = "pytest" not in command or re.search(r"\d+ (failed|error)", result.text)
    if not code or result.is_error or not is_run:
        raise TooLong
    return MESSAGE.format(command, "\n".join(rows), code)


def asked_again(session: Session, first: Plan, command: str) -> None:
    """The first task is played and reported; the check's message follows."""
    machine = session.box.machine
    if machine.shell_denied or machine.edits_denied or not machine.has_pytest or machine.python != "python":
        raise TooLong
    before = session.size
    think, answer = played(first, session)
    if session.gave_up or session.size - before > LONGEST_FIRST:
        raise TooLong
    session.answer(answer, think)
    session.notes.clear()
    session.user(message_of(session, command))


def last_of(rows: list[str], code: int) -> str:
    """The last words of a command's output."""
    return next((row.strip() for row in reversed(rows) if row.strip()), f"exit code {code}")


def again(session: Session, command: str, done: str) -> tuple[str, str]:
    """Run the check itself and report what it says."""
    result = session.call("shell", f"Now the check itself: {command}", command=command)
    rows, code = output_of(result.text)
    if not code:
        return "It passes.", f"{done} The check `{command}` passes now."
    return "It still fails. Say so.", f"{done} The check `{command}` still fails: {last_of(rows, code)}"


def failure_in(session: Session, command: str, text: str) -> Failure:
    """The first failure that a check's output tells, else that of a test run of one's own."""
    run = parse_run(text)
    if run.failures and run.failures[0].places:
        return run.failures[0]
    run, _ = run_tests(session, f"The check {command} fails. Run the tests to see where.", stop=True)
    if not run.failures:
        raise TooLong
    return run.failures[0]


def repair_checked(session: Session, found: list[Broken], command: str) -> tuple[str, str]:
    """From the message to the bug, and the check again; the report tells what the check says in the end."""
    text = session.messages[-1]["content"].partition(f"$ {command}\n")[2].partition("\n\nFix the cause")[0]
    done: list[str] = []
    left = list(found)
    while True:
        failure = failure_in(session, command, text)
        place = locate(session, failure, left)
        broken = place.broken
        if broken is None:
            # The first task broke something else, which is not what the episode is about.
            raise TooLong
        line, said = play_found(session, place, failure)
        think = f"The diff is right. Run the check again: {command}"
        if place.tried is not None:
            think = f"It passes with that. Now the check itself: {command}"
        text = session.call("shell", think, command=command).text
        left.remove(broken)
        done.append(f"{said} in `{place.path}` (line {line})")
        rows, code = output_of(text)
        if not code:
            return "It passes.", f"Fixed: {'; '.join(done)}. The check `{command}` passes now."
        if not left:
            tail = f"Changed: {'; '.join(done)}."
            return (
                "It still fails. Say so.",
                f"The check `{command}` still fails: {last_of(rows, code)} {tail}",
            )


@dataclass(frozen=True, slots=True)
class Checked:
    """A first task and a check that fails after it."""

    first: Plan
    found: list[Broken]
    command: str

    def plan(self, ctx: Setting, play: Callable[[Session, "Checked"], tuple[str, str]], check: Check) -> Plan:
        """The whole as one plan."""
        files = {path: text for item in self.found for path, text in item.files.items()}
        return Plan(
            "check_failed",
            "fix",
            {},
            lambda session: play(session, self),
            check,
            None,
            say(self.first.goal, self.first.slots, ctx.rng, ctx.words.part),
            prepare=lambda current: current.update(files),
            commands=(self.command,),
        )


def draw_checked(ctx: Setting) -> Checked | None:
    """A bug in new files, a first task elsewhere and the check that shows the bug."""
    broken = draw_any(ctx)
    if broken is None or broken.bug.is_syntax or set(broken.files) & set(ctx.facts.files):
        return None
    first = first_task(ctx, broken.files)
    if first is None or len(broken.bad) + len(broken.tests) > LONGEST_CODE:
        return None
    return Checked(first, [broken], command_for(ctx, broken.test_path))


def command_for(ctx: Setting, test_path: str) -> str:
    """A check that runs the tests. `pytest` alone finds only modules that lie beside them."""
    is_beside = not any("/" in path for path in (test_path, *ctx.facts.test_paths()))
    fits = [one for one in COMMANDS if one.startswith("python") or is_beside]
    return ctx.rng.choice(fits).format(path=test_path)


@goal("check_failed", "fix", 2.0, level=1)
def check_failed(ctx: Setting) -> Plan | None:
    """The check after a small task shows a bug; now and then the first repair is no good."""
    drawn = draw_checked(ctx)
    if drawn is None:
        return None
    is_second = ctx.rng.random() < 0.06

    def play(session: Session, own: Checked) -> tuple[str, str]:
        asked_again(session, own.first, own.command)
        if is_second:
            _in_vain(session, own)
        return repair_checked(session, own.found, own.command)

    return drawn.plan(ctx, play, both(drawn.first, drawn.found))


def _in_vain(session: Session, own: Checked) -> None:
    """A repair that does not help, the honest report of it, and the message once more."""
    text = (
        session.messages[-1]["content"].partition(f"$ {own.command}\n")[2].partition("\n\nFix the cause")[0]
    )
    failure, broken = failure_in(session, own.command, text), own.found[0]
    _, view = view_function(session, failure)
    if not is_there(own.found, view):
        raise TooLong
    edits = len(session.edits)
    wrong_turn(session, view, broken, reason(failure), own.command)
    if len(session.edits) == edits:
        raise TooLong
    _, old, new = session.edits[-1]
    rows, code = output_of(session.messages[-1]["content"])
    if not code:
        raise TooLong
    last = last_of(rows, code)
    session.call(
        "edit", "That did not help. Take it back.", path=view.path, old=new, new=old, line=broken.line
    )
    session.answer(
        f"The check `{own.command}` still fails: {last}. I tried `{new}` in `{view.path}` and took it back.",
        "It still fails. Say so.",
    )
    session.user(message_of(session, own.command))


@goal("check_call", "fix", 0.8, level=1)
def check_call(ctx: Setting) -> Plan | None:
    """The check is a one-line call that must give something."""
    broken = draw_broken(ctx)
    if broken is None or broken.bug.is_syntax or set(broken.files) & set(ctx.facts.files):
        return None
    args, value, _ = broken.failing_case()
    name = broken.func.name
    call = f"{name}({', '.join(map(repr, args))})"
    command = asserting(broken.path, call, value)
    first = first_task(ctx, broken.files)
    if first is None or not command or len(command) > 170:
        return None

    def play(session: Session, own: Checked) -> tuple[str, str]:
        asked_again(session, own.first, command)
        think = f"The check wants {call} to be {value!r}. Find {name}."
        _, hit = one_definition(session, name, think)
        view = around(session, hit.path, hit.line, f"It is at {hit.at}. Read it.")
        tried = Search(session, [broken], command).attempt(view, name, f"{call} must be {value!r}.")
        if tried is None:
            mend(session, view, broken, f"{call} must be {value!r}.")
        said = f"{tried.said if tried else change_of(broken)} in `{tried.path if tried else view.path}`"
        return again(session, command, f"Fixed: {said} (line {tried.line if tried else broken.line}).")

    return Checked(first, [broken], command).plan(ctx, play, both(first, [broken]))


def _untouched(first: Plan, *needles: str) -> Check:
    """Only the first task is done, and the answer says that the check fails and why."""

    def check(outcome: Outcome) -> str | None:
        if wrong := first.check(Outcome(outcome.before, outcome.after, "Done.")):
            return wrong
        if not re.search(r"\b(fails?|failing|cannot|could not|not)\b", outcome.answer):
            return "the answer does not say that the check fails"
        return checks.says(outcome, *needles)

    return check


@goal("check_missing", "fix", 0.5, level=1)
def check_missing(ctx: Setting) -> Plan | None:
    """The check's program is not there: nothing to repair, and the report says so."""
    first = first_task(ctx, {})
    if first is None:
        return None
    command = ctx.rng.choice(MISSING)
    if ctx.words.part != "train" or ctx.rng.random() < 0.4:
        # No computer has these, not even that of an evaluation.
        name = ctx.unused(ctx.words.noun)
        command = ctx.rng.choice(
            (f"{name}-lint .", f"{name} check", f"./scripts/{name}.sh", f"{name}-test -q")
        )
    program = command.split()[0]

    def play(session: Session, own: Checked) -> tuple[str, str]:
        machine = session.box.machine
        if machine.shell_denied or machine.edits_denied:
            raise TooLong
        think, answer = played(own.first, session)
        if session.gave_up:
            raise TooLong
        session.answer(answer, think)
        session.notes.clear()
        shown = f"/bin/sh: 1: {program}: not found"
        session.user(MESSAGE.format(command, shown, 127))
        return (
            f"There is no {program} here. I cannot repair that; say so.",
            f"The check `{command}` cannot run here: `{shown}`. That is no fault of the files, so I changed"
            f" nothing more. Install {program}, or give another check.",
        )

    return Checked(first, [], command).plan(ctx, play, _untouched(first, program))


@goal("check_hopeless", "fix", 0.7, level=1)
def check_hopeless(ctx: Setting) -> Plan | None:
    """A check that no change of the code can satisfy: two looks, then the honest report."""
    rng, words = ctx.rng, ctx.words
    first = first_task(ctx, {})
    if first is None:
        return None
    variable, stem = ctx.unused(words.constant), words.noun()
    test = f"test_{stem}"
    path = f"{'tests/' if any(item.startswith('tests/') for item in ctx.facts.files) else ''}test_{stem}.py"
    if path in ctx.facts.files:
        return None
    body = rng.choice(
        (
            f"assert os.environ.get({variable!r}) == {words.noun()!r}",
            f"assert os.path.exists('/{stem}/{words.noun()}')",
            f"raise RuntimeError('no {stem} server')",
        )
    )
    command = rng.choice(COMMANDS).format(path=path)
    text = f"import os\n\n\ndef {test}():\n    {body}\n"

    def play(session: Session, own: Checked) -> tuple[str, str]:
        asked_again(session, own.first, command)
        text = session.messages[-1]["content"].partition("\n\nFix the cause")[0]
        failure = failure_in(session, command, text)
        if failure.name != test:
            raise TooLong
        name, line, _, _ = failure.places[-1]
        around(session, name, line, f"{failure.error}. Only the test is in the traceback. Read it.")
        return (
            "It needs something outside of these files. I cannot repair that; say so.",
            f"The check `{command}` still fails: `{test}` in `{name}` (line {line}) gives {failure.error}."
            " No code of this project is the cause; it needs something that is not here."
            " I changed nothing for it.",
        )

    plan = Checked(first, [], command).plan(ctx, play, _untouched(first, test))
    plan.prepare = lambda current: current.update({path: text})
    return plan
