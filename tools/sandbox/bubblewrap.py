"""bubblewrap: own mounts, processes, network and IPC; the file system is read-only but for what is bound."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from k3agent.tools.sandbox import rules, seccomp
from k3agent.tools.sandbox.guarded import INET, Guarded, gpu_devices
from k3agent.tools.sandbox.policy import Bounds, Policy

KERNEL_SETTINGS = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/acpi")


@functools.cache
def has_sizes(program: str) -> bool:
    """Whether this bwrap can limit a file system in memory; versions before 0.7 cannot."""
    try:
        done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "--size" in done.stdout + done.stderr


class Bubblewrap(Guarded):
    name = "bubblewrap"

    def __init__(self, bounds: Bounds, *, has_network: bool, program: str = "") -> None:
        super().__init__(bounds, has_network=has_network)
        self.program = program or shutil.which("bwrap") or "bwrap"
        self.status = f"bubblewrap: commands write the workspace and {self.own_tmp}, {self.network}"

    def wrapped(self, argv: Sequence[str], cwd: Path, policy: Policy) -> list[str]:
        inner = self._launch(
            argv,
            temporary="/tmp",
            families=(seccomp.AF_UNIX, *INET),
            limits={"RLIMIT_NPROC": self.limits.processes} if not self.has_network else {},
            kept=(*policy.pinned, *policy.protected),
            landlock=self._second_wall(policy),
        )
        return [*self._options(policy, cwd), "--", *inner]

    def _second_wall(self, policy: Policy) -> dict[str, Any] | None:
        """Landlock inside, where the kernel has it: it also holds what lies on mounts that bwrap leaves
        writable for root, such as files of /proc, and sockets without a path where the network is on.
        """
        abi = rules.abi_version()
        if abi < rules.LEAST_ABI:
            return None
        paths = [Path("/tmp"), *policy.writable]
        return rules.ruleset(abi, [(path, rules.CHANGE) for path in paths])

    def _options(self, policy: Policy, cwd: Path) -> list[str]:
        options = [self.program, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        options += [] if self.has_network else ["--unshare-net"]
        options += ["--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        if has_sizes(self.program):
            options += ["--size", str(self.limits.memory), "--tmpfs", "/dev/shm"]
        # Root may write settings of the kernel even without capabilities.
        for path in KERNEL_SETTINGS:
            options += ["--ro-bind", path, path] if Path(path).exists() else []
        for device in gpu_devices():
            options += ["--dev-bind", device, device]
        for path in policy.hidden:
            options += ["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]
        options += ["--bind", str(self.temporary), "/tmp"]
        # Shallow ones first, so that none covers another.
        bound = [(path, "--ro-bind") for path in policy.readable if needs_binding(path, policy)]
        bound += [(path, "--bind") for path in policy.writable]
        for path, kind in sorted(bound, key=lambda row: len(row[0].parts)):
            options += [kind, str(path), str(path)]
            options += self._hidden_again(path, policy)
        for path in policy.pinned:
            options += ["--bind", str(path), str(path)]
        for path in policy.protected:
            options += ["--ro-bind", str(path), str(path)]
        return [*options, "--chdir", str(cwd)]

    def _hidden_again(self, bound: Path, policy: Policy) -> list[str]:
        """What is hidden below a folder that was bound from outside has come back with it."""
        options: list[str] = []
        for path in policy.hidden:
            if bound in path.parents:
                options += ["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]
        return options


def needs_binding(path: Path, policy: Policy) -> bool:
    """Whether a readable folder would be out of sight: below /tmp or below something hidden."""
    return Path("/tmp") in path.parents or any(folder in path.parents for folder in policy.hidden)
