"""Running some of the tests: one by name, those with a word, by unittest, in a folder that is not there."""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.families.look import names_in
from k3agent.backend.training.episodes.families.repair import not_run, run_tests
from k3agent.backend.training.episodes.families.roles import said_of_part
from k3agent.backend.training.episodes.families.running import told
from k3agent.backend.training.episodes.policy import quoted
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Report, Session
from k3agent.backend.training.episodes.testruns import parse_run
from k3agent.backend.training.episodes.words import pascal
from k3agent.backend.training.wordings.noise import dress

ONE = (
    "run {}",
    "run only {}",
    "run just the test {}",
    "run the test {} and nothing else",
    "does {} pass?",
    "does the test {} pass",
    "is {} green?",
    "is {} failing?",
    "execute {} only",
    "start the single test {}",
    "check the test {}, do not change anything",
    "only run {} please",
    "I want to see the result of {}",
    "what does {} say when you run it?",
    "try {} alone",
    "pytest -k {}",
    "run pytest for {}",
    "tell me whether {} passes",
    "how is {} doing, run it",
    "let {} run once",
    "can you run {} for me?",
    "just {}, no other tests",
    "run {} on its own",
    "only {}, please run it",
    "I need to know if {} is red",
    "run {} and leave the rest",
    "see if {} works",
    "run test {}",
    "is {} red or green? Run it",
    "not all tests, {} alone",
    "{}: run it and tell me",
)
WORD = (
    "run the tests with {} in their name",
    "run all tests that have {} in the name",
    "run only the {} tests",
    "run pytest -k {}",
    "use -k {} and tell me the result",
    "run the tests matching {}",
    "only the tests about {} please, run them",
    "do the tests for {} pass?",
    "are the {} tests green?",
    "execute the tests whose names contain {}",
    "just run the ones named {}",
    "which {} tests pass? Run them",
    "filter the tests by {} and run them",
    "run what matches {}",
    "test only {}",
    "run the tests called something with {}",
    "run those tests whose name has {}",
    "run tests named like {}",
    "only tests with {} in the name, please",
    "pytest -k {}, what comes out?",
    "run every test with {} in it",
    "start all tests that are called {} or the like",
    "leave the other tests, run those named after {}",
    "the tests named {}: do they pass?",
    "any test with {} in its name should be run",
    "I only care about the tests named with {}, run these",
    "what do the tests with {} in their names say?",
    "how do the {} tests do? Run only those",
    "not all tests, those that match {}",
    "run them, but only where the name has {}",
)
FOLDER = (
    "run the tests in {}",
    "run the tests under {}",
    "run pytest {}",
    "execute everything in {}",
    "run all tests of the folder {}",
    "do the tests in {} pass?",
    "are the tests below {} green?",
    "start the tests from {}",
    "only the tests in {} please",
    "test {} and report",
    "can you run the tests in the directory {}?",
    "run only {}",
)
UNITTEST = (
    "run python -m unittest {}",
    "run unittest on {}",
    "run {} with unittest",
    "use unittest, not pytest, for {}",
    "execute python -m unittest {} and tell me what it says",
    "what does python -m unittest {} say?",
    "do the unittests in {} pass?",
    "start unittest for {}",
    "please run {} through unittest",
    "test {} by python -m unittest",
    "I use unittest here: run {}",
    "unittest {}",
)
_HINDERED = re.compile(r"(may not|could not|cannot) run|not installed")
_FAILED = re.compile(r"\bfail(s|ed|ing|ures?)?\b", re.IGNORECASE)
_NONE_FAILED = re.compile(
    r"\b(0|no|none|nothing|not|never|without|(does|do|did|is|are)n't)\b( \w+){0,2} fail\w*", re.IGNORECASE
)


def _request(ctx: Setting, texts: tuple[str, ...], what: str) -> str:
    """A request with a name that stays as it is."""
    before, _, after = said_of_part(texts, ctx.words, ctx.rng).partition("{}")
    return dress([before, what, after], [not before, True, not after], False, False, ctx.rng)


def _judged(*needles: str, fails: bool = False) -> Check:
    """Nothing changed, the answer says this and tells of failures only where there are some; or that
    nothing could be run.
    """

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        if _HINDERED.search(outcome.answer):
            return None
        if fails != bool(_FAILED.search(_NONE_FAILED.sub("", outcome.answer))):
            return "the answer tells the opposite"
        return checks.says(outcome, *needles)

    return check


@goal("run_some", "run", 2.0)
def run_some(ctx: Setting) -> Plan | None:
    """One test by its name, or those that have a word in theirs; a failing one is put in at times."""
    rng, words = ctx.rng, ctx.words
    label = words.noun()
    names = list(dict.fromkeys(f"test_{label}_{words.noun()}" for _ in range(rng.randint(2, 4))))
    bad = rng.choice(names) if rng.random() < 0.45 else ""
    rows: list[str] = []
    for name in names:
        one, two = rng.randint(2, 60), rng.randint(2, 60)
        rows += ["", "", f"def {name}():", f"    assert {one} + {two} == {one + two + (name == bad)}"]
    folder = rng.choice(("", "tests/" if any(path.startswith("tests/") for path in ctx.facts.files) else ""))
    path = f"{folder}test_{ctx.unused(words.noun)}.py"
    if path in ctx.facts.files or any(label in text for text in ctx.facts.files.values()) or label in path:
        return None
    if any(label in other for other in ctx.facts.files):
        return None
    one = rng.random() < 0.6
    wanted = rng.choice(names) if one else label
    missing = rng.random() < 0.12
    if missing:
        wanted = f"test_{ctx.unused(words.noun)}" if one else ctx.unused(words.noun)
    if one and not missing and sum(name.startswith(wanted) for name in names) > 1:
        return None
    chosen = [] if missing else [name for name in names if wanted in name]
    fails = bad in chosen

    def play(session: Session) -> tuple[str, str]:
        task = f"Run only {wanted}." if one else f"Run the tests with {wanted} in their names."
        run, _ = run_tests(session, f"{task} -k chooses by name.", f"-k {wanted}")
        if run.failures:
            return told(run)
        if run.ok and "Ran 0" not in run.summary:
            said = f"`{wanted}` passes" if one else f"The tests with `{wanted}` in their names pass"
            return f"Passed: {run.summary}.", f"{said}: {run.summary}."
        return "No test was chosen.", f"No test has `{wanted}` in its name: {run.summary}. Nothing was run."

    check = _judged("no test") if missing else _judged(bad, fails=True) if fails else _judged(wanted, " pass")
    return Plan(
        "run_some",
        "run",
        {"name": wanted},
        play,
        check,
        prompt=_request(ctx, ONE if one else WORD, wanted),
        prepare=lambda files: files.update({path: "\n".join(rows[2:]) + "\n"}),
    )


@goal("run_nowhere", "run", 0.7)
def run_nowhere(ctx: Setting) -> Plan | None:
    """The tests of a folder that does not exist: say where tests are."""
    rng, words = ctx.rng, ctx.words
    folder = rng.choice(("tests/unit", "tests/integration", "test", "spec", f"{words.noun()}/tests", "tests"))
    folder += rng.choice(("", "", "/"))
    bare = folder.rstrip("/")
    if any(path.startswith(f"{bare}/") for path in ctx.facts.files):
        return None

    def play(session: Session) -> tuple[str, str]:
        rows = names_in(
            session.call("glob", f"Run the tests in {folder}. Is it there?", pattern=f"{bare}/**").text
        )
        if rows:
            return told(run_tests(session, f"It is there. Run {bare}.", bare)[0])
        think = f"There is no folder {bare}. Where are tests?"
        found = names_in(session.call("glob", think, pattern="**/{test_*,*_test}.py").text)
        where = f"Tests are in {quoted(found)}." if found else "I find no tests in this project."
        return "Nothing to run. Say so.", f"There is no folder `{bare}`. {where} Nothing was run."

    return Plan(
        "run_nowhere",
        "run",
        {"dir": folder},
        play,
        checks.declines(bare),
        prompt=_request(ctx, FOLDER, folder),
    )


@goal("run_unittest", "run", 1.0)
def run_unittest(ctx: Setting) -> Plan | None:
    """python -m unittest for one module: the counts as printed."""
    rng, words = ctx.rng, ctx.words
    module = f"test_{ctx.unused(words.noun)}"
    names = list(dict.fromkeys(f"test_{words.noun()}" for _ in range(rng.randint(1, 4))))
    bad = rng.choice(names) if rng.random() < 0.4 else ""
    rows = ["import unittest", "", "", f"class Test{pascal([words.noun()])}(unittest.TestCase):"]
    for number, name in enumerate(names):
        one, two = rng.randint(2, 60), rng.randint(2, 60)
        rows += [""] if number else []
        rows += [f"    def {name}(self):"]
        rows += [f"        self.assertEqual({one} * {two}, {one * two + (name == bad)})"]
    if f"{module}.py" in ctx.facts.files:
        return None

    def play(session: Session) -> tuple[str, str]:
        command = f"python -m unittest {module}"
        result = session.call("shell", f"Run unittest on {module}.", command=command)
        if "command not found" in result.text and not result.is_error:
            result = session.call(
                "shell", "There is no python. Try python3.", command=f"python3 -m unittest {module}"
            )
        if result.is_error:
            raise not_run(result, "run the tests")
        if "Ran " not in result.text:
            raise Report("It did not run.", f"unittest did not run `{module}`: {result.lines[-2]}")
        return told(parse_run(result.text))

    count = f"Ran {len(names)} test"
    shown = rng.choice((module, module, f"{module}.py"))
    return Plan(
        "run_unittest",
        "run",
        {"name": shown},
        play,
        _judged(count, bad, fails=True) if bad else _judged(count, "pass"),
        prompt=_request(ctx, UNITTEST, shown),
        prepare=lambda files: files.update({f"{module}.py": "\n".join(rows) + "\n"}),
    )
