"""Running the linter: which one the settings name, what it prints, and that there is none."""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.families.running import run_installed
from k3agent.backend.training.episodes.policy import Hit, base_name, hits
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Plan, Report, Session

SETTINGS = (
    "pyproject.toml",
    "setup.cfg",
    "tox.ini",
    ".flake8",
    "Makefile",
    "package.json",
    "requirements*.txt",
)
NAMED = r"\b(ruff|flake8|eslint|lint)\b"
NONE_SHARE = 0.22
MISSING_SHARE = 0.25
"""Of the linters that are set up, those that are not installed."""
FOUND_SHARE = 0.55
MAX_SHOWN = 8
SET_UP: tuple[tuple[str, str, str], ...] = (
    ("pyproject.toml", "[tool.ruff]\nline-length = {n}\n", "ruff check ."),
    ("pyproject.toml", '[tool.ruff.lint]\nselect = ["E", "F"]\n', "ruff check ."),
    ("setup.cfg", "[flake8]\nmax-line-length = {n}\n", "flake8"),
    ("requirements-dev.txt", "flake8=={d}.0\n", "flake8"),
    ("requirements-dev.txt", "ruff==0.{d}.2\n", "ruff check ."),
    ("Makefile", "lint:\n\truff check .\n", "make lint"),
    ("Makefile", "lint:\n\tflake8 --max-line-length {n}\n", "make lint"),
    ("package.json", '{{\n  "scripts": {{\n    "lint": "eslint ."\n  }}\n}}\n', "npm run lint"),
    ("package.json", '{{\n  "devDependencies": {{\n    "eslint": "^{d}.0.0"\n  }}\n}}\n', "npx eslint ."),
)
"""File, text, and the command that follows from it."""
COMPLAINTS = (
    "F401 `{}` imported but unused",
    "F841 local variable '{}' is assigned to but never used",
    "E501 line too long (104 > 100 characters)",
    "E302 expected 2 blank lines, found 1",
    "W291 trailing whitespace",
    "E711 comparison to None",
    "F821 undefined name '{}'",
    "no-unused-vars '{}' is assigned a value but never used",
)


def command_for(found: list[Hit]) -> str:
    """The command that runs the linter which some lines of settings name; '' where none does."""
    for hit in found:
        home = base_name(hit.path)
        if home == "Makefile" and hit.text.startswith("lint:"):
            return "make lint"
        if home == "package.json" and re.match(r'\s*"lint":', hit.text):
            return "npm run lint"
    for word, command in (("ruff", "ruff check ."), ("flake8", "flake8"), ("eslint", "npx eslint .")):
        if any(re.search(rf"\b{word}\b", hit.text) for hit in found):
            return command
    return ""


def _play(session: Session) -> tuple[str, str]:
    """Look which linter is set up, run it, tell what it says."""
    glob = f"{{{','.join(SETTINGS)}}}"
    think = "Run the linter. Which one do the settings name?"
    command = command_for(hits(session.call("grep", think, pattern=NAMED, glob=glob, limit=10)))
    if not command:
        raise Report(
            "No linter is set up.",
            "I find no linter in the settings of this project, so I ran none. Which command shall I run?",
        )
    rows, code = run_installed(session, f"They name it. Run {command}", command)
    if not code:
        said = f": `{rows[-1]}`" if rows else "."
        return "Exit code 0: nothing to complain.", f"`{command}` finds no problems{said}"
    shown = "\n".join(rows[:MAX_SHOWN])
    more = f"\nand {len(rows) - MAX_SHOWN} more lines." if len(rows) > MAX_SHOWN else ""
    return f"Exit code {code}: it complains.", f"`{command}` complains:\n```\n{shown}\n```{more}"


def _complaints(ctx: Setting) -> list[str]:
    """What a linter says of files of the project."""
    rng, paths = ctx.rng, ctx.facts.code_paths() or ["main.py"]
    rows = [
        f"{rng.choice(paths)}:{rng.randint(1, 60)}:{rng.randint(1, 30)}: "
        + rng.choice(COMPLAINTS).format(ctx.words.noun())
        for _ in range(rng.choice((1, 1, 2, 2, 3, 5)))
    ]
    return sorted(set(rows))


@goal("run_linter", "run", 1.0, level=1)
def run_linter(ctx: Setting) -> Plan | None:
    """Run the linter that the project's settings name."""
    rng, files = ctx.rng, ctx.facts.files
    names = "|".join(re.escape(name).replace(r"\*", ".*") for name in SETTINGS)
    for path, text in files.items():
        if re.fullmatch(names, base_name(path)) and re.search(NAMED, text):
            return None
    if rng.random() < NONE_SHARE:
        return Plan("run_linter", "run", {}, _play, checks.declines("linter"))
    path, text, command = rng.choice(SET_UP)
    text = text.format(n=rng.choice((79, 88, 100, 120)), d=rng.randint(1, 9))
    if path in files:
        if path == "package.json":
            return None
        text = files[path].rstrip("\n") + f"\n\n{text}"
    program, found = command.split()[0], _complaints(ctx) if rng.random() < FOUND_SHARE else []
    check: Check
    if rng.random() < MISSING_SHARE:
        said, check = f"bash: line 1: {program}: command not found\n[exit code 127]", checks.declines(command)
    elif found:
        tail = [f"Found {len(found)} error{'s' * (len(found) > 1)}."] * (program == "ruff")
        said, check = "\n".join([*found, *tail, "[exit code 1]"]), checks.answers(command, *found)
    else:
        said = "All checks passed!\n[exit code 0]" if program == "ruff" else "[exit code 0]"
        check = checks.answers(command, "no problems")

    def play(session: Session) -> tuple[str, str]:
        session.box.machine.programs = {command: said}
        try:
            return _play(session)
        finally:
            session.box.machine.programs = {}

    return Plan(
        "run_linter",
        "run",
        {},
        play,
        check,
        prepare=lambda now: now.update({path: text}),
        alone=True,
        programs={command: said},
    )
