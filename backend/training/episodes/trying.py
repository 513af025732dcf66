"""A search by the tool that tries small changes: where no error names its cause, around the code that a
failing test points to, then in what that calls.
"""

import contextlib
import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from k3agent.backend.training.episodes.bugs import Broken
from k3agent.backend.training.episodes.editing import failed
from k3agent.backend.training.episodes.mutate import TooManySteps, limited
from k3agent.backend.training.episodes.policy import View, definition_in
from k3agent.backend.training.episodes.session import Report, Session
from k3agent.backend.training.episodes.testruns import Failure
from k3agent.backend.training.episodes.tracing import own_places
from k3agent.tools.support import textio

EVIDENT = re.compile(
    r"^(E +)?((NameError|AttributeError|SyntaxError|IndentationError|UnboundLocalError|ImportError"
    r"|ModuleNotFoundError|KeyError)\b|TypeError: .*(expected|takes|missing|given|callable))"
)
"""Errors that name their cause: nothing to search for."""
PASSED = "[exit code 0]"
ELSEWHERE = re.compile(r"After this one in (.+) the command succeeds:$")


class Bug(Protocol):
    """Where a bug is, and whether a text of its file has it no more."""

    @property
    def path(self) -> str:
        """The file."""
        ...

    @property
    def line(self) -> int:
        """Where the wrong line is, or something is missing behind it."""
        ...

    def works(self, text: str) -> bool:
        """Whether a text of the file has it right."""
        ...


@dataclass(frozen=True, slots=True)
class Tried:
    """The change that helped: its file and line, and the code there before and after."""

    path: str
    line: int
    old: str
    new: str

    @property
    def said(self) -> str:
        """The change in the words of a report."""
        return f"`{self.old}` became `{self.new}`"

    def place(self, view: View, name: str) -> str:
        """Where it is: in the function `name` in view, or in a file that this calls."""
        if self.path == view.path:
            return f"`{name}` in `{self.path}` (line {self.line})"
        return f"what `{name}` calls in `{self.path}` (line {self.line})"


@dataclass(frozen=True, slots=True)
class Found:
    """Where a search ended: what was read, the bug if it is in view, the change that helped if one did."""

    name: str
    view: View
    broken: Broken | None
    tried: Tried | None = None

    @property
    def path(self) -> str:
        """The file in which it is changed."""
        return self.tried.path if self.tried else self.view.path


@dataclass(slots=True)
class Search:
    """A search for one of the bugs that are left. `command` succeeds once the code is right."""

    session: Session
    left: Sequence[Bug]
    command: str
    failure: Failure = field(default_factory=lambda: Failure(""))
    tried: Tried | None = None

    def ends_at(self, view: View, name: str, why: str = "") -> bool:
        """Try changes of the function in view; whether that helped, or the bug is there all the same."""
        self.tried = self.attempt(view, name, why)
        return self.tried is not None or is_there(self.left, view)

    def attempt(self, view: View, name: str, why: str = "") -> Tried | None:
        """Try changes of the function `name` in view. Raises Report where that is not allowed."""
        line, session = self.line_of(view, name), self.session
        if not line:
            return None
        think = f"{why} Try small changes of {name} at line {line}.".strip()
        root, runs = Path(session.box.workspace.root), 0
        known: dict[tuple[int, str], bool] = {}

        def may_be_right() -> bool:
            # The files as they are come first; what is wrong there must show.
            nonlocal runs
            runs += 1
            return runs == 1 or any(_is_mended(item, root, known) for item in self.left)

        session.box.tried = may_be_right
        result = session.call("try", think, path=view.path, line=line, command=self.command)
        session.box.tried = None
        if result.is_error:
            if "permission denied" in result.text:
                raise failed(view.path, result)
            session.lead = f"Nothing to try in {name}."
            return None
        if result.lines[-1] != PASSED:
            session.lead = f"No small change of {name} helps."
            return None
        return _kept(result.lines, view.path)

    def line_of(self, view: View, name: str) -> int:
        """The line of the function where an error was raised, else its first; 0 where neither is in view."""
        shown = {number for number, _ in view.lines}
        raised = [
            line
            for path, line, inside, _ in own_places(self.failure)
            if path == view.path and inside == name and line in shown
        ]
        return raised[-1] if raised else definition_in(view, name)


def _is_mended(bug: Bug, root: Path, known: dict[tuple[int, str], bool]) -> bool:
    """Whether a bug's file as it is now has the bug no more; `known`: what was found for a text before."""
    if not (root / bug.path).is_file():
        return False
    text = textio.load(root / bug.path, bug.path).view
    key = (id(bug), text)
    if key not in known:
        known[key] = _works(bug, text)
    return known[key]


def _works(bug: Bug, text: str) -> bool:
    """Whether a text has a bug no more: what does not come to an end has."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(action="ignore"):
            return limited(lambda: bug.works(text))
    except TooManySteps:
        return False


def is_there(left: Sequence[Bug], view: View) -> bool:
    """Whether a bug's line is in view."""
    shown = {number for number, _ in view.lines}
    return any(item.path == view.path and item.line in shown for item in left)


def lead_to(why: str, said: str, clue: str) -> str:
    """A reason without the general word on types, where the clue says which part is of the wrong one."""
    return why.replace(f" {said}", "") if clue and said.startswith("A ") else why


def is_evident(failure: Failure) -> bool:
    """Whether the error says what is wrong."""
    return bool(EVIDENT.match(failure.error))


def bare(name: str) -> str:
    """A test's name without its file and class."""
    return name.split(" ")[0].rsplit("::", 1)[-1].split("[")[0].rsplit(".", 1)[-1]


def command_of(session: Session, failure: Failure) -> str:
    """The last test run again, with the failing test alone and without what it prints."""
    quiet = session.command.replace(" --tb=short -rN", " --tb=no")
    return quiet if " -k " in quiet else f"{quiet} -k {bare(failure.name)}"


def _kept(lines: list[str], path: str) -> Tried:
    """The change in a tool's answer: a difference of one line, in this file or the one that is told."""
    number = 0
    if other := ELSEWHERE.search(lines[0]):
        path = other[1]
    old = ""
    for line in lines[1:-1]:
        if line.startswith("@@ line "):
            number = int(line.split()[2])
        elif line.startswith("-"):
            old = line[1:].strip()
        elif line.startswith("+"):
            return Tried(path, number, old, line[1:].strip())
        else:
            number += 1
    raise Report("It does not say what it changed.", "\n".join(lines))
