"""What k3agent itself notices at the end of a turn, without the model: files that no longer parse or use
names that nothing defines, an answer that tells of changes where nothing was changed, and tests that failed
when they were run last.
"""

from __future__ import annotations

import asyncio
import re
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from k3agent.agent.changes import GONE, sign_of
from k3agent.agent.permissions import Territory
from k3agent.agent.testruns import SuiteRun, runs_tests
from k3agent.safety.paths import exists
from k3agent.store.records import CallRow, CallState
from k3agent.types import JsonObject

MAX_FILES = 50
MAX_BYTES = 500_000
MAX_SHOWN = 5
# What looking for names may take, all files together.
MAX_NAMES_S = 3.0
# Reports of work are not longer; the patterns take seconds for megabytes.
MAX_ANSWER = 100_000
_FAILED = re.compile(r"\[exit code -?[1-9]\d*\]\s*\Z")
# More than one command, or one that writes a file.
_SEVERAL = re.compile(r"[|;&>\n]")
# Tools whose calls leave everything outside as it is.
LOOKING = frozenset({"read", "grep", "glob", "todo", "ask", "jobs", "edit", "write", "patch"})

_DONE = (
    "created|added|changed|updated|wrote|written|fixed|removed|deleted|renamed|edited|implemented|modified"
    "|replaced|moved|saved|corrected|copied|appended|inserted|emptied|committed|stashed|pushed|installed"
    "|uninstalled|reverted|restored|uncommented"
)
# Only how a report of work begins: words about what somebody else once did stand elsewhere in a sentence.
_CLAIM = re.compile(
    r"(?im)^[\s>*#-]*(?:\d+[.)]\s+)?(?:done[.:!,]?\s+)?"
    rf"(?:(?:I|I've|I have|I\u2019ve|we|we've|we have)\s+(?:now\s+|also\s+|just\s+)?)?(?P<verb>{_DONE})\b"
    # "Added nothing", and what is done: "Saved sessions lie in …".
    r"(?!:?\s+(?:nothing|none|no)\b)"
    r"(?!\s+(?!(?:the|an?|it|this|that|all|both|each)\b)[\w-]+(?:\s+[\w-]+){0,2}\s+(?:is|are|was|were|lies?)\b)"
    r"[^\n]{0,200}"
)
# "Set" is also how advice begins, and a noun: only a first sentence that sets one thing to a value counts.
_SET = re.compile(
    r"(?i)\A[\s>*#]*(?:done[.:!,]?\s+)?(?:(?:I|we)(?:'ve|\u2019ve| have)?\s+(?:now\s+|also\s+|just\s+)?)?"
    r"set\s+(?:the\s+(?:[\w-]+\s+){0,2})?(?:`[^`\n]+`|[\w./-]+)\s+"
    r"(?:(?:in|of|from|for)\s+(?:the\s+)?(?:`[^`\n]+`|\S+)\s+){0,3}to\s+"
    r"(?!(?:see|get|make|enable|disable|use|avoid|have)\b)(?:(?!\b(?:you|your|if|when|then|before)\b"
    r"|\s(?:to|so)\s|\band (?:re-?)?(?:run|start|try)\b)[^\n]){1,160}?(?:[.!](?=\s|\Z)|(?=\s*(?:\n|\Z)))"
)
_PASSIVE = re.compile(
    rf"(?i)(?<![^.\n])(?![^.\n]{{0,120}}\b(?:no|nothing|none|nobody|neither|not|never)\b)"
    rf"[^.\n]{{0,120}}\b(?:has|have) (?:now )?been (?:successfully )?(?P<verb>{_DONE})\b"
)
# What people put in front of what they want; `request`: words that turn an order into a question.
_POLITE = re.compile(
    r"(?i)(?:\s*(?:please|pls|now|okay|ok|hi|hey|hello|so|then|and|also|just"
    r"|(?P<request>(?:can|could|would|will) you)|I(?:'d| would) like to|I want to|I need to|let's|let me)"
    r"\b[\s,!.:]*)*"
)
_QUESTION = re.compile(
    r"(?i)\s*(?:what|which|when|who|whose|where|why|how|did|does|do|is|are|was|were|has|have|list|show|tell"
    r"|explain|describe|summari[sz]e|review|read|look|find|search|count|print|know|see|check|confirm|compare"
    r"|remind|give me|draft|suggest|propose"
    r"|(?:write|compose|generate|prepare)\b[^.\n]{0,40}\b(?:message|notes|description|summary|e-?mail|report)"
    r"|git (?:status|diff|log|show|blame))\b(?!\.\w)"
)
_NAME = re.compile(r"(?<![\w./-])(?:[\w.-]+/)*[\w-]+\.[A-Za-z]\w{0,7}\b")
# Claims after which a file of that name has to be there, whatever made it.
_LEAVES = frozenset({"created", "added", "wrote", "written", "saved"})
# Addresses have endings like files.
_ADDRESS = re.compile(r"\S*(?:://|@)\S*|\b[\w.-]+\.(?:com|org|net|io|dev)\b")
_NO_FILE = re.compile(
    r"(?i)\b(?:branch|tag|remote|release|stash|worktree|database|table|user|container|image|environment)\b"
)
_CODE = re.compile(r"(?s)```.*?(?:```|\Z)")


@dataclass(frozen=True, slots=True)
class Remark:
    """`kind`: broken or undefined (a file), unfounded (the answer), tests (their last run) or undo (how to
    take the turn back); `subject`: the file, the words, how the run came out, or the step.
    """

    kind: str
    subject: str
    text: str

    @property
    def data(self) -> JsonObject:
        return {"remark": self.kind, "subject": self.subject}


@dataclass(frozen=True, slots=True)
class _Start:
    """A file when the turn first touched it: whether it parsed, and the names that nothing defined in it;
    None: that could not be told. `sign` stands for what it held, "" where that is not known; `is_first`: no
    command had changed it.
    """

    parsed: bool | None = None
    undefined: frozenset[str] | None = None
    sign: str = ""
    is_first: bool = False


class Remarks:
    """Of one turn in the folder `cwd`. `text_before` gives what a file held before the first command of the
    turn, "" where it was not there, None where that is not known; it may block. `is_as_before`: whether no
    command has changed it in the turn, as far as that is known.
    """

    def __init__(
        self,
        cwd: Path,
        text_before: Callable[[str], str | None],
        is_as_before: Callable[[Path], bool] = lambda path: False,
    ) -> None:
        self._cwd = cwd
        self._text_before = text_before
        self._is_as_before = is_as_before
        self._starts: dict[Path, _Start] = {}

    async def before(self, paths: Sequence[Path]) -> None:
        """These are about to be changed."""
        new = [path for path in paths if path not in self._starts]
        if new:
            await asyncio.to_thread(self._look, new)

    def _look(self, paths: Iterable[Path]) -> None:
        for path in paths:
            found = self._start(path.name, _text(path))
            self._starts[path] = replace(found, sign=_sign(path), is_first=self._is_as_before(path))

    def _start(self, name: str, text: str | None) -> _Start:
        if text is None:
            return _Start()
        parsed = self._parses(name, text)
        # Of a file that does not parse nothing is known.
        names = _undefined(name, text) if parsed else None
        return _Start(parsed, None if names is None else frozenset(names))

    def _parses(self, name: str, text: str) -> bool | None:
        from k3agent.tools.support.syntax import problem  # lazy: with the tools, which are loaded by now

        # An empty file, or none, is nothing that was wrong before.
        found = problem(name, text) if text.strip() else ""
        return None if found is None else not found

    async def at_end(
        self,
        files: Sequence[str],
        rows: Sequence[CallRow],
        prompt: str,
        answer: str,
        tests: SuiteRun | None = None,
    ) -> list[Remark]:
        """`files`: what commands changed, as far as that is known; `rows`: the calls of the turn; `answer`:
        the last words of a turn that ended well, else ""; `tests`: their last run in it.
        """
        changed = list(dict.fromkeys([*files, *(path for row in rows for path in row.files)]))
        found = await asyncio.to_thread(self._damaged, changed[:MAX_FILES]) if changed else []
        if not changed and answer and not asks(prompt):
            claim = unfounded(answer, rows, self._cwd)
            if claim:
                text = f"The answer says \u201c{claim}\u201d, but no file was changed in this turn."
                found.append(Remark("unfounded", claim, text))
        if tests is not None and tests.warning and answer and not asks(prompt):
            found.append(Remark("tests", tests.outcome, tests.warning))
        return found

    async def put_back(self, commanded: Sequence[str] | None, rows: Sequence[CallRow]) -> set[str]:
        """Files that calls wrote and that are again what they were before the turn, such as those in which
        changes were only tried. `commanded`: what changed since the first command, None where that cannot be
        told.
        """
        names = dict.fromkeys(path for row in rows for path in (*row.files, *self._written(row)))
        return await asyncio.to_thread(self._unchanged, list(names), commanded)

    def _written(self, row: CallRow) -> list[str]:
        """What it was to write in the folder."""
        paths = [Path(path) for path in row.access.get("writes", ())]
        return [str(path.relative_to(self._cwd)) for path in paths if path.is_relative_to(self._cwd)]

    def _unchanged(self, names: Sequence[str], commanded: Sequence[str] | None) -> set[str]:
        found: set[str] = set()
        for name in names:
            path = (self._cwd / name).resolve()
            start = self._starts.get(path)
            if start is None or not start.sign or start.sign != _sign(path):
                continue
            # A command may have changed it before an edit did.
            if start.is_first or (commanded is not None and name not in commanded):
                found.add(name)
        return found

    def _damaged(self, names: Sequence[str]) -> list[Remark]:
        return [*self._broken(names)[:MAX_SHOWN], *self._undefined(names)[:MAX_SHOWN]]

    def _broken(self, names: Sequence[str]) -> list[Remark]:
        from k3agent.tools.support.syntax import problem  # lazy: as above

        found: list[Remark] = []
        for name in names:
            path = (self._cwd / name).resolve()
            text = _text(path)
            why = problem(path.name, text) if text else None
            if why and self._at_start(path, name).parsed:
                found.append(Remark("broken", name, f"{name} does not parse any more: {why}."))
        return found

    def _undefined(self, names: Sequence[str]) -> list[Remark]:
        end = time.monotonic() + MAX_NAMES_S
        now: dict[str, dict[str, int]] = {}
        for name in names:
            path = (self._cwd / name).resolve()
            used = _undefined(path.name, _text(path) or "") if time.monotonic() < end else None
            if used:
                now[name] = used
        if not now:
            return []
        starts = {name: self._at_start((self._cwd / name).resolve(), name) for name in names}
        # Code that was moved to another file is old, too.
        old = frozenset[str]().union(*(start.undefined or () for start in starts.values()))
        found: list[Remark] = []
        for name, used in now.items():
            new = [f"{one} (line {line})" for one, line in used.items() if one not in old]
            if new and starts[name].undefined is not None:
                more = f" and {len(new) - MAX_SHOWN} more" if len(new) > MAX_SHOWN else ""
                what = "a name" if len(new) == 1 else "names"
                shown = ", ".join(new[:MAX_SHOWN])
                text = f"{name} uses {what} that nothing defines: {shown}{more}."
                found.append(Remark("undefined", name, text))
        return found

    def _at_start(self, path: Path, name: str) -> _Start:
        if path not in self._starts:
            self._starts[path] = self._start(path.name, self._text_before(name))
        return self._starts[path]


def _undefined(name: str, text: str) -> dict[str, int] | None:
    """The names that a Python file uses and nothing defines; None for other files."""
    if not name.endswith(".py"):
        return None
    from k3agent.tools.support.names import undefined  # lazy: with the tools, which are loaded by now

    return undefined(text)


def _sign(path: Path) -> str:
    """What stands for the content; "" where it cannot be read, or is no file."""
    sign, _ = sign_of(path, MAX_BYTES)
    if sign == "no file" or (sign.startswith("unread") and sign != GONE):
        return ""
    return sign


def takes_back(step: int, session_id: str) -> Remark:
    """How the user takes back a turn that ended badly."""
    text = f"To take back all of this turn: k3agent undo --session {session_id} --to {step}"
    return Remark("undo", str(step), text)


def is_bad(found: Sequence[Remark]) -> bool:
    """Whether the files are likely worse than before."""
    return any(
        one.kind in ("broken", "undefined") or (one.kind, one.subject) == ("tests", "failed") for one in found
    )


def asks(prompt: str) -> bool:
    """Whether the user only wants to know something: an answer may tell of changes that others made. "Can you
    fix it?" asks for nothing to know.
    """
    polite = _POLITE.match(prompt)
    wish = prompt[polite.end() :] if polite else prompt
    if _QUESTION.match(wish):
        return True
    return prompt.rstrip().endswith("?") and not (polite and polite["request"])


def unfounded(answer: str, rows: Sequence[CallRow], cwd: Path) -> str:
    """The words of an answer that tell of a change, where none was made; "" where they may be true."""
    prose = _CODE.sub("", answer[:MAX_ANSWER])
    hit = _CLAIM.search(prose) or _PASSIVE.search(prose) or _SET.match(prose)
    if hit is None:
        return ""
    words = re.split(r"[.:;](?:\s|$)", " ".join(hit[0].split()).lstrip("#>*- "))[0].rstrip(" ,*")
    doers = [row for row in rows if _may_have_done(row, cwd)]
    if doers:
        # A command may have done it where nobody looks: then only the files tell.
        line = prose[prose.rfind("\n", 0, hit.start()) + 1 :].partition("\n")[0]
        verb = (hit.groupdict().get("verb") or "").lower()
        is_told = _is_still_there(line, doers, cwd) if verb in ("removed", "deleted") else False
        if not is_told and not (verb in _LEAVES and _is_missing(line, cwd)):
            return ""
    return words[:120]


def _may_have_done(row: CallRow, cwd: Path) -> bool:
    """Whether this call may have changed something: not one that only looked, nor a single command that
    failed or ran tests.
    """
    if row.tool in LOOKING or row.state is not CallState.DONE:
        return False
    if row.tool not in ("shell", "try"):
        return True
    from k3agent.agent.destruction import effects_of  # lazy: tree-sitter, 30 ms

    command = str(row.access.get("runs") or "")
    if not command:
        return True
    if not _SEVERAL.search(command) and (_has_failed(row) or runs_tests(command)):
        return False
    place = Territory(cwd=cwd, extra_dirs=(), home=cwd, environ={}, readable=())
    return not effects_of(command, place).only_looks


def _has_failed(row: CallRow) -> bool:
    return row.result is not None and _FAILED.search(row.result.text) is not None


def _is_still_there(line: str, doers: Sequence[CallRow], cwd: Path) -> bool:
    """Whether the first thing in backticks is a path that is there, and nothing says where it was taken from:
    a line may be gone from a file, and a file from what git follows. What a command that ended well names may
    have been deleted and made again.
    """
    match = re.search(r"`([^`\n]+)`", line)
    if match is None or re.search(r"(?i)\b(?:from|in|of|git|index)\b", line) or not exists(cwd / match[1]):
        return False
    runs = [str(row.access.get("runs") or match[1]) for row in doers if not _has_failed(row)]
    return not any(match[1].rstrip("/") in command for command in runs)


def _is_missing(line: str, cwd: Path) -> bool:
    """Whether the files that a claim names are not there, none of them."""
    names = [] if _NO_FILE.search(line) else _NAME.findall(_ADDRESS.sub("", line))
    return bool(names) and not any(_is_there(cwd, name) for name in names)


def _is_there(cwd: Path, name: str) -> bool:
    """Also one folder below: answers often leave the folder out."""
    if exists(cwd / name):
        return True
    try:
        return "/" not in name and any(True for _ in cwd.glob(f"*/{name}"))
    except OSError:
        return False


def _text(path: Path) -> str | None:
    """What a file holds; "" where there is none, None where it is too large, or no text."""
    try:
        info = path.stat()
        # A pipe would be waited for.
        if info.st_size > MAX_BYTES or not stat.S_ISREG(info.st_mode):
            return None
        return path.read_bytes().decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError):
        return None
