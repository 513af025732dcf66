"""All wordings: templates parse, use their slots, keep values verbatim, and the held-out ones differ."""

import re
import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3agent.backend.training.wordings.catalog import GOALS, goal
from k3agent.backend.training.wordings.grammar import (
    PARTS,
    TONGUES,
    Goal,
    WordingError,
    compile_template,
    expand,
    hard_templates,
    load_family,
    natural_templates,
    phrase,
    slot_names,
)
from k3agent.backend.training.wordings.overlap import worst
from k3agent.backend.training.wordings.split import ALIKE, alike, split, unlike

SAMPLE = {
    "name": "MAX_retries",
    "value": "3.5",
    "text": 'Print the "total" now.',
    "code": "x = f(a, 'b')",
    "raw": "Python",
}
_BIG = """
    list_root list_dir find_file find_text where_defined where_defined_kind where_used show_def
    show_file explain value_of set_const set_const_in set_const_from set_key rename rename_kind
    rename_file replace_text replace_text_all add_line_end add_after add_import add_docstring
    add_const delete_line delete_def add_func create_file create_file_lines run_tests fix_tests
    fix_test_named fix_func fix_bug_described refuse_out_of_scope vague unrelated
"""
BIG = frozenset(_BIG.split())


def sample_slots(chosen: Goal) -> dict[str, str]:
    """One distinct value for each slot."""
    return {
        name: SAMPLE[style] + name.upper()
        for name, style in chosen.slots.items()
        if name not in chosen.defaults
    }


@pytest.mark.parametrize("name", sorted(GOALS))
def test_every_expansion_has_every_slot(name: str) -> None:
    chosen = GOALS[name]
    for template in chosen.train + chosen.held_out + chosen.hard:
        names = slot_names(compile_template(template))
        assert set(chosen.slots) >= names >= set(chosen.slots) - set(chosen.defaults), template


@pytest.mark.parametrize("name", sorted(GOALS))
def test_no_template_stands_twice(name: str) -> None:
    chosen = GOALS[name]
    everything = chosen.train + chosen.held_out + chosen.hard
    assert len(set(everything)) == len(everything)


def test_the_names_of_big_goals_exist() -> None:
    assert set(GOALS) >= BIG


@pytest.mark.parametrize("name", sorted(GOALS))
def test_enough_wordings(name: str) -> None:
    chosen = GOALS[name]
    assert len(chosen.train) >= 80
    assert len(chosen.held_out) >= 4
    assert len(chosen.hard) >= (4 if name in BIG else 0)


@pytest.mark.parametrize("name", sorted(GOALS))
def test_nothing_held_out_is_like_something_trained(name: str) -> None:
    chosen = GOALS[name]
    for template in chosen.held_out:
        other = max(chosen.train, key=lambda text: alike(template, text))
        assert alike(template, other) <= ALIKE, f"{template!r} against {other!r}"


@pytest.mark.parametrize("name", sorted(hard_templates()))
def test_hard_templates_share_at_most_60_percent_of_their_words(name: str) -> None:
    chosen = GOALS[name]
    for template in hard_templates()[name]:
        share, other = worst(template, chosen.train)
        assert share <= 0.6, f"{template!r} against {other!r}"


@pytest.mark.parametrize("name", sorted(natural_templates()))
def test_natural_lines_are_held_out_and_never_trained(name: str) -> None:
    chosen, lines = GOALS[name], natural_templates()[name]
    assert len(chosen.held_out) >= 4 and set(chosen.held_out) <= set(lines)
    assert not set(chosen.held_out) & set(chosen.train) and not set(lines) & set(chosen.hard)
    for line in set(lines) - set(chosen.held_out):
        assert max(alike(line, other) for other in chosen.train) >= ALIKE, line


def test_natural_lines_say_nothing_that_another_goal_is_trained_on() -> None:
    def plain(text: str) -> str:
        return text.lower().rstrip(".?!")

    trained: dict[str, set[str]] = {}
    for chosen in GOALS.values():
        for text in chosen.train:
            trained.setdefault(plain(text), set()).add(chosen.name)
    for name, lines in natural_templates().items():
        for line in lines:
            assert name in trained.get(plain(line), {name}), line


def test_all_of_the_first_edition_has_natural_lines_in_english_alone() -> None:
    families = ("add", "change", "create", "everyday", "inspect", "limits", "repair")
    assert set(natural_templates()) == {name for family in families for name in load_family(family)}
    for tongue in TONGUES:
        for name, chosen in load_family(tongue).items():
            assert not set(chosen.held_out) & set(natural_templates().get(name, ())), name


def test_old_held_out_wordings_are_hard_ones() -> None:
    chosen = GOALS["set_const"]
    assert set(hard_templates()["set_const"]) < set(chosen.hard)
    assert not set(chosen.hard) & set(chosen.train + chosen.held_out)


def test_what_is_alike_to_another_template_is_left_out() -> None:
    lines = ("show me {x} now please", "where does it live", "a b c d", "a b c e f")
    assert unlike(lines, ("show me {y} now", "[please] give it a b c")) == (
        "where does it live",
        "a b c d",
        "a b c e f",
    )
    assert unlike(("a b c d", "a b c f"), ("a b c e", "z")) == ()


def test_a_fair_share_is_held_out() -> None:
    held_out = sum(len(chosen.held_out) for chosen in GOALS.values())
    assert 0.03 < held_out / sum(len(chosen.train) for chosen in GOALS.values()) < 0.3


def test_templates_of_earlier_trainings_are_never_held_out() -> None:
    seen = ("show me a map", "draw the plan")
    fresh = ("show me a map please", *(f"{'ab'[i % 2] * i}x {'cd'[i % 2] * i}y {{x}}" for i in range(1, 41)))
    train, held_out = split(seen, fresh)
    assert set(seen) < set(train) and "show me a map please" in train
    assert 4 < len(held_out) < 25 and set(train) | set(held_out) == set(seen + fresh)


@pytest.mark.parametrize("name", sorted(GOALS))
def test_templates_are_tidy(name: str) -> None:
    rng = Random(1)
    chosen = GOALS[name]
    for template in chosen.train + chosen.held_out + chosen.hard:
        for _ in range(4):
            text = expand(template, rng)
            assert "  " not in text and text == text.strip(), template
            assert not re.search(r" (,|\.(?![a-z]))", text), template


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", sorted(GOALS))
def test_values_survive_in_every_template(name: str, part: str) -> None:
    chosen = GOALS[name]
    rng = Random(7)
    slots = sample_slots(chosen)
    for template in getattr(chosen, part):
        only = Goal("g", chosen.slots, (template,), (template,), chosen.light, chosen.defaults)
        for _ in range(6):
            text = phrase(only, slots, rng)
            for value in slots.values():
                assert value in text, (template, text)


VALUE = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=40
).filter(lambda value: value.strip() == value)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_value_survives(data: st.DataObject) -> None:
    chosen = GOALS[data.draw(st.sampled_from(sorted(GOALS)))]
    slots = {name: data.draw(VALUE) for name in chosen.slots if name not in chosen.defaults}
    rng = Random(data.draw(st.integers(0, 2**32)))
    for part in PARTS:
        text = phrase(chosen, slots, rng, part)
        for value in slots.values():
            assert value in text


def test_same_seed_same_phrase() -> None:
    slots = {"name": "LIMIT", "value": "4"}
    assert [phrase(goal("set_const"), slots, Random(3)) for _ in range(5)] == [
        phrase(goal("set_const"), slots, Random(3)) for _ in range(5)
    ]


def test_without_noise_the_template_is_kept() -> None:
    only = Goal("g", {"name": "name"}, (), ("show me {name!} now",))
    assert {phrase(only, {"name": "a_b"}, Random(i), "held_out", noise=False) for i in range(20)} == {
        "show me a_b now"
    }


def test_quoting_is_the_same_for_all_names_of_a_message() -> None:
    only = Goal("g", {"old": "name", "new": "name"}, (), ("rename {old} to {new}",))
    seen = {phrase(only, {"old": "a", "new": "b"}, Random(i), "held_out", noise=False) for i in range(200)}
    assert seen == {"rename a to b", "rename `a` to `b`", "rename 'a' to 'b'", 'rename "a" to "b"'}


def test_text_with_quotation_marks_gets_another_mark() -> None:
    only = Goal("g", {"text": "text"}, (), ("find {text}",))
    for i in range(40):
        text = phrase(only, {"text": 'say "hi"'}, Random(i), "held_out", noise=False)
        assert text in ("find 'say \"hi\"'", 'find `say "hi"`')


def test_grammar() -> None:
    assert {expand("[a|b|]x", Random(i)) for i in range(40)} == {"ax", "bx", "x"}
    assert {expand("(a|b[c])", Random(i)) for i in range(40)} == {"a", "b", "bc"}
    assert expand("f(x) {y!}", Random(0)) == "f(x) {y!}"
    assert expand("a\\nb \\[c\\]", Random(0)) == "a\nb [c]"


@pytest.mark.parametrize("template", ["a|b", "(a", "a]", "[a)"])
def test_broken_templates_are_named(template: str) -> None:
    with pytest.raises(WordingError, match="template"):
        compile_template(template)


def test_options_with_different_slots_are_refused() -> None:
    with pytest.raises(WordingError, match="different slots"):
        slot_names(compile_template("x [{a}]"))


def test_missing_slot_and_unknown_names_are_named() -> None:
    with pytest.raises(WordingError, match="value"):
        for i in range(50):
            phrase(goal("set_const"), {"name": "A"}, Random(i))
    with pytest.raises(WordingError, match="nonsense"):
        goal("nonsense")
    with pytest.raises(WordingError, match="no_family"):
        load_family("no_family")


def test_noise_varies_capitals_ends_and_politeness() -> None:
    only = Goal("g", {"name": "name"}, ("show me the code of {name}",), ())
    seen = {phrase(only, {"name": "do_it"}, Random(i)) for i in range(600)}
    assert len(seen) > 60
    assert any(text.startswith("show") for text in seen) and any(text.startswith("Show") for text in seen)
    assert any(text.endswith(".") for text in seen) and any(text.endswith("it") for text in seen)
    assert any("lease" in text for text in seen)


def test_phrase_is_fast_enough_for_a_generator() -> None:
    rng = Random(0)
    chosen = goal("rename")
    slots = {"old": "load_data", "new": "read_rows"}
    phrase(chosen, slots, rng)
    start = time.process_time()
    for _ in range(5000):
        phrase(chosen, slots, rng)
    assert 5000 / (time.process_time() - start) > 10_000


def test_an_optional_slot_has_a_default_and_can_be_given() -> None:
    only = Goal(
        "g", {"name": "name", "kind": "raw"}, (), ("delete the {kind} {name!}",), False, {"kind": "function"}
    )
    assert phrase(only, {"name": "a"}, Random(0), "held_out", noise=False) == "delete the function a"
    given = {"name": "a", "kind": "class"}
    assert phrase(only, given, Random(0), "held_out", noise=False) == "delete the class a"


def test_noise_never_changes_a_slot_even_when_it_is_an_ordinary_word() -> None:
    slots = {
        "old": "create the folder and should, please.",
        "new": "I'd change everything with you?",
        "path": "Find",
    }
    for i in range(3000):
        text = phrase(goal("replace_text"), slots, Random(i))
        assert all(value in text for value in slots.values()), text


def test_bare_code_at_the_end_gets_no_full_stop() -> None:
    only = Goal("g", {"line": "code"}, ("add this line: {line!}",), ())
    assert all(phrase(only, {"line": "x = 1"}, Random(i)).endswith("x = 1") for i in range(500))
