"""Versions and dependencies: raising a part of a version, requiring another version of a package."""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.editing import change_line
from k3agent.backend.training.episodes.policy import Hit, esc, hits, open_file, quoted
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Plan, Report, Session

PARTS = ("patch", "patch", "minor", "major")


def bumped(version: str, part: str) -> str:
    """The next version."""
    numbers = [int(item) for item in version.split(".")]
    at = {"major": 0, "minor": 1, "patch": 2}[part]
    return ".".join(str(n) for n in [*numbers[:at], numbers[at] + 1, *([0] * (2 - at))])


VERSIONED = {
    "pyproject.toml": '[project]\nname = "NAME"\nversion = "VERSION"\nrequires-python = ">=3.11"\n',
    "package.json": '{\n  "name": "NAME",\n  "version": "VERSION",\n  "private": true\n}\n',
    "Cargo.toml": '[package]\nname = "NAME"\nversion = "VERSION"\n\n[dependencies]\nOTHER = "1.0"\n',
    "setup.cfg": "[metadata]\nname = NAME\nversion = VERSION\n",
    "VERSION": "VERSION\n",
    "version.py": '"""The version of NAME."""\n\n__version__ = "VERSION"\n',
    "Chart.yaml": "apiVersion: v2\nname: NAME\nversion: VERSION\n",
}
"""Files that have a version, with stand-ins for it, for the project's name and for another one."""


def versioned(ctx: Setting, path: str, version: str) -> str:
    """The text of such a file."""
    text = VERSIONED[path].replace("VERSION", version).replace("OTHER", ctx.words.noun())
    return text.replace("NAME", ctx.words.noun())


def draw_version(ctx: Setting) -> str:
    """A version of three numbers; now and then a part is about to get a digit more."""
    rng = ctx.rng
    return ".".join(
        str(rng.choice((rng.randint(0, 9), rng.randint(0, 9), 9, rng.randint(10, 30)))) for _ in range(3)
    )


@goal("bump_version", "data", 1.5, level=1)
def bump_version(ctx: Setting) -> Plan | None:
    """Raise a part of the version in a file."""
    path = ctx.rng.choice(sorted(VERSIONED))
    if any(other.endswith(path) for other in ctx.facts.files):
        return None
    old, part = draw_version(ctx), ctx.rng.choice(PARTS)
    text = versioned(ctx, path, old)
    new = bumped(old, part)

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, path, f"Raise the {part} version in {path}. Read it.")
        found = [
            (number, row, match[1])
            for number, row in view.lines
            if (match := re.match(r"^\W*(?:(?:__)?version(?:__)?\W*)?(\d+\.\d+\.\d+)\W*$", row))
        ]
        if len(found) != 1:
            raise Report(
                "No single version.", f"I find no single version in `{view.path}`. Nothing was changed."
            )
        number, row, have = found[0]
        think = f"Line {number} has {have}. The next {part} version is {bumped(have, part)}."
        fresh = row.strip().replace(have, bumped(have, part))
        change_line(session, view.path, number, row.strip(), fresh, think)
        return (
            "The diff shows it.",
            f"The version in `{view.path}` went from `{have}` to `{bumped(have, part)}`.",
        )

    check = checks.writes({path: text.replace(old, new)})
    slots = {"part": part, "path": path}
    return Plan(
        "bump_version",
        "data",
        slots,
        play,
        check,
        ("file", path),
        prepare=lambda files: files.update({path: text}),
    )


def requirement(ctx: Setting, package: str, version: str) -> tuple[str, str]:
    """A file that requires a package in a version, and its text."""
    rng, words = ctx.rng, ctx.words
    others = [ctx.unused(words.noun) for _ in range(rng.choice((1, 2, 3)))]
    names = [*others, package]
    rng.shuffle(names)
    versions = {name: f"{rng.randint(0, 9)}.{rng.randint(0, 20)}.{rng.randint(0, 9)}" for name in others}
    versions[package] = version
    sign = rng.choice(("==", ">=", "~="))
    match rng.choice(("txt", "toml", "json", "cargo")):
        case "txt":
            return "requirements.txt", "".join(f"{name}{sign}{versions[name]}\n" for name in names)
        case "toml":
            rows = "".join(f'    "{name}{sign}{versions[name]}",\n' for name in names)
            return "pyproject.toml", f'[project]\nname = "{words.noun()}"\ndependencies = [\n{rows}]\n'
        case "json":
            mark = rng.choice(("^", "~", ""))
            rows = ",\n".join(f'    "{name}": "{mark}{versions[name]}"' for name in names)
            return (
                "package.json",
                f'{{\n  "name": "{words.noun()}",\n  "dependencies": {{\n{rows}\n  }}\n}}\n',
            )
    rows = "".join(f'{name} = "{versions[name]}"\n' for name in names)
    return "Cargo.toml", f'[package]\nname = "{words.noun()}"\n\n[dependencies]\n{rows}'


def required_at(session: Session, think: str, package: str) -> Hit:
    """The one line that requires a package; a report where there is none, or several."""
    found = hits(session.call("grep", think, pattern=esc(package)))
    rows = [hit for hit in found if re.search(r"\d", hit.text)]
    if len(rows) != 1:
        places = quoted([hit.at for hit in rows]) if rows else "no file"
        raise Report("Not one place.", f"`{package}` is required in {places}. Nothing was changed.")
    return rows[0]


@goal("set_dep", "data", 1.5, level=1)
def set_dep(ctx: Setting) -> Plan | None:
    """Require another version of a package."""
    rng = ctx.rng
    package = ctx.unused(lambda: rng.choice((ctx.words.noun(), f"{ctx.words.noun()}-{ctx.words.noun()}")))
    old, new = draw_version(ctx), draw_version(ctx)
    path, text = requirement(ctx, package, old)
    if any(other.endswith(path) for other in ctx.facts.files) or old == new or text.count(old) != 1:
        return None

    def play(session: Session) -> tuple[str, str]:
        think = f"Require {package} {new}. Where is it required?"
        hit = required_at(session, think, package)
        match = re.search(r"\d[\w.]*", hit.text.split(package, 1)[1])
        assert match is not None
        head, _, tail = hit.text.strip().partition(package)
        fresh = f"{head}{package}{tail.replace(match[0], new, 1)}"
        if fresh == hit.text.strip():
            raise Report("It is so already.", f"`{hit.path}` requires `{package}` {new} already.")
        change_line(
            session, hit.path, hit.line, hit.text.strip(), fresh, f"{hit.path} has {hit.text.strip()}"
        )
        return "The diff shows it.", f"`{hit.path}` requires `{fresh.strip(',')}` now (was {match[0]})."

    check = checks.writes({path: text.replace(old, new)})
    slots = {"package": package, "version": new}
    return Plan(
        "set_dep",
        "data",
        slots,
        play,
        check,
        ("file", path),
        prepare=lambda files: files.update({path: text}),
    )
