"""Keeps the user's secrets out of children, transcript, screen and model.

Values of secret-looking environment variables and well-known key shapes are replaced before anything is
stored.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path

log = logging.getLogger(__name__)

SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
MIN_LENGTH = 8
# Shapes that are hardly ever anything but a live credential.
SHAPES = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{32,}|gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{50,}|AKIA[0-9A-Z]{16}"
    r"|xox[abprs]-[A-Za-z0-9-]{20,}|glpat-[A-Za-z0-9_-]{20,}|AIza[A-Za-z0-9_-]{35})(?![A-Za-z0-9])"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[A-Za-z0-9+/=\s]+-----END [A-Z ]*PRIVATE KEY-----"
)


def child_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for commands: without secrets."""
    return {name: value for name, value in environ.items() if not SECRET_NAME.search(name)}


class Masker:
    """Replaces known secrets. A value that is an existing path is not one (`SSL_KEY_FILE=/etc/...`)."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        found = {
            value: name
            for name, value in environ.items()
            if SECRET_NAME.search(name) and len(value) >= MIN_LENGTH and not _is_path(value)
        }
        self._done: set[Path] = set()
        # Longest first, so that a secret that holds another one goes as a whole.
        self._names = dict(sorted(found.items(), key=lambda item: -len(item[0])))
        self._pattern = re.compile("|".join(re.escape(value) for value in self._names)) if found else None

    def mask(self, text: str) -> str:
        if self._pattern is not None:
            text = self._pattern.sub(lambda match: f"[masked: {self._names[match.group()]}]", text)
        return SHAPES.sub("[masked: a key]", text)

    def mask_files(self, folder: Path, busy: Collection[Path]) -> None:
        """Mask the outputs of commands that are kept whole on disk; `busy` are still being written."""
        for path in folder.glob("output-*.txt"):
            if path in busy or path in self._done:
                continue
            self._done.add(path)
            try:
                text = path.read_bytes().decode("utf-8", "surrogateescape")
                masked = self.mask(text)
                if masked != text:
                    path.write_bytes(masked.encode("utf-8", "surrogateescape"))
            except OSError as error:
                log.warning("the output %s could not be masked: %s", path, error)


def _is_path(value: str) -> bool:
    try:
        return value.startswith("/") and Path(value).exists()
    except OSError:
        return False
