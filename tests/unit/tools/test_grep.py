"""`grep`: format, order, limits, errors; the Python engine."""

import pytest


@pytest.fixture
def tree(ctx):
    for name, text in {
        "b.py": "import os\nprint('b')   \n",
        "a/x.py": "import sys\n",
        "a.txt": "import nothing\n",
        "a/.hidden": "import hidden\n",
        "build/out.py": "import built\n",
        ".gitignore": "build/\n",
    }.items():
        (ctx.cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (ctx.cwd / name).write_text(text)
    (ctx.cwd / "data.bin").write_bytes(b"import \0\n")
    return ctx.cwd


async def test_lines_are_sorted_by_path_and_line(tree, call):
    assert await call("grep", pattern="import|print") == (
        "a.txt:1:import nothing\na/x.py:1:import sys\nb.py:1:import os\nb.py:2:print('b')"
    )


async def test_glob_and_path(tree, call):
    assert await call("grep", pattern="import", glob="*.py") == "a/x.py:1:import sys\nb.py:1:import os"
    assert await call("grep", pattern="import", glob="a/*.{py,js}") == "a/x.py:1:import sys"
    assert await call("grep", pattern="import", path="a", glob="a/*.py") == "a/x.py:1:import sys"
    assert await call("grep", pattern="import", path="a") == "a/x.py:1:import sys"
    assert await call("grep", pattern="import", path="b.py") == "b.py:1:import os"
    assert await call("grep", pattern="import", path="a/.hidden") == "a/.hidden:1:import hidden"
    assert await call("grep", pattern="import", path="build") == "build/out.py:1:import built"


async def test_no_hits_limit_and_case(tree, call):
    assert await call("grep", pattern="zebra") == "No matches."
    assert await call("grep", pattern="IMPORT", path="b.py") == "No matches."
    assert await call("grep", pattern="IMPORT", path="b.py", ignore_case=True) == "b.py:1:import os"
    assert await call("grep", pattern="import", limit=1) == "a.txt:1:import nothing\n[first 1 of 3 matches]"


async def test_broken_pattern_names_the_fix(tree, call):
    error = await call.error("grep", pattern="f(x")
    assert error.startswith("pattern 'f(x' is no valid regular expression: ")
    assert error.endswith(r"To look for it literally, escape it: f\(x")


async def test_missing_path(tree, call):
    assert await call.error("grep", pattern="x", path="b.pi") == "b.pi does not exist. Similar: b.py"


async def test_long_line_is_cut(tree, call):
    (tree / "long.txt").write_text("needle" + "x" * 1000)
    text = await call("grep", pattern="needle")
    assert text == "long.txt:1:needle" + "x" * 294


async def test_lines_are_those_of_read(tree, call):
    (tree / "mac.txt").write_bytes(b"one\rneedle\r\ntwo\nneedle")
    assert await call("grep", pattern="^needle$") == "mac.txt:2:needle\nmac.txt:4:needle"


async def test_other_encodings(tree, call):
    (tree / "latin.txt").write_bytes("needle é\n".encode("cp1252"))
    (tree / "wide.txt").write_bytes("x\nneedle é\n".encode("utf-16"))
    assert await call("grep", pattern="needle") == "latin.txt:1:needle \ufffd\nwide.txt:2:needle é"


async def test_links_are_not_followed(tree, call):
    (tree / "c.py").symlink_to("b.py")
    (tree / "loop").symlink_to(".")
    assert await call("grep", pattern="import os") == "b.py:1:import os"
