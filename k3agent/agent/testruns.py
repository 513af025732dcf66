"""Which command of a turn ran tests last, and how that came out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile, takewhile

from k3agent.agent.shell_syntax import parse
from k3agent.store.records import CallRow, CallState
from k3agent.types import JsonObject

# Programs that do nothing but run tests; the second line also as modules of Python.
RUNNERS = frozenset({"py.test", "nosetests", "jest", "vitest", "mocha", "ava", "rspec", "phpunit", "ctest"})
MODULES = frozenset({"pytest", "unittest", "nose2", "tox", "nox"})
# Programs with a word of their own for it: `go test`, `npm run test`, `make check`.
BUILDERS = frozenset(
    {"npm", "pnpm", "yarn", "bun", "deno", "go", "cargo", "dotnet", "mix", "swift", "zig", "hatch"}
)
# Those that are given several such words: `make build test`.
MAKERS = frozenset({"mvn", "mvnw", "gradle", "gradlew", "make", "just", "rake", "bazel"})
# Behind these a `test` of the first kind is a name.
_NAMING = frozenset(
    {"new", "init", "mod", "install", "i", "add", "remove", "create", "package", "get", "deps.get", "build"}
    | {"clean", "env", "update", "publish", "view"}
)
_WITH_PLACE = frozenset({"-C", "-f", "--directory", "--file", "--prefix", "--cwd"})
# What stands in front of another command, apart from what shell_syntax follows.
LAUNCHERS = frozenset({"uv", "poetry", "pipenv", "pdm", "rye", "npx", "bunx", "bundle", "coverage"})
_BETWEEN = frozenset({"run", "exec", "-m"})
_INTERPRETER = re.compile(r"python[\d.]*|py|bash|dash|zsh|sh|node|ruby|perl|php")
_TARGET = re.compile(r"(?:unit|e2e)?tests?(?::.*)?|nextest")
_SCRIPT = re.compile(r"(?i)(?:run[_-])?tests?(?:[_.-].*)?|.*[_.-]tests?(?:\.\w+)?")
# With these nothing is run.
_ASKS = frozenset({"--version", "-V", "--help", "-h", "--collect-only", "--co", "--fixtures", "--listTests"})
_END = re.compile(r"(?m)^\[(?:exit code (-?\d+)|.*; killed)\]$")
# Where one of these stands the exit code may be another command's.
_SEVERAL = re.compile(r"[|;&\n]")
# `2>&1` joins two outputs, not two commands.
_JOINED = re.compile(r"\d*[<>]&\S|&>")
# With these the exit code is what somebody else makes of it: pipes, alternatives, the background, blocks.
_ENDS_ELSEWHERE = re.compile(r"[|!`]|\$\(|(?<![&>])&(?![&>])|\b(?:if|while|until|for|case|function|trap)\b")
_HEADS = {"failed": "The last test run failed", "none": "The last test run found no tests"}
# The tools whose result ends with the exit code of a command.
RUNNING = ("shell", "try")
MAX_SHOWN = 120


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """`outcome`: passed, failed, none where there was no test to run, or unknown where neither its output nor
    the exit code tells; `exit_code`: None for a command that was killed. `is_latest`: no tool has changed a
    file since.
    """

    command: str
    outcome: str
    exit_code: int | None
    is_latest: bool

    @property
    def line(self) -> JsonObject:
        """For the result of a run."""
        return {"command": self.command, "outcome": self.outcome, "exit_code": self.exit_code}

    @property
    def warning(self) -> str:
        """What people have to know of it when the model is done; "" where all is well, or not known."""
        if self.outcome not in _HEADS or not self.is_latest:
            return ""
        end = "killed" if self.exit_code is None else f"exit code {self.exit_code}"
        command = " ".join(self.command.split())
        shown = command if len(command) <= MAX_SHOWN else command[: MAX_SHOWN - 1] + "…"
        return f"{_HEADS[self.outcome]}: {shown} ({end})."


def last_run(rows: Sequence[CallRow]) -> SuiteRun | None:
    """Of the calls of a turn; None where no command ran tests."""
    is_latest = True
    for row in reversed(rows):
        command = str(row.access.get("runs") or "")
        is_over = row.tool in RUNNING and row.state is CallState.DONE
        if is_over and row.result and runs_tests(command):
            ended = _ended(command, row.result.text)
            if ended is not None:
                return SuiteRun(command, *ended, is_latest)
        is_latest = is_latest and not row.files
    return None


def _ended(command: str, text: str) -> tuple[str, int | None] | None:
    """(outcome, exit code); None for what went on in the background."""
    from k3agent.tools.support.testruns import outcome  # lazy: with the tools, which are loaded by now

    ends = list(_END.finditer(text))
    if not ends:
        return None
    code = int(ends[-1][1]) if ends[-1][1] else None
    said = outcome(text)
    is_several = _SEVERAL.search(_JOINED.sub(" ", command)) is not None
    if said == "none" or (said and is_several):
        return said, code
    if is_several and code is not None and not _tells(command, code):
        return "unknown", code
    return ("passed" if code == 0 else "failed"), code


def _tells(command: str, code: int) -> bool:
    """Whether the exit code of several commands is that of the test run: where each needs the one before it
    and all ended well, or the run is the last.
    """
    if _ENDS_ELSEWHERE.search(command):
        return False
    is_chain = not re.search(r"[;\n]", command)
    return (is_chain and code == 0) or runs_tests(re.split(r"&&|[;\n]", command.rstrip("; \n"))[-1])


def idle_check(command: str, output: str) -> str:
    """What is to be said of a check that passed because it found no tests; "" for every other."""
    from k3agent.tools.support.testruns import outcome  # lazy: as above

    if not runs_tests(command) or outcome(output) != "none":
        return ""
    return f"The check `{command}` passed, but it found no tests: none was run."


def runs_tests(command: str) -> bool:
    """Whether one of the commands of the line runs tests, as far as their words show."""
    return any(_is_run([word or "" for word in simple.words]) for simple in parse(command).commands)


def _is_run(words: Sequence[str]) -> bool:
    if not words or not _ASKS.isdisjoint(words):
        return False
    name, rest = words[0].rsplit("/", 1)[-1], words[1:]
    if name in RUNNERS or name in MODULES:
        return True
    if _INTERPRETER.fullmatch(name):
        return _runs_script(rest)
    if name in LAUNCHERS:
        return _is_run(list(dropwhile(_BETWEEN.__contains__, rest)))
    if name in BUILDERS or name in MAKERS:
        return _has_target(name, rest)
    return "/" in words[0] and name != "test" and _SCRIPT.fullmatch(name) is not None


def _has_target(name: str, rest: Sequence[str]) -> bool:
    words = [word for before, word in zip(("", *rest), rest, strict=False) if before not in _WITH_PLACE]
    if name in BUILDERS:
        words = list(takewhile(lambda word: word not in _NAMING, words))
    is_checked = name == "make" and "check" in words
    return is_checked or any(_TARGET.fullmatch(word) for word in words)


def _runs_script(rest: Sequence[str]) -> bool:
    """Whether what an interpreter is given is a test, or runs some."""
    if "-m" in rest:
        return _is_run(rest[rest.index("-m") + 1 :])
    if "--test" in rest:
        return True
    names = [word.rsplit("/", 1)[-1] for word in rest if not word.startswith("-")]
    if not names or "-c" in rest:
        return False
    is_managed = names[0] == "manage.py" and "test" in names
    return is_managed or _SCRIPT.fullmatch(names[0]) is not None
