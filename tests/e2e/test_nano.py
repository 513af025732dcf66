"""The embedded model at work: three tasks in one session, on real files, with the shipped weights."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from k3agent.backend.training.encode import NANO

pytestmark = [
    pytest.mark.skipif(not (NANO / "model.safetensors").is_file(), reason="nano's weights are not here"),
    pytest.mark.timeout(900),
]

PRICES = '''"""Prices in cents."""

TAX_RATE = 19


def with_tax(net):
    return net + net * TAX_RATE // 100
'''
REPORT = """from prices import with_tax


def report(net):
    return f"total {with_tax(net)}"
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A small repository and the data folder, whose server ends with the module."""
    root = tmp_path_factory.mktemp("nano")
    repository, home = root / "shop", root / "home"
    repository.mkdir()
    (repository / "prices.py").write_text(PRICES)
    (repository / "report.py").write_text(REPORT)
    subprocess.run(["git", "init", "--quiet"], cwd=repository, check=True)
    yield repository, home
    for state in (home / "run").glob("*.json"):
        os.kill(json.loads(state.read_text())["pid"], 15)


def ask(shop: tuple[Path, Path], prompt: str, *flags: str) -> dict:
    repository, home = shop
    command = [sys.executable, "-P", "-m", "k3agent.cli", "run", prompt, "--provider", "bundled"]
    done = subprocess.run(
        [*command, "--output-format", "json", *flags],
        cwd=repository,
        env={**os.environ, "K3AGENT_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)


def test_three_tasks_in_one_session_read_only_what_is_new(shop: tuple[Path, Path]) -> None:
    repository, home = shop
    where = ask(shop, "Where is TAX_RATE defined?")
    assert "prices.py" in where["result"]
    ask(shop, "Set TAX_RATE to 7.", "--resume", where["session_id"])
    assert "TAX_RATE = 7\n" in (repository / "prices.py").read_text()
    ask(shop, "Rename with_tax to gross_total in all files.", "--resume", where["session_id"])
    assert (repository / "prices.py").read_text() == PRICES.replace("19", "7").replace(
        "with_tax", "gross_total"
    )
    assert (repository / "report.py").read_text() == REPORT.replace("with_tax", "gross_total")

    with sqlite3.connect(home / "k3agent.db") as database:
        query = "SELECT input_tokens, cached_tokens, output_tokens FROM requests ORDER BY id"
        requests = database.execute(query).fetchall()
    assert len(requests) >= 8
    for (read, _, written), (_, cached, _) in pairwise(requests):
        # The prompt of the request before and its answer; three tokens open an answer and are not counted.
        assert cached >= read + written - 3


def test_the_example_of_the_page_on_ci_runs_on_it(shop: tuple[Path, Path]) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "guide" / "ci.md"
    (line,) = [row.strip() for row in page.read_text().splitlines() if "K3AGENT_CI_PROVIDER=bundled" in row]
    *settings, python, flag, module = shlex.split(line)
    assert (python, flag, module) == ("python", "-m", "k3agent.ci")
    repository, home = shop
    (repository / "app.py").write_text("LIMIT = 3\n")
    environ = {**os.environ, "K3AGENT_HOME": str(home), **dict(item.split("=", 1) for item in settings)}
    command = [sys.executable, "-P", flag, module]
    done = subprocess.run(
        command, cwd=repository, env=environ, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert (repository / "app.py").read_text() == "LIMIT = 9\n"
