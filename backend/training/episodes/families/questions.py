"""More questions: a file's purpose, defaults, results of calls, line ranges, whether something is used,
settings from the environment, sizes and numbers.
"""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.concepts import Func
from k3agent.backend.training.episodes.facts import Definition
from k3agent.backend.training.episodes.families.look import (
    BARE_SHARE,
    bare_folder,
    bullet_list,
    entries_of,
    makes,
)
from k3agent.backend.training.episodes.families.read import (
    play_explain_file,
    read_definition,
    unique_definition,
)
from k3agent.backend.training.episodes.families.running import denied
from k3agent.backend.training.episodes.policy import (
    base_name,
    counted,
    esc,
    hits,
    one_definition,
    open_file,
    quoted,
    show,
)
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Report, Session


def says_number(number: int, *but: str) -> Check:
    """Nothing changed, and the answer holds the number outside of some texts."""

    def check(outcome: Outcome) -> str | None:
        answer = outcome.answer
        for text in but:
            answer = answer.replace(text, " ")
        if wrong := checks.unchanged(outcome):
            return wrong
        return None if re.search(rf"(?<![\w.]){number}(?![\w.]\w)", answer) else f"it lacks {number}"

    return check


@goal("explain_file", "explain", 1.2)
def explain_file(ctx: Setting) -> Plan | None:
    """What a module is for."""
    path = ctx.choose(ctx.facts.code_paths())
    if not isinstance(path, str) or len(ctx.facts.files[path].splitlines()) > 80:
        return None
    stem = base_name(path).removesuffix(".py")
    same = [other for other in ctx.facts.files if base_name(other).rsplit(".", 1)[0] == stem]
    shown = stem if ctx.rng.random() < 0.2 and len(same) == 1 and len(stem) > 3 else ctx.path(path)
    names = [item.name for item in ctx.facts.definitions if item.path == path and item.kind != "method"]
    return Plan(
        "explain_file",
        "explain",
        {"path": shown},
        lambda session: play_explain_file(session, shown),
        checks.answers(path, *names[:12]),
        ("file", path),
    )


def _head(ctx: Setting, one: Definition) -> str:
    return ctx.facts.files[one.path].splitlines()[one.line - 1]


@goal("default_of", "explain", 1.2)
def default_of(ctx: Setting) -> Plan | None:
    """Which default a parameter has."""
    rng = ctx.rng
    one = unique_definition(ctx, "function", "method", python=True)
    if one is None or not one.params:
        return None
    head = _head(ctx, one)
    if not re.match(r"\s*def \w+\([\w, ]+\):$", head):
        return None
    wanted = rng.choice(one.params)
    value = rng.choice(
        (str(rng.randint(0, 90)), "None", "True", "False", repr(ctx.words.noun()), "0.5", "''")
    )
    grown = re.sub(r"(\w+)\):$", rf"\1={value}):", head)
    last = one.params[-1]
    if rng.random() < 0.85:
        wanted = last
    text = checks.replace_line(ctx.facts.files[one.path], one.line, grown)

    def play(session: Session) -> tuple[str, str]:
        task = f"Find the default of {wanted} in {one.name}. Find the definition."
        name, hit = one_definition(session, one.name, task, nothing="")
        place = f"(`{hit.path}`, line {hit.line})"
        match = re.search(rf"[(,]\s*{re.escape(wanted)}(?:: [^=,]+)?\s*=\s*([^,)]+)", hit.text)
        if match is None and not re.search(rf"[(,]\s*{re.escape(wanted)}\b", hit.text):
            return f"It has no {wanted}.", f"`{name}` has no parameter `{wanted}` {place}."
        if match is None:
            return "It has no default.", f"`{wanted}` of `{name}` has no default {place}."
        return f"It is {match[1]}.", f"The default of `{wanted}` in `{name}` is `{match[1]}` {place}."

    check = checks.answers(value) if wanted == last else checks.declines(wanted)
    return Plan(
        "default_of",
        "explain",
        {"param": wanted, "name": one.name},
        play,
        check,
        ("def", one.name),
        prepare=lambda files: files.update({one.path: text}),
    )


def _case(ctx: Setting) -> tuple[Func, str, str] | None:
    """A function of the project, and a call with its right result."""
    if ctx.project is None:
        return None
    pool = [
        func
        for module in ctx.project.modules
        for func in module.functions
        if func.cases and not func.is_async and not func.decorators
        for one in ctx.facts.defined(func.name)
        if one.path == module.path and one.kind == "function" and len(ctx.facts.defined(func.name)) == 1
    ]
    if not pool:
        return None
    func = ctx.rng.choice(pool)
    args, value = ctx.rng.choice(func.cases)
    call = f"{func.name}({', '.join(map(repr, args))})"
    if len(call) > 70 or len(repr(value)) > 60 or any(sign in call for sign in '"`$\\*\n'):
        return None
    return func, call, repr(value)


def run_call(session: Session, path: str, call: str, think: str) -> str:
    """What a call gives, as Python shows it."""
    module = path.removesuffix(".py").replace("/", ".")
    name = call.split("(", 1)[0]
    command = f'python -c "from {module} import {name}; print(repr({call}))"'
    result = session.call("shell", think, command=command)
    if "command not found" in result.text and not result.is_error:
        again = command.replace("python", "python3", 1)
        result = session.call("shell", "There is no python. Try python3.", command=again)
    if result.is_error:
        raise denied(result.text)
    if not result.text.endswith("[exit code 0]"):
        last = result.lines[-2] if len(result.lines) > 1 else "it failed"
        raise Report(f"It fails: {last}", f"`{call}` fails: {last}")
    return result.lines[-2] if len(result.lines) > 1 else ""


@goal("result_of", "explain", 1.4)
def result_of(ctx: Setting) -> Plan | None:
    """What a call returns: run it."""
    found = _case(ctx)
    if found is None:
        return None
    func, call, value = found

    def play(session: Session) -> tuple[str, str]:
        task = f"What does {call} give? Find {func.name}, then call it."
        _, hit = one_definition(session, func.name, task, nothing="")
        shown = run_call(session, hit.path, call, f"It is in {hit.path}. Call it.")
        return f"It gives {shown}.", f"`{call}` returns `{shown}` (run from `{hit.path}`)."

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        if re.search(r"(may|could) not run| fails: ", outcome.answer):
            return None
        return checks.says(outcome, value)

    return Plan("result_of", "explain", {"call": call}, play, check, ("def", func.name))


@goal("show_lines", "explain", 1.2)
def show_lines(ctx: Setting) -> Plan | None:
    """Some lines of a file by number."""
    path = ctx.choose([path for path, text in ctx.facts.files.items() if len(text.splitlines()) >= 4])
    if not isinstance(path, str):
        return None
    rows = ctx.facts.files[path].splitlines()
    first = ctx.rng.randint(1, len(rows) - 1)
    last = min(len(rows), first + ctx.rng.choice((0, 1, 2, 3, 4, 6, 9, 12)))
    wanted = [row.strip() for row in rows[first - 1 : last] if row.strip()]
    if not wanted:
        return None
    shown = ctx.path(path)
    only = first == last

    def play(session: Session) -> tuple[str, str]:
        what = f"line {first}" if only else f"lines {first} to {last}"
        count = last - first + 1
        think = f"Read {what} of {shown}: {count} from line {first}."
        view = open_file(session, shown, think, offset=first, limit=count, nothing="")
        if not view.lines:
            return "There are no such lines.", f"`{view.path}` has no {what}."
        return "Copy them.", f"{what.capitalize()} of `{view.path}`:\n{show(view.lines)}"

    slots = {"path": shown, "first": str(first)} | ({} if only else {"last": str(last)})
    name = "show_line" if only else "show_lines"
    return Plan(name, "explain", slots, play, checks.answers(*wanted), ("file", path))


@goal("is_used", "where", 1.3)
def is_used(ctx: Setting) -> Plan | None:
    """Whether a name is used anywhere."""
    names = [(item.name, ("def", item.name)) for item in ctx.facts.definitions]
    names += [(item.name, ("const", item.name)) for item in ctx.facts.constants]
    names = [item for item in names if not item[0].startswith(("__", "test"))]
    if not names:
        return None
    name, subject = ctx.rng.choice(names)
    safe = re.escape(name)
    starts = (
        rf"\b(def|class|function|func|const|let|var) {safe}\b|^\s*{safe}\s*(:[^=]+)?=[^=]|^{safe}\(\) \{{"
    )
    lines = ctx.facts.word_lines(name)
    uses = [(path, number) for path, number, text in lines if not re.search(starts, text)]
    if len(uses) > 10 or len(lines) == len(uses):
        return None

    def play(session: Session) -> tuple[str, str]:
        task = f"Is {name} used? Find it everywhere."
        found = hits(session.call("grep", task, pattern=rf"\b{esc(name)}\b"))
        if not found:
            raise Report(f"There is no {name}.", f"There is no `{name}` in this project.")
        defined = [hit for hit in found if re.search(starts, hit.text)]
        others = [hit for hit in found if hit not in defined]
        if not others:
            place = f": it stands only where it is defined, {quoted([hit.at for hit in defined])}"
            return "Only the definition.", f"No, `{name}` is not used anywhere{place}."
        rows = bullet_list([f"`{hit.at}`: `{hit.text.strip()}`" for hit in others], 12)
        return f"{len(others)} uses.", f"Yes, `{name}` is used:\n{rows}"

    def check(outcome: Outcome) -> str | None:
        if not uses:
            return checks.declines(name)(outcome)
        return checks.unchanged(outcome) or next(
            (wrong for path, number in uses if (wrong := checks.says_place(outcome, path, number))), None
        )

    return Plan("is_used", "where", {"name": name}, play, check, subject)


ENV_FORMS = (
    "{const} = os.environ['{env}']",
    "{const} = os.environ.get('{env}')",
    "{const} = os.environ.get('{env}', '{word}')",
    "{const} = os.getenv('{env}')",
    "{const} = os.getenv('{env}', '{word}')",
    "{const} = int(os.environ.get('{env}', {n}))",
    "{const} = os.environ.get('{env}') == '1'",
)


@goal("env_used", "where", 1.2)
def env_used(ctx: Setting) -> Plan | None:
    """Where an environment variable is read."""
    rng, words = ctx.rng, ctx.words
    paths = [path for path in ctx.facts.code_paths() if "\r" not in ctx.facts.files[path]]
    if not paths:
        return None
    env = ctx.unused(words.constant)
    chosen = rng.sample(paths, min(len(paths), rng.choice((0, 1, 1, 1, 1, 2)) if rng.random() < 0.92 else 0))
    changed: dict[str, str] = {}
    for path in chosen:
        values = {"env": env, "const": words.constant(), "word": words.noun(), "n": rng.randint(1, 99)}
        line = rng.choice(ENV_FORMS).format(**values)
        text = ctx.facts.files[path]
        changed[path] = (
            f"import os\n\n{line}\n{text}"
            if rng.random() < 0.5
            else f"{text.rstrip()}\n\n\nimport os\n\n{line}\n"
        )
    if rng.random() < 0.4 and ".env" not in ctx.facts.files:
        changed[rng.choice((".env.example", "docs/setup.md"))] = f"{env}={words.noun()}\n"
    places = [
        (path, number)
        for path, text in changed.items()
        if path in chosen
        for number, line in enumerate(text.splitlines(), 1)
        if env in line
    ]

    def play(session: Session) -> tuple[str, str]:
        found = hits(session.call("grep", f"Where is {env} read? Search for it.", pattern=rf"\b{esc(env)}\b"))
        reads = [hit for hit in found if re.search(r"environ|getenv", hit.text)]
        if not found:
            return "It is nowhere.", f"`{env}` is not read anywhere in this project."
        if not reads:
            places = quoted([hit.at for hit in found])
            return "No code reads it.", f"No code reads `{env}`; it only stands in {places}."
        rows = bullet_list([f"`{hit.at}`: `{hit.text.strip()}`" for hit in reads])
        return f"{len(reads)} places.", f"`{env}` is read here:\n{rows}"

    def check(outcome: Outcome) -> str | None:
        if not places:
            return checks.declines()(outcome)
        return checks.unchanged(outcome) or next(
            (wrong for path, number in places if (wrong := checks.says_place(outcome, path, number))), None
        )

    return Plan("env_used", "where", {"name": env}, play, check, prepare=lambda files: files.update(changed))


@goal("longest_file", "list", 1.0, level=1)
def longest_file(ctx: Setting) -> Plan | None:
    """Which file has most lines."""
    kinds = {"py": "Python", "md": "Markdown", "js": "JavaScript", "json": "JSON", "txt": "text"}
    ending = ctx.rng.choice(("", "", "py", "py", *kinds))
    sizes = {
        path: text.count("\n")
        for path, text in ctx.facts.files.items()
        if path.endswith("." + ending if ending else "") and not re.search(r"(^|/)\.|[ ']", path)
    }
    order = sorted(sizes, key=sizes.__getitem__, reverse=True)
    if len(order) < 2 or sizes[order[0]] == sizes[order[1]]:
        return None
    what = f"{kinds[ending]} file" if ending else "file"
    names = f" -name '*.{ending}'" if ending else ""

    def play(session: Session) -> tuple[str, str]:
        command = f"find . -type f{names} -not -path '*/.*' -exec wc -l {{}} + | sort -rn | head -n 4"
        result = session.call("shell", f"Find the longest {what}: count the lines of all.", command=command)
        if result.is_error:
            raise denied(result.text)
        rows = [match for line in result.lines if (match := re.match(r"\s*(\d+) (?:\./)?(.+)$", line))]
        rows = [row for row in rows if row[2] != "total"]
        if not rows:
            return "There is none.", f"There is no {what} here."
        return (
            f"It is {rows[0][2]}.",
            f"The longest {what} is `{rows[0][2]}` with {rows[0][1]} lines.",
        )

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        return None if re.search(r"(may|could) not run", outcome.answer) else checks.says(outcome, order[0])

    return Plan("longest_file", "list", {"what": what}, play, check, ("file", order[0]))


@goal("count_tests", "list", 0.9)
def count_tests(ctx: Setting) -> Plan | None:
    """How many tests the project has."""
    pattern = r"^\s*(async )?def test_"
    found = [
        path
        for path in ctx.facts.test_paths()
        for _ in re.findall(pattern, ctx.facts.files[path], re.MULTILINE)
    ]
    other = [p for p in ctx.facts.code_paths() if re.search(pattern, ctx.facts.files[p], re.MULTILINE)]
    if len(found) > 16 or other:
        return None

    def play(session: Session) -> tuple[str, str]:
        task = "Count the tests: find their definitions."
        rows = hits(session.call("grep", task, pattern=pattern, glob="*.py"))
        if not rows:
            return "None.", "There are 0 tests: no function is named `test_...`."
        names = [re.sub(r".*def (\w+).*", r"\1", hit.text) for hit in rows]
        counted = ", ".join(f"{number} {name}" for number, name in enumerate(names, 1))
        files = list(dict.fromkeys(hit.path for hit in rows))
        word = "test" if len(rows) == 1 else "tests"
        verb = "is" if len(rows) == 1 else "are"
        return f"Count: {counted}.", f"There {verb} {len(rows)} {word}, in {quoted(files)}."

    return Plan("count_tests", "list", {}, play, says_number(len(found), *found))


@goal("count_dir", "list", 0.9)
def count_dir(ctx: Setting) -> Plan | None:
    """How many files a folder holds."""
    bare = bare_folder(ctx) if ctx.rng.random() < BARE_SHARE else ""
    folder = bare or ctx.choose(ctx.facts.folders)
    if not isinstance(folder, str):
        return None
    inside = {path[len(folder) + 1 :] for path in ctx.facts.files if path.startswith(folder + "/")}
    files = sorted(item for item in inside if "/" not in item)
    if len(files) > 15:
        return None
    shown = ctx.rng.choice((folder, folder, f"{folder}/"))

    def play(session: Session) -> tuple[str, str]:
        where, rows = entries_of(session, shown, "Count the files in {}.")
        found = [row for row in rows if not row.endswith("/")]
        counted = ", ".join(f"{number} {base_name(row)}" for number, row in enumerate(found, 1)) or "none"
        rest = len(rows) - len(found)
        tail = f" and {rest} folder{'s' if rest > 1 else ''}" if rest else ""
        names = f": {quoted([base_name(row) for row in found], 15)}" if found else ""
        word = "file" if len(found) == 1 else "files"
        return f"Count: {counted}.", f"`{where}` holds {len(found)} {word}{tail}{names}."

    if bare:
        check, setup = checks.declines(base_name(folder)), makes(folder)
        return Plan("count_dir", "list", {"dir": shown}, play, check, setup=setup, alone=True)
    return Plan(
        "count_dir", "list", {"dir": shown}, play, says_number(len(files), folder, *files), ("folder", folder)
    )


@goal("methods_of", "find", 1.0)
def methods_of(ctx: Setting) -> Plan | None:
    """Which methods a class has."""
    one = unique_definition(ctx, "class", python=True)
    if one is None or one.end - one.line > 40:
        return None
    rows = ctx.facts.files[one.path].splitlines()[one.line - 1 : one.end]
    names = [match[1] for row in rows if (match := re.match(r"\s+(?:async )?def (\w+)", row))]
    if not names and ctx.rng.random() < 0.7:
        return None

    def play(session: Session) -> tuple[str, str]:
        task = f"Which methods does {one.name} have?"
        name, hit, _, lines = read_definition(session, one.name, task, "class ")
        found = [
            f"`{row.strip().rstrip(':')}` (line {number})"
            for number, row in lines
            if re.match(r"\s+(async )?def ", row)
        ]
        if not found:
            return "None.", f"`{name}` in `{hit.path}` has no methods."
        return f"{len(found)} methods.", f"`{name}` in `{hit.path}` has:\n{bullet_list(found)}"

    check = checks.answers(*names) if names else checks.declines()
    return Plan("methods_of", "find", {"name": one.name}, play, check, ("def", one.name))


@goal("importers_of", "where", 1.0)
def importers_of(ctx: Setting) -> Plan | None:
    """Who imports a module."""
    path = ctx.choose(ctx.facts.code_paths())
    if not isinstance(path, str) or "__init__" in path:
        return None
    stem = base_name(path).removesuffix(".py")
    pattern = re.compile(rf"^\s*(?:import|from) .*\b{re.escape(stem)}\b", re.MULTILINE)
    users = sorted(
        other for other, text in ctx.facts.files.items() if other.endswith(".py") and pattern.search(text)
    )
    if len(stem) < 4 or len(users) > 8 or (not users and ctx.rng.random() < 0.5):
        return None
    shown = ctx.rng.choice((stem, stem, path, base_name(path)))

    def play(session: Session) -> tuple[str, str]:
        name = base_name(shown).removesuffix(".py")
        rows = hits(
            session.call(
                "grep",
                f"They ask who imports {name}, not what {name} imports. Find its importers.",
                pattern=rf"^\s*(import|from) .*\b{esc(name)}\b",
                glob="*.py",
            )
        )
        if not rows:
            return "Nobody.", f"No file imports `{name}`."
        listed = bullet_list([f"`{hit.at}`: `{hit.text.strip()}`" for hit in rows], 12)
        return f"{counted(len(rows), 'line')}.", f"`{name}` is imported here:\n{listed}"

    check = checks.answers(*users) if users else checks.declines()
    return Plan("importers_of", "where", {"module": shown}, play, check, ("file", path))
