"""The receipt of a run: what it asks git runs nothing of the repository's."""

from __future__ import annotations

import subprocess
from pathlib import Path

from k3agent.headless.receipts import tree_state


def test_a_receipt_runs_no_monitor_of_the_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "a").touch()
    with (tmp_path / ".git" / "config").open("a") as config:
        config.write(f'[core]\n\tfsmonitor = "touch {tmp_path}/ran; false"\n')
    subprocess.run(["git", "status"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "ran").exists(), "git itself would run it"
    (tmp_path / "ran").unlink()
    assert tree_state(tmp_path)["files"] == 1
    assert not (tmp_path / "ran").exists()
