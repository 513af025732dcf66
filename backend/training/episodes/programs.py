"""Programs for PATH that behave as the generator's machine does: an evaluation runs outside of it."""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = "/@project"
"""In what a program prints, the folder of the project."""


@dataclass(frozen=True, slots=True)
class Turning:
    """What a command says until a file is as it should be, empty lines aside, and from then on."""

    path: str
    text: str
    before: str
    after: str

    def now(self, root: str) -> str:
        """What it says in a folder as it is."""
        file = Path(root, self.path)
        is_right = file.is_file() and _packed(file.read_text(encoding="utf-8")) == _packed(self.text)
        return self.after if is_right else self.before


def _packed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


Said = str | Turning
"""What a command says: always, or by the state of a file."""

_REFUSING = {
    "rm": """for x; do case $x in -*) ;; *) echo "rm: cannot remove '$x': WHY" >&2; esac; done""",
    "mv": """for x; do a=$b; b=$x; done; echo "mv: cannot move '$a' to '$b': WHY" >&2""",
    "mkdir": """for x; do :; done; [ -d "$x" ] && exit 0
echo "mkdir: cannot create directory ‘$x’: WHY" >&2""",
    "cp": """for x; do :; done; echo "cp: cannot create regular file '$x': WHY" >&2""",
}


def write_refusing(folder: Path, why: str) -> None:
    """The programs of `toolbox.REFUSABLE`: they say what `toolbox.refusal` says, and fail."""
    for program, text in _REFUSING.items():
        _write(folder / program, f"{text.replace('WHY', why)}\nexit 1")


def write_answering(folder: Path, answers: Mapping[str, Said]) -> None:
    """Programs that answer a command as given, `[exit code N]` last; with other arguments the real one
    runs.
    """
    programs: dict[str, list[str]] = {}
    for command, said in answers.items():
        program, _, rest = command.partition(" ")
        if isinstance(said, Turning):
            now = f"$(sed -e 's/[[:space:]]*$//' -e '/^$/d' {shlex.quote(said.path)})"
            is_right = f'[ "{now}" = {shlex.quote(_packed(said.text))} ]'
            answer = f"if {is_right}; then {_saying(said.after)}; else {_saying(said.before)}; fi"
        else:
            answer = _saying(said)
        programs.setdefault(program, []).append(f'if [ "$*" = {shlex.quote(rest)} ]; then {answer}; fi')
    for program, rows in programs.items():
        _write(folder / program, "\n".join([*rows, f'PATH=${{PATH#*:}} exec {program} "$@"']))


def _saying(said: str) -> str:
    """What prints an answer and ends with its exit code."""
    match = re.fullmatch(r"(?s)(.*?)\n?\[exit code (\d+)\]", said)
    if match is None:
        raise ValueError(f"{said!r} does not end with [exit code N]")
    print_it = f"printf '%s\\n' {shlex.quote(match[1])}" if match[1] else ":"
    print_it += f' | sed "s#{ROOT}#$PWD#g"' if ROOT in said else ""
    return f"{print_it}; exit {match[2]}"


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    file.chmod(0o755)
