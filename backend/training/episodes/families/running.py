"""Running tests, scripts and commands; git questions."""

import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.families.look import bullet_list, names_in
from k3agent.backend.training.episodes.families.repair import draw_bugs, run_tests
from k3agent.backend.training.episodes.policy import base_name, same_file
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session
from k3agent.backend.training.episodes.testruns import Run
from k3agent.backend.training.episodes.weblogs import read_run

COMMANDS = {"package.json": "npm test", "go.mod": "go test ./..."}
"""The file that says how a project is tested, and the command."""
NODE_TEST = "node --test"
"""The same without a script of its own."""
MAX_SHOWN = 12


def told(run: Run) -> tuple[str, str]:
    """The report of a test run."""
    if run.ok:
        return "All pass.", f"All tests pass: {run.summary}."
    if not run.failures:
        return "No test ran.", f"No test ran: {run.summary}."
    rows = [f"`{item.name}`: {item.error or 'failed'}" for item in run.failures]
    return f"{len(rows)} failed.", f"The tests fail: {run.summary}.\n{bullet_list(rows, 10)}"


def play_tests(session: Session, task: str, target: str = "") -> tuple[str, str]:
    """Run and report; where pytest finds no tests at all, those of the project's own command."""
    try:
        run, _ = run_tests(session, task, target)
    except Report as report:
        path = manifest(session, "unittest finds none.") if "unittest finds none" in report.answer else ""
        if not path:
            raise
        return play_own(session, *own_command(session, path))
    if target or run.ok or run.failures or "no tests ran" not in run.summary:
        return told(run)
    path = manifest(session, "pytest finds none.")
    if not path:
        raise Report(
            "It is none.", "I find no tests in this project: pytest found none. Nothing was changed."
        )
    return play_own(session, *own_command(session, path))


def manifest(session: Session, said: str) -> str:
    """The file of a project that is not in Python, where Python's runner finds no tests; or nothing."""
    think = f"{said} Is it a project of another kind?"
    found = names_in(session.call("glob", think, pattern=f"{{{','.join(COMMANDS)}}}").text)
    return next((name for name in COMMANDS if name in found), "")


def own_command(session: Session, path: str) -> tuple[str, str]:
    """What a manifest says of how the project is tested, as a thought, and the command."""
    if path != "package.json":
        return f"{path} is there, so it is Go: {COMMANDS[path]}", COMMANDS[path]
    think = "package.json is there, so it is JavaScript. What is its scripts.test?"
    row = session.call("grep", think, pattern='"test":', path=path).text
    match = re.search(r'"test": "(.+?)"', row)
    if match is None:
        return f"It has no scripts.test: {NODE_TEST}", NODE_TEST
    return f"scripts.test is {match[1]}: {COMMANDS[path]}", COMMANDS[path]


def play_own(session: Session, think: str, command: str) -> tuple[str, str]:
    """Run a project's own tests and report."""
    rows, code = run_installed(session, think, command)
    said = read_run("\n".join(rows)) if code else None
    if said is not None and said.title:
        return f"Exit code {code}: they fail.", f"The tests fail (`{command}`): `{said.title}`: {said.error}."
    if code:
        shown = "\n".join([row for row in rows if row.strip() and row[:2] != "> "][:MAX_SHOWN])
        return f"Exit code {code}: they fail.", f"The tests fail (`{command}`):\n```\n{shown}\n```"
    last = next((row.strip() for row in reversed(rows) if re.search(r"\b(pass|passed|ok)\b", row)), "")
    return "Exit code 0: they pass.", f"The tests pass (`{command}`){f': `{last}`' if last else '.'}"


def _tests_plan(ctx: Setting, name: str, task: str) -> Plan | None:
    found = draw_bugs(ctx) if ctx.rng.random() < 0.55 else None
    if found is None and not ctx.facts.test_paths():
        return None

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        if re.search(r"not (installed|allowed)|may not|could not run|cannot run", outcome.answer):
            return None
        if found is None:
            return checks.says(outcome, "pass")
        names = [item.func.name for item in found]
        lacking = [name for name in names if name not in outcome.answer and "rror" not in outcome.answer]
        return f"the answer does not name a failing test of {lacking}" if lacking else None

    files = {path: text for item in found or [] for path, text in item.files.items()}
    prepare: Callable[[dict[str, str]], None] | None = (
        (lambda current: current.update(files)) if files else None
    )
    return Plan(name, "run", {}, lambda session: play_tests(session, task), check, None, prepare=prepare)


@goal("run_tests", "run", 2.0)
def run_all(ctx: Setting) -> Plan | None:
    """Run the tests."""
    return _tests_plan(ctx, "run_tests", "Run the tests.")


@goal("check_then_report", "run", 1.2)
def check_then_report(ctx: Setting) -> Plan | None:
    """Only tell whether the tests pass."""
    return _tests_plan(ctx, "check_then_report", "Run the tests and only report.")


@goal("run_tests_file", "run", 1.0)
def run_tests_file(ctx: Setting) -> Plan | None:
    """Run one test file."""
    path = ctx.choose(ctx.facts.test_paths())
    if not isinstance(path, str):
        return None
    shown = ctx.path(path)

    def play(session: Session) -> tuple[str, str]:
        target = shown
        if "/" not in target:
            rows = names_in(
                session.call(
                    "glob", f"Run the tests of {target}. Find the file.", pattern=f"**/{target}"
                ).text
            )
            if not rows:
                raise Report(
                    f"There is no {target}.", f"There is no `{target}` in this project. Nothing was run."
                )
            target = rows[0]
        run, _ = run_tests(session, f"Run the tests of {target}.", target)
        if not run.failures and not run.ok and "no tests ran" in run.summary:
            rows = names_in(
                session.call("glob", f"Is {target} elsewhere?", pattern=f"**/{base_name(target)}").text
            )
            if not rows or rows[0] == target:
                raise Report("No test ran.", f"No test ran in `{target}`: {run.summary}.")
            target = rows[0]
            run, _ = run_tests(session, f"It is {target}.", target)
        return told(run)

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        return (
            None
            if re.search(
                r"pass|fail|not installed|could not|may not|no test ran|error", outcome.answer, re.IGNORECASE
            )
            else "no result is told"
        )

    return Plan("run_tests_file", "run", {"path": shown}, play, check, ("file", path))


def run_installed(session: Session, think: str, command: str) -> tuple[list[str], int]:
    """Output lines and exit code of a command whose program need not be there; a report where it is not."""
    result = session.call("shell", think, command=command)
    if result.is_error:
        raise denied(result.text)
    rows, code = output_of(result.text)
    if code == 127:
        raise Report(
            "It is not installed.", f"I could not run `{command}`: {rows[-1] if rows else 'exit 127'}"
        )
    return rows, code


def output_of(text: str) -> tuple[list[str], int]:
    """Output lines and exit code of a shell result."""
    lines = text.split("\n")
    match = re.match(r"\[exit code (-?\d+)\]", lines[-1])
    return lines[:-1], int(match[1]) if match else 1


def tell_output(what: str, text: str) -> tuple[str, str]:
    """The report of a command's output."""
    rows, code = output_of(text)
    if code and rows:
        return f"It ended with exit code {code}.", f"{what} failed with exit code {code}:\n```\n" + "\n".join(
            rows[-6:]
        ) + "\n```"
    if code:
        return f"It ended with exit code {code}.", f"{what} failed with exit code {code} and printed nothing."
    if not rows:
        return "It printed nothing.", f"{what} ran without errors and printed nothing."
    shown = rows[:20]
    tail = f"\nand {len(rows) - 20} more lines." if len(rows) > 20 else ""
    return "Report the output.", f"{what} printed:\n```\n" + "\n".join(shown) + f"\n```{tail}"


def denied(result_text: str) -> Report:
    """The command was not run: not allowed, or what else the tool said."""
    error = result_text.removeprefix("Error: ")
    if "permission denied" in error:
        return Report("The shell is not allowed.", f"I may not run commands here: {error}")
    return Report("The command was not run. Say why.", f"I could not run it: {error}")


def _script(rng: random.Random, ctx: Setting) -> tuple[str, str, list[str]]:
    """A script's text and what it prints."""
    words = ctx.words
    first, second = words.noun(), words.noun()
    number, other = rng.randint(2, 40), rng.randint(2, 40)
    match rng.randrange(5):
        case 0:
            return f"print('{first} {second}')\n", f"{first} {second}", []
        case 1:
            return f"total = {number} * {other}\nprint('{first}:', total)\n", f"{first}: {number * other}", []
        case 2:
            items = [words.noun() for _ in range(3)]
            return f"for item in {items!r}:\n    print(item.upper())\n", items[0].upper(), []
        case 3:
            return f"values = {{'{first}': {number}}}\nprint(values['{second}'])\n", "KeyError", []
    return (
        f"def {first}_{second}(value):\n    return value + {number}\n\n\nif __name__ == "
        f"'__main__':\n    print({first}_{second}({other}))\n",
        str(number + other),
        [],
    )


@goal("run_script", "run", 1.5)
def run_script(ctx: Setting) -> Plan | None:
    """Run a script and tell what it prints."""
    rng = ctx.rng
    text, needle, _ = _script(rng, ctx)
    folder = rng.choice(("", "", "scripts/", *(f"{item}/" for item in ctx.facts.folders[:2])))
    path = f"{folder}{ctx.unused(ctx.words.noun)}.py"
    if path in ctx.facts.files:
        return None
    shown = path if rng.random() < 0.75 or not folder else base_name(path)

    def play(session: Session) -> tuple[str, str]:
        target, python = shown, "python"
        result = session.call("shell", f"Run {target}.", command=f"{python} {target}")
        if "command not found" in result.text:
            python = "python3"
            result = session.call("shell", "There is no python. Try python3.", command=f"{python} {target}")
        if "can't open file" in result.text:
            rows = [
                row
                for row in names_in(
                    session.call("glob", "Not there. Find it.", pattern=f"**/{base_name(target)}").text
                )
                if same_file(target, row)
            ]
            if len(rows) != 1:
                raise Report(
                    f"There is no {target}.", f"There is no `{target}` in this project. Nothing was run."
                )
            target = rows[0]
            result = session.call("shell", f"It is {target}.", command=f"{python} {target}")
        if result.is_error:
            raise denied(result.text)
        return tell_output(f"`{target}`", result.text)

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        return None if re.search(r"(may not|could not) run", outcome.answer) else checks.says(outcome, needle)

    return Plan(
        "run_script",
        "run",
        {"path": shown},
        play,
        check,
        ("file", path),
        prepare=lambda current: current.update({path: text}),
    )


@goal("run_command", "run", 1.5)
def run_command(ctx: Setting) -> Plan | None:
    """Run a given command and tell what it prints."""
    rng, words = ctx.rng, ctx.words
    path = ctx.choose([path for path, text in ctx.facts.files.items() if text.strip() and " " not in path])
    if not isinstance(path, str):
        return None
    number, other = rng.randint(2, 99), rng.randint(2, 99)
    text = words.noun()
    lines = ctx.facts.files[path].splitlines()
    options: list[tuple[str, str]] = [
        (f"echo {text}", text),
        (f"wc -l {path}", str(ctx.facts.files[path].count("\n"))),
        (f'python -c "print({number} * {other})"', str(number * other)),
        (f"head -n 2 {path}", lines[0].strip()),
        (f"tail -n 1 {path}", lines[-1].strip()),
        (f"grep -c . {path}", str(sum(1 for line in lines if line))),
        ("ls", sorted(ctx.facts.files)[0].split("/")[0]),
        (f"cat {path}", lines[0].strip()) if len(lines) < 15 else (f"echo {number}", str(number)),
        (f"ls {text}", "exit code 2"),
        ("false", "exit code 1"),
        ("git --version", "git version"),
        (f"basename {path}", path.rsplit("/", 1)[-1]),
        (f"expr {number} + {other}", str(number + other)),
    ]
    folder = ctx.choose(ctx.facts.folders)
    if isinstance(folder, str) and " " not in folder:
        below = sorted(item for item in ctx.facts.files if item.startswith(f"{folder}/"))
        options += [(f"ls {folder}", below[0][len(folder) + 1 :].split("/")[0])] * 2
    command, needle = rng.choice(options)

    def play(session: Session) -> tuple[str, str]:
        result = session.call("shell", f"Run: {command}", command=command)
        if result.is_error:
            raise denied(result.text)
        if "command not found" in result.text and command.startswith("python "):
            again = command.replace("python", "python3", 1)
            result = session.call("shell", "There is no python. Try python3.", command=again)
        return tell_output(f"`{command}`", result.text)

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        return None if re.search(r"(may not|could not) run", outcome.answer) else checks.says(outcome, needle)

    return Plan("run_command", "run", {"command": command}, play, check)


def _git(root: str, *args: str) -> None:
    subprocess.run(
        [
            "git",
            "-c",
            "user.name=Ana",
            "-c",
            "user.email=ana@example.com",
            "-c",
            "core.hooksPath=/dev/null",
            *args,
        ],
        cwd=root,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _repository(subjects: list[str]) -> Callable[[str], None]:
    def setup(root: str) -> None:
        _git(root, "init", "-q")
        _git(root, "add", "-A")
        for subject in subjects:
            _git(root, "commit", "-q", "--allow-empty", "-m", subject)

    return setup


@goal("last_commits", "run", 0.5, level=1)
def last_commits(ctx: Setting) -> Plan | None:
    """The last commits."""
    is_repo = ctx.rng.random() < 0.75
    subjects = [ctx.words.phrase().capitalize() for _ in range(ctx.rng.randint(1, 3))]

    def play(session: Session) -> tuple[str, str]:
        result = session.call("shell", "Show the last commits.", command="git log --oneline -n 10")
        if result.is_error:
            raise denied(result.text)
        rows, code = output_of(result.text)
        if code:
            raise Report(
                "It is no git repository.",
                f"There is no git history here: {rows[0] if rows else 'git failed'}",
            )
        return f"{len(rows)} commits.", f"The last commits:\n{bullet_list(rows, 10)}"

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        return (
            checks.says(outcome, *subjects)
            if is_repo and not re.search(r"(may|could) not", outcome.answer)
            else None
        )

    return Plan("last_commits", "run", {}, play, check, setup=_repository(subjects) if is_repo else None)


@goal("git_status", "run", 0.5, level=1)
def git_status(ctx: Setting) -> Plan | None:
    """What git says is changed."""
    path = ctx.choose(sorted(ctx.facts.files))
    if not isinstance(path, str):
        return None
    kind = ctx.rng.choice(("clean", "changed", "new", "none"))
    fresh = f"{ctx.unused(ctx.words.noun)}.txt"

    def setup(root: str) -> None:
        if kind == "none":
            return
        _repository(["First"])(root)
        if kind == "changed":
            with Path(root, path).open("a", encoding="utf-8") as file:
                file.write("\n")
        if kind == "new":
            with Path(root, fresh).open("w", encoding="utf-8") as file:
                file.write("\n")

    def play(session: Session) -> tuple[str, str]:
        result = session.call("shell", "Ask git what is changed.", command="git status --short")
        if result.is_error:
            raise denied(result.text)
        rows, code = output_of(result.text)
        if code:
            raise Report(
                "It is no git repository.", f"This is no git repository: {rows[0] if rows else 'git failed'}"
            )
        if not rows:
            return "Nothing.", "Nothing is changed; the working tree is clean."
        return f"{len(rows)} entries.", f"git status shows:\n{bullet_list(rows, 20)}"

    needle = {"clean": "clean", "changed": path, "new": fresh, "none": "git"}[kind]

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        return None if re.search(r"(may|could) not", outcome.answer) else checks.says(outcome, needle)

    return Plan("git_status", "run", {}, play, check, setup=setup)
