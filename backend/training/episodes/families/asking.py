"""Questions by sense: files by their purpose, what a file defines, what a function raises, a file's end;
and two new files at once, and tests that cannot run.
"""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.families.creating import ENDINGS, new_path, plain_line, write_new
from k3agent.backend.training.episodes.families.look import bullet_list, names_in
from k3agent.backend.training.episodes.families.read import read_definition, unique_definition
from k3agent.backend.training.episodes.families.repair import run_tests
from k3agent.backend.training.episodes.openwords import open_word
from k3agent.backend.training.episodes.policy import base_name, hits, open_file, quoted, search_file, show
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session

THINGS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "css": ("**/*.css", r"\.css$", ("the stylesheet", "the style sheet", "our CSS", "the styling")),
    "readme": (
        "**/README*",
        r"^README",
        ("the readme", "the README", "the read-me file", "the intro document"),
    ),
    "requirements": (
        "**/requirements*.txt",
        r"^requirements.*\.txt$",
        ("the requirements", "the list of packages", "the pip requirements", "the dependency list"),
    ),
    "makefile": ("**/Makefile", r"^Makefile$", ("the makefile", "the build file", "the make rules")),
    "tests": (
        "**/test_*.py",
        r"^test_.*\.py$",
        ("the tests", "the unit tests", "our test code", "the test suite"),
    ),
    "changelog": (
        "**/CHANGELOG*",
        r"^CHANGELOG",
        ("the changelog", "the history of changes", "the change log"),
    ),
    "licence": ("**/LICEN[CS]E*", r"^LICEN[CS]E", ("the licence", "the license", "the license text")),
    "html": (
        "**/*.html",
        r"\.html$",
        ("the web page", "the HTML page", "the page markup", "the site's page"),
    ),
    "shell": ("**/*.sh", r"\.sh$", ("the shell script", "the bash script", "the shell scripts")),
    "csv": ("**/*.csv", r"\.csv$", ("the table data", "the CSV table", "the spreadsheet data")),
    "config": (
        "**/*.{json,toml,yaml,yml,ini,cfg,env}",
        r"\.(json|toml|yaml|yml|ini|cfg|env)$",
        ("the config", "the configuration", "the settings", "the config files", "the configuration files"),
    ),
    "docs": (
        "**/*.md",
        r"\.md$",
        ("the docs", "the documentation", "the documents", "the notes in Markdown"),
    ),
    "images": (
        "**/*.{svg,png,jpg,gif,ico}",
        r"\.(svg|png|jpg|gif|ico)$",
        ("the images", "the pictures", "the icons", "the graphics", "the image files", "the logo"),
    ),
    "sql": (
        "**/*.sql",
        r"\.sql$",
        ("the SQL", "the queries", "the SQL files", "the database schema", "the SQL scripts"),
    ),
    "docker": (
        "**/Dockerfile*",
        r"^Dockerfile",
        ("the Dockerfile", "the container build", "the docker file"),
    ),
    "notebooks": ("**/*.ipynb", r"\.ipynb$", ("the notebooks", "the Jupyter notebooks", "the notebook")),
    "logs": ("**/*.log", r"\.log$", ("the logs", "the log files", "the log output")),
    "javascript": (
        "**/*.{js,ts}",
        r"\.(js|ts)$",
        ("the JavaScript", "the frontend code", "the browser code", "the JavaScript files"),
    ),
    "python": (
        "**/*.py",
        r"\.py$",
        ("the Python code", "the Python files", "the Python modules", "the source code"),
    ),
}
"""What people call files: the glob pattern, the same as a regular expression on base names, the words."""
FRESH = {
    "css": ("static/{}.css", "web/css/{}.css", "{}.css"),
    "html": ("templates/{}.html", "web/{}.html"),
    "shell": ("scripts/{}.sh", "bin/{}.sh", "{}.sh"),
    "csv": ("data/{}.csv", "{}.csv"),
    "config": ("config/{}.yaml", "{}.toml", "conf/{}.ini"),
    "docs": ("docs/{}.md", "docs/guide/{}.md", "{}.md"),
    "images": ("assets/{}.svg", "static/img/{}.svg", "docs/{}.png", "{}.ico"),
    "sql": ("db/{}.sql", "migrations/{}.sql", "{}.sql"),
    "docker": ("Dockerfile", "deploy/Dockerfile", "docker/Dockerfile.{}"),
    "notebooks": ("notebooks/{}.ipynb", "{}.ipynb"),
    "logs": ("logs/{}.log", "{}.log"),
    "javascript": ("web/{}.js", "frontend/src/{}.ts"),
}
"""Where such files lie, for projects that have none yet."""
MAIN = "if __name__"


@goal("find_kind", "find", 1.6)
def find_kind(ctx: Setting) -> Plan | None:
    """Where a file of some purpose is."""
    rng = ctx.rng
    fresh: dict[str, str] = {}
    if rng.random() < 0.5:
        forms = FRESH[rng.choice(sorted(FRESH))]
        for form in rng.sample(forms, rng.choice((1, 1, 2))):
            path = form.format(ctx.words.noun())
            if path not in ctx.facts.files:
                fresh[path] = f"{ctx.words.phrase()}\n"
    files = ctx.facts.files | fresh
    kinds = [
        kind
        for kind, (_, pattern, _) in THINGS.items()
        if any(re.search(pattern, base_name(path)) for path in files)
    ]
    kind = rng.choice(kinds) if kinds and rng.random() < 0.88 else rng.choice(sorted(THINGS))
    pattern, regex, names = THINGS[kind]
    thing = rng.choice(names)
    wanted = [path for path in files if re.search(regex, base_name(path))]
    if len(wanted) > 25:
        return None
    short = thing.removeprefix("the ").removeprefix("our ")

    def play(session: Session) -> tuple[str, str]:
        rows = names_in(session.call("glob", f"Find {thing}: files like {pattern}.", pattern=pattern).text)
        if not rows:
            return (
                f"Nothing like {pattern}.",
                f"There is no {short} in this project: no file matches `{pattern}`.",
            )
        if len(rows) == 1:
            return f"It is {rows[0]}.", f"It is `{rows[0]}`."
        return f"{len(rows)} files.", f"There are {len(rows)}:\n{bullet_list(rows)}"

    be = "are" if thing.endswith("s") and not thing.endswith(("CSS", "ss")) else "is"
    check = checks.answers(*wanted) if wanted else checks.declines()
    subject = ("file", wanted[0]) if len(wanted) == 1 else None
    name = "list_kind" if thing.endswith("s") and rng.random() < 0.4 else "find_kind"
    slots = {"thing": thing} if name == "list_kind" else {"thing": thing, "be": be}
    return Plan(name, "find", slots, play, check, subject, prepare=lambda current: current.update(fresh))


@goal("entry_point", "find", 0.8)
def entry_point(ctx: Setting) -> Plan | None:
    """Where the program starts."""
    wanted = [
        path for path, text in ctx.facts.files.items() if re.search(r"^if __name__", text, re.MULTILINE)
    ]
    if len(wanted) > 10 or (not wanted and ctx.rng.random() < 0.7):
        return None

    def play(session: Session) -> tuple[str, str]:
        found = hits(session.call("grep", "Where does it start? Look for the main part.", pattern=f"^{MAIN}"))
        if not found:
            return "No file has a main part.", f"I find no entry point: no file has `{MAIN}`."
        if len(found) == 1:
            return f"It is {found[0].at}.", f"It starts in `{found[0].path}`, line {found[0].line}."
        return (
            f"{len(found)} files.",
            f"These can be started:\n{bullet_list([f'`{hit.at}`' for hit in found])}",
        )

    return Plan("entry_point", "find", {}, play, checks.answers(*wanted) if wanted else checks.declines())


def _definition_names(lines: list[str]) -> list[str]:
    return [match[2] for line in lines if (match := re.match(r"\s*(async def|def|class) (\w+)", line))]


@goal("list_defs", "find", 1.4)
def list_defs(ctx: Setting) -> Plan | None:
    """What a file defines."""
    path = ctx.choose(ctx.facts.code_paths() + ctx.facts.test_paths())
    if not isinstance(path, str):
        return None
    shown = ctx.path(path)
    names = _definition_names(ctx.facts.files[path].splitlines())
    if len(names) > 18:
        return None

    def play(session: Session) -> tuple[str, str]:
        pattern = r"^\s*(async def|def|class) "
        found_path, found = search_file(session, shown, pattern, f"Find what {shown} defines.", "")
        if not found:
            return "Nothing.", f"`{found_path}` defines no functions and no classes."
        rows = [f"`{hit.text.strip().rstrip(':')}` (line {hit.line})" for hit in found]
        return f"{len(rows)} definitions. Name them all.", f"`{found_path}` defines:\n{bullet_list(rows)}"

    check = checks.answers(*names) if names else checks.declines()
    return Plan("list_defs", "find", {"path": shown}, play, check, ("file", path))


@goal("count_defs", "list", 0.9)
def count_defs(ctx: Setting) -> Plan | None:
    """How many functions, classes or tests a file has."""
    kind = ctx.rng.choice(("functions", "functions", "classes", "tests"))
    path = ctx.choose(ctx.facts.test_paths() if kind == "tests" else ctx.facts.code_paths())
    if not isinstance(path, str):
        return None
    start = {"functions": r"(async )?def \w", "classes": r"class \w", "tests": r"def test_"}[kind]
    count = len(re.findall(rf"^\s*{start}", ctx.facts.files[path], re.MULTILINE))
    if count > 15:
        return None
    shown = ctx.path(path)

    def play(session: Session) -> tuple[str, str]:
        found_path, found = search_file(session, shown, rf"^\s*{start}", f"Count the {kind} of {shown}.", "")
        names = [re.sub(r"\W.*$", "", re.sub(r"^\s*(async )?(def|class) ", "", hit.text)) for hit in found]
        if not names:
            return "None.", f"`{found_path}` has 0 {kind}."
        counted = ", ".join(f"{number} {name}" for number, name in enumerate(names, 1))
        word = kind if len(names) > 1 else "class" if kind == "classes" else kind[:-1]
        return f"Count: {counted}.", f"`{found_path}` has {len(names)} {word}: {quoted(names, 15)}."

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        said = re.search(rf"(?<![\w.]){count}(?![\w.]\w)", outcome.answer.replace(path, ""))
        return None if said else f"the answer lacks the number {count}"

    return Plan("count_defs", "list", {"path": shown, "things": kind}, play, check, ("file", path))


@goal("raises_of", "explain", 1.2)
def raises_of(ctx: Setting) -> Plan | None:
    """Which exceptions a function raises itself."""
    for _ in range(8):
        one = unique_definition(ctx, "function", "method", python=True)
        if one is None or one.end - one.line > 28:
            return None
        body = ctx.facts.files[one.path].splitlines()[one.line : one.end]
        raised = [match[1] for line in body if (match := re.match(r"\s+raise (\w+)", line))]
        if raised or ctx.rng.random() < 0.1:
            break
    else:
        return None

    def play(session: Session) -> tuple[str, str]:
        name, hit, _, lines = read_definition(session, one.name, f"What does {one.name} raise?")
        found = [row.strip() for _, row in lines if re.match(r"\s+raise\b", row)]
        if not found:
            return "No raise in it.", f"`{name}` in `{hit.path}` raises nothing itself; it has no `raise`."
        return f"It has {found[0]}.", f"`{name}` in `{hit.path}` raises: {quoted(found, 5)}."

    check = checks.answers(*raised) if raised else checks.declines()
    return Plan("raises_of", "explain", {"name": ctx.called(one)}, play, check, ("def", one.name))


@goal("tail_file", "explain", 0.8)
def tail_file(ctx: Setting) -> Plan | None:
    """The last lines of a file."""
    path = ctx.choose([path for path, text in ctx.facts.files.items() if len(text.splitlines()) >= 3])
    if not isinstance(path, str):
        return None
    count = ctx.rng.choice((1, 2, 3, 3, 4, 5, 5, 8, 10))
    shown = ctx.path(path)
    lines = ctx.facts.files[path].splitlines()[-count:]

    def play(session: Session) -> tuple[str, str]:
        view = open_file(
            session, shown, f"The last {count} lines of {shown}. How long is it?", limit=1, nothing=""
        )
        start = max(1, view.total - count + 1)
        think = f"It has {view.total} lines. Read from line {start}."
        view = open_file(session, view.path, think, offset=start, limit=count, nothing="")
        word = "line" if len(view.lines) == 1 else f"{len(view.lines)} lines"
        return "Copy them.", f"The last {word} of `{view.path}`:\n{show(view.lines)}"

    check = checks.answers(*(line.strip() for line in lines if line.strip()))
    if not any(line.strip() for line in lines):
        return None
    return Plan("tail_file", "explain", {"path": shown, "n": str(count)}, play, check, ("file", path))


@goal("create_two", "create", 1.0)
def create_two(ctx: Setting) -> Plan | None:
    """Create two files with one line each."""
    paths = [new_path(ctx, ctx.rng.choice(ENDINGS)) for _ in range(2)]
    contents = [plain_line(ctx, path) for path in paths]
    if len({base_name(path) for path in paths}) < 2 or any("`" in text for text in contents):
        return None
    (first, second), (one, two) = paths, contents

    def play(session: Session) -> tuple[str, str]:
        write_new(session, first, one, f"Two files. First {first} with: {one}")
        write_new(session, second, two, f"Now {second} with: {two}")
        return "Both are there.", f"Created `{first}` with `{one}` and `{second}` with `{two}`."

    slots = {"path": first, "content": one, "path2": second, "content2": two}
    return Plan("create_two", "create", slots, play, checks.writes({first: one, second: two}))


@goal("cannot_run", "fix", 0.6, level=1)
def cannot_run(ctx: Setting) -> Plan | None:
    """Tests that need a package which is not installed: nothing to repair in the code."""
    rng, words = ctx.rng, ctx.words
    package = ctx.unused(lambda: open_word(ctx.rng, words.held_out))
    code = ctx.facts.code_paths()
    path = f"test_{package}_{words.noun()}.py"
    if path in ctx.facts.files or not code or ctx.facts.test_paths():
        return None
    call = f"{package}.{words.verb()}() == {rng.randint(1, 9)}"
    text = f"import {package}\n\n\ndef test_{words.noun()}():\n    assert {call}\n"
    wanted = rng.choice(("fix_tests", "run_tests", "check_then_report"))

    def play(session: Session) -> tuple[str, str]:
        run, _ = run_tests(session, "Run the tests.")
        match = re.search(r"No module named '([\w.]+)'", session.messages[-1]["content"])
        if match is None:
            raise Report("That is something else.", f"The tests fail: {run.summary}. Nothing was changed.")
        think = f"No module {match[1]}. Is it in the project?"
        rows = names_in(session.call("glob", think, pattern=f"**/{match[1]}*").text)
        if any(base_name(row.rstrip("/")).split(".")[0] == match[1] for row in rows):
            raise Report("It is there.", f"The tests do not find `{match[1]}`, though it is in `{rows[0]}`.")
        return (
            f"{match[1]} is not installed, and no code of the project can mend that.",
            f"The tests cannot run: the package `{match[1]}` is not installed. Nothing was changed.",
        )

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        if re.search(r"may not|could not run the tests", outcome.answer):
            return None
        return checks.says(outcome, package, "not")

    return Plan(wanted, "fix", {}, play, check, prepare=lambda files: files.update({path: text}))
