"""The file by which a server tells other processes of the same user how to reach it."""

import contextlib
import json
import os
from pathlib import Path


def write(path: Path, url: str, *, model: str, version: str, token: str | None) -> None:
    """Complete or not there at all, and the user's alone: it can hold a key."""
    content = {
        "url": url,
        "base_url": f"{url}/v1",
        "pid": os.getpid(),
        "model": model,
        "version": version,
        "token": token,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file)
    draft.replace(path)


def remove(path: Path) -> None:
    """Remove the file unless another server has written its own meanwhile."""
    with contextlib.suppress(OSError, ValueError):
        if json.loads(path.read_text("utf-8")).get("pid") == os.getpid():
            path.unlink()
