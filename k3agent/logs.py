"""Logging as JSON lines into the data folder.

Values of the environment that look like secrets are masked in every line. Nothing is written to the terminal.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path

_MAX_BYTES = 5 * 1024 * 1024
_SECRET_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_CREDENTIALS")
_MIN_SECRET_LENGTH = 8


class JsonLines(logging.Formatter):
    """One object a line: time, level, name, message, and the traceback if there is one."""

    def __init__(self, secrets: tuple[str, ...]) -> None:
        super().__init__()
        self._secrets = secrets

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "at": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "name": record.name,
            "pid": record.process,
            "text": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        text = json.dumps(line, ensure_ascii=False)
        for secret in self._secrets:
            text = text.replace(secret, "[secret]")
        return text


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Values of variables whose names say that they are secret."""
    return tuple(
        value
        for name, value in environ.items()
        if name.upper().endswith(_SECRET_ENDINGS) and len(value) >= _MIN_SECRET_LENGTH
    )


def start_logging(home: Path, environ: Mapping[str, str]) -> None:
    """Send the log of this process to `home/logs/k3agent.log`; a long one is set aside first. A folder that
    cannot be written means no log: that must not stop the work.
    """
    path = home / "logs" / "k3agent.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.exists() and path.stat().st_size > _MAX_BYTES:
            path.replace(path.with_suffix(".log.1"))
        handler: logging.Handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    except OSError:
        handler = logging.NullHandler()
    handler.setFormatter(JsonLines(secrets_of(environ)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(environ.get("K3AGENT_LOG_LEVEL", "INFO").upper() if _is_level(environ) else "INFO")
    # The HTTP client tells of every request; the chat client's own line says more.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.WARNING)


def _is_level(environ: Mapping[str, str]) -> bool:
    return environ.get("K3AGENT_LOG_LEVEL", "INFO").upper() in {"DEBUG", "INFO", "WARNING", "ERROR"}
