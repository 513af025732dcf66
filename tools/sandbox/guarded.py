"""What both real sandboxes share: the policy of a command, its private temporary folder, the launcher."""

from __future__ import annotations

import base64
import json
import platform
import shutil
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from k3agent.tools.sandbox import seccomp
from k3agent.tools.sandbox.explaining import explain
from k3agent.tools.sandbox.later import REFUSED, Watch
from k3agent.tools.sandbox.policy import Bounds, Policy, git_folders
from k3agent.tools.support.usage import default_limits

LAUNCHER = Path(__file__).with_name("launcher.py")
INET = (seccomp.AF_INET, seccomp.AF_INET6, seccomp.AF_NETLINK)
# A file no longer than this, so that one command cannot fill the disk; programs that need more are rare.
MAX_FILE_BYTES = 16 << 30
MAX_SHOWN = 5
# Caches that programs must be able to write. Not the user's own: what is put there runs later, outside.
CACHES = {
    "GOCACHE": "go-build",
    "CCACHE_DIR": "ccache",
    "UV_CACHE_DIR": "uv",
    "npm_config_cache": "npm",
    "PIP_CACHE_DIR": "pip",
}
GPUS = ("nvidia*", "dri", "kfd")


def gpu_devices() -> list[str]:
    return sorted(str(path) for pattern in GPUS for path in Path("/dev").glob(pattern))


class Guarded:
    """Base of the sandboxes that guard. The private folder lives as long as the object."""

    def __init__(self, bounds: Bounds, *, has_network: bool) -> None:
        own = (Path(sys.prefix), Path(sys.base_prefix), LAUNCHER.parent)
        readable = (*bounds.readable, *own)
        self._bounds = replace(bounds, readable=readable)
        self.limits = bounds.limits or default_limits()
        self.has_network = has_network
        self._git: dict[Path, tuple[Path, ...]] = {}
        self._temporary: Path | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._watches: dict[tuple[Path, ...], Watch] = {}

    def wrap(self, argv: Sequence[str], cwd: Path, writable: Sequence[Path]) -> list[str]:
        # What an earlier command has left since the last look must not pass for the user's own.
        self.settle()
        policy = self.policy(cwd, writable)
        self._watches[policy.writable] = Watch(policy.writable)
        return self.wrapped(argv, cwd, policy)

    def wrapped(self, argv: Sequence[str], cwd: Path, policy: Policy) -> list[str]:
        raise NotImplementedError

    def settle(self, *, is_over: bool = False) -> str:
        """Put out of effect what commands have left to run later; one line for the model if there was any."""
        refused = [path for watch in self._watches.values() for path in watch.settle()]
        if is_over:
            self._watches.clear()
        if not refused:
            return ""
        shown = ", ".join(map(str, refused[:MAX_SHOWN])) + (" ..." if len(refused) > MAX_SHOWN else "")
        return (
            f"[sandbox: {shown} can make programs run outside of the sandbox, so commands may not make or"
            f" change it; renamed to *{REFUSED}. Do not look for a way around; ask the user.]"
        )

    @property
    def temporary(self) -> Path:
        """Stands for /tmp in commands; kept from command to command, removed at the end."""
        if self._temporary is None:
            self._temporary = Path(tempfile.mkdtemp(prefix="k3agent-tmp-"))
            self._finalizer = weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
        return self._temporary

    def close(self) -> None:
        self.settle(is_over=True)
        if self._finalizer is not None:
            self._finalizer()
            self._finalizer = self._temporary = None

    def policy(self, cwd: Path, writable: Sequence[Path]) -> Policy:
        # Looked for once, before a command could write a `.git` file that leads elsewhere.
        for folder in (cwd, *writable):
            if folder not in self._git:
                self._git[folder] = git_folders(folder)
        found = [path for folder in (cwd, *writable) for path in self._git[folder]]
        return self._bounds.policy(writable, tuple(dict.fromkeys(found)))

    def explain(self, output: str, cwd: Path, writable: Sequence[Path]) -> str:
        return explain(output, cwd, self.policy(cwd, writable), has_network=self.has_network)

    def _launch(
        self,
        argv: Sequence[str],
        *,
        temporary: str,
        families: Sequence[int],
        limits: Mapping[str, int],
        namespaces: dict[str, Any] | None = None,
        landlock: dict[str, Any] | None = None,
    ) -> list[str]:
        caches = {name: f"{temporary}/.cache/{folder}" for name, folder in CACHES.items()}
        plan = {
            "environ": {"TMPDIR": temporary, **caches},
            "limits": {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": MAX_FILE_BYTES, **limits},
            "namespaces": namespaces,
            "landlock": landlock,
            "seccomp": base64.b64encode(seccomp.program(platform.machine(), families)).decode("ascii"),
        }
        return [sys.executable, "-I", "-S", str(LAUNCHER), json.dumps(plan), *argv]
