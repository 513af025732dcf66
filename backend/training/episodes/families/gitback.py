"""Commits taken back or reworded, and commits that a hook refuses: the report says what git said."""

import re
from collections.abc import Callable
from pathlib import Path

from k3agent.backend.training.episodes import checks, gitrepo
from k3agent.backend.training.episodes.families.gittasks import (
    Scene,
    ask_git,
    draw_scene,
    git_plan,
    quote,
)
from k3agent.backend.training.episodes.families.running import denied
from k3agent.backend.training.episodes.gitrepo import git
from k3agent.backend.training.episodes.policy import quoted
from k3agent.backend.training.episodes.registry import GOALS, Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Report, Session

ONLY_SHARE = 0.15
"""Of the commits that shall be undone, the first one, which has none before it."""
ALREADY_SHARE = 0.2
"""Of the folders that are to become repositories, those that are some."""
COMPLAINTS = (
    "lint: {}: line too long",
    "{}: trailing whitespace",
    "pre-commit: 1 check failed for {}",
    "black would reformat {}",
    "ruff: 2 errors in {}",
    "ERROR: {} is too large",
    "the tests of {} fail; commit refused",
)


def _subjects(root: str) -> list[str]:
    return git(root, "log", "--format=%s").split("\n")[:-1]


@goal("git_undo_commit", "git", 2.2, level=1)
def git_undo_commit(ctx: Setting) -> Plan | None:
    """Take back the last commit; what it changed stays in the files."""
    scene = draw_scene(ctx)
    if scene is None:
        return None
    only = len(scene.repo.commits) == 1
    if only != (ctx.rng.random() < ONLY_SHARE):
        return None
    before = [commit.subject for commit in reversed(scene.repo.commits)]
    clean = ctx.rng.random() < 0.6

    def play(session: Session) -> tuple[str, str]:
        think = "Undo the last commit, keep what it changed. Which commits are there?"
        rows = ask_git(session, think, "git log --oneline -n 2")
        short, _, subject = rows[0].partition(" ")
        if len(rows) == 1:
            raise Report(
                "There is none before it.",
                f"`{short}` ({subject}) is the only commit: there is none to go back to. Nothing was done.",
            )
        think = f"Take back {short}. A soft reset leaves the files as they are."
        ask_git(session, think, "git reset --soft HEAD~1")
        found = ask_git(session, "What is not committed now?", "git status --short")
        last = f"The last one is `{rows[1].partition(' ')[0]}` now; the files are as they were."
        left = f" Not committed: {quoted([row[3:] for row in found], 8)}." if found else ""
        return "It is taken back.", f"Undid the commit `{short}` ({subject}). {last}{left}"

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome) or checks.says(outcome, before[0]):
            return wrong
        if only:
            return checks.declines()(outcome) or (
                "a commit is gone" if _subjects(outcome.root) != before else None
            )
        return None if _subjects(outcome.root) == before[1:] else "the last commit is not taken back"

    return git_plan(ctx, "git_undo_commit", {}, play, check, scene, clean=clean)


@goal("git_reword", "git", 1.0, level=1)
def git_reword(ctx: Setting) -> Plan | None:
    """Give the last commit another message."""
    scene = draw_scene(ctx)
    if scene is None:
        return None
    message = gitrepo.subject(ctx.rng, ctx.words)
    before = [commit.subject for commit in reversed(scene.repo.commits)]

    def play(session: Session) -> tuple[str, str]:
        rows = ask_git(session, f"New message: {message}. What is the old one?", "git log --oneline -n 1")
        old = rows[0].partition(" ")[2]
        command = f"git commit --amend --only -m {quote(message)}"
        made = ask_git(session, "Amend the message alone.", command)
        match = next((found for row in made if (found := re.match(r"\[.+ (\w+)\]", row))), None)
        name = f" It is `{match[1]}` now." if match else ""
        return "It is amended.", f"The message of the last commit was: {old}. Now it is: {message}.{name}"

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome) or checks.says(outcome, message):
            return wrong
        have = _subjects(outcome.root)
        return None if have == [message, *before[1:]] else f"the commits are {have}"

    return git_plan(ctx, "git_reword", {"message": message}, play, check, scene, clean=ctx.rng.random() < 0.5)


@goal("git_init", "git", 0.8, level=1)
def git_init(ctx: Setting) -> Plan | None:
    """Make the folder a git repository, where it is none."""
    scene = draw_scene(ctx)
    if scene is None:
        return None
    is_one = ctx.rng.random() < ALREADY_SHARE

    def play(session: Session) -> tuple[str, str]:
        think = "Make this folder a git repository. Is it one?"
        result = session.call("shell", think, command="git rev-parse --is-inside-work-tree")
        if result.is_error:
            raise denied(result.text)
        if "not a git repository" not in result.text:
            raise Report("It is one.", "This folder is a git repository already. Nothing was done.")
        ask_git(session, "It is not. Make it one.", "git init")
        return "It is made.", "Made this folder a git repository with `git init`. Nothing is committed yet."

    def check(outcome: Outcome) -> str | None:
        if is_one:
            return checks.declines("already")(outcome)
        is_made = Path(outcome.root, ".git").is_dir()
        return checks.unchanged(outcome) or (None if is_made else "there is no repository")

    setup = scene.repo.build if is_one else None
    return Plan("git_init", "git", {}, play, check, setup=setup, alone=True)


def _with_hook(build: Callable[[str], None], complaint: str) -> Callable[[str], None]:
    """The repository with a hook that refuses each commit."""

    def setup(root: str) -> None:
        build(root)
        hooks = Path(root, ".git", "hooks")
        hooks.mkdir(exist_ok=True)
        hook = hooks / "pre-commit"
        hook.write_text(f"#!/bin/sh\necho '{complaint}'\nexit 1\n", encoding="utf-8")
        hook.chmod(0o755)
        git(root, "config", "core.hooksPath", ".git/hooks")

    return setup


def _not_committed(scene: Scene, complaint: str) -> Check:
    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome) or checks.says(outcome, complaint):
            return wrong
        if len(_subjects(outcome.root)) != len(scene.repo.commits):
            return "something was committed"
        return checks.declines()(outcome)

    return check


@goal("commit_refused", "git", 1.0, level=1)
def commit_refused(ctx: Setting) -> Plan | None:
    """A commit that a hook refuses: nothing is committed, and that is told with the reason."""
    scene = draw_scene(ctx)
    if scene is None:
        return None
    plan = GOALS[ctx.rng.choice(("git_commit", "git_commit", "git_commit_own"))].make(ctx)
    if plan is None or plan.setup is None:
        return None
    complaint = ctx.rng.choice(COMPLAINTS).format(ctx.rng.choice(sorted(scene.touched)))
    if "'" in complaint:
        return None
    plan.check = _not_committed(scene, complaint)
    plan.prepare = lambda files: files.update(scene.touched)
    plan.setup = _with_hook(scene.repo.build, complaint)
    return plan
