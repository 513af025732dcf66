"""Other words in training's wordings: every cluster is usable, slots stay, no wish becomes another one."""

from collections import defaultdict
from fnmatch import fnmatchcase
from random import Random

import pytest

from k3agent.backend.training.wordings import variation
from k3agent.backend.training.wordings.catalog import GOALS
from k3agent.backend.training.wordings.grammar import Goal, Slot, compile_template, phrase
from k3agent.backend.training.wordings.reshape import joined
from k3agent.backend.training.wordings.variation import clusters, plural, replaced, vary, verb_forms

Pieces = list[str | Slot]


def pieces_of(template: str) -> Pieces:
    """The pieces of a template without choices."""
    return [piece for piece in compile_template(template) if isinstance(piece, (str, Slot))]


def text_of(pieces: Pieces) -> str:
    """The pieces with their slots' names."""
    return "".join(piece if isinstance(piece, str) else "{" + piece.name + "}" for piece in pieces)


def varied(template: str, goal: str, count: int = 400) -> set[str]:
    """What the template may become."""
    found = set()
    for seed in range(count):
        pieces = pieces_of(template)
        vary(pieces, goal, Random(seed))
        found.add(text_of(pieces))
    return found


def flat(name: str, part: str, rng: Random) -> list[Pieces]:
    """One expansion of each template of a goal."""
    from k3agent.backend.training.wordings.grammar import _flatten

    found: list[Pieces] = []
    for nodes in GOALS[name].templates(part):
        pieces: Pieces = []
        _flatten(nodes, rng, pieces)
        found.append(joined(pieces))
    return found


def test_there_are_many_clusters_of_each_kind() -> None:
    kinds = [cluster.kind for cluster in clusters()]
    assert len(kinds) >= 350
    assert kinds.count("verb") > 80 and kinds.count("noun") > 60 and kinds.count("phrase") > 150


def test_every_limit_names_a_goal() -> None:
    for cluster in clusters():
        for pattern in cluster.only + cluster.never:
            assert any(fnmatchcase(name, pattern) for name in GOALS), (pattern, cluster)


def test_members_are_plain_words_and_stand_once() -> None:
    for cluster in clusters():
        members = (*cluster.sources, *cluster.others)
        assert cluster.sources and len({member.lower() for member in members}) == len(members), cluster
        for member in members:
            assert (
                member.replace("_", "")
                .replace("/", "")
                .replace("'", "")
                .replace("-", "")
                .replace("+", "")
                .replace(" ", "")
                .replace(".", "")
                .isalnum()
            ), (member, cluster)
            assert member.count("_") == cluster.sources[0].count("_"), cluster


def test_every_cluster_changes_some_training_template() -> None:
    rng = Random(1)
    texts: dict[str, str] = {
        name: "\n".join(text_of(p).lower() for _ in range(6) for p in flat(name, "train", rng))
        for name in GOALS
    }
    unused = []
    for cluster in clusters():
        forms = {
            form.partition(" _")[0].lower()
            for source in cluster.sources
            for form in (
                verb_forms(source)
                if cluster.kind == "verb"
                else plural(source)
                if cluster.kind == "noun"
                else (source,)
            )
        }
        goals = [n for n in GOALS if variation._wanted(n, cluster.only, cluster.never)]
        if not any(form in texts[name] for name in goals for form in forms):
            unused.append(cluster)
    assert not unused


def test_forms_of_verbs_and_nouns() -> None:
    assert verb_forms("drop") == ("drop", "drops", "dropping", "dropped", "dropped")
    assert verb_forms("get rid of")[2] == "getting rid of"
    assert verb_forms("modify")[1:4] == ("modifies", "modifying", "modified")
    assert verb_forms("write")[3:] == ("wrote", "written")
    assert verb_forms("change")[2:4] == ("changing", "changed")
    assert plural("directory") == ("directory", "directories")
    assert plural("line of development/lines of development")[1] == "lines of development"


def test_words_are_replaced_in_their_form_and_by_their_role() -> None:
    assert "please scrap {path}" in varied("please delete {path}", "delete_file")
    assert "{path} should be thrown away" in varied("{path} should be removed", "delete_file")
    assert varied("the change of {path}", "set_key") == {"the change of {path}"}
    assert varied("show me the git diff of {path}", "git_diff") >= {"give me the git diff of {path}"}
    assert varied("find out about {name}", "find_file") == {"find out about {name}"}


def test_phrases_around_a_slot() -> None:
    found = varied("replace {old} with {new} in {path}", "replace_text")
    assert {"swap {old} for {new} in {path}", "turn {old} into {new} in {path}"} <= found
    assert varied("replace {old} without {new}", "replace_text") & {"swap {old} forout {new}"} == set()
    assert "walk me through {name}" in varied("explain {name}", "explain")
    assert "walk me through {name}" not in varied("explain {name}", "list_defs")


def test_articles_and_capitals_follow() -> None:
    assert replaced("there is a bug in it", 11, 14, "error") == "there is an error in it"
    assert replaced("an error", 3, 8, "unit") == "a unit"
    assert replaced("Delete it", 0, 6, "scrap") == "Scrap it"
    assert replaced("I'd like to see", 0, 11, "we want to") == "we want to see"


def test_a_pronoun_never_follows_a_particle() -> None:
    for text in varied("please fix it", "fix_func") | varied("delete it now", "delete_it"):
        assert not any(f" {word} it" in text for word in ("up", "out", "off", "away", "down")), text


def test_held_out_and_hard_wordings_stay_as_written() -> None:
    texts = {
        "train": "please delete {name!}",
        "held_out": "could you delete {name!}",
        "hard": "so delete {name!}",
    }
    only = Goal(
        "delete_def", {"name": "name"}, *((texts[p],) for p in ("train", "held_out")), hard=(texts["hard"],)
    )
    for part in ("held_out", "hard"):
        seen = {phrase(only, {"name": "a_b"}, Random(i), part, noise=False) for i in range(200)}
        assert seen == {texts[part].replace("{name!}", "a_b")}
    assert len({phrase(only, {"name": "a_b"}, Random(i), noise=False) for i in range(200)}) > 4


@pytest.mark.parametrize("name", sorted(GOALS))
def test_slots_stay_in_their_number(name: str) -> None:
    rng = Random(3)
    for before in flat(name, "train", rng):
        after = list(before)
        vary(after, name, rng)
        assert sorted(p.name for p in after if isinstance(p, Slot)) == sorted(
            p.name for p in before if isinstance(p, Slot)
        )
        assert "  " not in text_of(after), (text_of(before), text_of(after))


def test_a_fair_share_of_wordings_changes() -> None:
    rng = Random(4)
    changed = total = 0
    for name in GOALS:
        for before in flat(name, "train", rng):
            after = list(before)
            vary(after, name, rng)
            changed += after != before
            total += 1
    assert 0.2 < changed / total < 0.6


def test_no_wording_becomes_one_of_another_goal() -> None:
    """The same words around the same slots in another goal and not in its own: hardly ever."""
    rng = Random(5)
    owners: dict[str, set[str]] = defaultdict(set)
    for name in GOALS:
        for part in ("train", "held_out", "hard"):
            for pieces in flat(name, part, rng):
                owners[text_of(pieces)].add(name)
    wrong = []
    total = 0
    for name in GOALS:
        for before in flat(name, "train", rng):
            after = list(before)
            vary(after, name, rng)
            found = owners.get(text_of(after), {name})
            total += after != before
            if name not in found:
                wrong.append((name, text_of(before), text_of(after), found))
    assert len(wrong) < total / 500, wrong


def test_a_broken_line_is_named() -> None:
    with pytest.raises(variation.SynonymError, match="lonely"):
        variation._cluster("verb", "lonely")
    with pytest.raises(variation.SynonymError, match="goals"):
        variation._cluster("verb", "one | two ; maybe set_key")


def test_a_base_form_that_is_also_the_participle_stays_a_base_form() -> None:
    assert not any("kicked" in text or "started" in text for text in varied("run {path} now", "run_script"))
    assert any("started" in text or "executed" in text for text in varied("{path} must be run", "run_script"))
