"""Numbers not said as they must stand: "double it", "5 more", "two minutes" where seconds are."""

import re
from dataclasses import dataclass

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.assignments import split_value
from k3agent.backend.training.episodes.editing import around
from k3agent.backend.training.episodes.facts import Setting as Fact
from k3agent.backend.training.episodes.families.roles import said_of_part
from k3agent.backend.training.episodes.families.spoken import assigning, find_spoken, in_words, spoken_pattern
from k3agent.backend.training.episodes.families.values import changed_text, set_line
from k3agent.backend.training.episodes.policy import Hit, quoted
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Plan, Report, Session
from k3agent.backend.training.wordings.noise import dress

Text = tuple[str, ...]
MORE: Text = (
    "add {n} to {x}",
    "raise {x} by {n}",
    "increase {x} by {n}",
    "make {x} {n} larger",
    "make {x} {n} higher",
    "{x} should be {n} more",
    "{x} is {n} too low",
    "{x} is {n} too small, fix that",
    "bump {x} by {n}",
    "put {n} on top of {x}",
    "{x} +{n}",
    "{x} plus {n}",
    "I need {n} more for {x}",
    "can you add {n} to {x}?",
    "could {x} go up by {n}?",
    "let {x} be {n} more than now",
    "{x} must go up by {n}",
    "{n} more in {x} please",
    "increment {x} by {n}",
    "{x} needs another {n}",
    "give {x} {n} more",
    "set {x} to what it is plus {n}",
    "step {x} up by {n}",
)
LESS: Text = (
    "subtract {n} from {x}",
    "lower {x} by {n}",
    "reduce {x} by {n}",
    "decrease {x} by {n}",
    "make {x} {n} smaller",
    "{x} should be {n} less",
    "{x} is {n} too high",
    "{x} is {n} too large, fix that",
    "take {n} off {x}",
    "{x} -{n}",
    "{x} minus {n}",
    "can you take {n} off {x}?",
    "could {x} go down by {n}?",
    "let {x} be {n} less than now",
    "{x} must go down by {n}",
    "drop {x} by {n}",
    "cut {x} by {n}",
    "{n} less in {x} please",
    "decrement {x} by {n}",
    "bring {x} down by {n}",
)
DOUBLE: Text = (
    "double {x}",
    "make {x} twice as large",
    "make {x} twice as big",
    "{x} should be doubled",
    "{x} must be twice as high",
    "{x} times two",
    "can you double {x}?",
    "please double the value of {x}",
    "let {x} be twice what it is",
    "multiply {x} by 2",
    "set {x} to double its value",
    "{x} is half of what it should be",
    "{x} * 2",
    "I want twice the {x}",
    "increase {x} to double",
    "{x} x2",
)
HALVE: Text = (
    "halve {x}",
    "make {x} half as large",
    "cut {x} in half",
    "{x} should be halved",
    "{x} must be half as high",
    "divide {x} by 2",
    "can you halve {x}?",
    "let {x} be half of what it is",
    "set {x} to half its value",
    "{x} is twice what it should be",
    "{x} / 2",
    "reduce {x} to half",
    "reduce {x} by half",
    "take half of {x}",
)
TRIPLE: Text = (
    "triple {x}",
    "make {x} three times as large",
    "{x} times three",
    "{x} should be three times as high",
    "multiply {x} by 3",
    "can you triple {x}?",
    "let {x} be three times what it is",
    "{x} * 3",
    "set {x} to three times its value",
)
TO_UNIT: Text = (
    "set {x} to {n}",
    "raise {x} to {n}",
    "change {x} to {n}",
    "{x} should be {n}",
    "make {x} {n}",
    "let {x} be {n}",
    "{x}: {n}",
    "{x} must be {n}",
    "can you set {x} to {n}?",
    "I want {x} to be {n}",
    "we need {n} for {x}",
    "use {n} as {x}",
    "put {x} at {n}",
    "{x} -> {n}",
    "please give {x} the value of {n}",
    "adjust {x} to {n}",
    "go for {n} in {x}",
    "{n} is what {x} should be",
    "update {x}, it should be {n}",
    "could {x} be {n}?",
)
NUMBER = re.compile(r"[1-9]\d{0,3}")
WAYS: tuple[tuple[str, Text, int], ...] = (
    ("+", MORE, 5),
    ("-", LESS, 4),
    ("* 2", DOUBLE, 4),
    ("// 2", HALVE, 2),
    ("* 3", TRIPLE, 1),
)


def _request(ctx: Setting, texts: Text, thing: str, amount: str) -> str:
    """A request in which thing and amount stay as they are."""
    said = said_of_part(texts, ctx.words, ctx.rng)
    parts: list[str] = []
    fixed: list[bool] = []
    while "{" in said:
        at = said.index("{")
        parts += [said[:at], thing if said[at + 1] == "x" else amount]
        fixed += [not said[:at], True]
        said = said[at + 3 :]
    return dress([*parts, said], [*fixed, not said], False, False, ctx.rng)


def _only_one(found: list[tuple[str, Hit]], thing: str) -> tuple[str, Hit]:
    """The only name that fits; a question where there are more."""
    if len(found) > 1:
        shown = quoted([f"{name} ({hit.at})" for name, hit in found])
        raise Report(
            f"{len(found)} names fit. I must ask which.",
            f"Several values fit `{thing}`: {shown}. Which one shall I change?",
        )
    return found[0]


def _named(ctx: Setting, item: Fact, thing: str) -> bool:
    """Whether the words for a constant mean this one alone."""
    pattern = spoken_pattern(thing).lower()
    rows = [
        Hit(path, number, line)
        for path, text in ctx.facts.files.items()
        for number, line in enumerate(text.splitlines(), 1)
        if thing.lower() in line.lower() or pattern.replace("[_-]?", "_") in line.lower().replace("-", "_")
    ]
    return [(hit.path, hit.line) for _, hit in assigning(thing, rows)] == [(item.path, item.line)]


@goal("set_amount", "setvalue", 2.4)
def set_amount(ctx: Setting) -> Plan | None:
    """Double a number, or make it larger or smaller by an amount."""
    rng = ctx.rng
    numbers = [item for item in ctx.facts.constants if NUMBER.fullmatch(item.value) and len(item.text) < 90]
    if not numbers:
        return None
    item = rng.choice(numbers)
    thing = in_words(ctx, item.name) if rng.random() < 0.4 else item.name
    if not _named(ctx, item, thing):
        return None
    old = int(item.value)
    sign, texts, _ = rng.choices(WAYS, [way[2] for way in WAYS])[0]
    amount = rng.choice((1, 1, 2, 3, 5, 5, 10, 10, 20, 25, 50, 100, rng.randint(2, 40)))
    if (sign == "-" and amount >= old) or (sign == "// 2" and old % 2):
        return None
    sum_said = f"{old} {sign}" if sign[-1].isdigit() else f"{old} {sign} {amount}"
    new = str({"+": old + amount, "-": old - amount, "* 2": old * 2, "// 2": old // 2, "* 3": old * 3}[sign])
    text = changed_text(ctx, item, new)
    if text is None:
        return None
    request = _request(ctx, texts, thing, str(amount))
    task = f"its value {sign}" if sign[-1].isdigit() else f"its value {sign} {amount}"

    def play(session: Session) -> tuple[str, str]:
        name, hit = _only_one(find_spoken(session, thing, f"{thing} must become {task}."), thing)
        parts = split_value(name, hit.text)
        if parts is None or parts[1] != item.value:
            raise Report(
                f"{name} is no number that I can change so.",
                f"`{name}` is set by `{hit.text.strip()}` (`{hit.path}`, line {hit.line})."
                " Nothing was changed. What shall it be?",
            )
        session.lead = f"{name} is {parts[1]} now. {sum_said} = {new}."
        return set_line(session, name, hit, new)

    check = checks.writes({item.path: text})
    return Plan("set_amount", "setvalue", {"value": new}, play, check, ("const", item.name), prompt=request)


@dataclass(frozen=True, slots=True)
class Measure:
    """A unit of code, what names and comments call it, and larger units with what they are worth."""

    unit: str
    ends: Text
    things: Text
    larger: tuple[tuple[str, int], ...]


MEASURES = (
    Measure(
        "seconds",
        ("SECONDS", "SEC", "SECS", "S"),
        ("TIMEOUT", "DELAY", "INTERVAL", "WAIT", "TTL", "PAUSE", "MAX_AGE", "EXPIRY", "COOLDOWN", "LIFETIME"),
        (("minute", 60), ("hour", 3600), ("day", 86400)),
    ),
    Measure(
        "milliseconds",
        ("MS", "MILLIS", "MILLISECONDS"),
        ("TIMEOUT", "DELAY", "DEBOUNCE", "POLL_INTERVAL", "BACKOFF", "TICK"),
        (("second", 1000), ("second", 1000), ("minute", 60_000)),
    ),
    Measure(
        "minutes", ("MINUTES", "MIN", "MINS"), ("SESSION", "BREAK", "TIMEOUT", "LOCKOUT"), (("hour", 60),)
    ),
    Measure("hours", ("HOURS", "H"), ("RETENTION", "CACHE_AGE", "SHIFT", "DEADLINE"), (("day", 24),)),
    Measure("days", ("DAYS",), ("RETENTION", "TRIAL", "GRACE_PERIOD", "NOTICE"), (("week", 7),)),
    Measure("bytes", ("BYTES",), ("MAX_SIZE", "CHUNK", "BUFFER", "LIMIT"), (("KB", 1024),)),
    Measure("KB", ("KB",), ("MAX_UPLOAD", "QUOTA", "BUFFER"), (("MB", 1024),)),
    Measure("MB", ("MB",), ("MEMORY", "DISK_LIMIT", "QUOTA"), (("GB", 1024),)),
    Measure(
        "cents", ("CENTS",), ("FEE", "SHIPPING", "BASE_PRICE", "DEPOSIT"), (("euro", 100), ("dollar", 100))
    ),
    Measure(
        "grams", ("GRAMS", "G"), ("MAX_WEIGHT", "PORTION", "PARCEL_LIMIT"), (("kilogram", 1000), ("kg", 1000))
    ),
    Measure("metres", ("METRES", "M"), ("RADIUS", "RANGE", "DISTANCE"), (("kilometre", 1000), ("km", 1000))),
)
NUMBERS = "one two three four five six seven eight nine ten eleven twelve".split()  # noqa: SIM905


def _line(ctx: Setting, measure: Measure) -> tuple[str, str, int, list[str]]:
    """A name, what is said for it, its value, and the lines that set it and tell the unit."""
    rng = ctx.rng
    thing = rng.choice(measure.things)
    if rng.random() < 0.5:
        thing = f"{ctx.words.noun().upper()}_{thing}"
    value = rng.choice((1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 300, 500, 900))
    kind = rng.random()
    if kind < 0.5:
        name = f"{thing}_{rng.choice(measure.ends)}"
        rows = [f"{name} = {value}"]
    elif kind < 0.8:
        name = thing
        comment = rng.choice(("{0}", "in {0}", "{0}, see the docs", "unit: {0}")).format(measure.unit)
        rows = [f"{name} = {value}  # {comment}"]
    else:
        name = thing
        comment = rng.choice(("In {0}.", "{1}, in {0}.", "All in {0}.")).format(
            measure.unit, ctx.words.phrase().capitalize()
        )
        rows = [f"# {comment}", f"{name} = {value}"]
    return name, thing, value, rows


@goal("set_unit", "setvalue", 2.0)
def set_unit(ctx: Setting) -> Plan | None:
    """A value in minutes for a number that is in seconds, as its name or a comment says."""
    rng, words = ctx.rng, ctx.words
    measure = rng.choice((*MEASURES[:2] * 2, *MEASURES))
    name, thing, value, rows = _line(ctx, measure)
    unit, worth = rng.choice(measure.larger)
    count = rng.choice((1, 2, 2, 3, 4, 5, 6, 8, 10, 12))
    new = str(count * worth)
    said = NUMBERS[count - 1] if rng.random() < 0.5 and unit.islower() else str(count)
    amount = f"{said} {unit}" + ("s" if count > 1 and unit.islower() and len(unit) > 2 else "")
    others = [f"{words.constant()} = {rng.randint(1, 99)}" for _ in range(rng.choice((1, 2, 3)))]
    before = rng.randint(0, len(others))
    path = f"{rng.choice(('', '', 'app/', 'src/'))}{ctx.unused(words.module)}.py"
    text = "\n".join([*others[:before], *rows, *others[before:]]) + "\n"
    spoken_name = rng.choice(
        (name, thing.lower().replace("_", " "), f"the {thing.lower().replace('_', ' ')}")
    )
    wanted = spoken_name.removeprefix("the ")
    item = Fact(name, str(value), path, text.splitlines().index(rows[-1]) + 1, rows[-1])
    later = Setting(type(ctx.facts)({**ctx.facts.files, path: text}), rng, words)
    if path in ctx.facts.files or new == str(value) or not _named(later, item, wanted):
        return None
    expected = checks.replace_line(text, item.line, rows[-1].replace(f"= {value}", f"= {new}"))
    request = _request(ctx, TO_UNIT, spoken_name, amount)

    def play(session: Session) -> tuple[str, str]:
        found = find_spoken(session, wanted, f"{spoken_name} should be {amount}.")
        real, hit = _only_one(found, wanted)
        where = hit.text.strip()
        if len(rows) > 1:
            think = f"{hit.at} has {where}. In which unit? Read around it."
            around(session, hit.path, hit.line, think)
            where = f"The comment above says: {rows[0].removeprefix('# ')}"
        product = "" if count == 1 else f", {count} * {worth} = {new}"
        session.lead = (
            f"{where}{'' if where.endswith('.') else '.'} So it is in {measure.unit}."
            f" 1 {unit} is {worth} {measure.unit}{product}."
        )
        return set_line(session, real, hit, new)

    return Plan(
        "set_unit",
        "setvalue",
        {"value": new},
        play,
        checks.writes({path: expected}),
        ("const", name),
        prompt=request,
        prepare=lambda files: files.update({path: text}),
    )
