"""Logging as JSON lines into the data folder.

Secrets of the environment and what looks like a key are masked in every line. Nothing is written to the
terminal.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from k3agent.safety.environment import secrets_of
from k3agent.safety.masking import TextMasker

_MAX_BYTES = 5 * 1024 * 1024


class JsonLines(logging.Formatter):
    """One object a line: time, level, name, message, and the traceback if there is one."""

    def __init__(self, masker: TextMasker) -> None:
        super().__init__()
        self._masker = masker

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "at": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "name": record.name,
            "pid": record.process,
            "text": self._masker.mask(record.getMessage()),
        }
        if record.exc_info:
            line["traceback"] = self._masker.mask(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


class _File(logging.FileHandler):
    """A log that cannot be written (no room, no descriptor left) stops no work, least of all the handling of
    the error that it was to tell of. One that grows without end is set aside.
    """

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            super().emit(record)
            if self.stream is not None and os.fstat(self.stream.fileno()).st_size > _MAX_BYTES:
                # What it is opened with the next time; others may still write into the old one.
                self.close()
                _begin(Path(self.baseFilename))

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def start_logging(home: Path, environ: Mapping[str, str]) -> None:
    """Send the log of this process to `home/logs/k3agent.log`; a long one is set aside first. A folder that
    cannot be written means no log: that must not stop the work.
    """
    path = home / "logs" / "k3agent.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _begin(path)
        handler: logging.Handler = _File(path, encoding="utf-8", delay=True, errors="backslashreplace")
    except OSError:
        handler = logging.NullHandler()
    handler.setFormatter(JsonLines(TextMasker(secrets_of(environ))))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(environ.get("K3AGENT_LOG_LEVEL", "INFO").upper() if _is_level(environ) else "INFO")
    # The HTTP client tells of every request; the chat client's own line says more.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.WARNING)


def _begin(path: Path) -> None:
    """A file to write to; a long one is set aside. Raises OSError."""
    if path.exists() and path.stat().st_size > _MAX_BYTES:
        path.replace(path.with_suffix(".log.1"))
    # Others may not read it, whatever the umask.
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o600))
    path.chmod(0o600)


def _is_level(environ: Mapping[str, str]) -> bool:
    return environ.get("K3AGENT_LOG_LEVEL", "INFO").upper() in {"DEBUG", "INFO", "WARNING", "ERROR"}
