"""What must hold before "done" counts: commands that k3agent itself runs when the model says that it is
done.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 900.0
MAX_OUTPUT_CHARS = 8000
HEAD = "A check of the result failed:"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    command: str
    exit_code: int
    output: str

    @property
    def has_passed(self) -> bool:
        return self.exit_code == 0


async def run_check(command: str, cwd: Path, environ: Mapping[str, str]) -> CheckResult:
    """Run one check to its end, in a process group of its own; output as the model gets it (the end counts
    most).
    """
    process = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        command,
        cwd=cwd,
        env=dict(environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            data, _ = await process.communicate()
        exit_code = process.returncode if process.returncode is not None else -1
    except TimeoutError:
        data, exit_code = f"timed out after {TIMEOUT_S:.0f} s".encode(), 124
    finally:
        # Also what the check left in the background: nothing of it may outlive the session.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    text = data.decode("utf-8", "replace").rstrip()
    if len(text) > MAX_OUTPUT_CHARS:
        cut = len(text) - MAX_OUTPUT_CHARS
        text = f"[... {cut} characters cut]\n{text[-MAX_OUTPUT_CHARS:]}"
    return CheckResult(command=command, exit_code=exit_code, output=text)


def failure_text(failed: list[CheckResult]) -> str:
    """The message that sends failing checks back to the model."""
    parts = [HEAD]
    for check in failed:
        parts.append(f"$ {check.command}\n{check.output}\n[exit code {check.exit_code}]")
    parts.append("Fix the cause, then report.")
    return "\n\n".join(parts)
