"""The oracle's moves: finding files and names, reading, editing; each uses only the request and what
the tools said.
"""

import re
from dataclasses import dataclass

from k3agent.backend.training.episodes.session import Report, Session
from k3agent.backend.training.episodes.toolbox import Result

WINDOW = 80
"""Lines asked for when a file is read."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A line that grep gave."""

    path: str
    line: int
    text: str

    @property
    def at(self) -> str:
        """`path:line`."""
        return f"{self.path}:{self.line}"


@dataclass(slots=True)
class View:
    """Lines of a file as read: (number, text); `total` is the file's length when known."""

    path: str
    lines: list[tuple[int, str]]
    total: int


HIT = re.compile(r"^(.+?):(\d+):(.*)$")
FOOTER = re.compile(r"^\[lines (\d+)-(\d+) of (\d+);")


def esc(text: str) -> str:
    """A text as a regular expression, with as few backslashes as possible."""
    return re.sub(r"([\\.^$*+?()\[\]{}|])", r"\\\1", text)


def hits(result: Result) -> list[Hit]:
    """The hits of a grep result."""
    if result.is_error or result.text == "No matches.":
        return []
    found = [HIT.match(line) for line in result.lines]
    return [Hit(match[1], int(match[2]), match[3]) for match in found if match]


def several(items: list[str], limit: int = 12) -> str:
    """A comma list, cut when long."""
    shown = ", ".join(items[:limit])
    return shown if len(items) <= limit else f"{shown} and {len(items) - limit} more"


def quoted(items: list[str], limit: int = 6) -> str:
    """A comma list in backticks."""
    return several([f"`{item}`" for item in items], limit)


def counted(number: int, noun: str) -> str:
    """A number of things in words: 1 line, 3 lines."""
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def base_name(path: str) -> str:
    """The last part of a path."""
    return path.rstrip("/").rsplit("/", 1)[-1]


def similar_paths(error: str) -> list[str]:
    """The names that an error about a missing path offers."""
    return (
        [item.strip() for item in error.split("Similar: ", 1)[1].split(",")] if "Similar: " in error else []
    )


def same_file(wanted: str, found: str) -> bool:
    """Whether a path found is what was meant: the same base name, with or without extension."""
    want, have = base_name(wanted).lower(), base_name(found).lower()
    return want == have or ("." not in want and have.rsplit(".", 1)[0] == want)


def near_file(wanted: str, found: str) -> bool:
    """Whether a path found fits what was asked for: plural, separators, a missing or a sister's extension."""
    if same_file(wanted, found):
        return True
    want, have = base_name(wanted), base_name(found)
    stem, _, ending = want.rpartition(".") if "." in want.lstrip(".") else (want, "", "")
    other, _, other_ending = have.rpartition(".") if "." in have.lstrip(".") else (have, "", "")
    if ending and ending != other_ending and {ending, other_ending} not in SISTERS:
        return False
    return plain(stem) == plain(other) or fits(stem, other)


def took(session: Session, wanted: str, found: str) -> str:
    """Take the only near match and remember to say so."""
    session.notes.append(f"There is no `{wanted}`; I took `{found}`, the only one like it.")
    return found


def other_path(session: Session, path: str, error: str, nothing: str = "Nothing was changed.") -> str:
    """The path that was meant when `path` does not exist; ends with a report where that is not clear."""
    found = similar_paths(error)
    same = [item for item in found if same_file(path, item)] or [
        item for item in found if near_file(path, item)
    ]
    if len(same) == 1:
        is_same = base_name(path).lower() == base_name(same[0]).lower()
        return same[0] if is_same else took(session, path, same[0])
    if len(same) > 1:
        raise Report(
            f"{path} is not there, but {several(same)} are. I must ask.",
            f"There are several files of that name: {quoted(same)}. Which one do you mean?",
        )
    if found:
        raise Report(
            f"There is no {path}; only similar names: {several(found)}. I do not guess.",
            f"There is no `{path}` in this project. Similar: {quoted(found)}. {nothing}",
        )
    raise Report(
        f"There is no {path} and nothing like it.", f"There is no `{path}` in this project. {nothing}"
    )


def read_view(result: Result, path: str) -> View:
    """The lines of a read result."""
    lines: list[tuple[int, str]] = []
    total = 0
    for row in result.lines:
        number, tab, text = row.partition("\t")
        if tab and number.isdigit():
            lines.append((int(number), text))
        elif match := FOOTER.match(row):
            total = int(match[3])
    return View(path, lines, total or (lines[-1][0] if lines else 0))


def open_file(
    session: Session,
    path: str,
    think: str,
    *,
    offset: int = 1,
    limit: int = WINDOW,
    nothing: str = "Nothing was changed.",
) -> View:
    """Read a file; a wrong folder or a bare name is mended."""
    args = {"path": path, "limit": limit} if offset == 1 else {"path": path, "offset": offset, "limit": limit}
    result = session.call("read", think, **args)
    if result.is_error:
        path = other_path(session, path, result.text, nothing)
        args["path"] = path
        result = session.call("read", f"The file is {path}. Read it.", **args)
    if result.is_error:
        raise Report(
            "That failed too. Report it.",
            f"I could not read `{path}`: {result.lines[0].removeprefix('Error: ')} {nothing}",
        )
    return read_view(result, path)


def search_file(
    session: Session,
    path: str,
    pattern: str,
    think: str,
    nothing: str = "Nothing was changed.",
    **options: bool,
) -> tuple[str, list[Hit]]:
    """Grep in one file with the tool's options; a wrong folder or a bare name is mended."""
    result = session.call("grep", think, pattern=pattern, path=path, **options)
    if result.is_error and "does not exist" in result.text:
        path = other_path(session, path, result.text, nothing)
        result = session.call(
            "grep", f"The file is {path}. Search there.", pattern=pattern, path=path, **options
        )
    return path, hits(result)


def pieces(name: str) -> list[str]:
    """The words of an identifier, lower case."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


def singular(word: str) -> str:
    """A word without the ending of the plural."""
    for end, instead in PLURALS:
        if word.endswith(end) and not word.endswith("ss") and len(word) - len(end) > 2:
            return word[: -len(end)] + instead
    return word


def root(words: list[str]) -> str:
    """The longest of some words without what the plural changes: what to search for."""
    word = singular(max((word for word in words if word not in SMALL_WORDS), key=len, default=words[0]))
    return word[:-1] if word.endswith("y") and len(word) > 4 else word


def plain(name: str) -> str:
    """An identifier without case, separators and plurals."""
    return "".join(singular(word) for word in pieces(name))


def fits(wanted: str, name: str) -> bool:
    """Whether a name has all words that were asked for, in any form, and perhaps more."""
    asked = {singular(word) for word in pieces(wanted)} - SMALL_WORDS
    return bool(asked) and asked <= {singular(word) for word in pieces(name)}


PLURALS = (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("s", ""))
PLURALS = (("ies", "y"), ("sses", "ss"), ("xes", "x"), ("ches", "ch"), ("shes", "sh"), ("s", ""))
SMALL_WORDS = {"the", "a", "an", "of", "for", "in", "to"}
SISTERS = [{"yml", "yaml"}, {"js", "ts"}, {"md", "txt"}, {"ini", "cfg"}, {"htm", "html"}]
"""Extensions that people mix up."""


def canonical(name: str) -> str:
    """An identifier without case and separators."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def near_names(session: Session, name: str, nothing: str = "Nothing was changed.", what: str = "") -> str:
    """Look more loosely for a name that was not found: the only one that has its words, or a report."""
    piece = root(pieces(name) or [name])
    result = session.call(
        "grep", f"No {name}. Look for {piece} in any case.", pattern=esc(piece), ignore_case=True, limit=20
    )
    names: list[str] = []
    for hit in hits(result):
        for found in re.findall(rf"\w*{re.escape(piece)}\w*", hit.text, re.IGNORECASE):
            if found not in names:
                names.append(found)
    return chosen_name(session, name, names, nothing, what)


def chosen_name(session: Session, name: str, names: list[str], nothing: str, what: str = "") -> str:
    """The only name of several that fits the one asked for; a question where more fit, else a report."""
    same = [item for item in names if canonical(item) == canonical(name)]
    if len(same) == 1:
        return same[0]
    near = same or [item for item in names if plain(item) == plain(name)]
    near = near or [item for item in names if fits(name, item) and not item.lower().startswith("test")]
    if len(near) == 1:
        return took(session, name, near[0])
    if near:
        raise Report(
            f"There is no {name}, but {several(near, 4)} fit. I must ask.",
            f"There is no {what}`{name}` in this project, but several names fit: {quoted(near, 4)}."
            " Which one do you mean?",
        )
    if names:
        raise Report(
            f"There is no {name}; {several(names, 3)} say something else. I do not guess.",
            f"There is no {what}`{name}` in this project. Similar names: {quoted(names[:3])}. {nothing}",
        )
    raise Report(f"There is no {name} anywhere.", f"There is no {what}`{name}` in this project. {nothing}")


KEY = re.compile(r"^\s*(?:ARG |ENV )?[\"']?([\w-]+)[\"']?\s*[:=]")


def near_key(session: Session, key: str, path: str) -> tuple[str, list[Hit]]:
    """The only key of a file that is like one that it lacks, and where it stands."""
    piece = root(pieces(key) or [key])
    think = f"No {key} there. Look for {piece} in any case."
    rows = hits(session.call("grep", think, pattern=esc(piece), path=path, ignore_case=True))
    table = [(match[1], hit) for hit in rows if (match := KEY.match(hit.text))]
    if not table:
        raise Report(f"{path} has no {key}.", f"There is no `{key}` in `{path}`.")
    found = chosen_name(session, key, list(dict.fromkeys(name for name, _ in table)), "")
    return found, [hit for name, hit in table if name == found]


def definition_pattern(name: str) -> str:
    """Where a name is defined, in most languages."""
    return rf"(def|class|function|func|const|let|var) {esc(name)}\b|^\s*{esc(name)}\b[^=(]*="


def is_definition(name: str, text: str) -> bool:
    """Whether a line of code defines the name."""
    safe = re.escape(name)
    if re.search(
        rf"^\s*(export\s+|async\s+|default\s+)*(def|class|function|func|const|let|var) {safe}\b", text
    ):
        return True
    return bool(re.search(rf"^\s*{safe}(: [^=]+)?\s*=[^=]", text))


def definition_in(view: "View", name: str) -> int:
    """The line in view where a name is defined, or 0."""
    return next((number for number, text in view.lines if is_definition(name, text)), 0)


def definitions(
    session: Session, name: str, think: str, *, nothing: str = "Nothing was changed.", what: str = ""
) -> tuple[str, list[Hit]]:
    """All lines that define a name (and the name as it is really written); a report where there is none."""
    result = session.call("grep", think, pattern=definition_pattern(name))
    found = [hit for hit in hits(result) if is_definition(name, hit.text)]
    if found:
        top = [
            hit
            for hit in found
            if re.search(rf"(def|class|function|func|const) {re.escape(name)}\b", hit.text)
        ]
        top = top or [hit for hit in found if not hit.text.startswith((" ", "\t"))]
        return name, top or found
    result = session.call(
        "grep",
        f"No definition of {name} in that form. Look for the word.",
        pattern=rf"\b{esc(name)}\b",
        limit=20,
    )
    loose = hits(result)
    likely = [
        hit
        for hit in loose
        if re.search(
            rf"^\s*[\"']?{re.escape(name)}[\"']?\s*[:=]|^{re.escape(name)}\(\)|^\s+{re.escape(name)}\(.*\{{$",
            hit.text,
        )
    ]
    if likely:
        return name, likely
    if loose:
        raise Report(
            f"{name} is used but not defined here.",
            f"`{name}` is not defined in this project; it appears in "
            f"{quoted([hit.at for hit in loose], 4)}. {nothing}",
        )
    other = near_names(session, name, nothing, what)
    result = session.call(
        "grep", f"It is written {other}. Find its definition.", pattern=definition_pattern(other)
    )
    found = [hit for hit in hits(result) if is_definition(other, hit.text)]
    if not found:
        raise Report(
            f"{other} has no definition here.",
            f"There is no definition of `{name}` in this project. {nothing}",
        )
    return other, found


def one_definition(
    session: Session, name: str, think: str, *, nothing: str = "Nothing was changed.", what: str = ""
) -> tuple[str, Hit]:
    """The only definition of a name; a question back where there are several."""
    name, found = definitions(session, name, think, nothing=nothing, what=what)
    if len(found) > 1:
        raise Report(
            f"{name} is defined {len(found)} times. I must ask which.",
            f"`{name}` is defined in several places: {quoted([hit.at for hit in found])}. Which "
            f"one do you mean?",
        )
    return name, found[0]


def block(lines: list[tuple[int, str]], start: int) -> tuple[list[tuple[int, str]], bool]:
    """The lines of the definition that begins at line `start` (by indentation or braces), and whether
    its end was seen.
    """
    first = next((index for index, (number, _) in enumerate(lines) if number == start), None)
    if first is None:
        return [], False
    head = lines[first][1]
    indent = len(head) - len(head.lstrip())
    out = [lines[first]]
    braces = head.rstrip().endswith("{")
    opened = not braces and not head.rstrip().endswith(":") and "(" in head and ")" not in head
    for number, text in lines[first + 1 :]:
        depth = len(text) - len(text.lstrip())
        if braces:
            out.append((number, text))
            if text.strip().startswith("}") and depth <= indent:
                return out, True
            continue
        if text.strip() and depth <= indent and not opened and not text.strip().startswith((")", "]")):
            return strip_blank(out), True
        if opened and text.rstrip().endswith(":"):
            opened = False
        out.append((number, text))
    return strip_blank(out), False


def strip_blank(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Without blank lines at the end."""
    while lines and not lines[-1][1].strip():
        lines = lines[:-1]
    return lines


def show(lines: list[tuple[int, str]] | list[str]) -> str:
    """A fenced block."""
    texts = [item if isinstance(item, str) else item[1] for item in lines]
    return "```\n" + "\n".join(texts) + "\n```"
