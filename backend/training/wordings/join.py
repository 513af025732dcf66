"""Connects requests: two steps in one message, follow-up openers, and requests that say "it" (texts/join/).

A request's own ending is never cut, because it may be the end of a slot value; the connector adapts to it instead.
"""

from random import Random

from k3agent.backend.training.wordings.grammar import load_family
from k3agent.backend.training.wordings.noise import IMPERATIVES

GOALS = load_family("join")

_RUNNING = (
    "{0}, then {1}", "{0}, and then {1}", "{0} and then {1}", "{0} and {1}", "{0}; then {1}", "{0}, after that {1}",
    "{0}; after that, {1}", "{0}, afterwards {1}", "{0}; afterwards {1}", "{0}, and after that {1}",
    "{0}, and when you are done {1}", "{0}, and when that is done, {1}", "{0}, next {1}", "{0}; next, {1}",
    "{0}, and finally {1}", "{0}, also {1}", "{0} and also {1}", "{0}; also {1}", "{0}, and also {1}",
    "{0} before you {1}", "first {0}, then {1}", "first {0} and then {1}", "first {0}; afterwards {1}",
    "first {0}, after that {1}", "start by doing this: {0}, then {1}", "1. {0}\n2. {1}", "1) {0} 2) {1}",
    "- {0}\n- {1}", "{0}\n{1}", "two things: {0}, and {1}", "two things: first {0}, then {1}",
    "please do two things: {0} and {1}", "once you did this: {0}, {1}", "I need two things: {0}, and then {1}",
    "step one: {0}. Step two: {1}", "a) {0}, b) {1}", "both please: {0} and {1}",
)  # fmt: skip
_STOPPED = (
    "{0} Then {1}", "{0} After that, {1}", "{0} Afterwards {1}", "{0} Next, {1}", "{0} When done, {1}",
    "{0} When that is done, {1}", "{0} When you are finished, {1}", "{0} Also, {1}", "{0} And {1}", "{0} Finally, {1}",
    "{0} And then {1}", "{0} Once that is done, {1}", "{0} In addition, {1}", "{0} Second: {1}", "{0} Now {1}",
    "{0} With that out of the way, {1}", "{0} As a second step, {1}", "1. {0}\n2. {1}", "- {0}\n- {1}", "{0}\n{1}",
    "First: {0} Then {1}", "First of all: {0} After that, {1}", "{0}\n\nThen {1}", "{0} And one more thing: {1}",
    "{0} Besides, {1}", "{0} While you are at it, {1}", "{0} Oh, and {1}",
)  # fmt: skip
_OPENERS = (
    "now {0}", "now {0}", "now please {0}", "next {0}", "next, {0}", "also {0}", "also, {0}", "and then {0}", "and {0}",
    "then {0}", "ok, now {0}", "ok now {0}", "okay, {0}", "good, now {0}", "great, now {0}", "thanks, now {0}",
    "thanks. Now {0}", "perfect. Next, {0}", "nice, and now {0}", "fine. Now {0}", "alright, {0}", "after that, {0}",
    "one more thing: {0}", "another thing: {0}", "next task: {0}", "and also {0}", "good. Also {0}", "so, {0}",
    "while you are at it, {0}", "finally {0}", "hmm, {0}", "wait, {0}", "actually, {0}", "oh, and {0}",
)  # fmt: skip
_FUNCTION_WORDS = """    the there what which where who how why is are do does did can could would please in at from for to after before
    above below
"""
_PLAIN_STARTS = IMPERATIVES | frozenset(_FUNCTION_WORDS.split())


def lower_start(message: str) -> str:
    """The message with a small first letter, when its first word is a common English one and no name."""
    word = message.split(maxsplit=1)[0] if message.split() else ""
    plain = word.rstrip(",:").lower() in _PLAIN_STARTS and word[1:] == word[1:].lower()
    return message[:1].lower() + message[1:] if plain else message


def is_command(message: str) -> bool:
    """Whether the message is a bare command, which fits after any connector."""
    words = message.split(maxsplit=1)
    return bool(words) and words[0].lower().rstrip(",:") in IMPERATIVES


def join(first: str, second: str, rng: Random) -> str:
    """One message that asks for `first` and then for `second`; best with `phrase(..., noise=False)`."""
    second = lower_start(second)
    if "\n" in first or "\n" in second:
        text = f"{first}\n\n{('Then ', 'After that, ', 'Next, ', 'Also, ')[int(rng.random() * 4)]}{second}"
    elif first.endswith((".", "?", "!")) or not (is_command(first) and is_command(second)):
        stop = "" if first.endswith((".", "?", "!")) else "."
        text = _STOPPED[int(rng.random() * len(_STOPPED))].format(first + stop, second)
    else:
        text = _RUNNING[int(rng.random() * len(_RUNNING))].format(lower_start(first), second)
    return _finish(text, second, rng)


def follow_up(message: str, rng: Random) -> str:
    """The message as the next thing in a conversation: with "now", "also", "ok, then" in front."""
    text = _OPENERS[int(rng.random() * len(_OPENERS))].format(lower_start(message))
    return _finish(text, message, rng)


def _finish(text: str, last: str, rng: Random) -> str:
    """A capital at the start and a full stop at the end, each about every other time."""
    starts_plain = text.split(maxsplit=1)[0].rstrip(",:").lower() in _PLAIN_STARTS | {"first", "now", "next"}
    if starts_plain and rng.random() < 0.5:
        text = text[:1].upper() + text[1:]
    quoted = last.endswith(("`", '"', "'"))
    if (quoted or last[-1:].isalpha()) and "\n" not in text and rng.random() < 0.4:
        text += "."
    return text
