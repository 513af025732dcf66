"""Both search engines give the same: ripgrep as a subprocess and Python, on random trees."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3agent.tools.support import ripgrep

PROGRAM = ripgrep.find_ripgrep()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="ripgrep is not installed")

NAMES = st.sampled_from(["a", "b.py", "C.TXT", ".hid", "x y", "é.md", "build", "a.log", "a-b", "keep.log"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
LINES = st.sampled_from(
    [
        "foo",
        "foo bar",
        "  foo()",
        "Foo",
        "bar",
        "",
        "a.b",
        "ünï foo",
        "foo\r",
        "x\rfoo",
        "日本 foo",
        "tab\tfoo  ",
    ]
)
CONTENTS = st.one_of(
    st.lists(LINES, max_size=5).map(lambda lines: "\n".join(lines).encode()),
    st.lists(LINES, max_size=4).map(lambda lines: "\n".join([*lines, ""]).encode()),
    st.sampled_from(
        [
            b"foo\0bar\n",
            b"foo \xff\xfe bar\n",
            b"\xef\xbb\xbffoo\n",
            "foo é\n".encode("utf-16"),
            b"\xe9 foo\n",
        ]
    ),
)
IGNORES = st.lists(
    st.sampled_from(
        ["*.log", "!keep.log", "build/", "/a", "a/*", "!a/b.py", "**/b.py", "x y", "# no", "[ab]", "a/**",
         "!build", "*", "!*/", "C.*", "a/**/b.py", "\\!x", "é*", "b.p?", "/*/a.log", "build/a", "[!a]*", " ",
         "*/", "a-[a-c]"]
    ),
    max_size=4,
)  # fmt: skip
PATTERNS = st.sampled_from(
    [
        "foo",
        "^foo",
        "foo$",
        r"\bfoo\b",
        "f.o",
        "[a-f]oo",
        r"\w+ foo",
        "foo|bar",
        r"a\.b",
        "ï f",
        "^$",
        r"\s",
        "o*",
    ]
)
GLOBS = st.sampled_from([None, "*.py", "*.{md,TXT}", "a/**", "**/b.py", "a/*", "?.py", "[!a]*"])


def build(root: Path, files, ignores) -> None:
    for name, content in files:
        path = root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError:
            continue  # a name that is a folder here and a file there
    for (folder, kind), lines in ignores.items():
        target = root / folder
        if target.is_dir():
            (target / kind).parent.mkdir(parents=True, exist_ok=True)
            if not (target / kind).is_dir():
                (target / kind).write_text("\n".join(lines) + "\n")


@settings(max_examples=120, deadline=None)
@given(
    st.lists(st.tuples(PATHS, CONTENTS), max_size=12),
    st.dictionaries(
        st.tuples(
            st.sampled_from([".", "a", "build", "a/build"]),
            st.sampled_from([".gitignore", ".ignore", ".rgignore", ".git/info/exclude"]),
        ),
        IGNORES,
        max_size=4,
    ),
    PATTERNS,
    GLOBS,
    st.booleans(),
    st.sampled_from([1, 3, 100]),
    st.sampled_from([".", "a"]),
)
def test_engines_agree(files, ignores, pattern, glob, ignore_case, limit, below):
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        build(root, files, ignores)
        if not (root / below).is_dir():
            return
        query = ripgrep.Query(
            pattern=pattern,
            root=(root / below).resolve(),
            prefix="" if below == "." else below + "/",
            glob=glob,
            ignore_case=ignore_case,
            limit=limit,
        )
        python = ripgrep.PythonSearch(pattern, ignore_case=ignore_case).run(query)
        native = asyncio.run(ripgrep.run_ripgrep(PROGRAM, query))
        assert native == python


async def test_grep_uses_ripgrep_where_python_is_not_enough(ctx, call):
    """A class only for Rust, a look-ahead only for Python, and a pattern that would never end in Python."""
    (ctx.cwd / "a.txt").write_text("foo1\nfoo!\n" + "a" * 60 + "!\n")
    assert await call("grep", pattern=r"foo\p{Nd}") == "a.txt:1:foo1"
    assert await call("grep", pattern="foo(?=!)") == "a.txt:2:foo!"
    assert await call("grep", pattern="foo{") == "No matches."
    assert await call("grep", pattern="^(a+)+$") == "No matches."


async def test_large_trees_give_the_same(ctx, call, monkeypatch):
    for number in range(300):
        path = ctx.cwd / f"d{number % 7}" / f"f{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"x = {number}\ny = {number * 7}\n")
    with_ripgrep = await call("grep", pattern=r"= \d*7$", glob="*.py", limit=50)
    monkeypatch.setattr(ripgrep, "find_ripgrep", lambda: None)
    assert await call("grep", pattern=r"= \d*7$", glob="*.py", limit=50) == with_ripgrep
    assert with_ripgrep.endswith("[first 50 of 60 matches]")


async def test_many_hits_are_counted_and_not_kept(ctx):
    (ctx.cwd / "a.txt").write_text("hit\n" * 200_000)
    (ctx.cwd / "b.txt").write_text("hit" * 20_000 + "\n")
    query = ripgrep.Query(pattern="hit", root=ctx.cwd, limit=2)
    assert PROGRAM is not None
    hits = await ripgrep.run_ripgrep(PROGRAM, query)
    assert hits is not None and hits.total == 200_001
    assert [(hit.path, hit.line) for hit in hits.first] == [("a.txt", 1), ("a.txt", 2)]
