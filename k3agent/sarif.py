"""Findings of a review as SARIF 2.1.0 and as annotations of GitHub's log.

Findings come from a model that has read foreign text: paths and lines are checked against the files that are
there, and what goes into a log line is escaped, so that no finding can be a command of the CI.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from k3agent import __version__
from k3agent.types import JsonObject

LEVELS = ("error", "warning", "note")
_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
MAX_FINDINGS = 200
SCHEMA: JsonObject = {
    "type": "object",
    "additionalProperties": False,
    "required": ["summary", "findings"],
    "properties": {
        "summary": {"type": "string", "description": "One or two sentences."},
        "findings": {
            "type": "array",
            "maxItems": MAX_FINDINGS,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["path", "line", "level", "title", "text"],
                "properties": {
                    "path": {"type": "string", "description": "Relative to the root of the repository."},
                    "line": {"type": "integer", "minimum": 1},
                    "level": {"enum": list(LEVELS)},
                    "title": {"type": "string", "maxLength": 120},
                    "text": {"type": "string"},
                },
            },
        },
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong. `line` counts from 1."""

    path: str
    line: int
    level: str
    title: str
    text: str


def read_findings(value: Any, root: Path) -> tuple[list[Finding], list[str]]:
    """The findings of an answer that fits SCHEMA, and in words those whose place is not there."""
    found, refused = [], []
    for entry in value["findings"]:
        finding = Finding(**entry)
        why = _misplaced(finding, root)
        if why:
            refused.append(f"{finding.title} ({finding.path}:{finding.line}): {why}")
        else:
            found.append(finding)
    return found, refused


def _misplaced(finding: Finding, root: Path) -> str:
    try:
        if Path(finding.path).is_absolute():
            return "the path is not relative to the root of the repository"
        file = (root / finding.path).resolve()
        if not file.is_relative_to(root.resolve()):
            return "the path leads out of the repository"
        if not file.is_file():
            return "there is no such file"
        with file.open("rb") as lines:
            count = sum(1 for _ in lines)
    except (OSError, ValueError, RuntimeError) as error:
        # Names that no file can have, or a file that this user may not read.
        return f"the file cannot be read: {getattr(error, 'strerror', None) or error}"
    return f"the file has {count} lines" if finding.line > max(count, 1) else ""


def sarif(findings: Iterable[Finding]) -> JsonObject:
    """One run of one tool; a rule for each level."""
    results = [
        {
            "ruleId": f"k3agent/{finding.level}",
            "level": finding.level,
            "message": {"text": f"{finding.title}\n\n{finding.text}"},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {
                            "uri": quote(Path(finding.path).as_posix()),
                            "uriBaseId": "%SRCROOT%",
                        },
                        "region": {"startLine": finding.line},
                    }
                }
            ],
        }
        for finding in findings
    ]
    rules = [{"id": f"k3agent/{level}", "defaultConfiguration": {"level": level}} for level in LEVELS]
    driver = {"name": "k3agent", "version": __version__, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "utf16CodeUnits", "results": results}],
    }


def log_lines(findings: Iterable[Finding]) -> list[str]:
    """Lines that GitHub shows beside the code."""
    return [
        f"::{_COMMANDS[finding.level]} file={_property(finding.path)},line={finding.line},"
        f"title={_property(finding.title)}::{_data(finding.text)}"
        for finding in findings
    ]


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def is_bad(findings: Sequence[Finding], fail_on: str) -> bool:
    """Is one of them at least as grave as `fail_on`, one of LEVELS? Never for any other word."""
    return fail_on in LEVELS and any(
        LEVELS.index(finding.level) <= LEVELS.index(fail_on) for finding in findings
    )
