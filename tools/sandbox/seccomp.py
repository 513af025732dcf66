"""The system calls that no sandboxed command may make, as a BPF program for seccomp.

A short list of denials: kernel doors that reach past files and network (other processes, kernel code, mounts,
namespaces) and sockets of families that a sandbox does not keep inside.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass
from errno import EACCES, ENOSYS, EPERM

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
NEW_NAMESPACES = 0x7E020000
# Both put text into the input of a terminal.
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
X32 = 0x40000000

LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, FAIL, KILL = 0x7FFF0000, 0x00050000, 0x80000000
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16

# name -> (x86_64, aarch64). Read or change other processes; kernel keys, code and tracing; mounts and other
# roots; files by handle, past their folders; a second way to do input and output that seccomp does not see.
DENIED: dict[str, tuple[int, int]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
}
# These get "no such call", upon which programs take the older way: clone3 hides its flags from a filter.
ABSENT: dict[str, tuple[int, int]] = {
    "clone3": (435, 435),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
CLONE, UNSHARE, SOCKET, IOCTL = (56, 220), (272, 97), (41, 198), (16, 29)


@dataclass(frozen=True, slots=True)
class Machine:
    audit: int
    column: int


MACHINES = {"x86_64": Machine(0xC000003E, 0), "aarch64": Machine(0xC00000B7, 1)}


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _when(number: int, *body: bytes) -> list[bytes]:
    """`body` for one call only; it may load other fields and must leave the call's number loaded."""
    return [_op(JUMP_EQUAL, number, 0, len(body)), *body]


def _argument(index: int, test: int, value: int, error: int) -> list[bytes]:
    """Fail with `error` when the low half of an argument passes `test`; high halves are ignored as the kernel
    does for these flags and families.
    """
    return [
        _op(LOAD, FIRST_ARGUMENT + 8 * index),
        _op(test, value, 0, 1),
        _op(RETURN, FAIL | error),
        _op(LOAD, NUMBER),
    ]


def program(machine: str, families: Collection[int]) -> bytes:
    """The filter for `machine` (a name of MACHINES) that lets sockets be made in `families` only."""
    known = MACHINES[machine]
    code = [
        _op(LOAD, ARCHITECTURE),
        _op(JUMP_EQUAL, known.audit, 1, 0),
        _op(RETURN, KILL),
        _op(LOAD, NUMBER),
    ]
    if machine == "x86_64":
        code += [_op(JUMP_GREATER_EQUAL, X32, 0, 1), _op(RETURN, FAIL | ENOSYS)]
    for table, error in ((DENIED, EPERM), (ABSENT, ENOSYS)):
        for numbers in table.values():
            code += _when(numbers[known.column], _op(RETURN, FAIL | error))
    for numbers in (CLONE, UNSHARE):
        code += _when(numbers[known.column], *_argument(0, JUMP_ANY_BIT, NEW_NAMESPACES, EPERM))
    typing = [row for each in (TIOCSTI, TIOCLINUX) for row in _argument(1, JUMP_EQUAL, each, EPERM)]
    code += _when(IOCTL[known.column], *typing)
    checks = [
        _op(JUMP_EQUAL, family, len(families) - index, 0) for index, family in enumerate(sorted(families))
    ]
    code += _when(
        SOCKET[known.column],
        _op(LOAD, FIRST_ARGUMENT),
        *checks,
        _op(RETURN, FAIL | EACCES),
        _op(RETURN, ALLOW),
    )
    return b"".join([*code, _op(RETURN, ALLOW)])
