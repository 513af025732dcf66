"""Longer chains: several files in one request, a change and its commit, repairs whose first step shows the
second, a version in many files, a new module and its first use.
"""

import re
from dataclasses import dataclass, replace

from k3agent.backend.training.episodes import checks, gitrepo
from k3agent.backend.training.episodes.bugs import Broken, draw_broken
from k3agent.backend.training.episodes.concepts import same_results
from k3agent.backend.training.episodes.editing import edit_text
from k3agent.backend.training.episodes.families.adding import squeeze
from k3agent.backend.training.episodes.families.creating import new_path, write_new
from k3agent.backend.training.episodes.families.functions import code_of, draw_new, thought_of
from k3agent.backend.training.episodes.families.gittasks import with_commit
from k3agent.backend.training.episodes.families.repair import fixed, play_fix
from k3agent.backend.training.episodes.families.versions import VERSIONED, draw_version, versioned
from k3agent.backend.training.episodes.gitrepo import Commit, Repository, git
from k3agent.backend.training.episodes.policy import base_name, esc, hits, open_file, quoted
from k3agent.backend.training.episodes.registry import GOALS, Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session, played
from k3agent.backend.training.wordings import catalog, grammar, steps

EDITS = (
    "set_const",
    "set_const",
    "set_const_in",
    "set_key",
    "replace_text",
    "add_line_end",
    "add_line_start",
    "create_file",
    "add_bullet",
    "add_heading",
    "tick_checkbox",
    "delete_line",
    "add_import",
)
VERSION_LINE = r"version[_\W]+\d+\.\d+\.\d+|^\d+\.\d+\.\d+$"
LOOKS = ("value_of", "where_defined", "find_file", "count_lines")


@dataclass(frozen=True, slots=True)
class Step:
    """One wish of several: its plan, and the only file that it changes ('' for a question)."""

    plan: Plan
    target: str
    text: str


def draw_step(ctx: Setting, names: tuple[str, ...], taken: set[str]) -> Step | None:
    """A small task that changes at most one file, none of those that are taken."""
    for _ in range(8):
        plan = GOALS[ctx.rng.choice(names)].make(ctx)
        if plan is None or plan.prepare or plan.setup or plan.prompt is not None:
            continue
        target = "" if names is LOOKS else _target(ctx, plan)
        if target in taken or (target == "" and names is not LOOKS):
            continue
        if any("\n" in value for value in plan.slots.values()):
            continue
        wording = catalog.goal(plan.goal)
        text = grammar.phrase(wording, plan.slots, ctx.rng, part=ctx.words.part, noise=False)
        if "\n" not in text:
            return Step(plan, target, text)
    return None


def _target(ctx: Setting, plan: Plan) -> str:
    """The file that a plan changes; '' where that cannot be told."""
    if plan.subject is None:
        return ""
    kind, name = plan.subject
    if kind == "file":
        return name
    homes = {item.path for item in [*ctx.facts.constants, *ctx.facts.keys] if item.name == name}
    return homes.pop() if kind == "const" and len(homes) == 1 else ""


def step_check(step: Step, outcome: Outcome) -> str | None:
    """The step's own check on the only file that is its business."""
    after = dict(outcome.before)
    if step.target:
        after.pop(step.target, None)
        if step.target in outcome.after:
            after[step.target] = outcome.after[step.target]
    return step.plan.check(replace(outcome, after=after))


@goal("chain_list", "chain", 3.0, level=1)
def chain_list(ctx: Setting) -> Plan | None:
    """Two to four small wishes about different files in one message."""
    taken: set[str] = set()
    found: list[Step] = []
    for _ in range(ctx.rng.choice((2, 3, 3, 3, 4))):
        step = draw_step(ctx, LOOKS if found and ctx.rng.random() < 0.2 else EDITS, taken)
        if step is not None:
            found.append(step)
            taken.add(step.target)
    if len(found) < 2:
        return None
    prompt = steps.listed([step.text for step in found], ctx.rng, ctx.words.part)

    def play(session: Session) -> tuple[str, str]:
        answers: list[str] = []
        think = ""
        for number, step in enumerate(found, 1):
            session.lead = f"{think} {_order(number, len(found))}".strip()
            think, answer = played(step.plan, session)
            answers.append(answer)
        return think, "\n".join(f"{number}. {answer}" for number, answer in enumerate(answers, 1))

    def check(outcome: Outcome) -> str | None:
        wrongs = [wrong for step in found if (wrong := step_check(step, outcome))]
        return wrongs[0] if wrongs else checks.unchanged(outcome, *(step.target for step in found))

    return Plan("chain_list", "chain", {}, play, check, prompt=prompt)


def _order(number: int, count: int) -> str:
    if number == 1:
        return f"{count} tasks. The first:"
    return f"Task {number} of {count}:"


@goal("edit_commit", "chain", 2.0, level=1)
def edit_commit(ctx: Setting) -> Plan | None:
    """A change, and a commit of it, with or without a given message."""
    rng = ctx.rng
    step = draw_step(ctx, EDITS, set())
    if step is None or " " in step.target:
        return None
    message = gitrepo.subject(rng, ctx.words) if rng.random() < 0.7 else ""
    commits = [Commit(gitrepo.subject(rng, ctx.words)) for _ in range(rng.choice((1, 1, 2)))]
    repo = Repository(rng.choice(gitrepo.BRANCHES), commits, rng.choice(gitrepo.NAMES))
    if message:
        prompt = steps.committed(step.text, message, rng, ctx.words.part)
    else:
        prompt = steps.committed_own(step.text, rng, ctx.words.part)

    def check(outcome: Outcome) -> str | None:
        wrong = step_check(step, outcome) or checks.unchanged(outcome, step.target)
        if wrong:
            return wrong
        if outcome.before == outcome.after:
            return None
        rows = git(outcome.root, "log", "--format=%s").split("\n")[:-1]
        is_named = rows[0] == message if message else base_name(step.target).split(".")[0] in rows[0]
        if not is_named or len(rows) != len(commits) + 1 or git(outcome.root, "status", "--short"):
            return f"the change is not committed as {message or 'what it is'!r}"
        return None

    play = with_commit(ctx, step.plan, message)
    return Plan("edit_commit", "chain", {}, play, check, prompt=prompt, setup=repo.build, alone=True)


@goal("two_step_fix", "chain", 2.0, level=1)
def two_step_fix(ctx: Setting) -> Plan | None:
    """A file that cannot be loaded hides a second bug: only after its repair does the other test fail."""
    hidden = _draw(ctx, syntax=False)
    first = _draw(ctx, syntax=True)
    if first is None or hidden is None:
        return None
    names = {first.path, first.test_path} & {hidden.path, hidden.test_path}
    if names or set(first.files) & set(hidden.files) - {"__init__.py"}:
        return None
    found = [first, hidden]
    files = {**first.files, **hidden.files}
    task = "Fix the failing tests. Run them first."
    return Plan(
        "fix_tests",
        "chain",
        {},
        lambda session: play_fix(session, found, task),
        fixed(found),
        ("def", hidden.func.name),
        prepare=lambda current: current.update(files),
    )


def _draw(ctx: Setting, *, syntax: bool) -> Broken | None:
    """A bug that keeps a file from being loaded, or one that does not."""
    for _ in range(25):
        broken = draw_broken(ctx)
        if broken is not None and broken.bug.is_syntax == syntax:
            return broken
    return None


@goal("bump_all", "chain", 2.4, level=1)
def bump_all(ctx: Setting) -> Plan | None:
    """Another version in every file that has the present one."""
    rng, words = ctx.rng, ctx.words
    old, new = draw_version(ctx), draw_version(ctx)
    paths = rng.sample(sorted(VERSIONED), rng.choice((1, 1, 2, 2, 3)))
    files = {path: versioned(ctx, path, old) for path in paths}
    if rng.random() < 0.5:
        files[f"docs/{words.noun()}.md"] = f"# {words.title()}\n\nThe version is {old}.\n"
    everything = "\n".join(ctx.facts.files.values())
    if re.search(VERSION_LINE, everything, re.IGNORECASE | re.MULTILINE):
        return None
    if old == new or old in everything or any(path in ctx.facts.files for path in files):
        return None
    if any(other.rsplit("/", 1)[-1] in files for other in ctx.facts.files):
        return None

    def play(session: Session) -> tuple[str, str]:
        think = f"Set the version to {new} everywhere. Where does it stand?"
        rows = hits(session.call("grep", think, pattern=VERSION_LINE, ignore_case=True))
        versions = [match[0] for hit in rows if (match := re.search(r"\d+\.\d+\.\d+", hit.text))]
        have = max(set(versions), key=versions.count, default="")
        if not have:
            raise Report("No version.", "I find no version in this project. Nothing was changed.")
        found = hits(session.call("grep", f"It is {have}. Find it everywhere.", pattern=esc(have)))
        for hit in found:
            row = hit.text.strip()
            fresh = row.replace(have, new)
            edit_text(session, hit.path, row, fresh, f"{hit.at} has {row}", line=hit.line)
        left = hits(session.call("grep", f"Is there any {have} left?", pattern=esc(have)))
        if left:
            raise Report("Some are left.", f"`{have}` is still in {quoted([hit.at for hit in left])}.")
        places = quoted(list(dict.fromkeys(hit.path for hit in found)), 8)
        return "None left.", f"The version is `{new}` now (was {have}) in {places}."

    check = checks.writes({path: text.replace(old, new) for path, text in files.items()})
    return Plan("bump_all", "chain", {"version": new}, play, check, prepare=lambda now: now.update(files))


@goal("create_use", "chain", 1.8, level=1)
def create_use(ctx: Setting) -> Plan | None:
    """A new module with a described function, and its import in another file."""
    files = ctx.facts.files
    pool = [
        path
        for path in ctx.facts.code_paths()
        if checks.compiles(files[path]) and "\r" not in files[path] and "__future__" not in files[path]
    ]
    user = ctx.choose([path for path in pool if "/" not in path and files[path].strip()])
    if not isinstance(user, str):
        return None
    path = new_path(ctx, "py", 0.0)
    func, words = draw_new(ctx)
    line = f"from {path.removesuffix('.py')} import {func.name}"

    def play(session: Session) -> tuple[str, str]:
        think = thought_of(func, f"Two files. First {path} with {func.signature}. It {words}.")
        write_new(session, path, code_of(func), think)
        view = open_file(session, user, f"Created. Now import {func.name} in {user}. Read its top.", limit=30)
        number, old, fresh = _import_place(view.lines, line)
        think = f"{line} goes to line {number}." if number > 1 else f"{line} goes to the top."
        edit_text(session, view.path, old, fresh, think, line=number)
        told = f"Created `{path}` with `{func.signature}`; it {words}."
        return "Both are done.", f"{told}\n`{view.path}` imports it: `{line}`."

    def check(outcome: Outcome) -> str | None:
        if not same_results(outcome.after.get(path, ""), func):
            return f"{func.name} in {path} is missing or wrong"
        rows = outcome.after.get(user, "").splitlines()
        if line not in rows:
            return f"{user} does not import {func.name}"
        rows.remove(line)
        if squeeze("\n".join(rows)) != squeeze(files[user]):
            return f"{user} was changed otherwise"
        if not checks.compiles(outcome.after[user]):
            return f"{user} is broken"
        return checks.unchanged(outcome, path, user)

    slots = {"path": path, "signature": func.signature, "body_words": words, "user": user}
    return Plan("create_use", "chain", slots, play, check, ("def", func.name))


def _import_place(lines: list[tuple[int, str]], line: str) -> tuple[int, str, str]:
    """(line number, its text, what it becomes) so that an import stands behind the others or at the top."""
    imports = [(n, row) for n, row in lines if re.match(r"(import|from) \S+.*[^(\\]$", row)]
    if imports:
        number, row = imports[0]
        return number, row, f"{row}\n{line}"
    number, row = lines[0]
    if re.fullmatch(r'"""[^"]*"""', row):
        return number, row, f"{row}\n\n{line}"
    return number, row, f"{line}\n\n{row}"
