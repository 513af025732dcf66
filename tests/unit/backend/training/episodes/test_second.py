"""What the second edition's families stand on: real repositories, settings files that are read back."""

import random
import subprocess
from pathlib import Path

import pytest

from k3agent.backend.training.episodes import datafiles, webcode
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.families.versions import bumped
from k3agent.backend.training.episodes.gitrepo import Commit, Repository, git
from k3agent.backend.training.episodes.player import Player
from k3agent.backend.training.episodes.webproject import draw_web_project
from k3agent.backend.training.episodes.words import Words
from k3agent.backend.training.task import SECOND_EDITION


@pytest.mark.parametrize("kind", datafiles.KINDS)
def test_a_settings_file_says_what_was_drawn(kind: str) -> None:
    rng = random.Random(4)
    for _ in range(60):
        document = datafiles.draw_document(rng, Words(rng), kind)
        assert datafiles.parse(kind, document.text) == document.table, document.text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json", "{"),
        ("toml", "a = "),
        ("yaml", "a: 1\na: 2"),
        ("yaml", "  - x"),
        ("yaml", "a:\n  b: 1\n   c: 2"),
    ],
)
def test_a_broken_settings_file_is_an_error(kind: str, text: str) -> None:
    with pytest.raises(datafiles.ParseError):
        datafiles.parse(kind, text)


@pytest.mark.parametrize(("part", "version"), [("patch", "1.4.10"), ("minor", "1.5.0"), ("major", "2.0.0")])
def test_versions_count_in_numbers(part: str, version: str) -> None:
    assert bumped("1.4.9", part) == version


def test_a_repository_has_its_history_and_the_files_stay(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("now\n")
    (tmp_path / "new.txt").write_text("fresh\n")
    commits = [
        Commit("First", {"a.txt": "old\n", "new.txt": None}),
        Commit("Second", {"a.txt": "newer\n"}),
    ]
    Repository("trunk", commits, "Dana Roth", ["fix/x"]).build(str(tmp_path))
    assert git(str(tmp_path), "log", "--format=%s by %an").split("\n")[:2] == [
        "Second by Dana Roth",
        "First by Dana Roth",
    ]
    assert git(str(tmp_path), "show", "HEAD:a.txt") == "newer\n"
    assert git(str(tmp_path), "status", "--short").split("\n")[:2] == [" M a.txt", "?? new.txt"]
    assert (tmp_path / "a.txt").read_text() == "now\n"
    done = subprocess.run(["git", "branch"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "  fix/x\n* trunk\n"


def test_the_wrong_lines_of_all_ideas_show_in_their_results() -> None:
    rng = random.Random(2)
    words = Words(rng)
    seen = set()
    for _ in range(500):
        func = webcode.draw_func(rng, words, rng.choice(("js", "go")))
        assert func.line() != func.line(wrong=True)
        drawn = webcode.draw_arguments(func, rng, words)
        if drawn is not None:
            _, want, have = drawn
            assert want != have
            seen.add(func.idea.verb)
    assert seen == {idea.verb for idea in webcode.ideas()}


@pytest.mark.parametrize("language", ["js", "go"])
def test_web_projects_are_understood_by_the_facts(language: str) -> None:
    rng = random.Random(8)
    for _ in range(20):
        project = draw_web_project(rng, Words(rng), language)
        facts = Facts(project.files)
        for module in project.modules:
            for func in module.functions:
                found = facts.defined(func.name)
                assert [(item.path, item.params) for item in found] == [(module.path, tuple(func.params))]
            names = {item.name for item in facts.constants if item.path == module.path}
            numbers = {name for name, value in module.consts if value[0] not in "tf"}
            assert numbers <= names


def test_a_share_of_the_sessions_is_of_the_second_edition() -> None:
    player = Player(3, second_share=0.5)
    try:
        drawn = [player.second_family(2) for _ in range(600)]
        assert 230 < sum(bool(name) for name in drawn) < 370
        assert {name for name in drawn if name} <= set(SECOND_EDITION)
        assert not any(player.second_family(0) for _ in range(50))
        player.second_share = 0.0
        assert not any(player.second_family(2) for _ in range(50))
    finally:
        player.close()
