"""From a failed test to the code to look at: places of the traceback, what a test calls, what that calls."""

import builtins
import re
from collections.abc import Callable

from k3agent.backend.training.episodes.editing import around
from k3agent.backend.training.episodes.families.look import names_in
from k3agent.backend.training.episodes.policy import (
    Hit,
    View,
    block,
    definition_in,
    definition_pattern,
    hits,
    is_definition,
    one_definition,
    open_file,
)
from k3agent.backend.training.episodes.session import Report, Session
from k3agent.backend.training.episodes.testruns import Failure, name_under_test

There = Callable[[View, str], bool]
HOPS = 3
"""How many further places are looked at before the search is given up."""
OUTSIDE = re.compile(r"(^|/)test_\w*\.py$|(^|/)\w+_test\.py$|(^|/)conftest\.py$|^<|site-packages|/lib/python")
LIBRARY = re.compile(r"^<|site-packages|/lib/python")
CALL = re.compile(r"(?<!def )(?<!class )(?<![\w'\"])((?:\w+\.)*)(\w+)\(")
KNOWN = frozenset(dir(builtins)) | {name for kind in (str, list, dict, set, tuple, int) for name in dir(kind)}


def own_places(failure: Failure) -> list[tuple[str, int, str, str]]:
    """The places of a traceback that are code of the project, outermost first."""
    return [place for place in failure.places if not OUTSIDE.search(place[0])]


def function_of(session: Session, failure: Failure) -> tuple[str, Hit | None]:
    """The function to look at: where the error was raised, or what the failing line of the test calls."""
    inner = own_places(failure)
    if inner:
        path, line, name, code = inner[-1]
        return name, Hit(path, line, code)
    asked = [code for path, _, _, code in reversed(failure.places) if not LIBRARY.search(path)]
    name = next((found for code in asked if (found := name_under_test(code))), "")
    if not name and failure.places:
        path, line, _, _ = failure.places[-1]
        think = f"Line {line} of {path} tests a result. Read the test."
        view = open_file(session, path, think, offset=max(1, line - 4), limit=8)
        near = sorted(view.lines, key=lambda row: (row[0] > line, abs(row[0] - line)))
        name = next(
            (found for number, row in near if number != line and (found := name_under_test(row.strip()))), ""
        )
    return name, None


def view_function(session: Session, failure: Failure) -> tuple[str, View]:
    """Read the code that failed."""
    name, hit = function_of(session, failure)
    what = failure.error or "it failed"
    if hit is not None and hit.path.startswith("/"):
        if name.startswith("<"):
            return name, _found_by_base(session, hit, what)
        hit = None
    if hit is not None:
        think = f"{hit.path} line {hit.line}: {what}. Read around it."
        return name, around(session, hit.path, hit.line, think, inside=True)
    if not name:
        raise Report(
            "I cannot tell what it tests.",
            f"The test `{failure.name}` fails: {what}. I could not find the cause. Nothing was changed.",
        )
    _, place = one_definition(session, name, f"{failure.name}: {what}. It tests {name}. Find its definition.")
    return name, around(session, place.path, place.line, f"It is at {place.at}. Read it.")


def _found_by_base(session: Session, hit: Hit, what: str) -> View:
    """The file of a place that the output names by its whole path."""
    base = hit.path.rsplit("/", 1)[-1]
    think = f"{base} line {hit.line}: {what}. Find the file."
    rows = names_in(session.call("glob", think, pattern=f"**/{base}").text)
    if not rows:
        raise Report(
            "I do not find the file.",
            f"The tests fail ({what}), but I do not find `{base}`. Nothing was changed.",
        )
    return around(session, rows[0], hit.line, "Read around the line.", inside=True)


def called_in(view: View, name: str) -> list[str]:
    """The functions that a definition in view calls, in order, without those that Python brings."""
    start = definition_in(view, name)
    rows = block(view.lines, start)[0] if start else view.lines
    found: list[str] = []
    for number, text in rows:
        code = text.split("#")[0]
        if number == start or code.strip().startswith(("@", '"""', "'''")):
            continue
        for _, called in CALL.findall(code):
            if called not in KNOWN and called != name and called not in found:
                found.append(called)
    return found


def follow(
    session: Session, failure: Failure, name: str, view: View, is_there: "There"
) -> tuple[str, View] | None:
    """Look further where the code in view is right: what it calls, then the callers in the traceback.
    `is_there`: whether the search ends at a function in view.
    """
    seen = {name}
    found = _into(session, name, view, is_there, seen)
    if found is not None:
        return found
    for path, line, outer, _ in reversed(own_places(failure)[:-1]):
        if outer in seen or path.startswith("/"):
            continue
        seen.add(outer)
        think = f"{name} looks right; what it got is wrong. {outer} calls it at {path}:{line}. Read there."
        view = around(session, path, line, think, inside=True)
        if is_there(view, outer):
            return outer, view
        found = _into(session, outer, view, is_there, seen)
        if found is not None:
            return found
        name = outer
    return None


def _into(
    session: Session, name: str, view: View, is_there: "There", seen: set[str]
) -> tuple[str, View] | None:
    """Look at what a function calls, and at what that calls."""
    queue = called_in(view, name)
    for _ in range(HOPS):
        queue = [called for called in queue if called not in seen]
        if not queue:
            return None
        called = queue.pop(0)
        seen.add(called)
        think = f"{name} looks right. It calls {called}. Find its definition."
        found = hits(session.call("grep", think, pattern=definition_pattern(called)))
        places = [hit for hit in found if is_definition(called, hit.text)]
        if not places:
            continue
        place = places[0]
        view = around(session, place.path, place.line, f"It is at {place.at}. Read it.")
        name = called
        if is_there(view, name):
            return name, view
        queue = called_in(view, name) + queue
    return None
