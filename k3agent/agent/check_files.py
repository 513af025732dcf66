"""The files that make a check what it is: test scripts named in its command, and what the settings name.

The model may not write them with its tools (permissions.py), and a check does not count while a command has
changed them: otherwise the easiest way to pass a test would be to change it. Only files that were there when
the session began are kept so; `checks.protect = "off"` lifts it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from itertools import islice
from pathlib import Path

from k3agent.agent.checks import CheckResult
from k3agent.agent.hashes import file_hashes
from k3agent.errors import ConfigError

# What stands for the check in the result when its files were changed.
COMMAND = "files of the checks are as they were"
MAX_FILES = 2000
# `python app.py | grep ok` checks app.py, `python check_app.py` is the check: the name has to say so.
TELLING = re.compile(
    r"(?:^|[_.\-])(?:checks?|tests?|verify|validate|spec|lint|ci|acceptance)(?:[_.\-]|$)", re.IGNORECASE
)
RUNS = frozenset({"sh", "bash", "dash", "zsh", "python", "python3", "node", "perl", "ruby", "pytest", "env"})


def files_of_checks(commands: Sequence[str], patterns: Sequence[str], cwd: Path) -> frozenset[Path]:
    """Files that are there, inside of `cwd`, resolved. Raises ConfigError for a pattern that is none."""
    found = [cwd / word for command in commands for word in _scripts(command)]
    for pattern in patterns:
        try:
            found += list(islice(cwd.glob(pattern), MAX_FILES))
        except (OSError, ValueError, NotImplementedError) as error:
            raise ConfigError(
                f"checks.files: {pattern!r:.200} is no pattern of files in the workspace ({error}); write one"
                ' like "tests/**"'
            ) from error
    return frozenset(path.resolve() for path in found if _is_inside(path, cwd))


def _scripts(command: str) -> list[str]:
    """The words that are programs, or what an interpreter is to run, and call themselves tests."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    found: list[str] = []
    is_program = True
    for word in words:
        # `tests/test_a.py::test_b` names a file too.
        name = word.partition("::")[0].strip(";&|()")
        if is_program and name and TELLING.search(Path(name).name):
            found.append(name)
        is_flag = word.startswith("-") or "=" in word
        is_program = (is_program and (is_flag or Path(name).name in RUNS)) or word in ("&&", "||", ";", "|")
    return found


def _is_inside(path: Path, cwd: Path) -> bool:
    try:
        return path.is_file() and path.resolve().is_relative_to(cwd)
    except (OSError, ValueError):
        return False


class CheckFiles:
    """How the files of the checks are at the start of a turn, and whether they still are."""

    def __init__(self, paths: Collection[Path], cwd: Path) -> None:
        self._cwd = cwd
        self._before = file_hashes(sorted(paths))

    def changed(self) -> list[str]:
        """Relative to the workspace; also those that are gone."""
        now = file_hashes([Path(path) for path in self._before])
        return [
            str(Path(path).relative_to(self._cwd))
            for path, value in now.items()
            if value != self._before[path]
        ]

    def result(self) -> CheckResult | None:
        """A failed check where files were changed, else None."""
        changed = self.changed()
        if not changed:
            return None
        text = (
            f"{', '.join(changed)}: part of a check, and changed in this turn. A check that the work itself"
            " has changed proves nothing: put it back as it was. If it has to change, say so in your report."
        )
        return CheckResult(command=COMMAND, exit_code=1, output=text)
