"""Programs that never end are stopped, by the clock and by what they print; the zygote ends without noise."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3agent.backend.training.episodes import memory, zygote

LOUD = "while True:\n    print('x' * 1000)"
DRIP = "import time\nwhile True:\n    print('x', flush=True)\n    time.sleep(0.05)"
LEAVE_EARLY = """
import os
from k3agent.backend.training.episodes.zygote import Zygote, _send
box = Zygote()
_send(box._ask, ("/", ["-c", "import time; time.sleep(0.3); print(1)"]))
box.close()
"""
STUBBORN = "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass"
LIMITED = """
import resource
from k3agent.backend.training.episodes import zygote
zygote.CPU_S = 30
resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
box = zygote.Zygote()
print(box.run("/", ["-c", "import resource; print(resource.getrlimit(resource.RLIMIT_CPU))"]))
box.close()
"""
STRANGE = """
from k3agent.backend.training.episodes.zygote import Zygote
Zygote._handles.add(9999)
try:
    box = Zygote()
except OSError:
    pass
else:
    print("made", flush=True)
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


def test_a_program_cannot_take_all_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MORE_BYTES", 64 << 20)
    limited = zygote.Zygote()
    code = "print(len(bytearray({} << 20)))"
    assert limited.run(str(tmp_path), ["-c", code.format(8)]) == (f"{8 << 20}\n", 0)
    output, status = limited.run(str(tmp_path), ["-c", code.format(128)])
    assert status == 1 and output.endswith("MemoryError\n")
    limited.close()


@pytest.mark.parametrize(
    ("code", "wanted"),
    [(STUBBORN, zygote.STOPPED_CODE), ("import os\nos.kill(os.getpid(), 9)", -signal.SIGKILL)],
)
def test_who_is_killed_for_what_it_computes_is_told_from_who_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, wanted: int
) -> None:
    monkeypatch.setattr(zygote, "TIMEOUT_S", 60)
    monkeypatch.setattr(zygote, "CPU_S", 1)
    patient = zygote.Zygote()
    assert patient.run(str(tmp_path), ["-c", code]) == ("", wanted)
    patient.close()


def test_a_lower_limit_of_the_system_stays(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", LIMITED],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("('(20, 20)\\n', 0)\n", "")


def test_a_slow_machine_may_compute_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [zygote.LOOP_S * factor for factor in (0.2, 1, 1.6, 3, 100)]
    assert [zygote.cpu_seconds(time) for time in times] == [2, 2, 4, 6, zygote.TIMEOUT_S]
    monkeypatch.setattr(zygote, "TIMEOUT_S", 0.5)
    assert zygote.cpu_seconds(times[-1]) == 2


def test_a_zygote_that_cannot_close_its_handles_ends(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", STRANGE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "made\n" and "Bad file descriptor" in done.stderr


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
