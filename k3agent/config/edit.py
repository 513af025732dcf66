"""`k3agent config set` and `unset`: one value in one file, the user's comments and order kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from k3agent.config.settings import PROVIDER_SPECS, SPECS, parse_text
from k3agent.errors import ConfigError, did_you_mean
from k3agent.safety.writing import replace_text


def set_value(path: Path, key: str, text: str) -> None:
    """Check `text` as the value of `key` and write it. Raises ConfigError; the file is replaced as a
    whole.
    """
    parts = key.split(".")
    value = parse_text(_item(key), text, key)
    document = _read(path)
    table = document
    for part in parts[:-1]:
        if part not in table:
            table[part] = tomlkit.table(is_super_table=part == "providers")
        table = table[part]  # type: ignore[assignment]
    table[parts[-1]] = list(value) if isinstance(value, tuple) else value
    _write(path, document)


def remove_value(path: Path, key: str) -> bool:
    """Take a key out; whether it was there. A key that is not known can be taken out, too. Raises
    ConfigError.
    """
    document = _read(path)
    table: Any = document
    *groups, name = key.split(".")
    for group in groups:
        table = table.get(group, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict) or name not in table:
        _item(key)
        return False
    del table[name]
    _write(path, document)
    return True


def _item(key: str) -> Any:
    """What is known of the setting."""
    parts = key.split(".")
    item = SPECS.get(key)
    if item is None and len(parts) == 3 and parts[0] == "providers":
        item = PROVIDER_SPECS.get(parts[2])
    if item is None:
        raise ConfigError(f"unknown key {key!r}.{did_you_mean(key, SPECS)} See `k3agent config list`.")
    return item


def _read(path: Path) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
    except (OSError, TOMLKitError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be changed: {error}") from error


def _write(path: Path, document: tomlkit.TOMLDocument) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, tomlkit.dumps(document))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}; check the folder") from error
