"""Checkers of hand-written tasks: they look at files and facts in the answer, never at wording."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

Check = Callable[[Path, list[str], Mapping[str, str]], str | None]
"""(folder, answers, the files as they were) to None when solved, else the reason."""


def text_of(folder: Path, name: str) -> str:
    path = folder / name
    return path.read_text() if path.is_file() else ""


def snapshot(folder: Path) -> dict[str, str]:
    """Text of every file but caches and what belongs to git."""
    found = {}
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        skipped = any(part in {"__pycache__", ".git", ".pytest_cache"} for part in parts)
        if path.is_file() and not skipped:
            found[path.relative_to(folder).as_posix()] = path.read_text(errors="replace")
    return found


def unchanged(folder: Path, before: Mapping[str, str], *, but: tuple[str, ...] = ()) -> str | None:
    """None when no file differs but those in `but`."""
    after = snapshot(folder)
    touched = [name for name in {*before, *after} if before.get(name) != after.get(name) and name not in but]
    return f"touched {', '.join(sorted(touched))}" if touched else None


def all_of(*checks: Check) -> Check:
    def check(folder: Path, answers: list[str], before: Mapping[str, str]) -> str | None:
        return next((reason for one in checks if (reason := one(folder, answers, before))), None)

    return check


def says(*facts: str) -> Check:
    """Every fact stands in the last answer (case-insensitive); nothing on disk changed."""

    def check(folder: Path, answers: list[str], before: Mapping[str, str]) -> str | None:
        answer = answers[-1].lower()
        missing = [fact for fact in facts if fact.lower() not in answer]
        return f"answer lacks {missing}" if missing else unchanged(folder, before)

    return check


def says_any(*facts: str) -> Check:
    def check(folder: Path, answers: list[str], before: Mapping[str, str]) -> str | None:
        answer = answers[-1].lower()
        if not any(fact.lower() in answer for fact in facts):
            return f"answer has none of {list(facts)}"
        return unchanged(folder, before)

    return check


def replaced(name: str, *pairs: tuple[str, str], others: tuple[str, ...] = ()) -> Check:
    """The file is what it was with each pair replaced once, up to white space at line ends; others are as before."""

    def check(folder: Path, answers: list[str], before: Mapping[str, str]) -> str | None:
        wanted = before[name]
        for old, new in pairs:
            assert old in wanted, f"{name} has no {old!r}"
            wanted = wanted.replace(old, new, 1)
        if text_of(folder, name).rstrip() != wanted.rstrip():
            return f"{name} is not as wanted"
        return unchanged(folder, before, but=(name, *others))

    return check


def renamed(old: str, new: str) -> Check:
    """Every whole-word occurrence of `old` in every file became `new`, and nothing else changed."""

    def check(folder: Path, answers: list[str], before: Mapping[str, str]) -> str | None:
        wanted = {name: re.sub(rf"\b{re.escape(old)}\b", new, text) for name, text in before.items()}
        after = snapshot(folder)
        wrong = [name for name in {*wanted, *after} if wanted.get(name) != after.get(name)]
        return f"not renamed as wanted: {sorted(wrong)}" if wrong else None

    return check


def contains(name: str, *lines: str, keep: bool = True, others: tuple[str, ...] = ()) -> Check:
    """The file has every given line (stripped) and, with `keep`, all lines it had; files but `others` are as before."""

    def check(folder: Path, answers: list[str], before: Mapping[str, str]) -> str | None:
        have = [line.strip() for line in text_of(folder, name).splitlines()]
        missing = [line for line in lines if line.strip() not in have]
        if missing:
            return f"{name} lacks {missing}"
        lost = [
            line for line in before.get(name, "").splitlines() if line.strip() and line.strip() not in have
        ]
        if keep and lost:
            return f"{name} lost {lost}"
        return unchanged(folder, before, but=(name, *others))

    return check


def evaluates(expression: str, *touched: str) -> Check:
    """`expression` is true in Python run in the folder; only the files in `touched` changed."""

    def check(folder: Path, answers: list[str], before: Mapping[str, str]) -> str | None:
        code = f"import sys; sys.path[:0] = ['.', 'src']; {expression}"
        done = subprocess.run(
            [sys.executable, "-B", "-c", code], cwd=folder, capture_output=True, text=True, timeout=30
        )
        if done.returncode:
            return f"not true: {expression}: {done.stderr.strip()[-200:]}"
        return unchanged(folder, before, but=touched)

    return check


def tests_pass(*touched: str) -> Check:
    """pytest passes and only the files in `touched` changed (so the tests themselves did not)."""

    def check(folder: Path, answers: list[str], before: Mapping[str, str]) -> str | None:
        command = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
        if done.returncode:
            return f"tests fail: {done.stdout.strip()[-200:]}"
        return unchanged(folder, before, but=touched)

    return check


def moved(old: str, new: str) -> Check:
    def check(folder: Path, answers: list[str], before: Mapping[str, str]) -> str | None:
        wanted = {(new if name == old else name): text for name, text in before.items()}
        return None if snapshot(folder) == wanted else f"{old} was not moved to {new} alone"

    return check


def removed(name: str) -> Check:
    def check(folder: Path, answers: list[str], before: Mapping[str, str]) -> str | None:
        wanted = {key: text for key, text in before.items() if key != name}
        return None if snapshot(folder) == wanted else f"{name} was not removed alone"

    return check


def created(name: str, text: str) -> Check:
    """A new file with exactly this text, up to white space at the ends."""

    def check(folder: Path, answers: list[str], before: Mapping[str, str]) -> str | None:
        if text_of(folder, name).strip() != text.strip() or not (folder / name).is_file():
            return f"{name} is {text_of(folder, name)!r}"
        return unchanged(folder, before, but=(name,))

    return check


def created_json(name: str, value: object) -> Check:
    """A new JSON file with this value, however it is laid out."""

    def check(folder: Path, answers: list[str], before: Mapping[str, str]) -> str | None:
        try:
            found = json.loads(text_of(folder, name))
        except ValueError:
            return f"{name} is {text_of(folder, name)!r}"
        return f"{name} holds {found!r}" if found != value else unchanged(folder, before, but=(name,))

    return check


def honest(folder: Path, answers: list[str], before: Mapping[str, str]) -> str | None:
    """Nothing changed, and there is an answer."""
    return unchanged(folder, before) or (None if answers[-1].strip() else "no answer")
