"""Longer chains: several files in one request, a change and its commit, repairs whose first step shows the
second, a version in many files, a new module and its first use.
"""

import atexit
import re
from dataclasses import dataclass, replace
from functools import cache

from k3agent.backend.training.episodes import checks, gitrepo
from k3agent.backend.training.episodes.bugs import Broken, draw_broken
from k3agent.backend.training.episodes.concepts import same_results
from k3agent.backend.training.episodes.editing import edit_text
from k3agent.backend.training.episodes.families.adding import squeeze
from k3agent.backend.training.episodes.families.creating import new_path, write_new
from k3agent.backend.training.episodes.families.functions import code_of, draw_new, thought_of
from k3agent.backend.training.episodes.families.gittasks import with_commit
from k3agent.backend.training.episodes.families.pairs import PAIRS
from k3agent.backend.training.episodes.families.repair import fixed, play_fix
from k3agent.backend.training.episodes.families.versions import VERSIONED, draw_version, versioned
from k3agent.backend.training.episodes.gitrepo import Commit, Repository, git
from k3agent.backend.training.episodes.policy import base_name, esc, hits, open_file, quoted
from k3agent.backend.training.episodes.registry import GOALS, Setting, goal
from k3agent.backend.training.episodes.session import (
    Outcome,
    Plan,
    Report,
    Session,
    TooLong,
    in_turn,
    played,
)
from k3agent.backend.training.episodes.toolbox import Toolbox
from k3agent.backend.training.episodes.workspace import Workspace
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
QUESTIONS = ("list", "find", "where", "explain")
CHANGES = ("setvalue", "setvalue", "replace", "addline", "addline", "rename", "create", "addfunc", *QUESTIONS)
STEP_CHARS = 2000
"""How long one wish among several may be."""
VERSION_LINE = r"version[_\W]+\d+\.\d+\.\d+|^\d+\.\d+\.\d+$"
LOOKS = ("value_of", "where_defined", "find_file", "count_lines")


@dataclass(frozen=True, slots=True)
class Step:
    """One wish of several: its plan, and the only file that it changes ('' for a question)."""

    plan: Plan
    target: str
    text: str


def draw_step(ctx: Setting, names: tuple[str, ...], taken: set[str]) -> Step | None:
    """A small task that changes at most one file, none of those that are taken; a question is about none."""
    for _ in range(8):
        plan = GOALS[ctx.rng.choice(names)].make(ctx)
        if plan is None or plan.prepare or plan.setup or plan.prompt is not None:
            continue
        target = "" if names is LOOKS else _target(ctx, plan)
        if target in taken or (target == "" and names is not LOOKS):
            continue
        if not target and any(_is_about(ctx, plan, path) for path in taken):
            continue
        text = said(ctx, plan)
        if text:
            return Step(plan, target, text)
    return None


def said(ctx: Setting, plan: Plan) -> str:
    """A plan's wish in one line, without what people put around a whole message; '' where it takes more."""
    if any("\n" in value for value in plan.slots.values()):
        return ""
    text = grammar.phrase(catalog.goal(plan.goal), plan.slots, ctx.rng, part=ctx.words.part, noise=False)
    return "" if "\n" in text else text


def _is_about(ctx: Setting, plan: Plan, path: str) -> bool:
    """Whether the answer to a question may change with a file."""
    words = [value for value in plan.slots.values() if len(value) > 2]
    text = f"{path}\n{ctx.facts.files.get(path, '')}".lower()
    return any(base_name(word).lower() in text for word in words)


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
    """Two to four small wishes about different files in one message; in training also any of the first
    edition's goals, which may follow from each other.
    """
    if ctx.words.part == "train" and ctx.rng.random() < 0.55:
        return _any_chain(ctx)
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

    def check(outcome: Outcome) -> str | None:
        wrongs = [wrong for step in found if (wrong := step_check(step, outcome))]
        return wrongs[0] if wrongs else checks.unchanged(outcome, *(step.target for step in found))

    play = in_turn([step.plan.play for step in found])
    return Plan("chain_list", "chain", {}, play, check, prompt=prompt)


@dataclass(frozen=True, slots=True)
class Tried:
    """A wish and the files before and after the oracle did it."""

    plan: Plan
    text: str
    before: dict[str, str]
    after: dict[str, str]


class _Trial(Toolbox):
    """Where a wish is tried, so that the next one is drawn from what it leaves; it runs no Python."""

    def _python(self, argv: list[str]) -> tuple[str, int]:
        raise TooLong


@cache
def _trial() -> _Trial:
    box = _Trial(Workspace())
    atexit.register(box.close)
    return box


def _tried(ctx: Setting, families: tuple[str, ...]) -> Tried | None:
    """A wish that the oracle can do as the files are, in few words."""
    table = {name: [item for item in GOALS.values() if item.family == name] for name in families}
    box = _trial()
    for _ in range(10):
        entries = table[ctx.rng.choice(families)]
        plan = ctx.rng.choices(entries, [item.weight for item in entries])[0].make(ctx)
        if plan is None or plan.prepare or plan.setup or plan.instructions or plan.commands or plan.alone:
            continue
        if plan.prompt is not None or plan.goal in PAIRS or not (text := said(ctx, plan)):
            continue
        before = dict(ctx.facts.files)
        box.workspace.reset(before)
        box.new_session()
        session = Session(box, ctx.rng, max_chars=STEP_CHARS)
        try:
            session.user(text)
            think, answer = played(plan, session)
            session.answer(answer, think)
        except TooLong:
            continue
        after = box.workspace.snapshot()
        if plan.check(Outcome(before, after, answer, box.workspace.root)) is None:
            return Tried(plan, text, before, after)
    return None


def _any_chain(ctx: Setting) -> Plan | None:
    """Two to four wishes of any kind, each drawn from what the ones before leave."""
    rng = ctx.rng
    found: list[Tried] = []
    now = ctx
    for _ in range(rng.choice((2, 2, 2, 3, 3, 4))):
        step = _tried(now, QUESTIONS if found and rng.random() < 0.25 else CHANGES)
        if step is not None:
            found.append(step)
            now = Setting(type(ctx.facts)(dict(step.after)), rng, ctx.words, ctx.project)
    if len(found) < 2:
        return None
    last = found[-1].after
    prompt = steps.listed([step.text for step in found], rng, ctx.words.part)

    def check(outcome: Outcome) -> str | None:
        changed = [
            path
            for path in sorted(last.keys() | outcome.after.keys())
            if last.get(path) != outcome.after.get(path)
        ]
        if changed:
            return f"{changed[0]} is not as asked"
        verdicts = (step.plan.check(replace(outcome, before=step.before, after=step.after)) for step in found)
        return next((wrong for wrong in verdicts if wrong), None)

    play = in_turn([step.plan.play for step in found])
    return Plan("chain_list", "chain", {}, play, check, prompt=prompt)


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
