"""The rules of Landlock: which paths may be changed or read, as the launcher hands them to the kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from k3agent.tools.sandbox.guarded import gpu_devices

CREATE_RULESET, ASK_VERSION = 444, 1
# Below 3 a file anywhere could be cut to nothing (truncate).
LEAST_ABI = 3
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (
    1 << bit for bit in range(4, 13)
)
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
CONNECT_TCP_AND_BIND_TCP = 3
ABSTRACT_SOCKETS_AND_SIGNALS = 3
REMOVE = REMOVE_DIR | REMOVE_FILE
MAKE = MAKE_DIR | MAKE_REG | MAKE_SOCK | MAKE_FIFO | MAKE_SYM
CHANGE = WRITE_FILE | TRUNCATE | REMOVE | MAKE | REFER
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "shm")
# Only where they are not those of the user, whose terminals could be read and written.
TERMINALS = ("ptmx", "pts")


def abi_version() -> int:
    """The version of Landlock in this kernel; 0 where it is missing or switched off."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(ASK_VERSION))))


def ruleset(
    abi: int,
    paths: Sequence[tuple[Path, int]],
    reads: int = 0,
    *,
    is_net_off: bool = False,
    has_own_devices: bool = True,
) -> dict[str, Any]:
    """What the launcher hands to the kernel. `paths` with their rights; `reads`: rights of reading that are
    taken from all other paths too.
    """
    files = CHANGE | MAKE_CHAR | MAKE_BLOCK | reads
    files |= IOCTL_DEV if abi >= 5 else 0
    names = (*DEVICES, *(TERMINALS if has_own_devices else ()))
    devices = [f"/dev/{name}" for name in names] + gpu_devices()
    own = [(path, CHANGE | IOCTL_DEV | reads) for path in devices]
    return {
        "files": files,
        "tcp": CONNECT_TCP_AND_BIND_TCP if is_net_off and abi >= 4 else 0,
        "scoped": ABSTRACT_SOCKETS_AND_SIGNALS if abi >= 6 else 0,
        "size": 24 if abi >= 6 else 16 if abi >= 4 else 8,
        "paths": [*((str(path), rights) for path, rights in paths), *own],
    }
