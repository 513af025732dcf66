"""What people try first: scripts that print, ignored files, requirements, misspelled words."""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.editing import change_line, failed, letters_apart
from k3agent.backend.training.episodes.facts import extension
from k3agent.backend.training.episodes.families.adding import append, by_squeeze
from k3agent.backend.training.episodes.families.creating import new_path, write_new
from k3agent.backend.training.episodes.policy import WINDOW, open_file, read_view, search_file
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Play, Report, Session
from k3agent.backend.training.episodes.spelling import misspelled, slipped, wrong_words

SCRIPTS = (
    "hello.py",
    "hello.py",
    "main.py",
    "app.py",
    "greet.py",
    "hello_world.py",
    "demo.py",
    "run.py",
    "hello.js",
)
TEXTS = ("hello.txt", "notes.txt", "hello.md", "note.txt", "message.txt", "todo.txt", "TODO.md", "info.txt")
GREETINGS = (
    "hello world",
    "Hello, world!",
    "Hello World",
    "hello",
    "hi there",
    "Hello!",
    "it works",
    "ok",
    "done",
)
PRINTING = {"py": "print({0}{1}{0})", "js": "console.log({0}{1}{0});", "sh": "echo {0}{1}{0}"}


def _new_name(ctx: Setting, usual: tuple[str, ...], endings: tuple[str, ...]) -> str:
    """A path where no file is, half of the time one that everybody takes."""
    free = [name for name in usual if name not in ctx.facts.files]
    if free and ctx.rng.random() < 0.5:
        return ctx.rng.choice(free)
    return new_path(ctx, ctx.rng.choice(endings), 0.25)


def _said(ctx: Setting) -> str:
    """What a first script or note says."""
    rng, words = ctx.rng, ctx.words
    text = rng.choice(
        (
            rng.choice(GREETINGS),
            rng.choice(GREETINGS),
            words.phrase(),
            words.title(),
            f"hello {words.noun()}",
            f"Hello from {words.noun()}",
            f"{words.noun()} {rng.randint(1, 99)}",
            words.phrase().capitalize() + rng.choice((".", "!", "")),
        )
    )
    return re.sub(r"[\"'`$\\{}]", "", text)


def _quoted(ctx: Setting, text: str) -> str:
    """A text in quotation marks or, as often, without them."""
    return ctx.rng.choice(("{}", "{}", '"{}"', "'{}'", "`{}`")).format(text)


@goal("create_print", "create", 1.6)
def create_print(ctx: Setting) -> Plan | None:
    """Create a script that prints a text."""
    path, text = _new_name(ctx, SCRIPTS, ("py", "py", "py", "js", "sh")), _said(ctx)
    form = PRINTING[extension(path)]
    content = form.format('"', text)

    def play(session: Session) -> tuple[str, str]:
        done, answer = write_new(session, path, content, f"Create {path}; it prints {text}: {content}")
        return done, answer.removesuffix(".") + f"; it prints `{text}`."

    check = checks.any_of(*(checks.writes({path: form.format(mark, text)}) for mark in ('"', "'")))
    slots = {"path": path, "text": _quoted(ctx, text)}
    return Plan("create_print", "create", slots, play, check, ("file", path))


@goal("create_says", "create", 1.4)
def create_says(ctx: Setting) -> Plan | None:
    """Create a file that says a text; a script says it by printing it."""
    if ctx.rng.random() < 0.3:
        plan = create_print(ctx)
        return plan and Plan("create_says", "create", plan.slots, plan.play, plan.check, plan.subject)
    path, text = _new_name(ctx, TEXTS, ("txt", "txt", "md", "log")), _said(ctx)

    def play(session: Session) -> tuple[str, str]:
        done, answer = write_new(session, path, text, f"Create {path} with the text: {text}")
        return done, answer.removesuffix(".") + f" with `{text}`."

    slots = {"path": path, "text": _quoted(ctx, text)}
    return Plan("create_says", "create", slots, play, checks.writes({path: text}), ("file", path))


IGNORED = (
    "*.log",
    "*.pyc",
    "build/",
    "dist/",
    ".env",
    "__pycache__/",
    ".venv/",
    "venv/",
    "node_modules/",
    "*.tmp",
)
IGNORED += (
    ".DS_Store",
    "*.bak",
    "coverage/",
    ".idea/",
    ".vscode/",
    "*.egg-info/",
    "*.sqlite3",
    ".coverage",
    "out/",
)


HAVE_SHARE = 0.22
"""Of the wishes for a line, those for one that is there already."""


def _put_line(session: Session, path: str, line: str, same: str) -> tuple[str, str]:
    """Add a line to a file, which is created where it is missing; `same` matches a line that is enough."""
    task = f"Add {line} to {path}. Is {line} there already? Read it."
    result = session.call("read", task, path=path, limit=WINDOW)
    if result.is_error and "does not exist" in result.text:
        think = f"There is no {path}. Create it with {line}"
        created = session.call("write", think, path=path, content=line + "\n")
        if created.is_error:
            raise failed(path, created, "create")
        return "Created.", f"There was no `{path}`; I created it with `{line}`."
    if result.is_error:
        raise failed(path, result, "read")
    view = read_view(result, path)
    have = next(((at, text.strip()) for at, text in view.lines if re.fullmatch(same, text.strip())), None)
    if have is not None:
        number, row = have
        think = f"Line {number} is {row}, wanted is {line}: it is there already."
        raise Report(think, f"`{path}` already has `{row}`; nothing was changed.")
    session.lead = f"No line is {line}."
    append(session, view, line)
    return "The diff shows it.", f"Added `{line}` to `{path}`."


def _line_plan(
    ctx: Setting, name: str, slot: str, path: str, line: str, others: list[str], same: str
) -> Plan:
    """Add a line to a file at the root that has other lines, has it already, or is missing."""
    rng = ctx.rng
    kind = rng.random()
    if kind < HAVE_SHARE:
        others = [*others, line]
        rng.shuffle(others)
    text = "" if HAVE_SHARE <= kind < 0.55 else "\n".join(others) + "\n"

    def prepare(files: dict[str, str]) -> None:
        files.pop(path, None)
        if text:
            files[path] = text

    check: Check = checks.writes({path: line})
    if text:
        check = by_squeeze(path, text + line) if kind >= HAVE_SHARE else told_as_done(line)
    return Plan(
        name,
        "addline",
        {slot: line},
        lambda session: _put_line(session, path, line, same),
        check,
        ("file", path),
        prepare=prepare,
        alone=True,
    )


def told_as_done(*needles: str) -> Check:
    """Nothing is changed, and the answer says that it is so already."""

    def check(outcome: Outcome) -> str | None:
        return checks.unchanged(outcome) or checks.says(outcome, "already", *needles)

    return check


@goal("ignore_line", "addline", 1.3)
def ignore_line(ctx: Setting) -> Plan | None:
    """Let git ignore something."""
    rng, words = ctx.rng, ctx.words

    def pattern() -> str:
        own = (f"{words.noun()}/", f"*.{words.noun()[:4]}", f"{words.noun()}.txt", f"{words.noun()}_*.json")
        return rng.choice(IGNORED if rng.random() < 0.6 else own)

    line = pattern()
    others = list(dict.fromkeys(item for _ in range(rng.randint(1, 7)) if (item := pattern()) != line))
    if not others:
        return None
    return _line_plan(
        ctx, "ignore_line", "line", ".gitignore", line, others, re.escape(line.rstrip("/")) + "/?"
    )


PACKAGES = (
    "requests",
    "flask",
    "numpy",
    "pandas",
    "click",
    "rich",
    "fastapi",
    "pytest",
    "pydantic",
    "httpx",
    "pyyaml",
)


@goal("require", "addline", 1.1)
def require(ctx: Setting) -> Plan | None:
    """Add a package to requirements.txt, which may be missing."""
    rng, words = ctx.rng, ctx.words

    def draw() -> str:
        name = rng.choice(PACKAGES) if rng.random() < 0.6 else words.noun()
        number = f"{rng.randint(0, 9)}.{rng.randint(0, 20)}"
        return name + rng.choice(
            ("", "", "", f"=={number}.{rng.randint(0, 9)}", f">={number}", f"~={number}")
        )

    line = draw()
    bare = re.split(r"[=<>~]", line)[0]
    others = [item for _ in range(rng.randint(1, 5)) if not (item := draw()).startswith(bare)]
    if not others or any(path.endswith("/requirements.txt") for path in ctx.facts.files):
        return None
    return _line_plan(
        ctx, "require", "package", "requirements.txt", line, others, rf"{re.escape(bare)}([=<>~ ].*)?"
    )


def _misspelled(ctx: Setting, *, hidden: bool) -> tuple[str, str, str, str] | None:
    """(path, text, wrong word, right word): a file of the project with a misspelled word in one of its
    sentences; `hidden`: a document in which no other word looks misspelled.
    """
    rng = ctx.rng
    kinds = ("md", "txt", "rst") if hidden or rng.random() < 0.7 else ("py",)
    pool = [
        path
        for path, text in ctx.facts.files.items()
        if extension(path) in kinds
        and 0 < len(text.splitlines()) <= 50
        and "\r" not in text
        and not path.endswith("requirements.txt")
    ]
    if not pool:
        return None
    path = rng.choice(pool)
    text = ctx.facts.files[path]
    drawn = _wrong_in_phrase(ctx, text)
    if drawn is None or (hidden and (wrong_words(text) or len(wrong_words(drawn[0])) > 1)):
        return None
    sentence, wrong, right = drawn
    begins = sentence.startswith(wrong)
    sentence = (
        sentence[0].upper() + sentence[1:] if not begins or rng.random() < 0.5 else sentence
    ) + rng.choice((".", ""))
    lines = text.rstrip("\n").split("\n")
    if kinds == ("py",):
        return path, "\n".join([*lines, f"# {sentence}"]) + "\n", wrong, right
    place = rng.choice([index for index, row in enumerate(lines, 1) if row.strip()])
    if any(row.startswith("```") for row in lines):
        place = len(lines)
    lines[place:place] = [sentence] if place < len(lines) and lines[place].strip() else ["", sentence]
    return path, "\n".join(lines) + "\n", wrong, right


def _wrong_in_phrase(ctx: Setting, text: str) -> tuple[str, str, str] | None:
    """(phrase with a misspelled word, that word, how it is spelled); none if the text or the phrase has the
    wrong word already.
    """
    wrong, right = misspelled(ctx.rng)
    parts = ctx.words.phrase().split()
    at = ctx.rng.randint(0, len(parts))
    if wrong in re.findall("[a-z]+", " ".join([text, *parts]).lower()):
        return None
    parts.insert(at, wrong)
    return " ".join(parts), wrong, right


def _like(word: str, right: str) -> str:
    """The right word, with a capital where the wrong one has it."""
    return right[0].upper() + right[1:] if word[0].isupper() else right


def _mend(session: Session, path: str, number: int, row: str, word: str, right: str) -> tuple[str, str]:
    """Correct one word of one line."""
    right = _like(word, right)
    old = row.strip()
    new = re.sub(rf"\b{word}\b", right, old)
    think = f"Line {number} has {word}: {letters_apart(word, right)}. {word} -> {right}"
    change_line(session, path, number, old, new, think)
    return "The diff shows it.", f"Corrected `{word}` to `{right}` in `{path}` (line {number})."


@goal("fix_typo", "replace", 2.4)
def fix_typo(ctx: Setting) -> Plan | None:
    """Correct a misspelled word that is named."""
    found = _misspelled(ctx, hidden=False)
    if found is None:
        return None
    path, text, wrong, right = found
    shown = ctx.path(path)

    def play(session: Session) -> tuple[str, str]:
        task = f"Correct the spelling of {wrong} in {shown}. Find it."
        real, rows = search_file(session, shown, wrong, task, ignore_case=True)
        for row in rows:
            if match := re.search(rf"\b{wrong}\b", row.text, re.IGNORECASE):
                return _mend(session, real, row.line, row.text, match[0], right)
        raise Report("It is not there.", f"There is no `{wrong}` in `{real}`. Nothing was changed.")

    return _typo_plan("fix_typo", {"path": shown, "word": wrong}, play, path, text, {wrong: right})


MISSPELLED = (1, 1, 1, 2, 2, 3)
"""Words of a document that are to be found."""


@goal("fix_typos", "replace", 1.8)
def fix_typos(ctx: Setting) -> Plan | None:
    """Correct the misspelled words of a document; they are to be found."""
    found = _misspelled(ctx, hidden=True)
    if found is None:
        return None
    path, text, wrong, right = found
    pairs = {wrong: right}
    for _ in range(ctx.rng.choice(MISSPELLED) - 1):
        text = _one_more(ctx, text, pairs)
    shown = ctx.path(path)

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, shown, f"Correct what is misspelled in {shown}. Read it.")
        rows = [(number, row, word) for number, row in view.lines for word in wrong_words(row)]
        if not rows:
            raise Report("I see none.", f"I see no misspelled word in `{view.path}`. Nothing was changed.")
        said = [_mend(session, view.path, *row, slipped()[row[2].lower()])[1] for row in rows]
        return "The diff shows it." if len(said) == 1 else "The diffs show it.", " ".join(said)

    return _typo_plan("fix_typos", {"path": shown}, play, path, text, pairs)


def _one_more(ctx: Setting, text: str, pairs: dict[str, str]) -> str:
    """The text with one more sentence at its end that has a misspelled word, which `pairs` get."""
    drawn = _wrong_in_phrase(ctx, text)
    if drawn is None or drawn[2] in pairs.values() or len(wrong_words(drawn[0])) > 1:
        return text
    sentence, wrong, right = drawn
    pairs[wrong] = right
    return f"{text}{ctx.rng.choice(('', chr(10)))}{sentence}\n"


def _typo_plan(
    name: str, slots: dict[str, str], play: Play, path: str, text: str, words: dict[str, str]
) -> Plan:
    """A plan that corrects the wrong words of a text and nothing else."""
    either = rf"\b({'|'.join(words)})\b"
    after = re.sub(either, lambda match: _like(match[0], words[match[0].lower()]), text, flags=re.IGNORECASE)
    return Plan(
        name,
        "replace",
        slots,
        play,
        checks.writes({path: after}),
        ("file", path),
        prepare=lambda files: files.update({path: text}),
    )
