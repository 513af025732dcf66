"""What is said about where a name stands, and reports of renames that leave a file out."""

from k3agent.backend.training.episodes.policy import Hit, quoted
from k3agent.backend.training.episodes.renaming import MOST_TOLD, definition_first, renames, where_found
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


def test_a_file_is_not_named_by_a_longer_path() -> None:
    check, after = renames({"a.py": "read()", "src/a.py": "read()"}), {"a.py": "read()", "src/a.py": "read()"}
    assert check(Outcome({}, after, "Renamed in `src/a.py` and `./a.py`.")) is None
    assert check(Outcome({}, after, "Renamed in src/a.py, data.py.")) is not None


def test_of_many_files_as_many_must_be_named_as_a_report_names() -> None:
    after = {f"m{number}.py": "read()" for number in range(MOST_TOLD + 3)}
    check, paths = renames(dict(after)), list(after)
    assert check(Outcome({}, after, f"Renamed in {quoted(paths, MOST_TOLD)}.")) is None
    assert check(Outcome({}, after, f"Renamed in {quoted(paths, MOST_TOLD - 1)}.")) is not None
