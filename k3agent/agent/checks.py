"""What must hold before "done" counts: commands that k3agent itself runs when the model says that it is
done.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from k3agent.agent.shell_wrappers import WITH_VALUE

TIMEOUT_S = 900.0
MAX_OUTPUT_CHARS = 8000
MAX_OUTPUT_BYTES = 1 << 28
LOOK_EVERY_S = 1.0
# The exit code of a check that had to be ended, as `timeout` gives it.
KILLED = 124
HEAD = "A check of the result failed:"
# What a shell answers where it does not find a program.
NOT_FOUND = 127
REMEDY = "Install it, put its folder on PATH, or name another command in --check or checks.commands."
# Where one of these stands, a program that is missing need not make the whole command fail.
_BRANCHING = re.compile(
    r"[|;\n`]|\$\(|(?<![&>])&(?![&>])|(?:^|\s)[!({]|PATH=|\b(?:if|while|until|for|case|function|alias)\b"
)
# What stands in front of another command, or before `&&`, and brings no program.
_BRINGS_NOTHING = frozenset(
    {
        "cd",
        "export",
        "umask",
        "ulimit",
        "set",
        "test",
        "[",
        "true",
        ":",
        "echo",
        "printf",
        "pwd",
        "ls",
        "mkdir",
    }
    | set(WITH_VALUE)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    command: str
    exit_code: int
    output: str

    @property
    def has_passed(self) -> bool:
        return self.exit_code == 0


async def run_check(
    command: str, cwd: Path, environ: Mapping[str, str], wrap: Callable[[list[str]], list[str]] = list
) -> CheckResult:
    """Run one check until its shell ends, in a process group of its own; output as the model gets it (the end
    counts most). What the check leaves in the background is neither waited for nor kept. `wrap` puts it
    into the sandbox: a check runs what the model wrote.
    """
    # A file and no pipe: a child that stays behind would keep a pipe open, and the check would not end.
    with tempfile.TemporaryFile() as output:
        process = await asyncio.create_subprocess_exec(
            *wrap(["/bin/sh", "-c", command]),
            cwd=cwd,
            env=dict(environ),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            problem = await _wait(process, output.fileno())
        finally:
            # Nothing of it may outlive the session.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        size = os.fstat(output.fileno()).st_size
        output.seek(max(0, size - 4 * MAX_OUTPUT_CHARS))
        text = output.read(4 * MAX_OUTPUT_CHARS).decode("utf-8", "replace").rstrip()
    unread = max(0, size - 4 * MAX_OUTPUT_CHARS)
    if len(text) > MAX_OUTPUT_CHARS:
        # Of what was not read only the bytes are known.
        cut = len(text) - MAX_OUTPUT_CHARS + unread
        text = f"[... {cut} characters cut]\n{text[-MAX_OUTPUT_CHARS:]}"
    if problem:
        text = f"{text}\n[{problem}]".lstrip()
    exit_code = process.returncode if process.returncode is not None else -1
    return CheckResult(command=command, exit_code=KILLED if problem else exit_code, output=text)


async def _wait(process: asyncio.subprocess.Process, output: int) -> str:
    """Wait for the shell. Returns '' when it has ended, else why it must be ended."""
    end = time.monotonic() + TIMEOUT_S
    while True:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), LOOK_EVERY_S)
            return ""
        if time.monotonic() >= end:
            return f"timed out after {TIMEOUT_S:.0f} s; killed"
        if os.fstat(output).st_size > MAX_OUTPUT_BYTES:
            return f"more than {MAX_OUTPUT_BYTES >> 20} MB of output; killed"


def missing_program(command: str, environ: Mapping[str, str]) -> str:
    """The name of a program without which the check cannot pass, and that is nowhere on PATH; "" where there
    is none, or the command does not show it. What is named by a path the work itself may bring, and what
    stands behind another program that one: `. .venv/bin/activate && pytest`.
    """
    from k3agent.agent.shell_syntax import parse  # lazy: 30 ms, the grammar

    parsed = parse(command)
    if parsed.problem or _BRANCHING.search(command):
        return ""
    programs = [simple for simple in parsed.commands if simple.program not in _BRINGS_NOTHING]
    # Those that others run stand last, wherever they are in the text.
    if not programs or (len(programs) > 1 and any(simple.is_passed for simple in programs)):
        return ""
    name = programs[0].words[0] if programs[0].words else None
    return name if name and "/" not in name and not _is_known(name, environ) else ""


def _is_known(name: str, environ: Mapping[str, str]) -> bool:
    """Whether the shell that runs checks finds a program, or has one of its own by that name."""
    if shutil.which(name, path=environ.get("PATH") or os.defpath) is not None:
        return True
    asked = ["/bin/sh", "-c", 'command -v "$1"', "sh", name]
    return subprocess.run(asked, env=dict(environ), capture_output=True, check=False).returncode == 0


def can_come(environ: Mapping[str, str], sandbox: str, writable: Sequence[Path]) -> bool:
    """Whether the work itself may bring a program that is missing: nothing guards its commands (the name of
    the `sandbox` says so), or a folder on PATH lies where they may write. `writable`: the workspace first.
    """
    if sandbox == "none":
        return True
    tops = [os.path.realpath(top) for top in writable]
    path = environ.get("PATH") or os.defpath
    folders = [os.path.realpath(writable[0] / folder) for folder in path.split(os.pathsep)]
    return any(Path(folder).is_relative_to(top) for folder in folders for top in tops)


def missing_text(command: str, name: str) -> str:
    """What is wrong with such a check, and the remedy."""
    return f"the check `{command}` cannot run: there is no program {name} on PATH. {REMEDY}"


def named(failed: Sequence[CheckResult]) -> str:
    """In a few words, for people."""
    return f"failing checks: {', '.join(f'`{check.command}`' for check in failed)}"


def failure_text(failed: list[CheckResult]) -> str:
    """The message that sends failing checks back to the model."""
    parts = [HEAD]
    for check in failed:
        parts.append(f"$ {check.command}\n{check.output}\n[exit code {check.exit_code}]")
    parts.append("Fix the cause, then report.")
    return "\n\n".join(parts)
