"""Instruction files of folders inside the workspace: told when the model begins to work there, as messages,
so that the system prompt stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from k3agent.agent.instructions import instruction_file, read_instruction
from k3agent.safety.fencing import fence
from k3agent.safety.visible import reveal
from k3agent.types import Message, Origin

HEAD = "Instructions of {path}, from here on, for work in that folder; like those above, quoted from a file:"
TOO_LONG = "{path} has instructions for work in that folder. They are too long to be quoted: read the file."
# Of one file, and of all of a session.
MAX_CHARS, MAX_ALL_CHARS = 16_000, 48_000


class NestedInstructions:
    """`seen`: the files that the session's tools have read or written, by their real paths. `messages` gives
    what the model still sees of the conversation.
    """

    def __init__(
        self, cwd: Path, seen: Mapping[str, str], messages: Callable[[], Sequence[Message]], *, is_on: bool
    ) -> None:
        self._cwd = cwd
        self._seen = seen
        self._messages = messages
        self._is_on = is_on
        # A resumed session has been told of these, or they were left out of its context for good.
        self._known: set[str] = set(seen)
        self._left = MAX_ALL_CHARS

    def take(self) -> list[str]:
        """What has to be said of folders that the model has come to since the last call."""
        new = self._seen.keys() - self._known if self._is_on else ()
        self._known.update(new)
        texts: list[str] = []
        for path in self._files(new):
            text = self._text(path)
            if text and not self._is_told(text):
                self._left -= len(text)
                texts.append(text)
        return texts

    def _files(self, paths: Collection[str]) -> list[Path]:
        """The instruction files between the workspace and these files, outer ones first."""
        folders: set[Path] = set()
        for path in map(Path, paths):
            if path.is_relative_to(self._cwd):
                folders.update(folder for folder in path.parents if self._cwd in folder.parents)
        files = [instruction_file(folder) for folder in sorted(folders)]
        return [file for file in files if file is not None]

    def _text(self, path: Path) -> str:
        instruction = read_instruction(path, self._cwd)
        if instruction is None:
            return ""
        shown = str(path.relative_to(self._cwd))
        if len(instruction.text) > min(MAX_CHARS, self._left):
            return TOO_LONG.format(path=shown)
        return f"{HEAD.format(path=shown)}\n\n{fence(reveal(instruction.text), shown)}"

    def _is_told(self, text: str) -> bool:
        head = text.partition("\n")[0]
        return any(
            message.origin is Origin.HARNESS and message.text.partition("\n")[0] == head
            for message in self._messages()
        )
