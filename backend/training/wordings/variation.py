"""Other words for the literal text of a template: hand-written clusters of synonyms, `texts/synonyms.txt`.

API: `vary(pieces, goal, rng)` replaces words and phrases in place; slots are never looked at. Used for training
wordings only, so that a goal is known by what is asked for and not by the exact words of its templates.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Protocol, TypeVar

SHARE = 0.4
"""Of all words and phrases that have other ones, those that are replaced."""
LONGEST = 7
"""Words of the longest phrase in the file."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FILE = Path(__file__).parent / "texts" / "synonyms.txt"
_WORD = re.compile(r"[A-Za-z0-9][\w'-]*")
_SHORT = re.compile(r"[^aeiou]*[aeiou][^aeiouwxy]")
_ARTICLE = re.compile(r"(?<![\w'-])([Aa])n? $")
_SENTENCE = re.compile(r"(?:^|[.:;?!,(\n]) ?$")
_PRONOUN = re.compile(r"(?<![\w'-])i(?![\w-])")
_PRONOUN_AFTER = re.compile(r" (?:it|them|me|this|that|those)\b")
_PARTICLE = re.compile(r" (?:up|out|off|away|down|back|on|over|right|about|through|in)$")
"""With a pronoun as object these stand after it ("sort it out"), so such verbs are left out there."""
_LIKE_CONSONANT = ("use", "uni", "one", "util")
_BE = _words("""
    be is are was were been being isn't aren't wasn't get gets got has have had having not
""")
_SUBJECTS = _words("""
    i we you they he she who it somebody someone nobody everybody boss colleague
""")
_BEFORE_VERB = _SUBJECTS | _words("""
    to please pls and then just don't not let's should must can could would will or kindly also now
    never do does did doesn't didn't can't quickly may might shall people me us them first simply
""")
_BEFORE_NOUN = _words("""
    the a an this that these those any no all each every my our your its their new another right wrong
    correct current old other some one first last second same of with whole single more two many few
    unused missing default for unit without only which latest
""")
_BOTH = _words("""
    change update list name run move count print output return use import need show display fix repair
    correct report mark check tick bump raise increase commit stage strike fail pass crash touch review
    design draw load document wrap open clear mention call place put set save store hold exchange switch
    shift cut drop undo revert restore pin upgrade find start build test comment link reference throw
    ignore remember complain introduce edit value bring section head spot search look title state sort
    require add write install describe
""")
"""Base forms that are also nouns or adjectives: they count as verbs only where a verb can stand."""


class SynonymError(ValueError):
    """A line of synonyms.txt that cannot be used; the text names it and says what to change."""


class HasName(Protocol):
    """A slot of a template."""

    @property
    def name(self) -> str: ...


AnySlot = TypeVar("AnySlot", bound=HasName)


@dataclass(frozen=True, slots=True)
class Rule:
    """What may stand for a word or phrase, in which place, for which goals."""

    role: str
    """`phrase` anywhere; `base`, `s`, `ing`, `past`, `participle` (or `either`) where that form of a verb can stand,
    `noun` where a noun can.
    """
    after: str
    """What follows the slot after the phrase, for phrases around a slot."""
    targets: tuple[tuple[str, str], ...]
    """(in the phrase's place, after the slot)"""
    only: tuple[str, ...]
    never: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cluster:
    """One line of the file."""

    kind: str
    sources: tuple[str, ...]
    others: tuple[str, ...]
    only: tuple[str, ...]
    never: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Synonyms:
    """The file's content, by phrase."""

    words: dict[str, tuple[Rule, ...]]
    around: dict[str, tuple[Rule, ...]]
    kept: frozenset[str]


@cache
def _read() -> tuple[list[Cluster], dict[str, tuple[str, ...]], frozenset[str]]:
    """(clusters, irregular forms by base form, kept phrases) of the file."""
    clusters: list[Cluster] = []
    forms: dict[str, tuple[str, ...]] = {}
    kept: set[str] = set()
    section = ""
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("@"):
            section = line[1:].strip()
        elif section == "forms":
            base, *rest = line.split()
            if len(rest) != 4:
                raise SynonymError(
                    f"{line!r} has {len(rest) + 1} forms; write base, -s, -ing, past, participle"
                )
            forms[base] = tuple(rest)
        elif section == "keep":
            kept |= set(_members(line))
        elif section in ("verb", "noun", "phrase"):
            clusters.append(_cluster(section, line))
        else:
            raise SynonymError(f"{line!r} stands under @{section}; use forms, keep, verb, noun or phrase")
    return clusters, forms, frozenset(kept)


def clusters() -> list[Cluster]:
    """All clusters of the file."""
    return _read()[0]


def _members(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split("|") if item.strip())


def _cluster(kind: str, line: str) -> Cluster:
    """The cluster of one line."""
    text, _, limits = line.partition(" ;")
    sources, _, others = text.partition(" > ")
    limit, *patterns = limits.split() or [""]
    if limit not in ("", "only", "not") or bool(limit) != bool(patterns):
        raise SynonymError(f"cannot read the goals of {line!r}; write `; only GOALS` or `; not GOALS`")
    found = Cluster(
        kind,
        _members(_PRONOUN.sub("I", sources)),
        _members(_PRONOUN.sub("I", others)),
        tuple(patterns) if limit == "only" else (),
        tuple(patterns) if limit == "not" else (),
    )
    if len(found.sources) + len(found.others) < 2:
        raise SynonymError(f"only one member in {line!r}; write at least two between `|`")
    return found


def verb_forms(verb: str) -> tuple[str, str, str, str, str]:
    """Base, -s, -ing, past and participle of a verb; only the first word of several is inflected."""
    base, space, rest = verb.partition(" ")
    forms = _read()[1].get(base) or _regular(base)
    return tuple(form + space + rest for form in (base, *forms))  # type: ignore[return-value]


def _regular(base: str) -> tuple[str, str, str, str]:
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ies", base + "ing", base[:-1] + "ied", base[:-1] + "ied"
    third = base + ("es" if base.endswith(("s", "sh", "ch", "x", "z", "o")) else "s")
    if base.endswith("ie"):
        return third, base[:-2] + "ying", base + "d", base + "d"
    stem = base[:-1] if base.endswith("e") and not base.endswith(("ee", "ye", "oe")) else base
    if _SHORT.fullmatch(base):
        stem += base[-1]
    past = base + "d" if base.endswith("e") else stem + "ed"
    return third, stem + "ing", past, past


def plural(noun: str) -> tuple[str, str]:
    """Singular and plural of a noun, which may give its plural after a slash."""
    one, slash, many = noun.partition("/")
    if slash:
        return one, many
    if one.endswith("y") and one[-2] not in "aeiou":
        return one, one[:-1] + "ies"
    return one, one + ("es" if one.endswith(("s", "sh", "ch", "x", "z")) else "s")


@cache
def synonyms() -> Synonyms:
    """The file's rules by the phrase that they replace."""
    words: dict[str, list[Rule]] = {}
    around: dict[str, list[Rule]] = {}
    for cluster in clusters():
        members = (*cluster.sources, *cluster.others)
        limits = cluster.only, cluster.never
        if cluster.kind == "verb":
            _add_verbs(words, cluster, members)
        elif cluster.kind == "noun":
            for number in (0, 1):
                forms = [plural(member)[number] for member in members]
                for source in forms[: len(cluster.sources)]:
                    _add(words, source, Rule("noun", "", _others(forms, source), *limits))
        else:
            for source in cluster.sources:
                before, slot, after = source.partition(" _")
                targets = tuple(_around(member) for member in members if member != source)
                rule = Rule("phrase", after.strip(), targets, *limits)
                _add(around if slot else words, before.lower(), rule)
    return Synonyms(
        {key: tuple(rules) for key, rules in words.items()},
        {key: tuple(rules) for key, rules in around.items()},
        _read()[2],
    )


def _add(table: dict[str, list[Rule]], key: str, rule: Rule) -> None:
    if len(key.split()) > LONGEST:
        raise SynonymError(f"{key!r} has more than {LONGEST} words; shorten it or raise LONGEST")
    if rule.targets:
        table.setdefault(key, []).append(rule)


def _others(forms: Sequence[str], source: str) -> tuple[tuple[str, str], ...]:
    return tuple((form, "") for form in dict.fromkeys(forms) if form != source)


def _around(member: str) -> tuple[str, str]:
    """The parts of a phrase before and after its slot."""
    before, _, after = member.partition(" _")
    return before, after.strip()


def _add_verbs(words: dict[str, list[Rule]], cluster: Cluster, members: tuple[str, ...]) -> None:
    """All forms of the verbs of a cluster; a past that is also the participle is decided by what stands before."""
    table = [verb_forms(member) for member in members]
    limits = cluster.only, cluster.never
    for mine in table[: len(cluster.sources)]:
        for index, role in enumerate(("base", "s", "ing")):
            targets = _others([forms[index] for forms in table], mine[index])
            _add(words, mine[index], Rule(role, "", targets, *limits))
        if mine[3] == mine[0]:
            continue
        if mine[3] == mine[4]:
            alike = [forms[3] for forms in table if forms[3] == forms[4]]
            _add(words, mine[3], Rule("either", "", _others(alike, mine[3]), *limits))
            apart = [forms for forms in table if forms[3] != forms[4]]
            _add(words, mine[3], Rule("past", "", _others([f[3] for f in apart], mine[3]), *limits))
            _add(words, mine[3], Rule("participle", "", _others([f[4] for f in apart], mine[3]), *limits))
            continue
        _add(words, mine[3], Rule("past", "", _others([f[3] for f in table], mine[3]), *limits))
        role = "participle" if mine[4] == mine[0] else "either"  # "run" is mostly the base form
        _add(words, mine[4], Rule(role, "", _others([f[4] for f in table], mine[4]), *limits))


@cache
def _wanted(goal: str, only: tuple[str, ...], never: tuple[str, ...]) -> bool:
    """Whether a rule with these limits is for the goal."""
    if only:
        return any(fnmatchcase(goal, pattern) for pattern in only)
    return not any(fnmatchcase(goal, pattern) for pattern in never)


def _stands(role: str, word: str, before: str, text: str, end: int, first: bool) -> bool:
    """Whether a word can have the role at its place; `before` is the text of the piece up to it."""
    previous = before.split()[-1].lower() if before.split() else ""
    starts = bool(_SENTENCE.search(before)) and (first or bool(before.strip()))
    after_slot = not before.strip() and not first
    following = text[end:]
    if role == "phrase":
        return True
    if role == "noun":
        return not {word, word.removesuffix("s")} & _BOTH or previous in _BEFORE_NOUN
    if role == "base":
        if previous in _BEFORE_NOUN and previous != "that":
            return False
        nominal = following.startswith((" of ", ":")) or (word in _BOTH and after_slot)
        return not nominal and (word not in _BOTH or starts or previous in _BEFORE_VERB)
    if role == "s":
        verbal = previous in ("that", "which", "who", "it", "nobody", "he", "she", "what") or after_slot
        return verbal and (
            word[:-1] not in _BOTH or (previous not in ("which", "what") and following[:1] == " ")
        )
    if role == "ing":
        return previous not in ("the", "a", "an")
    if role == "participle":
        return previous in _BE
    return role == "either" or previous in _SUBJECTS


@lru_cache(maxsize=30_000)
def _spots(text: str, first: bool, goal: str) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
    """The words and phrases of a literal that may be replaced: where they are and by what."""
    table = synonyms()
    words = list(_WORD.finditer(text))
    found: list[tuple[int, int, tuple[str, ...]]] = []
    at = 0
    while at < len(words):
        start, step = words[at].start(), 1
        for count in range(min(LONGEST, len(words) - at), 0, -1):
            end = words[at + count - 1].end()
            key = text[start:end].lower()
            if key in table.kept:
                step = count
                break
            targets = [
                target
                for rule in table.words.get(key, ())
                if _wanted(goal, rule.only, rule.never)
                and _stands(rule.role, key, text[:start], text, end, first)
                for target, _ in rule.targets
                if not (_PRONOUN_AFTER.match(text, end) and _PARTICLE.search(target))
            ]
            if targets:
                found.append((start, end, tuple(dict.fromkeys(targets))))
                step = count
                break
        at += step
    return tuple(found)


def replaced(text: str, start: int, end: int, target: str) -> str:
    """The text with another phrase in a place, with its capital and the article before it adapted."""
    source = text[start:end]
    if source[:1].isupper() and not re.match(r"I\b", source):
        target = target[:1].upper() + target[1:]
    head = text[:start]
    article = _ARTICLE.search(head)
    if article:
        lowered = target.lower()
        vowel = lowered.startswith(tuple("aeiou")) and not lowered.startswith(_LIKE_CONSONANT)
        head = head[: article.start()] + article.group(1) + ("n " if vowel else " ")
    return head + target + text[end:]


@lru_cache(maxsize=30_000)
def _frames(left: str, right: str, first: bool, goal: str) -> tuple[tuple[int, int, str, str], ...]:
    """Other phrases around a slot: from where in `left`, to where in `right`, and the two new texts."""
    if not left.endswith(" "):
        return ()
    table = synonyms()
    words = list(_WORD.finditer(left))
    found: list[tuple[int, int, str, str]] = []
    for count in range(1, min(LONGEST, len(words)) + 1):
        start = words[-count].start()
        key = left[start:-1].lower()
        for rule in table.around.get(key, ()):
            end = len(rule.after) + 1 if rule.after else 0
            fits = right[:end] == f" {rule.after}" and not right[end : end + 1].isalnum() if end else True
            stands = _stands(
                "phrase" if " " in key else "base", key, left[:start], left, len(left) - 1, first
            )
            if fits and stands and _wanted(goal, rule.only, rule.never):
                found += [(start, end, before, after) for before, after in rule.targets]
    return tuple(found)


def vary(pieces: list[str | AnySlot], goal: str, rng: Random) -> None:
    """Replace some words and phrases of a filled-in template's literals by others that mean the same."""
    done: set[int] = set()
    for index in range(len(pieces) - 1):
        left = pieces[index]
        if not isinstance(left, str) or isinstance(pieces[index + 1], str) or index in done:
            continue
        right = pieces[index + 2] if index + 2 < len(pieces) else ""
        if not isinstance(right, str):
            continue
        frames = _frames(left, right, index == 0, goal)
        if frames and rng.random() < SHARE:
            start, end, before, after = frames[int(rng.random() * len(frames))]
            pieces[index] = replaced(left, start, len(left) - 1, before)
            text = (f" {after}" if after else "") + right[end:]
            if index + 2 < len(pieces):
                pieces[index + 2] = text
            elif text:
                pieces.append(text)
            done |= {index, index + 2}
    for index, piece in enumerate(pieces):
        if not isinstance(piece, str) or index in done:
            continue
        text = piece
        for start, end, targets in reversed(_spots(piece, index == 0, goal)):
            if rng.random() < SHARE:
                text = replaced(text, start, end, targets[int(rng.random() * len(targets))])
        pieces[index] = text
