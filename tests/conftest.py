"""Settings for all tests; `tests/` is on the import path, so helpers are imported as `support.<name>`.

Property tests run without a deadline, since a shared machine is at times slow. Under CI their examples are
the same in each run, so that a red run tells of the change and not of the dice.
"""

import os
import resource
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

QUIET = (HealthCheck.too_slow,)
settings.register_profile("local", deadline=None, max_examples=50, suppress_health_check=QUIET)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.register_profile("thorough", settings.get_profile("local"), max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "local"))

# A signal that is ignored here, as under nohup or in a shell's background, would be ignored by every program
# that the tests start.
for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# No program that a test starts may fill the disk: what writes more into one file than this is ended.
MAX_FILE_BYTES = 4 << 30
resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.fixture(autouse=True)
def _denormals_as_ever() -> Iterator[None]:
    """Loading a model makes this process flush denormals to zero, which property tests of floats notice."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
