"""Keys that `k3agent login` has stored: in the system keyring, or where there is none in a file (0600).

`keys.json` in the data folder names what is stored where, so that a start without stored keys asks no
keyring. A variable that is set in the environment always wins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from k3agent.errors import ConfigError
from k3agent.safety.writing import replace_text

SERVICE = "k3agent"
_FILE = "keys.json"
KEYRING, FILE = "keyring", "file"


def with_stored_keys(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """`environ` and the stored keys, each in the variable of its provider."""
    found = dict(environ)
    for provider, entry in _load(home).items():
        variable = str(entry.get("variable", ""))
        if variable and not found.get(variable):
            key = _from_keyring(provider, home) if entry.get("where") == KEYRING else entry.get("key", "")
            if key:
                found[variable] = str(key)
    return found


def stored(home: Path) -> dict[str, str]:
    """Provider to the place where its key is."""
    return {provider: str(entry.get("where", "")) for provider, entry in _load(home).items()}


def store_key(home: Path, provider: str, variable: str, key: str, *, in_file: bool = False) -> str:
    """Keep the key; returns why it is in a file and in which, or '' when the keyring has it."""
    problem = "asked for with --file" if in_file else _into_keyring(provider, key)
    entry = {"variable": variable, "where": FILE if problem else KEYRING}
    if problem:
        entry["key"] = key
    _save(home, {**_load(home), provider: entry})
    return f"{problem}: the key is in {home / _FILE}, which only you can read" if problem else ""


def remove_key(home: Path, provider: str) -> bool:
    """Forget the key; whether there was one."""
    known = _load(home)
    entry = known.pop(provider, None)
    if entry is None:
        return False
    if entry.get("where") == KEYRING:
        import keyring  # lazy: as below
        import keyring.errors

        try:
            keyring.delete_password(SERVICE, provider)
        except keyring.errors.PasswordDeleteError:
            pass  # it was removed with the keyring's own program
        except keyring.errors.KeyringError as error:
            raise ConfigError(
                f"the key of {provider} cannot be removed from the system keyring: {_first_line(error)};"
                " unlock it and try again"
            ) from error
    _save(home, known)
    return True


def read_key(home: Path, provider: str) -> str:
    """The stored key, '' for none. Raises ConfigError where the keyring does not give it."""
    entry = _load(home).get(provider)
    if entry is None:
        return ""
    return _from_keyring(provider, home) if entry.get("where") == KEYRING else str(entry.get("key", ""))


def _into_keyring(provider: str, key: str) -> str:
    """'' when it is there, else why it is not."""
    try:
        import keyring  # lazy and optional: 0.1 s, and it may start a helper of the desktop
        import keyring.errors
    except ImportError:
        return "the package keyring is not installed (pip install 'k3agent[keyring]')"
    try:
        keyring.set_password(SERVICE, provider, key)
        # Some keyrings take everything and keep nothing.
        is_kept = keyring.get_password(SERVICE, provider) == key
    except keyring.errors.KeyringError as error:
        return f"no system keyring can be used ({_first_line(error)})"
    return "" if is_kept else "the system keyring did not keep it"


def _from_keyring(provider: str, home: Path) -> str:
    try:
        import keyring  # lazy: as above
        import keyring.errors
    except ImportError as error:
        raise ConfigError(
            f"the key of {provider} is in the system keyring, and the package keyring is not installed: run"
            f" pip install 'k3agent[keyring]', or k3agent logout {provider} and k3agent login {provider}"
        ) from error
    try:
        return keyring.get_password(SERVICE, provider) or ""
    except keyring.errors.KeyringError as error:
        raise ConfigError(
            f"the key of {provider} cannot be read from the system keyring: {_first_line(error)}; unlock it,"
            f" or run k3agent login {provider} --file (see {home / _FILE})"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _load(home: Path) -> dict[str, dict[str, Any]]:
    path = home / _FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}; make it readable, or name another folder in"
            " K3AGENT_HOME"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path} cannot be read: {error}. Delete it, then log in again.") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds no keys. Delete it, then log in again.")
    return {str(name): entry for name, entry in data.items() if isinstance(entry, dict)}


def _save(home: Path, entries: Mapping[str, Any]) -> None:
    """Complete or not at all, and never readable for others, not even for a moment."""
    path = home / _FILE
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_text(path, json.dumps(entries, indent=1), mode=0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}; check the folder") from error
