"""Commands from Markdown files: `/name words` becomes the text of `commands/name.md` with the words in it.

Nothing in a file is run when it is used: a command line in it is a request to the model, which runs it like
any other, with the user's permission.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from k3agent.agent.hooknames import ELSEWHERE, OURS, is_tool_name, meant_tool
from k3agent.config.frontmatter import split, split_list
from k3agent.safety.paths import is_file, is_folder

MAX_FILE_BYTES = 64 * 1024
MAX_COMMANDS = 500
MAX_DEPTH = 3
_NAME = re.compile(r"[A-Za-z0-9][\w-]*(?::[A-Za-z0-9][\w-]*)*")
_CALL = re.compile(r"/([A-Za-z0-9][\w:-]*)(?:\s+(.*))?", re.DOTALL)
_SEEMING_CALL = re.compile(r"/([A-Za-z][A-Za-z0-9_:-]*)(?:\s|\Z)")
_PLACE = re.compile(r"\$(ARGUMENTS\b|\d+)")
_SHELL = re.compile(r"(?m)(?<!\S)!`([^`\n]+)`")
_RULE = re.compile(r"([A-Za-z_*][\w*-]*)\s*(\([^)]*\))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomCommand:
    """`rules`: permission rules that allow what the command needs, for its turn."""

    name: str
    text: str
    description: str
    hint: str
    rules: tuple[str, ...]
    path: Path

    def expanded(self, words: str) -> str:
        """The prompt. `words`: what was written after the name."""
        parts = _split(words)
        is_used = False

        def value(match: re.Match[str]) -> str:
            nonlocal is_used
            is_used = True
            if match[1] == "ARGUMENTS":
                return words
            number = int(match[1])
            return parts[number - 1] if 1 <= number <= len(parts) else ""

        text = _SHELL.sub(r"`\1` (run this with the shell tool and read its output)", self.text)
        text = _PLACE.sub(value, text)
        return text if is_used or not words else f"{text}\n\nARGUMENTS: {words}"


def find_command(text: str, commands: Mapping[str, CustomCommand]) -> tuple[CustomCommand, str] | None:
    """(command, the words after it) when the prompt is `/name …` of one of these."""
    match = _CALL.fullmatch(text.strip())
    command = commands.get(match[1]) if match is not None else None
    return None if match is None or command is None else (command, (match[2] or "").strip())


def called_name(text: str) -> str:
    """The name of the command that a prompt seems to call; "" for other words and for a path."""
    match = _SEEMING_CALL.match(text)
    return "" if match is None or os.path.lexists(f"/{match[1]}") else match[1]


def load_commands(folders: Sequence[Path], warnings: list[str]) -> dict[str, CustomCommand]:
    """By name, in the order of names; of two with one name that of the later folder counts."""
    found: dict[str, CustomCommand] = {}
    for folder in folders:
        for path in markdown_files(folder, MAX_DEPTH, MAX_COMMANDS):
            name = ":".join(path.relative_to(folder).with_suffix("").parts)
            if not _NAME.fullmatch(name):
                warnings.append(f"{path}: {name!r} is no name for a command; use letters, digits and dashes")
                continue
            text = read_bounded(path)
            if text is None:
                warnings.append(f"{path} is not used: unreadable, or more than {MAX_FILE_BYTES} bytes")
                continue
            found[name] = _command(name, path, text, warnings)
    return dict(sorted(found.items()))


def _command(name: str, path: Path, text: str, warnings: list[str]) -> CustomCommand:
    front, body = split(text)
    rules, unknown = rules_in(front.get("allowed-tools", ""))
    warnings += [
        f"{path}: allowed-tools names {tool!r}, which is no tool.{meant_tool(tool)}" for tool in unknown
    ]
    first = next((line.strip("# ") for line in body.splitlines() if line.strip()), "")
    return CustomCommand(
        name=name,
        text=body,
        description=" ".join((front.get("description") or first).split())[:120],
        hint=" ".join(front.get("argument-hint", "").split())[:60],
        rules=rules,
        path=path,
    )


def rules_in(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(permission rules from a list of tools as other agents name them, names that are no tool's). Tools of
    other agents that k3agent lacks are left out.
    """
    rules: list[str] = []
    unknown: list[str] = []
    for item in split_list(text):
        for match in _RULE.finditer(item):
            name = OURS.get(match[1], match[1])
            if is_tool_name(name):
                rules.append(name + (match[2] or ""))
            elif name not in ELSEWHERE:
                unknown.append(name)
    return tuple(dict.fromkeys(rules)), tuple(dict.fromkeys(unknown))


def markdown_files(folder: Path, depth: int, most: int) -> list[Path]:
    """The `.md` files in `folder` and below, sorted, links to folders not followed."""

    def below(place: Path, left: int) -> Iterator[Path]:
        try:
            entries = sorted(place.iterdir())
        except OSError:
            return
        for entry in entries:
            if is_folder(entry) and not entry.is_symlink() and left:
                yield from below(entry, left - 1)
            elif entry.suffix == ".md" and is_file(entry):
                yield entry

    found: list[Path] = []
    for path in below(folder, depth):
        if len(found) == most:
            break
        found.append(path)
    return found


def read_bounded(path: Path) -> str | None:
    """The file's text; None for one that cannot be read or is too long."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError:
        return None
    return None if len(data) > MAX_FILE_BYTES else data.decode("utf-8-sig", "replace")


def _split(words: str) -> list[str]:
    try:
        return shlex.split(words)
    except ValueError:
        return words.split()
