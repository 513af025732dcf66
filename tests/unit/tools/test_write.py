"""`write`: whole files, with what must survive a replacement."""

import os
import stat

import pytest


async def test_create_and_replace(ctx, call):
    assert await call("write", path="a/b/c.py", content="x\ny\n") == "Created a/b/c.py (2 lines)."
    assert await call("write", path="a/b/c.py", content="z") == "Replaced a/b/c.py (1 line)."
    assert (ctx.cwd / "a/b/c.py").read_bytes() == b"z"


async def test_files_name_what_changed(ctx, call):
    (ctx.cwd / "real.txt").write_text("x")
    (ctx.cwd / "link.txt").symlink_to("real.txt")
    await call("read", path="link.txt")
    output = await call.output("write", path="link.txt", content="y")
    assert output.files == ("real.txt",)
    assert (ctx.cwd / "link.txt").is_symlink()
    assert (ctx.cwd / "real.txt").read_text() == "y"


async def test_unread_file_is_kept(ctx, call):
    (ctx.cwd / "a.txt").write_text("precious")
    error = await call.error("write", path="a.txt", content="x")
    assert error == "a.txt exists and was not read in this session. Read it first."
    assert (ctx.cwd / "a.txt").read_text() == "precious"


async def test_file_changed_since_read_is_kept(ctx, call):
    (ctx.cwd / "a.txt").write_text("one")
    await call("read", path="a.txt")
    (ctx.cwd / "a.txt").write_text("two")
    error = await call.error("write", path="a.txt", content="x")
    assert error == "a.txt changed since it was read. Read it again."
    assert (ctx.cwd / "a.txt").read_text() == "two"


async def test_touch_is_no_change(ctx, call):
    (ctx.cwd / "a.txt").write_text("one")
    await call("read", path="a.txt")
    os.utime(ctx.cwd / "a.txt", (1, 1))
    (ctx.cwd / "a.txt").write_text("one")
    assert await call("write", path="a.txt", content="x") == "Replaced a.txt (1 line)."


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
async def test_line_ends_and_bom_are_kept(ctx, call, end, bom):
    path = ctx.cwd / "a.txt"
    path.write_bytes(bom + f"one{end}two{end}".encode())
    await call("read", path="a.txt")
    await call("write", path="a.txt", content="one\n2\n3\n")
    assert path.read_bytes() == bom + f"one{end}2{end}3{end}".encode()


async def test_mixed_line_ends_of_untouched_lines_are_kept(ctx, call):
    (ctx.cwd / "a.txt").write_bytes(b"a\r\nb\nc\r\nd\n")
    await call("read", path="a.txt")
    await call("write", path="a.txt", content="a\nb\nX\nd\n")
    assert (ctx.cwd / "a.txt").read_bytes() == b"a\r\nb\nX\r\nd\n"


async def test_mode_bits_are_kept(ctx, call):
    path = ctx.cwd / "run.sh"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o750)
    await call("read", path="run.sh")
    await call("write", path="run.sh", content="#!/bin/sh\nexit 0\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o750


async def test_failed_write_leaves_the_old_file(ctx, call, monkeypatch):
    """The new text comes by a rename, so a full disk cannot leave half a file."""
    path = ctx.cwd / "a.txt"
    path.write_text("old")
    await call("read", path="a.txt")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert await call.error("write", path="a.txt", content="new") == (
        "a.txt cannot be written: No space left on device."
    )
    assert path.read_text() == "old"
    assert [item.name for item in ctx.cwd.iterdir()] == ["a.txt"]


async def test_folder_and_file_as_parent_are_refused(ctx, call):
    (ctx.cwd / "d").mkdir()
    (ctx.cwd / "f").write_text("x")
    assert await call.error("write", path="d", content="x") == "d is a folder. Name a file in it."
    assert "f/x cannot be written" in await call.error("write", path="f/x", content="x")


async def test_lost_characters_are_never_written(ctx, call):
    assert "U+FFFD" in await call.error("write", path="a.txt", content="caf\ufffd")
    assert not (ctx.cwd / "a.txt").exists()
    (ctx.cwd / "old.txt").write_text("has \ufffd already\n")
    await call("read", path="old.txt")
    assert await call("write", path="old.txt", content="still \ufffd\n") == "Replaced old.txt (1 line)."
    assert "adds U+FFFD" in await call.error("write", path="old.txt", content="\ufffd\ufffd\n")


async def test_lone_surrogate_is_an_error(call):
    assert "cannot hold U+D800" in await call.error("write", path="a.txt", content="\ud800")
