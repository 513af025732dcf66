"""Raw output becomes text for the model."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3agent.tools.support import truncate
from k3agent.tools.support.truncate import clean, excerpt, one_line


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "xlink"),
        ("\x1b(Bx\x1b=y\x1b7z", "xyz"),
        ("\x1b[2K\x1b[1Gdone", "done"),
        ("10%\r50%\r100%\nok", "100%\nok"),
        ("10%\r50%\r\nok\r\n", "50%\nok\n"),
        ("b\x08bo\x08ol\x08ld _\x08u", "bold u"),
        ("\x08x", "x"),
        ("a\x00b\x07c\td", "abc\td"),
        ("é 日本 \u2028", "é 日本 \u2028"),
        ("\x1b]unterminated\nnext", "\nnext"),
    ],
)
def test_clean(raw, text):
    assert clean(raw) == text


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab \n\r\x1b[]0;m\x07\x08\x00é", max_size=60))
def test_clean_leaves_no_control(raw):
    text = clean(raw)
    assert not set(text) & set("\r\x1b\x07\x08\x00")
    assert clean(text) == text


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abé\n", max_size=300), st.integers(20, 120))
def test_excerpt_accounts_for_every_character(tmp_path_factory, text, limit):
    path = tmp_path_factory.mktemp("x") / "out"
    path.write_text(text)
    found = excerpt(path, shown="out", max_chars=limit)
    if not found.num_cut:
        assert found.text == text.rstrip()
        return
    head, tail = found.text.split(f"\n[... {found.num_cut} characters cut; full output: out]\n")
    half = limit // 2
    assert head == text[:half].rstrip() and tail == text[len(text) - half :].rstrip().lstrip("\n")
    assert found.num_cut == len(text) - 2 * half


def test_what_is_written_faster_than_it_is_read_is_no_trap(tmp_path, monkeypatch):
    path = tmp_path / "out"
    path.write_text("first\n")

    def grows(text: str) -> str:
        assert path.stat().st_size < 1 << 20, "it reads what was written meanwhile, without end"
        with path.open("a") as stream:
            stream.write("more\n" * 1000)
        return clean(text)

    monkeypatch.setattr(truncate, "clean", grows)
    assert excerpt(path, shown="out").text == "first"


def test_one_line_hides_nothing():
    assert one_line("ls -l é") == "ls -l é"
    assert one_line("a\nb\x1b[2Kc\td\u202e\n") == r"a ⏎ b\x1b[2Kc\td\u202e"
