"""What a function of a Python file uses of other files, and where that is."""

import pytest

from k3agent.tools.support import callees as module
from k3agent.tools.support import paths
from k3agent.tools.support.callees import Callee, callees, sites_behind

FUNCTION = "def f(a):\n    return a + 1\n"


def write(ctx, files):
    for name, text in files.items():
        path = ctx.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def behind(ctx, name, line=1):
    place = paths.locate(name, ctx)
    return [(site.place.shown, site.line) for site in sites_behind(place, place.path.read_text(), line, ctx)]


@pytest.mark.parametrize(
    ("imported", "used", "found"),
    [
        ("from x.y import f", "f(1)", [Callee(0, "x.y", "f")]),
        ("from x.y import f as g", "g(1)", [Callee(0, "x.y", "f")]),
        ("import x.y as z", "z.f(1)", [Callee(0, "x.y", "f")]),
        ("import x.y", "x.y.f(1)", [Callee(0, "x.y", "f")]),
        ("import x", "x.f(1)", [Callee(0, "x", "f")]),
        ("import x", "x.y.f(1)", [Callee(0, "x", "y"), Callee(0, "x.y", "f")]),
        ("from . import m", "m.f(1)", [Callee(1, "", "m"), Callee(1, "m", "f")]),
        ("from ..b import f", "f(1)", [Callee(2, "b", "f")]),
        ("from x import f", "map(f, a)", [Callee(0, "x", "f")]),
        ("from x import f", "a.f(1)", []),
        ("from x import f", "g(1)[0].f()", []),
        ("import os", "len(a)", []),
    ],
)
def test_names_of_imports(imported, used, found):
    assert callees(f"{imported}\n\n\ndef top(a):\n    return {used}\n", 5) == found
    inside = "\n".join(f"    {row}" for row in (imported, f"return {used}"))
    assert callees(f"def top(a):\n{inside}\n", 1) == found


def test_only_the_block_and_what_it_calls_in_the_file_count():
    text = (
        "from x import f, g, h\n\n\ndef top(a):\n    return inner(a)\n\n\n"
        "def inner(a):\n    return [f(a), map(h, a)]\n\n\ndef other(a):\n    return g(a)\n"
    )
    assert callees(text, 5) == [Callee(0, "x", "f"), Callee(0, "x", "h")]
    assert callees(text, 13) == [Callee(0, "x", "g")]
    assert callees(text, 99) == []
    assert callees("from x import f\nf(1\n", 2) == []
    assert callees("from x import f\0\n", 1) == []
    assert callees(f"from x import f\nf(1)\n{'# long' * module.MAX_CHARS}\n", 2) == []


USES = "from {} import f\n\n\ndef top(a):\n    return f(a)\n"


@pytest.mark.parametrize(
    ("name", "origin", "files", "found"),
    [
        ("a.py", "b", {"b.py": f"x = 1\n{FUNCTION}"}, [("b.py", 2)]),
        ("src/p/a.py", "p.b", {"src/p/b.py": FUNCTION}, [("src/p/b.py", 1)]),
        ("tools/a.py", "p.b", {"src/p/b.py": FUNCTION}, [("src/p/b.py", 1)]),
        ("lib/p/a.py", "p.b", {"lib/p/b.py": FUNCTION}, [("lib/p/b.py", 1)]),
        ("p/a.py", ".b", {"p/b.py": FUNCTION, "b.py": FUNCTION}, [("p/b.py", 1)]),
        ("p/q/a.py", "..b", {"p/b.py": FUNCTION}, [("p/b.py", 1)]),
        ("p/a.py", ".", {"p/__init__.py": FUNCTION}, [("p/__init__.py", 1)]),
        ("a.py", "p", {"p/__init__.py": "from .b import f\n", "p/b.py": FUNCTION}, [("p/b.py", 1)]),
        ("a.py", "b", {"b.py": f"if 1:\n    {FUNCTION.replace('    ', '        ')}"}, [("b.py", 2)]),
        ("a.py", "b", {"b.py": "class f:\n    pass\n"}, [("b.py", 1)]),
        # Passed on twice, no function, does not parse, is not there.
        ("a.py", "p", {"p/__init__.py": "from .b import f\n", "p/b.py": "from c import f\n"}, []),
        ("a.py", "b", {"b.py": "f = 1\n"}, []),
        ("a.py", "b", {"b.py": "def f(:\n"}, []),
        ("a.py", "b", {}, []),
        ("a.py", "....b", {"b.py": FUNCTION}, []),
        # What is not changed here.
        ("a.py", "test_b", {"test_b.py": FUNCTION}, []),
        ("a.py", "secrets", {"secrets.py": FUNCTION, ".venv/b.py": FUNCTION}, [("secrets.py", 1)]),
        ("venv/site-packages/a.py", ".b", {"venv/site-packages/b.py": FUNCTION}, []),
        (".venv/a.py", "b", {".venv/b.py": FUNCTION}, []),
        ("a.py", "b", {"b.py": FUNCTION + "#\n" * 600_000}, []),
    ],
)  # fmt: skip
def test_where_it_is(ctx, name, origin, files, found):
    write(ctx, {name: USES.format(origin), **files})
    assert behind(ctx, name, 5) == found


def test_links_are_followed_within_the_workspace(ctx, tmp_path):
    write(ctx, {"a.py": USES.format("b"), "real.py": FUNCTION})
    (ctx.cwd / "b.py").symlink_to("real.py")
    place = paths.locate("a.py", ctx)
    (site,) = sites_behind(place, place.path.read_text(), 5, ctx)
    assert (site.place.shown, site.place.path) == ("b.py", ctx.cwd / "real.py")
    (ctx.cwd / "b.py").unlink()
    (tmp_path / "outside.py").write_text(FUNCTION)
    (ctx.cwd / "b.py").symlink_to(tmp_path / "outside.py")
    assert behind(ctx, "a.py", 5) == []


def test_two_files_deep_and_no_further_and_around_no_circle(ctx):
    def chain(own, other):
        return f"from {other} import f as g\n\n\ndef f(a):\n    return g(a)\n"

    write(ctx, {"a.py": chain("a", "b"), "b.py": chain("b", "c"), "c.py": chain("c", "d"), "d.py": FUNCTION})
    assert behind(ctx, "a.py", 5) == [("b.py", 4), ("c.py", 4)]
    write(ctx, {"b.py": chain("b", "a")})
    assert behind(ctx, "a.py", 5) == [("b.py", 4)]


def test_so_many_files_and_places_are_enough(ctx):
    names = [f"m{number}" for number in range(6)]
    head = "\n".join(f"from {name} import f as {name}" for name in names)
    body = "".join(f"    a = {name}(a)\n" for name in names)
    write(ctx, {"a.py": f"{head}\n\n\ndef top(a):\n{body}    return a\n"})
    write(ctx, {f"{name}.py": FUNCTION for name in names})
    assert behind(ctx, "a.py", 9) == [(f"m{number}.py", 1) for number in range(4)]
    calls = "".join(f"    a = b.f{number}(a)\n" for number in range(9))
    write(ctx, {"c.py": f"import b\n\n\ndef top(a):\n{calls}    return a\n"})
    write(ctx, {"b.py": "".join(f"def f{number}(a):\n    return a\n" for number in range(9))})
    assert len(behind(ctx, "c.py", 4)) == module.MAX_SITES


def test_other_languages_are_not_looked_into(ctx):
    write(ctx, {"a.js": USES.format("b"), "b.py": FUNCTION})
    assert behind(ctx, "a.js", 5) == []
