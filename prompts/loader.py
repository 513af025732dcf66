"""Reads the texts of this folder: `load` gives one as it stands, `render` fills in its values.

Strict: an unknown name or a missing or superfluous value is an error, never a silent blank.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
NAME = re.compile(r"[a-z0-9_-]+(?:/[a-z0-9_-]+)*")


@cache
def load(name: str) -> str:
    """The text of `<name>.md` without the line end at its close. `name` is like `tools/read`."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no prompt name; write it like 'tools/read'.")
    try:
        return (FOLDER / f"{name}.md").read_text(encoding="utf-8").rstrip("\n")
    except FileNotFoundError as error:
        raise LookupError(f"There is no prompt {name!r}: {FOLDER / name}.md is missing.") from error


def render(name: str, /, **values: object) -> str:
    """The text of `<name>.md` as a jinja2 template over `values`; each value must be used by the text."""
    import jinja2  # lazy: 60 ms
    import jinja2.meta

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True
    )
    text = load(name)
    unused = set(values) - jinja2.meta.find_undeclared_variables(environment.parse(text))
    if unused:
        raise ValueError(f"Prompt {name!r} does not use {', '.join(sorted(unused))}.")
    try:
        return environment.from_string(text).render(values)
    except jinja2.UndefinedError as error:
        raise ValueError(f"Prompt {name!r} lacks a value: {error}.") from error
