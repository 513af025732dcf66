"""What code must not be run with a small mistake in it: it removes files, runs programs, talks to others."""

from __future__ import annotations

import re

_MODULES = r"(?:os|shutil|subprocess|socket|signal|ctypes|smtplib|ftplib|requests|httpx)"
_CALLS = frozenset(
    """remove rename renames replace move unlink rmdir removedirs rmtree truncate system popen kill killpg
    write chmod chown fork copy copy2 copyfile copytree link symlink""".split()  # noqa: SIM905 - a list of names reads better so
)
"""What does harm of what a module of files, processes or signals gives."""
_HARMFUL = re.compile(
    r"\b(rmtree|unlink|rmdir|removedirs|truncate|system|popen|Popen|subprocess|eval|exec|execv\w*|kill|killpg"
    r"|send|sendall|sendto|urlopen|requests|httpx|smtplib|ftplib|chmod|chown|rmSync|rmdirSync|unlinkSync"
    r"|renameSync|writeFileSync|appendFileSync|execSync|execFileSync|spawnSync|child_process|RemoveAll"
    r"|executemany|executescript|execute)\b"
    r"|\b(os|fs|shutil|path|Path\([^)]{0,200}\))\.(remove|rename|replace|move|write\w*)\b"
    r"|\b(os\.(renames|fork\w*|spawn\w*|posix_spawn\w*|link|symlink|ftruncate|Remove|Rename|Create|WriteFile)"
    r"|shutil\.copy\w*|fs\.(rm|promises)|socket\.\w+|ctypes\.\w+)\b"
    r"|\bopen\((?:[^()'\"]|\([^()]{0,80}\)|'[^'\n]{0,80}'(?!\))|\"[^\"\n]{0,80}\"(?!\))){0,200}?"
    r"['\"][rwaxb+]{0,3}[wax+][rwaxb+]{0,3}['\"]|\.write_(text|bytes)\(|\.(rename|hardlink_to)\("
    r"|\bDROP |\bDELETE |\brm -|\bgit (push|reset|clean)\b"
)


def found(text: str, others: re.Pattern[str] | None = None) -> str:
    """The first thing in the text that could do harm, on one line, or "". `others`: what does so, too."""
    match = _HARMFUL.search(text) or (others and others.search(text))
    return " ".join(match.group().split()) if match else ""


def aliases(text: str) -> re.Pattern[str] | None:
    """The harmful things that a file has under names of its own: `from os import remove as rm`."""
    found: list[str] = []
    for match in re.finditer(rf"(?m)^[ \t]*import {_MODULES} as (\w+)", text):
        found.append(rf"\b{match[1]}\.(?:{'|'.join(sorted(_CALLS))}|run|call|check_\w+|socket|post|put)\(")
    names = rf"(?m)^[ \t]*from ({_MODULES}) import (?:\(([^)]{{0,1000}})\)|([^(\n]{{0,300}}))"
    for match in re.finditer(names, text):
        for name in re.finditer(r"(\w+)(?: as (\w+))?", match[2] or match[3] or ""):
            if name[1] in _CALLS or match[1] not in ("os", "shutil", "signal"):
                found.append(rf"(?<![\w.]){name[2] or name[1]}\(")
    return re.compile("|".join(found)) if found else None
