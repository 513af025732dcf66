"""A link that takes the place of a folder between the judging of a call and its work leads nowhere."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from k3agent.errors import ToolError
from k3agent.tools import BUILTIN
from k3agent.tools.base import ToolContext
from k3agent.tools.support import opening, ripgrep, textio
from k3agent.tools.support.ignore import walk

SECRET = "not for the workspace\n"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "outside"
    folder.mkdir()
    (folder / "b.txt").write_text(SECRET)
    return folder


@pytest.fixture
def swap(ctx: ToolContext, outside: Path) -> Callable[[], None]:
    inner = ctx.cwd / "a"
    inner.mkdir()
    (inner / "b.txt").write_text("inside\n")

    def put_link() -> None:
        inner.rename(ctx.cwd / "old")
        inner.symlink_to(outside)

    return put_link


def texts_in(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


async def run_judged(
    ctx: ToolContext, name: str, arguments: dict[str, object], between: Callable[[], None] = lambda: None
) -> str:
    """As the agent does it: what is outside is refused, what was judged is handed on."""
    tool = BUILTIN[name]
    args = tool.args.model_validate(arguments)
    access = tool.access(args, ctx)
    allowed = (*access.reads, *access.writes)
    if not all(path.is_relative_to(ctx.cwd) for path in allowed):
        raise ToolError("outside")
    between()
    with opening.only(allowed):
        return (await tool.run(args, ctx)).text


CALLS: list[tuple[str, dict[str, object]]] = [
    ("read", {"path": "a/b.txt"}),
    ("write", {"path": "a/new.txt", "content": "x\n"}),
    ("edit", {"path": "a/b.txt", "old": "not for", "new": "taken from"}),
    ("patch", {"patch": "--- a/a/b.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-not for the workspace\n"}),
    ("grep", {"pattern": "workspace", "path": "a"}),
    ("glob", {"pattern": "a/*"}),
    ("repomap", {"path": "a"}),
]


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[name for name, _ in CALLS])
async def test_what_was_judged_is_what_is_opened(
    name: str, arguments: dict[str, object], ctx: ToolContext, outside: Path, swap: Callable[[], None]
) -> None:
    with pytest.raises(ToolError, match="leads elsewhere than when this call was judged"):
        await run_judged(ctx, name, arguments, swap)
    assert texts_in(outside) == {"b.txt": SECRET}


def test_a_link_on_the_way_is_not_followed(ctx: ToolContext, outside: Path, swap: Callable[[], None]) -> None:
    path = ctx.cwd / "a" / "b.txt"
    swap()
    for act in (
        lambda: textio.read_bytes(path, "a/b.txt"),
        lambda: textio.write_atomic(path, b"x", "a/b.txt"),
        lambda: textio.write_atomic(path.with_name("new") / "c.txt", b"x", "a/new/c.txt"),
        lambda: textio.remove(path, "a/b.txt"),
    ):
        with pytest.raises(ToolError, match="a has become a link meanwhile"):
            act()
    assert texts_in(outside) == {"b.txt": SECRET}


def test_a_file_that_has_become_a_link_is_not_followed(ctx: ToolContext, outside: Path) -> None:
    path = ctx.cwd / "f.txt"
    path.symlink_to(outside / "b.txt")
    with pytest.raises(ToolError, match="a link since a moment ago"):
        textio.write_atomic(path, b"x", "f.txt")
    with pytest.raises(ToolError, match="cannot be opened"):
        textio.read_bytes(path, "f.txt")
    assert (outside / "b.txt").read_text() == SECRET


@pytest.fixture
def swapping(ctx: ToolContext, outside: Path) -> Iterator[None]:
    """Another process that has a folder and a link take turns."""
    real, link, place = ctx.cwd / "real", ctx.cwd / "link", ctx.cwd / "a"
    place.mkdir()
    link.symlink_to(outside)
    is_over = threading.Event()

    def put(path: Path) -> None:
        while True:
            try:
                path.rename(place)
            except OSError:  # a call has made the folder meanwhile
                shutil.rmtree(place, ignore_errors=True)
            else:
                return

    def turn() -> None:
        while not is_over.wait(0.0001):
            place.rename(real)
            put(link)
            place.rename(link)
            put(real)

    thread = threading.Thread(target=turn)
    thread.start()
    yield
    is_over.set()
    thread.join()


@pytest.mark.usefixtures("swapping")
async def test_nothing_gets_out_while_a_folder_and_a_link_take_turns(ctx: ToolContext, outside: Path) -> None:
    for number in range(300):
        # It may fail, or find what an earlier write has left.
        with contextlib.suppress(ToolError):
            await run_judged(ctx, "write", {"path": "a/new.txt", "content": f"{number}\n"})
            assert (await run_judged(ctx, "read", {"path": "a/new.txt"})).removeprefix("1\t").isdigit()
    assert texts_in(outside) == {"b.txt": SECRET}


def test_folders_are_made_on_the_way_and_searched_without_being_listed(tmp_path: Path) -> None:
    path = tmp_path.resolve() / "x" / "y" / "z.txt"
    textio.write_atomic(path, b"1", "z.txt")
    (tmp_path / "x").chmod(0o100)
    try:
        textio.write_atomic(path, b"2", "z.txt")
        assert textio.read_bytes(path, "z.txt") == b"2"
        textio.remove(path, "z.txt")
    finally:
        (tmp_path / "x").chmod(0o700)
    assert not path.exists()
    textio.remove(path, "z.txt")


@pytest.mark.parametrize("has_proc", [True, False], ids=["told", "untold"])
def test_a_walk_passes_over_a_folder_that_a_link_has_replaced(
    has_proc: bool, ctx: ToolContext, swap: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_proc:
        monkeypatch.setattr(opening, "is_at", lambda fd, path: False)
    (ctx.cwd / "a" / "inner").mkdir()
    (ctx.cwd / "b").mkdir()
    (ctx.cwd / "b" / "c.txt").touch()
    walked = walk(ctx.cwd)
    names = [next(walked).shown]
    swap()
    names += [entry.shown for entry in walked]
    # What the link leads to has a file b.txt.
    assert names == ["a", "b", "b/c.txt"]
    assert [entry.shown for entry in walk(ctx.cwd / "a")] == []
    assert [entry.shown for entry in walk(ctx.cwd)] == [
        "a", "b", "b/c.txt", "old", "old/b.txt", "old/inner"
    ]  # fmt: skip


async def test_what_ripgrep_found_behind_a_link_is_left_out(
    ctx: ToolContext, swap: Callable[[], None]
) -> None:
    """It walks by name: a link that is put there while it does leads it out."""
    (ctx.cwd / "b.txt").write_text("of the workspace\n")
    query = ripgrep.Query(pattern="workspace", root=ctx.cwd)
    rg = ripgrep.find_ripgrep()
    if rg is None:
        pytest.skip("ripgrep is not there")
    program = ctx.cwd.parent / "rg"
    # Follows links, as one that a race has led astray.
    program.write_text(f'#!/bin/sh\nexec {rg} --follow "$@"\n')
    program.chmod(0o755)
    swap()
    hits = await ripgrep.run_ripgrep(str(program), query)
    assert hits is not None and hits.total == 1
    assert [(hit.path, hit.text) for hit in hits.first] == [("b.txt", "of the workspace")]


def test_a_walk_goes_deeper_than_calls_may_nest(tmp_path: Path) -> None:
    top = tmp_path.resolve()
    folders = [Path(f"{top}{'/d' * depth}") for depth in range(1, 1200)]
    for folder in folders:
        folder.mkdir()
    try:
        assert [entry.path for entry in walk(top)] == [str(folder) for folder in folders]
    finally:
        for folder in reversed(folders):
            folder.rmdir()
