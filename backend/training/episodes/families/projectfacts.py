"""Questions about the project as a whole: marks such as TODO, its version, the Python it needs, its
dependencies; and setting its version.
"""

import re
from dataclasses import replace

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.families.look import bullet_list, names_in
from k3agent.backend.training.episodes.families.questions import says_number
from k3agent.backend.training.episodes.families.versions import VERSIONED, draw_version, versioned
from k3agent.backend.training.episodes.policy import Hit, hits, open_file, quoted
from k3agent.backend.training.episodes.registry import GOALS, Setting, goal
from k3agent.backend.training.episodes.session import Plan, Session

MARKS = {
    "TODO": ("TODO",),
    "FIXME": ("FIXME",),
    "TODO and FIXME": ("TODO", "FIXME"),
    "TODO or FIXME": ("TODO", "FIXME"),
    "XXX": ("XXX",),
    "HACK": ("HACK",),
}
"""How people name marks of unfinished work, and the marks."""
VERSION_LINE = r"^[\W_]*version[\W_]*[:=]\W*\d"
"""A line that gives the project's version; as grep takes it, in any case."""
VERSION = re.compile(r"\d[\w.+-]*")
PYTHON_LINE = r"^\W*(requires-python|python_requires)\W|^FROM python:"
PYTHON = re.compile(
    r"(?:requires-python|python_requires)\W*?([<>=~!^]+ ?\d[^\"']*|\d[\w.]*)|^FROM python:(\S+)"
)
FILES = "{requirements.txt,pyproject.toml,package.json}"


def _python_text(ctx: Setting, path: str) -> str:
    """A file that says which Python is needed."""
    rng = ctx.rng
    wanted = rng.choice((">=", ">=", ">=", "~=", "==")) + f"3.{rng.randint(7, 14)}"
    wanted += rng.choice(("", "", "", ",<4", f".{rng.randint(1, 9)}"))
    name, image = ctx.words.noun(), rng.choice(("", "-slim", "-alpine"))
    table = f'[project]\nname = "{name}"\nversion = "{draw_version(ctx)}"\n'
    return {
        "pyproject.toml": f'{table}requires-python = "{wanted}"\n',
        "setup.cfg": f"[metadata]\nname = {name}\n\n[options]\npython_requires = {wanted}\n",
        "Dockerfile": f"FROM python:3.{rng.randint(8, 14)}{image}\n\nCOPY . /app\n",
    }[path]


def _lines(files: dict[str, str], pattern: str, flags: re.RegexFlag = re.NOFLAG) -> list[Hit]:
    """The lines of some files that match, as grep finds them."""
    return [
        Hit(path, number, line)
        for path, text in sorted(files.items())
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line, flags)
    ]


@goal("find_todos", "find", 1.2)
def find_todos(ctx: Setting) -> Plan | None:
    """Where comments such as TODO stand."""
    rng = ctx.rng
    said = rng.choice(sorted(MARKS))
    fresh: dict[str, str] = {}
    for path in rng.sample(ctx.facts.code_paths(), min(len(ctx.facts.code_paths()), rng.randint(0, 3))):
        lines = ctx.facts.files[path].splitlines()
        for _ in range(rng.choice((1, 1, 2))):
            mark = rng.choice(MARKS[said]) if rng.random() < 0.8 else rng.choice(("TODO", "FIXME", "NOTE"))
            form = rng.choice(
                ("# {}: {}", "# {}: {}", "# {} {}", "#{}: {}", "# {}(" + ctx.words.noun() + "): {}")
            )
            ends = [
                at for at in range(len(lines) + 1) if at == len(lines) or re.match(r"(def|class) ", lines[at])
            ]
            lines.insert(rng.choice(ends), form.format(mark, ctx.words.phrase()))
        text = "\n".join(lines) + "\n"
        if "\r" not in ctx.facts.files[path] and checks.compiles(text):
            fresh[path] = text
    pattern = rf"\b{MARKS[said][0]}\b" if len(MARKS[said]) == 1 else rf"\b({'|'.join(MARKS[said])})\b"
    wanted = _lines(ctx.facts.files | fresh, pattern)
    if len(wanted) > 12 or (not wanted and rng.random() < 0.6):
        return None

    def play(session: Session) -> tuple[str, str]:
        found = hits(session.call("grep", f"Find {said} comments: search for the words.", pattern=pattern))
        if not found:
            return "There are none.", f"There is no {said} in this project."
        rows = [f"`{hit.at}`: {hit.text.strip()}" for hit in found]
        return f"{len(found)} found.", f"{said}, {len(found)}:\n{bullet_list(rows)}"

    check = checks.answers(*(hit.at for hit in wanted)) if wanted else checks.declines()
    return Plan("find_todos", "find", {"mark": said}, play, check, prepare=lambda files: files.update(fresh))


def _version_file(ctx: Setting) -> tuple[str, str, Hit] | None:
    """(path, text, line) of the only file with a version, which the project gets or has already."""
    path = ctx.rng.choice([name for name in sorted(VERSIONED) if name != "VERSION"])
    have = _lines(ctx.facts.files, VERSION_LINE, re.IGNORECASE)
    if path in ctx.facts.files or have:
        return None
    text = versioned(ctx, path, draw_version(ctx))
    found = _lines({path: text}, VERSION_LINE, re.IGNORECASE)
    return (path, text, found[0]) if len(found) == 1 else None


def _find_version(session: Session, think: str) -> list[tuple[Hit, str]]:
    """The lines with a version, and the versions."""
    found = hits(session.call("grep", think, pattern=VERSION_LINE, ignore_case=True))
    return [(hit, match[0]) for hit in found if (match := VERSION.search(hit.text))]


@goal("project_version", "explain", 1.0)
def project_version(ctx: Setting) -> Plan | None:
    """Which version the project has."""
    found = _version_file(ctx)
    if ctx.rng.random() < 0.1 and not _lines(ctx.facts.files, VERSION_LINE, re.IGNORECASE):
        found = ("", "", Hit("", 0, ""))
    if found is None:
        return None
    path, text, line = found

    def play(session: Session) -> tuple[str, str]:
        rows = _find_version(session, "Which version does the project have? Look for a version line.")
        if not rows:
            return "No file says it.", "I find no version of this project: no file has a line with one."
        if len(rows) == 1:
            hit, have = rows[0]
            return f"It is {have}.", f"The version is `{have}` (`{hit.path}`, line {hit.line})."
        told = [f"`{have}` (`{hit.at}`)" for hit, have in rows]
        return f"{len(rows)} lines.", f"There are {len(rows)} versions:\n{bullet_list(told)}"

    match = VERSION.search(line.text)
    check = checks.answers(match[0], path) if match else checks.declines("version")
    fresh = {path: text} if path else {}
    return Plan("project_version", "explain", {}, play, check, prepare=lambda files: files.update(fresh))


@goal("set_project_version", "setvalue", 1.2, level=1)
def set_project_version(ctx: Setting) -> Plan | None:
    """Give the project another version, wherever it stands."""
    return _as_value(ctx, "set_project_version", "bump_all", {"value": "version"})


@goal("set_project_version_in", "setvalue", 1.0, level=1)
def set_project_version_in(ctx: Setting) -> Plan | None:
    """Give the project another version in a file that is named."""
    return _as_value(ctx, "set_project_version_in", "set_whole_version", {"value": "version", "path": "path"})


def _as_value(ctx: Setting, name: str, same: str, slots: dict[str, str]) -> Plan | None:
    """A goal of the second edition among the values of the first, with slots under other names."""
    plan = GOALS[same].make(ctx)
    if plan is None:
        return None
    said = {slot: plan.slots[theirs] for slot, theirs in slots.items()}
    return replace(plan, goal=name, family="setvalue", slots=said)


@goal("python_needed", "explain", 0.8)
def python_needed(ctx: Setting) -> Plan | None:
    """Which Python the project needs."""
    rng = ctx.rng
    fresh: dict[str, str] = {}
    path = rng.choice(("pyproject.toml", "pyproject.toml", "setup.cfg", "Dockerfile"))
    if path not in ctx.facts.files and rng.random() < 0.9:
        fresh[path] = _python_text(ctx, path)
    wanted = _lines(ctx.facts.files | fresh, PYTHON_LINE)
    if len(wanted) > 3 or (not wanted and rng.random() < 0.7):
        return None

    def play(session: Session) -> tuple[str, str]:
        think = "Which Python does it need? Look where projects say it."
        found = [
            (hit, match[1] or match[2])
            for hit in hits(session.call("grep", think, pattern=PYTHON_LINE))
            if (match := PYTHON.search(hit.text))
        ]
        if not found:
            return "Nothing says it.", "The project does not say which Python it needs: I find no such line."
        if len(found) == 1:
            hit, have = found[0]
            return f"It says {have}.", f"Python `{have}`, says `{hit.path}`, line {hit.line}."
        told = [f"`{have}` (`{hit.at}`)" for hit, have in found]
        return f"{len(found)} lines say it.", f"The Python it needs:\n{bullet_list(told)}"

    versions = [match[1] or match[2] for hit in wanted if (match := PYTHON.search(hit.text))]
    if len(versions) != len(wanted):
        return None
    check = checks.answers(*versions) if wanted else checks.declines()
    return Plan("python_needed", "explain", {}, play, check, prepare=lambda files: files.update(fresh))


def required(path: str, text: str) -> list[str]:
    """The packages that a file requires, as they stand there."""
    if path.endswith(".txt"):
        rows = [row.split("#")[0].strip() for row in text.splitlines()]
        return [row for row in rows if row and not row.startswith("-")]
    if path.endswith(".toml"):
        match = re.search(r"^dependencies = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
        return re.findall(r"[\"']([^\"']+)[\"']", match[1]) if match else []
    match = re.search(r'"dependencies": \{(.*?)\}', text, re.DOTALL)
    found = re.findall(r'"([^"]+)": "([^"]+)"', match[1]) if match else []
    return [f"{name} {version}" for name, version in found]


def _requiring(ctx: Setting, path: str) -> str:
    """A new file that requires some packages."""
    rng, words = ctx.rng, ctx.words
    names = list(dict.fromkeys(words.noun() for _ in range(rng.randint(1, 6))))
    numbers = [f"{rng.randint(0, 9)}.{rng.randint(0, 20)}" for _ in names]
    if path == "package.json":
        rows = ",\n".join(f'    "{name}": "^{number}.0"' for name, number in zip(names, numbers, strict=True))
        return f'{{\n  "name": "{words.noun()}",\n  "dependencies": {{\n{rows}\n  }}\n}}\n'
    sign = rng.choice(("==", ">=", "~=", ""))
    lines = [f"{name}{sign}{number}" if sign else name for name, number in zip(names, numbers, strict=True)]
    if path == "requirements.txt":
        return "\n".join(lines) + "\n"
    rows = "".join(f'    "{line}",\n' for line in lines)
    return f'[project]\nname = "{words.noun()}"\nversion = "0.1.0"\ndependencies = [\n{rows}]\n'


@goal("list_deps", "list", 1.1)
def list_deps(ctx: Setting) -> Plan | None:
    """Which packages the project depends on."""
    rng = ctx.rng
    names = ("requirements.txt", "pyproject.toml", "package.json")
    path = rng.choice((names[0], *names))
    fresh = {path: _requiring(ctx, path)} if path not in ctx.facts.files and rng.random() < 0.95 else {}
    files = ctx.facts.files | fresh
    wanted = [item for name in names for item in required(name, files.get(name, ""))]
    if len(wanted) > 20 or any(len(files.get(name, "").splitlines()) > 50 for name in names):
        return None
    if not wanted and rng.random() < 0.6:
        return None

    def play(session: Session) -> tuple[str, str]:
        think = "What does the project depend on? Look for the files that say it."
        rows = names_in(session.call("glob", think, pattern=FILES).text)
        if not rows:
            return (
                "None of them is there.",
                "I find no list of dependencies: there is no file like " + quoted(list(names)),
            )
        parts: list[str] = []
        for row in rows:
            view = open_file(session, row, f"Read {row}.", nothing="")
            items = required(row, "\n".join(text for _, text in view.lines))
            if items:
                parts.append(f"`{row}` names {len(items)}:\n{bullet_list(items)}")
        if not parts:
            return "It names none.", f"No dependencies: {quoted(rows)} names none."
        return "Name them all.", "\n".join(parts)

    check = checks.answers(*wanted) if wanted else checks.declines()
    return Plan("list_deps", "list", {}, play, check, prepare=lambda current: current.update(fresh))


@goal("count_files", "list", 0.9)
def count_files(ctx: Setting) -> Plan | None:
    """How many files the project has, all folders together."""
    files = sorted(ctx.facts.files)
    if len(files) > 18 or any(part.startswith(".") for path in files for part in path.split("/")):
        return None

    def play(session: Session) -> tuple[str, str]:
        rows = names_in(session.call("glob", "Count all files, in all folders.", pattern="**/*").text)
        found = [row for row in rows if not row.endswith("/")]
        counted = ", ".join(f"{number} {row}" for number, row in enumerate(found, 1))
        word = "file" if len(found) == 1 else "files"
        return f"Count: {counted}.", f"The project has {len(found)} {word}:\n{bullet_list(found)}"

    return Plan("count_files", "list", {}, play, says_number(len(files), *files))
