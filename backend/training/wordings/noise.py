"""The habits of people who type: capitals, stops, greetings, politeness, context sentences, typing slips.

Works on a message still in pieces, so that slot values (fixed pieces) are never touched.
"""

import re
from random import Random

_VERBS = """
    accelerate activate adapt add adjust advance allocate allot alter amend annotate append apply assess
    assign attach bin bring bugfix build bump calculate cancel carry change characterise check choose
    clarify clean collect comment compile complete compute configure connect continue convert copy
    correct count craft create cross cut deactivate debug define delete deliver deploy describe destroy
    determine dig disable discard discover display dispose disregard ditch document double draft drag
    draw drop dump edit elaborate eliminate emit employ enable enclose engage enhance enlarge ensure
    enter enumerate erase establish evaluate examine exchange execute expand explain extend extract
    fetch figure fill find finish fire fix flip generate get give go grab grep grow have hunt identify
    illustrate implement import improve include increase increment initialise insert inspect install
    integrate introduce invent investigate invoke itemise jump keep kick kill knock launch lay lengthen
    let lift list locate lock look lose lower make mark mend merge migrate modernise modify move name
    open optimise optimize outline overhaul overwrite paint parallelise paste pick pin place point
    polish pop prepare prepend present print produce provide publish pull purge push put quote raise
    rattle read rebaptise recap rechristen reckon recommend recover rectify redo reduce refactor refresh
    register rehouse reinstate relabel relink relocate rely remedy remove rename render reopen
    reorganise repair repeat rephrase replace report reroute rerun reset resolve restart restore
    restructure retitle reverse revert review revise reword rework rewrite rid run save scan scrap
    scrutinise search see seek send set settle shed shift ship shorten show shrink shut simplify skip
    slot solve sort speed spell split spot squash squeeze start stick stop store straighten streamline
    strike strip study substitute suggest summarise summarize supply support surround swap switch tack
    take tally tell throw tick tidy tot trace track transcribe transfer transform translate transplant
    trash trigger tune turn tweak type uncheck undo unmark untick update upgrade upload use utilise
    verify view walk widen wipe wrap write zap
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
_FRAMES = (
    "I would like you to {}", "it would be great if you could {}", "would you be so kind as to {}",
    "would it be possible for you to {}", "is it possible to {}", "is there a way to {}", "any chance you could {}",
    "someone has to {}", "we need to {}", "time to {}", "my boss wants me to {}", "I was told to {}", "I have to {}",
    "I was asked to {}, can you do it for me", "your job is to {}", "your task: {}", "here's what I want: {}",
    "what I want is to {}", "help me to {}", "help me {}", "how about you {}", "why don't you {}", "do me a favour and {}",
    "be so good and {}", "I need somebody to {}", "the plan is to {}", "the ticket says: {}", "the reviewer said: {}",
    "from the mailing list: {}", "the next step is to {}", "if you have a minute, {}", "when you find the time, {}",
    "may I ask you to {}", "can I ask you to {}", "I'd be grateful if you would {}", "I'm trying to {}",
    "I tried to {} but failed", "I don't know how to {}", "for homework I must {}", "please to {}", "you can {}",
    "sorry to bother you, but please {}", "it is my wish that you {}", "we agreed that you {}", "todo for you: {}",
    "let me ask you to {}", "I want to {}", "I wanna {}", "gotta {}", "pls {} asap", "{} asap", "{} pls", "{} thx",
    "{}, that would be nice", "{}, if that is not too much trouble", "{} if you can", "{}, can you", "{} (urgent)",
    "URGENT: {}", "@k3agent {}", "k3agent, {}", "nano: {}", "> {}", "* {}", "- {}", "1) {}", "TODO {}", "task 1: {}",
)  # fmt: skip
"""Sentences around a bare command."""
_QUESTION_FRAMES = (
    "I keep asking myself: {}", "the question is: {}", "my question: {}", "can you answer this: {}", "riddle me this: {}",
    "a customer asks: {}", "our trainee asks: {}", "somebody asked me: {}", "in the interview they asked: {}",
    "before I forget: {}", "one thing I don't get: {}", "maybe you know it: {}", "please answer: {}", "Q: {}", "> {}",
    "I can't find the answer: {}", "just for my understanding: {}", "for the protocol: {}", "no hurry, but {}", "- {}",
)  # fmt: skip
_FILE_ENDS = (".py", ".py", ".md", ".json", ".txt", ".yaml", ".toml", ".js")
_DISTRACTIONS_BEFORE = (
    "While reading {file} I noticed something.", "I just looked at {file}, but this is about something else.",
    "The tests are fine, but there is one thing.", "{file} is fine, leave it.", "{name} works now, thanks to Anna.",
    "Forget about {file} for now.", "Yesterday we talked about {name}; today it is something else.",
    "I'm done with {file}.", "Don't worry about {name}.", "{file} is already merged.", "Ignore what I said about {name}.",
    "I came across this in {file}.", "After reading {file} I have a request.", "This has nothing to do with {name}.",
    "My colleague works on {file} at the moment.", "We keep {name} as it is.", "Reading {file} gave me an idea.",
    "The bug in {name} is solved.", "Not urgent like {name}, but still.", "{name} can wait.", "{file} can wait.",
    "I closed {file} and now this.", "The review of {file} took all morning.", "The meeting was about {name}.",
)  # fmt: skip
_DISTRACTIONS_AFTER = (
    "Leave {file} alone.", "Don't touch {file}.", "{name} stays as it is.", "Anna takes care of {name}.",
    "{file} comes later.", "I'll do {name} myself.", "We look at {file} another day.", "This is not about {file}.",
    "I need it because of {name}.", "{name} depends on it.", "Then I can go on with {file}.", "Afterwards I'll check {file}.",
    "Nothing to do with {name}.", "The rest, like {name}, is fine.",
)  # fmt: skip
_THINGS = """
    load save parse format render send fetch build check order user config report price stock cart invoice
    email date token cache route file row item total label page query event session
"""
_ARTICLES = re.compile(r"(?<![\w'-])(?:the|a|an) (?=[a-z])")
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


def _drop_articles(texts: list[str], fixed: list[bool]) -> None:
    """Without "the" and "a", as people write who think in a language without articles, or who are in a hurry."""
    for index, text in enumerate(texts):
        if not fixed[index]:
            texts[index] = _ARTICLES.sub("", text)


def _frame(texts: list[str], fixed: list[bool], frames: tuple[str, ...], rng: Random) -> None:
    """Put a sentence around the whole message."""
    head, _, tail = frames[int(rng.random() * len(frames))].partition("{}")
    _lower_first(texts)
    texts[0] = head + texts[0]
    if tail:
        end = texts[-1]
        if not fixed[-1] and end.endswith((".", "?")):
            texts[-1] = end[:-1]
        texts.append(tail)
        fixed.append(False)


def _distraction(sentences: tuple[str, ...], message: str, rng: Random) -> str:
    """A sentence about something else, with a made-up file or name that the message does not have."""
    words = _THINGS.split()
    first, second = words[int(rng.random() * len(words))], words[int(rng.random() * len(words))]
    if first in message or second in message:
        return ""
    file = first + _FILE_ENDS[int(rng.random() * len(_FILE_ENDS))]
    sentence = sentences[int(rng.random() * len(sentences))]
    return sentence.format(file=file, name=f"{first}_{second}")


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
    framed = not light and literal_start and closable and rng.random() < 0.12 and (verb or question)
    if rng.random() < 0.04:
        _drop_articles(texts, fixed)
    if framed:
        _frame(texts, fixed, _FRAMES if verb else _QUESTION_FRAMES, rng)
    asking = not framed and not light and literal_start and _open(texts, verb, question, rng)
    if closable:
        _close(texts, fixed, asking, verb and not light, rng)
    _casing(texts, fixed, literal_start, rng)
    while rng.random() < 0.08:
        _typo(texts, fixed, rng)
    message = "".join(texts)
    if light:
        return message
    return _surround(message, literal_start, closable, fixed[-1], rng)


def _surround(message: str, literal_start: bool, closable: bool, ends_fixed: bool, rng: Random) -> str:
    """Now and then a sentence before or after the message: context, or a distraction."""
    roll = rng.random()
    if roll < 0.05:
        before = _BEFORE[int(rng.random() * len(_BEFORE))]
        return f"{before} {message[:1].upper() + message[1:] if literal_start else message}"
    if roll < 0.08 and closable:
        stop = "" if message.endswith((".", "?", "!")) and not ends_fixed else "."
        return f"{message}{stop} {_AFTER[int(rng.random() * len(_AFTER))]}"
    if 0.9 < roll < 0.94 and (before := _distraction(_DISTRACTIONS_BEFORE, message, rng)):
        return f"{before} {message[:1].upper() + message[1:] if literal_start else message}"
    if roll > 0.98 and closable and (after := _distraction(_DISTRACTIONS_AFTER, message, rng)):
        stop = "" if message.endswith((".", "?", "!")) and not ends_fixed else "."
        return f"{message}{stop} {after}"
    return message
