"""Creating files."""

import ast
import contextlib
import io
import json
import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.concepts import same_results
from k3agent.backend.training.episodes.editing import failed
from k3agent.backend.training.episodes.facts import Definition, extension
from k3agent.backend.training.episodes.families.adding import plain_line
from k3agent.backend.training.episodes.families.functions import (
    code_of,
    draw_new,
    said_signature,
    thought_of,
)
from k3agent.backend.training.episodes.families.read import read_definition, unique_definition
from k3agent.backend.training.episodes.otherfiles import draw_file
from k3agent.backend.training.episodes.policy import counted
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Report, Session


def new_path(ctx: Setting, ending: str, folder_share: float = 0.4) -> str:
    """A path where no file is."""
    rng, words = ctx.rng, ctx.words
    while True:
        name = f"{words.file_stem(ending)}.{ending}"
        if rng.random() < folder_share:
            folders = ctx.facts.folders
            folder = rng.choice(folders) if folders and rng.random() < 0.7 else words.noun()
            name = f"{folder}/{name}"
        if name not in ctx.facts.files and name.split("/")[0] not in ctx.facts.files:
            return name


def write_new(session: Session, path: str, content: str, think: str) -> tuple[str, str]:
    """Write a file that must not exist yet."""
    text = content if content.endswith("\n") or not content else content + "\n"
    result = session.call("write", think, path=path, content=text)
    if result.is_error:
        if "exists" in result.text:
            raise Report(
                f"{path} exists already. I must not replace it unasked.",
                f"`{path}` already exists; I did not replace it. Shall I overwrite it or use another name?",
            )
        raise failed(path, result, "create")
    if result.text.startswith("Replaced"):
        return "It replaced a file.", f"Replaced `{path}`."
    return "Created.", f"Created `{path}`."


def _maybe_existing(ctx: Setting, path: str) -> tuple[str, bool]:
    """Now and then the file exists already."""
    if ctx.rng.random() < 0.05:
        same = [
            other
            for other in ctx.facts.files
            if other.rsplit(".", 1)[-1] == path.rsplit(".", 1)[-1] and ctx.facts.files[other].strip()
        ]
        if same:
            return ctx.rng.choice(same), True
    return path, False


ENDINGS = ("txt", "txt", "md", "py", "py", "sh", "csv", "js", "cfg", "conf", "log", "css", "yaml")
"""Of new files; none for secrets, such as `.env`, which the tools do not write unasked."""


@goal("create_file", "create", 2.0)
def create_file(ctx: Setting) -> Plan | None:
    """Create a file with one line."""
    path, exists = _maybe_existing(ctx, new_path(ctx, ctx.rng.choice(ENDINGS)))
    content = plain_line(ctx, path)
    if "`" in content:
        return None

    def play(session: Session) -> tuple[str, str]:
        think, answer = write_new(session, path, content, f"Create {path} with: {content}")
        return think, answer.removesuffix(".") + f" with `{content}`."

    check = checks.declines() if exists else checks.writes({path: content})
    return Plan("create_file", "create", {"path": path, "content": content}, play, check, ("file", path))


def _whole_file(ctx: Setting) -> tuple[str, str] | None:
    """The extension and the text of a short file as projects have them: settings, documents, scripts."""
    for _ in range(4):
        path, text = draw_file(ctx.rng, ctx.words, [ctx.words.function()])
        text = text.strip("\n")
        if extension(path) and 1 < len(text.split("\n")) <= 16 and "`" not in text and text == text.strip():
            return extension(path), text
    return None


@goal("create_file_lines", "create", 2.0)
def create_file_lines(ctx: Setting) -> Plan | None:
    """Create a file with given lines."""
    ending = ctx.rng.choice((*ENDINGS, "json"))
    whole = _whole_file(ctx) if ctx.rng.random() < 0.4 else None
    path, exists = _maybe_existing(ctx, new_path(ctx, whole[0] if whole else ending))
    rng, words = ctx.rng, ctx.words
    kind = rng.random()
    if whole:
        lines = whole[1].split("\n")
    elif ending == "json":
        lines = json.dumps(
            {
                words.noun(): rng.choice((rng.randint(1, 99), words.noun(), True))
                for _ in range(rng.randint(1, 4))
            },
            indent=2,
        ).split("\n")
    elif ending == "py" and kind < 0.6:
        func, _ = draw_new(ctx)
        lines = code_of(func).split("\n")
        if rng.random() < 0.4:
            lines = [f"{words.constant()} = {rng.randint(1, 99)}", "", "", *lines]
    elif ending == "md" and kind < 0.7:
        lines = [
            f"# {words.title()}",
            "",
            words.phrase().capitalize() + ".",
            *(f"- {words.phrase()}" for _ in range(rng.randint(0, 3))),
        ]
    else:
        lines = [plain_line(ctx, path) for _ in range(rng.randint(2, 6))]
    content = "\n".join(lines)
    if "`" in content:
        return None

    def play(session: Session) -> tuple[str, str]:
        think = f"Create {path} with the {len(lines)} lines given, from {lines[0]} to {lines[-1]}"
        done, answer = write_new(session, path, content, think)
        return done, answer.removesuffix(".") + f" with {len(lines)} lines."

    check = checks.declines() if exists else checks.writes({path: content})
    return Plan("create_file_lines", "create", {"path": path, "lines": content}, play, check, ("file", path))


@goal("create_func_file", "create", 1.8)
def create_func_file(ctx: Setting) -> Plan | None:
    """Create a module with a described function."""
    path = new_path(ctx, "py")
    func, words = draw_new(ctx)
    slots = {"path": path, "signature": said_signature(ctx, func), "body_words": words}

    def play(session: Session) -> tuple[str, str]:
        think = thought_of(func, f"Create {path} with {func.signature}. It {words}.")
        done, answer = write_new(session, path, code_of(func), think)
        return done, answer.removesuffix(".") + f" with `{func.signature}`; it {words}."

    def check(outcome: Outcome) -> str | None:
        if not same_results(outcome.after.get(path, ""), func):
            return f"{func.name} in {path} is missing or wrong"
        return checks.unchanged(outcome, path)

    return Plan("create_func_file", "create", slots, play, check, ("def", func.name))


def listing(ctx: Setting, parts: list[str]) -> str:
    """`a, b and c`."""
    if len(parts) == 1:
        return parts[0]
    return ", ".join(parts[:-1]) + ctx.rng.choice((" and ", ", ", " and ")) + parts[-1]


def _pairs(ctx: Setting, constant: bool) -> tuple[str, list[tuple[str, str]]]:
    """Names with values, said and meant."""
    rng, words = ctx.rng, ctx.words
    link = rng.choice((" = ", " = ", "=", ": ", " set to ", " "))
    pairs: list[tuple[str, str]] = []
    for _ in range(rng.randint(1, 4)):
        name = words.constant() if constant else words.fresh(words.variable)
        value = rng.choice(
            (
                str(rng.randint(0, 999)),
                str(rng.randint(1, 99) / 10),
                f'"{words.text_value()}"',
                "True" if constant else "true",
            )
        )
        if " " in value and link == " ":
            value = str(rng.randint(1, 50))
        pairs.append((name, value))
    return listing(ctx, [f"{name}{link}{value}" for name, value in pairs]), pairs


@goal("create_const_file", "create", 1.3)
def create_const_file(ctx: Setting) -> Plan | None:
    """Create a module of constants."""
    path = new_path(ctx, "py")
    said, pairs = _pairs(ctx, True)
    content = "\n".join(f"{name} = {value}" for name, value in pairs)

    def play(session: Session) -> tuple[str, str]:
        names = ", ".join(name for name, _ in pairs)
        done, answer = write_new(session, path, content, f"Create {path} with the constants {names}.")
        return done, answer.removesuffix(".") + f" with {names}."

    return Plan(
        "create_const_file",
        "create",
        {"path": path, "pairs": said},
        play,
        checks.writes({path: content}),
        ("file", path),
    )


@goal("create_json", "create", 1.3)
def create_json(ctx: Setting) -> Plan | None:
    """Create a JSON file with keys."""
    path = new_path(ctx, "json")
    said, pairs = _pairs(ctx, False)
    if ctx.rng.random() < 0.4:
        said = re.sub(r'"([\w-]+)"', r"\1", said)
        pairs = [(name, value) for name, value in pairs]
    table = {name: json.loads(value) for name, value in pairs}
    content = json.dumps(table, indent=2)

    def play(session: Session) -> tuple[str, str]:
        names = ", ".join(name for name, _ in pairs)
        rows = ", ".join(f"{name} is {value}" for name, value in pairs)
        think = f"Create {path} with {counted(len(pairs), 'key')}: {rows}."
        done, answer = write_new(session, path, content, think)
        return done, answer.removesuffix(".") + f" with {names}."

    def check(outcome: Outcome) -> str | None:
        try:
            if json.loads(outcome.after.get(path, "")) != table:
                return f"{path} is not as asked"
        except ValueError:
            return f"{path} is missing or no JSON"
        return checks.unchanged(outcome, path)

    return Plan("create_json", "create", {"path": path, "pairs": said}, play, check, ("file", path))


@goal("create_empty", "create", 0.7)
def create_empty(ctx: Setting) -> Plan | None:
    """Create an empty file."""
    path = new_path(ctx, ctx.rng.choice(ENDINGS))
    if ctx.rng.random() < 0.2:
        folder = ctx.choose(
            [folder for folder in ctx.facts.folders if f"{folder}/__init__.py" not in ctx.facts.files]
        )
        path = f"{folder}/__init__.py" if isinstance(folder, str) else path

    def play(session: Session) -> tuple[str, str]:
        done, answer = write_new(session, path, "", f"Create {path} without content.")
        return done, answer.removesuffix(".") + ", empty."

    return Plan("create_empty", "create", {"path": path}, play, checks.writes({path: ""}), ("file", path))


@goal("create_readme", "create", 0.8)
def create_readme(ctx: Setting) -> Plan | None:
    """Create README.md with a title."""
    exists = "README.md" in ctx.facts.files
    if exists and ctx.rng.random() < 0.85:
        return None
    title = ctx.words.title()

    def play(session: Session) -> tuple[str, str]:
        done, answer = write_new(
            session, "README.md", f"# {title}", f"Create README.md with the title {title}."
        )
        return done, answer.removesuffix(".") + f" with the title {title}."

    check = checks.declines() if exists else checks.writes({"README.md": f"# {title}"})
    return Plan("create_readme", "create", {"title": title}, play, check, ("file", "README.md"))


@goal("create_test", "create", 1.2, level=1)
def create_test(ctx: Setting) -> Plan | None:
    """Create a test for a function, in a file that is named."""
    return test_plan(ctx, "create_test")


@goal("test_for", "create", 1.2, level=1)
def test_for(ctx: Setting) -> Plan | None:
    """Create a test for a function; where is not said."""
    return test_plan(ctx, "test_for")


def test_plan(ctx: Setting, goal_name: str) -> Plan | None:
    """Create a test for a function."""
    one = unique_definition(ctx, "function", python=True)
    if one is None or one.end - one.line > 14 or not one.params or one.path.startswith("test"):
        return None
    case = _known_case(ctx, one)
    if case is None:
        return None
    args = case[0]
    folder = "tests/" if any(path.startswith("tests/") for path in ctx.facts.files) else ""
    path = f"{folder}test_{one.name}.py"
    if path in ctx.facts.files:
        return None
    dotted = one.path.removesuffix(".py").replace("/", ".")

    def play(session: Session) -> tuple[str, str]:
        name, hit, _, _ = read_definition(session, one.name, f"Create the test {path} for {one.name}.")
        command = f'python -c "from {dotted} import {name}; print(repr({name}({args})))"'
        result = session.call(
            "shell", f"It is in {hit.path}. See what {name}({args}) gives.", command=command
        )
        if result.is_error or not result.text.endswith("[exit code 0]"):
            raise Report(
                "I could not run it.", f"I could not run `{name}` to learn its result, so I wrote no test."
            )
        shown = result.lines[0]
        text = f"from {dotted} import {name}\n\n\ndef test_{name}():\n    assert {name}({args}) == {shown}\n"
        write_new(session, path, text, f"It gives {shown}. Write the test.")
        run = session.call("shell", "Run it.", command=f"python -m pytest -q --tb=short {path}")
        done = "passed" in run.text and "[exit code 0]" in run.text
        tail = "It passes." if done else "I could not run it with pytest here."
        return tail, f"Created `{path}` with a test of `{name}`. {tail}"

    def check(outcome: Outcome) -> str | None:
        after = outcome.after.get(path, "")
        if (
            "def test_" not in after
            or one.name not in after
            or "assert" not in after
            or not checks.compiles(after)
        ):
            return f"{path} is missing or no test"
        return checks.unchanged(outcome, path)

    slots = {"name": one.name} | ({"path": path} if goal_name == "create_test" else {})
    return Plan(goal_name, "create", slots, play, check, ("file", path))


def _known_case(ctx: Setting, one: Definition) -> tuple[str, str] | None:
    """Arguments with which the function works, and its result, as text."""
    text = ctx.facts.files[one.path]
    lines = text.splitlines()[one.line - 1 : one.end]
    scope: dict[str, object] = {}
    try:
        node = ast.parse("\n".join(lines)).body[0]
        exec(compile(ast.Module([node], []), "file", "exec"), scope)  # type: ignore[list-item]
    except Exception:
        return None
    for values in (
        ("3", "4", "5"),
        ("'ab'", "'b'", "'c'"),
        ("[1, 2, 3]", "2", "3"),
        ("['a', 'bb']", "1", "2"),
        ("{'a': 1}", "'a'", "0"),
    ):
        args = ", ".join(values[: len(one.params)])
        if len(one.params) > 3:
            return None
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                result = eval(f"{one.name}({args})", scope)
                is_plain = result is not None and result == eval(repr(result))
        except Exception:
            continue
        if is_plain and not printed.getvalue() and len(repr(result)) < 50 and '"' not in repr(result):
            return args, repr(result)
    return None
