"""Reading code: where things are defined and used, what they do, return, take and hold."""

import re

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.explain import explain_python
from k3agent.backend.training.episodes.facts import Definition
from k3agent.backend.training.episodes.families.look import list_hits
from k3agent.backend.training.episodes.policy import (
    Hit,
    View,
    block,
    definitions,
    esc,
    hits,
    near_key,
    near_names,
    one_definition,
    open_file,
    quoted,
    search_file,
    show,
)
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Outcome, Plan, Session

NO_CHANGE = ""


def unique_definition(ctx: Setting, *kinds: str, python: bool = False) -> Definition | None:
    """A definition whose name is defined once."""
    pool = [
        item
        for item in ctx.facts.definitions
        if (not kinds or item.kind in kinds) and (not python or item.path.endswith(".py"))
    ]
    pool = [
        item for item in pool if not item.name.startswith("__") and len(ctx.facts.defined(item.name)) == 1
    ]
    pool = [item for item in pool if not any(const.name == item.name for const in ctx.facts.constants)]
    mains = [item for item in pool if not item.name.startswith("test")]
    return ctx.rng.choice(mains or pool) if pool else None


def read_definition(
    session: Session, name: str, task: str, what: str = ""
) -> tuple[str, Hit, View, list[tuple[int, str]]]:
    """Find a definition and read its lines."""
    name, hit = one_definition(session, name, f"{task} Find its definition.", nothing=NO_CHANGE, what=what)
    view = open_file(session, hit.path, f"{name} is at {hit.at}. Read from there.", offset=hit.line, limit=30)
    lines, ended = block(view.lines, hit.line)
    if not ended and len(view.lines) >= 30:
        more = open_file(session, hit.path, "It goes on. Read more.", offset=hit.line + 30, limit=40)
        lines, ended = block([*view.lines, *more.lines], hit.line)
    return name, hit, view, lines


def _kind_word(text: str) -> str:
    stripped = text.strip()
    if re.match(r"(export )?class ", stripped):
        return "class"
    return "function" if re.search(r"\b(def|function|func)\b|=>", stripped) else "name"


def play_where(session: Session, name: str, kind: str = "") -> tuple[str, str]:
    """Where a name is defined."""
    what = f"{kind} " if kind else ""
    name, found = definitions(
        session, name, f"Find where {what}{name} is defined.", nothing=NO_CHANGE, what=what
    )
    if len(found) == 1:
        hit = found[0]
        return (
            f"It is at {hit.at}.",
            f"`{name}` is defined in `{hit.path}`, line {hit.line}: `{hit.text.strip()}`",
        )
    return (
        f"{len(found)} definitions.",
        f"`{name}` is defined in {len(found)} places:\n{list_hits([f'`{hit.at}`' for hit in found])}",
    )


@goal("where_defined", "where", 1.6)
def where_defined(ctx: Setting) -> Plan | None:
    """Where is X defined."""
    rng = ctx.rng
    if rng.random() < 0.3 and ctx.facts.constants:
        item = rng.choice(ctx.facts.constants)
        places = [(other.path, other.line) for other in ctx.facts.constants if other.name == item.name]
        if ctx.facts.defined(item.name):
            return None
        name, subject = item.name, ("const", item.name)
    else:
        pool = [one for one in ctx.facts.definitions if not one.name.startswith("__")]
        if not pool:
            return None
        one = rng.choice(pool)
        places = [(other.path, other.line) for other in ctx.facts.defined(one.name)]
        if any(other.name == one.name for other in ctx.facts.constants) or len(places) > 6:
            return None
        name, subject = one.name, ("def", one.name)

    def check(outcome: Outcome) -> str | None:
        return checks.unchanged(outcome) or next(
            (w for p, n in places if (w := checks.says_place(outcome, p, n))), None
        )

    return Plan(
        "where_defined", "where", {"name": name}, lambda session: play_where(session, name), check, subject
    )


@goal("where_defined_kind", "where", 1.2)
def where_defined_kind(ctx: Setting) -> Plan | None:
    """Where is the function/class/constant X."""
    rng = ctx.rng
    if rng.random() < 0.25 and ctx.facts.constants:
        item = rng.choice(ctx.facts.constants)
        if sum(1 for other in ctx.facts.constants if other.name == item.name) != 1 or ctx.facts.defined(
            item.name
        ):
            return None
        kind, name, path, line = (
            rng.choice(("constant", "variable", "setting")),
            item.name,
            item.path,
            item.line,
        )
        subject = ("const", name)
    else:
        one = unique_definition(ctx)
        if one is None:
            return None
        kind, name, path, line, subject = one.kind, one.name, one.path, one.line, ("def", one.name)

    def check(outcome: Outcome) -> str | None:
        return checks.unchanged(outcome) or checks.says_place(outcome, path, line)

    return Plan(
        "where_defined_kind",
        "where",
        {"kind": kind, "name": name},
        lambda s: play_where(s, name, kind),
        check,
        subject,
    )


def play_used(session: Session, name: str) -> tuple[str, str]:
    """Where a name is used."""
    result = session.call("grep", f"Find the uses of {name}.", pattern=rf"\b{esc(name)}\b")
    found = hits(result)
    if not found:
        name = near_names(session, name, NO_CHANGE)
        found = hits(session.call("grep", f"It is written {name}.", pattern=rf"\b{esc(name)}\b"))
    safe = re.escape(name)
    defined = [
        hit
        for hit in found
        if re.search(
            rf"\b(def|class|function|func|const|let|var) {safe}\b|^\s*{safe}\s*(:[^=]+)?=[^=]", hit.text
        )
    ]
    uses = [hit for hit in found if hit not in defined]
    start = f"`{name}` is defined in `{defined[0].path}`, line {defined[0].line}. " if defined else ""
    if not uses:
        return "Only the definition.", f"{start}It is used nowhere else."
    rows = list_hits([f"`{hit.at}`: `{hit.text.strip()}`" for hit in uses])
    number = "one place" if len(uses) == 1 else f"{len(uses)} places"
    return f"{len(uses)} uses.", f"{start}It is used in {number}:\n{rows}"


@goal("where_used", "where", 1.5)
def where_used(ctx: Setting) -> Plan | None:
    """Where is X used."""
    names = [
        (item.name, ("def", item.name)) for item in ctx.facts.definitions if not item.name.startswith("__")
    ]
    names += [(item.name, ("const", item.name)) for item in ctx.facts.constants]
    if not names:
        return None
    name, subject = ctx.rng.choice(names)
    lines = ctx.facts.word_lines(name)
    safe = re.escape(name)
    uses = [
        (path, number)
        for path, number, text in lines
        if not re.search(
            rf"\b(def|class|function|func|const|let|var) {safe}\b|^\s*{safe}\s*(:[^=]+)?=[^=]", text
        )
    ]
    if len(uses) > 12 or (not uses and ctx.rng.random() < 0.6):
        return None

    def check(outcome: Outcome) -> str | None:
        if not uses and not re.search(r"nowhere|\b(no|not|only|never|isn't)\b", outcome.answer):
            return "the answer does not say that it is used nowhere"
        return checks.unchanged(outcome) or next(
            (w for p, n in uses if (w := checks.says_place(outcome, p, n))), None
        )

    return Plan(
        "where_used", "where", {"name": name}, lambda session: play_used(session, name), check, subject
    )


def play_show(session: Session, name: str) -> tuple[str, str]:
    """The code of a definition."""
    name, hit, _, lines = read_definition(session, name, f"Show {name}.")
    if len(lines) <= 1:
        return f"It is one line at {hit.at}.", f"`{hit.path}`, line {hit.line}:\n{show([hit.text])}"
    shown = lines[:40]
    tail = "" if len(shown) == len(lines) else "\nIt goes on after that."
    return (
        f"It ends at line {shown[-1][0]}. Copy it.",
        f"`{name}` in `{hit.path}`, line {hit.line}:\n{show(shown)}{tail}",
    )


def _code_lines(ctx: Setting, one: Definition) -> list[str]:
    return ctx.facts.files[one.path].splitlines()[one.line - 1 : one.end]


@goal("show_def", "explain", 1.2)
def show_def(ctx: Setting) -> Plan | None:
    """Show the code of X."""
    one = unique_definition(ctx)
    if one is None or one.end - one.line > 35:
        return None
    lines = [line.strip() for line in _code_lines(ctx, one) if line.strip()]
    return Plan(
        "show_def",
        "explain",
        {"name": ctx.called(one)},
        lambda s: play_show(s, one.name),
        checks.answers(*lines),
        ("def", one.name),
    )


@goal("show_file", "explain", 1.0)
def show_file(ctx: Setting) -> Plan | None:
    """Show a file."""
    path = ctx.choose([path for path, text in ctx.facts.files.items() if len(text.splitlines()) <= 45])
    if not isinstance(path, str):
        return None
    shown = ctx.path(path)
    lines = [line.strip() for line in ctx.facts.files[path].splitlines() if line.strip()]

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, shown, f"Read {shown} to show it.", nothing="")
        if not view.lines:
            return "It is empty.", f"`{view.path}` is empty."
        tail = (
            f"\nThese are the first {len(view.lines)} of {view.total} lines."
            if view.total > len(view.lines)
            else ""
        )
        return f"{len(view.lines)} lines. Copy them.", f"`{view.path}`:\n{show(view.lines)}{tail}"

    return Plan("show_file", "explain", {"path": shown}, play, checks.answers(*lines), ("file", path))


@goal("head_file", "explain", 0.7)
def head_file(ctx: Setting) -> Plan | None:
    """The first lines of a file."""
    path = ctx.choose([path for path, text in ctx.facts.files.items() if len(text.splitlines()) >= 3])
    if not isinstance(path, str):
        return None
    count = ctx.rng.choice((1, 2, 3, 4, 5, 5, 8, 10, 10, 12))
    shown = ctx.path(path)
    lines = ctx.facts.files[path].splitlines()[:count]

    def play(session: Session) -> tuple[str, str]:
        view = open_file(session, shown, f"Read the first {count} lines of {shown}.", limit=count, nothing="")
        return "Copy them.", f"The first {len(view.lines)} lines of `{view.path}`:\n{show(view.lines)}"

    check = checks.answers(*(line.strip() for line in lines if line.strip()))
    return Plan("head_file", "explain", {"path": shown, "n": str(count)}, play, check, ("file", path))


def play_explain(session: Session, name: str) -> tuple[str, str]:
    """What a definition does."""
    name, hit, _, lines = read_definition(session, name, f"Explain {name}.")
    texts = [text for _, text in lines]
    kind = _kind_word(hit.text)
    found = explain_python(texts) if hit.path.endswith(".py") else None
    place = f"`{name}` is a {kind} in `{hit.path}`, line {hit.line}."
    if found is None:
        body = [text.strip() for text in texts[1:] if text.strip() and text.strip() not in ("}", "};")]
        rest = f" It does: {quoted(body[:4], 4)}." if body else f" It is `{hit.text.strip()}`."
        return "Say what its lines do.", place + rest
    return "Say what its lines do.", " ".join([place, *found.sentences])


def play_explain_file(session: Session, path: str) -> tuple[str, str]:
    """What a file holds."""
    view = open_file(session, path, f"Explain the file {path}. Read it.", nothing=NO_CHANGE)
    texts = [text for _, text in view.lines]
    if not texts:
        return "It is empty.", f"`{view.path}` is empty."
    parts: list[str] = []
    if texts[0].startswith(('"""', "'''")):
        parts.append(f"It says of itself: {texts[0].strip(chr(34) + chr(39))}")
    words = {"def": "the functions", "class": "the classes"}
    for word, shown in words.items():
        names = [match[1] for text in texts if (match := re.match(rf"(?:async )?{word} (\w+)", text))]
        if names:
            parts.append(f"It defines {shown} {quoted(names, 12)}.")
    names = [match[1] for text in texts if (match := re.match(r"([A-Z][A-Z0-9_]*)(?:: [^=]+)? = ", text))]
    if names:
        parts.append(f"It sets {quoted(names, 12)}.")
    modules = [match[1] for text in texts if (match := re.match(r"(?:import|from) ([\w.]+)", text))]
    if modules:
        parts.append(f"It imports {quoted(modules, 8)}.")
    if not parts:
        parts.append(f"It begins with: `{texts[0].strip()}`")
    tail = f" These are the first {len(texts)} of {view.total} lines." if view.total > len(texts) else ""
    return "Say what it holds.", f"`{view.path}` has {view.total} lines. {' '.join(parts)}{tail}"


def _explain_file(ctx: Setting) -> Plan | None:
    path = ctx.choose(ctx.facts.code_paths())
    if not isinstance(path, str) or len(ctx.facts.files[path].splitlines()) > 80:
        return None
    shown = ctx.path(path)
    names = [item.name for item in ctx.facts.definitions if item.path == path and item.kind != "method"]
    return Plan(
        "explain",
        "explain",
        {"name": shown},
        lambda session: play_explain_file(session, shown),
        checks.answers(*names[:12]) if names else checks.answers(path),
        ("file", path),
    )


@goal("explain", "explain", 2.0)
def explain(ctx: Setting) -> Plan | None:
    """What does X do."""
    if ctx.rng.random() < 0.12:
        return _explain_file(ctx)
    one = unique_definition(ctx)
    if one is None or one.end - one.line > 35:
        return None
    needles = [one.path, *one.params]
    if one.path.endswith(".py"):
        found = explain_python(_code_lines(ctx, one))
        if found is None:
            return None
        needles += [item for item in found.returns[-1:] if len(item) < 80 and "\n" not in item]
    said = " ".join(needles)

    def check(outcome: Outcome) -> str | None:
        if wrong := checks.unchanged(outcome):
            return wrong
        have = [needle for needle in needles if checks.says(outcome, needle) is None]
        return None if len(have) * 2 >= len(needles) else f"the answer says too little of {said!r}"

    return Plan(
        "explain",
        "explain",
        {"name": ctx.called(one)},
        lambda s: play_explain(s, one.name),
        check,
        ("def", one.name),
    )


@goal("returns", "explain", 1.3)
def returns(ctx: Setting) -> Plan | None:
    """What does X return."""
    one = unique_definition(ctx, "function", "method", python=True)
    if one is None or one.end - one.line > 30:
        return None
    found = explain_python(_code_lines(ctx, one))
    if found is None or len(found.returns) > 4 or any(len(item) > 100 for item in found.returns):
        return None

    def play(session: Session) -> tuple[str, str]:
        name, hit, _, lines = read_definition(session, one.name, f"Find what {one.name} returns.")
        seen = explain_python([text for _, text in lines])
        results = seen.returns if seen else []
        if not results:
            return "No return in it.", f"`{name}` in `{hit.path}` has no return statement; it gives None."
        if len(results) == 1:
            return (
                f"It returns {results[0]}.",
                f"`{name}` returns `{results[0]}` (`{hit.path}`, line {hit.line}).",
            )
        return (
            f"{len(results)} returns.",
            f"`{name}` returns one of {quoted(results)} (`{hit.path}`, line {hit.line}).",
        )

    return Plan(
        "returns",
        "explain",
        {"name": ctx.called(one)},
        play,
        checks.answers(*(found.returns or ["None"])),
        ("def", one.name),
    )


@goal("params", "explain", 1.1)
def params(ctx: Setting) -> Plan | None:
    """Which parameters X takes."""
    one = unique_definition(ctx, "function", "method", python=True)
    if one is None:
        return None
    head = ctx.facts.files[one.path].splitlines()[one.line - 1].strip()
    if not head.startswith(("def ", "async def ")) or not head.endswith(":"):
        return None

    def play(session: Session) -> tuple[str, str]:
        name, hit = one_definition(
            session, one.name, f"Find the parameters of {one.name}. Find its definition.", nothing=""
        )
        found = explain_python([hit.text, re.match(r"\s*", hit.text)[0] + "    pass"])  # type: ignore[index]
        names = found.params if found else []
        if not names:
            return "No parameters.", f"`{name}` takes no parameters (`{hit.path}`, line {hit.line})."
        return (
            f"It takes {', '.join(names)}.",
            f"`{name}` takes {quoted(names, 12)} (`{hit.path}`, line {hit.line}).",
        )

    needles = one.params if one.params else ("no",)
    return Plan(
        "params", "explain", {"name": ctx.called(one)}, play, checks.answers(*needles), ("def", one.name)
    )


@goal("value_of", "explain", 1.4)
def value_of(ctx: Setting) -> Plan | None:
    """What is the value of a constant."""
    pool = [
        item
        for item in ctx.facts.constants
        if sum(1 for other in ctx.facts.constants if other.name == item.name) == 1
    ]
    pool = [item for item in pool if not ctx.facts.defined(item.name) and len(item.value) < 80]
    if not pool:
        return None
    item = ctx.rng.choice(pool)
    said = item.name.lower() if item.name.isupper() and ctx.rng.random() < 0.35 else item.name

    def play(session: Session) -> tuple[str, str]:
        name, hit = one_definition(session, said, f"They ask what {said} is. Find its value.", nothing="")
        value = (
            hit.text.split("=", 1)[1].split("  #")[0].strip().rstrip(";")
            if "=" in hit.text
            else hit.text.strip()
        )
        return f"It is {value}.", f"`{name}` is `{value}` (`{hit.path}`, line {hit.line})."

    check = checks.answers(item.value.strip("'\""))
    return Plan("value_of", "explain", {"name": said}, play, check, ("const", item.name))


@goal("key_value", "explain", 1.2)
def key_value(ctx: Setting) -> Plan | None:
    """What a key of a settings file is set to."""
    names = [(item.name, item.path) for item in ctx.facts.keys]
    pool = [item for item in ctx.facts.keys if names.count((item.name, item.path)) == 1]
    if not pool:
        return None
    item = ctx.rng.choice(pool)
    shown = ctx.path(item.path)

    def play(session: Session) -> tuple[str, str]:
        path, found = search_file(
            session, shown, rf"\b{esc(item.name)}\b", f"Find {item.name} in {shown}.", ""
        )
        key = item.name
        found = [hit for hit in found if re.search(rf"[\"']?{re.escape(key)}[\"']?\s*[:=]", hit.text)]
        if not found:
            key, found = near_key(session, key, path)
        value = re.split(r"[:=]", found[0].text.split(key, 1)[1], maxsplit=1)[1].strip().rstrip(",")
        return f"It is {value}.", f"`{key}` is `{value}` in `{path}`, line {found[0].line}."

    return Plan(
        "key_value",
        "explain",
        {"key": item.name, "path": shown},
        play,
        checks.answers(item.value.strip('"')),
        ("key", item.name),
    )
