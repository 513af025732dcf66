"""Where a running session can be heard: a socket that only this user reaches. Costs no asyncio."""

from __future__ import annotations

import hashlib
import os
import socket
import stat
import struct
import tempfile
from pathlib import Path

# A path of a Unix socket has at most 107 bytes on Linux, 103 elsewhere.
MAX_PATH_BYTES = 100


def socket_path(home: Path, session_id: str) -> Path:
    """Where the session can be heard. A data folder with a long path has its sockets in the temporary one."""
    path = home / "live" / f"{session_id}.sock"
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        return path
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:24]
    return Path(tempfile.gettempdir()) / f"k3agent-{os.getuid()}" / f"{name}.sock"


def is_private(folder: Path) -> bool:
    """Whether nobody else can put a socket there."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end; this one where the system does not tell (the folder is private anyway)."""
    if not hasattr(socket, "SO_PEERCRED"):
        return os.getuid()
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", found)[1])


def is_heard(home: Path, session_id: str) -> bool:
    """Whether a process runs the session and lets it be watched."""
    path = socket_path(home, session_id)
    if not path.exists() or not is_private(path.parent):
        return False
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(0.5)
        return connection.connect_ex(os.fspath(path)) == 0
