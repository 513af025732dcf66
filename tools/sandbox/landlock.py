"""Landlock with seccomp, where bubblewrap is missing; with namespaces of its own where the kernel lets it.

Without namespaces Landlock can only add rights below a folder, never take some away again: protected paths
inside the workspace are then not guarded, and the status says so.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from k3agent.tools.sandbox import seccomp
from k3agent.tools.sandbox.bubblewrap import needs_binding
from k3agent.tools.sandbox.guarded import INET, Guarded, gpu_devices
from k3agent.tools.sandbox.policy import Bounds, Policy
from k3agent.tools.sandbox.rules import CHANGE, READ_FILE, ruleset

PLAIN_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


class Landlock(Guarded):
    name = "landlock"

    def __init__(self, bounds: Bounds, *, has_network: bool, abi: int, has_namespaces: bool) -> None:
        super().__init__(bounds, has_network=has_network)
        self.abi, self.has_namespaces = abi, has_namespaces
        self.can_name_hosts = has_namespaces
        network = self.network
        self.status = (
            f"landlock {abi} with seccomp: commands write the workspace and {self.own_tmp}, {network}"
        )
        if not has_namespaces:
            self.status = (
                f"landlock {abi} with seccomp, but no namespaces: commands write the workspace and $TMPDIR"
                f" only, {network}; git hooks, CI and other protected files in the workspace are not guarded"
            )

    @property
    def scratch(self) -> tuple[Path, ...]:
        return super().scratch if self.has_namespaces else (self.temporary,)

    def wrapped(self, argv: Sequence[str], cwd: Path, policy: Policy) -> list[str]:
        if self.has_namespaces:
            return self._launch(
                argv,
                temporary="/tmp",
                families=(seccomp.AF_UNIX, *INET),
                limits={"RLIMIT_NPROC": self.limits.processes},
                namespaces=self._namespaces(policy),
                landlock=ruleset(self.abi, [(path, CHANGE) for path in (Path("/tmp"), *policy.writable)]),
            )
        paths = [(path, CHANGE | READ_FILE) for path in (*policy.writable, self.temporary)]
        paths += [(path, READ_FILE) for path in policy.readable]
        # Disks and terminals of others are devices too.
        paths += [(path, READ_FILE) for path in readable_around((*policy.hidden, Path("/dev")))]
        # Sockets of other programs (Docker, agents of keys) could be connected to, so none can be made.
        return self._launch(
            argv,
            temporary=str(self.temporary),
            families=INET if self.has_network else (),
            limits={},
            landlock=ruleset(
                self.abi, paths, READ_FILE, is_net_off=not self.has_network, has_own_devices=False
            ),
        )

    def _namespaces(self, policy: Policy) -> dict[str, Any]:
        readonly = [path for path in policy.readable if needs_binding(path, policy)]
        bound = sorted((*readonly, *policy.writable), key=lambda path: len(path.parts))
        return {
            "network": self.has_network,
            "temporary": str(self.temporary),
            "shared_memory": self.limits.memory,
            "devices": [f"/dev/{name}" for name in PLAIN_DEVICES] + gpu_devices(),
            "hidden": [str(path) for path in policy.hidden],
            "bound": [str(path) for path in bound],
            "readonly": [str(path) for path in readonly],
            "pinned": [str(path) for path in policy.pinned],
            "protected": [str(path) for path in policy.protected],
        }


def readable_around(hidden: Sequence[Path]) -> list[Path]:
    """Paths that together hold everything there is but `hidden`: siblings on the way to each hidden one."""
    on_the_way = {folder for path in hidden for folder in path.parents}
    found: list[Path] = []
    waiting = [Path("/")]
    while waiting:
        path = waiting.pop()
        if path in hidden:
            continue
        if path not in on_the_way:
            found.append(path)
            continue
        try:
            with os.scandir(path) as entries:
                waiting += [Path(entry.path) for entry in entries if not entry.is_symlink()]
        except OSError:
            continue
    return found
