"""Where the output of runs in the background lies."""

from __future__ import annotations

from pathlib import Path

from k3agent.headless.detach import _new_files


def test_a_later_run_of_a_session_leaves_the_files_of_an_earlier_one(tmp_path: Path) -> None:
    answer, progress = _new_files(tmp_path)
    assert (answer.name, progress.name) == ("run.out", "run.log")
    answer.write_text("the first answer")
    assert [path.name for path in _new_files(tmp_path)] == ["run-2.out", "run-2.log"]
    assert answer.read_text() == "the first answer"
    assert answer.stat().st_mode & 0o777 == 0o600
