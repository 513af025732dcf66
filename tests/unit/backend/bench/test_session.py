"""Sessions on a lent GPU: one step takes no other with it, and what is known is always in the folder."""

import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from k3agent.backend.bench import gpu, session
from k3agent.backend.bench.session import Session, Step
from k3agent.backend.bench.steps import status_of

PROGRAMS = {
    "kernels": "import pathlib, sys; pathlib.Path(sys.argv[1], 'kernels.md').write_text('| a table |')",
    "fla": "raise RuntimeError('an illegal memory access')",
    "peers": "import time; print('begun', flush=True); time.sleep(600)",
    "tests": "print('3 passed')",
}


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    def command_of(part: str, folder: Path, extra: list[str]) -> list[str]:
        return [sys.executable, "-c", PROGRAMS[part], str(folder), *extra]

    monkeypatch.setattr(session, "command_of", command_of)
    monkeypatch.setattr(session, "GRACE_S", 1.0)
    monkeypatch.setattr(session, "LEAST_S", 0.1)


def run(folder: Path, *steps: Step, limit_s: float = 60.0) -> dict[str, int]:
    out, work = folder / "out", folder / "work"
    out.mkdir()
    work.mkdir()
    session.SESSIONS[9] = steps
    try:
        outcomes = Session([9], [], out, work, limit_s, "cpu", False).run()
    finally:
        del session.SESSIONS[9]
    return {outcome.part: outcome.status for outcome in outcomes}


def test_a_step_that_fails_or_hangs_takes_no_other_with_it(programs: None, tmp_path: Path) -> None:
    begun = time.monotonic()
    steps = (
        Step("fla", "fla"),
        Step("peers", "peers", seconds=2),
        Step("tests", "tests"),
        Step("k", "kernels"),
    )
    assert run(tmp_path, *steps) == {"fla": 1, "peers": 124, "tests": 0, "kernels": 0}
    assert time.monotonic() - begun < 300
    out = tmp_path / "out"
    assert sorted(file.name for file in out.iterdir()) == ["session9.log", "session9.md", "session9.tar.gz"]
    log = (out / "session9.log").read_text()
    assert "an illegal memory access" in log and "begun" in log
    page = (out / "session9.md").read_text()
    assert "peers: status 124" in page and "| a table |" in page and "`3 passed`" in page
    with tarfile.open(out / "session9.tar.gz") as archive:
        archive.extractall(tmp_path / "kept", filter="data")
    assert json.loads((tmp_path / "kept" / "fla.outcome.json").read_text())["status"] == 1
    flags = ["--folder", str(tmp_path / "kept"), "--page", str(tmp_path / "page.md"), "--only-page"]
    assert gpu.main(flags) == 0
    assert "## Kernels of fla" in (tmp_path / "page.md").read_text()


def test_what_a_step_leaves_behind_ends_with_it() -> None:
    child = "import time; print('begun', flush=True); time.sleep(600)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        assert status_of(process, 60) == 0
        # Nobody holds the other end of the pipe any more.
        assert process.stdout.read() == b""


def test_time_is_kept_for_what_comes_later(programs: None, tmp_path: Path) -> None:
    steps = Step("peers", "peers", seconds=50), Step("k", "kernels", seconds=50, kept=50)
    assert run(tmp_path, *steps, limit_s=52.5) == {"peers": 124, "kernels": 0}


def test_nothing_is_begun_without_time(programs: None, tmp_path: Path) -> None:
    assert run(tmp_path, Step("tests", "tests"), limit_s=0.5) == {}


def test_every_step_has_a_command_that_its_program_takes(tmp_path: Path) -> None:
    from k3agent.backend.bench import standin
    from k3agent.backend.kernels import bench, tune

    parsers = {"standin": standin.parser().parse_args, "tune": tune._arguments, "bench": bench._arguments}
    for number, steps in session.SESSIONS.items():
        assert sum(step.kept for step in steps) < 540 - 60
        for step in steps:
            for tiny in (False, True):
                one = Session([number], [], tmp_path, tmp_path, 540, "cpu" if tiny else "cuda", tiny)
                command = one._command(step, 100.0)
                if step.part == "tests":
                    continue
                _, _, _, module, *arguments = command
                options = parsers[module.rsplit(".", 1)[1]](arguments)
                assert options.total == 100.0
                assert not tiny or options.device == "cpu"


def test_tuned_rows_of_the_tree_are_where_a_session_begins(
    programs: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(session.pinned.TUNED_VARIABLE, str(tmp_path / "shipped.json"))
    (tmp_path / "shipped.json").write_text('{"rows": {}, "faster": {}}')
    session.SESSIONS[9] = (Step("tests", "tests"),)
    try:
        flags = ["--out", str(tmp_path / "out"), "--folder", str(tmp_path / "work"), "--device", "cpu"]
        with pytest.raises(SystemExit):
            session.main(["8", *flags])
        assert session.main(["9", *flags]) == 0
    finally:
        del session.SESSIONS[9]
    assert (tmp_path / "out" / "tuned.json").read_text() == '{"rows": {}, "faster": {}}'
