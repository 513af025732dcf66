"""`edit`: one place, nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3agent.tools.support import matching, textio

SMALL = "def f():\n    return 1\n\n\ndef g():\n    return 1\n"


async def test_result_shows_the_change(ctx, call):
    (ctx.cwd / "a.py").write_text("a = 1\nb = 2\nc = 3\nd = 4\n")
    text = await call("edit", path="a.py", old="b = 2", new="b = 20\nb2 = 21")
    assert text == "Edited a.py (1 replacement).\n@@ line 1 @@\n a = 1\n-b = 2\n+b = 20\n+b2 = 21\n c = 3"
    assert (ctx.cwd / "a.py").read_text() == "a = 1\nb = 20\nb2 = 21\nc = 3\nd = 4\n"


async def test_all(ctx, call):
    (ctx.cwd / "a.py").write_text(SMALL)
    text = await call("edit", path="a.py", old="return 1", new="return 2", all=True)
    assert text == (
        "Edited a.py (2 replacements).\n@@ line 1 @@\n def f():\n-    return 1\n+    return 2\n \n"
        "@@ line 5 @@\n def g():\n-    return 1\n+    return 2"
    )


async def test_r27_several_places_are_named_and_line_picks_one(ctx, call):
    (ctx.cwd / "a.py").write_text(SMALL)
    error = await call.error("edit", path="a.py", old="    return 1", new="    return 2")
    assert error == "old text occurs 2 times in a.py (lines 2, 6). Add context, pass line=N, or all=true."
    await call("edit", path="a.py", old="    return 1", new="    return 2", line=6)
    assert (ctx.cwd / "a.py").read_text() == SMALL[:-2] + "2\n"


async def test_line_may_be_within_the_old_text(ctx, call):
    (ctx.cwd / "a.txt").write_text("x\ny\nz\nx\ny\n")
    await call("edit", path="a.txt", old="x\ny", new="q", line=5)
    assert (ctx.cwd / "a.txt").read_text() == "x\ny\nz\nq\n"
    assert "lines" not in await call("edit", path="a.txt", old="z", new="Z", line=99)


async def test_twice_in_one_line(ctx, call):
    (ctx.cwd / "a.txt").write_text("x x\nx\n")
    error = await call.error("edit", path="a.txt", old="x", new="y", line=1)
    assert error == "old text occurs 2 times at line 1 of a.txt. Add context, or all=true."


async def test_overlapping_places_are_not_unique(ctx, call):
    (ctx.cwd / "a.txt").write_text("aaa")
    assert "occurs 2 times" in await call.error("edit", path="a.txt", old="aa", new="b")


async def test_plain_errors(ctx, call):
    (ctx.cwd / "a.txt").write_text("x")
    assert await call.error("edit", path="a.txt", old="x", new="x") == "old and new are the same."
    assert (await call.error("edit", path="a.txt", old="", new="x")).startswith("old is empty.")
    assert await call.error("edit", path="b.txt", old="x", new="y") == "b.txt does not exist. Similar: a.txt"
    assert await call.error("edit", path=".", old="x", new="y") == ". is a folder. Name a file in it."


async def test_not_found_shows_the_nearest_text(ctx, call):
    (ctx.cwd / "a.py").write_text("import os\n\ndef total(items):\n    return sum(items)\n")
    error = await call.error("edit", path="a.py", old="def totals(item):\n    return sum(item)", new="x")
    assert error == (
        "old text not found in a.py.\nNearest, line 3:\ndef total(items):\n    return sum(items)"
    )
    assert await call.error("edit", path="a.py", old="qqqqqq", new="x") == "old text not found in a.py."


async def test_line_numbers_of_read_are_pointed_out(ctx, call):
    (ctx.cwd / "a.py").write_text("a = 1\n")
    assert "Leave out the line numbers" in await call.error("edit", path="a.py", old="1\ta = 1", new="b")


async def test_file_changed_since_read(ctx, call):
    (ctx.cwd / "a.py").write_text("a = 1\n")
    await call("read", path="a.py")
    (ctx.cwd / "a.py").write_text("a = 1\nb = 2\n")
    error = await call.error("edit", path="a.py", old="a = 1", new="a = 3")
    assert error == "a.py changed since it was read. Read it again."


async def test_r21_unmodified_crlf_file_is_byte_identical_outside_the_edit(ctx, call):
    path = ctx.cwd / "a.txt"
    path.write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await call("read", path="a.txt")
    await call("edit", path="a.txt", old="two\n", new="2\n2b\n")
    assert path.read_bytes() == b"one\r\n2\r\n2b\r\nthree\r\n"
    await call("write", path="a.txt", content="one\n2\n2b\nthree\n")
    assert path.read_bytes() == b"one\r\n2\r\n2b\r\nthree\r\n"


LINES = st.lists(st.sampled_from(["", "a", "  b", "é ü", "日本", "x\ty", "“q”"]), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(LINES, st.lists(st.sampled_from(["\n", "\r\n", "\r"]), min_size=8, max_size=8), st.data())
def test_r22_any_text_of_a_read_result_matches_and_the_rest_keeps_its_bytes(lines, ends, data):
    """Law: replacing whole lines i..j of what `read` shows changes only their bytes."""
    raw_lines = [line + end for line, end in zip(lines, ends, strict=False)]
    raw = "".join(raw_lines)
    file = textio.decode(raw.encode(), "f")
    shown = file.lines
    first = data.draw(st.integers(0, len(shown) - 1))
    last = data.draw(st.integers(first, len(shown) - 1))
    old = "\n".join(shown[first : last + 1])
    start = sum(len(line) + 1 for line in shown[:first])
    assert file.view[start : start + len(old)] == old
    text = textio.splice(file.text, [(start, start + len(old), "N1\nN2")])
    view = textio.normalise(text)
    assert view == file.view[:start] + "N1\nN2" + file.view[start + len(old) :]
    raw_first = textio.splice(file.text, [(start, len(file.view), "")])
    assert text.startswith(raw_first) and raw.startswith(raw_first)
    tail = textio.splice(file.text, [(0, start + len(old), "")])
    assert text.endswith(tail) and raw.endswith(tail)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
async def test_r23_bom_and_wide_encodings_are_kept(ctx, call, encoding):
    bom = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}.get(encoding, b"")
    path = ctx.cwd / "a.txt"
    path.write_bytes(bom + "naïve\r\n日本\r\n".encode(encoding))
    assert (await call("read", path="a.txt")).startswith("1\tnaïve\n2\t日本")
    await call("edit", path="a.txt", old="naïve", new="naïver ü")
    assert path.read_bytes() == bom + "naïver ü\r\n日本\r\n".encode(encoding)


async def test_r24_curly_quotes_are_untouched(ctx, call):
    path = ctx.cwd / "a.md"
    path.write_text("He said “hi” - it’s  fine.\nplain 'q'\n")
    error = await call.error("edit", path="a.md", old='He said "hi" - it\'s  fine.', new="x")
    assert error.endswith("Nearest, line 1:\nHe said “hi” - it’s  fine.")
    await call("edit", path="a.md", old="plain  'q'", new="plain ‘q’")
    assert path.read_text() == "He said “hi” - it’s  fine.\nplain ‘q’\n"


async def test_r25_cp1252_and_gbk_are_kept(ctx, call):
    path = ctx.cwd / "a.txt"
    path.write_bytes("Grüße, naïve café – 10 €\nx\n".encode("cp1252"))
    assert (await call("read", path="a.txt")).endswith("2\tx\n[encoding cp1252]")
    await call("edit", path="a.txt", old="x", new="é")
    assert path.read_bytes() == "Grüße, naïve café – 10 €\né\n".encode("cp1252")
    assert "cannot hold U+65E5" in await call.error("edit", path="a.txt", old="café", new="日")
    path = ctx.cwd / "b.txt"
    path.write_bytes("这是一个测试文件，用来检查编码。\nx\n".encode("gbk"))
    assert (await call("read", path="b.txt")).startswith("1\t这是一个测试文件")
    await call("edit", path="b.txt", old="x", new="好的")
    assert path.read_bytes() == "这是一个测试文件，用来检查编码。\n好的\n".encode("gbk")


async def test_r25_stray_bytes_and_unknown_encodings_survive(ctx, call):
    path = ctx.cwd / "a.txt"
    path.write_bytes("日本語テキスト".encode() + b" \xff end\nx\n")
    assert "日本語テキスト \ufffd end" in await call("read", path="a.txt")
    await call("edit", path="a.txt", old="x", new="ü")
    assert path.read_bytes() == "日本語テキスト".encode() + b" \xff end\n\xc3\xbc\n"
    assert "U+FFFD" in await call.error("edit", path="a.txt", old="ü", new="\ufffd")
    path = ctx.cwd / "b.txt"
    path.write_bytes("テスト文書です\nx\n".encode("cp932"))
    before = path.read_bytes()
    await call("read", path="b.txt")
    assert "cannot hold" in await call.error("edit", path="b.txt", old="x", new="é")
    await call("edit", path="b.txt", old="x", new="y")
    assert path.read_bytes() == before[:-2] + b"y\n"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_r25_decoding_gives_back_the_same_bytes(data):
    try:
        file = textio.decode(data, "f")
    except textio.BinaryFileError:
        return
    assert textio.encode(file.text, file, "f") == data


async def test_r26_loose_match_says_so_and_shows_the_real_text(ctx, call):
    path = ctx.cwd / "a.py"
    path.write_text("class A:\n\tdef f(self):\n\t\tx  = 1\n\t\treturn x\n")
    text = await call(
        "edit",
        path="a.py",
        old="    def f(self):\n        x = 1",
        new="    def f(self):\n        x = 2\n        if x:\n            pass",
    )
    assert text.startswith("Edited a.py (1 replacement).\nMatched line 2 after ignoring white space.\n")
    assert "-\t\tx  = 1\n" in text
    assert path.read_text() == (
        "class A:\n\tdef f(self):\n\t\tx = 2\n\t\tif x:\n\t\t    pass\n\t\treturn x\n"
    )


async def test_r26_loose_match_of_several_places_is_refused(ctx, call):
    path = ctx.cwd / "a.py"
    path.write_text("if a:\n    x  = 1\nif b:\n    x   = 1\n")
    before = path.read_bytes()
    assert (await call.error("edit", path="a.py", old="x = 1", new="x = 2")).startswith(
        "old text not found in a.py.\nNearest, line 2:"
    )
    assert path.read_bytes() == before


async def test_r28_loose_match_changes_only_the_span(ctx, call):
    path = ctx.cwd / "a.py"
    path.write_bytes(b"\ta = 1  \r\n\r\n  b =  2\t\nc\t=\t3   \n\xe2\x80\x9cz\xe2\x80\x9d \n")
    await call("edit", path="a.py", old="b = 2", new="b = 9")
    assert path.read_bytes() == b"\ta = 1  \r\n\r\n  b = 9\t\nc\t=\t3   \n\xe2\x80\x9cz\xe2\x80\x9d \n"


async def test_loose_match_never_starts_within_a_word(ctx, call):
    (ctx.cwd / "a.py").write_text("max  = 1\n")
    assert "not found" in await call.error("edit", path="a.py", old="  x = 1", new="  x = 2")
    assert "not found" in await call.error("edit", path="a.py", old="ax = 1", new="x = 2")


async def test_loose_deletion_takes_whole_lines(ctx, call):
    path = ctx.cwd / "a.py"
    path.write_text("def f():\n\tx = 1\n\ty = 2\n")
    await call("edit", path="a.py", old="    x = 1\n", new="")
    assert path.read_text() == "def f():\n\ty = 2\n"


WORDS = st.sampled_from(["a", "b1", "(", "=", "  ", "\t", "\n", " ", "x.y"])


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, max_size=20).map("".join), st.lists(WORDS, max_size=6).map("".join))
def test_loose_spans_differ_from_old_in_white_space_only(view, old):
    for span in matching.loose_spans(view, old):
        assert view[span.start : span.end].split() == old.split()


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab \n\r\t", max_size=30), st.data())
def test_splice_agrees_with_the_view(text, data):
    view = textio.normalise(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(view)), min_size=4, max_size=4)))
    edits = [(cuts[0], cuts[1], "N\n"), (cuts[2], cuts[3], "")]
    expected = view[: cuts[0]] + "N\n" + view[cuts[1] : cuts[2]] + view[cuts[3] :]
    got = textio.normalise(textio.splice(text, edits))
    # A CR and an LF that come together by the edit are one line end.
    assert got.replace("\n", "") == expected.replace("\n", "")
    if "\r" not in text:
        assert got == expected
