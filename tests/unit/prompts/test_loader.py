"""The prompt loader: strict about names and values."""

import subprocess
import sys

import pytest

from k3agent.prompts import loader


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(loader, "FOLDER", tmp_path)
    loader.load.cache_clear()
    yield tmp_path
    loader.load.cache_clear()


def test_load_gives_the_text_without_the_last_line_end(folder):
    (folder / "x").mkdir()
    (folder / "x" / "y.md").write_text("One.\n\nTwo {{ left }} alone.\n")
    assert loader.load("x/y") == "One.\n\nTwo {{ left }} alone."


@pytest.mark.parametrize("name", ["", "../secret", "/etc/passwd", "a//b", "A", "x/y.md", "a/"])
def test_names_cannot_leave_the_folder(name):
    with pytest.raises(ValueError, match="is no prompt name"):
        loader.load(name)


def test_unknown_prompt():
    with pytest.raises(LookupError, match="no prompt 'tools/nothing'"):
        loader.load("tools/nothing")


def test_render_is_strict(folder):
    (folder / "t.md").write_text("Hello {{ name }}{% if more %}, {{ more }}{% endif %}!\n")
    assert loader.render("t", name="<b>", more="") == "Hello <b>!"
    with pytest.raises(ValueError, match="lacks a value: 'name' is undefined"):
        loader.render("t", more="")
    with pytest.raises(ValueError, match="does not use extra"):
        loader.render("t", name="a", more="", extra=1)


def test_values_are_no_templates(folder):
    (folder / "t.md").write_text("{{ text }}")
    assert loader.render("t", text="{{ 7 * 7 }}") == "{{ 7 * 7 }}"


def test_loading_does_not_import_jinja2():
    code = "import k3agent.prompts.loader as l, sys; l.load('tools/read'); assert 'jinja2' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
