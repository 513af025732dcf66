"""`python -m k3agent.ci`: one run of k3agent inside a CI job, told by environment variables.

Nothing of the job's inputs becomes part of a shell line: values go from variables to arguments, one by one.
The result goes to the step's outputs and summary where GitHub has them, and to files.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3agent.prompts.loader import render
from k3agent.safety.visible import clean, code_block
from k3agent.sarif import SCHEMA, Finding, is_bad, log_lines, read_findings, sarif
from k3agent.types import JsonObject

PREFIX = "K3AGENT_CI_"
MAX_SUMMARY_CHARS = 60_000
FINDINGS_STATUS = 4
"""As of a check that says no: the work was done, what it found is not to be merged."""
# variable behind the prefix, to the flag of `k3agent run` that takes its value
_FLAGS = {
    "MODEL": "--model",
    "PROVIDER": "--provider",
    "BASE_URL": "--base-url",
    "EFFORT": "--effort",
    "PERMISSION_MODE": "--permission-mode",
    "SANDBOX": "--sandbox",
    "MAX_TURNS": "--max-turns",
    "MAX_BUDGET_USD": "--max-budget-usd",
    "MAX_TIME": "--max-time",
    "RECEIPT": "--receipt",
}
_LISTS = {"CHECKS": "--check", "ALLOW": "--allow", "DENY": "--deny"}
"""Those that take one value a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the variables ask for."""

    prompt: str
    flags: list[str]
    is_review: bool
    fail_on: str
    sarif_file: Path | None


class JobError(Exception):
    """The variables do not make a job; the text names the variable."""


def read_job(environ: Mapping[str, str]) -> Job:
    """Raises JobError."""

    def value(name: str) -> str:
        return environ.get(f"{PREFIX}{name}", "").strip()

    is_review = value("REVIEW").lower() in ("1", "true", "yes")
    prompt = value("PROMPT")
    if file := value("PROMPT_FILE"):
        try:
            prompt = "\n\n".join(filter(None, (prompt, Path(file).read_text(encoding="utf-8").strip())))
        except (OSError, UnicodeDecodeError) as error:
            raise JobError(f"{PREFIX}PROMPT_FILE={file}: {error}") from error
    if is_review:
        prompt = render("ci/review", base=_base(value("BASE")), ask=prompt).strip()
    if not prompt:
        raise JobError(f"nothing to do: set {PREFIX}PROMPT, {PREFIX}PROMPT_FILE or {PREFIX}REVIEW=true")
    fail_on = value("FAIL_ON").lower() or "none"
    if fail_on not in ("none", "error", "warning", "note"):
        raise JobError(f"{PREFIX}FAIL_ON={fail_on}: give none, error, warning or note")
    flags = [word for name, flag in _FLAGS.items() if value(name) for word in (flag, value(name))]
    for name, flag in _LISTS.items():
        flags += [word for line in value(name).splitlines() if line.strip() for word in (flag, line.strip())]
    if is_review and not value("PERMISSION_MODE"):
        # Reviews read what strangers have written; they have nothing to change.
        flags += ["--permission-mode", "plan"]
    sarif_file = Path(value("SARIF")) if value("SARIF") else None
    return Job(prompt=prompt, flags=flags, is_review=is_review, fail_on=fail_on, sarif_file=sarif_file)


def _base(name: str) -> str:
    """A revision that can stand in a command line that the model is told of."""
    if not name:
        return "origin/HEAD"
    if name.startswith("-") or not all(char.isalnum() or char in "._/-" for char in name):
        raise JobError(f"{PREFIX}BASE={name!r} is no name of a branch or commit")
    return name


def run_k3agent(job: Job) -> tuple[int, JsonObject]:
    """Exit status and result line; progress goes to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-P", "-m", "k3agent", "run", "--output-format", "json", *job.flags]
        if job.is_review:
            schema = Path(folder) / "schema.json"
            schema.write_text(json.dumps(SCHEMA), encoding="utf-8")
            command += ["--json-schema", str(schema)]
        # The prompt on standard input: no beginning of it can be taken for a flag.
        done = subprocess.run(
            [*command, "-"],
            input=job.prompt,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            check=False,
        )
    try:
        result = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return done.returncode or 1, {}
    return done.returncode, result if isinstance(result, dict) else {}


def main(environ: Mapping[str, str] = os.environ) -> int:
    """The exit status of the run, or FINDINGS_STATUS when findings are as grave as FAIL_ON."""
    try:
        job = read_job(environ)
    except JobError as error:
        print(f"k3agent ci: {error}", file=sys.stderr)
        return 2
    with _commands_stopped(environ):
        status, result = run_k3agent(job)
        print(clean(str(result.get("result", ""))), flush=True)
    findings: list[Finding] = []
    refused: list[str] = []
    if job.is_review and status == 0 and result.get("structured_output"):
        findings, refused = read_findings(result["structured_output"], Path.cwd())
        if environ.get("GITHUB_ACTIONS"):
            print("\n".join(log_lines(findings)), flush=True)
        if is_bad(findings, job.fail_on):
            status = FINDINGS_STATUS
    if job.sarif_file is not None and status in (0, FINDINGS_STATUS):
        try:
            job.sarif_file.write_text(json.dumps(sarif(findings), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            print(f"k3agent ci: {PREFIX}SARIF={job.sarif_file}: {error.strerror or error}", file=sys.stderr)
            status = status or 1
    _append(environ.get("GITHUB_STEP_SUMMARY"), summary(status, result, findings, refused))
    _append(environ.get("GITHUB_OUTPUT"), outputs(status, result, findings))
    return status


@contextlib.contextmanager
def _commands_stopped(environ: Mapping[str, str]) -> Iterator[None]:
    """GitHub obeys lines of a log that begin with `::`: not those that a model or a command has written."""
    if not environ.get("GITHUB_ACTIONS"):
        yield
        return
    word = secrets.token_hex(16)
    print(f"::stop-commands::{word}", flush=True)
    try:
        yield
    finally:
        print(f"::{word}::", flush=True)


def summary(status: int, result: JsonObject, findings: Sequence[Finding], refused: Sequence[str]) -> str:
    """Markdown for the page of the job. Words of the model stand in fences: they are no markup of it."""
    good = "done" if status == 0 else f"ended with status {status} ({result.get('subtype', 'no result')})"
    cost, usage = result.get("total_cost_usd", 0), result.get("usage") or {}
    lines = [f"### k3agent: {good}", ""]
    lines.append(
        f"{result.get('num_turns', 0)} model calls, {usage.get('input_tokens', 0):,} tokens in,"
        f" {usage.get('output_tokens', 0):,} out, ${cost:.4f}; session `{result.get('session_id', '')}`"
    )
    changed = result.get("files_changed") or []
    if changed:
        lines += ["", f"{len(changed)} files changed:", _block("\n".join(map(str, changed)))]
    for finding in findings:
        head = f"{finding.level} {finding.path}:{finding.line} {finding.title}"
        lines += ["", _block(f"{head}\n{finding.text}")]
    if refused:
        lines += ["", "Findings without a place in the files:", _block("\n".join(refused))]
    if result.get("result") and not findings:
        lines += ["", _block(str(result["result"]))]
    return "\n".join(lines)[:MAX_SUMMARY_CHARS] + "\n"


def _block(text: str) -> str:
    return code_block(clean(text), "text")


def outputs(status: int, result: JsonObject, findings: list[Finding]) -> str:
    """Lines for GITHUB_OUTPUT. A random word ends each value, so that no value can begin another."""
    values: dict[str, Any] = {
        "status": status,
        "outcome": result.get("subtype", ""),
        "session-id": result.get("session_id", ""),
        "result": result.get("result", ""),
        "files-changed": "\n".join(map(str, result.get("files_changed") or [])),
        "cost-usd": result.get("total_cost_usd", 0),
        "findings": len(findings),
    }
    end = f"end_{secrets.token_hex(16)}"
    return "".join(f"{name}<<{end}\n{value}\n{end}\n" for name, value in values.items())


def _append(file: str | None, text: str) -> None:
    if file:
        with Path(file).open("a", encoding="utf-8") as out:
            out.write(text)


if __name__ == "__main__":
    sys.exit(main())
