"""How much memory code of episodes may take: a wrong line can ask for more than the machine has."""

import contextlib
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

MORE_BYTES = 2 << 30
"""What code of an episode may take beyond what its process has already."""
_lock = threading.Lock()
_before: list[tuple[int, int]] = []
"""The limits before the first that is inside, once for each that is: threads have one limit between them."""


def room() -> tuple[int, int]:
    """The limits of the address space with which this process may take `MORE_BYTES` more; lower ones that
    are there stay.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[0]
    except OSError:
        return soft, hard  # no system that tells what a process has
    wanted = int(pages) * resource.getpagesize() + MORE_BYTES
    return min([wanted, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]), hard


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Code that runs inside gets a MemoryError where it would take more."""
    with _lock:
        _before.append(_before[0] if _before else resource.getrlimit(resource.RLIMIT_AS))
        resource.setrlimit(resource.RLIMIT_AS, room())
    try:
        yield
    finally:
        with _lock:
            limits = _before.pop()
            if not _before:
                resource.setrlimit(resource.RLIMIT_AS, limits)
