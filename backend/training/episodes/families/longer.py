"""Long files and long outputs: a long module and a long log, looked through by a command; one failure among
many tests.
"""

import ast
import re
import shlex
from itertools import pairwise

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.bugs import draw_broken
from k3agent.backend.training.episodes.expressions import described_function
from k3agent.backend.training.episodes.families.look import bullet_list
from k3agent.backend.training.episodes.families.repair import fixed, play_fix
from k3agent.backend.training.episodes.families.running import denied, output_of
from k3agent.backend.training.episodes.outputs import Look
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session

DEF_LINE = re.compile(r"^\s*(?:async )?def (\w+).*:$")
LEVEL = 3


def _long_module(ctx: Setting) -> str:
    """The text of a module of many functions, a few of them without a docstring."""
    rng, words = ctx.rng, ctx.words
    rows: list[str] = []
    bare = 0
    wanted = rng.choice((rng.randint(20, 130), rng.randint(130, 420), rng.randint(300, 750)))
    share = rng.choice((0.04, 0.08, 0.15, 0.4))
    while len(rows) < wanted:
        func = described_function(rng, words)
        if any(f"def {func.name}(" in row for row in rows):
            continue
        func.doc = f"Return {func.description}."
        if rng.random() < share and bare < 12:
            func.doc = ""
            bare += 1
        rows += ["", "", *func.source()] if rows else func.source()
        if rng.random() < 0.25:
            rows += ["", "", f"{words.constant()} = {rng.randint(1, 999)}"]
    return "\n".join(rows) + "\n"


def _print_bare(path: str) -> str:
    """The command that prints each `def` line that no docstring follows."""
    return f"""sed -nE '/^\\s*(async )?def .*:$/{{N;/\"\"\"/!P;}}' {shlex.quote(path)}"""


def bare_functions(text: str) -> list[str] | None:
    """The functions without a docstring; None where they are not seen by their lines alone."""
    rows = text.split("\n")
    seen = [
        match[1] for row, follow in pairwise(rows) if (match := DEF_LINE.match(row)) and '"""' not in follow
    ]
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return None
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    known = [node.name for node in nodes if isinstance(node, kinds) and not ast.get_docstring(node)]
    return seen if sorted(known) == sorted(seen) and '"""' not in "".join(seen) else None


@goal("no_docstring", "long", 2.4, level=1)
def no_docstring(ctx: Setting) -> Plan | None:
    """Which functions of a module, mostly a long one, have no docstring."""
    rng, files = ctx.rng, ctx.facts.files
    have = [
        path for path in ctx.facts.code_paths() if path.endswith(".py") and "def " in ctx.facts.files[path]
    ]
    if have and rng.random() < 0.3:
        path = rng.choice(have)
        text = files[path]
    else:
        path = f"{rng.choice(('', 'src/', 'lib/'))}{ctx.words.module()}.py"
        text = _long_module(ctx)
        if path in files:
            return None
    bare = bare_functions(text)
    if bare is None or len(bare) > 30:
        return None

    def play(session: Session) -> tuple[str, str]:
        think = f"Which functions of {path} have no docstring? Print each def with none below it."
        result = session.call("shell", think, command=_print_bare(path))
        if result.is_error:
            raise denied(result.text)
        rows, code = output_of(result.text)
        if code:
            raise Report("That failed.", f"I could not look through `{path}`: {rows[0] if rows else code}")
        found = [match[1] for row in rows if (match := DEF_LINE.match(row))]
        if not found:
            return "Nothing printed.", f"All functions in `{path}` have a docstring; there is none without."
        listed = bullet_list([f"`{name}`" for name in found])
        return f"{len(found)} without. Name them all.", f"Without a docstring in `{path}`:\n{listed}"

    check = checks.answers(*bare) if bare else checks.declines()
    fresh = {path: text}
    return Plan(
        "no_docstring", "long", {"path": path}, play, check, prepare=lambda files: files.update(fresh)
    )


@goal("log_errors", "long", 2.0, level=1)
def log_errors(ctx: Setting) -> Plan | None:
    """The errors of a long log: how many, and the last one."""
    rng, words = ctx.rng, ctx.words
    path = f"{rng.choice(('', 'logs/', 'var/'))}{words.noun()}.log"
    if path in ctx.facts.files:
        return None
    rows: list[str] = []
    share = rng.choice((0.05, 0.12, 0.3))
    for number in range(rng.randint(120, 500)):
        level = "ERROR" if rng.random() < share else rng.choice(("INFO", "INFO", "DEBUG", "WARNING"))
        clock = f"2026-03-{1 + number // 60 % 28:02} {number // 25 % 24:02}:{number * 7 % 60:02}"
        rows.append(f"{clock} {level} {words.noun()}: {words.phrase()}")
    errors = [row for row in rows if " ERROR " in row]
    if not 1 <= len(errors) <= 90:
        return None

    def play(session: Session) -> tuple[str, str]:
        command = f"grep -c ' ERROR ' {path} && grep -n ' ERROR ' {path} | tail -n 1"
        result = session.call("shell", f"Count the errors in {path}, and take the last.", command=command)
        if result.is_error:
            raise denied(result.text)
        rows, _ = output_of(result.text)
        if len(rows) < 2:
            raise Report("None.", f"`{path}` has no errors.")
        line, _, text = rows[1].partition(":")
        word = "error" if rows[0] == "1" else "errors"
        return (
            f"{rows[0]} {word}, the last in line {line}.",
            f"`{path}` has {rows[0]} {word}. The last is in line {line}: `{text.strip()}`",
        )

    def check(outcome: Outcome) -> str | None:
        wrong = checks.unchanged(outcome) or checks.says(outcome, errors[-1].split(": ", 1)[1])
        said = re.search(rf"(?<!\d){len(errors)}(?!\d)", outcome.answer)
        return wrong or (None if said else f"the answer lacks the number {len(errors)}")

    fresh = {path: "\n".join(rows) + "\n"}
    return Plan("log_errors", "long", {"path": path}, play, check, prepare=lambda files: files.update(fresh))


@goal("long_tests", "long", 2.0, level=LEVEL)
def long_tests(ctx: Setting) -> Plan | None:
    """One failing test among many that are all named."""
    rng, words = ctx.rng, ctx.words
    broken = draw_broken(ctx)
    if broken is None or broken.bug.is_syntax:
        return None
    files = dict(broken.files)
    for _ in range(rng.choice((2, 3, 4))):
        path = f"test_{words.noun()}_{words.noun()}.py"
        if path in ctx.facts.files or path in files:
            return None
        names = [f"test_{words.verb()}_{words.noun()}_{number}" for number in range(rng.randint(12, 30))]
        tests = (f"def {name}():\n    assert {n} + 1 == {n + 1}\n" for n, name in enumerate(names))
        files[path] = "\n\n".join(tests)
    task = "Fix the failing tests. Run them first."

    def play(session: Session) -> tuple[str, str]:
        look = Look.draw(rng)
        look.flags = ["-v"]
        session.box.machine.look = look
        return play_fix(session, [broken], task)

    return Plan("fix_tests", "long", {}, play, fixed([broken]), prepare=lambda current: current.update(files))
