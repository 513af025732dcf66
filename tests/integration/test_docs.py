"""Pages say what is there: every flag that they name exists, the site has no broken link."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from k3agent.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Commands of a line end at what joins it to the next one.
_CALL = re.compile(r"\bk3agent (?P<words>[^\n`|;&)]*)")
_FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]+)")


@cache
def help_text(command: str) -> str:
    words = [command] if command else ["resume"]
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "k3agent", *words, "--help"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return ran.stdout


def calls(page: Path) -> list[tuple[str, str]]:
    """(command, flag) of everything on the page that looks like a call of k3agent."""
    found = []
    for hit in _CALL.finditer(page.read_text(encoding="utf-8")):
        # Behind a bare -- stand the flags of another program.
        words = re.split(r"\s--\s", hit["words"].split("#")[0])[0]
        first = words.split()[:1]
        command = first[0] if first and first[0] in COMMANDS else ""
        if command or words.startswith(("-", '"')):
            found += [(command, flag) for flag in _FLAG.findall(re.sub(r'"[^"]*"', '""', words))]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_flags_on_pages_exist(page: Path) -> None:
    for command, flag in calls(page):
        known = _FLAG.findall(help_text(command))
        # Commands with words of their own tell the flags there.
        is_there = flag in known or flag in _subcommand_flags(command)
        assert is_there, f"{page.name}: k3agent {command} has no {flag}"


@cache
def _subcommand_flags(command: str) -> frozenset[str]:
    """Of the words that the overview of commands names for it."""
    found: set[str] = set()
    overview = COMMANDS.get(command, "")
    listed = re.findall(r"\{([a-z,-]+)\}", help_text(command))
    for name in {*re.findall(r"\b[a-z]+\b", overview.split(":")[0]), *",".join(listed).split(",")} - {""}:
        ran = subprocess.run(
            [sys.executable, "-P", "-m", "k3agent", command, name, "--help"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        found |= set(_FLAG.findall(ran.stdout))
    return frozenset(found)


def test_there_is_something_to_look_at() -> None:
    assert sum(len(calls(page)) for page in PAGES) > 40


@pytest.mark.timeout(600)
def test_the_site_has_no_broken_link() -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "docs_site.py")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    page = (ROOT / "build" / "site" / "reference" / "commands.html").read_text(encoding="utf-8")
    assert "--max-budget-usd" in page
