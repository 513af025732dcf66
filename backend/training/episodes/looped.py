"""Functions of a loop and a condition, put together: which items, and what becomes of them."""

import random

from k3agent.backend.training.episodes.concepts import Func, compile_function, copy_value
from k3agent.backend.training.episodes.words import Words, plural


def _numbers(rng: random.Random, words: Words) -> tuple[str, str]:
    """(which numbers, the test of one)."""
    n = rng.randint(2, 30)
    return rng.choice(
        (
            ("the even numbers in {0}", "{1} % 2 == 0"),
            ("the odd numbers in {0}", "{1} % 2 == 1"),
            ("the positive numbers in {0}", "{1} > 0"),
            ("the negative numbers in {0}", "{1} < 0"),
            (f"the numbers in {{0}} above {n}", f"{{1}} > {n}"),
            (f"the numbers in {{0}} below {n}", f"{{1}} < {n}"),
            (f"all of {{0}} that are at least {n}", f"{{1}} >= {n}"),
            (f"the numbers of {{0}} that are divisible by {n % 6 + 2}", f"{{1}} % {n % 6 + 2} == 0"),
            (f"all of {{0}} except {n}", f"{{1}} != {n}"),
        )
    )


def _texts(rng: random.Random, words: Words) -> tuple[str, str]:
    """(which words, the test of one)."""
    n, word = rng.randint(2, 9), words.noun()[: rng.choice((1, 2, 20))]
    return rng.choice(
        (
            (f"the words in {{0}} longer than {n} characters", f"len({{1}}) > {n}"),
            (f"the strings in {{0}} shorter than {n}", f"len({{1}}) < {n}"),
            (f'those of {{0}} that start with "{word}"', f'{{1}}.startswith("{word}")'),
            (f'those of {{0}} that end with "{word}"', f'{{1}}.endswith("{word}")'),
            (f'the entries of {{0}} that contain "{word}"', f'"{word}" in {{1}}'),
            (f'those of {{0}} without "{word}"', f'"{word}" not in {{1}}'),
            ("the entries of {0} that are not empty", "{1}"),
            ("those of {0} in lower case", "{1}.islower()"),
        )
    )


def _records(rng: random.Random, words: Words, key: str, flag: str) -> tuple[str, str]:
    """(which records, the test of one)."""
    n = rng.randint(2, 30)
    return rng.choice(
        (
            (f"the {{0}} with a {key} above {n}", f'{{1}}["{key}"] > {n}'),
            (f"those of {{0}} whose {key} is below {n}", f'{{1}}["{key}"] < {n}'),
            (f"those of {{0}} that are {flag}", f'{{1}}["{flag}"]'),
            (f"the {{0}} that are not {flag}", f'not {{1}}["{flag}"]'),
        )
    )


USES = (
    ("the number of {which}", "count", "sum(1 for {item} in {items} if {test})", "0", "+= 1"),
    ("how many there are of {which}", "count", "sum(1 for {item} in {items} if {test})", "0", "+= 1"),
    ("a list of {which}", "select", "[{item} for {item} in {items} if {test}]", "[]", ".append({item})"),
    ("{which} as a list", "keep", "[{item} for {item} in {items} if {test}]", "[]", ".append({item})"),
    (
        "the first of {which}, or None",
        "first",
        "next(({item} for {item} in {items} if {test}), None)",
        "",
        "",
    ),
)
"""(what is returned, a verb for the name, as one expression, the first value of a loop and its step)."""
NUMBER_USES = (
    *USES,
    ("the sum of {which}", "sum", "sum({item} for {item} in {items} if {test})", "0", "+= {item}"),
    (
        "the squares of {which}",
        "squares",
        "[{item} ** 2 for {item} in {items} if {test}]",
        "[]",
        ".append({item} ** 2)",
    ),
    (
        "twice each of {which}",
        "double",
        "[{item} * 2 for {item} in {items} if {test}]",
        "[]",
        ".append({item} * 2)",
    ),
    (
        "the largest of {which}, or None",
        "largest",
        "max(({item} for {item} in {items} if {test}), default=None)",
        "",
        "",
    ),
)
TEXT_USES = (
    *USES,
    (
        "{which} in upper case",
        "upper",
        "[{item}.upper() for {item} in {items} if {test}]",
        "[]",
        ".append({item}.upper())",
    ),
    (
        "the lengths of {which}",
        "lengths",
        "[len({item}) for {item} in {items} if {test}]",
        "[]",
        ".append(len({item}))",
    ),
    ("{which} joined with commas", "join", '",".join({item} for {item} in {items} if {test})', "", ""),
)


def looped_function(rng: random.Random, words: Words) -> Func | None:
    """A function that looks at each of some items; None where its name is taken."""
    kind = rng.choice(("ints", "words", "records"))
    noun, key, label, flag = (words.fresh(words.noun) for _ in range(4))
    items = rng.choice((plural(noun), plural(noun), "items", "values", "entries"))
    item = rng.choice(
        (noun if items == plural(noun) else "item", "item", "value" if items != "value" else "x")
    )
    if kind == "ints":
        (which, test), uses = _numbers(rng, words), NUMBER_USES
    elif kind == "words":
        (which, test), uses = _texts(rng, words), TEXT_USES
    else:
        which, test = _records(rng, words, key, flag)
        of = f'{{item}}["{label}"]'
        uses = (
            *USES,
            (
                f"the {label} of {{which}}",
                label,
                f"[{of} for {{item}} in {{items}} if {{test}}]",
                "[]",
                f".append({of})",
            ),
            (
                f"the sum of the {key} of {{which}}",
                f"total_{key}",
                f'sum({{item}}["{key}"] for {{item}} in {{items}} if {{test}})',
                "0",
                f'+= {{item}}["{key}"]',
            ),
        )
    said, verb, code, start, step = rng.choice(uses)
    name = words.fresh(
        lambda: rng.choice(
            (f"{verb}_{noun}", f"{verb}_{plural(noun)}", f"{verb}_{words.adjective()}", words.function())
        )
    )
    places = {"which": which.format(items), "item": item, "items": items, "test": test.format(items, item)}
    if item == items or name in (item, items) or not name.isidentifier():
        return None
    if start and rng.random() < 0.5:
        result = rng.choice(("result", "found", "total" if start == "0" else "kept"))
        link = "" if step.startswith(".") else " "
        body = [f"{result} = {start}", f"for {item} in {items}:", f"    if {places['test']}:"]
        body += [f"        {result}{link}{step.format(**places)}", f"return {result}"]
    else:
        body = [f"return {code.format(**places)}"]
    func = Func(name, [items], [f"    {line}" for line in body], said.format(**places))
    try:
        function = compile_function(func)
        for _ in range(4):
            values = _values(kind, rng, words, key, label, flag, which)
            func.cases.append(((values,), function(copy_value(values))))
    except (SyntaxError, NameError):
        return None
    return func


def _values(kind: str, rng: random.Random, words: Words, key: str, label: str, flag: str, said: str) -> list:
    count = rng.randint(1, 5)
    if kind == "ints":
        return [rng.randint(-9, 40) for _ in range(count)]
    if kind == "words":
        marked = said.split('"')[1] if '"' in said else ""
        return [
            rng.choice((words.noun(), words.noun()[:3], f"{marked}x", f"x{marked}", marked))
            for _ in range(count)
        ]
    return [{label: words.noun(), key: rng.randint(0, 40), flag: rng.random() < 0.5} for _ in range(count)]
