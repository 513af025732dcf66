"""What people say after a finished task: rename it back, do the same elsewhere, run the tests, why."""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.families.adding import append, open_end
from k3agent.backend.training.episodes.families.names import expected_rename, play_rename
from k3agent.backend.training.episodes.families.running import play_tests
from k3agent.backend.training.episodes.policy import open_file
from k3agent.backend.training.episodes.registry import GOALS, Setting
from k3agent.backend.training.episodes.renaming import renames
from k3agent.backend.training.episodes.session import Outcome, Plan, Session
from k3agent.backend.training.episodes.testruns import parse_run

PUT_BACK = (
    "The user has undone changes: these files are again as they were before step {0}: {1}."
    " Read a file again before you change it, and do not repeat what was undone unless asked."
)
"""What k3agent says after an undo (a test compares the words)."""
IN_FILE = ("set_const_in", "set_key", "add_line_end", "replace_text", "add_after", "rename_in", "add_const")
RESULT = re.compile(r"pass|fail|could not|may not|no test ran|error", re.IGNORECASE)


def rename_back(ctx: Setting, after: Plan, session: Session) -> Plan | None:
    """The old name again."""
    old, new = after.slots.get("old"), after.slots.get("new")
    if after.goal not in ("rename", "rename_kind") or not old or not new:
        return None
    lines = ctx.facts.word_lines(new)
    if not lines or len(lines) > 10 or ctx.facts.word_lines(old):
        return None
    said = ctx.rng.choice(("rename_back", "rename_back", "undo_it"))
    check = renames(expected_rename(ctx, new, old))
    return Plan(said, "rename", {}, lambda s: play_rename(s, new, old), check, ("def", old))


def run_tests_too(ctx: Setting, after: Plan, session: Session) -> Plan | None:
    """The tests after a change."""
    if not session.edits or not ctx.facts.test_paths():
        return None

    def check(outcome: Outcome) -> str | None:
        return checks.unchanged(outcome) or (None if RESULT.search(outcome.answer) else "no result is told")

    return Plan(
        "run_tests_too", "run", {}, lambda s: play_tests(s, "Run the tests now."), check, after.subject
    )


def same_in(ctx: Setting, after: Plan, session: Session) -> Plan | None:
    """The same line at the end of another file."""
    line, path = after.slots.get("line"), after.slots.get("path")
    if after.goal != "add_line_end" or not line or not path or "\n" in line or "`" in line:
        return None
    ending = path.rsplit(".", 1)[-1]
    pool = [
        other
        for other, text in sorted(ctx.facts.files.items())
        if other.endswith("." + ending) and line not in text and text.strip()
        if "\r" not in text and text.endswith("\n") and not text.endswith("\n\n") and "__main__" not in text
    ]
    if not pool:
        return None
    other = ctx.rng.choice(pool)
    last = ctx.facts.files[other].splitlines()[-1]
    if last.startswith((" ", "\t")):
        return None
    shown = ctx.path(other)

    def play(s: Session) -> tuple[str, str]:
        view = open_end(s, shown, f"The same in {shown}: add {line} at the end. Read it.")
        append(s, view, line)
        return "The diff shows it.", f"Added `{line}` at the end of `{view.path}` too."

    check = checks.writes({other: f"{ctx.facts.files[other]}{line}\n"})
    return Plan("same_in", "addline", {"path": shown}, play, check, ("file", other))


def why_it(ctx: Setting, after: Plan, session: Session) -> Plan | None:
    """Why a repair was needed: what the tests said, and the line."""
    last = session.messages[-1]["content"]
    if after.family != "fix" or not session.edits or not last.startswith("Fixed"):
        return None
    path, old, new = session.edits[-1]
    if "\n" in old + new or not old.strip():
        return None
    runs = [parse_run(item["content"]) for item in session.messages if item["role"] == "tool"]
    errors = [failure.error for run in runs for failure in run.failures if failure.error]
    told = f"a test showed `{errors[-1]}`" if errors else "that did not do what you asked for"

    def play(s: Session) -> tuple[str, str]:
        think = f"They ask why I changed {path}. Say what was wrong there."
        return think, f"Because `{path}` had `{old.strip()}`, and {told}. With `{new.strip()}` that is right."

    return Plan("why_it", after.family, {}, play, checks.answers(path, old.strip()), after.subject)


def put_back(ctx: Setting, after: Plan, session: Session) -> Plan | None:
    """The user has undone the last edit and asks for something else in that file: read it again first."""
    path, old, new = session.edits[-1] if session.edits else ("", "", "")
    text = ctx.facts.files.get(path, "")
    if (
        not text
        or text.count(new) != 1
        or not new.strip()
        or sum(edit[0] == path for edit in session.edits) != 1
    ):
        return None
    before = text.replace(new, old, 1)
    only = Setting(Facts({path: before}), ctx.rng, ctx.words)
    step = sum(message["role"] == "tool" for message in session.messages) + ctx.rng.randint(0, 3)
    for _ in range(8):
        plan = GOALS[ctx.rng.choice(IN_FILE)].make(only)
        if plan is not None and plan.slots.get("path", "").endswith(path.rsplit("/", 1)[-1]):
            break
    else:
        return None

    def play(s: Session) -> tuple[str, str]:
        s.user(PUT_BACK.format(step, path))
        open_file(s, path, f"{path} was put back. Read it again before I change it.")
        return plan.play(s)

    return Plan(
        plan.goal,
        plan.family,
        plan.slots,
        play,
        plan.check,
        plan.subject,
        prepare=lambda files: files.update({path: before}),
    )
