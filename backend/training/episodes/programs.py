"""Programs for PATH that behave as the generator's machine does: an evaluation runs outside of it."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

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


def write_answering(folder: Path, answers: Mapping[str, str]) -> None:
    """Programs that answer a command as given, `[exit code N]` last; with other arguments the real one
    runs.
    """
    for command, said in answers.items():
        program, _, rest = command.partition(" ")
        match = re.fullmatch(r"(?s)(.*?)\n?\[exit code (\d+)\]", said)
        if match is None:
            raise ValueError(f"{said!r} does not end with [exit code N]")
        print_it = f"printf '%s\\n' {shlex.quote(match[1])}" if match[1] else ":"
        text = f'if [ "$*" = {shlex.quote(rest)} ]; then {print_it}; exit {match[2]}; fi'
        _write(folder / program, f'{text}\nPATH=${{PATH#*:}} exec {program} "$@"')


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    file.chmod(0o755)
