"""Commands on the pages are run as they stand there, in a workspace of their own. Only a model's answers are
scripted; what cannot run here names the test that runs it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.headless import Bench, make_bench

from k3agent.providers.scripted import ScriptedCall, Step, serving

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELLS = ("", "sh", "bash", "console")
_COMMAND = re.compile(
    r"(?:[A-Z_0-9]+=\S+ |[A-Z_0-9]+='[^']*' )*(?:k3agent|python (?:-P )?-m k3agent\S*)(?= |$)"
)
# Beginnings of commands that are not run here, and who runs them.
ELSEWHERE = {
    "k3agent serve --probe": "tests/integration/foreign/test_vllm_handover.py",
    "k3agent serve --engine vllm": "tests/integration/foreign/test_vllm_handover.py",
    "k3agent bench": "tests/integration/backend/test_bench.py",
    "k3agent mcp login": "tests/integration/tools/test_mcp_http.py",
    "K3AGENT_CI_PROMPT=": "tests/e2e/test_nano.py",
    "python -m k3agent.backend.rankcheck": "tests/integration/backend/test_ranks.py",
    "python -m k3agent.backend.bench.ranks": "tests/unit/backend/bench/test_ranks.py",
    "python -P -m k3agent.backend.bench.session": "tests/unit/backend/bench/test_session.py",
}
# The terminal UI alone: tests/e2e/test_tui.py. The embedded model: tests/e2e/test_nano.py.
SCREEN = "tests/e2e/test_tui.py"
SERVER = "tests/integration/backend/test_server.py"
NANO = "tests/e2e/test_nano.py"
# There may be no GPU here, and nothing more to undo: a refusal in words is an answer.
MAY_REFUSE = ("k3agent serve --print --model kimi-linear", "k3agent doctor", "k3agent undo --session")


def commands_of(page: Path) -> list[str]:
    """What stands in blocks of shell, without what is said beside it."""
    found: list[str] = []
    fence: str | None = None
    text = re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8"))
    for line in text.splitlines():
        if line.startswith("```"):
            fence = line[3:].strip() if fence is None else None
            continue
        is_code = fence in SHELLS if fence is not None else line.startswith("    ")
        command = re.split(r"\s+#|\s{2,}", line.strip())[0]
        if is_code and _COMMAND.match(command):
            found.append(command)
    return found


def elsewhere(command: str) -> str:
    """The test that runs it, '' for what is run here."""
    if command in ("k3agent", "k3agent -c"):
        return SCREEN
    if "--provider bundled" in command and not command.startswith("K3AGENT_"):
        return NANO
    if re.match(r"k3agent serve(?! --(print|probe|engine))", command):
        return SERVER
    return next((place for start, place in ELSEWHERE.items() if command.startswith(start)), "")


def filled_in(command: str, session: str, url: str) -> str:
    """Words in capitals have values, optional parts go, addresses of examples are the scripted server's."""
    command = re.sub(r" \[[^\]]*\]", "", command)
    command = re.sub(r"\b(ID|CHILD)\b", session, command)
    command = re.sub(r"http://127\.0\.0\.1:\d+/v1", url, command)
    command = command.replace("--to 7", "--to 1")
    if command.startswith("k3agent undo") and not re.search("--(list|dry-run|yes)", command):
        # There is nobody to answer its question.
        command += " --dry-run"
    return command.replace("uvx mcp-server-time", f"{sys.executable} -m mcp_server_time")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A workspace, `k3agent` on the path, and a server whose first answer writes a file."""
    bench = make_bench(tmp_path)
    write = ScriptedCall(name="write", arguments={"path": "made.txt", "content": "made"})
    with serving([Step(calls=(write,)), *[Step(text="Done.")] * 60]) as server:
        folder = tmp_path / "bin"
        folder.mkdir()
        for name, module in (("k3agent", " -m k3agent.cli"), ("python", "")):
            (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
            (folder / name).chmod(0o755)
        bench.extra = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "K3AGENT_BASE_URL": server.url,
            "K3AGENT_MODEL": "scripted",
            "K3AGENT_CHECKS_COMMANDS": "",
        }
        for place in ("home/.local/share/bash-completion/completions", "home/.config/fish/completions"):
            (tmp_path / place).mkdir(parents=True)
        (bench.workspace / "test_it.py").write_text("def test_it():\n    assert True\n")
        yield bench


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if commands_of(page)], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_commands_of_a_page_do_what_they_say(page: Path, bench: Bench) -> None:
    # It is cut short by a limit, so that there is something to go on with.
    first = bench.run("run", "begin", "--max-turns", "1", "--output-format", "json", timeout_s=200)
    assert (bench.workspace / "made.txt").is_file(), first.out + first.err
    session = first.result["session_id"]
    for command in commands_of(page):
        if place := elsewhere(command):
            assert (ROOT / place).is_file(), f"{command}: no test {place}"
            continue
        if "mcp_server_time" in (line := filled_in(command, session, bench.extra["K3AGENT_BASE_URL"])):
            pytest.importorskip("mcp_server_time")
        ran = subprocess.run(
            ["bash", "-c", line.replace("${fpath[1]}", str(bench.root))],
            cwd=bench.workspace, env=bench.environ, capture_output=True, text=True, timeout=200,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        said = f"$ {line}\n{ran.stdout[-1500:]}\n{ran.stderr[-1500:]}"
        assert "Traceback" not in said, said
        assert ran.returncode == 0 or (command.startswith(MAY_REFUSE) and ran.stderr + ran.stdout), said


def test_there_are_commands_to_run() -> None:
    found = [command for page in PAGES for command in commands_of(page)]
    assert len(found) > 40
    assert len([command for command in found if not elsewhere(command)]) > 25
    assert not [start for start in ELSEWHERE if not any(command.startswith(start) for command in found)]
