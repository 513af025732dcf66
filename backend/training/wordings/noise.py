"""The habits of people who type: capitals, stops, greetings, politeness, context sentences, typing slips.

Works on a message still in pieces, so that slot values (fixed pieces) are never touched.
"""

import re
from random import Random

_VERBS = """
    add adjust append apply bring bugfix build bump carry change check clean comment complete
    continue convert copy correct count create cut debug define delete describe disable display
    document double drop dump edit enable ensure erase execute explain extend figure find fix flip
    generate get give go grab grep have hunt import include increase initialise insert inspect
    introduce investigate jump keep kick launch lay let list locate look lower make mark modify move
    name open overwrite paste place point prepend print purge push put raise read relocate
    remove rename repair rephrase replace report reset rework rewrite rid run save scan search see
    set show sort spell start store strip study substitute summarise summarize swap switch take tell
    throw tick trace track turn type update use verify view walk wipe write
"""
IMPERATIVES = frozenset(_VERBS.split())
"""Verbs that open a command; only such messages take `please` or `could you` in front."""

_OPENERS = (
    "please ", "please ", "please ", "pls ", "can you ", "can you ", "could you ", "could you please ",
    "can you please ", "would you ", "just ", "quickly ", "ok, ", "ok ", "I need you to ",
    "I'd like you to ", "I want you to ", "you should ", "go ahead and ", "let's ", "kindly ", "next: ",
    "task: ", "todo: ", "quick one: ",
)  # fmt: skip
_ASKING = ("can you ", "could you ", "would you ", "could you please ", "can you please ")
_GREETINGS = (
    "Hi, ", "Hi! ", "Hey, ", "hey ", "hi ", "Hello, ", "Hello! ", "Hi there, ", "Morning! ",
    "Hey there! ", "yo, ",
)  # fmt: skip
_CLOSERS = (
    ", please", " please", ", thanks", " thanks", ". Thanks!", ". Thank you!", " for me", ", ok?",
    ", thx", ". Cheers!", " real quick", " when you get a chance",
)  # fmt: skip
_BEFORE = (
    "I'm cleaning up the code base.", "I'm new to this project.", "Small thing.", "Quick task.",
    "We are about to release.", "I'm preparing a pull request.", "I'm reviewing this repo.",
    "Following up on the code review.", "I just cloned this.", "Getting ready for the next version.",
    "My colleague asked for this.", "I'm in the middle of a refactoring.", "This came up in review.",
    "One more thing before lunch.", "I'm writing the release notes.", "I got a ticket about this.",
    "I have been looking at this for an hour.", "Customer request.", "Another small request.",
    "Bear with me, simple one.", "This should be easy.", "I'm on my phone.",
    "I'm tidying things up a bit.", "I don't know this code well.", "Working through my list.",
    "We talked about this yesterday.",
)  # fmt: skip
_AFTER = (
    "Nothing else.", "That's all.", "Don't touch anything else.", "Keep it short.",
    "Leave the rest as it is.", "Tell me when you're done.", "No need to explain.",
    "That's all I need.", "Just that.", "Be careful.", "Thanks in advance.", "It's for the demo.",
    "I need it for a review.", "The team agreed on it.", "No other changes please.",
)  # fmt: skip
_REASONS = (
    ", because the reviewers asked for it", ", otherwise the build breaks", ", the docs say so", ", see the ticket",
    ", as discussed", ", as agreed in the meeting", " before the release", " today", " now", " first", " next",
    ", that's all", ", nothing else", ", and keep it short", ", just this once", ", carefully", ", if possible",
    " so we can move on", ", it's for the demo", ", our customer wants it", ", I can't do it myself right now",
)  # fmt: skip
_QUESTION_OPENERS = (
    "question: ", "quick question: ", "one question: ", "I have a question: ", "tell me, ", "tell me: ", "hey, ", "so, ",
    "ok, ", "hm, ", "hmm, ", "just checking: ", "sorry, ", "sorry if this is obvious: ", "stupid question: ",
    "I was wondering: ", "help me out: ", "say, ", "well, ", "another question: ", "and ", "btw, ", "also, ",
)  # fmt: skip
_STATEMENT_OPENERS = (
    "hm, ", "ok, ", "so ", "so, ", "well, ", "hey, ", "note: ", "fyi: ", "small request: ", "task: ", "ok so ",
    "here's a task: ", "what I need: ", "my request: ", "please note: ", "listen, ", "right, ", "as discussed, ", "btw ",
)  # fmt: skip
_SWAPS = {
    "I'd": ("I would", "Id"), "what's": ("what is", "whats"), "where's": ("where is", "wheres"),
    "there's": ("there is", "theres"), "don't": ("do not", "dont"), "doesn't": ("does not", "doesnt"),
    "can't": ("cannot", "cant"), "it's": ("it is", "its"), "let's": ("let us", "lets"),
    "I'm": ("I am", "im"), "that's": ("that is", "thats"), "isn't": ("is not", "isnt"),
    "shouldn't": ("should not",), "everywhere": ("in all places", "all over the project"),
    "folder": ("directory", "dir"), "directory": ("folder", "dir"),
    "repository": ("repo", "code base", "project"), "project": ("repo", "repository", "codebase"),
    "please": ("pls", "plz", "kindly"), "you": ("u",), "and": ("&", "and also"),
    "function": ("func", "fn"), "constant": ("const",), "parameter": ("param",),
    "parameters": ("params",), "arguments": ("args",), "documentation": ("docs",),
    "configuration": ("config",), "beginning": ("start",), "remove": ("delete",), "delete": ("remove",),
    "called": ("named",), "named": ("called",), "create": ("make", "create"), "display": ("show",),
    "should": ("must", "should really"), "must": ("should", "really must"), "want": ("need", "would like"),
    "with": ("w/", "with"), "because": ("since", "bc"), "without": ("w/o", "without"),
    "currently": ("right now", "at the moment"), "contains": ("has", "includes"),
    "wrong": ("incorrect", "not right"), "says": ("reads",), "text": ("string", "text"),
    "explain": ("describe", "explain"), "whole": ("entire", "complete"), "entire": ("whole",),
    "find": ("locate", "find", "find"), "could": ("can", "would"), "can": ("could",),
    "above": ("over", "right above"),
}  # fmt: skip
"""Other ways to write a word of a template; an entry that names itself makes the change rarer."""
_SWAP = re.compile(
    r"(?<![\w'-])(?:" + "|".join(sorted(_SWAPS, key=len, reverse=True)) + r")(?![\w'-]| out\b)"
)
_WORD = re.compile(r"[A-Za-z]{5,}")
_FIRST = re.compile(r"[A-Za-z']+")
_SENTENCE_START = re.compile(r"([.?!] )([A-Z])(?=[a-z]* )")


def _typo(texts: list[str], fixed: list[bool], rng: Random) -> None:
    """Spoil one longer word outside the slots, keeping its first letter."""
    spots = [(i, m) for i, text in enumerate(texts) if not fixed[i] for m in _WORD.finditer(text)]
    if not spots:
        return
    index, match = spots[int(rng.random() * len(spots))]
    word, text = match.group(), texts[index]
    at = 1 + int(rng.random() * (len(word) - 2))
    kind = rng.random()
    if kind < 0.4:
        word = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    elif kind < 0.75:
        word = word[:at] + word[at + 1 :]
    else:
        word = word[:at] + word[at] + word[at:]
    texts[index] = text[: match.start()] + word + text[match.end() :]


def _swap(texts: list[str], fixed: list[bool], rng: Random) -> None:
    """Write one word of the template in another way."""
    spots = [(i, m) for i, text in enumerate(texts) if not fixed[i] for m in _SWAP.finditer(text)]
    if not spots:
        return
    index, match = spots[int(rng.random() * len(spots))]
    others = _SWAPS[match.group()]
    text = texts[index]
    texts[index] = text[: match.start()] + others[int(rng.random() * len(others))] + text[match.end() :]


def _lower_first(texts: list[str]) -> None:
    text = texts[0]
    if text[:1].isupper() and text[1:2] not in ("'", " ") and not text[1:2].isupper():
        texts[0] = text[0].lower() + text[1:]


def _upper_first(texts: list[str]) -> None:
    texts[0] = texts[0][:1].upper() + texts[0][1:]


def _open(texts: list[str], verb: bool, question: bool, rng: Random) -> bool:
    """Put a greeting or a polite opener in front; true when it makes the message a question."""
    asking = False
    if rng.random() < 0.13:
        openers = _OPENERS if verb else _QUESTION_OPENERS if question else _STATEMENT_OPENERS
        if verb or rng.random() < 0.5:
            opener = openers[int(rng.random() * len(openers))]
            _lower_first(texts)
            texts[0] = opener + texts[0]
            asking = opener in _ASKING
    if rng.random() < 0.03:
        texts[0] = _GREETINGS[int(rng.random() * len(_GREETINGS))] + texts[0]
    return asking


def _close(texts: list[str], fixed: list[bool], asking: bool, verb: bool, rng: Random) -> None:
    """Give the message an end: a stop, a question mark, a thank-you, or nothing."""
    end = texts[-1]
    if end.endswith("?"):
        if not fixed[-1] and rng.random() < 0.25:
            texts[-1] = end[:-1]
        return
    if end.endswith((".", "!", ":")):
        return
    roll = rng.random()
    if verb and roll < 0.06:
        closers = _CLOSERS if roll < 0.035 else _REASONS
        texts.append(closers[int(rng.random() * len(closers))])
        fixed.append(False)
    elif roll < 0.45:
        texts.append("?" if asking else ".")
        fixed.append(False)


def _casing(texts: list[str], fixed: list[bool], literal_start: bool, rng: Random) -> None:
    """All lower case, a capital at the start, or lower case after full stops; often nothing."""
    roll = rng.random()
    if roll < 0.12:
        for i, text in enumerate(texts):
            if not fixed[i]:
                texts[i] = text.lower()
        if not fixed[-1] and texts[-1] in (".", "?"):
            texts.pop()
            fixed.pop()
    elif literal_start and roll < 0.6:
        _upper_first(texts)
    elif roll < 0.7:
        for i, text in enumerate(texts):
            if not fixed[i]:
                texts[i] = _SENTENCE_START.sub(lambda m: m.group(1) + m.group(2).lower(), text)


def dress(texts: list[str], fixed: list[bool], light: bool, closable: bool, rng: Random) -> str:
    """The pieces as one message with some habits applied; pieces marked fixed stay as they are.

    A message that is not `closable` ends with bare code: a full stop after it could be taken as part of it.
    """
    closable = closable and not any("\n" in text for text in texts)
    literal_start = bool(texts) and not fixed[0]
    first = _FIRST.match(texts[0]) if literal_start else None
    word = first.group().lower() if first else ""
    verb = word in IMPERATIVES
    if rng.random() < 0.15 and not light:
        _swap(texts, fixed, rng)
    question = bool(texts) and not fixed[-1] and texts[-1].endswith("?")
    asking = not light and literal_start and _open(texts, verb, question, rng)
    if closable:
        _close(texts, fixed, asking, verb and not light, rng)
    _casing(texts, fixed, literal_start, rng)
    if rng.random() < 0.05:
        _typo(texts, fixed, rng)
    message = "".join(texts)
    if light:
        return message
    roll = rng.random()
    if roll < 0.05:
        before = _BEFORE[int(rng.random() * len(_BEFORE))]
        return f"{before} {message[:1].upper() + message[1:] if literal_start else message}"
    if roll < 0.08 and closable:
        stop = "" if message.endswith((".", "?", "!")) and not fixed[-1] else "."
        return f"{message}{stop} {_AFTER[int(rng.random() * len(_AFTER))]}"
    return message
