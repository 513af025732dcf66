"""Small changes of a function: what the tool `try` works with."""

import contextlib
import time

import pytest

from k3agent.errors import ToolError
from k3agent.tools.support.mutation import MAX_CHANGES, changes_in


def news(text: str, line: int) -> list[str]:
    return [change.new for change in changes_in(text, line)]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("return a - b", "return a + b"),
        ("return a > b", "return a >= b"),
        ("return max(a, b)", "return min(a, b)"),
        ("return a * b", "return a / b"),
        ("return a and b", "return a or b"),
        ("return a not in b", "return a in b"),
        ("return not a", "return a"),
        ("return b - a", "return a - b"),
        ("return a[0]", "return a[-1]"),
        ("return a[:b]", "return a[b:]"),
        ("return a.upper()", "return a.lower()"),
        ("return a.upper", "return a.upper()"),
        ("return [x for x in range(a)]", "return [x for x in range(1, a + 1)]"),
        ("return len(a) - 1", "return len(a)"),
        ("return a + b // 2", "return (a + b) // 2"),
        ("return a * 10", "return a * 100"),
        ("return a.get(b)", "return a.get(b, 0)"),
        ("return {k: v for k, v in a}", "return {k: v for k, v in a.items()}"),
        ("print(a + b)", "return a + b"),
        ("a + b", "return a + b"),
        ("return ValueError(a)", "raise ValueError(a)"),
        ('return f"{a[b:]}!"', 'return f"{a[:b]}!"'),
        ("return a.starts_with(b)", "return a.startswith(b)"),
        ("return None", "return a"),
    ],
)
def test_the_way_back_of_usual_slips_is_among_the_changes(wrong: str, right: str) -> None:
    assert right in news(f"def f(a, b):\n    {wrong}\n", 2)


def test_a_parameter_that_nothing_uses_is_the_likeliest_name() -> None:
    found = news("def area(width, height, deep):\n    return width * width + deep\n", 1)
    assert found.index("return width * height + deep") < found.index("return width * deep + deep")


def test_a_number_given_to_what_is_asked_for_like_a_truth_may_be_one() -> None:
    text = (
        "def f(notes):\n    for note in notes:\n        if not note['read']:\n            note['read'] = 0\n"
    )
    found = news(text, 1)
    assert found.index("note['read'] = True") < found.index("note['read'] = 1")


def test_changes_of_the_named_line_come_first() -> None:
    text = "def f(a, b):\n    c = a - b\n    d = a - b\n    return c < d\n"
    assert changes_in(text, 3)[0].line == 3


def test_texts_comments_and_docstrings_are_left_alone() -> None:
    text = 'def f(a, b):\n    """Return a + b.\n\n    More a - b.\n    """\n    # a + b\n'
    text += '    return "a - b" + a  # a - b\n'
    found = changes_in(text, 1)
    assert {change.line for change in found} == {7}
    assert all('"a - b"' in change.new and change.new.endswith("# a - b") for change in found)


def test_each_change_is_of_a_line_as_it_stands_and_none_comes_twice() -> None:
    text = "class Stock:\n    def __init__(self):\n        self.count = 0\n\n    def add(self, n):\n"
    text += "        if n > 0:\n            self.count = n\n        return self.count\n"
    found = changes_in(text, 5)
    rows = text.split("\n")
    assert len(set(found)) == len(found) <= MAX_CHANGES
    assert all(change.old == rows[change.line - 1].strip() != change.new for change in found)
    assert "self.count += n" in [change.new for change in found]


def test_the_rest_of_a_class_and_what_is_called_come_after() -> None:
    text = "class A:\n    def one(self):\n        return self.x + 1\n\n    def two(self, y):\n"
    text += "        self.x = y - 1\n"
    lines = [change.line for change in changes_in(text, 2)]
    assert lines[0] == 3 and 6 in lines
    text = "def half(n):\n    return n * 2\n\n\ndef f(n):\n    return half(n) + 1\n\n\n"
    text += "def g(n):\n    return n - 1\n"
    lines = [change.line for change in changes_in(text, 5)]
    assert lines[0] == 6 and 2 in lines and 10 not in lines


def test_a_value_of_the_module_that_the_function_uses_may_be_wrong() -> None:
    text = "LIMIT = 10\nOTHER = 3\n\n\ndef f(n):\n    return n <= LIMIT\n"
    found = {(change.line, change.new) for change in changes_in(text, 5)}
    assert (1, "LIMIT = 9") in found and (1, "LIMIT = 100") in found
    assert not any(line == 2 for line, _ in found)


def test_outside_of_functions_the_line_alone_is_changed() -> None:
    assert {change.line for change in changes_in("LOW = 1\nHIGH = LOW + 2\nTOP = 3\n", 2)} == {2, 1}


@pytest.mark.parametrize(
    "line",
    [
        "shutil.rmtree(a)",
        "os.remove(a)",
        "subprocess.run(a)",
        'open(a, "w").write(b)',
        "Path(a).unlink()",
        "a.write_text(b)",
        "db.execute('DELETE FROM t')",
        "db.executescript(a)",
        'open(os.path.join(a, b), "w").write(b)',
        'open(\n            a,\n            mode="ab",\n        )',
        "a.rename(b)",
        "shutil.copyfile(a, b)",
        "socket.create_connection(a)",
        "fs.writeFileSync(a, b)",
    ],
)
def test_code_that_could_do_harm_is_not_changed(line: str) -> None:
    with pytest.raises(ToolError, match="could do harm"):
        changes_in(f"def f(a, b):\n    if a > b:\n        {line}\n", 1)
    # nor is it where another function calls it
    text = f"def f(a, b):\n    {line}\n\n\ndef g(a, b):\n    if a < b:\n        f(a, b)\n"
    calling = text.split("\n").index("def g(a, b):") + 1
    assert {change.line for change in changes_in(text, calling)} <= set(range(calling, calling + 3))


@pytest.mark.parametrize(
    ("line", "use"),
    [
        ("from os import remove as rm", "rm(a)"),
        ("from os import getcwd, replace", "replace(a, b)"),
        ("from shutil import (\n    move,\n)", "move(a, b)"),
        ("from subprocess import run", "run(a)"),
        ("import os as system_", "system_.remove(a)"),
    ],
)
def test_harm_is_known_by_other_names(line: str, use: str) -> None:
    text = f"{line}\n\n\ndef f(a, b):\n    if a > b:\n        {use}\n"
    with pytest.raises(ToolError, match="could do harm"):
        changes_in(text, text.count("\n"))


@pytest.mark.parametrize(
    ("line", "use"),
    [
        ("from os import getcwd", "a.remove(b)"),
        ("import os", 'a.replace("x", "y")'),
        ("import os", 'open(a)["w"]'),
        ("import os", 'open(a, "r").read().split("a")'),
        ("from game import move", "move(a, b)"),
    ],
)
def test_what_only_looks_like_harm_is_changed(line: str, use: str) -> None:
    assert changes_in(f"{line}\n\n\ndef f(a, b):\n    if a > b:\n        return {use}\n", 5)


def test_harm_anywhere_in_a_long_function_counts() -> None:
    text = "def f(a, b):\n" + "    a = b + 1\n" * 400 + "    shutil.rmtree(a)\n"
    with pytest.raises(ToolError, match="rmtree"):
        changes_in(text, 3)


HOSTILE = {
    "numbers in one line": "def f(a):\n    x = [" + "1, " * 30_000 + "]\n    return x\n",
    "no line ends": "function f(a,b){" + "if(a<b){b=a+1;c.push(a[0]);}" * 3500 + "}\n",
    "backslashes": "def f(a):\n    x = '" + "\\" * 200 + "\n    return a\n",
    "backslashes for ever": "def f(a):\n    x = '" + "\\" * 50_000 + "\n    return a\n",
    "names with commas": "def f(a):\n    " + "a, " * 30_000 + "= a\n    return a\n",
    "open without end": "def f(a):\n    " + "open(" * 10_000 + "\n    return a\n",
    "misspelt words": "def f(a):\n"
    + "".join(f"    variable_{i} = other_{i} + third_{i}\n" for i in range(100))
    + "".join(f"def fun_{i}(argument_{i}):\n    return local_{i}\n" for i in range(3000)),
    "a great class": "class A:\n"
    + "".join(f"    def m{i}(self, a):\n        self.a{i} = a + {i}\n" for i in range(1500)),
    "many values": "".join(f"CONST_{i} = {i}\n" for i in range(3000))
    + "def f(a):\n"
    + "".join(f"    a = CONST_{i} + CONST_{i + 1}\n" for i in range(100)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_the_time_for_the_oddest_file_is_limited(kind: str) -> None:
    text = HOSTILE[kind]
    line = max(text.count("\n") - 2, 1) if kind == "many values" else 3 if text.count("\n") > 2 else 1
    start = time.process_time()
    with contextlib.suppress(ToolError):
        changes_in(text, line)
    # Without the limits the quickest takes 3 s and the slowest never ends.
    assert time.process_time() - start < 2.0


def test_a_row_that_no_one_has_written_is_left_alone() -> None:
    long = "    x = [" + "1, " * 100 + "a]"
    found = changes_in(f"def f(a):\n{long}\n    return a + 1\n", 3)
    assert {change.line for change in found} == {3}


def test_where_there_are_too_many_the_nearest_are_looked_through() -> None:
    methods = "".join(f"    def m{i}(self, a):\n        return a + {i}\n" for i in range(2000))
    found = {change.line for change in changes_in(f"class A:\n{methods}", 2000)}
    assert 2001 in found
    assert all(abs(line - 2000) < 1500 for line in found)


def test_what_cannot_be_changed_is_said() -> None:
    with pytest.raises(ToolError, match="line 9 is not in the file: it has 2 lines"):
        changes_in("a = 1\n", 9)
    with pytest.raises(ToolError, match="nothing in the function around line 1"):
        changes_in("def f():\n    pass\n", 1)


def test_other_languages_have_their_signs() -> None:
    text = "function total(items) {\n  return items.length === 0 && Math.max(items.length, 1)\n}\n"
    found = news(text, 1)
    assert any("!==" in new for new in found) and any("||" in new for new in found)
    assert any("Math.min(" in new for new in found)
