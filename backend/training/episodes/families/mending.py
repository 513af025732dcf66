"""More repairs: one wrong case is told, an import is missing, a script prints the wrong thing, tests that
contradict each other.
"""

import random
import re
from dataclasses import dataclass, replace

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.bugs import Broken, draw_broken, fresh_function
from k3agent.backend.training.episodes.concepts import Func
from k3agent.backend.training.episodes.editing import around, difference, edit_text
from k3agent.backend.training.episodes.evidence import evidence
from k3agent.backend.training.episodes.families.questions import run_call
from k3agent.backend.training.episodes.families.repair import (
    change_of,
    fixed,
    mend,
    repair_and_run,
    run_tests,
    try_at,
    wrong_turn,
)
from k3agent.backend.training.episodes.families.running import denied, output_of
from k3agent.backend.training.episodes.mutate import find_bug, with_bug
from k3agent.backend.training.episodes.policy import View, one_definition, open_file, several
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session
from k3agent.backend.training.episodes.symptoms import symptom
from k3agent.backend.training.episodes.testruns import Failure
from k3agent.backend.training.episodes.tracing import view_function
from k3agent.backend.training.episodes.trying import Search

STRAYED = 0.15
"""Of the scripts that are repaired, those where a change that does not help comes first."""


def asserting(path: str, call: str, value: object) -> str:
    """A command that succeeds once a call gives a value; empty where its quotes would not do."""
    module, name = path.removesuffix(".py").replace("/", "."), call.split("(", 1)[0]
    claim = f"assert {call} == {value!r}"
    return (
        "" if any(sign in claim for sign in '"`$\\') else f'python -c "from {module} import {name}; {claim}"'
    )


@goal("fix_case", "fix", 1.6)
def fix_case(ctx: Setting) -> Plan | None:
    """A call, what it should give and what it gives; half of the time without any test."""
    broken = draw_broken(ctx)
    if broken is None or broken.bug.is_syntax:
        return None
    args, value, got = broken.failing_case()
    name = broken.func.name
    call = f"{name}({', '.join(map(repr, args))})"
    if len(call) > 80 or len(got) > 60 or len(repr(value)) > 60 or any(sign in call for sign in '"`$\\*\n'):
        return None
    untested = not ctx.facts.test_paths() and ctx.rng.random() < 0.7
    files = {path: text for path, text in broken.files.items() if not untested or path != broken.test_path}

    def play(session: Session) -> tuple[str, str]:
        task = f"{call} should be {value!r} but is {got}. Find {name}."
        _, hit = one_definition(session, name, task)
        view = around(session, hit.path, hit.line, f"It is at {hit.at}. Read it.")
        if not untested:
            return repair_and_run(session, view, broken, name, f"{call} must be {value!r}.")
        why = f"{call} must be {value!r}."
        command = asserting(view.path, call, value)
        tried = Search(session, [broken], command).attempt(view, name, why) if command else None
        if tried is None:
            mend(session, view, broken, _why_wrong(view, broken, why))
        place = tried.place(view, name) if tried else f"`{name}` in `{view.path}` (line {broken.line})"
        place = f"{place}: {tried.said if tried else change_of(broken)}."
        try:
            shown = run_call(session, view.path, call, "See what the call gives now.")
        except Report:
            return "I could not run it.", f"Changed {place} I could not run it here."
        verb = "Fixed" if shown == repr(value) else "Changed"
        return f"It gives {shown}.", f"{verb} {place} `{call}` gives `{shown}` now."

    slots = {"name": name, "call": call, "value": repr(value), "got": got}
    return Plan(
        "fix_case",
        "fix",
        slots,
        play,
        fixed([broken]),
        ("def", name),
        prepare=lambda current: current.update(files),
    )


@dataclass(frozen=True, slots=True)
class Needy:
    """A function that needs an import: names, parameter, body, the import, one call's result."""

    names: str
    params: str
    body: str
    imported: str
    case: str
    value: str

    @property
    def missing(self) -> str:
        """The name that the import gives."""
        return self.imported.split()[-1]


_ROWS = """
root hypotenuse_root | number | return math.sqrt(number) | import math | 9 | 3.0
floor_of round_down | number | return math.floor(number) | import math | 2.7 | 2
ceil_of round_up | number | return math.ceil(number / 10) | import math | 21 | 3
squash clean_spaces | text | return re.sub(r' +', ' ', text) | import re | 'a  b' | 'a b'
digits only_digits | text | return re.findall(r'[0-9]+', text) | import re | 'a1b22' | ['1', '22']
is_code looks_like_code | text | return bool(re.fullmatch('[A-Z]{3}', text)) | import re | 'ABC' | True
to_json dump_json | data | return json.dumps(data) | import json | [1, 2] | '[1, 2]'
from_json parse_json | text | return json.loads(text) | import json | '[3]' | [3]
middle median_of | numbers | return statistics.median(numbers) | import statistics | [1, 5, 9] | 5
file_name base_of | path | return os.path.basename(path) | import os | 'a/b.txt' | 'b.txt'
ending suffix_of | path | return os.path.splitext(path)[1] | import os | 'a/b.txt' | '.txt'
pairs all_pairs | items | return list(itertools.combinations(items, 2)) | import itertools | [1, 2] | [(1, 2)]
flat flatten | lists | return list(itertools.chain(*lists)) | import itertools | [[1], [2]] | [1, 2]
tally count_of | text | return dict(Counter(text)) | from collections import Counter | 'aa' | {'a': 2}
product multiply | nums | return reduce(lambda a, b: a * b, nums) | from functools import reduce | [2, 3] | 6
day weekday_of | text | return datetime.date.fromisoformat(text).year | import datetime | '2024-05-01' | 2024
stem_of bare_name | path | return Path(path).stem | from pathlib import Path | 'a/b.txt' | 'b'
copy_of duplicate | data | return copy.deepcopy(data) | import copy | [1] | [1]
two_best top_two | numbers | return heapq.nlargest(2, numbers) | import heapq | [4, 9, 7] | [9, 7]
place_of insert_at | numbers | return bisect.bisect(numbers, 5) | import bisect | [1, 4, 8] | 2
words_of split_words | text | return shlex.split(text) | import shlex | "a 'b c'" | ['a', 'b c']
safe_text escaped | text | return html.escape(text) | import html | 'a<b' | 'a&lt;b'
fold_lines wrapped | text | return textwrap.wrap(text, 5) | import textwrap | 'one two' | ['one', 'two']
checksum digest_of | text | return hashlib.md5(text.encode()).hexdigest()[:4] | import hashlib | 'a' | '0cc1'
encoded to_base64 | text | return base64.b64encode(text.encode()).decode() | import base64 | 'hi' | 'aGk='
letter_place position_of | letter | return string.ascii_lowercase.index(letter) | import string | 'c' | 2
half_of fraction_of | number | return str(Fraction(number, 4)) | from fractions import Fraction | 2 | '1/2'
distance_root length_of | number | return sqrt(number) | from math import sqrt | 16 | 4.0
joined flat_list | lists | return list(chain(*lists)) | from itertools import chain | [[1], [2]] | [1, 2]
average mean_of | numbers | return mean(numbers) | from statistics import mean | [2, 4] | 3
newest tail_of | items | return list(deque(items, maxlen=1)) | from collections import deque | [1, 2] | [2]
matches fits_pattern | name | return fnmatch.fnmatch(name, '*.py') | import fnmatch | 'a.py' | True
host_of | url | return urlparse(url).netloc | from urllib.parse import urlparse | '//x.org/a' | 'x.org'
exact precise_sum | text | return str(Decimal(text) * 2) | from decimal import Decimal | '1.5' | '3.0'
"""
NEEDY = tuple(Needy(*line.split(" | ")) for line in _ROWS.strip().splitlines())


def draw_needy(ctx: Setting) -> tuple[Needy, str]:
    """A function that needs an import, and a name for it."""
    rng, words = ctx.rng, ctx.words
    item = rng.choice(NEEDY)
    name = rng.choice(item.names.split())
    if rng.random() < 0.6:
        name = f"{rng.choice((name, words.verb()))}_{words.noun()}"
    return item, name


def _needy_module(ctx: Setting) -> tuple[Needy, str, str, str, str] | None:
    """A function without its import: the entry, its name, the module's path and text, the test's path."""
    rng, words = ctx.rng, ctx.words
    item, name = draw_needy(ctx)
    folder = rng.choice(("", "", *(f"{folder}/" for folder in ctx.facts.folders if "test" not in folder)))
    stem = ctx.unused(words.module)
    path = f"{folder}{stem}.py"
    if path in ctx.facts.files or any(name in text for text in ctx.facts.files.values()):
        return None
    head = rng.choice(
        ("", f'"""{words.phrase().capitalize()}."""\n\n', "import sys\n\n", "import logging\n\n")
    )
    other = fresh_function(ctx)
    before = "\n".join(other.source()) + "\n\n\n" if rng.random() < 0.5 else ""
    if head.startswith("import"):
        head += "\n"
    elif rng.random() < 0.5 and not before:
        head += f"{words.constant()} = {rng.randint(1, 99)}\n\n\n"
    doc = f'    """{words.phrase().capitalize()}."""\n' if rng.random() < 0.2 else ""
    text = f"{head}{before}def {name}({item.params}):\n{doc}    {item.body}\n"
    return item, name, path, text, stem


def _play_import(session: Session, item: Needy, name: str, symptom: str) -> tuple[str, str]:
    """Find what is not imported, import it, run the tests. Without a symptom the tests show it."""
    if not symptom:
        run, _ = run_tests(session, "Fix the failing tests. Run them first.", stop=True)
        if not run.failures:
            raise Report("Nothing fails.", f"No test fails: {run.summary}. There was nothing to fix.")
        failure = next((one for one in run.failures if "NameError" in one.error), run.failures[0])
        seen = view_function(session, failure)[1].path
    else:
        _, hit = one_definition(session, name, f"{name}: {symptom}. Find its definition.")
        around(session, hit.path, hit.line, f"It is at {hit.at}. Read it.")
        seen = hit.path
    think = f"{item.missing} is used but not imported. Read the top of {seen}."
    view = open_file(session, seen, think, limit=6)
    number, old = view.lines[0]
    documented = old.startswith('"""')
    fresh = f"{old}\n\n{item.imported}" if documented else f"{item.imported}\n{old}"
    if not documented and not old.startswith(("import ", "from ")):
        fresh = f"{item.imported}\n\n{old}"
    where = "below the docstring" if documented else "at the top"
    think = f"No import of {item.missing}. Put {item.imported} {where}."
    edit_text(session, seen, old, fresh, think, line=number)
    what = f"Added `{item.imported}` to `{seen}`."
    try:
        run, _ = run_tests(session, "The diff is right. Run the tests.", stop=True)
    except Report:
        return "I could not run the tests.", f"{what} I could not run the tests here."
    if run.ok:
        return "All pass.", f"Fixed: {what} The tests pass now: {run.summary}."
    return "Some fail; say so.", f"{what} Still failing: {several([one.name for one in run.failures])}."


def _imports(outcome: Outcome, item: Needy, name: str, path: str) -> str | None:
    """The function works, and every line of before is there."""
    after = outcome.after.get(path, "")
    scope: dict[str, object] = {}
    try:
        exec(compile(after, path, "exec"), scope)
        right = eval(f"{name}({item.case}) == {item.value}", scope)
    except Exception as problem:
        return f"{path} does not work: {problem}"
    kept = [line for line in outcome.before[path].splitlines() if line.strip()]
    if not right or any(line not in after.splitlines() for line in kept):
        return f"{path} is wrong or was changed otherwise"
    return None


@goal("fix_import", "fix", 1.2)
def fix_import(ctx: Setting) -> Plan | None:
    """A module uses a name that it does not import."""
    drawn = _needy_module(ctx)
    if drawn is None:
        return None
    item, name, path, text, stem = drawn
    dotted = path.removesuffix(".py").replace("/", ".")
    folder = "tests/" if any(other.startswith("tests/") for other in ctx.facts.files) else ""
    test_path = f"{folder}test_{stem}.py"
    claim = f"assert {name}({item.case}) == {item.value}"
    test = f"from {dotted} import {name}\n\n\ndef test_{name}():\n    {claim}\n"
    if test_path in ctx.facts.files or "from __future__" in text:
        return None
    error = f"NameError: name '{item.missing}' is not defined"
    wanted = ctx.rng.choice(("fix_tests", "fix_tests", "fix_func", "fix_error"))
    slots: dict[str, str] = {}
    if wanted == "fix_func":
        slots = {
            "name": name,
            "symptom": ctx.rng.choice(("raises NameError", "crashes with a NameError", f"says {error}")),
        }
    if wanted == "fix_error":
        line = text[: text.index(item.body)].count("\n") + 1
        slots = {"error_text": ctx.rng.choice((f"{error} in {name}", f"{error} ({path}, line {line})"))}

    symptom = slots.get("symptom", error) if slots else ""
    return Plan(
        wanted,
        "fix",
        slots,
        lambda session: _play_import(session, item, name, symptom),
        lambda outcome: _imports(outcome, item, name, path) or checks.unchanged(outcome, path),
        ("def", name),
        prepare=lambda files: files.update({path: text, test_path: test}),
    )


def _script(rng: random.Random, func: Func, args: tuple[object, ...], wrong: Func) -> tuple[str, str]:
    """A script that prints a call of the function: the right and the wrong text."""
    call = f"{func.name}({', '.join(map(repr, args))})"
    label = rng.choice(("", "", "'result:', ", "'total =', ", "'->', "))
    tail = rng.choice(
        (
            "\n\n\nif __name__ == '__main__':\n    print({0})\n",
            "\n\n\nprint({0})\n",
            "\n\n\nresult = {0}\nprint({1}result)\n",
        )
    )
    end = tail.format(call, label)
    return "\n".join(func.source()) + end, "\n".join(wrong.source()) + end


def _why_wrong(view: View, broken: Broken, wanted: str) -> str:
    """What must come, and what decides for the change."""
    _, value, got = broken.failing_case()
    error = f"assert {got} == {value!r}"
    wrong, right = broken.wrong.strip(), broken.right.strip()
    clue = evidence(view.lines, broken.line, wrong, right, Failure("", error=error))
    return " ".join(filter(None, (wanted, symptom(error), clue)))


def _stray(session: Session, view: View, broken: Broken, why: str, command: str) -> None:
    """A change that does not help, which is not learned, what the script prints then, and the right one."""
    shown = wrong_turn(session, view, broken, why, command)
    new, old = broken.right.strip(), session.edits[-1][2]
    rows = [row for row in shown.lines[:-1] if row.strip()]
    seen = f"It says {rows[-1]} now" if rows else "It prints nothing now"
    think = f"{seen}: that was wrong. {why} Line {broken.line} has {old}. {difference(old, new)}: {new}"
    edit_text(session, view.path, old, new, think, line=broken.line)


def _play_script(session: Session, broken: Broken, said: str, seen: str) -> tuple[str, str]:
    """Run the script, change the wrong line, run it again."""
    path = broken.path
    result = session.call("shell", f"{path} prints {seen}, not {said}. Run it.", command=f"python {path}")
    python = "python"
    if "command not found" in result.text and not result.is_error:
        python = "python3"
        result = session.call("shell", "There is no python. Try python3.", command=f"python3 {path}")
    can_run = not result.is_error
    shown = output_of(result.text)[0] if can_run else []
    think = f"It prints {shown[-1]}. Read it." if shown else f"I cannot run it. Read {path}."
    view = open_file(session, path, think)
    why = _why_wrong(view, broken, f"It must print {said}.")
    if can_run and session.slips and session.rng.random() < STRAYED and not session.box.machine.edits_denied:
        _stray(session, view, broken, why, f"{python} {path}")
    else:
        mend(session, view, broken, why)
    what = f"`{path}` (line {broken.line}): {change_of(broken)}."
    if not can_run:
        return "I could not run it.", f"Changed {what} I could not run it here."
    result = session.call("shell", "The diff is right. Run it again.", command=f"{python} {path}")
    if result.is_error:
        raise denied(result.text)
    rows, _ = output_of(result.text)
    verb = "Fixed" if said in "\n".join(rows) else "Changed"
    return "Report the output.", f"{verb} {what} It prints now:\n```\n" + "\n".join(rows[:6]) + "\n```"


@goal("fix_script", "fix", 1.2)
def fix_script(ctx: Setting) -> Plan | None:
    """A script prints something else than it should."""
    rng = ctx.rng
    func = fresh_function(ctx)
    bug = find_bug(func, rng)
    if bug is None or bug.is_syntax:
        return None
    path = f"{rng.choice(('', '', 'scripts/', 'tools/'))}{ctx.unused(ctx.words.module)}.py"
    wrong_func = with_bug(func, bug)
    base = Broken(func, bug, path, "", "", 0, "", "", "", "", {})
    args, value, got = base.failing_case()
    good, bad = _script(rng, func, args, wrong_func)
    if (
        re.fullmatch(r"\w*(Error|Exception)", got)
        or len(got) > 50
        or len(repr(value)) > 50
        or "\\" in got + repr(value)
    ):
        return None
    rows = list(zip(good.split("\n"), bad.split("\n"), strict=True))
    number = next(index for index, (one, two) in enumerate(rows, 1) if one != two)
    right, wrong = rows[number - 1]
    broken = replace(base, good=good, bad=bad, line=number, wrong=wrong, right=right)
    said, seen = str(value), got.strip("'\"")
    if not said or not seen or said == seen or path in ctx.facts.files:
        return None

    def check(outcome: Outcome) -> str | None:
        after = outcome.after.get(path, "")
        if not base.works(after.split("\n\n\n")[0]):
            return f"{path} still prints the wrong thing"
        if after.splitlines()[-1] != good.splitlines()[-1]:
            return f"{path} was changed otherwise"
        return checks.unchanged(outcome, path)

    slots = {"path": path, "should": said, "got": seen}
    return Plan(
        "fix_script",
        "fix",
        slots,
        lambda session: _play_script(session, broken, said, seen),
        check,
        ("file", path),
        prepare=lambda files: files.update({path: bad}),
    )


@goal("contradiction", "fix", 0.4)
def contradiction(ctx: Setting) -> Plan | None:
    """Two tests want different results of the same call: say so, change nothing."""
    rng = ctx.rng
    func = fresh_function(ctx)
    args, value = rng.choice(func.cases)
    if isinstance(value, bool) or not isinstance(value, int | str | float):
        return None
    other = value + rng.choice((1, 2, 10)) if not isinstance(value, str) else value + "s"
    stem = ctx.unused(ctx.words.module)
    call = f"{func.name}({', '.join(map(repr, args))})"
    names = [f"test_{func.name}", f"test_{func.name}_{rng.choice(('again', 'other', 'new', 'old'))}"]
    wants = [value, other]
    rng.shuffle(wants)
    tests = "\n\n\n".join(
        f"def {one}():\n    assert {call} == {want!r}" for one, want in zip(names, wants, strict=True)
    )
    files = {
        f"{stem}.py": "\n".join(func.source()) + "\n",
        f"test_{stem}.py": f"from {stem} import {func.name}\n\n\n{tests}\n",
    }
    if any(path in ctx.facts.files for path in files) or len(call) > 60 or len(repr(other)) > 40:
        return None
    wanted = rng.choice(("fix_tests", "fix_tests", "fix_func"))
    slots = {"name": func.name, "symptom": "gives wrong results"} if wanted == "fix_func" else {}

    def play(session: Session) -> tuple[str, str]:
        run, _ = run_tests(session, "Fix the failing tests. Run them first.", stop=True)
        failure = next((one for one in run.failures if func.name in one.name), None)
        if failure is None:
            raise Report("Nothing of that fails.", f"No such test fails: {run.summary}. Nothing was changed.")
        seen, there = view_function(session, failure)
        try_at(session, [], there, seen, failure)
        path = next((place[0] for place in failure.places if "test_" in place[0]), f"test_{stem}.py")
        think = f"The code looks right for its name. What do the tests of {func.name} want?"
        found, lines = path.rsplit("/", 1)[-1], []
        view = open_file(session, found, think, limit=30)
        lines = [text.strip() for _, text in view.lines if f"assert {func.name}(" in text]
        if len(lines) < 2:
            raise Report(
                "I cannot tell.", f"`{failure.name}` fails: {failure.error}. I did not find the cause."
            )
        return (
            f"{call} stands twice: {wants[0]!r} and {wants[1]!r}. No code can give both; say so.",
            f"The tests contradict each other in `{found}`: `{lines[0]}` and `{lines[1]}` cannot both hold, "
            f"so no change of `{func.name}` makes them pass. Nothing was changed. Which one is right?",
        )

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        if re.search(r"may not|could not run", outcome.answer):
            return None
        return checks.says(outcome, repr(value), repr(other)) or (
            None if "?" in outcome.answer else "it does not ask"
        )

    return Plan(
        wanted, "fix", slots, play, check, ("def", func.name), prepare=lambda current: current.update(files)
    )
