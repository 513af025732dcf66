"""Requests in other languages than English, with the habits of people who type them: greetings, thanks, typing
slips, umlauts written out, spaces left out around names.
"""

from collections.abc import Mapping
from random import Random

from k3agent.backend.training.wordings import chinese, german
from k3agent.backend.training.wordings.grammar import Goal, filled

GOALS: dict[str, dict[str, Goal]] = {"german": german.GOALS, "chinese": chinese.GOALS}
_GREETINGS = {
    "german": (
        "Hallo, ",
        "Hallo! ",
        "Hi, ",
        "Hey, ",
        "Moin, ",
        "Servus, ",
        "Guten Morgen, ",
        "Kurze Frage: ",
        "Also, ",
    ),
    "chinese": ("你好，", "您好，", "嗨，", "早，", "请", "请帮我", "麻烦", "帮忙", "有劳，", "那个，"),
}
_CLOSERS = {
    "german": (
        ", danke",
        ", danke!",
        ". Danke!",
        ", bitte",
        ", ja",
        ". Vielen Dank!",
        ", mehr nicht",
        ", das wär's",
    ),
    "chinese": ("，谢谢", "，谢谢！", "，多谢", "，就这些", "，拜托了", "，别的不用动"),
}
_PLAIN = {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue"}


def phrase(language: str, goal: str, slots: Mapping[str, str], rng: Random, part: str = "train") -> str:
    """A message in the language that asks for the goal with these slot values."""
    # no strange templates are written for other languages
    part = "held_out" if part == "hard" else part
    texts, fixed, closable = filled(GOALS[language][goal], slots, rng, part)
    closable = closable and not any("\n" in text for text in texts)
    return _dress(language, texts, fixed, closable, rng)


def _dress(language: str, texts: list[str], fixed: list[bool], closable: bool, rng: Random) -> str:
    """The pieces as one message; pieces marked fixed stay as they are."""
    asks = not fixed[-1] and texts[-1].endswith(("?", "？"))
    free = [index for index, is_slot in enumerate(fixed) if not is_slot]
    if language == "german":
        _german(texts, free, rng)
    else:
        _chinese(texts, free, rng)
    if rng.random() < 0.12 and not fixed[0]:
        greeting = _pick(rng, _GREETINGS[language])
        texts[0] = greeting + texts[0]
    if closable and not asks and not texts[-1].endswith((".", "!", "。", "！")):
        roll = rng.random()
        if roll < 0.1:
            texts.append(_pick(rng, _CLOSERS[language]))
        elif roll < 0.45:
            texts.append("." if language == "german" else "。")
    elif asks and rng.random() < 0.25:
        texts[-1] = texts[-1][:-1]
    return "".join(texts)


def _pick(rng: Random, items: tuple[str, ...]) -> str:
    return items[int(rng.random() * len(items))]


def _german(texts: list[str], free: list[int], rng: Random) -> None:
    """Capitals, umlauts written out, a slip."""
    roll = rng.random()
    if free and free[0] == 0 and roll < 0.45:
        texts[0] = texts[0][:1].upper() + texts[0][1:]
    elif roll > 0.85:
        for index in free:
            texts[index] = texts[index].lower()
    if rng.random() < 0.12:
        for index in free:
            texts[index] = "".join(_PLAIN.get(char, char) for char in texts[index])
    if rng.random() < 0.1 and free:
        index = free[int(rng.random() * len(free))]
        texts[index] = _slip(texts[index], rng)


def _slip(text: str, rng: Random) -> str:
    """Two letters of a longer word swapped, or one left out."""
    words = text.split(" ")
    long = [at for at, word in enumerate(words) if len(word) > 5 and word.isalpha()]
    if not long:
        return text
    at = long[int(rng.random() * len(long))]
    word = words[at]
    spot = 1 + int(rng.random() * (len(word) - 3))
    kept = word[spot] if rng.random() < 0.6 else ""
    words[at] = word[:spot] + word[spot + 1] + kept + word[spot + 2 :]
    return " ".join(words)


def _chinese(texts: list[str], free: list[int], rng: Random) -> None:
    """Spaces around names left out, full stops and question marks of the keyboard's other half."""
    if rng.random() < 0.4:
        for index in free:
            texts[index] = texts[index].replace(" ", "")
    if rng.random() < 0.15:
        for index in free:
            texts[index] = texts[index].replace("？", "?").replace("，", ", ").rstrip(" ")
