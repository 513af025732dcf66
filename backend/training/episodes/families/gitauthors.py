"""Who changed a file last, and when."""

import re

from k3agent.backend.training.episodes import checks, gitrepo
from k3agent.backend.training.episodes.families.gittasks import ask_git, draw_scene, git_plan
from k3agent.backend.training.episodes.families.look import names_in
from k3agent.backend.training.episodes.gitrepo import git
from k3agent.backend.training.episodes.policy import base_name, quoted
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Report, Session

COMMAND = "git log -1 --date=short --format='%h %ad %an: %s' -- "


def tells_of_last(path: str) -> Check:
    """The answer has author or day of the last commit of a file, as it was asked for, and no other ones."""

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        form = ("--date=short", "--format=%an|%ad")
        wanted = git(outcome.root, "log", "-1", *form, "--", path).strip()
        if not wanted:
            return checks.declines()(outcome)
        author, day = wanted.split("|")
        named = {name for name in gitrepo.NAMES if re.search(rf"\b{name}\b", outcome.answer)}
        days = set(re.findall(r"\d{4}-\d\d-\d\d", outcome.answer))
        if named <= {author} and days <= {day} and named | days:
            return None
        return f"the answer does not tell of {author} or {day} alone"

    return check


@goal("git_last_author", "git", 1.0, level=1)
def git_last_author(ctx: Setting) -> Plan | None:
    """The last commit of a file: who made it and when."""
    scene = draw_scene(ctx)
    if scene is None:
        return None
    rng = ctx.rng
    for commit in scene.repo.commits:
        commit.author = rng.choice(gitrepo.NAMES)
    path = rng.choice(scene.last if rng.random() < 0.5 else sorted(ctx.facts.files))
    if " " in path or not path.isascii() or path in scene.fresh:
        return None
    shown = ctx.path(path) if path in ctx.facts.files else path

    def play(session: Session) -> tuple[str, str]:
        real = shown.removeprefix("./")
        rows = ask_git(session, f"The last commit of {real}, with author and date.", COMMAND + real)
        if not rows:
            think = f"None for {real}. Where is it?"
            found = names_in(session.call("glob", think, pattern=f"**/{base_name(real)}").text)
            if not found:
                raise Report(f"There is no {real}.", f"No commit touches a file `{real}`.")
            if len(found) > 1:
                raise Report(
                    "Several have that name.", f"There are several: {quoted(found)}. Which one do you mean?"
                )
            real = found[0]
            rows = ask_git(session, f"It is {real}.", COMMAND + real)
        if not rows:
            raise Report("It is in no commit.", f"No commit touches `{real}`.")
        short, day, rest = rows[0].split(" ", 2)
        author, _, text = rest.partition(": ")
        think = f"{author}, {day}."
        return think, f"`{real}` was last changed by {author} on {day}, in the commit `{short}`: {text}"

    return git_plan(ctx, "git_last_author", {"path": shown}, play, tells_of_last(path), scene)
