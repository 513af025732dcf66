"""Git: what is changed, committing, branches, history, putting a file back; in real repositories."""

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from k3agent.backend.training.episodes import checks, gitrepo
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.families.adding import plain_line
from k3agent.backend.training.episodes.families.look import bullet_list, names_in
from k3agent.backend.training.episodes.families.running import denied, output_of
from k3agent.backend.training.episodes.gitrepo import Commit, Repository, git
from k3agent.backend.training.episodes.policy import base_name, quoted, same_file, several
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Play, Report, Session

NO_REPOSITORY = 0.05
CLEAN = 0.06
MAX_SHOWN = 16


@dataclass(slots=True)
class Scene:
    """A repository to be, and the files that are changed or new in it (path: text)."""

    repo: Repository
    changed: dict[str, str]
    fresh: dict[str, str]
    last: list[str]
    """What the last commit touched."""

    @property
    def touched(self) -> dict[str, str]:
        """All that is not committed."""
        return self.changed | self.fresh


def _changed(ctx: Setting, path: str) -> str:
    """A file's text with one line more, fewer or otherwise."""
    lines = ctx.facts.files[path].rstrip("\n").split("\n")
    kind = ctx.rng.random()
    if kind < 0.5 or len(lines) < 3:
        lines.append(plain_line(ctx, path))
    elif kind < 0.75:
        lines.insert(0, f"# {ctx.words.phrase()}")
    else:
        lines[-1] = plain_line(ctx, path)
    return "\n".join(lines) + "\n"


def draw_scene(ctx: Setting, *, least: int = 0) -> Scene | None:
    """A history of one to three commits and some uncommitted changes, at least `least`."""
    rng, files = ctx.rng, ctx.facts.files
    pool = [
        path
        for path, text in files.items()
        if text.strip() and "\r" not in text and path.isascii() and " " not in path
        and extension(path) not in ("json", "html", "go")
    ]  # fmt: skip
    if len(pool) < 2:
        return None
    rng.shuffle(pool)
    count = max(least, rng.choice((1, 1, 2, 2, 3)))
    changed = {path: _changed(ctx, path) for path in pool[:count]}
    fresh: dict[str, str] = {}
    if rng.random() < 0.35:
        path = f"{ctx.unused(ctx.words.noun)}.{rng.choice(('txt', 'py', 'md'))}"
        fresh[path] = plain_line(ctx, path) + "\n"
    first: dict[str, str | None] = {path: files[path] for path in changed} | dict.fromkeys(fresh)
    commits = [Commit(rng.choice(("Initial commit", "First", gitrepo.subject(rng, ctx.words))), first)]
    last = sorted([*changed, *(path for path in files if path not in changed)])
    for _ in range(rng.choice((0, 1, 1, 2))):
        last = sorted(rng.sample(pool, min(len(pool), rng.choice((1, 1, 2)))))
        later: dict[str, str | None] = {}
        for path in last:
            later[path] = files[path]
            older = files[path].rstrip("\n").split("\n")[:-1]
            commits[0].files[path] = "\n".join([*older, f"{len(commits)} {ctx.words.noun()}"]) + "\n"
        for commit in commits[1:]:
            for path in last:
                commit.files.pop(path, None)
        commits.append(Commit(gitrepo.subject(rng, ctx.words), later))
    branches = [gitrepo.branch_name(rng, ctx.words) for _ in range(rng.choice((0, 1, 1, 2)))]
    branch = rng.choice((*gitrepo.BRANCHES, gitrepo.branch_name(rng, ctx.words)))
    branches = [name for name in dict.fromkeys(branches) if name.split("/")[0] != branch.split("/")[0]]
    repo = Repository(branch, commits, rng.choice(gitrepo.NAMES), branches)
    return Scene(repo, changed, fresh, last)


def git_plan(
    ctx: Setting,
    name: str,
    slots: dict[str, str],
    play: Play,
    check: Check,
    scene: Scene,
    *,
    clean: bool = False,
) -> Plan:
    """The plan in the scene; now and then there is no repository at all."""
    none = ctx.rng.random() < NO_REPOSITORY
    touched = {} if clean else scene.touched
    return Plan(
        name,
        "git",
        slots,
        play,
        checks.declines("git") if none else check,
        prepare=lambda files: files.update(touched),
        setup=None if none else scene.repo.build,
        alone=True,
    )


def ask_git(session: Session, think: str, command: str) -> list[str]:
    """Output lines of a git command; a report where it cannot be run or fails."""
    result = session.call("shell", think, command=command)
    if result.is_error:
        raise denied(result.text)
    rows, code = output_of(result.text)
    if not code:
        return rows
    text = rows[0] if rows else "no output"
    if "not a git repository" in text:
        raise Report("It is no git repository.", "This folder is no git repository, so nothing was done.")
    raise Failed(text)


class Failed(Report):
    """A git command that failed: its first line of output."""

    def __init__(self, text: str) -> None:
        super().__init__("git says no. Report it.", f"git could not do it: `{text}`")
        self.text = text


def status(session: Session, task: str) -> dict[str, str]:
    """Path to its two letters, of all that is not committed."""
    rows = ask_git(session, task, "git status --short")
    return {row[3:]: row[:2] for row in rows if len(row) > 3}


def quote(message: str) -> str:
    """A message as an argument for the shell, in double quotation marks where that is safe."""
    return shlex.quote(message) if re.search(r'["$`\\!]', message) else f'"{message}"'


def _commit(session: Session, think: str, command: str) -> tuple[str, str]:
    """Commit; (branch, short hash)."""
    rows = ask_git(session, think, command)
    match = next((found for row in rows if (found := re.match(r"\[(.+?)(?: \(.*\))? (\w+)\]", row))), None)
    return (match[1], match[2]) if match else ("?", "?")


@goal("git_commit", "git", 2.2, level=1)
def git_commit(ctx: Setting) -> Plan | None:
    """Commit all changes with a given message."""
    scene = draw_scene(ctx)
    if scene is None:
        return None
    message, clean = gitrepo.subject(ctx.rng, ctx.words), ctx.rng.random() < CLEAN
    count = len(scene.repo.commits)

    def play(session: Session) -> tuple[str, str]:
        return commit_all(session, message, f"Commit all with the message {message}.")

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        subjects = git(outcome.root, "log", "--format=%s").split("\n")[:-1]
        if clean:
            return checks.declines()(outcome) or (
                "something was committed" if len(subjects) != count else None
            )
        if len(subjects) != count + 1 or subjects[0] != message:
            return f"there is no new commit {message!r}"
        return "not everything is committed" if git(outcome.root, "status", "--short") else None

    return git_plan(ctx, "git_commit", {"message": message}, play, check, scene, clean=clean)


def commit_all(
    session: Session, message: str, task: str, *, found: dict[str, str] | None = None
) -> tuple[str, str]:
    """Look what is changed where that is not known, commit it all, report."""
    known = found is not None
    found = found if found is not None else status(session, f"{task} What is changed?")
    if not found:
        raise Report("Nothing is changed.", "There is nothing to commit: the working tree is clean.")
    think = f"Changed: {several(sorted(found), 4)}. Add and commit."
    think = f"The message: {message}. Add and commit." if known else think
    try:
        branch, short = _commit(session, think, f"git add -A && git commit -m {quote(message)}")
    except Failed as error:
        raise Report(
            "The commit failed. Say why.", f"Nothing was committed; git stopped with: `{error.text}`"
        ) from error
    names = quoted(sorted(found), 8)
    return "It is committed.", f"Committed {names} on `{branch}` as `{short}`: {message}"


def subject_for(found: dict[str, str], added: str = "") -> str:
    """A commit's subject from the changed files and their letters; `added`: the new name in the only one."""
    new = [base_name(path) for path, mark in found.items() if mark in ("??", "A ")]
    old = [base_name(path) for path, mark in found.items() if mark not in ("??", "A ")]
    if added and len(old) == 1 and not new:
        return f"Add {added} to {old[0]}"
    parts = [f"{verb} {_names(names)}" for verb, names in (("Add", new), ("update", old)) if names]
    text = " and ".join(parts)
    return text[:1].upper() + text[1:]


def _names(names: list[str]) -> str:
    """Up to three names in words, or how many."""
    if len(names) > 3:
        return f"{len(names)} files"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@goal("git_commit_file", "git", 1.4, level=1)
def git_commit_file(ctx: Setting) -> Plan | None:
    """Commit one file alone."""
    scene = draw_scene(ctx, least=2)
    if scene is None:
        return None
    path = ctx.rng.choice(sorted(scene.touched))
    shown, message = ctx.path(path) if path in ctx.facts.files else path, gitrepo.subject(ctx.rng, ctx.words)

    def play(session: Session) -> tuple[str, str]:
        found = status(session, f"Commit only {shown} with the message {message}. What is changed?")
        real = _one_of(found, shown)
        command = f"git add -- {real} && git commit -m {quote(message)} -- {real}"
        branch, short = _commit(session, f"{real} is changed. Commit it alone.", command)
        return "It is committed.", f"Committed `{real}` alone on `{branch}` as `{short}`: {message}"

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        rows = git(outcome.root, "show", "--format=%s", "--name-only", "HEAD").split("\n")
        have = [row for row in rows[1:] if row]
        return None if rows[0] == message and have == [path] else f"{path} is not committed alone"

    return git_plan(ctx, "git_commit_file", {"path": shown, "message": message}, play, check, scene)


def _one_of(found: dict[str, str], shown: str) -> str:
    """The changed path that was meant."""
    if shown in found:
        return shown
    same = [path for path in found if same_file(shown, path)]
    if len(same) == 1:
        return same[0]
    raise Report(
        f"{shown} is not changed.", f"`{shown}` has no changes that are not committed. Nothing was done."
    )


@goal("git_branch", "git", 1.4, level=1)
def git_branch(ctx: Setting) -> Plan | None:
    """Create a branch and go to it."""
    scene = draw_scene(ctx)
    if scene is None:
        return None
    name = gitrepo.branch_name(ctx.rng, ctx.words)
    taken = bool(scene.repo.branches) and ctx.rng.random() < 0.12
    if taken:
        name = scene.repo.branches[0]
    elif any(name.split("/")[0] == item.split("/")[0] for item in (scene.repo.branch, *scene.repo.branches)):
        return None

    def play(session: Session) -> tuple[str, str]:
        try:
            ask_git(session, f"Create the branch {name} and switch to it.", f"git switch -c {name}")
        except Failed as error:
            if "already exists" not in error.text:
                raise
            raise Report(
                f"There is already a branch {name}.",
                f"There is already a branch `{name}`, so none was made. Shall I switch to it?",
            ) from error
        return "It is there.", f"Created the branch `{name}` and switched to it."

    def check(outcome: Outcome) -> str | None:
        current = git(outcome.root, "branch", "--show-current").strip()
        if taken:
            return checks.declines(name)(outcome) or (None if current == scene.repo.branch else "it switched")
        return checks.unchanged(outcome) or (None if current == name else f"{name} is not checked out")

    return git_plan(ctx, "git_branch", {"branch": name}, play, check, scene)


@goal("git_switch", "git", 1.0, level=1)
def git_switch(ctx: Setting) -> Plan | None:
    """Go to a branch that is there."""
    scene = draw_scene(ctx)
    if scene is None or not scene.repo.branches:
        return None
    missing = ctx.rng.random() < 0.15
    name = gitrepo.branch_name(ctx.rng, ctx.words) if missing else ctx.rng.choice(scene.repo.branches)
    if missing and name in (scene.repo.branch, *scene.repo.branches):
        return None

    def play(session: Session) -> tuple[str, str]:
        try:
            ask_git(session, f"Switch to the branch {name}.", f"git switch {name}")
        except Failed as error:
            if "invalid reference" not in error.text:
                raise
            rows = ask_git(session, f"There is no {name}. Which branches are there?", "git branch")
            names = quoted([row[2:] for row in rows])
            raise Report(
                "It is not there.", f"There is no branch `{name}`. There are: {names}. Which one do you mean?"
            ) from error
        return "Switched.", f"You are on the branch `{name}` now."

    def check(outcome: Outcome) -> str | None:
        current = git(outcome.root, "branch", "--show-current").strip()
        if missing:
            return checks.declines(name, *scene.repo.branches)(outcome)
        return checks.unchanged(outcome) or (None if current == name else f"{name} is not checked out")

    return git_plan(ctx, "git_switch", {"branch": name}, play, check, scene)


@goal("git_current", "git", 0.8, level=1)
def git_current(ctx: Setting) -> Plan | None:
    """Which branch is checked out."""
    scene = draw_scene(ctx)
    if scene is None:
        return None

    def play(session: Session) -> tuple[str, str]:
        rows = ask_git(session, "Ask git for the current branch.", "git branch --show-current")
        name = rows[0] if rows else "no branch (detached)"
        return f"It is {name}.", f"The current branch is `{name}`."

    return git_plan(ctx, "git_current", {}, play, checks.answers(scene.repo.branch), scene)


@goal("git_branches", "git", 0.8, level=1)
def git_branches(ctx: Setting) -> Plan | None:
    """All branches."""
    scene = draw_scene(ctx)
    if scene is None:
        return None

    def play(session: Session) -> tuple[str, str]:
        rows = ask_git(session, "Ask git for all branches.", "git branch")
        names = [f"{row[2:]}{' (current)' if row.startswith('*') else ''}" for row in rows]
        return "Name them all.", f"The branches:\n{bullet_list(names)}"

    check = checks.answers(scene.repo.branch, *scene.repo.branches)
    return git_plan(ctx, "git_branches", {}, play, check, scene)


@goal("git_last_files", "git", 1.2, level=1)
def git_last_files(ctx: Setting) -> Plan | None:
    """Which files the last commit touched."""
    scene = draw_scene(ctx)
    if scene is None or len(scene.last) > 12:
        return None
    message = scene.repo.commits[-1].subject

    def play(session: Session) -> tuple[str, str]:
        think = "Show the last commit with the names of its files."
        rows = ask_git(session, think, "git show --oneline --name-status HEAD")
        short, _, text = rows[0].partition(" ")
        names = [row.split("\t")[-1] for row in rows[1:] if "\t" in row]
        return "Name its files.", f"The last commit is `{short}`: {text}\n{bullet_list(names)}"

    return git_plan(ctx, "git_last_files", {}, play, checks.answers(message, *scene.last), scene)


@goal("git_changed", "git", 1.4, level=1)
def git_changed(ctx: Setting) -> Plan | None:
    """Which files are not committed."""
    scene = draw_scene(ctx)
    if scene is None:
        return None
    clean = ctx.rng.random() < 0.15

    def play(session: Session) -> tuple[str, str]:
        found = status(session, "Ask git what is changed.")
        if not found:
            return "Nothing.", "Nothing is changed; the working tree is clean."
        rows = [f"{path}{' (new)' if mark == '??' else ''}" for path, mark in found.items()]
        return "Name them.", f"Not committed yet:\n{bullet_list(rows, 20)}"

    check = checks.answers("clean") if clean else checks.answers(*scene.touched)
    return git_plan(ctx, "git_status", {}, play, check, scene, clean=clean)


def diff_lines(rows: list[str]) -> list[str]:
    """The lines of a diff that were taken out or put in."""
    return [row for row in rows if row[:1] in "+-" and row[:3] not in ("+++", "---")]


@goal("git_diff", "git", 1.3, level=1)
def git_diff(ctx: Setting) -> Plan | None:
    """What is changed in a file."""
    scene = draw_scene(ctx)
    if scene is None:
        return None
    path = ctx.rng.choice(sorted(scene.touched))
    shown = ctx.path(path) if path in ctx.facts.files else path
    before, after = ctx.facts.files.get(path, "").splitlines(), scene.touched[path].splitlines()
    gone = [row.strip() for row in before if row not in after]
    come = [row.strip() for row in after if row not in before and row.strip()]

    def play(session: Session) -> tuple[str, str]:
        found = status(session, f"What is changed in {shown}? First all changes.")
        real = _one_of(found, shown)
        if found[real] == "??":
            return f"{real} is new.", f"`{real}` is new: git does not track it yet, so there is no diff."
        rows = diff_lines(ask_git(session, f"{real} is modified. Show its diff.", f"git diff -- {real}"))
        more = f"\nand {len(rows) - MAX_SHOWN} more lines." if len(rows) > MAX_SHOWN else ""
        text = "\n".join(rows[:MAX_SHOWN])
        return "Show the lines.", f"Changed in `{real}` since the last commit:\n```diff\n{text}\n```{more}"

    facts = (path, "new") if path in scene.fresh else (path, *gone[:8], *come[:8])
    return git_plan(ctx, "git_diff", {"path": shown}, play, checks.answers(*facts), scene)


@goal("git_restore", "git", 1.3, level=1)
def git_restore(ctx: Setting) -> Plan | None:
    """Put a file back as it was in the last commit; what `git restore` throws away, a stash keeps."""
    scene = draw_scene(ctx)
    if scene is None:
        return None
    path = ctx.rng.choice(sorted(scene.changed))
    shown = ctx.path(path)

    def play(session: Session) -> tuple[str, str]:
        found = status(session, f"Put {shown} back as it was committed. Is it changed?")
        real = _one_of(found, shown)
        if found[real] == "??":
            raise Report(f"{real} is new.", f"`{real}` is not in git, so it cannot be put back.")
        think = f"{real} is modified. A stash of it puts it back, and its changes are kept."
        ask_git(session, think, f"git stash push -- {real}")
        left = ask_git(session, "Is it as committed?", f"git status --short -- {real}")
        if left:
            raise Report("It is not.", f"`{real}` still has changes: `{left[0]}`")
        return (
            "No changes left.",
            f"`{real}` is as in the last commit again. `git stash pop` brings its changes back.",
        )

    def check(outcome: Outcome) -> str | None:
        if "may not" in outcome.answer and "denied" in outcome.answer:
            return checks.unchanged(outcome)
        return checks.writes({path: ctx.facts.files[path]})(outcome)

    return git_plan(ctx, "git_restore", {"path": shown}, play, check, scene)


@goal("git_log_file", "git", 1.0, level=1)
def git_log_file(ctx: Setting) -> Plan | None:
    """The commits of a file."""
    scene = draw_scene(ctx)
    if scene is None:
        return None
    path = ctx.rng.choice(scene.last)
    if " " in path or not path.isascii():
        return None
    shown = ctx.path(path) if path in ctx.facts.files else path
    wanted = [scene.repo.commits[-1].subject, scene.repo.commits[0].subject]

    def play(session: Session) -> tuple[str, str]:
        real = shown
        rows = ask_git(session, f"The commits of {shown}.", f"git log --oneline -n 10 -- {shown}")
        if not rows:
            think = f"None for {shown}. Where is it?"
            found = names_in(session.call("glob", think, pattern=f"**/{base_name(shown)}").text)
            if len(found) != 1:
                raise Report(f"There is no {shown}.", f"No commit touches a file `{shown}`.")
            real = found[0]
            rows = ask_git(session, f"It is {real}.", f"git log --oneline -n 10 -- {real}")
        return "Name them.", f"Commits of `{real}`:\n{bullet_list(rows, 10)}"

    return git_plan(ctx, "git_log_file", {"path": shown}, play, checks.answers(*wanted), scene)


def with_commit(ctx: Setting, plan: Plan, message: str) -> Callable[[Session], tuple[str, str]]:
    """The play of a plan, and after it a commit of what it changed; `message` '': one from the files."""

    def play(session: Session) -> tuple[str, str]:
        think, answer = plan.play(session)
        session.lead = f"{think} Now the commit."
        if message:
            last, report = commit_all(session, message, f"The message is {message}.")
        else:
            found = status(session, "What is changed?")
            last, report = commit_all(session, subject_for(found), "", found=found)
        return last, f"{answer}\n{report}"

    return play
