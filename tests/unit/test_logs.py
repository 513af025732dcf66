"""The log: bounded, and never the reason that something else fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3agent import logs


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_log_that_a_flood_fills_is_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_MAX_BYTES", 10_000)
    logs.start_logging(tmp_path, {})
    for number in range(1000):
        logging.getLogger("flood").info("line %s %s", number, "x" * 100)
    folder = tmp_path / "logs"
    assert sorted(path.name for path in folder.iterdir()) == ["k3agent.log", "k3agent.log.1"]
    assert all(path.stat().st_size < 11_000 for path in folder.iterdir())
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())
    assert "line 999 " in "".join(path.read_text() for path in folder.iterdir())


def test_half_a_character_is_logged_as_an_escape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs.start_logging(tmp_path, {})
    logging.getLogger("x").warning("cannot read %s", "a\udcff.py")
    # On a terminal a complaint of logging itself would stand in the middle of the UI.
    assert capsys.readouterr().err == ""
    assert "a\\udcff.py" in (tmp_path / "logs" / "k3agent.log").read_text()


def test_a_log_that_cannot_be_opened_any_more_is_left_out(tmp_path: Path) -> None:
    logs.start_logging(tmp_path, {})
    (tmp_path / "logs" / "k3agent.log").unlink()
    (tmp_path / "logs" / "k3agent.log").mkdir()
    logging.getLogger("x").error("nobody hears this")
