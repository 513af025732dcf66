"""`read`: formats, parts of long files, and what it refuses."""

import os

import pytest

from k3agent.tools import read
from k3agent.tools.support import textio


async def test_lines_are_numbered_from_one(ctx, call):
    (ctx.cwd / "a.txt").write_text("one\n\n  three\n")
    assert await call("read", path="a.txt") == "1\tone\n2\t\n3\t  three"


async def test_a_part_says_how_to_continue(ctx, call):
    (ctx.cwd / "a.txt").write_text("".join(f"l{n}\n" for n in range(1, 8)))
    part = await call("read", path="a.txt", offset=2, limit=3)
    assert part == "2\tl2\n3\tl3\n4\tl4\n[lines 2-4 of 7; continue with offset=5]"
    assert await call("read", path="a.txt", offset=5, limit=3) == "5\tl5\n6\tl6\n7\tl7"


async def test_offset_after_the_end(ctx, call):
    (ctx.cwd / "a.txt").write_text("x\n")
    assert await call.error("read", path="a.txt", offset=9) == "offset 9 is after the end: a.txt has 1 line."


async def test_empty_file(ctx, call):
    (ctx.cwd / "a.txt").touch()
    assert await call("read", path="./a.txt") == "[a.txt is empty]"


async def test_long_line_is_cut(ctx, call):
    (ctx.cwd / "a.txt").write_text("x" * 2010 + "\nend\n")
    assert await call("read", path="a.txt") == f"1\t{'x' * 2000}[... 10 more characters]\n2\tend"


async def test_much_text_is_given_in_parts(ctx, call):
    (ctx.cwd / "a.txt").write_text(("y" * 1500 + "\n") * 500)
    text = await call("read", path="a.txt")
    assert len(text) < read.MAX_CHARS + 200
    assert text.splitlines()[-1] == "[lines 1-79 of 500; continue with offset=80]"


async def test_folder_names_glob(ctx, call):
    (ctx.cwd / "src").mkdir()
    error = await call.error("read", path="src")
    assert error == 'src is a folder. List it with glob, pattern "src/*".'


async def test_missing_file_names_similar_ones(ctx, call):
    for name in ("src/parser.py", "src/printer.py", "lib/deep/config.py", "README.md"):
        (ctx.cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (ctx.cwd / name).write_text("x")
    assert (
        await call.error("read", path="config.py") == "config.py does not exist. Similar: lib/deep/config.py"
    )
    error = await call.error("read", path="src/parsr.py")
    assert error.startswith("src/parsr.py does not exist. Similar: src/parser.py")
    assert await call.error("read", path="zzz") == "zzz does not exist."


async def test_binary_file(ctx, call):
    (ctx.cwd / "a.bin").write_bytes(b"abc\0def")
    assert await call.error("read", path="a.bin") == "a.bin is a binary file."


@pytest.mark.timeout(5)
async def test_fifo_does_not_hang(ctx, call):
    os.mkfifo(ctx.cwd / "pipe")
    assert await call.error("read", path="pipe") == "pipe is a fifo, not a regular file."
    assert "is a fifo" in await call.error("edit", path="pipe", old="a", new="b")
    assert "is a fifo" in await call.error("write", path="pipe", content="b")


@pytest.mark.timeout(5)
async def test_device_is_refused(call):
    assert await call.error("read", path="/dev/zero") == "/dev/zero is a device, not a regular file."


async def test_huge_file_is_refused_unread(ctx, call):
    with (ctx.cwd / "big").open("wb") as stream:
        stream.truncate(textio.MAX_BYTES + 1)
    assert "too large (52 MB)" in await call.error("read", path="big")


async def test_file_without_a_size_is_read(call):
    assert (await call("read", path="/proc/self/status")).startswith("1\tName:")


async def test_only_real_line_ends_count(ctx, call):
    (ctx.cwd / "a.txt").write_bytes("a\r\nb\rc\nd\u2028e\x0cf\x85g".encode())
    assert await call("read", path="a.txt") == "1\ta\n2\tb\n3\tc\n4\td\u2028e\x0cf\x85g"
