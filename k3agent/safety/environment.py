"""Which variables of an environment are secret: by their name, or by a password in their value."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from k3agent.safety.masking import Known

SECRET_NAME = re.compile(
    r"(?:^|_)(?:[A-Z0-9]*KEY|KEYS|[A-Z0-9]*TOKEN|TOKENS|[A-Z0-9]*SECRETS?|[A-Z0-9]*PASSWORD|PASSWD|PASS|PASSPHRASE"
    r"|PASSCODE|CREDENTIALS?|CREDS|PAT|JWT|COOKIE|DSN|WEBHOOK|SASL?|PWD)(?:_(?!PATH|FILE|DIR|NAME|TYPE)|$)",
    re.IGNORECASE,
)
# The shell's own, whose values are folders.
NO_SECRETS = frozenset(("PWD", "OLDPWD"))


def is_secret_variable(name: str, value: str) -> bool:
    """By its name, or because its value is an address with a password in it."""
    if name.upper() in NO_SECRETS:
        return False
    return SECRET_NAME.search(name) is not None or bool(_url_password(value))


def child_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for commands: without secrets."""
    return {name: value for name, value in environ.items() if not is_secret_variable(name, value)}


def secrets_of(environ: Mapping[str, str]) -> list[Known]:
    """The secret values of an environment. A value that is an existing path is not one
    (`SSL_KEY_FILE=/etc/...`).
    """
    found = []
    for name, value in environ.items():
        password = _url_password(value)
        if password:
            found.append(Known(password, name))
        if is_secret_variable(name, value) and not _is_path(value):
            found.append(Known(value, name))
    return found


def _url_password(value: str) -> str:
    """The password in an address, or ''."""
    if "://" not in value or "@" not in value:
        return ""
    try:
        return unquote(urlsplit(value).password or "")
    except ValueError:
        return ""


def _is_path(value: str) -> bool:
    try:
        return value.startswith("/") and Path(value).exists()
    except OSError:
        return False
