"""What decides for a change before it is tried: the types that an error names, values that came and were
wanted, names that say which way it goes.
"""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress

from k3agent.backend.training.episodes.alike import alike_said, brackets_said
from k3agent.backend.training.episodes.culprits import ATTRIBUTE, culprits
from k3agent.backend.training.episodes.editing import changed_part
from k3agent.backend.training.episodes.symptoms import values_of
from k3agent.backend.training.episodes.testruns import Failure

Rows = list[tuple[int, str]]
_TYPES: dict[str, type] = {"str": str, "list": list, "dict": dict, "set": set, "int": int, "tuple": tuple}
_GIVEN: tuple[tuple[str, str], ...] = (
    (r"-?\d[\d_.]*$|len\(|sum\(|int\(", "a number"),
    (r"['\"]|f['\"]|str\(", "a text"),
    (r"\[|list\(|sorted\(", "a list"),
    (r"\{\}|dict\(|\{.+:", "a dict"),
)
"""What a name is by the value that it is given."""
_ARITHMETIC: dict[tuple[str, str], tuple[int, str]] = {
    ("-", "+"): (1, "it takes away where it should add"),
    ("-=", "+="): (1, "it takes away where it should add"),
    ("+", "-"): (-1, "it adds where it should take away"),
    ("+=", "-="): (-1, "it adds where it should take away"),
    ("*", "+"): (-1, "it multiplies where it should add"),
    ("+", "*"): (1, "it adds where it should multiply"),
    ("*", "/"): (-1, "it multiplies where it should divide"),
    ("*", "//"): (-1, "it multiplies where it should divide"),
    ("/", "*"): (1, "it divides where it should multiply"),
    ("//", "*"): (1, "it divides where it should multiply"),
    ("min", "max"): (1, "it takes the least where the most is wanted"),
    ("max", "min"): (-1, "it takes the most where the least is wanted"),
}
"""For an exchange: whether more (1) or less (-1) must be wanted than came, and what the line does."""
_NAMED: tuple[tuple[str, str, str], ...] = (
    ("+", "with plus add added sum total gross including deposit increase raise raised", "adds"),
    (
        "-",
        "without minus less discount discounted net reduce withdraw remaining left rest change",
        "takes away",
    ),
    ("*", "times product area scale scaled multiply double cost", "multiplies"),
    ("/", "average mean ratio rate per share half", "divides"),
    ("//", "average mean per share half whole pages", "divides"),
    ("max", "max maximum largest highest biggest longest latest most top best", "wants the most"),
    ("min", "min minimum smallest lowest cheapest shortest earliest least", "wants the least"),
    ("all", "all every", "wants all"),
    ("any", "any some has", "wants any"),
)
"""What words in a function's name say of a sign or call in it."""
_TEXT_WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("+", ("plus", "added", "sum of", "with")),
    ("-", ("minus", "less", "without", "difference", "reduced")),
    ("*", ("times", "product", "multiplied", "of each")),
    ("/", ("divided", "per", "average", "mean")),
    ("//", ("divided", "per", "whole")),
    ("max", ("largest", "highest", "longest", "at most", "biggest")),
    ("min", ("smallest", "lowest", "shortest", "cheapest")),
)
"""What a docstring's words say of a sign or call."""
_AT_LEAST = frozenset(("min", "minimum", "from", "least"))
_AT_MOST = frozenset(("max", "maximum", "limit", "until", "most", "capacity"))
_USUAL = frozenset(("7", "10", "12", "24", "60", "100", "365", "1000", "1024", "3600"))
_TURNED = {"<": (">=", ">"), "<=": (">", ">="), ">": ("<=", "<"), ">=": ("<", "<=")}
_GIVE_NONE = frozenset("add append clear discard extend insert remove reverse sort update".split())  # noqa: SIM905
"""Methods of lists, sets and dicts that change them and give nothing."""
_PROSE = frozenset("a an it lines nothing the times two what with without".split())  # noqa: SIM905
"""First words of sentences: what begins with another one begins with a name from the code."""
_HEAD = re.compile(r"\s*(?:async )?def (\w+)")
_IDENTIFIER = re.compile(r"(?:self\.)?[A-Za-z_]\w*")
_UNKNOWN = re.compile(r"(?:NameError: name|UnboundLocalError: cannot access local variable) '(\w+)'")


def evidence(rows: Rows, line: int, old: str, new: str, failure: Failure) -> str:
    """A short sentence from which a change of a line follows, or nothing where the failure and the code
    in view do not decide.
    """
    if "\n" in old + new:
        return ""
    head, body = _function_around(rows, line)
    said = (
        _of_error(rows, line, old, new, failure)
        or _of_line(rows, line, old, new, failure.error)
        or brackets_said(body, head, old, new, failure)
        or alike_said(body, head, line, old, new)
        or _of_names(rows, line, old, new, failure.error)
        or _of_branches(rows, line, old, new, failure.error)
        or _of_bounds(rows, old, new, failure)
        or _of_values(rows, line, old, new, failure.error)
    )
    is_prose = said.split(" ")[0] in _PROSE
    if is_prose:
        said = said[0].upper() + said[1:]
    return f"{said}." if said else ""


def _changed(old: str, new: str) -> tuple[str, str]:
    """The parts that differ, an attribute of self with its `self.`."""
    before, after = changed_part(old, new)
    if before.isidentifier() and after.isidentifier():
        for match in re.finditer(rf"\bself\.{before}\b", old):
            if f"{old[: match.start()]}self.{after}{old[match.end() :]}" == new:
                return f"self.{before}", f"self.{after}"
    return before, after


def _kind(kind: str) -> str:
    """What something is, in a thought."""
    if kind == "NoneType":
        return "None"
    return f"{'an' if kind[0] in 'aeio' else 'a'} {kind}" if kind else "no whole number"


def _of_error(rows: Rows, line: int, old: str, new: str, failure: Failure) -> str:
    """What an error says of the part that changes, where the line itself raised it."""
    error, (before, after) = failure.error, _changed(old, new)
    is_there = any(place[1] == line for place in failure.places)
    if not is_there or error.startswith("AssertionError") or not re.match(r"\w+(Error|Exception)\b", error):
        return ""
    if (match := ATTRIBUTE.search(error)) and match[2] == before and after.isidentifier():
        return f"{_kind(match[1])} has {after}, not {before}" if hasattr(_TYPES.get(match[1]), after) else ""
    if (before, after) == ("sum", "len") and (match := re.search(r"\+: 'int' and '(\w+)'", error)):
        return f"sum() adds {_kind(match[1])} to a number"
    if (before, after) in (("-", "+"), ("-=", "+=")) and "'str' and 'str'" in error:
        return "two texts: only + joins them"
    if before and error.startswith("KeyError: ") and error[10:].strip("'\"") == before.strip("'\""):
        return f"the key {error[10:]} is not there{_elsewhere(rows, line, after)}"
    divisor = re.escape(before)
    if error.startswith("ZeroDivisionError") and re.search(
        rf"[/%] *(\({divisor}\)|{divisor}(?![\w.\[(]))", old
    ):
        return f"{before} is 0 there" if before else ""
    if error.startswith("IndexError") and re.search(r"[-+] ?1$|^\d+$", before):
        return f"{before} leads beyond the end"
    return _of_types(rows, old, new, error)


def _of_types(rows: Rows, old: str, new: str, error: str) -> str:
    """The part that changes and the type that it has by the error; what is wanted, where a line tells."""
    before, after = _changed(old, new)
    for part, kind in sorted(culprits(old, error), key=lambda item: item[0] != before):
        is_hit = (
            re.search(rf"(?<![\w.]){re.escape(part)}(?!\w)", before) or part.startswith(f"{before}[")
            if before
            else new == old.replace(part, part + after, 1)
        )
        if is_hit:
            there = _given(rows, after) if _IDENTIFIER.fullmatch(after) else ""
            return f"{part} is {_kind(kind)}{f'; {there}' if there else ''}"
    return ""


def _elsewhere(rows: Rows, line: int, key: str) -> str:
    """In which other line in view a key stands."""
    at = next((number for number, text in rows if number != line and f"'{key}'" in text.replace('"', "'")), 0)
    return f"; line {at} has '{key}'" if at and key.isidentifier() else ""


def _given(rows: Rows, name: str) -> str:
    """What a name is by the line in view that gives it a value."""
    for number, text in rows:
        if match := re.match(rf"\s*{re.escape(name)} = (.+)$", text):
            kind = next((kind for pattern, kind in _GIVEN if re.match(pattern, match[1])), "")
            if kind:
                return f"{name} is {kind} (line {number})"
    return ""


def _of_line(rows: Rows, line: int, old: str, new: str, error: str) -> str:
    """What the line alone says: a value that is lost, an attribute without its object."""
    before, after = _changed(old, new)
    if new == f"return {old}":
        return "the line computes and gives nothing back"
    if old.startswith("print(") and new == f"return {old[6:-1]}":
        return "it prints and gives nothing back"
    if (match := re.match(r"([a-z_]\w*) ([-+]?=) ", old)) and new == f"self.{old}":
        return f"{match[1]} is local there; nothing keeps it"
    if (match := re.match(r"([\w.]+) = (.+)$", old)) and new == f"{match[1]} += {match[2]}":
        is_repeated = match[1].startswith("self.") or _is_in_loop(rows, line)
        return f"{match[1]} is set anew{' each time: only the last stays' if is_repeated else ''}"
    match = re.match(r"([\w.]+) = \1\.(\w+)\(", old)
    if match and match[2] in _GIVE_NONE and new == old.partition(" = ")[2]:
        return f"{match[2]} gives None"
    if re.search(r"[-+] 0(?![.\d])|(?<![.\d])\b1 \* |\* 1(?![.\d])", old) and before in ("0", "1"):
        return f"{'with 0' if before == '0' else 'times 1'} nothing changes"
    if twin := _twin(rows, line, old):
        return f"lines {min(line, twin)} and {max(line, twin)} do the same in both cases"
    if (before, after) == ("", "f") and "{" in error:
        return "the braces stay in the text: no f in front"
    if (before, after) == ("", "()") and re.search(r"built-in me|method", error):
        return "a method is named and not called"
    if before.isdigit() and after in _USUAL and before not in _USUAL:
        return f"{after} is usual there, not {before}"
    return ""


def _twin(rows: Rows, line: int, old: str) -> int:
    """The line of the other branch that holds the same, where each branch is one line; or 0."""
    text = dict(rows)
    for other, between in ((line + 2, line + 1), (line - 2, line - 1)):
        head = min(line, other) - 1
        is_pair = text.get(other, "").strip() == old and text.get(between, "").strip() == "else:"
        if is_pair and re.match(r"\s*(el)?if ", text.get(head, "")) and not _goes_on(text, max(line, other)):
            return other
    return 0


def _goes_on(text: dict[int, str], last: int) -> bool:
    """Whether the block that a line stands in goes on below it."""
    after = next((row for number, row in sorted(text.items()) if number > last and row.strip()), "")
    lead = text[last][: len(text[last]) - len(text[last].lstrip())]
    return after.startswith(lead)


def _is_in_loop(rows: Rows, line: int) -> bool:
    """Whether a line stands in a loop that is in view."""
    body = [text for number, text in _function_around(rows, line)[1] if number <= line and text.strip()]
    depth = 1000
    for text in reversed(body):
        indent = len(text) - len(text.lstrip())
        if indent < depth and depth < 1000 and re.match(r"\s*(async )?(for|while)\b", text):
            return True
        depth = min(depth, indent)
    return False


def _of_names(rows: Rows, line: int, old: str, new: str, error: str) -> str:
    """Which name is read before it is made, which one nothing reads, which one has the wanted type."""
    before, after = _changed(old, new)
    if not _IDENTIFIER.fullmatch(before) or not _IDENTIFIER.fullmatch(after):
        return ""
    values = values_of(error)
    if values is not None and old == f"return {before}" and type(values[0]) is not type(values[1]):
        kind, there = _kind_of(values[1]), _given(rows, after)
        if kind and f" is {kind} " in there:
            return f"{kind} is wanted: {there}"
    head, body = _function_around(rows, line)
    inside = "\n".join(text for _, text in body)
    word = after.removeprefix("self.")
    is_known = word not in ("self", "cls") and re.search(rf"[(,] ?{word}\b", head)
    is_known = is_known or any(f"self.{word} = " in text for _, text in rows)
    is_unread = is_known and not re.search(rf"\b{word}\b", inside)
    if after.startswith("self."):
        # other methods may read it
        is_unread = is_unread and not any(re.search(rf"\bself\.{word}\b(?! = )", text) for _, text in rows)
    match = _UNKNOWN.match(error)
    is_made = [number for number, text in body if _makes(text.strip(), before)] == [line]
    if match and match[1] == before and is_made:
        return f"{before} is made only there" + (f", and nothing reads {after}" if is_unread else "")
    if not is_unread or (f"self.{word}" in new and len(re.findall(rf"\b{before}\b", old)) < 2):
        return ""
    is_twice = len(re.findall(rf"\b{re.escape(before)}\b", old)) > 1
    return f"nothing reads {after}" + (f", and {before} stands twice" if is_twice else "")


def _makes(line: str, name: str) -> bool:
    """Whether a line gives a name its value: by `=` or as the name of a loop."""
    return bool(re.search(rf"^{name} = |\bfor (?:\w+, )*{name}(?:, \w+)* in\b", line))


def _function_around(rows: Rows, line: int) -> tuple[str, Rows]:
    """The head of the function that holds a line, and the lines in view below it."""
    heads = [number for number, text in rows if number <= line and _HEAD.match(text)]
    start = heads[-1] if heads else 0
    end = next((number for number, text in rows if number > line and _HEAD.match(text)), line + 1000)
    head = next((text for number, text in rows if number == start), "")
    return head, [(number, text) for number, text in rows if start < number < end]


def _kind_of(value: object) -> str:
    """What a value is, in the words of `_GIVEN`."""
    if isinstance(value, bool):
        return ""
    kinds = ((int | float, "a number"), (str, "a text"), (list, "a list"), (dict, "a dict"))
    return next((said for kind, said in kinds if isinstance(value, kind)), "")


def _of_bounds(rows: Rows, old: str, new: str, failure: Failure) -> str:
    """What a bound's name or the failing case says of a comparison."""
    before, after = _changed(old, new)
    match = re.search(rf"(?<![\w.])[\w.\])]+ {re.escape(before)} ([\w.]+)", old)
    if before not in _TURNED or after not in _TURNED or match is None:
        return ""
    bound = match[1]
    if after in (f"{before}=", before[:1]):
        value = bound if bound.isdigit() else _number_of(rows, bound)
        if value and re.search(rf"(?<![\w.-]){value}(?![\w.])", failure.test_code.split("==")[0]):
            belongs = "belongs" if "=" in after else "does not belong"
            return f"it fails for {value}, the bound, which {belongs} to it"
        return ""
    words = set(bound.rsplit(".", 1)[-1].lower().split("_"))
    if words & _AT_LEAST and after == ">=":
        return f"{bound} is the least: from it on"
    if words & _AT_MOST and after == "<=":
        return f"{bound} is the most: up to it"
    return "the comparison is turned round" if after in _TURNED[before] else ""


def _of_branches(rows: Rows, line: int, old: str, new: str, error: str) -> str:
    """Which other line returns the value that is wanted, where a condition decides between them."""
    values = values_of(error)
    if values is None or not re.match(r"(el)?if .+:$", old) or not re.match(r"(el)?if .+:$", new):
        return ""
    body = _function_around(rows, line)[1]
    returned = {repr(value): number for number, value in _returned(body)}
    got, wanted = (returned.get(repr(value)) for value in values)
    if wanted is None or got == wanted or line not in ((wanted or 0) - 1, (got or 0) - 1):
        return ""
    return f"the {values[1]!r} that is wanted is in line {wanted}: the condition in line {line} is wrong"


def _returned(body: Rows) -> Iterator[tuple[int, object]]:
    """The plain values that lines return."""
    for number, text in body:
        if match := re.match(r"\s*return (.+)$", text):
            with suppress(ValueError, SyntaxError):
                yield number, ast.literal_eval(match[1])


def _number_of(rows: Rows, name: str) -> str:
    """The number that a constant in view has."""
    return next(
        (match[1] for _, text in rows if (match := re.match(rf"{re.escape(name)} = (\d+)$", text))), ""
    )


def _of_values(rows: Rows, line: int, old: str, new: str, error: str) -> str:
    """What the numbers that came and were wanted, or the function's name, say of an exchanged sign."""
    before, after = _changed(old, new)
    values, entry = values_of(error), _ARITHMETIC.get((before, after))
    match = _HEAD.match(_function_around(rows, line)[0])
    name = match[1] if match else ""
    said = _said_by(name, after.removesuffix("=") or after) or _said_in_text(rows, line, after)
    if values is not None and all(type(value) in (int, float) for value in values):
        got, wanted = values
        if entry and (wanted - got) * entry[0] > 0:
            return f"{said}: {entry[1]}" if said else entry[1]
        if {before, after} == {"/", "//"}:
            return "a whole number is wanted" if after == "//" else "what comes after the point is lost"
    return said if entry or {before, after} == {"all", "any"} else ""


def _said_in_text(rows: Rows, line: int, sign: str) -> str:
    """What a word of the function's docstring says of a sign."""
    words = next((words for one, words in _TEXT_WORDS if one == sign.removesuffix("=")), ())
    for _, text in _function_around(rows, line)[1][:1]:
        if '"""' in text and (word := next((word for word in words if re.search(rf"\b{word}\b", text)), "")):
            return f"the docstring says {word}"
    return ""


def _said_by(name: str, sign: str) -> str:
    """What a function's name says of a sign or a call."""
    words = set(name.lower().split("_"))
    return next(
        (f"{name} {said}" for one, names, said in _NAMED if one == sign and words & set(names.split())), ""
    )
