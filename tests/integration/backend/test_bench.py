"""`k3agent bench` against a real server: figures, a replay, and twenty seconds of load."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SERVER = ("--", "--threads", "1", "--cache-bytes", "64M")


def bench(*flags: str, timeout_s: float = 400) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "k3agent.backend.bench", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


def figures(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


@pytest.mark.timeout(420)
def test_cold_hit_and_restart_are_told_apart(tiny_dir: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "figures.json", tmp_path / "figures.png"
    wanted = ("--model", str(tiny_dir), "--contexts", "600,1200", "--users", "1,2", "--tokens", "8")
    done = bench(*wanted, "--json", str(file), "--png", str(picture), *SERVER)
    assert done.returncode == 0, done.stderr
    rows = figures(file)["rows"]
    assert [(row["phase"], row["context"], row["users"]) for row in rows] == [
        *((phase, length, users) for length in (600, 1200) for users in (1, 2) for phase in ("cold", "hit")),
        *(("restart", length, users) for length in (600, 1200) for users in (1, 2)),
    ]
    for row in rows:
        assert row["first_token_s"] > 0 and row["decode_tokens_per_s"] > 0
        if row["phase"] == "cold":
            # what all prompts begin with may be known, their own text is not
            assert row["cached_tokens"] < 300
            assert abs(row["prompt_tokens"] - row["context"]) < 60
        elif row["phase"] == "hit":
            assert row["cached_tokens"] > row["context"] - 150
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = done.stdout.splitlines()
    assert len(lines) == 2 + len(rows)
    assert lines[0].split()[:3] == ["phase", "context", "users"]


@pytest.mark.timeout(420)
def test_a_replay_finds_nearly_all_that_is_known(tiny_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    wanted = ("replay", "--model", str(tiny_dir), "--sessions", "3", "--turns", "4", "--tokens", "16")
    done = bench(*wanted, "--json", str(file), *SERVER)
    assert done.returncode == 0, done.stderr
    found = figures(file)
    assert found["requests"]["turn"] == 12
    assert found["found_share"] > 0.9
    assert found["new_tokens"] <= found["recomputed_tokens"] < found["prompt_tokens"] / 2
    assert "of what a perfect cache would find" in done.stdout


@pytest.mark.timeout(900)
def test_many_streams_with_disconnects(tiny_dir: Path) -> None:
    """A short form of `k3agent bench load`, which takes ten minutes."""
    wanted = ("load", "--model", str(tiny_dir), "--seconds", "20", "--tokens", "40")
    done = bench(*wanted, *SERVER, timeout_s=800)
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert done.returncode == 0
    assert found["streams"] == 64 and found["completed"] >= 64 and found["left"] > 0


def test_refusals(tmp_path: Path) -> None:
    done = bench("--model", str(tmp_path))
    assert done.returncode == 2 and "did not start" in done.stderr and "config.json" in done.stderr
    assert bench("--users", "0").returncode == 2
    done = bench("--url", "http://127.0.0.1:1", "--", "--threads", "1")
    assert done.returncode == 2 and "--url" in done.stderr
    done = bench("--url", "http://127.0.0.1:1")
    assert done.returncode == 2 and "127.0.0.1:1" in done.stderr
