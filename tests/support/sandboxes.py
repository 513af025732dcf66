"""Makes a sandbox of a certain kind, or skips the test where its kind is missing.

`BWRAP` names a bwrap that is not on PATH.
"""

from __future__ import annotations

import os
import shutil

import pytest

from k3agent.tools.sandbox import landlock, rules
from k3agent.tools.sandbox.bubblewrap import Bubblewrap
from k3agent.tools.sandbox.policy import Bounds

Real = Bubblewrap | landlock.Landlock
BACKENDS = ("bubblewrap", "namespaces", "landlock")


def make(backend: str, bounds: Bounds, *, has_network: bool = False) -> Real:
    if backend == "bubblewrap":
        program = os.environ.get("BWRAP") or shutil.which("bwrap") or "bwrap"
        return Bubblewrap(bounds, has_network=has_network, program=program)
    abi = rules.abi_version()
    if abi < rules.LEAST_ABI:
        pytest.skip(f"Landlock {abi} is too old in this kernel, or missing")
    return landlock.Landlock(bounds, has_network=has_network, abi=abi, has_namespaces=backend == "namespaces")
