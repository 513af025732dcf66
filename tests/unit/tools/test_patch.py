"""`patch`: unified diffs, all or nothing."""

import difflib
import os

from hypothesis import given, settings
from hypothesis import strategies as st

from k3agent.tools.support import textio, unified


async def test_several_files_at_once(ctx, call):
    (ctx.cwd / "a.py").write_text("a\nb\nc\n")
    (ctx.cwd / "old.txt").write_text("gone\n")
    patch = """diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1,3 +1,4 @@
 a
-b
+B
+B2
 c
--- /dev/null
+++ b/sub/new.txt
@@ -0,0 +1,2 @@
+x
+y
--- a/old.txt
+++ /dev/null
@@ -1 +0,0 @@
-gone
"""
    output = await call.output("patch", patch=patch)
    assert output.text == "Patched a.py (+2 -1), sub/new.txt (+2 -0), old.txt (+0 -1)."
    assert output.files == ("a.py", "sub/new.txt", "old.txt")
    assert (ctx.cwd / "a.py").read_text() == "a\nB\nB2\nc\n"
    assert (ctx.cwd / "sub/new.txt").read_text() == "x\ny\n"
    assert not (ctx.cwd / "old.txt").exists()


async def test_one_misfit_changes_nothing(ctx, call):
    (ctx.cwd / "a.py").write_text("a\nb\n")
    (ctx.cwd / "b.py").write_text("c\nd\n")
    patch = (
        "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a\n+A\n--- a/b.py\n+++ b/b.py\n@@ -1,2 +1,2 @@\n c\n-x\n+y\n"
    )
    error = await call.error("patch", patch=patch)
    assert error == "Hunk 1 does not fit b.py.\nExpected: x\nLine 2: d"
    assert (ctx.cwd / "a.py").read_text() == "a\nb\n"


async def test_failed_write_is_taken_back(ctx, call, monkeypatch):
    (ctx.cwd / "a.py").write_text("a\n")
    (ctx.cwd / "b.py").write_text("b\n")
    real, writes = os.fsync, []

    def fsync(fd):
        writes.append(fd)
        if len(writes) == 3:
            raise OSError(28, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    diff = "--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a\n+A\n--- a/b.py\n+++ b/b.py\n@@ -1 +1 @@\n-b\n+B\n"
    assert "No space left" in await call.error("patch", patch=diff)
    assert (ctx.cwd / "a.py").read_text() == "a\n"
    assert (ctx.cwd / "b.py").read_text() == "b\n"


async def test_wrong_line_numbers_do_not_matter_when_unique(ctx, call):
    (ctx.cwd / "a.py").write_text("".join(f"l{n}\n" for n in range(50)))
    await call("patch", patch="--- a/a.py\n+++ b/a.py\n@@ -3,9 +3,9 @@\n l30\n-l31\n+L31\n l32\n")
    assert (ctx.cwd / "a.py").read_text().splitlines()[31] == "L31"


async def test_several_places_are_refused_without_the_right_line(ctx, call):
    (ctx.cwd / "a.py").write_text("x\ny\nx\ny\nz\n")
    error = await call.error("patch", patch="--- a/a.py\n+++ b/a.py\n@@ @@\n-x\n+q\n")
    assert error == "Hunk 1 fits a.py at several places (lines 1, 3). Add context."
    await call("patch", patch="--- a/a.py\n+++ b/a.py\n@@ -3 +3 @@\n-x\n+q\n")
    assert (ctx.cwd / "a.py").read_text() == "x\ny\nq\ny\nz\n"


async def test_crlf_bom_and_missing_last_line_end_are_kept(ctx, call):
    path = ctx.cwd / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree")
    await call("patch", patch="--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n")
    assert path.read_bytes() == b"\xef\xbb\xbfone\r\n2\r\nthree"


async def test_rename(ctx, call):
    (ctx.cwd / "a.py").write_text("a\n")
    patch = "diff --git a/a.py b/c.py\nrename from a.py\nrename to c.py\n"
    await call("patch", patch=patch)
    assert not (ctx.cwd / "a.py").exists()
    assert (ctx.cwd / "c.py").read_text() == "a\n"


async def test_removed_line_that_looks_like_a_header(ctx, call):
    (ctx.cwd / "a.sql").write_text("-- one\nselect 1\n")
    await call("patch", patch="--- a/a.sql\n+++ b/a.sql\n@@ -1,2 +1,2 @@\n--- one\n+-- two\n select 1\n")
    assert (ctx.cwd / "a.sql").read_text() == "-- two\nselect 1\n"


async def test_what_is_no_patch(ctx, call):
    assert "No change found" in await call.error("patch", patch="hello")
    (ctx.cwd / "a.py").write_text("a\n")
    error = await call.error("patch", patch="--- /dev/null\n+++ b/a.py\n@@ -0,0 +1 @@\n+x\n")
    assert error.startswith("a.py exists already.")
    error = await call.error("patch", patch="--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n*x\n")
    assert error.startswith("Line 4 of patch is no diff line")


async def test_stale_file_is_refused(ctx, call):
    (ctx.cwd / "a.py").write_text("a\n")
    await call("read", path="a.py")
    (ctx.cwd / "a.py").write_text("a\nb\n")
    error = await call.error("patch", patch="--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a\n+x\n")
    assert error == "a.py changed since it was read. Read it again."


ROWS = st.lists(st.sampled_from(["", "a", "b", " c", "-d", "+e", "-- f", "++ g", "@@ h"]), max_size=12)


@settings(max_examples=300, deadline=None)
@given(ROWS, ROWS)
def test_diff_of_two_texts_applied_to_the_first_gives_the_second(old, new):
    a, b = "".join(row + "\n" for row in old), "".join(row + "\n" for row in new)
    if a == b:
        return
    diff = "".join(difflib.unified_diff(a.splitlines(True), b.splitlines(True), "a/f", "b/f"))
    (change,) = unified.parse(diff)
    assert textio.splice(a, unified.place(a, change.hunks, "f")) == b
