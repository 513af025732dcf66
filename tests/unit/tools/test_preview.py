"""What a person is shown before a change is what the change then is, and looking changes nothing."""

from __future__ import annotations

import pytest

from k3agent.errors import ToolError
from k3agent.tools.base import Previewed
from k3agent.tools.edit import EditArgs, EditTool
from k3agent.tools.patch import PatchArgs, PatchTool
from k3agent.tools.read import ReadTool
from k3agent.tools.write import WriteArgs, WriteTool

LINES = "".join(f"line {number}\n" for number in range(1, 21))


def test_an_edit_shows_its_place_and_what_is_around_it(ctx):
    (ctx.cwd / "a.txt").write_text(LINES)
    shown = EditTool().preview(EditArgs(path="a.txt", old="line 10\n", new="ten\n"), ctx)
    assert shown == ("@@ line 7 @@\n line 7\n line 8\n line 9\n-line 10\n+ten\n line 11\n line 12\n line 13")
    assert (ctx.cwd / "a.txt").read_text() == LINES


def test_an_edit_that_ignores_white_space_shows_what_is_really_replaced(ctx):
    (ctx.cwd / "a.py").write_text("if x:\n        call( 1 )\n")
    shown = EditTool().preview(EditArgs(path="a.py", old="  call( 1  )\n", new="  call(2)\n"), ctx)
    assert shown.startswith("[Matched line 2") and "-        call( 1 )" in shown and "call(2)" in shown


def test_an_edit_that_would_fail_says_why(ctx):
    (ctx.cwd / "a.txt").write_text(LINES)
    with pytest.raises(ToolError, match=r"old text not found in a\.txt"):
        EditTool().preview(EditArgs(path="a.txt", old="nowhere", new="x"), ctx)
    with pytest.raises(ToolError, match=r"b\.txt does not exist"):
        EditTool().preview(EditArgs(path="b.txt", old="x", new="y"), ctx)


async def test_a_write_shows_only_what_differs(ctx, call):
    new = WriteTool().preview(WriteArgs(path="sub/new.txt", content="a\nb\n"), ctx)
    assert new == "[a new file]\n@@ line 1 @@\n+a\n+b" and not (ctx.cwd / "sub").exists()
    (ctx.cwd / "a.txt").write_text(LINES)
    await call("read", path="a.txt")
    changed = WriteTool().preview(WriteArgs(path="a.txt", content=LINES + "more\n"), ctx)
    assert changed == "@@ line 18 @@\n line 18\n line 19\n line 20\n+more"


def test_a_patch_shows_every_file(ctx):
    (ctx.cwd / "a.txt").write_text("one\ntwo\n")
    (ctx.cwd / "gone.txt").write_text("x\n")
    patch = (
        "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
        "--- /dev/null\n+++ b/new.txt\n@@ -0,0 +1 @@\n+n\n"
        "--- a/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    )
    assert PatchTool().preview(PatchArgs(patch=patch), ctx).split("\n") == [
        "diff a.txt", "@@ line 1 @@", " one", "-two", "+2",
        "diff new.txt (new)", "@@ line 1 @@", "+n",
        "diff gone.txt (deleted)", "@@ line 1 @@", "-x",
    ]  # fmt: skip
    assert (ctx.cwd / "gone.txt").exists() and not (ctx.cwd / "new.txt").exists()


async def test_what_is_shown_is_what_happens(ctx, call):
    (ctx.cwd / "a.txt").write_text(LINES)
    args = {"path": "a.txt", "old": "line 3\n", "new": "drei\nvier\n"}
    shown = EditTool().preview(EditArgs(**args), ctx)
    await call("edit", **args)
    assert [line for line in shown.split("\n") if line[0] in "+-"] == ["-line 3", "+drei", "+vier"]
    assert "line 2\ndrei\nvier\nline 4\n" in (ctx.cwd / "a.txt").read_text()


def test_tools_that_change_no_files_have_none():
    assert isinstance(EditTool(), Previewed) and not isinstance(ReadTool(), Previewed)
