"""Lines that assign a value: cut apart, the new value written like the old one, and drawn."""

import re

from k3agent.backend.training.episodes import literals
from k3agent.backend.training.episodes.policy import esc
from k3agent.backend.training.episodes.registry import Setting

LEAD = r"^\s*(?:export\s+|const\s+|let\s+|var\s+|static\s+|final\s+|readonly\s+|ARG\s+|ENV\s+)*"
TRUE = ("true", "on", "yes", "enabled", "1")
QUOTES = "'\""
CODE = ("py", "js", "ts", "go", "json", "toml")
"""Files in which a text needs quotation marks."""
BARE = ("ini", "cfg", "conf", "yaml", "yml", "sh")
"""Files in which a text without spaces needs none."""
LITERAL = re.compile(
    r"^(-?\d[\d_]*(\.\d+)?(e[-+]?\d+)?|0x[\da-fA-F]+|\d+( \*\*? \d+)+|True|False|None|true|false|null"
    r"|[\[({].*[\])}])$"
)
DATE = re.compile(r"^\d{4}-\d\d-\d\d$")


def assignment(name: str) -> str:
    """The pattern that finds assignments of a name in most languages."""
    return rf"\b{esc(name)}\b[\"']?\s*[:=]"


def split_value(name: str, text: str) -> tuple[str, str, str] | None:
    """A line as (before the value, value, after it), if it assigns the name."""
    match = re.match(
        rf"({LEAD}[\"']?{re.escape(name)}[\"']?(?:: [^=\"']+?(?=\s*=))?\s*(?::=|=|:)\s*)(?![=])(.+)$", text
    )
    if match is None:
        return None
    head, rest = match[1], match[2].rstrip()
    value = re.match(
        r"(\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\[[^\]]*\]|\{[^}]*\}|\([^)]*\)|[^#;,\n]+?)"
        r"(\s*(?:[;,]\s*(?:(?:#|//).*)?|\s+(?:#|//).*|))$",
        rest,
    )
    if value is None:
        return head, rest, ""
    return head, value[1], value[2]


def quote_like(old: str, bare: str) -> str:
    """A text in the old one's quotation marks, or in the other ones where it contains those."""
    other = '"' if old[0] == "'" else "'"
    if old[0] not in bare:
        return f"{old[0]}{bare}{old[0]}"
    return (
        f"{other}{bare}{other}"
        if other not in bare
        else f"{old[0]}{bare.replace(old[0], chr(92) + old[0])}{old[0]}"
    )


def fit_value(old: str, wanted: str, kind: str = "") -> str:
    """The wanted value written in the way of the old one; `kind` is the file's extension."""
    bare = wanted[1:-1] if len(wanted) > 1 and wanted[0] == wanted[-1] and wanted[0] in QUOTES else wanted
    if old[:1] in QUOTES and old[:1]:
        return wanted if wanted in ("None", "null") else quote_like(old, bare)
    if old in ("True", "False"):
        return (
            "True"
            if bare.lower() in TRUE
            else "False"
            if bare.lower() in ("false", "off", "no", "disabled", "0")
            else wanted
        )
    if old in ("true", "false"):
        return (
            "true"
            if bare.lower() in TRUE
            else "false"
            if bare.lower() in ("false", "off", "no", "disabled", "0")
            else wanted
        )
    if (
        bare == wanted
        and kind in CODE
        and not LITERAL.match(wanted)
        and not (kind == "toml" and DATE.match(wanted))
    ):
        return quote_like('"', wanted)
    return bare if kind in BARE and not re.search(r"[\s#]", bare) else wanted


def draw_value(ctx: Setting, old: str, kind: str = "") -> tuple[str, str]:
    """(what the user says, what the value becomes) for an old value, different from it."""
    for _ in range(20):
        said = new_value(ctx, old, kind)
        new = fit_value(old, said, kind)
        if new != old:
            return said, new
    return "7", fit_value(old, "7", kind)


def new_value(ctx: Setting, old: str, kind: str) -> str:
    """A value as the user says it."""
    rng = ctx.rng
    if re.fullmatch(r"-?[\d_]+|0x\w+", old):
        return _new_int(ctx, old, kind)
    if re.fullmatch(r"-?[\d_]+(\.\d+)?(e-?\d+)?", old):
        if rng.random() < 0.2 and kind == "py":
            return literals.odd_number(rng)
        sign = -1 if rng.random() < 0.2 else 1
        number = rng.choice((rng.randint(1, 99) / 10, rng.randint(1, 99) / 100, float(rng.randint(1, 9))))
        return str(sign * number)
    if old[:1] in QUOTES:
        return _new_text(ctx, old[1:-1], kind)
    if old in ("True", "False", "true", "false"):
        new = {"True": "False", "False": "True", "true": "false", "false": "true"}[old]
        return new if rng.random() < 0.7 else new.lower()
    if old in ("None", "null"):
        return str(rng.randint(1, 50)) if rng.random() < 0.5 else _new_text(ctx, "", kind)
    if old[0] in "[({":
        return _new_group(ctx, old)
    if kind == "py":
        return literals.odd_number(rng)
    return _new_text(ctx, old, kind)


def _new_int(ctx: Setting, old: str, kind: str) -> str:
    """A number for a number, seldom something else."""
    rng, roll = ctx.rng, ctx.rng.random()
    if roll < 0.28:
        # Code may use the old number as a length, so the new one stays small.
        other = (-rng.randint(1, 99), rng.randint(10**4, 10**5), rng.randint(1, 999) / 100)
        return literals.small_number(rng) if kind == "py" else str(rng.choice(other))
    if roll < 0.35 and kind in CODE:
        return literals.version(rng, ctx.words)
    number = int(old.replace("_", ""), 0)
    return str(rng.choice((rng.randint(0, 99), rng.randint(100, 9999), number + 1, number * 2, 10)))


def _new_text(ctx: Setting, old: str, kind: str) -> str:
    """A text for a text, in quotation marks where it could not be told from the rest of the request."""
    rng, words, roll = ctx.rng, ctx.words, ctx.rng.random()
    if roll < 0.4:
        text = words.text_value()
    elif roll < 0.97:
        text = literals.like_text(rng, words, old)
    else:
        return "None" if kind == "py" else f"{rng.randint(0, 9)}.{rng.randint(0, 9)}"
    if kind not in CODE and not re.fullmatch(r"\w[\w.:/@+-]*", text):
        text = words.noun()
    is_plain = " " not in text and not {"'", '"'} & set(text)
    if is_plain:
        return f'"{text}"' if rng.random() < 0.15 else text
    mark = '"' if "'" in text or rng.random() < 0.7 else "'"
    return text if rng.random() < 0.1 else f"{mark}{text}{mark}"


def _new_group(ctx: Setting, old: str) -> str:
    """A list, tuple or table of things like those in the old one."""
    rng, words = ctx.rng, ctx.words
    quote = '"' if '"' in old else "'"
    has_text = quote in old
    if old[0] == "{" and ":" in old:
        pairs = (f"{quote}{words.noun()}{quote}: {rng.randint(0, 99)}" for _ in range(rng.randint(1, 3)))
        return "{" + ", ".join(pairs) + "}"
    count = rng.randint(2, 3) if old[0] == "(" else rng.randint(1, 4)
    items = [f"{quote}{words.noun()}{quote}" if has_text else str(rng.randint(0, 99)) for _ in range(count)]
    return f"{old[0]}{', '.join(items)}{old[-1]}"
