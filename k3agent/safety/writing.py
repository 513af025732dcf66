"""Files of the user's own, written complete or not at all, and never open to others meanwhile."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path


def replace_text(path: Path, text: str, *, mode: int | None = None) -> None:
    """Put `text` in place of the file. A link stays one: what it leads to is replaced. `mode` None: as it
    was, for a new file the owner's alone. Raises OSError; then the old file is still there.
    """
    real = path.resolve()
    if mode is None:
        mode = stat.S_IMODE(real.stat().st_mode) if real.exists() else 0o600
    draft = real.with_name(f"{real.name}.{os.getpid()}-{secrets.token_hex(3)}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(fd, mode)
        draft.replace(real)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
