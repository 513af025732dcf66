"""Finds in a command's output that the sandbox stopped it, and says so in one line for the model."""

from __future__ import annotations

import re
from pathlib import Path

from k3agent.safety.paths import exists
from k3agent.tools.sandbox.policy import Policy

DENIED = re.compile(
    r"Permission denied|Read-only file system|Operation not permitted|Device or resource busy"
    r"|Invalid cross-device link|EACCES|EROFS|EPERM|EBUSY"
)
MISSING = re.compile(r"No such file or directory|ENOENT|Permission denied|EACCES")
OFFLINE = re.compile(
    r"Could not resolve host|Temporary failure in name resolution|Network is unreachable"
    r"|ENETUNREACH|EAI_AGAIN|Name or service not known"
    r"|Failed to resolve|lookup \S+ on \S+: dial|nodename nor servname"
)
QUOTED = re.compile(r"'([^'\n]{1,4096})'|\"([^\"\n]{1,4096})\"|‘([^’\n]{1,4096})’")
MAX_LINES = 400


def explain(output: str, cwd: Path, policy: Policy, *, has_network: bool) -> str:
    lines = output.splitlines()[-MAX_LINES:]
    for line in lines:
        if DENIED.search(line):
            for path in _paths(line, cwd):
                if path in policy.hidden or any(folder in path.parents for folder in policy.hidden):
                    continue
                if path in policy.pinned or not policy.may_write(path):
                    return _denied_write(path, policy)
    for line in lines:
        if MISSING.search(line):
            for path in _paths(line, cwd):
                if any(path == folder or folder in path.parents for folder in policy.hidden):
                    return f"[sandbox: {path} is hidden from commands. Do not work around it; ask the user.]"
    if not has_network and any(OFFLINE.search(line) for line in lines):
        return "[sandbox: commands have no network here. Work with what is installed, or ask the user.]"
    return ""


def _denied_write(path: Path, policy: Policy) -> str:
    if path in policy.pinned or any(path == kept or kept in path.parents for kept in policy.protected):
        why = "it is protected, because it can make programs run outside of the sandbox"
    else:
        why = f"commands may write below {', '.join(map(str, policy.writable))} and $TMPDIR"
    return f"[sandbox: writing {path} was refused; {why}. Do not look for a way around; ask the user.]"


def _paths(line: str, cwd: Path) -> list[Path]:
    """What may be paths in a line, best first: quoted text, what stands between colons, single words."""
    quoted = ["".join(groups) for groups in QUOTED.findall(line)]
    # The first is the program that complains.
    parts = [part.strip() for part in line.split(": ")[1:]]
    words = [word.strip("'\"`,:;()[]") for word in line.split()[1:]]
    found: list[Path] = []
    for text in dict.fromkeys([*quoted, *parts, *words]):
        looks_like_one = "/" in text.strip("/") or text.startswith(("/", ".")) or text in quoted
        if text and looks_like_one and "\0" not in text and not text.endswith("...") and "://" not in text:
            home = text.startswith("~/")
            path = Path(text).expanduser() if home else cwd / text
            if exists(path.parent) and path != cwd:
                found.append(path.parent.resolve() / path.name)
    return found
