"""A job of a CI, with a real run against an endpoint on loopback; nothing in it becomes a command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.agents import call
from support.headless import Bench
from support.runs import served

from k3agent.ci import JobError, outputs, read_job, summary
from k3agent.providers.scripted import Step
from k3agent.sarif import Finding, is_bad, log_lines, read_findings, sarif

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    made.workspace.mkdir()
    (made.workspace / "a.py").write_text("x = 1\ny = 2\n")
    return made


def job(bench: Bench, **variables: str) -> subprocess.CompletedProcess[str]:
    own = {f"K3AGENT_CI_{name}": value for name, value in variables.items()}
    environ = (
        bench.environ
        | own
        | {
            "GITHUB_ACTIONS": "true",
            "GITHUB_OUTPUT": str(bench.root / "outputs"),
            "GITHUB_STEP_SUMMARY": str(bench.root / "summary"),
        }
    )
    command = [sys.executable, "-P", "-m", "k3agent.ci"]
    return subprocess.run(
        command, cwd=bench.workspace, env=environ, capture_output=True, text=True, timeout=120, check=False
    )


def test_work_with_checks(bench: Bench) -> None:
    write = Step(calls=(call("write", path="b.txt", content="new\n"),))
    with served(bench, [write, Step(text="Done.\n::error::not a command")]):
        ran = job(
            bench,
            PROMPT="--help me",
            BASE_URL=bench.url,
            CHECKS="test -f b.txt\ntrue\n",
            RECEIPT="receipt.json",
        )
    assert ran.returncode == 0, ran.stderr
    first, *_, last = [line for line in ran.stdout.splitlines() if line.startswith("::")]
    word = first.removeprefix("::stop-commands::")
    assert len(word) == 32 and last == f"::{word}::"
    assert ran.stdout.index("::error::") < ran.stdout.index(last)
    told = (bench.root / "outputs").read_text()
    assert "outcome<<end_" in told and "\nsuccess\n" in told and "\nb.txt\n" in told
    assert "2 model calls" in (bench.root / "summary").read_text()
    checks = json.loads((bench.workspace / "receipt.json").read_text())["result"]["checks"]
    assert [check["command"] for check in checks] == ["test -f b.txt", "true"]


def answer(*findings: dict[str, Any]) -> Step:
    return Step(text=json.dumps({"summary": "Looked.", "findings": list(findings)}))


GOOD = {"path": "a.py", "line": 2, "level": "error", "title": "y, is: wrong", "text": "It is 2.\n::error::x"}
AWAY = {"path": "../secret", "line": 1, "level": "note", "title": "away", "text": "t"}


def test_a_review(bench: Bench) -> None:
    with served(bench, [answer(GOOD, AWAY)]) as server:
        ran = job(bench, REVIEW="true", BASE="main", BASE_URL=bench.url, SARIF="out.sarif", FAIL_ON="warning")
    assert "git diff main...HEAD" in json.dumps(server.requests[0].json["messages"])
    assert ran.returncode == 4, ran.stderr
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("::error ")]
    assert line == "::error file=a.py,line=2,title=y%2C is%3A wrong::It is 2.%0A::error::x"
    report = json.loads((bench.workspace / "out.sarif").read_text())
    (result,) = report["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 2}
    assert "leads out of the repository" in (bench.root / "summary").read_text()


def test_a_review_that_finds_nothing_grave(bench: Bench) -> None:
    with served(bench, [answer(GOOD | {"level": "note"})]):
        ran = job(bench, REVIEW="true", BASE_URL=bench.url, FAIL_ON="error")
    assert ran.returncode == 0, ran.stderr


def test_a_report_that_cannot_be_written_is_said_and_the_summary_is_there(bench: Bench) -> None:
    with served(bench, [answer(GOOD | {"level": "note"})]):
        ran = job(bench, REVIEW="true", BASE_URL=bench.url, SARIF="no/such/folder.sarif")
    assert ran.returncode == 1 and "K3AGENT_CI_SARIF=no/such/folder.sarif: No such file" in ran.stderr
    assert "Traceback" not in ran.stderr and "y, is: wrong" in (bench.root / "summary").read_text()


def test_an_endpoint_that_fails_is_told(bench: Bench) -> None:
    bench.extra |= {"K3AGENT_RETRY_MAX_RETRIES": "0", "K3AGENT_RETRY_MAX_TIME_S": "1"}
    ran = job(bench, PROMPT="x", BASE_URL="http://127.0.0.1:9/v1", SARIF="out.sarif")
    assert ran.returncode not in (0, 4)
    assert not (bench.workspace / "out.sarif").exists()
    assert "ended with status" in (bench.root / "summary").read_text()


@pytest.mark.parametrize(
    "variables, text",
    [
        ({}, "nothing to do"),
        ({"PROMPT_FILE": "/no/such"}, "PROMPT_FILE=/no/such"),
        ({"PROMPT": "x", "FAIL_ON": "all"}, "FAIL_ON=all"),
        ({"REVIEW": "true", "BASE": "--output=x"}, "no name of a branch"),
        ({"REVIEW": "true", "BASE": "a; rm -rf b"}, "no name of a branch"),
    ],
)
def test_variables_that_make_no_job(variables: dict[str, str], text: str) -> None:
    with pytest.raises(JobError, match=text):
        read_job({f"K3AGENT_CI_{name}": value for name, value in variables.items()})


def test_no_value_of_an_output_begins_another() -> None:
    text = outputs(0, {"result": "EOF\nstatus<<EOF\n9\nEOF", "files_changed": ["a\nstatus=9"]}, [])
    ends = {line.partition("<<")[2] for line in text.splitlines() if "<<end_" in line}
    assert len(ends) == 1 and text.count(ends.pop()) == 14


def test_words_of_the_model_are_no_markup_of_the_summary() -> None:
    text = summary(0, {"result": "```\n# big <script>\n\x1b[2J"}, [], [])
    assert "````text\n```\n# big <script>\n�[2J\n````" in text


def test_places_and_levels(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x\n")
    entries = [GOOD | {"line": 9}, GOOD | {"path": "b.py"}, GOOD | {"line": 1}]
    found, refused = read_findings({"findings": entries}, tmp_path)
    assert [finding.line for finding in found] == [1]
    assert "the file has 1 lines" in refused[0] and "no such file" in refused[1]
    odd = [GOOD | {"path": path} for path in ("a\0b", "x" * 5000, str(tmp_path / "a.py"))]
    found, refused = read_findings({"findings": odd}, tmp_path)
    assert not found and len(refused) == 3 and "not relative" in refused[2]
    spaced = Finding(path="a b%.py", line=1, level="note", title="t", text="x")
    place = sarif([spaced])["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "a%20b%25.py"
    warning = Finding(path="a.py", line=1, level="warning", title="t", text="x")
    assert is_bad([warning], "warning") and is_bad([warning], "note")
    assert not is_bad([warning], "error") and not is_bad([warning], "none")
    assert log_lines([warning]) == ["::warning file=a.py,line=1,title=t::x"]
    assert sarif([])["runs"][0]["results"] == []


def test_a_finding_at_a_link_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    found, refused = read_findings({"findings": [GOOD | {"path": "loop"}]}, tmp_path)
    assert not found and len(refused) == 1


def test_the_action_hands_values_over_only_by_variables() -> None:
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((ROOT / ".github" / "actions" / "k3agent" / "action.yml").read_text())
    steps = action["runs"]["steps"]
    assert not any("${{" in step["run"] for step in steps)
    names = {name.removeprefix("K3AGENT_CI_").lower().replace("_", "-") for name in steps[1]["env"]}
    assert names - {"python"} == set(action["inputs"]) - {"python", "install"}
    template = yaml.safe_load((ROOT / "docs" / "ci" / "gitlab.yml").read_text())
    assert template[".k3agent"]["script"] == ["python -P -m k3agent.ci"]


@pytest.mark.timeout(900)
def test_the_example_of_the_guide_runs_on_the_embedded_model(bench: Bench) -> None:
    guide = (ROOT / "docs" / "guide" / "ci.md").read_text()
    (line,) = [line.strip() for line in guide.splitlines() if line.strip().endswith("python -m k3agent.ci")]
    (bench.workspace / "app.py").write_text("NAME = 'a'\nLIMIT = 3\n")
    ran = subprocess.run(
        ["bash", "-c", line.replace("python", f"{sys.executable} -P")],
        cwd=bench.workspace, env=bench.environ, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (bench.workspace / "app.py").read_text() == "NAME = 'a'\nLIMIT = 9\n"
