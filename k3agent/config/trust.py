"""May what a repository brings for k3agent act: its configuration, hooks, MCP servers, skills?

They can name commands to run and places to send code to, so they count only after `k3agent config trust`,
and only with the content that was trusted: any change asks anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from k3agent.errors import ConfigError

_FILE = "trusted.json"
# What acts, or makes the model act, without a word of the user; BESIDE the folder: what others read, too.
COVERED = (
    "config.toml",
    "config.local.toml",
    "mcp.json",
    "hooks",
    "hooks.json",
    "skills",
    "agents",
    "commands",
)
BESIDE = (".mcp.json", ".claude/commands", ".claude/skills")
# More than this is nothing that somebody has read before trusting it.
MAX_FILES = 2_000
MAX_BYTES = 64 * 1024 * 1024


def covered(folder: Path) -> list[Path]:
    """The files that trust in a `.k3agent` folder is about, by name. Raises ConfigError for too many."""
    tops = [*(folder / name for name in COVERED), *(folder.parent / name for name in BESIDE)]
    files = [path for path in tops if path.is_file()]
    for top in tops:
        if top.is_dir():
            for path in top.rglob("*"):
                if path.is_symlink() and path.is_dir():
                    raise ConfigError(
                        f"{path} is a link to a folder, which trust cannot cover: put a copy there"
                    )
                if path.is_file():
                    files.append(path)
                if len(files) > MAX_FILES:
                    raise ConfigError(
                        f"{top} has more than {MAX_FILES} files: move out what k3agent does not need"
                    )
    return sorted(files)


def fingerprint(folder: Path) -> str:
    """A hash over names and contents, through links, of all that is covered."""
    digest = hashlib.sha256()
    left = MAX_BYTES
    for path in covered(folder):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be read: {error.strerror}. Make it readable, or remove it."
            ) from error
        left -= len(content)
        if left < 0:
            raise ConfigError(
                f"{folder} holds more than {MAX_BYTES >> 20} MB: move out what k3agent does not need"
            )
        name = os.path.relpath(path, folder)
        digest.update(json.dumps([name, os.access(path, os.X_OK), len(content)]).encode() + content)
    return digest.hexdigest()


def is_trusted(home: Path, folder: Path) -> bool:
    """May what lies in this `.k3agent` folder act? Only as it was when it was trusted."""
    known = _load(home).get(_key(folder))
    return known is not None and known == fingerprint(folder)


def set_trust(home: Path, folder: Path, *, is_trusted: bool, seen: str | None = None) -> None:
    """Trust the folder as it is now, or take the trust back. `seen`: its fingerprint when the user looked;
    raises ConfigError if it is another by now.
    """
    known = _load(home)
    if is_trusted:
        mark = fingerprint(folder)
        if seen not in (None, mark):
            raise ConfigError(f"{folder} has changed since it was shown, nothing was trusted: look again")
        known[_key(folder)] = mark
    else:
        known.pop(_key(folder), None)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = home / f"{_FILE}.{os.getpid()}"
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(known, file, indent=1)
    temporary.replace(home / _FILE)


def _key(folder: Path) -> str:
    """The folder by its place: a link to one that is trusted elsewhere is another."""
    return str(folder.parent.resolve() / folder.name)


def _load(home: Path) -> dict[str, str]:
    path = home / _FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Delete it, then trust folders anew.") from error
    return {str(key): str(value) for key, value in data.items()} if isinstance(data, dict) else {}
