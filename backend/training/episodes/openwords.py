"""Words without end: random pieces of nano's tokenizer, words of the standard library, strings of letters.

A model that sees only listed words learns the list; these can be got right only by copying piece by piece.
"""

import base64
import builtins
import keyword
import random
import re
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

OPEN_SHARE = 0.55
"""Of all words drawn for names, values and texts, the share that comes from here."""
HELD_OUT_SHARE = 12
"""Of a hundred words, those that training never sees."""
TOKENS = Path(__file__).resolve().parents[2] / "weights" / "nano" / "nano.tiktoken"
SHORTEST, LONGEST = 4, 14
FOLDERS = (
    "",
    "asyncio",
    "collections",
    "concurrent/futures",
    "email",
    "html",
    "http",
    "importlib",
    "idlelib",
    "json",
)
FOLDERS += ("logging", "multiprocessing", "tkinter", "unittest", "urllib", "wsgiref", "xml/dom", "xml/sax")
FOLDERS += ("ctypes", "curses", "dbm", "email/mime", "ensurepip", "pydoc_data", "re", "sqlite3", "tomllib")
FOLDERS += ("venv", "xml/etree", "xmlrpc", "zoneinfo")
NUMBERED = 0.05
"""Of all open words, those that end in a number."""
PROSE_WORDS = 0.6
"""Of the library's words, those that stand in its sentences; the others are names in its code."""
TAKEN = frozenset(
    {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *sys.stdlib_module_names}
    | set("conftest setup packaging pluggy pygments iniconfig pytest main self package func function".split())  # noqa: SIM905
    | set("const export interface null undefined true false void this switch extends typeof until".split())  # noqa: SIM905
)
"""Names that a language, its library or a test runner keeps for itself."""
PROSE = re.compile(r"(?:^|(?<=[.:;] ))[A-Z][A-Za-z0-9 ,()/+-]{16,88}(?:\.(?=\s|$)|$)")
_PROSE_PART = re.compile(r'(?s:"""(?:.*?)""")|(?<=# ).*')
_ENGLISH = re.compile(r"(?<![\w.(/<`'-])[a-z]{4,14}(?=[ ,;:.]\s|[ ,;]|\.$)")
_WORD = re.compile(r"[a-z]{3,}")


def is_held_out(word: str) -> bool:
    """Whether a word belongs to the part that training never sees (a fixed eighth or so, by checksum)."""
    return zlib.crc32(word.encode()) % 100 < HELD_OUT_SHARE


def usable(word: str) -> bool:
    """Whether a word can stand anywhere: as a name, a module, a folder, a text."""
    return SHORTEST <= len(word) <= LONGEST and word not in TAKEN and not word.startswith("test")


@cache
def _tokens() -> frozenset[str]:
    """The texts of nano's tokenizer."""
    rows = TOKENS.read_text(encoding="ascii").splitlines()
    return frozenset(base64.b64decode(row.split()[0]).decode("utf-8", "replace") for row in rows)


@cache
def pieces() -> tuple[str, ...]:
    """The tokenizer's pieces of two to four letters, lower case."""
    return tuple(sorted({text.lower() for text in _tokens() if re.fullmatch(r"[A-Za-z]{2,4}", text)}))


def is_whole(word: str) -> bool:
    """Whether the tokenizer has the word as one piece."""
    return word in _tokens()


def _sources() -> Iterator[str]:
    """The Python files of the standard library, a folder after the other."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("*.py")):
            yield path.read_text(encoding="utf-8", errors="replace")


@cache
def _library() -> tuple[tuple[str, ...], tuple[str, ...], frozenset[str]]:
    """(words of several pieces, sentences, those words that stand in prose) of the standard library."""
    words: set[str] = set()
    sentences: set[str] = set()
    prose: set[str] = set()
    for text in _sources():
        words.update(re.findall(r"[a-z]{4,14}", text.lower()))
        sentences.update(item.rstrip(".") for item in _documented(text))
        for said in _PROSE_PART.findall(text):
            prose.update(_ENGLISH.findall(said))
    vowels = re.compile(r"[aeiouy]")
    good = tuple(
        sorted(word for word in words if usable(word) and vowels.search(word) and not is_whole(word))
    )
    return good, tuple(sorted(sentences)), frozenset(prose & set(good))


def _documented(text: str) -> Iterator[str]:
    """The sentences of a source's docstrings."""
    for quoted in re.findall(r'"""(.*?)"""', text, re.DOTALL):
        for paragraph in quoted.split("\n\n"):
            yield from PROSE.findall(" ".join(paragraph.split()))


@cache
def library_words(held_out: bool = False) -> tuple[str, ...]:
    """Words of one part; a word whose stem is held out is in neither part."""
    return tuple(word for word in _library()[0] if _part(word) == held_out)


@cache
def prose_words(held_out: bool = False) -> tuple[str, ...]:
    """Those of the library's words that stand in its sentences: English, mostly."""
    return tuple(word for word in library_words(held_out) if word in _library()[2])


def _part(word: str) -> bool | None:
    """True for held out, False for training, None for neither."""
    stems = {word, *(word.removesuffix(end) for end in ("s", "es", "ed", "d", "ing", "er", "ly", "ies"))}
    held = {is_held_out(stem) for stem in stems if len(stem) >= SHORTEST}
    if is_held_out(word):
        return True
    return None if True in held else False


@cache
def sentences(held_out: bool) -> tuple[str, ...]:
    """Sentences without full stop of one part; those of training have no held-out word."""
    texts = _library()[1]
    if held_out:
        return tuple(text for text in texts if is_held_out(text))
    return tuple(
        text
        for text in texts
        if not is_held_out(text) and not any(map(is_held_out, _WORD.findall(text.lower())))
    )


def _of_pieces(rng: random.Random) -> str:
    """Two to four pieces, any after any."""
    return "".join(rng.choice(pieces()) for _ in range(rng.choice((2, 2, 2, 3, 3, 4))))


def _of_letters(rng: random.Random) -> str:
    """Letters in any order, or syllables."""
    if rng.random() < 0.4:
        return "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(4, 8)))
    pairs = (rng.choice("bcdfghjklmnpqrstvwxz") + rng.choice("aeiouy") for _ in range(rng.randint(2, 4)))
    return "".join(pairs) + rng.choice(("", "", "n", "r", "l", "t", "s", "x"))


def open_word(rng: random.Random, held_out: bool = False) -> str:
    """A word that no list has."""
    word = _any_word(rng, held_out)
    if len(word) < LONGEST - 2 and rng.random() < NUMBERED:
        return f"{word}{rng.choice((rng.randint(2, 9), rng.randint(10, 99), 64, 256))}"
    return word


def _any_word(rng: random.Random, held_out: bool) -> str:
    """Letters only: pieces, letters, or a word of the library."""
    roll = rng.random()
    make: Callable[[random.Random], str] = _of_pieces if roll < 0.35 else _of_letters
    if roll >= 0.5:
        is_prose = rng.random() < PROSE_WORDS
        return rng.choice(prose_words(held_out) if is_prose else library_words(held_out))
    while True:
        word = make(rng)
        if usable(word):
            return word
