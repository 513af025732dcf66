"""What both real sandboxes share: the policy of a command, its private temporary folder, the launcher."""

from __future__ import annotations

import base64
import fcntl
import json
import logging
import os
import platform
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from k3agent.tools.sandbox import seccomp
from k3agent.tools.sandbox.explaining import explain
from k3agent.tools.sandbox.later import REFUSED, Watch
from k3agent.tools.sandbox.policy import Bounds, Policy, git_folders
from k3agent.tools.sandbox.proxy import Proxy
from k3agent.tools.support.usage import command_limits

log = logging.getLogger(__name__)

LAUNCHER = Path(__file__).with_name("launcher.py")
INET = (seccomp.AF_INET, seccomp.AF_INET6, seccomp.AF_NETLINK)
# A file no longer than this, so that one command cannot fill the disk; programs that need more are rare.
MAX_FILE_BYTES = 16 << 30
MAX_SHOWN = 5
PROXY = ".k3agent-proxy"
TEMPORARY = "k3agent-tmp-"
LEFT_S = 3600.0
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


class PrivateFolder:
    """A folder of our own under the system's, held by a lock for as long as this process lives."""

    def __init__(self) -> None:
        remove_left()
        self.path = Path(tempfile.mkdtemp(prefix=TEMPORARY))
        self._held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._held, fcntl.LOCK_SH)
        self._finalizer = weakref.finalize(self, _remove, self.path, self._held)

    def close(self) -> None:
        self._finalizer()


def _remove(path: Path, held: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(held)


def remove_left() -> None:
    """Remove folders of processes that were killed: nobody holds them, and nobody has touched them lately."""
    for folder in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        try:
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            about = os.fstat(held)
            if about.st_uid == os.getuid() and time.time() - about.st_mtime > LEFT_S:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(held)


class Guarded:
    """Base of the sandboxes that guard. The private folder lives as long as the object.

    `can_name_hosts`: commands have a loopback of their own, through which they reach the proxy.
    """

    can_name_hosts = True

    def __init__(self, bounds: Bounds, *, has_network: bool) -> None:
        own = (Path(sys.prefix), Path(sys.base_prefix), LAUNCHER.parent)
        readable = (*bounds.readable, *own)
        # Nothing can be mounted over a link, only over what it leads to.
        kept = dict.fromkeys(path.resolve() for path in (*bounds.own, *own))
        self._bounds = replace(bounds, readable=readable, own=tuple(kept))
        self.limits = bounds.limits or command_limits()
        self.has_network = has_network
        self._git: dict[Path, tuple[Path, ...]] = {}
        self._temporary: PrivateFolder | None = None
        self._proxy: Proxy | None = None
        # About what was found just before a command; told with the next look.
        self._untold = ""
        self._watches: dict[tuple[Path, ...], Watch] = {}

    def wrap(self, argv: Sequence[str], cwd: Path, writable: Sequence[Path]) -> list[str]:
        # What an earlier command has left since the last look must not pass for the user's own.
        self._untold = self.settle()
        policy = self.policy(cwd, writable)
        self._watches[policy.writable] = Watch(policy.writable)
        return self.wrapped(argv, cwd, policy)

    def wrapped(self, argv: Sequence[str], cwd: Path, policy: Policy) -> list[str]:
        raise NotImplementedError

    def settle(self, *, is_over: bool = False) -> str:
        """Put out of effect what commands have left to run later; one line for the model if there was any."""
        refused = [path for watch in self._watches.values() for path in watch.settle(is_over=is_over)]
        if is_over:
            self._watches.clear()
        if not refused:
            told, self._untold = self._untold, ""
            return told
        shown = ", ".join(map(str, refused[:MAX_SHOWN])) + (" ..." if len(refused) > MAX_SHOWN else "")
        return (
            f"[sandbox: {shown} can make programs run outside of the sandbox, so commands may not make or"
            f" change it; renamed to *{REFUSED}. Do not look for a way around; ask the user.]"
        )

    def _proxy_path(self, temporary: str) -> str:
        """Where commands find the proxy to the named hosts, which runs from now on; "" if there is none."""
        if not self.hosts:
            return ""
        if self._proxy is None:
            self._proxy = Proxy(self.hosts, self.temporary / PROXY)
            self._proxy.start()
        return f"{temporary}/{PROXY}"

    @property
    def scratch(self) -> tuple[Path, ...]:
        return (Path("/tmp"),)

    @property
    def hosts(self) -> tuple[str, ...]:
        return () if self.has_network or not self.can_name_hosts else self._bounds.hosts

    @property
    def network(self) -> str:
        """What of the network commands reach, for the status."""
        if self.has_network:
            return "network on"
        if not self._bounds.hosts:
            return "network off"
        if not self.can_name_hosts:
            return "network off: named hosts (network.hosts) need bubblewrap or namespaces"
        return f"network off but for {', '.join(self._bounds.hosts)}"

    @property
    def own_tmp(self) -> str:
        """The private /tmp in the status. A home in the real one holds git's settings, perhaps programs."""
        is_home_there = Path("/tmp") in self._bounds.home.resolve().parents
        hides = ", which hides your home outside the workspace" if is_home_there else ""
        return f"a private /tmp only{hides}"

    @property
    def temporary(self) -> Path:
        """Stands for /tmp in commands; kept from command to command, removed at the end."""
        if self._temporary is None:
            self._temporary = PrivateFolder()
        return self._temporary.path

    def close(self) -> None:
        told = self.settle(is_over=True)
        if told:
            log.warning("%s", told)
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None
        if self._temporary is not None:
            self._temporary.close()
            self._temporary = None

    def policy(self, cwd: Path, writable: Sequence[Path]) -> Policy:
        # Looked for once, before a command could write a `.git` file that leads elsewhere.
        for folder in (cwd, *writable):
            if folder not in self._git:
                self._git[folder] = git_folders(folder)
        found = [path for folder in (cwd, *writable) for path in self._git[folder]]
        return self._bounds.policy(writable, tuple(dict.fromkeys(found)))

    def explain(self, output: str, cwd: Path, writable: Sequence[Path]) -> str:
        refused = self._proxy.take_refused() if self._proxy is not None else []
        if refused:
            named = ", ".join(self._bounds.hosts)
            asked = ", ".join(refused[:MAX_SHOWN])
            return f"[sandbox: no connection to {asked}; commands may reach {named} only. Ask the user.]"
        return explain(output, cwd, self.policy(cwd, writable), has_network=self.has_network)

    def _launch(
        self,
        argv: Sequence[str],
        *,
        temporary: str,
        families: Sequence[int],
        limits: Mapping[str, int],
        kept: Sequence[Path] = (),
        namespaces: dict[str, Any] | None = None,
        landlock: dict[str, Any] | None = None,
    ) -> list[str]:
        caches = {name: f"{temporary}/.cache/{folder}" for name, folder in CACHES.items()}
        plan = {
            # The leak checker of AddressSanitizer traces its own process, and tracing is off.
            "environ": {"TMPDIR": temporary, "LSAN_OPTIONS": "detect_leaks=0", **caches},
            "limits": {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": MAX_FILE_BYTES, **limits},
            "kept": [str(path) for path in kept],
            "namespaces": namespaces,
            "landlock": landlock,
            "proxy": self._proxy_path(temporary),
            "seccomp": base64.b64encode(seccomp.program(platform.machine(), families)).decode("ascii"),
        }
        return [sys.executable, "-I", "-S", str(LAUNCHER), json.dumps(plan), *argv]
