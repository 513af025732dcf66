"""Pages say what is there: every flag that they name exists, the site has no broken link."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from k3agent.cli import COMMANDS
from k3agent.reference.tree import places

ROOT = Path(__file__).resolve().parents[2]
MANUAL = ROOT / "docs" / "k3agent.1"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Commands of a line end at what joins it to the next one.
_CALL = re.compile(r"\bk3agent (?P<words>[^\n`|;&)]*)")
_FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]+)")


@cache
def flags_of(command: str) -> frozenset[str]:
    """Of a command and its actions; none stands for the terminal UI."""
    return frozenset(
        name
        for place in places()
        if place.words[:1] == ((command,) if command else ())
        for flag in place.flags
        for name in flag.names
    )


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
        assert flag in flags_of(command), f"{page.name}: k3agent {command} has no {flag}"


def test_there_is_something_to_look_at() -> None:
    assert sum(len(calls(page)) for page in PAGES) > 40


def test_the_manual_page_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "man_page.py"), "--check"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr


def test_the_manual_page_is_sound() -> None:
    """Known requests, no stray escape; then what real formatters say of it, where there are any."""
    text = MANUAL.read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("."):
            assert re.match(r'\.(\\"|(TH|SH|SS|TP|PP|B|BR|I|br|EX|EE)\b)', line), line
        assert not line.startswith("'"), line
        assert not re.search(r"\\(?![-e&\"]|f[BIR])", line), line
        assert line.count(r"\fB") + line.count(r"\fI") == line.count(r"\fR"), line
    assert re.findall(r"^\.SH (.+)$", text, re.M)[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"]
    formatters = [
        ["mandoc", "-W", "error", "-T", "utf8"],
        ["groff", "-man", "-Kutf8", "-Tutf8", "-ww", "-rLL=100n", "-P-c"],
    ]
    for command in formatters:
        if shutil.which(command[0]) is not None:
            ran = subprocess.run([*command, str(MANUAL)], capture_output=True, text=True, check=False)
            assert (ran.returncode, ran.stderr) == (0, "")
            shown = re.sub(r".\x08|\x1b\[[0-9;]*m", "", ran.stdout)
            assert "--max-budget-usd X" in shown
            assert "k3agent sessions export" in shown


@pytest.mark.timeout(600)
def test_the_site_has_no_broken_link() -> None:
    ran = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "docs_site.py")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    page = (ROOT / "build" / "site" / "reference" / "commands.html").read_text(encoding="utf-8")
    assert "--max-budget-usd" in page
