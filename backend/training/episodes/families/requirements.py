"""A project's manifest: a package more, a package less, a whole version as it is said."""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.editing import change_line
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.families.settingsfiles import take_out
from k3agent.backend.training.episodes.families.versions import (
    VERSIONED,
    draw_version,
    required_at,
    requirement,
    versioned,
)
from k3agent.backend.training.episodes.policy import View, open_file
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session

SPEC = re.compile(r"([A-Za-z][\w.-]*)\s*(==|>=|~=|@|\^| )?\s*(\d[\w.-]*)?$")
VERSION = re.compile(r"^\W*(?:(?:__)?version(?:__)?\W*)?(\d+\.\d+[\w.+-]*)\W*$")


def _package(ctx: Setting) -> str:
    """The name of a package that occurs nowhere."""
    words = ctx.words
    return ctx.unused(
        lambda: ctx.rng.choice((words.noun(), f"{words.noun()}-{words.noun()}", f"py{words.noun()}"))
    )


def _long_version(ctx: Setting) -> str:
    """A version as releases have them: three numbers, four, a year, a stage behind them."""
    rng = ctx.rng
    plain = draw_version(ctx)
    return rng.choice(
        (
            plain,
            plain,
            plain,
            f"{plain}-{rng.choice(('rc', 'beta', 'alpha'))}.{rng.randint(1, 12)}",
            f"{plain}{rng.choice(('rc', 'b', 'a', '.dev', '.post'))}{rng.randint(1, 12)}",
            f"{rng.randint(2024, 2027)}.{rng.randint(1, 12)}.{rng.randint(0, 31)}",
            f"{plain}.{rng.randint(0, 99)}",
            f"{rng.randint(0, 30)}.{rng.randint(0, 120)}",
        )
    )


@goal("set_whole_version", "data", 1.8, level=1)
def set_whole_version(ctx: Setting) -> Plan | None:
    """Write a whole version into a manifest."""
    path = ctx.rng.choice((*sorted(VERSIONED), "pyproject.toml", "package.json"))
    if any(other.endswith(path) for other in ctx.facts.files):
        return None
    old, new = draw_version(ctx), _long_version(ctx)
    text = versioned(ctx, path, old)
    if old == new or text.count(old) != 1:
        return None

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, path, f"The version in {path} becomes {new}. Read it.")
        found = [(number, row, match[1]) for number, row in view.lines if (match := VERSION.match(row))]
        if len(found) != 1:
            raise Report(
                "No single version.", f"I find no single version in `{view.path}`. Nothing was changed."
            )
        number, row, have = found[0]
        fresh = row.strip().replace(have, new)
        think = f"It is {have} at {view.path}:{number}; put {new}."
        change_line(session, view.path, number, row.strip(), fresh, think)
        return "The diff shows it.", f"The version in `{view.path}` is `{new}` now; it was `{have}`."

    return Plan(
        "set_whole_version",
        "data",
        {"version": new, "path": path},
        play,
        checks.writes({path: text.replace(old, new)}),
        ("file", path),
        prepare=lambda files: files.update({path: text}),
    )


def entry_like(path: str, other: str, spec: str) -> str:
    """A dependency as the manifest writes it, after the pattern of another one's line."""
    match = SPEC.match(spec)
    name, sign, version = (match[1], match[2] or "", match[3] or "") if match else (spec, "", "")
    kind = extension(path)
    if kind == "json":
        mark = re.search(r'": "([^\d"]?)', other)
        return f'"{name}": "{mark[1] if mark else "^"}{version}"' if version else f'"{name}": "*"'
    if path.endswith("Cargo.toml"):
        return f'{name} = "{version or "*"}"'
    if sign not in ("==", ">=", "~="):
        found = re.search(r"[=<>~]=", other)
        sign = found[0] if found else "=="
    return f'"{name}{sign}{version}"' if version else f'"{name}"'


def _last_dependency(view: View) -> tuple[int, str]:
    """The line of the last dependency in a manifest; a report where there is none."""
    rows = dict(view.lines)
    start = next((n for n, row in view.lines if re.search(r"\bdependencies\b", row)), 0)
    last = 0
    for number in range(start + 1, view.total + 1):
        row = rows.get(number, "").strip()
        if start and re.match(r'"?[A-Za-z][\w.-]*"?[^\[{]*\d', row):
            last = number
        elif row:
            break
    if not last:
        raise Report(
            "No dependencies there.", f"I find no list of dependencies in `{view.path}`. Nothing was changed."
        )
    return last, rows[last]


@goal("add_requirement", "data", 1.8, level=1)
def add_requirement(ctx: Setting) -> Plan | None:
    """Add a dependency to a manifest that has some."""
    rng = ctx.rng
    path, text = requirement(ctx, _package(ctx), draw_version(ctx))
    if path.endswith(".txt") or any(other.endswith(path) for other in ctx.facts.files):
        return None
    name, version = _package(ctx), draw_version(ctx)
    forms = [name, f"{name} {version}", f"{name} {version}"]
    forms += [f"{name}@{version}"] if path.endswith(".json") else []
    forms += [f"{name}{rng.choice(('>=', '==', '~='))}{version}"] if path == "pyproject.toml" else []
    said = rng.choice(forms)
    if name in text:
        return None
    lead, tail = {"json": ("    ", ""), "pyproject.toml": ("    ", ",")}.get(
        "json" if path.endswith(".json") else path, ("", "")
    )

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, path, f"Add the dependency {said} to {path}. Read it.")
        number, row = _last_dependency(view)
        old = row.strip()
        fresh = entry_like(view.path, old, said)
        joined = f"{old}{',' if path.endswith('.json') else ''}\n{lead}{fresh}{tail}"
        think = f"The last dependency is line {number}: {old} After it comes {fresh}"
        change_line(session, view.path, number, old, joined, think)
        return "The diff shows it.", f"Added the dependency `{fresh}` to `{view.path}`."

    rows = text.splitlines()
    at = max(n for n, row in enumerate(rows) if re.search(r"\d+\.\d+\.\d+", row))
    wanted = [*rows[:at], rows[at] + ("," if path.endswith(".json") else "")]
    wanted += [lead + entry_like(path, rows[at].strip(), said) + tail, *rows[at + 1 :]]

    def check(outcome: Outcome) -> str | None:
        have = [row.strip().strip(",") for row in outcome.after.get(path, "").splitlines() if row.strip()]
        if sorted(have) != sorted(row.strip().strip(",") for row in wanted if row.strip()):
            return f"{path} is not as asked"
        return checks.unchanged(outcome, path)

    slots = {"package": said, "path": path}
    prepare = {path: text}
    return Plan(
        "add_requirement",
        "data",
        slots,
        play,
        check,
        ("file", path),
        prepare=lambda files: files.update(prepare),
    )


@goal("remove_requirement", "data", 1.6, level=1)
def remove_requirement(ctx: Setting) -> Plan | None:
    """Take a dependency out."""
    package = _package(ctx)
    path, text = requirement(ctx, package, draw_version(ctx))
    if any(other.endswith(path) for other in ctx.facts.files):
        return None
    missing = ctx.rng.random() < 0.08
    said = _package(ctx) if missing else package
    if missing and said in text:
        return None
    wanted = [row.strip().strip(",") for row in text.splitlines() if f"{package}" not in row and row.strip()]

    def play(session: Session) -> tuple[str, str]:
        think = f"Remove the dependency {said}. Where is it required?"
        hit = required_at(session, think, said)
        view = open_file(session, hit.path, f"It is in {hit.at}. Read the file.")
        take_out(session, view, hit.line, said)
        return "The diff shows it.", f"Removed the dependency `{said}` from `{view.path}`."

    def check(outcome: Outcome) -> str | None:
        if missing:
            return checks.declines(said)(outcome)
        after = outcome.after.get(path, "")
        if [row.strip().strip(",") for row in after.splitlines() if row.strip()] != wanted:
            return f"{path} is not as asked"
        if path.endswith(".json") and re.search(r",\s*}", after):
            return f"{path} has a comma too many"
        return checks.unchanged(outcome, path)

    slots = {"package": said}
    return Plan(
        "remove_requirement",
        "data",
        slots,
        play,
        check,
        ("file", path),
        prepare=lambda files: files.update({path: text}),
    )
