"""Fixtures of the agent's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.judge import Judge


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    return Judge(tmp_path)
