"""A keyring backend that really keeps passwords, in the file KEYRING_TEST_FILE; `locked` refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

from keyring.backend import KeyringBackend
from keyring.errors import KeyringLocked, PasswordDeleteError


class FileKeyring(KeyringBackend):
    """Chosen with PYTHON_KEYRING_BACKEND=support.keyring_file.FileKeyring."""

    priority = 1.0  # pyright: ignore[reportAssignmentType]  # as all backends of keyring do

    def _load(self) -> dict[str, str]:
        path = Path(os.environ["KEYRING_TEST_FILE"])
        if path.name == "locked":
            raise KeyringLocked("the keyring is locked")
        return json.loads(path.read_text()) if path.exists() else {}

    def _save(self, known: dict[str, str]) -> None:
        Path(os.environ["KEYRING_TEST_FILE"]).write_text(json.dumps(known))

    def get_password(self, service: str, username: str) -> str | None:
        return self._load().get(f"{service}/{username}")

    def set_password(self, service: str, username: str, password: str) -> None:
        self._save({**self._load(), f"{service}/{username}": password})

    def delete_password(self, service: str, username: str) -> None:
        known = self._load()
        if known.pop(f"{service}/{username}", None) is None:
            raise PasswordDeleteError("there is none")
        self._save(known)
