"""k3agent on a disk that fails: `python -m k3agent.soak.faulty KIND N run ...`.

From the Nth commit on the kernel itself answers system calls with an error, by a seccomp filter on this
thread: `fsync`: EIO for fsync and fdatasync; `full`: ENOSPC for what SQLite writes (pwrite64). Needs Linux on
x86-64 or ARM.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import runpy
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from k3agent.soak.proof import ProofFailed
from k3agent.store import database
from k3agent.tools.sandbox.launcher import PR_SET_NO_NEW_PRIVS
from k3agent.tools.sandbox.seccomp import ALLOW, FAIL, JUMP_EQUAL, LOAD, MACHINES, NUMBER, RETURN

PR_SET_SECCOMP, MODE_FILTER = 22, 2
# kind -> the error, and the calls that get it by machine
FAULTS: dict[str, tuple[int, dict[str, tuple[int, ...]]]] = {
    "fsync": (errno.EIO, {"x86_64": (74, 75), "aarch64": (82, 83)}),
    "full": (errno.ENOSPC, {"x86_64": (18,), "aarch64": (68,)}),
}


def is_possible() -> bool:
    return sys.platform == "linux" and platform.machine() in MACHINES


def break_disk(kind: str) -> None:
    """From now on, for this thread."""
    error, calls = FAULTS[kind]
    code = [(LOAD, 0, 0, NUMBER)]
    for number in calls[platform.machine()]:
        code += [(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL | error)]
    program = b"".join(struct.pack("HBBI", *step) for step in [*code, (RETURN, 0, 0, ALLOW)])
    buffer = ctypes.create_string_buffer(program, len(program))

    class Header(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    header = Header(len(program) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(header), 0, 0
    ):
        raise ProofFailed(f"no seccomp filter: errno {ctypes.get_errno()}")


def main(argv: Sequence[str]) -> None:
    kind, at = argv[0], int(argv[1])
    whole = database.transaction
    count = 0

    @contextmanager
    def transaction(connection: Any) -> Iterator[Any]:
        nonlocal count
        count += 1
        if count == at:
            break_disk(kind)
        with whole(connection) as db:
            yield db

    # Before the modules of the store take it up by name.
    database.transaction = transaction
    sys.argv = ["k3agent", *argv[2:]]
    runpy.run_module("k3agent.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
