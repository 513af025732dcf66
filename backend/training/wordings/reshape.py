"""Other shapes of a training message: the file named first or last, hedges, reasons that say nothing about the wish.

`reorder` works on a template's pieces before slots have values, `add_aside` on the filled pieces before noise.py.
"""

import re
from random import Random

from k3agent.backend.training.wordings.noise import IMPERATIVES
from k3agent.backend.training.wordings.variation import AnySlot

MOVE_SHARE = 0.25
"""Of all messages whose file can stand in another place, those in which it does."""
HEDGE_SHARE = 0.04
REASON_SHARE = 0.05
DOUBLE_SHARE = 0.006

_LAST = re.compile(r"^ (in|inside|within|over in|in the file) $")
_FIRST = re.compile(r"^(?:in|inside|within|over in|in the file) $")
_AFTER_FIRST = re.compile(r"^[,:]? (?=[a-z])")
_FIRST_WORD = re.compile(r"[A-Za-z']+")
_SMALL = re.compile(r"(?<![\w'-])(?:the|to|in|a|is|it|for|of|and|me|that|with|please)(?= )")
_HEDGES_AFTER = (
    ", I guess", ", I think", ", I suppose", ", if you can", ", if that makes sense", ", if I may", ", as it were", ", or so I hope",
    ", as far as I can tell", ", as far as I know", ", if I'm not mistaken", ", so to speak", ", you know", ", if at all possible",
    ", if you don't mind", ", would you", ", at some point", ", for a start", ", when it suits you", ", no rush", ", if it's no trouble",
)  # fmt: skip
_HEDGES_BEFORE = (
    "I guess ", "I suppose ", "basically ", "simply ", "maybe ", "perhaps ", "probably ", "if you can, ", "if possible, ", "if I may, ",
    "as far as I can tell, ", "as I see it, ", "to be honest, ", "as a first step, ", "for a start, ", "well, ", "erm, ", "now then, ",
    "in case you have time, ", "whenever you can, ", "without much ado, ", "for once, ", "sooner or later: ", "okay so, ",
)  # fmt: skip
_REASONS = (
    "because {} asked for it", "since {} is near", "because of {}", "now that {} is over", "as {} wants it", "due to {}", "thanks to {}",
    "before {} starts", "after what happened with {}", "since nobody from {} does it", "because {} keeps complaining", "for {}",
    "so that {} is happy", "since {} is waiting", "otherwise {} gets angry", "while I deal with {}", "as I promised {}", "given {}",
    "in view of {}", "since we lost {}", "because I talked to {}", "ahead of {}", "with {} in mind", "as part of {}", "for the sake of {}",
)  # fmt: skip
_THINGS = """
    release demo audit review meeting deadline workshop customer boss colleague trainee auditor investor conference migration
    holiday launch sprint budget contract lawyer neighbour newsletter exam course teacher school garden kitchen dentist train
    bicycle weather coffee lunch party wedding office printer keyboard monitor elevator warehouse supplier factory harbour
    hospital museum library orchestra football tournament election festival journey island mountain river forest bakery
    pharmacy insurance landlord plumber electrician carpenter gardener painter pilot captain doctor nurse judge mayor
    minister reporter photographer singer actor author publisher editor translator accountant secretary intern manager
""".split()  # noqa: SIM905
_ADJECTIVES = """
    new old next last big small annual weekly monthly quarterly local regional northern southern internal external French
    Italian Spanish Polish Danish famous friendly grumpy impatient early late second third upcoming legendary dreaded
""".split()  # noqa: SIM905
_NAMES = """
    Anna Ben Carla David Elena Farid Greta Hiro Iris Jonas Kim Lena Marco Nadia Olga Pavel Quinn Rosa Samir Tina Umar Vera
    Wanda Xenia Yusuf Zoe
""".split()  # noqa: SIM905


def joined(pieces: list[str | AnySlot]) -> list[str | AnySlot]:
    """The pieces with neighbouring literals in one, as choices leave them apart."""
    found: list[str | AnySlot] = []
    for piece in pieces:
        last = found[-1] if found else None
        if isinstance(piece, str) and isinstance(last, str):
            found[-1] = last + piece
        else:
            found.append(piece)
    return [piece for piece in found if piece != ""]


def _commands(text: str) -> bool:
    """Whether a literal starts with a verb that commands."""
    first = _FIRST_WORD.match(text)
    return bool(first) and first.group().lower() in IMPERATIVES


def reorder(pieces: list[str | AnySlot], rng: Random) -> None:
    """Move "in FILE" from the end of a one-sentence command to its start, or from its start to its end."""
    if len(pieces) < 4 or not isinstance(pieces[0], str):
        return
    literals = [piece for piece in pieces if isinstance(piece, str)]
    if any(mark in text for text in literals for mark in (". ", "; ", "\n", "?", ": ", " and ", " it ")):
        return
    head, tail, last = pieces[0], pieces[-2], pieces[-1]
    if isinstance(tail, str) and not isinstance(last, str) and last.name == "path" and _LAST.match(tail):
        if isinstance(head, str) and _commands(head) and rng.random() < MOVE_SHARE:
            mark = ", " if rng.random() < 0.7 else " "
            pieces[:] = [tail[1:], last, mark + head, *pieces[1:-2]]
        return
    path, rest = pieces[1], pieces[2]
    if not (isinstance(head, str) and _FIRST.match(head) and isinstance(rest, str)) or isinstance(path, str):
        return
    start = _AFTER_FIRST.match(rest)
    if path.name == "path" and start and _commands(rest[start.end() :]) and rng.random() < MOVE_SHARE:
        pieces[:] = joined([rest[start.end() :], *pieces[3:], f" {head}", path])


def _thing(rng: Random) -> str:
    """Somebody or something that has nothing to do with programs."""
    if rng.random() < 0.25:
        return _NAMES[int(rng.random() * len(_NAMES))]
    thing = _THINGS[int(rng.random() * len(_THINGS))]
    if rng.random() < 0.4:
        thing = f"{_ADJECTIVES[int(rng.random() * len(_ADJECTIVES))]} {thing}"
    return f"{('the', 'our', 'my')[int(rng.random() * 3)]} {thing}"


def add_aside(texts: list[str], fixed: list[bool], closable: bool, rng: Random) -> None:
    """Now and then a hedge or a reason before or after a message in one sentence, or a small word twice."""
    if any("\n" in text for text in texts):
        return
    roll = rng.random()
    if roll < HEDGE_SHARE + REASON_SHARE:
        reason = ""
        if roll >= HEDGE_SHARE:
            reason = _REASONS[int(rng.random() * len(_REASONS))].format(_thing(rng))
        if rng.random() < 0.5:
            if not fixed[0] and _commands(texts[0]) and not reason.startswith("otherwise"):
                opener = f"{reason}, " if reason else _HEDGES_BEFORE[int(rng.random() * len(_HEDGES_BEFORE))]
                texts[0] = opener + texts[0][:1].lower() + texts[0][1:]
        elif closable and not texts[-1].endswith((".", "?", "!", ":", "`")):
            texts.append(f", {reason}" if reason else _HEDGES_AFTER[int(rng.random() * len(_HEDGES_AFTER))])
            fixed.append(False)
    elif roll > 1 - DOUBLE_SHARE:
        _double(texts, fixed, rng)


def _double(texts: list[str], fixed: list[bool], rng: Random) -> None:
    """Write a small word twice, as happens when a sentence is changed while it is typed."""
    spots = [(i, m) for i, text in enumerate(texts) if not fixed[i] for m in _SMALL.finditer(text)]
    if spots:
        index, match = spots[int(rng.random() * len(spots))]
        text = texts[index]
        texts[index] = f"{text[: match.end()]} {match.group()}{text[match.end() :]}"
