"""What the command line says of an error that ended a command, and the exit code that goes with it."""

from __future__ import annotations

import logging
import sys
import traceback
from pathlib import Path

from k3agent.errors import K3AgentError
from k3agent.headless.exitcodes import ExitCode, code_of_error
from k3agent.headless.inputs import UsageError


def tell(error: Exception) -> int:
    """An expected error in one line; anything else with its place in the log."""
    if isinstance(error, K3AgentError):
        print(f"k3agent: {error}", file=sys.stderr)
        return int(ExitCode.USAGE if isinstance(error, UsageError) else code_of_error(error))
    if isinstance(error, OSError):
        print(f"k3agent: {_os_error_text(error)}", file=sys.stderr)
        return int(ExitCode.ERROR)
    logging.getLogger("k3agent.cli").exception("k3agent crashed")
    place = traceback.extract_tb(error.__traceback__)[-1]
    print(
        f"k3agent crashed: {type(error).__name__}: {error} ({place.filename}:{place.lineno}). "
        "The whole story is in the log: see k3agent config path.",
        file=sys.stderr,
    )
    return int(ExitCode.ERROR)


def _os_error_text(error: OSError) -> str:
    try:
        Path.cwd()
    except FileNotFoundError:
        return "the folder it was started in is not there any more; cd into another one."
    return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
