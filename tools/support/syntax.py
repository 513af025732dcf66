"""Tells when a change leaves a Python file that no longer parses, which a diff alone does not show."""

from __future__ import annotations

from pathlib import Path

MAX_CHARS = 1_000_000


def newly_broken(path: Path, before: str, after: str) -> str:
    """A sentence for the model and the user, or "" where the file parses, did not before, or is no Python."""
    if path.suffix != ".py" or len(after) > MAX_CHARS:
        return ""
    problem = _problem(after)
    if not problem or _problem(before):
        return ""
    return f"Warning: {path.name} does not parse now: {problem}."


def _problem(text: str) -> str:
    import ast  # lazy: 5 ms
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    return ""
