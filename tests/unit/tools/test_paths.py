"""Paths are judged as what they really are."""

import pytest

from k3agent.errors import ToolError
from k3agent.tools import BUILTIN
from k3agent.tools.support import paths


def test_access_names_the_resolved_path(ctx, tmp_path):
    outside = tmp_path.resolve() / "secret.txt"
    outside.write_text("x")
    (ctx.cwd / "innocent").symlink_to(outside)
    (ctx.cwd / "up").symlink_to(outside.parent, target_is_directory=True)
    read, write = BUILTIN["read"], BUILTIN["write"]
    assert read.access(read.args(path="innocent"), ctx).reads == (outside,)
    assert read.access(read.args(path="../secret.txt"), ctx).reads == (outside,)
    assert write.access(write.args(path="up/new.txt", content=""), ctx).writes == (
        outside.parent / "new.txt",
    )
    glob, grep = BUILTIN["glob"], BUILTIN["grep"]
    assert glob.access(glob.args(pattern="../*.txt"), ctx).reads == (outside.parent,)
    assert grep.access(grep.args(pattern="x", path="up"), ctx).reads == (outside.parent,)
    patch = BUILTIN["patch"]
    diff = "--- a/innocent\n+++ b/innocent\n@@ -1 +1 @@\n-x\n+y\n--- /dev/null\n+++ b/n\n@@ -0,0 +1 @@\n+y\n"
    assert patch.access(patch.args(patch=diff), ctx).writes == (outside, ctx.cwd / "n")


def test_shell_access_is_the_command_and_has_no_effect(ctx):
    """The agent sees the command and can save files before `run` starts it."""
    shell = BUILTIN["shell"]
    access = shell.access(shell.args(command="git reset --hard && touch made"), ctx)
    assert access.runs == "git reset --hard && touch made"
    assert not ctx.output_dir.exists()


def test_shown_paths(ctx, tmp_path):
    assert paths.locate("./a/./b", ctx).shown == "a/b"
    assert paths.locate(str(ctx.cwd / "a"), ctx).shown == "a"
    assert paths.locate(".", ctx).shown == "."
    assert paths.locate("a/../b", ctx).shown == "b"
    assert paths.locate("../x", ctx).shown == str(tmp_path.resolve() / "x")
    (ctx.cwd / "link").symlink_to(tmp_path, target_is_directory=True)
    assert paths.locate("link/../b", ctx).shown == str(tmp_path.resolve().parent / "b")
    assert paths.locate("link/b", ctx).shown == "link/b"


def test_home(ctx, tmp_path):
    ctx.environ["HOME"] = str(tmp_path)
    assert paths.locate("~/x", ctx).path == tmp_path.resolve() / "x"


async def test_names_that_no_system_takes_are_errors_for_the_model(call):
    long = "x" * 300
    for name, arguments in {
        "read": {}, "write": {"content": ""}, "edit": {"old": "a", "new": "b"}, "grep": {"pattern": "x"},
    }.items():  # fmt: skip
        assert "File name too long" in await call.error(name, path=long, **arguments)
    assert "File name too long" in await call.error("glob", pattern="*", path=long)


@pytest.mark.parametrize("path", ["", "a\0b", "x\ud800y"])
def test_unusable_paths(ctx, path):
    with pytest.raises(ToolError):
        paths.locate(path, ctx)


def test_the_mark_of_a_mention_is_no_part_of_the_name(ctx):
    (ctx.cwd / "sub").mkdir()
    (ctx.cwd / "sub/a.py").write_text("")
    assert paths.locate("@sub/a.py", ctx).shown == "sub/a.py"
    assert paths.locate("@new.py", ctx).shown == "@new.py"
    (ctx.cwd / "@sub").mkdir()
    (ctx.cwd / "@sub/a.py").write_text("")
    assert paths.locate("@sub/a.py", ctx).shown == "@sub/a.py"


def test_the_mark_of_a_mention_leads_nowhere_else(ctx, tmp_path):
    for path in ("@/etc/passwd", "@../x", "@sub/../../x", "@~/x", "@"):
        assert paths.locate(path, ctx).path.is_relative_to(ctx.cwd) or ".." in path
        assert "@" in str(paths.locate(path, ctx).path) or ".." in path
