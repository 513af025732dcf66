"""Keeps the user's secrets out of children, transcript, screen and model.

Values of secret-looking environment variables, those in the workspace's environment files, and well-known
key shapes are replaced before anything is stored.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import re
import secrets
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from k3agent.errors import StoreError
from k3agent.safety import visible
from k3agent.safety.environment import secrets_of
from k3agent.safety.masking import TextMasker
from k3agent.safety.streaming import StreamMasker
from k3agent.store.database import SessionLock
from k3agent.types import JsonObject, Part, ReasoningPart, TextPart, ToolCall, ToolResult

log = logging.getLogger(__name__)

ENVIRONMENT_FILES = ".env*"
MAX_ENVIRONMENT_BYTES = 64 * 1024
MAX_ENVIRONMENT_FILES = 20
_ASSIGNMENT = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*[:=]\s*(.*?)\s*")
# Whole outputs are masked in pieces of this size, each together with the end of the one before.
PIECE_CHARS = 1 << 22


class Masker(TextMasker):
    """What a session masks with. `folder`: the workspace, whose environment files are looked at."""

    def __init__(self, environ: Mapping[str, str], folder: Path | None = None) -> None:
        super().__init__(secrets_of(environ))
        self._done: set[Path] = set()
        self._marks: set[str] = set()
        self._folder = folder
        self._seen: dict[Path, tuple[int, int]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Learn the values of the workspace's environment files, as far as they are new."""
        for path in _environment_files(self._folder):
            try:
                info = path.stat()
                sign = (info.st_mtime_ns, info.st_size)
                if self._seen.get(path) == sign or not path.is_file():
                    continue
                self._seen[path] = sign
                with path.open("rb") as stream:
                    text = stream.read(MAX_ENVIRONMENT_BYTES).decode("utf-8", "replace")
            except OSError:
                continue
            self.learn(secrets_of(_assignments(text)))

    def reveal(self, text: str) -> str:
        """`text` with a mark for each character that nobody would see."""
        shown = visible.reveal(text)
        if shown != text:
            self._marks.update(visible.marks(shown))
        return shown

    def restore(self, text: str) -> str:
        """The characters again, for marks that were shown: so copied text fits its file."""
        return visible.restore(text, self._marks) if self._marks else text

    def stream(self) -> StreamMasker:
        """For a text that comes in pieces."""
        return StreamMasker(self)

    def mask_parts(self, parts: Iterable[Part]) -> tuple[Part, ...]:
        """The parts of a message. What holds no secret is the same object, byte for byte."""
        return tuple(self._mask_part(part) for part in parts)

    def mask_value(self, value: Any) -> Any:
        """Every text in a JSON value."""
        match value:
            case str() if type(value) is str:  # an enumeration's value is no free text
                return self.mask(value)
            case dict():
                return {key: self.mask_value(item) for key, item in value.items()}
            case list() | tuple():
                return type(value)(self.mask_value(item) for item in value)
            case _:
                return value

    def _mask_part(self, part: Part) -> Part:
        match part:
            case TextPart():
                text = self.mask(part.text)
                return part if text == part.text else TextPart(text=text)
            case ReasoningPart():
                details: tuple[JsonObject, ...] | None = part.details and self.mask_value(part.details)
                masked = ReasoningPart(text=self.mask(part.text), details=details)
                return part if masked == part else masked
            case ToolCall():
                arguments = self.mask(part.arguments)
                return part if arguments == part.arguments else dataclasses.replace(part, arguments=arguments)
            case ToolResult():
                content = tuple(
                    TextPart(text=self.mask(piece.text)) if isinstance(piece, TextPart) else piece
                    for piece in part.content
                )
                return part if content == part.content else dataclasses.replace(part, content=content)
            case _:
                return part

    def mask_files(self, folder: Path, busy: Collection[Path]) -> None:
        """Mask the outputs of commands that are kept whole on disk; `busy` are still being written."""
        self.mask_all([path for path in unmasked(folder) if path not in busy])

    def mask_all(self, paths: Iterable[Path]) -> None:
        """Mask files that nobody writes to any more."""
        for path in paths:
            if path in self._done:
                continue
            self._done.add(path)
            try:
                self._mask_file(path)
            except OSError as error:
                log.warning("the output %s could not be masked: %s", path, error)

    def _mask_file(self, path: Path) -> None:
        # Of its own: who goes on with the session masks the same file, maybe in this process.
        draft = path.with_suffix(f".{os.getpid()}-{secrets.token_hex(3)}")
        stream = self.stream()
        # Bytes that are no UTF-8 come through as they are, and so do line ends.
        with path.open(encoding="utf-8", errors="surrogateescape", newline="") as source:
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape", newline="") as target:
                while piece := source.read(PIECE_CHARS):
                    target.write(stream.feed(piece))
                target.write(stream.flush())
                # The mark of what is masked: nothing is written to it any more.
                os.fchmod(target.fileno(), 0o400)
        draft.replace(path)


def unmasked(folder: Path) -> list[Path]:
    """The outputs that lie there as they were written."""
    try:
        return [path for path in folder.glob("output-*.txt") if path.lstat().st_mode & 0o200]
    except OSError:
        return []


def start_sweep(home: Path, own: str, masker: Masker) -> None:
    """Mask what killed sessions left, beside the work: most often there is nothing to do."""
    asyncio.get_running_loop().run_in_executor(None, _mask_leftovers, home, own, masker)


def _mask_leftovers(home: Path, own: str, masker: Masker) -> None:
    """What a process holds is its to mask, and `own` is this one's."""
    for folder in sorted((home / "outputs").glob("*")):
        if folder.name == own or not unmasked(folder):
            continue
        try:
            lock = SessionLock(home, folder.name)
        except StoreError:
            continue
        # What lies there while nobody holds the session is never written to again: a process that takes it
        # from here on gives its outputs new names. So it need not wait until large ones are masked.
        left = unmasked(folder)
        lock.release()
        masker.mask_all(left)


def _environment_files(folder: Path | None) -> list[Path]:
    if folder is None:
        return []
    try:
        return sorted(folder.glob(ENVIRONMENT_FILES))[:MAX_ENVIRONMENT_FILES]
    except OSError:
        return []


def _assignments(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        match = _ASSIGNMENT.fullmatch(line)
        if match is None:
            continue
        value = match.group(2)
        if value[:1] in ("'", '"'):
            value = value[1:].partition(value[0])[0]
        else:
            value = value.partition(" #")[0].strip()
        found[match.group(1)] = value
    return found
