"""Which sandbox works here: each is tried once with a real command, the best that passes is taken."""

from __future__ import annotations

import functools
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from k3agent.tools.sandbox import landlock, rules
from k3agent.tools.sandbox.base import Sandbox
from k3agent.tools.sandbox.bubblewrap import Bubblewrap
from k3agent.tools.sandbox.none import NoSandbox
from k3agent.tools.sandbox.policy import Bounds
from k3agent.tools.sandbox.seccomp import MACHINES

PROBE_S = 20
# What is outside may well be writable in a private /tmp: it counts whether it has come through.
SCRIPT = '(echo b > "$2/outside") 2>/dev/null; echo a > "$1/inside"'
INSTALL = "apt-get install bubblewrap"


def choose(bounds: Bounds, *, has_network: bool, path: str | None = None) -> Sandbox:
    """The best sandbox that works, or NoSandbox that says why there is none."""
    program = shutil.which("bwrap", path=path) or ""
    kind, reason = _probe(program, has_network)
    if kind == "bubblewrap":
        return Bubblewrap(bounds, has_network=has_network, program=program)
    if kind:
        has_namespaces = kind == "namespaces"
        abi = rules.abi_version()
        return landlock.Landlock(bounds, has_network=has_network, abi=abi, has_namespaces=has_namespaces)
    return NoSandbox(reason, bounds.limits)


@functools.cache
def _probe(program: str, has_network: bool) -> tuple[str, str]:
    """(what works, why nothing better does)."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        return "", f"none for {sys.platform} on {platform.machine()}"
    bounds = Bounds(home=Path.home())
    if program and works(Bubblewrap(bounds, has_network=has_network, program=program)):
        return "bubblewrap", ""
    wrong = "bwrap does not work here" if program else "bwrap is not installed"
    abi = rules.abi_version()
    if abi < rules.LEAST_ABI:
        return "", f"{wrong}, and Landlock is {f'version {abi}, too old' if abi else 'not in this kernel'}"
    for has_namespaces in (True, False):
        sandbox = landlock.Landlock(bounds, has_network=has_network, abi=abi, has_namespaces=has_namespaces)
        if works(sandbox):
            return "namespaces" if has_namespaces else "landlock", wrong
    return "", f"{wrong}, and Landlock does not work here"


def works(sandbox: Sandbox) -> bool:
    """Whether a command in `sandbox` can write its workspace and nothing beside it."""
    with tempfile.TemporaryDirectory(prefix="k3agent-probe-") as name:
        folder = Path(name).resolve()
        inside = folder / "workspace"
        inside.mkdir()
        # Something to protect, so that this is tried too.
        (inside / ".envrc").touch()
        argv = sandbox.wrap(["/bin/sh", "-c", SCRIPT, "sh", str(inside), str(folder)], inside, (inside,))
        try:
            done = subprocess.run(
                argv, cwd=inside, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        is_written = (inside / "inside").exists() and not (folder / "outside").exists()
        return done.returncode == 0 and is_written
