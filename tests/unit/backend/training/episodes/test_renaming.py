"""What is said about where a name stands, and reports of renames that leave a file out."""

from k3agent.backend.training.episodes.policy import Hit
from k3agent.backend.training.episodes.renaming import definition_first, renames, where_found
from k3agent.backend.training.episodes.session import Outcome

FOUND = [
    Hit("a.py", 2, "from z import load"),
    Hit("a.py", 9, "    return load(1)"),
    Hit("docs/z.md", 4, "Call `load`."),
    Hit("z.py", 7, "def load(number):"),
]


def test_the_file_that_defines_a_name_comes_first_with_its_line() -> None:
    table = definition_first("load", FOUND)
    assert list(table) == ["z.py", "a.py", "docs/z.md"]
    assert where_found("load", table) == "Files: z.py (7; defined in 7), a.py (2, 9), docs/z.md (4)."


def test_a_name_that_nothing_defines_stands_as_it_was_found() -> None:
    assert list(definition_first("load", FOUND[:3])) == ["a.py", "docs/z.md"]


def test_a_report_without_one_of_the_files_is_rejected() -> None:
    check = renames({"z.py": "def read(): ...", "a.py": "read()"})
    before = {"z.py": "def load(): ...", "a.py": "load()"}
    after = {"z.py": "def read(): ...", "a.py": "read()"}
    assert check(Outcome(before, after, "Renamed `load` to `read` in `z.py`, `a.py`.")) is None
    assert check(Outcome(before, after, "Renamed `load` to `read` in `a.py`.")) is not None
    assert check(Outcome(before, before, "Renamed `load` to `read` in `z.py`, `a.py`.")) is not None
