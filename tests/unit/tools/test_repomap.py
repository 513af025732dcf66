"""The map of a repository: what is found in files, what matters, and what is read again."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tool_context import Caller

from k3agent.store.symbols import SymbolCache
from k3agent.tools.base import ToolContext
from k3agent.tools.repomap import places_of
from k3agent.tools.support import scan as scanning
from k3agent.tools.support import syntax
from k3agent.tools.support.ranking import rank
from k3agent.tools.support.scan import scan
from k3agent.tools.support.symbols import FileSymbols, symbols_of

CORE = '''"""Nothing but words: UnusedWidget, make_widget."""


class BaseWidget:
    def draw_it(self):
        pass


def make_widget(kind):
    return BaseWidget()


LIMIT_OF_ALL = 3
'''


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.py", CORE, [("class", "BaseWidget", 4), ("method", "draw_it", 5), ("function", "make_widget", 9),
                        ("constant", "LIMIT_OF_ALL", 13)]),
        ("a.js", "class Abc { run() {} }\nfunction def() {}\nconst ghi = (x) => x\n",
         [("class", "Abc", 1), ("method", "run", 1), ("function", "def", 2), ("function", "ghi", 3)]),
        ("a.ts", "interface Abc { x: number }\ntype Def = string\nexport class Ghi {}\nenum Jkl { A }\n",
         [("interface", "Abc", 1), ("type", "Def", 2), ("class", "Ghi", 3), ("enum", "Jkl", 4)]),
        ("a.tsx", "export function App() { return <b>x</b> }\n", [("function", "App", 1)]),
        ("a.go", "package a\ntype Abc struct{}\nfunc (a Abc) Run() {}\nfunc Def() {}\n",
         [("type", "Abc", 2), ("method", "Run", 3), ("function", "Def", 4)]),
        ("a.rs", "struct Abc;\nimpl Abc { fn run(&self) {} }\ntrait Def {}\nmacro_rules! ghi { () => {} }\n",
         [("struct", "Abc", 1), ("function", "run", 2), ("trait", "Def", 3), ("macro", "ghi", 4)]),
        ("a.java", "class Abc {\n  void run() {}\n}\n", [("class", "Abc", 1), ("method", "run", 2)]),
        ("a.sh", "start_it() {\n  true\n}\n", [("function", "start_it", 1)]),
        ("a.txt", "def no(): pass", None),
    ],
)  # fmt: skip
def test_definitions_by_language(name: str, text: str, expected: list[tuple[str, str, int]] | None) -> None:
    if expected is None:
        assert not name.endswith(scanning.SUFFIXES)
        return
    found = symbols_of(name, text.encode())
    assert sorted((item.line, item.kind, item.name) for item in found.definitions) == sorted(
        (line, kind, named) for kind, named, line in expected
    )
    assert FileSymbols.load(found.dump()) == found


def test_texts_and_comments_mention_nothing() -> None:
    found = symbols_of("a.py", CORE.encode() + b"# CommentedName\nx = 'QuotedName'  # y\nUsedName()\n")
    assert "UsedName" in found.mentions and "BaseWidget" in found.mentions
    assert not {"UnusedWidget", "CommentedName", "QuotedName"} & set(found.mentions)


def test_broken_and_foreign_files_are_no_failure() -> None:
    assert symbols_of("a.py", b"def (:\n\xff\xfe class").definitions == ()
    assert symbols_of("a.py", b"\0" * 100) == symbols_of("a.py", b"x" * 500_000)
    assert symbols_of("a.py", "class Größe:\n    pass\n".encode()).definitions[0].name == "Größe"
    with pytest.raises(ValueError):
        FileSymbols.load("a b\nno tabs")


def test_what_others_lean_on_comes_first(tmp_path: Path) -> None:
    write(
        tmp_path,
        core_dot_py=CORE,
        alone_dot_py="def lonely_function():\n    pass\n",
        a_dot_py="from core import make_widget\nmake_widget(1)\n",
        b_dot_py="from core import make_widget, BaseWidget\nclass OtherWidget(BaseWidget):\n    pass\n",
        tests__test_core_dot_py="from core import make_widget\ndef test_it():\n    make_widget(2)\n",
    )
    found = scan(tmp_path, None, 60)
    ranked = rank(found.files)
    assert [entry.definition.name for entry in ranked[:2]] == ["make_widget", "BaseWidget"]
    assert ranked == rank(dict(reversed(found.files.items())))
    focused = rank(found.files, ["lonely"])
    assert [entry.definition.name for entry in focused].index("lonely_function") < [
        entry.definition.name for entry in ranked
    ].index("lonely_function")
    text = places_of("make_widget", found)
    assert "core.py:9: def make_widget(kind):" in text
    assert "mentioned in: a.py, b.py, tests/test_core.py" in text
    assert "core.py:4" in places_of("basewid", found) and "Nothing is defined" in places_of("nowhere", found)
    # Names of one or two characters are everywhere, and not kept.
    assert "fewer than 3 characters" in places_of("zz", found)


def test_symbols_that_another_version_has_found_are_found_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, cache = tmp_path / "ws", SymbolCache(tmp_path)
    write(root, a_dot_py="def first(): pass\n")
    with monkeypatch.context() as older:
        older.setattr(scanning, "FINDER_VERSION", 0)
        older.setattr(scanning, "symbols_of", lambda name, data: FileSymbols((), ()))
        assert not scan(root, cache, 60).files["a.py"].definitions
    assert scan(root, cache, 60).files["a.py"].definitions


def test_only_what_has_changed_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, cache = tmp_path / "ws", SymbolCache(tmp_path)
    write(root, a_dot_py="def first(): pass\n", b_dot_py="def second(): pass\n", _dot_env="SECRET = 1")
    (root / "link.py").symlink_to(root / "a.py")
    read: list[str] = []
    real = scanning.symbols_of

    def counted(name: str, data: bytes) -> FileSymbols:
        read.append(name)
        return real(name, data)

    monkeypatch.setattr(scanning, "symbols_of", counted)
    first = scan(root, cache, 60)
    assert sorted(read) == ["a.py", "b.py"] and first.waiting == 0
    assert scan(root, cache, 60).files == first.files and len(read) == 2
    # Another name with the same content is known; a changed file is not.
    (root / "b.py").rename(root / "c.py")
    (root / "a.py").write_text("def third_thing(): pass\n")
    again = scan(root, cache, 60)
    assert read[2:] == ["a.py"] and sorted(again.files) == ["a.py", "c.py"]
    assert [item.name for item in again.files["a.py"].definitions] == ["third_thing"]
    assert sorted(path.rsplit("/", 1)[1] for path in cache.known(str(root))) == ["a.py", "c.py"]


def test_time_that_is_up_leaves_the_rest_for_later(tmp_path: Path) -> None:
    root, cache = tmp_path / "ws", SymbolCache(tmp_path)
    write(root, **{f"m{number}_dot_py": f"def function_{number}(): pass\n" for number in range(250)})
    first = scan(root, cache, -1)
    assert first.waiting == 250 and not first.files
    assert scan(root, cache, 60).waiting == 0
    assert len(scan(root, cache, -1).files) == 250


async def test_the_tool_keeps_to_its_length(ctx: ToolContext, call: Caller) -> None:
    write(ctx.cwd, **{f"src__m{n}_dot_py": f"def function_number_{n}(): pass\n" * 5 for n in range(300)})
    text = await call("repomap", tokens=200)
    assert len(text) < 200 * 3 + 100 and text.startswith("src/m")
    assert "definitions, those most leaned on]" in text
    assert (await call("repomap", path="src", symbol="function_number_7")).startswith("src/m7.py:1:")
    assert "not a folder" in await call.error("repomap", path="src/m1.py")
    (ctx.cwd / "docs").mkdir()
    assert "no files here in a language" in await call("repomap", path="docs")


@pytest.mark.timeout(100)
@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("a.java", b"a<"),
        ("a.js", b"("),
        ("a.go", b"*"),
        ("a.sh", b"<<A\n"),
        ("a.py", b"\\\n"),
        ("a.js", b"/* "),
        ("a.py", b"'\\"),
        ("a.rs", b'"\\'),
    ],
)
def test_files_made_to_hold_up_a_parser_do_not(name: str, unit: bytes) -> None:
    """Each took minutes, in which nothing else ran, or more memory than there is."""
    symbols_of(name, unit * (300_000 // len(unit)))


def test_a_file_that_takes_too_long_has_no_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    source = CORE.encode() * 200
    assert symbols_of("a.py", source).definitions
    monkeypatch.setattr(syntax, "LIMIT_S", -1.0)
    assert not symbols_of("a.py", source).definitions
    assert syntax.problem("a.js", "f(" * 300) is None
    monkeypatch.undo()
    assert symbols_of("a.py", source).definitions, "the parser can be used again"


def test_a_file_that_takes_long_leaves_the_rest_of_its_batch_for_later(tmp_path: Path) -> None:
    write(tmp_path, a_dot_py=CORE, b_dot_py=CORE + "x = 1\n", c_dot_py=CORE + "y = 1\n")
    found = scan(tmp_path, None, 0.0)
    assert len(found.files) + found.waiting == 3 and found.waiting
