"""A session as a file. The command line does it: front ends do not import each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from k3agent.errors import ConfigError, StoreError
from k3agent.tui.start import UiOptions

FORMATS = {".md": "md", ".html": "html", ".htm": "html", ".json": "json"}
LIMIT_S = 60


def run_cli(options: UiOptions, *argv: str) -> tuple[int, str]:
    """A command of k3agent in a process of its own: exit code and what it prints. Blocks."""
    program = "import sys; from k3agent.cli import main; sys.exit(main())"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program, *argv],
            cwd=options.cwd, env=dict(options.environ), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 1, f"k3agent {' '.join(argv)} did not end within {LIMIT_S} s"
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


def export_to(options: UiOptions, session_id: str, name: str) -> Path:
    """Write the session to `name` (relative to the workspace); the kind follows from its ending."""
    path = Path(name or f"session-{session_id[:8]}.md").expanduser()
    path = path if path.is_absolute() else options.cwd / path
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(f"{path.name}: the ending must be one of {', '.join(FORMATS)}")
    if path.exists():
        raise ConfigError(f"{path} exists already; choose another name")
    code, said = run_cli(options, "sessions", "export", session_id, "--format", kind, "-o", str(path))
    if code:
        raise StoreError(said.strip() or f"the export ended with {code}")
    return path
