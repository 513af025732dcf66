"""May the configuration of this folder be obeyed?

A repository's configuration can name commands to run and places to send code to, so it counts only after
`k3agent config trust`, and only with the content that was trusted: any change asks anew.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from k3agent.errors import ConfigError

_FILE = "trusted.json"


def fingerprint(paths: tuple[Path, ...]) -> str:
    """A hash over names and contents; a missing file counts as such."""
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes() if path.is_file() else b"\0missing"
        digest.update(f"{path.name}:{len(content)}:".encode() + content)
    return digest.hexdigest()


def is_trusted(home: Path, paths: tuple[Path, ...]) -> bool:
    return _load(home).get(str(paths[0].parent.resolve())) == fingerprint(paths)


def set_trust(home: Path, paths: tuple[Path, ...], *, is_trusted: bool) -> None:
    """Trust the files as they are now, or take the trust back."""
    known = _load(home)
    folder = str(paths[0].parent.resolve())
    if is_trusted:
        known[folder] = fingerprint(paths)
    else:
        known.pop(folder, None)
    home.mkdir(parents=True, exist_ok=True)
    temporary = home / f"{_FILE}.new"
    temporary.write_text(json.dumps(known, indent=1), encoding="utf-8")
    temporary.replace(home / _FILE)


def _load(home: Path) -> dict[str, str]:
    path = home / _FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Delete it, then trust folders anew.") from error
    return {str(key): str(value) for key, value in data.items()} if isinstance(data, dict) else {}
