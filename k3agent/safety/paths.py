"""Looks at paths that somebody else has named: what is too long to be a name, or leads where nobody may look,
is not there. `Path.exists` and its like raise an error then.
"""

# ruff: noqa: PTH110, PTH112, PTH113 - these are the ones that do not raise

import os
from pathlib import Path


def exists(path: Path) -> bool:
    return os.path.exists(path)


def is_file(path: Path) -> bool:
    return os.path.isfile(path)


def is_folder(path: Path) -> bool:
    return os.path.isdir(path)
