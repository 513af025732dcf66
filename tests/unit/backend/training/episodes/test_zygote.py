"""Programs that never end are stopped, by the clock and by what they print; the zygote ends without noise."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3agent.backend.training.episodes import zygote

LOUD = "while True:\n    print('x' * 1000)"
DRIP = "import time\nwhile True:\n    print('x', flush=True)\n    time.sleep(0.05)"
LEAVE_EARLY = """
import os
from k3agent.backend.training.episodes.zygote import Zygote, _send
box = Zygote()
_send(box._ask, ("/", ["-c", "import time; time.sleep(0.3); print(1)"]))
box.close()
"""


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Iterator[zygote.Zygote]:
    monkeypatch.setattr(zygote, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(zygote, "MAX_OUTPUT_BYTES", 200_000)
    started = zygote.Zygote()
    yield started
    started.close()


@pytest.mark.parametrize(("code", "at_least"), [(LOUD, 200_000), (DRIP, 2), ("while True: pass", 0)])
def test_endless_programs_are_stopped(box: zygote.Zygote, tmp_path: Path, code: str, at_least: int) -> None:
    output, status = box.run(str(tmp_path), ["-c", code])
    assert status == zygote.STOPPED_CODE
    assert at_least <= len(output) < 200_000 + 65536
    assert box.run(str(tmp_path), ["-c", "print(1)"]) == ("1\n", 0)


def test_a_loop_without_end_is_stopped_by_what_it_computes(
    box: zygote.Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote, "TIMEOUT_S", 60)
    patient = zygote.Zygote()
    begin = time.monotonic()
    output, status = patient.run(str(tmp_path), ["-c", "print('before', flush=True)\nwhile True: pass"])
    assert (output, status) == ("before\n", zygote.STOPPED_CODE)
    assert time.monotonic() - begin < 50
    # The elder ends though the younger was started while it ran.
    box.run(str(tmp_path), ["-c", "pass"])
    box.close()
    box.close = lambda: None  # type: ignore[method-assign]
    assert patient.run(str(tmp_path), ["-c", "print(1)"]) == ("1\n", 0)
    patient.close()


def test_parent_that_leaves_early_causes_no_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", LEAVE_EARLY],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
