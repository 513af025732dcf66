"""More of git: a commit without a given message, the last commits, all differences, work put aside."""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.families.gittasks import (
    Failed,
    Scene,
    ask_git,
    commit_all,
    diff_lines,
    draw_scene,
    git_plan,
    status,
    subject_for,
)
from k3agent.backend.training.episodes.families.look import bullet_list
from k3agent.backend.training.episodes.gitrepo import git
from k3agent.backend.training.episodes.policy import base_name, quoted
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Report, Session

CLEAN = 0.06
NOTHING_SHARE = 0.2
"""Of the requests to put changes aside or throw them away, those where there are none."""
MAX_SHOWN = 24
NAMED = re.compile(r"\+(?:(?:async )?def |class |function |func )(\w+)|\+(\w+) = ")
"""An added line that gives something a name."""


@goal("git_commit_own", "git", 2.0, level=1)
def git_commit_own(ctx: Setting) -> Plan | None:
    """Commit all changes; no message is given, so one is made from what changed."""
    scene = draw_scene(ctx)
    if scene is None:
        return None
    clean, count = ctx.rng.random() < CLEAN, len(scene.repo.commits)

    def play(session: Session) -> tuple[str, str]:
        found = status(session, "Commit all; the message is mine to find. What is changed?")
        if not found:
            raise Report("Nothing is changed.", "There is nothing to commit: the working tree is clean.")
        added = ""
        if len(found) == 1 and "??" not in found.values():
            path = next(iter(found))
            rows = diff_lines(ask_git(session, f"Only {path}. What is new in it?", f"git diff -- {path}"))
            if all(row.startswith("+") for row in rows) and (match := NAMED.match(rows[0] if rows else "")):
                added = match[1] or match[2]
        return commit_all(session, subject_for(found, added), "", found=found)

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        subjects = git(outcome.root, "log", "--format=%s").split("\n")[:-1]
        if clean:
            return checks.declines()(outcome) or (
                "something was committed" if len(subjects) != count else None
            )
        if len(subjects) != count + 1 or git(outcome.root, "status", "--short"):
            return "not everything is in one new commit"
        words = [base_name(path).split(".")[0].lower() for path in scene.touched]
        fits = any(word in subjects[0].lower() for word in words) or f"{len(words)} files" in subjects[0]
        return None if fits else f"the message {subjects[0]!r} says nothing about the change"

    return git_plan(ctx, "git_commit_own", {}, play, check, scene, clean=clean)


@goal("git_log_n", "git", 1.0, level=1)
def git_log_n(ctx: Setting) -> Plan | None:
    """So many of the last commits."""
    scene = draw_scene(ctx)
    if scene is None:
        return None
    count = ctx.rng.choice((2, 2, 3, 3, 4, 5, 10))
    wanted = [commit.subject for commit in scene.repo.commits][-count:]

    def play(session: Session) -> tuple[str, str]:
        rows = ask_git(session, f"The last {count} commits.", f"git log --oneline -n {count}")
        more = "" if len(rows) == count else f"\nThere are only {len(rows)}."
        return "Name them.", f"The last commits:\n{bullet_list(rows, 10)}{more}"

    return git_plan(ctx, "git_log_n", {"n": str(count)}, play, checks.answers(*wanted), scene)


@goal("git_last_commit", "git", 1.0, level=1)
def git_last_commit(ctx: Setting) -> Plan | None:
    """The last commit: its message, who made it and when."""
    scene = draw_scene(ctx)
    if scene is None:
        return None

    def play(session: Session) -> tuple[str, str]:
        command = "git log -1 --date=short --format='%h %ad %an: %s'"
        rows = ask_git(session, "The last commit, with author and date.", command)
        short, day, rest = rows[0].split(" ", 2)
        author, _, text = rest.partition(": ")
        return f"It is {short}.", f"The last commit is `{short}` by {author}, {day}: {text}"

    check = checks.answers(scene.repo.commits[-1].subject, scene.repo.author)
    return git_plan(ctx, "git_last_commit", {}, play, check, scene)


@goal("git_diff_all", "git", 1.2, level=1)
def git_diff_all(ctx: Setting) -> Plan | None:
    """What is changed in all files, line by line."""
    scene = draw_scene(ctx)
    if scene is None:
        return None
    facts: list[str] = []
    for path, text in sorted(scene.changed.items()):
        before = ctx.facts.files[path].splitlines()
        facts += [path, *(row.strip() for row in text.splitlines() if row not in before and row.strip())]

    def play(session: Session) -> tuple[str, str]:
        rows = ask_git(session, "Show all differences.", "git diff -U0")
        if not rows:
            raise Report("Nothing.", "There are no changes in files that git knows; nothing to show.")
        kept = [row for row in rows if row[:4] == "+++ " or row in diff_lines([row])]
        shown = [row.removeprefix("+++ b/") if row[:4] == "+++ " else row for row in kept]
        more = f"\nand {len(shown) - MAX_SHOWN} more lines." if len(shown) > MAX_SHOWN else ""
        text = "\n".join(shown[:MAX_SHOWN])
        return "Show the lines, file by file.", f"Changed since the last commit:\n```diff\n{text}\n```{more}"

    if len(facts) > 14:
        return None
    clean = ctx.rng.random() < CLEAN
    check = checks.declines("no changes") if clean else checks.answers(*facts)
    return git_plan(ctx, "git_diff_all", {}, play, check, scene, clean=clean)


def put_aside(session: Session, task: str, report: str) -> tuple[str, str]:
    """Stash all that is not committed, new files too, and see that nothing is left."""
    found = status(session, task)
    if not found:
        raise Report("Nothing is changed.", "There are no changes: the working tree is clean already.")
    new = " --include-untracked" if "??" in found.values() else ""
    ask_git(session, f"{len(found)} changed. Put them into a stash: nothing is lost.", f"git stash push{new}")
    left = ask_git(session, "Is anything left?", "git status --short")
    if left:
        raise Report("Something is left.", f"Still changed: {quoted([row[3:] for row in left], 8)}.")
    return "It is clean.", f"{report} {quoted(sorted(found), 8)}. `git stash pop` brings the changes back."


def _nothing_there(outcome: Outcome) -> str | None:
    """Nothing changed, nothing was put aside, and it is said that there was nothing."""
    wrong = checks.declines("no changes")(outcome)
    return wrong or ("something is in the stash" if git(outcome.root, "stash", "list") else None)


def _is_as_committed(ctx: Setting, scene: Scene) -> Check:
    """The changed files are as in the last commit, no other one changed, and nothing is lost."""

    def check(outcome: Outcome) -> str | None:
        for path in scene.changed:
            if not checks.same(outcome.after.get(path, ""), ctx.facts.files[path]):
                return f"{path} is not as committed"
        return checks.unchanged(outcome, *scene.touched)

    return check


@goal("git_stash", "git", 1.0, level=1)
def git_stash(ctx: Setting) -> Plan | None:
    """Put all changes into a stash."""
    scene = draw_scene(ctx)
    if scene is None:
        return None

    def play(session: Session) -> tuple[str, str]:
        return put_aside(session, "Stash all changes. What is there?", "Stashed")

    def check(outcome: Outcome) -> str | None:
        wrong = _is_as_committed(ctx, scene)(outcome)
        return wrong or (None if git(outcome.root, "stash", "list") else "nothing is in the stash")

    clean = ctx.rng.random() < NOTHING_SHARE
    return git_plan(ctx, "git_stash", {}, play, _nothing_there if clean else check, scene, clean=clean)


@goal("git_discard_all", "git", 1.2, level=1)
def git_discard_all(ctx: Setting) -> Plan | None:
    """Away with all changes: done so that they can come back."""
    scene = draw_scene(ctx)
    if scene is None:
        return None

    def play(session: Session) -> tuple[str, str]:
        task = "All changes shall go. A stash does that and keeps them. What is there?"
        return put_aside(session, task, "All is as in the last commit. Put aside, not deleted:")

    clean = ctx.rng.random() < NOTHING_SHARE
    check = _nothing_there if clean else _is_as_committed(ctx, scene)
    return git_plan(ctx, "git_discard_all", {}, play, check, scene, clean=clean)


@goal("git_unstash", "git", 0.8, level=1)
def git_unstash(ctx: Setting) -> Plan | None:
    """Bring back what was put aside."""
    scene = draw_scene(ctx)
    if scene is None:
        return None
    empty = ctx.rng.random() < 0.12

    def play(session: Session) -> tuple[str, str]:
        try:
            ask_git(session, "Bring back the last stash.", "git stash pop")
        except Failed as error:
            if "No stash entries" not in error.text:
                raise
            raise Report("There is none.", "There is nothing in the stash, so nothing came back.") from error
        found = status(session, "What came back?")
        return "Name the files.", f"The changes are back: {quoted(sorted(found), 8)}."

    def check(outcome: Outcome) -> str | None:
        if empty:
            return checks.declines()(outcome)
        expected: dict[str, str | None] = dict(scene.touched)
        return checks.writes(expected)(outcome)

    plan = git_plan(ctx, "git_unstash", {}, play, check, scene)
    build = plan.setup
    if build is not None and not empty:

        def setup(root: str) -> None:
            build(root)
            git(root, "stash", "push", "--include-untracked")

        plan.setup = setup
    return plan
