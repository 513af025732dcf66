"""What moves with a JavaScript file: the relative paths by which others import it, and those in itself."""

import re
from posixpath import dirname, join, normpath, relpath

from k3agent.backend.training.episodes.editing import change_line
from k3agent.backend.training.episodes.policy import base_name, esc, hits
from k3agent.backend.training.episodes.session import Session

SCRIPTS = (".js", ".ts", ".mjs", ".jsx", ".tsx")
SPECIFIER = re.compile(r"([\"'])(\.{1,2}/[^\"']+)\1")


def bare(path: str) -> str:
    """A path without its ending."""
    return path.rpartition(".")[0]


def relative(path: str, importer: str) -> str:
    """A path as a file names it: with `./` or `../` in front."""
    found = relpath(path, dirname(importer) or ".")
    return found if found.startswith(".") else f"./{found}"


def for_importer(line: str, importer: str, old: str, new: str) -> str:
    """A line of another file after a file went from one path to another."""

    def swap(match: re.Match[str]) -> str:
        place = normpath(join(dirname(importer), match[2]))
        if place not in (old, bare(old)):
            return match[0]
        return f"{match[1]}{relative(new if place == old else bare(new), importer)}{match[1]}"

    return SPECIFIER.sub(swap, line)


def for_itself(line: str, old: str, new: str) -> str:
    """A line of the file that moved: it names others from where it is now."""

    def swap(match: re.Match[str]) -> str:
        return f"{match[1]}{relative(normpath(join(dirname(old), match[2])), new)}{match[1]}"

    return SPECIFIER.sub(swap, line) if dirname(old) != dirname(new) else line


def moved_files(files: dict[str, str], old: str, new: str) -> dict[str, str | None]:
    """What a move changes: the file itself, and all that import it."""
    own = "\n".join(for_itself(line, old, new) for line in files[old].split("\n"))
    found: dict[str, str | None] = {old: None, new: own}
    for path, text in files.items():
        fresh = "\n".join(for_importer(line, path, old, new) for line in text.split("\n"))
        if path != old and fresh != text:
            found[path] = fresh
    return found


def importers(files: dict[str, str], path: str) -> list[str]:
    """The files that name a script by its relative path."""
    return [other for other in moved_files(files, path, f"{path}.moved") if other.endswith(SCRIPTS)][1:]


def update_requires(session: Session, old: str, new: str) -> list[str]:
    """After a script was moved, adapt the lines that import it and those in itself; the files changed."""
    stem = bare(base_name(old))
    pattern = rf"[\"']\.[^\"']*/{esc(stem)}(\.\w+)?[\"']"
    changed: list[str] = []
    for hit in hits(session.call("grep", f"Moved. Who imports {stem}?", pattern=pattern)):
        line = hit.text.strip()
        fresh = for_importer(line, hit.path, old, new)
        if fresh != line:
            think = f"{hit.at} imports it. It becomes {_named(fresh, stem, new)}."
            change_line(session, hit.path, hit.line, line, fresh, think)
            changed.append(hit.path)
    if dirname(old) != dirname(new):
        think = f"Does {new} import others by their place?"
        for hit in hits(session.call("grep", think, pattern=r"[\"']\.\.?/", path=new)):
            line = hit.text.strip()
            fresh = for_itself(line, old, new)
            if fresh != line:
                change_line(session, new, hit.line, line, fresh, f"From {dirname(new) or 'here'}: {fresh}")
                changed.append(new)
    return list(dict.fromkeys(changed))


def _named(line: str, stem: str, new: str) -> str:
    """The new path in a line."""
    names = [match[2] for match in SPECIFIER.finditer(line)]
    return next((name for name in names if bare(base_name(new)) in name), names[0] if names else stem)
