"""Hostile commands and repositories in the real sandbox, everyday commands beside them, and random ones.

Each case runs through the `shell` tool in a throw-away home, behind a wall of namespaces. By default every
tenth runs, in the sandbox that is best here; HOSTILE=all runs them all, in each kind of sandbox. The numbers
are printed (`pytest -s`).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import harmless, hostile
from support.sandboxes import BACKENDS, make

from k3agent.tools.sandbox import choice
from k3agent.tools.sandbox.policy import Bounds

IS_FULL = os.environ.get("HOSTILE") == "all"
STEP = 1 if IS_FULL else 10
TIMEOUT_S = 3000 if IS_FULL else 900
pytestmark = [
    pytest.mark.timeout(TIMEOUT_S + 60),
    pytest.mark.skipif(not hostile.wall_works(), reason="no namespaces for a wall around the tests"),
]
# Landlock alone knows no right to change modes, owners and times.
MODES_AND_TIMES = ("chmod", "touch", "utime", "setfacl", "chown")


@pytest.fixture
def root() -> Iterator[Path]:
    # Not in /tmp, where commands have a folder of their own, and in no repository.
    folder = Path(tempfile.mkdtemp(prefix="k3agent-hostile-", dir="/var/tmp")).resolve()
    yield folder
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder)


def works_here(backend: str) -> bool:
    return choice.works(make(backend, Bounds(home=Path.home())))


def chosen() -> list[str]:
    if IS_FULL:
        return list(BACKENDS)
    return [next((backend for backend in BACKENDS if works_here(backend)), BACKENDS[0])]


def test_the_corpus_is_large() -> None:
    assert len(hostile.cases()) >= 400
    assert len(harmless.everyday()) >= 300
    assert len({case.name for case in hostile.cases()}) == len(hostile.cases())


@pytest.mark.parametrize("backend", chosen())
def test_no_hostile_command_succeeds(backend: str, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not works_here(backend):
        pytest.skip(f"{backend} does not work on this machine")
    outcomes = hostile.walled(backend, root, (), STEP, TIMEOUT_S)
    with capsys.disabled():
        counts = {
            mode: sum(hostile.ran(outcome, mode) for outcome in outcomes) for mode in ("default", "auto")
        }
        escaped = sum(bool(outcome.proofs) for outcome in outcomes)
        print(
            f"\n{backend}: {len(outcomes)} hostile commands; the judge lets {counts['default']} run in"
            f" default mode and {counts['auto']} in auto mode; {escaped} of all succeed in the sandbox"
        )
    assert len(outcomes) == len(hostile.cases()[::STEP])
    succeeded = [(outcome.name, outcome.command, outcome.proofs) for outcome in outcomes if outcome.proofs]
    if backend == "landlock":
        succeeded = [row for row in succeeded if not any(word in row[1] for word in MODES_AND_TIMES)]
        # Nothing brings a repository back that was removed or moved as a whole, but nothing of it runs.
        succeeded = [row for row in succeeded if row[2] != ["later: .git/config", "later: .git/hooks"]]
    assert succeeded == []


def test_the_attacks_are_real(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the guard most of them succeed; the others need programs or rights that are missing here."""
    if not works_here("namespaces"):
        pytest.skip("it takes Landlock and namespaces to run them unguarded and yet harmlessly")
    outcomes = hostile.walled("control", root, (), STEP * 3, TIMEOUT_S)
    succeeded = sum(bool(outcome.proofs) for outcome in outcomes)
    with capsys.disabled():
        print(f"\nunguarded: {succeeded} of {len(outcomes)} hostile commands succeed")
    assert succeeded > 0.6 * len(outcomes)


@pytest.mark.parametrize("backend", chosen())
def test_everyday_commands_are_not_hindered(
    backend: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not works_here(backend) or backend == "landlock":
        pytest.skip(f"{backend} does not work on this machine, or hinders some of them")
    count = len(harmless.everyday()[::STEP])
    found = hostile.behind_wall("support.harmless", root, backend, str(STEP), timeout_s=TIMEOUT_S)
    with capsys.disabled():
        print(f"\n{backend}: {count - len(found)} of {count} everyday commands run without being hindered")
    assert found == []


def test_what_the_judge_calls_harmless_writes_nothing_outside(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not works_here("namespaces"):
        pytest.skip("it takes Landlock and namespaces to run them unguarded and yet harmlessly")
    seed = 1 if os.environ.get("CI") else random.randrange(1 << 30)
    count = 20000 if IS_FULL else 600
    row = json.loads(
        hostile.behind_wall("support.fuzz_run", root, str(seed), str(count), timeout_s=TIMEOUT_S)[0]
    )
    with capsys.disabled():
        print(f"\nfuzz, seed {seed}: {row['ran']} of {count} random commands were called harmless and run")
    assert row["ran"] > count / 50
    assert row["bad"] == [], f"seed {seed}"
