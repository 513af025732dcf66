"""Requests and answers in other languages: enough wordings, values kept, known sentences translated."""

from random import Random

import pytest

from k3agent.backend.training.episodes import tongues
from k3agent.backend.training.episodes.facts import Facts
from k3agent.backend.training.episodes.player import LONG, Player, draw_plan
from k3agent.backend.training.episodes.project import draw_project
from k3agent.backend.training.episodes.registry import Setting
from k3agent.backend.training.episodes.session import Outcome, Session, played
from k3agent.backend.training.episodes.words import Words
from k3agent.backend.training.wordings import catalog
from k3agent.backend.training.wordings.grammar import compile_template, slot_names
from k3agent.backend.training.wordings.split import ALIKE, alike
from k3agent.backend.training.wordings.tongues import GOALS, phrase

MAIN = """
    list_root find_file find_text where_defined explain value_of set_const set_key rename replace_text
    add_line_end create_file run_tests fix_tests
"""
EACH = [(language, name) for language, goals in GOALS.items() for name in goals]


@pytest.mark.parametrize("language", tongues.LANGUAGES)
def test_all_main_goals_are_there(language: str) -> None:
    assert set(GOALS[language]) >= set(MAIN.split())


@pytest.mark.parametrize(("language", "name"), EACH)
def test_enough_wordings_with_the_slots_of_the_goal(language: str, name: str) -> None:
    chosen = GOALS[language][name]
    assert len(chosen.train) >= 25
    assert len(chosen.held_out) >= 3
    assert len({*chosen.train, *chosen.held_out}) == len(chosen.train) + len(chosen.held_out)
    assert set(chosen.slots) == set(catalog.goal(name).slots)
    for template in chosen.train + chosen.held_out:
        names = slot_names(compile_template(template))
        assert set(chosen.slots) >= names >= set(chosen.slots) - set(chosen.defaults), template
    for template in chosen.held_out:
        assert all(alike(template, other) <= ALIKE for other in chosen.train), template


@pytest.mark.parametrize(("language", "name"), EACH)
def test_values_are_kept(language: str, name: str) -> None:
    rng = Random(3)
    slots = {slot: f"MAX {slot} (ÄÖ)" for slot in GOALS[language][name].slots}
    for _ in range(60):
        text = phrase(language, name, slots, rng, rng.choice(("train", "held_out", "hard")))
        given = [value for slot, value in slots.items() if slot not in GOALS[language][name].defaults]
        assert all(value in text for value in given), text


@pytest.mark.parametrize(
    ("answer", "german", "chinese"),
    [
        (
            "There is no `a`; I took `ab`, the only one like it. `ab` is `3` (`x.py`, line 4).",
            "`a` gibt es nicht; ich habe `ab` genommen, nur das passt. `ab` ist `3` (`x.py`, Zeile 4).",
            "没有 `a`；我用了唯一相近的 `ab`。`ab` 是 `3`（`x.py` 第 4 行）。",
        ),
        (
            "The tests fail: 1 failed.\n- `test_a`: assert 1 == 2",
            "Die Tests schlagen fehl: 1 failed.\n- `test_a`: assert 1 == 2",
            "测试失败：1 failed.\n- `test_a`: assert 1 == 2",
        ),
        ("`a.md`:\n```\n# A\n```\nx\n```\n```", "Das steht in `a.md`:\n```\n# A\n```\nx\n```\n```", None),
        ("It takes `a` and `b`.", "Sie nimmt `a` und `b`.", "参数是 `a` 和 `b`。"),
        ("Something that no oracle says.", "", ""),
    ],
)
def test_answers_are_translated_by_sentences(answer: str, german: str, chinese: str | None) -> None:
    assert tongues.translated(answer, "german") == german
    if chinese is not None:
        assert tongues.translated(answer, "chinese") == chinese


@pytest.mark.parametrize("language", tongues.LANGUAGES)
def test_nearly_all_oracles_are_understood_and_no_english_answer_is(language: str) -> None:
    player = Player(21, 0, strict=True)
    rng, solved, count = Random(language), 0, 0
    try:
        while count < 25:
            words = Words(rng)
            project = draw_project(rng, words)
            plan = draw_plan(Setting(Facts(dict(project.files)), rng, words, project), LONG, language)
            if plan is None:
                continue
            files = dict(project.files)
            if plan.prepare is not None:
                plan.prepare(files)
            root = player.box.workspace.root
            player.box.workspace.reset(files)
            if plan.setup is not None:
                plan.setup(root)
            player.box.new_session()
            session = Session(player.box, rng, max_chars=10**6)
            session.user(plan.prompt or "")
            answer = played(plan, session)[1]
            after = player.box.workspace.snapshot()
            solved += plan.check(Outcome(files, after, answer, root)) is None
            english = Outcome(files, after, "Done, it is not there, all tests pass.", root)
            assert plan.check(english) is not None
            count += 1
    finally:
        player.close()
    assert solved >= 23
