"""Files for `@`, earlier prompts, the key file, figures."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from k3agent.errors import ConfigError
from k3agent.tui import figures
from k3agent.tui.commands import command_candidates
from k3agent.tui.files import FileIndex
from k3agent.tui.keymap import KNOWN, load_keymap
from k3agent.tui.prompts import PromptHistory
from k3agent.tui.widgets.prompt import Pastes
from k3agent.types import Usage


def index_of(root: Path, *names: str) -> FileIndex:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    index = FileIndex(root)
    index.refresh()
    return index


def test_files_are_found_by_name_then_by_letters(tmp_path: Path) -> None:
    index = index_of(tmp_path, "src/loop.py", "loop/other.py", "docs/a loop.md", "src/long_option.py")
    assert [candidate.shown for candidate in index.find("loop")] == [
        "src/loop.py",
        "docs/a loop.md",
        "loop/other.py",
        "src/long_option.py",
    ]
    assert index.find("LOOP")[0].value == "@src/loop.py "
    assert index.find("a loop")[0].value == '@"docs/a loop.md" '
    assert index.find("nothing like it") == []


def test_ignored_files_are_left_out(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("build/\n")
    index = index_of(tmp_path, "build/made.py", "new.py")
    assert index.find("made") == []
    assert [candidate.shown for candidate in index.find("new")] == ["new.py"]


def test_a_word_is_found_among_a_million_names(tmp_path: Path) -> None:
    index = FileIndex(tmp_path)
    names = b"\n".join(b"packages/part%d/module_%d.py" % (at % 997, at) for at in range(1_000_000))
    index._names = b"\n" + names + b"\n"
    index._lower = index._names.lower()
    found = index.find("module_777777")
    assert found[0].shown == "packages/part117/module_777777.py"


def test_unusual_names_do_no_harm(tmp_path: Path) -> None:
    index = index_of(tmp_path, "[red]x[/].txt", "日本語.txt", "a\x1b[31m.txt")
    assert index.find("日本")[0].shown == "日本語.txt"
    assert index.find("[red]")[0].shown == "[red]x[/].txt"
    assert len(index.find("txt")) == 3


def test_earlier_prompts_come_back_and_the_draft_stays(tmp_path: Path) -> None:
    path = tmp_path / "deep/prompts.jsonl"
    first = PromptHistory(path)
    first.add("one\ntwo")
    first.add("three")
    first.add("three")
    again = PromptHistory(path)
    assert again.move(-1, "half written") == "three"
    assert again.move(-1, "") == "one\ntwo"
    assert again.move(-1, "") is None
    assert again.move(1, "") == "three"
    assert again.move(1, "") == "half written"
    assert again.move(1, "") is None


def test_a_torn_line_costs_one_prompt_only(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"good"\n"to\n17\n"also"\n')
    assert PromptHistory(path).entries == ["good", "also"]


def test_pastes_are_folded_and_unfolded() -> None:
    pastes = Pastes()
    text = "\n".join(map(str, range(10_000)))
    token = pastes.fold(text)
    assert token == "[pasted #1: 10,000 lines]"
    assert pastes.unfold(f"see {token}!") == f"see {text}!"
    assert pastes.unfold("[pasted #7: 3 lines]") == "[pasted #7: 3 lines]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('summit = "enter"', "Did you mean submit?"),
        ("submit = 3", "is no key"),
        ('search = "ctrl+t"', "ctrl+t stands for both"),
        ("search = ", "no valid TOML"),
    ],
)
def test_a_wrong_key_file_is_explained(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said.replace("?", r"\?").replace("+", r"\+")):
        load_keymap(path)


def test_own_keys_are_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    assert load_keymap(path) == {}
    path.write_text('search = "ctrl+b, f3"\n')
    assert load_keymap(path) == {"search": "ctrl+b,f3"}
    assert all(key.help for key in KNOWN.values())


def test_figures_are_short() -> None:
    assert [figures.tokens(count) for count in (7, 1234, 123_456, 2_500_000)] == [
        "7",
        "1.2k",
        "123k",
        "2.50M",
    ]
    assert figures.money(0.01234) == "$0.0123" and figures.money(3.5) == "$3.50" and figures.money(0) == ""
    assert [figures.seconds(value) for value in (3, 75, 7300)] == ["3 s", "1 min 15 s", "2 h 01 min"]
    usage = Usage(input_tokens=1000, cached_tokens=900, output_tokens=50)
    assert figures.usage_line(usage, 0.5) == "1.0k in (90 % cached) · 50 out · $0.50"


def test_commands_are_found_by_name_and_help() -> None:
    assert command_candidates("re")[0].shown.strip() in {"/rewind", "/retry"}
    assert any(candidate.value == "/quit" for candidate in command_candidates("resumed"))
    assert len(command_candidates("")) > 10
