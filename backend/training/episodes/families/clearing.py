"""Folders and kinds of files that are to go, and commands that fail: the report is what the tools said."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.families.look import bare_folder, makes, names_in
from k3agent.backend.training.episodes.families.names import run_shell
from k3agent.backend.training.episodes.policy import base_name, counted, quoted
from k3agent.backend.training.episodes.registry import GOALS, Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Report, Session

KINDS = ("log", "log", "tmp", "bak", "orig", "txt", "csv", "old", "out", "swp", "cache", "dat")
MOST = 8
"""Files of a folder or a kind: more would not be named in a report."""
NONE_SHARE = 0.15
"""Of the requests, those about what is not there."""
BARE_SHARE = 0.15
"""Of them, those about a folder that is there and has no file in it."""
REFUSALS = ("Permission denied", "Operation not permitted", "Read-only file system", "Input/output error")
CHANGING = ("delete_file", "delete_file", "delete_folder", "move_file", "rename_file", "copy_file")
CHANGING = (*CHANGING, "create_folder", "empty_folder")
"""Goals whose change is one command, which may fail."""


def find_folder(session: Session, name: str, think: str) -> tuple[str, list[str], list[str]]:
    """The folder of this name, the files in it and the folders in it."""
    asked = name.strip("/").removeprefix("./")
    rows = names_in(session.call("glob", think, pattern=f"**/{base_name(asked)}").text)
    folders = [row.rstrip("/") for row in rows if row.endswith("/")]
    fitting = [row for row in folders if row == asked] or folders
    if not fitting:
        raise Report(
            f"There is no folder {asked}.",
            f"There is no folder `{asked}` in this project. Nothing was deleted.",
        )
    if len(fitting) > 1:
        raise Report(
            f"{len(fitting)} folders fit.",
            f"There are several folders of that name: {quoted(fitting)}. Which one do you mean?",
        )
    found = names_in(
        session.call("glob", f"It is {fitting[0]}. What is in it?", pattern=f"{fitting[0]}/**").text
    )
    inside = [row for row in found if not row.endswith("/")]
    return fitting[0], inside, [row for row in found if row.endswith("/")]


def play_delete_folder(session: Session, name: str) -> tuple[str, str]:
    """Delete a folder with all that is in it."""
    folder, inside, _ = find_folder(session, name, f"Delete the folder {name.strip('/')} itself. Find it.")
    command = f"rm -r {shlex.quote(folder)}"
    if not inside:
        run_shell(session, f"No files in {folder}. Remove it.", command, f"delete `{folder}`")
        return "Exit code 0: it is gone.", f"Deleted the folder `{folder}`. I saw no files in it."
    run_shell(session, f"{_files(inside)}. Remove it all.", command, f"delete `{folder}`")
    return "Exit code 0: it is gone.", f"Deleted the folder `{folder}` with {_files(inside, named=True)}."


def play_empty_folder(session: Session, name: str) -> tuple[str, str]:
    """Delete all that is in a folder; the folder stays."""
    task = f"Delete everything in {name.strip('/')}, keep the folder. Find it."
    folder, inside, below = find_folder(session, name, task)
    if below and not inside:
        run_shell(
            session,
            f"No files, but {quoted(below, 4)}. Remove what is in {folder}, keep {folder}.",
            f"rm -r {shlex.quote(folder)}/*",
            f"delete what is in `{folder}`",
        )
        return "Exit code 0: it is gone.", f"Deleted {quoted(below, 4)} in `{folder}`. I saw no files in it."
    if not inside:
        raise Report("It is empty.", f"`{folder}` is empty already. Nothing was deleted.")
    command = f"rm -r {shlex.quote(folder)}/*"
    run_shell(
        session, f"{_files(inside)}. Remove them, keep the folder.", command, f"delete what is in `{folder}`"
    )
    return "Exit code 0: they are gone.", f"Deleted {_files(inside, named=True)} in `{folder}`."


def _files(inside: list[str], *, named: bool = False) -> str:
    """How many files, and which."""
    count = counted(len(inside), "file")
    return f"{count}: {quoted(inside, 4)}" if named and inside else count


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder as it is asked for, its files, which shall go, and what is made for it (without files)."""

    shown: str
    gone: dict[str, str | None]
    made: str = ""


def _draw_folder(ctx: Setting) -> _Folder | None:
    """A folder with files, one without, or none."""
    rng, files, roll = ctx.rng, ctx.facts.files, ctx.rng.random()
    slash = "/" if rng.random() < 0.2 else ""
    if roll < NONE_SHARE:
        return _Folder(ctx.unused(ctx.words.noun), {})
    if roll < NONE_SHARE + BARE_SHARE:
        bare = bare_folder(ctx)
        below = f"/{ctx.words.noun()}" if rng.random() < 0.2 else ""
        return _Folder(bare + slash, {}, bare + below)
    folder = ctx.choose(ctx.facts.folders)
    if not isinstance(folder, str) or not re.fullmatch(r"[\w./-]+", folder):
        return None
    gone: dict[str, str | None] = {path: None for path in files if path.startswith(f"{folder}/")}
    if not 0 < len(gone) <= MOST or any(base_name(path).startswith(".") for path in gone):
        return None
    return _Folder((base_name(folder) if rng.random() < 0.25 else folder) + slash, gone)


def _bare_plan(name: str, drawn: _Folder) -> Plan:
    """A plan for a folder in which there are no files."""
    folder = drawn.shown.rstrip("/")
    is_delete = name == "delete_folder"

    def check(outcome: Outcome) -> str | None:
        if is_delete and outcome.root and Path(outcome.root, folder).exists():
            return f"the folder {folder} is still there"
        if not is_delete and outcome.root and not Path(outcome.root, folder).is_dir():
            return f"the folder {folder} is gone"
        if not is_delete and outcome.root and any(Path(outcome.root, folder).iterdir()):
            return f"the folder {folder} is not empty"
        return checks.unchanged(outcome) or checks.says(outcome, base_name(folder))

    play = play_delete_folder if is_delete else play_empty_folder
    slots = {"dir": drawn.shown}
    return Plan(
        name,
        "replace",
        slots,
        lambda session: play(session, drawn.shown),
        check,
        setup=makes(drawn.made),
        alone=True,
    )


def _folder_plan(ctx: Setting, name: str) -> Plan | None:
    """A plan of one of the goals about folders."""
    drawn = _draw_folder(ctx)
    if drawn is None:
        return None
    if drawn.made:
        return _bare_plan(name, drawn)
    shown, gone = drawn.shown, drawn.gone
    base = base_name(shown)
    same = [folder for folder in ctx.facts.folders if base_name(folder) == base]
    is_clear = bool(gone) and (len(same) == 1 or shown.rstrip("/") in same)
    check = checks.writes(gone) if is_clear else checks.declines(base)
    play = play_delete_folder if name == "delete_folder" else play_empty_folder
    return Plan(name, "replace", {"dir": shown}, lambda session: play(session, shown), check)


@goal("delete_folder", "replace", 0.9, level=1)
def delete_folder(ctx: Setting) -> Plan | None:
    """Delete a folder and what is in it."""
    return _folder_plan(ctx, "delete_folder")


@goal("empty_folder", "replace", 0.6, level=1)
def empty_folder(ctx: Setting) -> Plan | None:
    """Delete what is in a folder."""
    return _folder_plan(ctx, "empty_folder")


@goal("delete_kind", "replace", 0.7, level=1)
def delete_kind(ctx: Setting) -> Plan | None:
    """Delete all files with an ending."""
    rng, words, files = ctx.rng, ctx.words, ctx.facts.files
    kind = rng.choice(KINDS)
    homes = ["", "", *(f"{folder}/" for folder in ctx.facts.folders)]
    fresh = {f"{rng.choice(homes)}{words.noun()}.{kind}": words.phrase() for _ in range(rng.randint(1, 5))}
    if rng.random() < NONE_SHARE:
        fresh = {}
    gone: dict[str, str | None] = dict.fromkeys(
        sorted({*fresh, *(path for path in files if path.endswith(f".{kind}"))})
    )
    if len(gone) > MOST or any(" " in path for path in gone) or f".{kind}" in files.get(".gitignore", ""):
        return None

    def play(session: Session) -> tuple[str, str]:
        think = f"Delete all .{kind} files. Which are there?"
        found = names_in(session.call("glob", think, pattern=f"**/*.{kind}").text)
        if not found:
            raise Report("None.", f"There are no `.{kind}` files in this project. Nothing was deleted.")
        command = " ".join(["rm", *(shlex.quote(path) for path in found)])
        run_shell(session, f"{_files(found)}. Remove them.", command, f"delete {quoted(found)}")
        return "Exit code 0: they are gone.", f"Deleted {_files(found, named=True)}."

    check: Check = checks.writes(gone) if gone else checks.declines(kind)
    said = rng.choice((f".{kind}", f".{kind}", f"*.{kind}", kind))
    return Plan(
        "delete_kind",
        "replace",
        {"kind": said},
        play,
        check,
        prepare=lambda now: now.update(fresh),
        alone=True,
    )


def _could_not(outcome: Outcome) -> str | None:
    """Nothing changed, and it is said that it could not be done, and why."""
    if wrong := checks.unchanged(outcome):
        return wrong
    if re.search(r"\b(?:may|could) not\b", outcome.answer):
        return None
    return checks.declines()(outcome)


@goal("change_refused", "recover", 1.6, level=1)
def change_refused(ctx: Setting) -> Plan | None:
    """A command that is to change files and is refused by the system: that is told, and no success."""
    plan = GOALS[ctx.rng.choice(CHANGING)].make(ctx)
    if plan is None or plan.setup or plan.prepare:
        return None
    why = ctx.rng.choice(REFUSALS)

    def play(session: Session) -> tuple[str, str]:
        session.box.machine.refused = why
        try:
            return plan.play(session)
        finally:
            session.box.machine.refused = ""

    return Plan(plan.goal, "recover", plan.slots, play, _could_not, refused=why)
