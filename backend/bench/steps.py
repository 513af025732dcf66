"""Steps of a measurement: each a process of its own with a time limit, so that none takes others with it."""

import contextlib
import os
import signal
import subprocess


def status_of(process: "subprocess.Popen[bytes]", seconds: float) -> int:
    """Its exit status once it is over; 124 where it is ended after so many seconds. It leads a session of its
    own, and what it leaves behind is ended with it.
    """
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return 124
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
