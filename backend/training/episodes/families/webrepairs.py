"""Failing tests of JavaScript and Go projects: their own command is run, the first frame of the project says
where to read, the values or the error say what is wrong there, and the command is run again.
"""

import re
from dataclasses import dataclass, field, replace

from k3agent.backend.training.episodes import checks, weblogs, weboutput
from k3agent.backend.training.episodes.editing import around, difference, edit_text
from k3agent.backend.training.episodes.families.adding import squeeze
from k3agent.backend.training.episodes.families.repair import not_run
from k3agent.backend.training.episodes.families.running import (
    COMMANDS,
    NODE_TEST,
    manifest,
    output_of,
    own_command,
    run_installed,
)
from k3agent.backend.training.episodes.families.web import NOT_RUN, new_project
from k3agent.backend.training.episodes.policy import View, one_definition, open_file
from k3agent.backend.training.episodes.programs import Said, Turning
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Play, Report, Session
from k3agent.backend.training.episodes.testruns import PYTEST, STOP
from k3agent.backend.training.episodes.webbugs import BodyFunc, draw_body
from k3agent.backend.training.episodes.webcode import WebFunc, draw_func
from k3agent.backend.training.episodes.weblogs import TestCase, Told, read_run
from k3agent.backend.training.episodes.webproject import WebModule, WebProject, draw_web_project, test_file

BODIES = 0.7
"""Of the functions, those of several lines."""
NO_SCRIPT = 0.12
"""Of the JavaScript projects with node's runner, those that say nowhere how they are tested."""


@dataclass(slots=True)
class Repair:
    """A project with one wrong line, and what its tests print before and after it is mended."""

    project: WebProject
    path: str
    func: WebFunc
    right: str
    """The text of the module without its bug."""
    shown: str = ""
    """What of the failure a report must say."""
    programs: dict[str, Said] = field(default_factory=dict)


def draw_repair(ctx: Setting, language: str = "") -> Repair | None:
    """A project one of whose tests fails."""
    rng, words = ctx.rng, ctx.words
    project = draw_web_project(rng, words, language)
    project.files = {
        path: text for path, text in project.files.items() if not re.search(r"(\.test\.js|_test\.go)$", path)
    }
    module = rng.choice(project.modules)
    func = draw_body(rng, words, project.language) if rng.random() < BODIES else _one_line(ctx, project)
    if func is None:
        return None
    module.functions.insert(rng.randint(0, len(module.functions)), func)
    right = project.text(module)
    project.files[module.path] = project.text(module, func)
    if right == project.files[module.path] or any(
        len(re.findall(rf"\b{func.name}\b", text)) > 1 + project.common for text in project.files.values()
    ):
        return None
    if project.language == "js" and project.runner == "node" and rng.random() < NO_SCRIPT:
        text = project.files["package.json"]
        project.files["package.json"] = re.sub(r',\n  "scripts": \{.*?\n  \}', "", text, flags=re.DOTALL)
    return _with_runs(ctx, project, module, func, right)


def _one_line(ctx: Setting, project: WebProject) -> WebFunc:
    """A function of one line whose comment says what it returns."""
    func = draw_func(ctx.rng, ctx.words, project.language)
    func.documented = True
    return func


def _with_runs(
    ctx: Setting, project: WebProject, module: WebModule, func: WebFunc, right: str
) -> Repair | None:
    """The tests of the module and what they print."""
    rng = ctx.rng
    if project.language == "js":
        func.title = rng.choice(
            ("", "", f"returns {func.described}", ctx.words.phrase(), f"{func.name} works")
        )
    others = [item for item in module.functions if item is not func and item.idea.result != "nums"]
    before = rng.sample(others, min(len(others), rng.choice((0, 1, 1))))
    fresh, line, facts = test_file(project, module, rng, ctx.words, func, before)
    if not fresh or func.idea.result == "nums" or "'" in func.title:
        return None
    path, text = next(iter(fresh.items()))
    rows = text.splitlines()
    head = max(n for n, row in enumerate(rows[:line], 1) if re.match(r"test\(|func Test", row))
    case = TestCase(_title(project, func), path, head, line, 0, facts[1], facts[2])
    tested = [item for item in before if re.search(rf"(?<!\w)(Test)?{item.name}\b.*\{{$", text, re.MULTILINE)]
    case.passing = [item.name for item in tested] if project.language == "js" else []
    case.column = rows[line - 1].find(f"{func.name}(") + 1 if project.language == "js" else line - 1
    if facts[2].startswith(("ReferenceError: ", "TypeError: ", "panic: ", "build: ")):
        if not isinstance(func, BodyFunc) or (project.runner == "jest" and project.language == "js"):
            return None
        below, column = func.raised_at(facts[2])
        start = next(
            n for n, row in enumerate(project.files[module.path].splitlines(), 1) if f"{func.name}(" in row
        )
        case.error, case.raised = facts[2], (func.name, module.path, start + below, column)
    project.files |= fresh
    repair = Repair(project, module.path, func, right)
    repair.shown = func.name if project.language == "go" and case.raised is None else case.error or case.title
    repair.shown = repair.shown.partition(": ")[2] if case.raised else repair.shown
    repair.programs = _programs(ctx, repair, case, text)
    return repair


def _title(project: WebProject, func: WebFunc) -> str:
    return f"Test{func.name}" if project.language == "go" else func.title or func.name


def _programs(ctx: Setting, repair: Repair, case: TestCase, text: str) -> dict[str, Said]:
    """What the commands say that run the tests."""
    rng, project, func = ctx.rng, repair.project, repair.func
    if project.language == "go":
        said = [weblogs.go_run(case, project.package, func.name, failed, rng) for failed in (True, False)]
        # without ./... the tests of the top folder alone are run
        names = (COMMANDS["go.mod"],) if "/" in case.path else (COMMANDS["go.mod"], "go test")
        return {name: _turning(repair, "", *said) for name in names}
    if project.runner == "jest":
        facts = (f"{func.name}(", case.want, case.have)
        failed = weboutput.jest_failure(func, facts, case.path, case.line, text, rng, case.title)
        count = len(case.passing) + 1
        passed = (
            f"PASS {case.path}\n\nTest Suites: 1 passed, 1 total\nTests:       {count} passed, {count} total"
        )
        said = [failed, passed]
    else:
        write = weblogs.node_tap if rng.random() < 0.5 else weblogs.node_spec
        said = [write(case, project.common, failed, rng) for failed in (True, False)]
    runner = "jest" if project.runner == "jest" else NODE_TEST
    version = re.search(r'"version": "(.+)"', project.files["package.json"])
    head = f"\n> {project.package}@{version[1]} test\n> {runner}\n\n" if version else ""
    programs: dict[str, Said] = {}
    if '"test":' in project.files["package.json"]:
        programs["npm test"] = _turning(repair, head, *said)
    programs["npx jest" if runner == "jest" else NODE_TEST] = _turning(repair, "", *said)
    return programs


def _turning(repair: Repair, head: str, failed: str, passed: str) -> Turning:
    ends = (f"{head}{failed}\n[exit code 1]", f"{head}{passed}\n[exit code 0]")
    return Turning(repair.path, repair.right, *ends)


def play_repair(session: Session, repair: Repair, think: str, command: str) -> tuple[str, str]:
    """Run the command, read where its output leads, change the line, run it again."""
    result = session.call("shell", think, command=command)
    if result.is_error:
        raise not_run(result, f"run `{command}`")
    text = result.text
    code = output_of(text)[1]
    if code == 0:
        raise Report("Nothing fails.", f"The tests pass (`{command}`). There was nothing to fix.")
    said = read_run(text)
    if said is None:
        raise Report("I see no place.", f"The tests fail (`{command}`), but I see no place in the project.")
    told = _mend(session, repair, said)
    rows, code = run_installed(session, f"The diff is right. Run {command} again.", command)
    if code:
        raise Report("It still fails; I stop.", f"Changed: {told}. The tests still fail (`{command}`).")
    last = next((item.strip() for item in reversed(rows) if re.search(r"\b(pass|passed|ok)\b", item)), "")
    return "Exit code 0: they pass.", f"Fixed: {told}. The tests pass now (`{command}`): `{last}`."


def _mend(session: Session, repair: Repair, said: Told) -> str:
    """Go to the function that the output leads to and change its line; what was changed."""
    view = _to_the_function(session, repair, said)
    number, row = _wrong_line(view, repair.func)
    old, new = row.strip(), repair.func.line()
    why = _why(repair.func)
    think = f"{_sentence(said.error)} {why} Line {number} has {old} {difference(old, new)}: {new}"
    edit_text(session, view.path, old, new, think, line=number)
    return f"`{old}` became `{new}` in `{view.path}` (line {number})"


def _sentence(error: str) -> str:
    return error if error.endswith(".") else f"{error}."


def _why(func: WebFunc) -> str:
    """What decides for the change."""
    if isinstance(func, BodyFunc):
        return f"{func.why[0].upper() if func.why.startswith(_PROSE) else func.why[0]}{func.why[1:]}."
    return f"The comment says that it returns {func.described}."


_PROSE = (
    "a ",
    "above ",
    "an ",
    "at ",
    "even ",
    "from ",
    "how ",
    "it ",
    "lists ",
    "nothing ",
    "over ",
    "percent ",
    "reduced ",
    "the ",
    "times ",
    "where ",
)
"""What begins so is prose, and gets a capital; all else begins with code."""


def _wrong_line(view: View, func: WebFunc) -> tuple[int, str]:
    start = next(n for n, row in view.lines if re.search(rf"func(tion)? {func.name}\(", row))
    start += func.at if isinstance(func, BodyFunc) else 0
    return next((n, row) for n, row in view.lines if n > start and row.strip() == func.line(wrong=True))


def _to_the_function(session: Session, repair: Repair, said: Told) -> View:
    """Go from the output to the function, by its frame or by what the test calls."""
    name, project = repair.func.name, repair.project
    what = f"{said.title} fails: {_sentence(said.error)}" if said.title else _sentence(said.error)
    is_test = bool(re.search(r"(\.test\.js|_test\.go)$", said.path))
    own = " Places with node: are not ours." if project.language == "js" and project.runner == "node" else ""
    place = f"The first place in the project is {said.path}:{said.line}"
    if not is_test:
        return _inside(session, said.path, said.line, f"{what} {place}.{own} Read it.", name)
    if (name in said.title and project.language == "go") or said.title == name:
        think = f"{what} {place}, a test.{own} It tests {name}. Find {name}."
    else:
        view = around(session, said.path, said.line, f"{what} {place}, a test.{own} What does it call?")
        row = next((row.strip() for n, row in view.lines if n == said.line), "")
        think = f"Line {said.line} has {row} It calls {name}. Find {name}."
    _, hit = one_definition(session, name, think)
    view = around(session, hit.path, hit.line, f"It is at {hit.at}. Read it.", 4)
    return view


def _inside(session: Session, path: str, line: int, think: str, name: str) -> View:
    """Read around a line of a function, from its head on."""
    start = max(1, line - session.rng.randint(9, 14))
    view = open_file(session, path, think, offset=start, limit=line - start + session.rng.randint(6, 16))
    if any(re.search(rf"func(tion)? {name}\(", row) for _, row in view.lines):
        return view
    _, hit = one_definition(session, name, f"Where does {name} begin?")
    return around(session, hit.path, hit.line, f"It is at {hit.at}. Read it.", line - hit.line + 4)


def with_programs(programs: dict[str, Said], play: Play) -> Play:
    """A task on a computer that has these programs."""

    def whole(session: Session) -> tuple[str, str]:
        session.box.machine.programs = programs
        try:
            return play(session)
        finally:
            session.box.machine.programs = {}

    return whole


def _plan(repair: Repair, name: str, slots: dict[str, str], play: Play) -> Plan:
    """The files become those of the project without its bug, and the answer says that the tests pass."""

    def check(outcome: Outcome) -> str | None:
        if squeeze(outcome.after.get(repair.path, "")) != squeeze(repair.right):
            return f"{repair.path} is not repaired"
        return checks.unchanged(outcome, repair.path) or checks.says(outcome, "pass")

    prepare = new_project(dict(repair.project.files))
    whole = with_programs(repair.programs, play)
    return Plan(name, "web", slots, whole, check, prepare=prepare, alone=True, programs=repair.programs)


@goal("web_fix_tests", "web", 2.6, level=1)
def web_fix_tests(ctx: Setting) -> Plan | None:
    """Make the tests pass where nothing says what kind of project it is."""
    repair = draw_repair(ctx)
    if repair is None:
        return None

    def play(session: Session) -> tuple[str, str]:
        return play_repair(session, repair, *_found_command(session))

    return _plan(repair, "fix_tests", {}, play)


def _found_command(session: Session) -> tuple[str, str]:
    """Try pytest, as in most projects; where it finds nothing or is not there, look at the project."""
    command = PYTEST.replace("python", session.box.machine.python, 1) + STOP
    result = session.call("shell", "Fix the failing tests. Run them first.", command=command)
    if result.is_error:
        raise not_run(result, "run the tests")
    is_there = "no tests ran" in result.text
    path = manifest(session, "pytest finds none." if is_there else "There is no pytest here.")
    if not path:
        raise Report(
            "It is none.", "I find no tests in this project: pytest found none. Nothing was changed."
        )
    return own_command(session, path)


LANGUAGES = {"js": ("JavaScript", "JS", "node", "Node.js", "javascript"), "go": ("Go", "Go", "golang", "go")}


@goal("web_fix_lang_tests", "web", 2.6, level=1)
def web_fix_lang_tests(ctx: Setting) -> Plan | None:
    """Make the tests of a named language pass."""
    repair = draw_repair(ctx)
    if repair is None:
        return None
    language = ctx.rng.choice(LANGUAGES[repair.project.language])

    def play(session: Session) -> tuple[str, str]:
        return play_repair(session, repair, *named_command(session, language, repair.project.language))

    return _plan(repair, "fix_lang_tests", {"lang": language}, play)


def named_command(session: Session, said: str, language: str) -> tuple[str, str]:
    """The command where the language is named."""
    if language == "go":
        return f"{said} tests: {COMMANDS['go.mod']}", COMMANDS["go.mod"]
    think = f"{said} tests, not pytest: what is scripts.test of package.json?"
    row = session.call("grep", think, pattern='"test":', path="package.json").text
    match = re.search(r'"test": "(.+?)"', row)
    if match is None:
        return f"There is no scripts.test: {NODE_TEST}", NODE_TEST
    return f"scripts.test is {match[1]}: npm test", "npm test"


@goal("web_fix_runner", "web", 2.0, level=1)
def web_fix_runner(ctx: Setting) -> Plan | None:
    """Make a named command pass."""
    repair = draw_repair(ctx)
    if repair is None:
        return None
    runner = ctx.rng.choice(list(repair.programs))
    think = f"{runner} fails. Run it to see where."
    play = lambda session: play_repair(session, repair, think, runner)  # noqa: E731
    return _plan(repair, "fix_runner", {"runner": runner}, play)


@goal("web_fix_run", "web", 1.6, level=1)
def web_fix_run(ctx: Setting) -> Plan | None:
    """Repair a line, going by a whole run that the user pastes."""
    repair = draw_repair(ctx)
    if repair is None:
        return None
    shown = ctx.rng.choice(list(repair.programs.values()))
    assert isinstance(shown, Turning)
    root = weboutput.home(ctx.rng, ctx.words, repair.project)
    output = shown.before.rpartition("\n")[0].replace(weblogs.ROOT, root).strip("\n")
    said = read_run(output)
    if said is None:
        return None

    def play(session: Session) -> tuple[str, str]:
        return "The diff is right.", f"Fixed: {_mend(session, repair, said)}. {NOT_RUN}"

    plan = _plan(repair, "fix_pasted", {"output": output}, play)
    repaired = plan.check

    def check(outcome: Outcome) -> str | None:
        return repaired(replace(outcome, answer=f"{outcome.answer} pass"))

    plan.check = check
    return plan
