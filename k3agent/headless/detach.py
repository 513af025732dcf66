"""`k3agent run --detach`: the same run in a process of its own, which no terminal ends.

Its output lies in files; `k3agent resume ID` watches it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

# A wrong setting, key or folder shows within this time; then it is told here and not in a file.
LOOK_S = 3.0


def detach(argv: Sequence[str], *, home: Path, environ: Mapping[str, str], session_id: str | None) -> int:
    """Start it; its exit code if it ends at once, else 0. `argv` is the command line of `run` as given.
    `session_id`: what it will have, None where a new one is to be made.
    """
    words = [word for word in argv if word != "--detach"]
    found = session_id or str(uuid.uuid4())
    if session_id is None:
        words = ["--session-id", found, *words]
    folder = home / "outputs" / found
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    answer, progress = _new_files(folder)
    process = _start(words, environ, answer, progress)
    end = time.monotonic() + LOOK_S
    while process.poll() is None and time.monotonic() < end and not _has_begun(progress):
        time.sleep(0.05)
    if process.poll():
        sys.stderr.write(progress.read_text(encoding="utf-8", errors="replace"))
        return process.returncode
    print(found)
    is_waiting = _is_waiting(progress)
    print(
        f"It {'waits' if is_waiting else 'runs'} in the background as process {process.pid}.\n"
        f"  watch it, say something into it, interrupt it:  k3agent resume {found}\n"
        f"  {'cancel it' if is_waiting else 'interrupt it'}:  k3agent sessions stop {found}\n"
        f"  its answer:    {answer}\n"
        f"  its progress:  {progress}",
        file=sys.stderr,
    )
    return 0


def _new_files(folder: Path) -> tuple[Path, Path]:
    """For answer and progress. Those of an earlier run of the session stay: it may be writing into them."""
    for number in itertools.count(1):
        name = "run" if number == 1 else f"run-{number}"
        answer, progress = folder / f"{name}.out", folder / f"{name}.log"
        with contextlib.suppress(FileExistsError):
            answer.touch(mode=0o600, exist_ok=False)
            return answer, progress
    raise AssertionError


def _start(
    words: Sequence[str], environ: Mapping[str, str], answer: Path, progress: Path
) -> subprocess.Popen[bytes]:
    def opened(path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    out, err = opened(answer), opened(progress)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "k3agent", "run", *words],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    finally:
        os.close(out)
        os.close(err)


def _has_begun(progress: Path) -> bool:
    """The line about the sandbox is the last before the first model call."""
    return "\nsandbox: " in progress.read_text(encoding="utf-8", errors="replace") or _is_waiting(progress)


def _is_waiting(progress: Path) -> bool:
    """`--at`: it has been told until when it waits, and no more."""
    text = progress.read_text(encoding="utf-8", errors="replace")
    return text.startswith("waiting until ") or "\nwaiting until " in text
