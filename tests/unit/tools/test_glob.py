"""`glob`: which names match."""

import unicodedata

import pytest


@pytest.fixture
def tree(ctx):
    for name in (
        "a.py",
        "src/b.py",
        "src/deep/c.py",
        "src/deep/d.ts",
        ".github/ci.yml",
        "node/e.js",
        "x[1].txt",
    ):
        (ctx.cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (ctx.cwd / name).write_text("")
    (ctx.cwd / ".gitignore").write_text("/node\n")
    return ctx.cwd


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.py", ["a.py"]),
        ("**/*.py", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("src/**", ["src/b.py", "src/deep/", "src/deep/c.py", "src/deep/d.ts"]),
        ("src/*", ["src/b.py", "src/deep/"]),
        ("*", ["a.py", "src/", "x[1].txt"]),
        ("*/", ["src/"]),
        ("**/*.{py,ts}", ["a.py", "src/b.py", "src/deep/c.py", "src/deep/d.ts"]),
        ("**/[cd].*", ["src/deep/c.py", "src/deep/d.ts"]),
        ("**/[!c].*", ["a.py", "src/b.py", "src/deep/d.ts"]),
        ("src/deep/c.py", ["src/deep/c.py"]),
        ("src/**/c.py", ["src/deep/c.py"]),
        (".github/*", [".github/ci.yml"]),
        ("**/.github/*", [".github/ci.yml"]),
        (".*", [".github/", ".gitignore"]),
        ("node/*", ["node/e.js"]),
        ("x[[]1].txt", ["x[1].txt"]),
        ("?.py", ["a.py"]),
        ("./src/b.*", ["src/b.py"]),
    ],
)
async def test_patterns(tree, call, pattern, names):
    assert (await call("glob", pattern=pattern)).split("\n") == names


async def test_path_limit_and_nothing(tree, call):
    assert await call("glob", pattern="*.py", path="src") == "src/b.py"
    assert await call("glob", pattern="*.rs") == "No files match."
    assert await call("glob", pattern="**/*.py", limit=2) == "a.py\nsrc/b.py\n[first 2 of 3 matches]"
    assert await call("glob", pattern=f"{tree}/src/*.py") == "src/b.py"
    assert await call("glob", pattern="no/such/*.py") == "No files match."


async def test_path_that_is_no_folder(tree, call):
    assert await call.error("glob", pattern="*", path="a.py") == (
        "a.py is a file, not a folder. Pass a folder as path."
    )
    assert await call.error("glob", pattern="*", path="sr") == "sr does not exist."


async def test_links_are_listed_but_not_entered(tree, call):
    (tree / "loop").symlink_to(".")
    assert (await call("glob", pattern="**/*.py")).count("\n") == 2
    assert "loop/" in await call("glob", pattern="*")


async def test_r70_windows_strings_go_round(tree, call):
    """A backslash is a character of the name, never an escape; `&` stays `&`."""
    name = r"C:\Users\unicorn & co\new.txt"
    await call("write", path=name, content="x & y < z\n")
    assert await call("glob", pattern=r"C:\Users\u*") == name
    assert await call("read", path=name) == "1\tx & y < z"
    assert await call("grep", pattern="x &") == f"{name}:1:x & y < z"
    assert (await call("edit", path=name, old="x & y", new=r"\n & \1")).startswith(f"Edited {name} (1")
    assert (tree / name).read_text() == "\\n & \\1 < z\n"


async def test_unicode_forms_of_a_name_find_the_file(tree, call):
    decomposed = unicodedata.normalize("NFD", "über/Café.txt")
    (tree / decomposed).parent.mkdir()
    (tree / decomposed).write_text("x\n")
    assert await call("read", path=unicodedata.normalize("NFC", decomposed)) == "1\tx"
    await call("write", path=unicodedata.normalize("NFC", decomposed), content="y\n")
    assert len(list((tree / decomposed).parent.iterdir())) == 1
