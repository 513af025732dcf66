"""Listing, finding and counting: goals answered by names of files and lines."""

from collections.abc import Callable
from pathlib import Path

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.policy import (
    base_name,
    esc,
    hits,
    open_file,
    pieces,
    quoted,
    search_file,
    several,
)
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session

KINDS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "py": ("**/*.py", ("Python", "python", ".py", "py", "*.py"), ("py",)),
    "md": ("**/*.md", ("Markdown", "markdown", ".md", "md", "*.md"), ("md",)),
    "json": ("**/*.json", ("JSON", "json", ".json", "*.json"), ("json",)),
    "toml": ("**/*.toml", ("TOML", "toml", ".toml"), ("toml",)),
    "yaml": ("**/*.{yaml,yml}", ("YAML", "yaml"), ("yaml", "yml")),
    "yml": ("**/*.{yaml,yml}", ("YAML", "yaml"), ("yaml", "yml")),
    "txt": ("**/*.txt", ("text", ".txt", "txt", "*.txt"), ("txt",)),
    "js": ("**/*.js", ("JavaScript", "javascript", ".js", "js"), ("js",)),
    "ts": ("**/*.ts", ("TypeScript", "typescript", ".ts"), ("ts",)),
    "sh": ("**/*.sh", ("shell", ".sh", "sh", "*.sh"), ("sh",)),
    "css": ("**/*.css", ("CSS", "css", ".css"), ("css",)),
    "html": ("**/*.html", ("HTML", "html", ".html"), ("html",)),
    "csv": ("**/*.csv", ("CSV", "csv", ".csv"), ("csv",)),
    "ini": ("**/*.ini", ("INI", "ini", ".ini"), ("ini",)),
    "cfg": ("**/*.cfg", ("cfg", ".cfg"), ("cfg",)),
    "log": ("**/*.log", ("log", ".log", "*.log"), ("log",)),
    "go": ("**/*.go", ("Go", ".go", "go"), ("go",)),
    "conf": ("**/*.conf", ("conf", ".conf"), ("conf",)),
    "test": ("**/test_*.py", ("test",), ()),
}
USUAL = (
    "src",
    "lib",
    "tests",
    "docs",
    "build",
    "dist",
    "tmp",
    "temp",
    "out",
    "old",
    "assets",
    "data",
    "logs",
)
USUAL = (*USUAL, "backup", "cache", "scripts", "examples", "static", "vendor", "config", "test", "app", "bin")
BARE_SHARE = 0.1
"""Of the folders to be listed, those without files."""


def names_in(text: str) -> list[str]:
    """The rows of a glob result."""
    return (
        []
        if text == "No files match."
        else [row for row in text.split("\n") if not row.startswith("[first ")]
    )


def bullet_list(items: list[str], limit: int = 40) -> str:
    """Lines with dashes."""
    rows = [f"- {item}" for item in items[:limit]]
    if len(items) > limit:
        rows.append(f"- and {len(items) - limit} more")
    return "\n".join(rows)


def all_said(items: list[str]) -> "checks.Check":
    """Every item is in the answer (the first 40)."""
    return checks.answers(*items[:40])


@goal("list_root", "list", 1.2)
def list_root(ctx: Setting) -> Plan | None:
    """What stands in the top folder."""
    items = sorted({path.split("/")[0] for path in ctx.facts.files})

    def play(session: Session) -> tuple[str, str]:
        rows = names_in(session.call("glob", "List the top folder.", pattern="*").text)
        if not rows:
            return "Nothing is there.", "The folder is empty."
        return f"{len(rows)} entries. Name them all.", f"The project's top folder holds:\n{bullet_list(rows)}"

    return Plan("list_root", "list", {}, play, all_said(items))


@goal("list_dir", "list", 1.2)
def list_dir(ctx: Setting) -> Plan | None:
    """What stands in a folder."""
    bare = bare_folder(ctx) if ctx.rng.random() < BARE_SHARE else ""
    folder = bare or ctx.choose(ctx.facts.folders)
    if not isinstance(folder, str):
        return None
    items = sorted(
        {path[len(folder) + 1 :].split("/")[0] for path in ctx.facts.files if path.startswith(folder + "/")}
    )
    unique = sum(1 for other in ctx.facts.folders if base_name(other) == base_name(folder)) == 1
    shown = ctx.rng.choice(
        (
            folder,
            f"{folder}/",
            f"./{folder}",
            base_name(folder) if unique else folder,
            base_name(folder) if unique else folder,
        )
    )

    def play(session: Session) -> tuple[str, str]:
        where, rows = entries_of(session, shown, "List the folder {}.")
        return f"{len(rows)} entries. Name them all.", f"`{where}` holds:\n{bullet_list(rows)}"

    if bare:
        check, setup = checks.declines(base_name(folder)), makes(folder)
        return Plan("list_dir", "list", {"dir": shown}, play, check, setup=setup, alone=True)
    return Plan("list_dir", "list", {"dir": shown}, play, all_said(items), ("folder", folder))


def entries_of(session: Session, name: str, think: str) -> tuple[str, list[str]]:
    """A folder's real path and what stands in it; a report where it is empty, or nowhere."""
    where = name.removeprefix("./").rstrip("/")
    rows = names_in(session.call("glob", think.format(where), pattern=f"{where}/*").text)
    if not rows:
        think = f"Nothing in {where}. Is there such a folder elsewhere?"
        found = names_in(session.call("glob", think, pattern=f"**/{base_name(where)}").text)
        folders = [row.rstrip("/") for row in found if row.endswith("/")]
        if where not in folders:
            if len(folders) != 1:
                raise Report(f"There is no folder {where}.", f"There is no folder `{where}` in this project.")
            where = folders[0]
            rows = names_in(session.call("glob", f"It is {where}. List it.", pattern=f"{where}/*").text)
    if not rows:
        raise Report(f"{where} is there, and empty.", f"`{where}` is empty: no file is to be seen in it.")
    return where, rows


def bare_folder(ctx: Setting) -> str:
    """A folder that is to be made and has no files, with a usual name or another."""
    usual = [name for name in USUAL if all(name not in path.split("/") for path in ctx.facts.files)]
    if usual and ctx.rng.random() < 0.6:
        return ctx.rng.choice(usual)
    home = ctx.rng.choice(("", "", *(f"{folder}/" for folder in ctx.facts.folders)))
    return home + ctx.unused(ctx.words.noun)


def makes(folder: str) -> Callable[[str], None]:
    """A setup that makes a folder."""
    return lambda root: Path(root, folder).mkdir(parents=True, exist_ok=True)


def _kind(ctx: Setting) -> str | None:
    found = sorted({extension(path) for path in ctx.facts.files} & KINDS.keys())
    if ctx.facts.test_paths() and ctx.rng.random() < 0.15:
        return "test"
    return ctx.rng.choice(found) if found else None


def _of_kind(ctx: Setting, kind: str) -> list[str]:
    return sorted(ctx.facts.test_paths()) if kind == "test" else sorted(ctx.facts.paths(*KINDS[kind][2]))


@goal("list_ext", "list", 1.2)
def list_ext(ctx: Setting) -> Plan | None:
    """All files of a kind."""
    kind = _kind(ctx)
    if kind is None:
        return None
    missing = ctx.rng.random() < 0.08
    if missing:
        absent = [item for item in KINDS if item != "test" and not _of_kind(ctx, item)]
        kind = ctx.rng.choice(absent) if absent else kind
    word = ctx.rng.choice(KINDS[kind][1])
    files = _of_kind(ctx, kind)

    def play(session: Session) -> tuple[str, str]:
        rows = names_in(session.call("glob", f"Find all {word} files.", pattern=KINDS[kind][0]).text)
        if not rows:
            return "None.", f"There are no {word} files in this project."
        head = f"There is one {word} file:" if len(rows) == 1 else f"There are {len(rows)} {word} files:"
        return f"{len(rows)} found. Name them all.", f"{head}\n{bullet_list(rows)}"

    return Plan("list_ext", "list", {"ext_word": word}, play, all_said(files) if files else checks.declines())


@goal("list_ext_in", "list", 0.9)
def list_ext_in(ctx: Setting) -> Plan | None:
    """All files of a kind in a folder."""
    folder = ctx.choose(ctx.facts.folders)
    if not isinstance(folder, str):
        return None
    inside = [path for path in ctx.facts.files if path.startswith(folder + "/")]
    kinds = sorted({extension(path) for path in inside} & KINDS.keys())
    if not kinds:
        return None
    kind = ctx.rng.choice(kinds)
    word = ctx.rng.choice(KINDS[kind][1])
    files = [path for path in inside if extension(path) in KINDS[kind][2]]
    shown = ctx.rng.choice((folder, f"{folder}/"))

    def play(session: Session) -> tuple[str, str]:
        where = shown.rstrip("/")
        rows = names_in(
            session.call(
                "glob", f"Find the {word} files in {where}.", pattern=f"{where}/{KINDS[kind][0]}"
            ).text
        )
        if not rows:
            return "None.", f"There are no {word} files in `{where}`."
        return f"{len(rows)} found. Name them all.", f"The {word} files in `{where}`:\n{bullet_list(rows)}"

    return Plan("list_ext_in", "list", {"ext_word": word, "dir": shown}, play, all_said(files))


@goal("count_ext", "list", 0.9)
def count_ext(ctx: Setting) -> Plan | None:
    """How many files of a kind."""
    kind = _kind(ctx)
    if kind is None:
        return None
    word = ctx.rng.choice(KINDS[kind][1])
    files = _of_kind(ctx, kind)
    if len(files) > 30:
        return None

    def play(session: Session) -> tuple[str, str]:
        rows = names_in(
            session.call("glob", f"Find all {word} files to count them.", pattern=KINDS[kind][0]).text
        )
        if not rows:
            return "None.", f"There are 0 {word} files: none at all."
        count = ", ".join(f"{number} {base_name(row)}" for number, row in enumerate(rows, 1))
        verb = "is 1" if len(rows) == 1 else f"are {len(rows)}"
        return (
            f"Count: {count}.",
            f"There {verb} {word} file{'' if len(rows) == 1 else 's'}:\n{bullet_list(rows)}",
        )

    return Plan("count_ext", "list", {"ext_word": word}, play, checks.answers(str(len(files))))


@goal("find_file", "find", 1.6)
def find_file(ctx: Setting) -> Plan | None:
    """Where a file is."""
    path = ctx.choose(sorted(ctx.facts.files))
    if not isinstance(path, str):
        return None
    base = base_name(path)
    stem = base.rsplit(".", 1)[0]
    name = stem if ctx.rng.random() < 0.25 and stem and not stem.startswith("__") else base
    wanted = [item for item in ctx.facts.files if base_name(item) == base] if name == base else [path]

    def play(session: Session) -> tuple[str, str]:
        pattern = f"**/{name}" if "." in name else f"**/{name}*"
        rows = names_in(session.call("glob", f"Find the file {name}.", pattern=pattern).text)
        if not rows and "." in name:
            short = name.rsplit(".", 1)[0]
            rows = names_in(
                session.call(
                    "glob", f"No {name}. Look for {short} with other endings.", pattern=f"**/*{short}*"
                ).text
            )
            if rows:
                raise Report(
                    f"Only {several(rows, 3)}.", f"There is no file `{name}`. Similar: {quoted(rows[:3])}."
                )
        if not rows:
            raise Report(f"There is no {name}.", f"There is no file named `{name}` in this project.")
        if len(rows) == 1:
            return f"It is {rows[0]}.", f"It is at `{rows[0]}`."
        return f"{len(rows)} places.", f"There are {len(rows)}:\n{bullet_list(rows)}"

    return Plan("find_file", "find", {"name": name}, play, checks.answers(*wanted), ("file", path))


ENDINGS = ("ing", "ers", "er", "ies", "es", "s", "ed")


def stem_of(word: str) -> str:
    """A word without an ending, for names that have the word in another form."""
    for end in ENDINGS:
        if word.endswith(end) and len(word) - len(end) >= 3:
            return word[: -len(end)]
    return word[:-1] if word.endswith(("e", "y")) and len(word) > 4 else word


def either_case(part: str) -> str:
    """The pattern for files with a part in their name, with a capital or without."""
    return f"**/*[{part[0].upper()}{part[0]}]{part[1:]}*"


def said_form(ctx: Setting, word: str) -> str:
    """A word of a file's name in a form that people may say."""
    stem = stem_of(word)
    long = f"{stem}ing" if len(word) < 8 else word
    forms = (word, word, word, f"{word}s", long, word.capitalize())
    return ctx.rng.choice([form for form in forms if stem_of(form.lower()) == stem] or [word])


@goal("find_about", "find", 1.4)
def find_about(ctx: Setting) -> Plan | None:
    """Is there a file for caching? Found by a part of its name."""
    files = sorted(ctx.facts.files)
    path = ctx.choose(files)
    if not isinstance(path, str):
        return None
    words = [word for word in pieces(base_name(path).rsplit(".", 1)[0]) if len(word) > 3 and word.isalpha()]
    missing = ctx.rng.random() < 0.12
    if not words and not missing:
        return None
    word = ctx.unused(ctx.words.noun) if missing else ctx.rng.choice(words)
    thing = said_form(ctx, word)
    wanted: list[str] = []
    for part in (thing.lower(), stem_of(thing.lower())):
        wanted = wanted or [item for item in files if part in base_name(item).lower()]
        if any(part[1:] not in base_name(item) for item in wanted):
            return None
    if len(wanted) > 12 or bool(wanted) == missing:
        return None

    def play(session: Session) -> tuple[str, str]:
        part, stem = thing.lower(), stem_of(thing.lower())
        think = f"Which file is for {thing}? Look for {part} in the names."
        rows = files_in(session.call("glob", think, pattern=either_case(part)).text)
        if not rows and stem != part:
            think = f"No name has {part}. Look for its stem {stem}."
            rows = files_in(session.call("glob", think, pattern=either_case(stem)).text)
        if not rows:
            raise Report("No such file.", f"There is no file with `{stem}` in its name in this project.")
        if len(rows) == 1:
            return f"It is {rows[0]}.", f"Yes: `{rows[0]}`."
        return f"{len(rows)} files fit.", f"There are {len(rows)}:\n{bullet_list(rows)}"

    check = checks.answers(*wanted) if wanted else checks.declines()
    subject = ("file", wanted[0]) if len(wanted) == 1 else None
    return Plan("find_about", "find", {"thing": thing}, play, check, subject)


def files_in(text: str) -> list[str]:
    """The files of a glob result, folders left out."""
    return [row for row in names_in(text) if not row.endswith("/")]


def list_hits(rows: list[str], limit: int = 12) -> str:
    """Places as a list."""
    return bullet_list(rows, limit)


@goal("find_text", "find", 1.6)
def find_text(ctx: Setting) -> Plan | None:
    """Where a text stands."""
    rng = ctx.rng
    path = ctx.choose([path for path, text in ctx.facts.files.items() if text.strip()])
    if not isinstance(path, str):
        return None
    line = rng.choice([line for line in ctx.facts.files[path].splitlines() if line.strip()]).strip()
    words = line.split()
    if not words:
        return None
    start = rng.randrange(len(words))
    text = " ".join(words[start : start + rng.choice((1, 2, 2, 3, 4))]).strip("\"'`,:;()[]{}#=*- ")
    if not 3 <= len(text) <= 50 or any(sign in text for sign in "\"`'"):
        return None
    places = ctx.facts.with_text(text)
    if not places or len(places) > 25:
        return None

    def play(session: Session) -> tuple[str, str]:
        found = hits(session.call("grep", f'Search for "{text}".', pattern=esc(text)))
        if not found:
            found = hits(session.call("grep", "Nothing. Try any case.", pattern=esc(text), ignore_case=True))
        if not found:
            raise Report("It is nowhere.", f'"{text}" occurs nowhere in this project.')
        if len(found) == 1:
            return (
                f"One place: {found[0].at}.",
                f"It is in `{found[0].path}`, line {found[0].line}: `{found[0].text.strip()}`",
            )
        return (
            f"{len(found)} places.",
            f"It occurs in {len(found)} places:\n{list_hits([f'`{hit.at}`' for hit in found])}",
        )

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        return next(
            (wrong for item, number, _ in places[:10] if (wrong := checks.says_place(outcome, item, number))),
            None,
        )

    return Plan("find_text", "find", {"text": text}, play, check)


@goal("count_lines", "list", 0.6)
def count_lines(ctx: Setting) -> Plan | None:
    """How long a file is."""
    path = ctx.choose([path for path, text in ctx.facts.files.items() if text])
    if not isinstance(path, str):
        return None
    shown = ctx.path(path)
    total = len(ctx.facts.files[path].splitlines())

    def play(session: Session) -> tuple[str, str]:
        view = open_file(
            session,
            shown,
            f"Read one line of {shown}: the note below it tells the length.",
            limit=1,
            nothing="",
        )
        word = "line" if view.total == 1 else "lines"
        return f"{view.total} {word}.", f"`{view.path}` has {view.total} {word}."

    return Plan("count_lines", "list", {"path": shown}, play, checks.answers(str(total)), ("file", path))


@goal("imports_of", "find", 0.8)
def imports_of(ctx: Setting) -> Plan | None:
    """What a file imports."""
    path = ctx.choose(ctx.facts.code_paths())
    if not isinstance(path, str):
        return None
    shown = ctx.path(path)
    lines = [line for line in ctx.facts.files[path].splitlines() if line.startswith(("import ", "from "))]
    names = [line.split()[1] for line in lines]

    def play(session: Session) -> tuple[str, str]:
        found_path, found = search_file(
            session, shown, "^(import|from) ", f"Find the imports of {shown}.", ""
        )
        if not found:
            return "No imports.", f"`{found_path}` imports nothing: there are no imports in it."
        return (
            f"{len(found)} imports.",
            f"`{found_path}` imports:\n{bullet_list([hit.text.strip() for hit in found])}",
        )

    check = checks.answers(*names) if names else checks.declines()
    return Plan("imports_of", "find", {"path": shown}, play, check, ("file", path))
