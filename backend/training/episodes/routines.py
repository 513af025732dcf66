"""Functions put together at random: loops over pairs and records, conditions, steps, counts and text, with
names of everyday things, so that the function with a bug is rarely one that was seen before.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from k3agent.backend.training.episodes.concepts import Func, compile_function, copy_value
from k3agent.backend.training.episodes.words import RESERVED, Words, plural

_AMOUNTS = """
    price quantity weight hours rate distance speed width height length depth amount cost fee tax discount
    score level points age count size volume area duration minutes seconds days bonus salary stock units load
    power charge balance rent wage share profit loss mass force time number value total step rank votes goals
"""
_TOTALS = "total result amount acc summed cost value outcome subtotal running"
_LISTS = "items orders lines entries rows records values data parts tickets readings samples carts trips"
_COMPARE = (">", "<", ">=", "<=")
Maker = Callable[["Draw"], "Sketch"]


@dataclass(frozen=True, slots=True)
class Sketch:
    """A function without its cases: parameters with how their values are drawn, the body, what it returns."""

    params: dict[str, Callable[[], Any]]
    body: list[str]
    description: str
    ending: str


class Draw:
    """Draws names, numbers and small expressions; each name once a function."""

    def __init__(self, rng: random.Random, words: Words) -> None:
        self.rng = rng
        self.words = words
        self.taken: set[str] = set()

    def name(self, options: str) -> str:
        """One of some names (with spaces between), or any noun, not used yet."""
        for _ in range(40):
            name = self.rng.choice(options.split()) if self.rng.random() < 0.65 else self.words.noun()
            if name not in self.taken and name not in RESERVED and name.isidentifier():
                self.taken.add(name)
                return name
        name = f"value_{len(self.taken)}"
        self.taken.add(name)
        return name

    def amount(self) -> str:
        """A name of a number."""
        return self.name(_AMOUNTS)

    def many(self) -> str:
        """A name of a list."""
        return self.name(_LISTS) if self.rng.random() < 0.5 else self.name(plural(self.words.noun()))

    def number(self, high: int = 12) -> int:
        """A small number."""
        return self.rng.randint(2, high)

    def join(self, first: str, second: str) -> str:
        """An expression of two numbers."""
        rng, number = self.rng, self.number()
        return rng.choice(
            (
                f"{first} * {second}",
                f"{first} * {second}",
                f"{first} + {second}",
                f"{first} - {second}",
                f"{first} * {number} + {second}",
                f"{first} * {second} - {number}",
                f"({first} - {number}) * {second}",
                f"({first} + {second}) * {number}",
                f"max({first}, {second})",
                f"min({first} * {number}, {second})",
                f"abs({first} - {second})",
                f"{first} // {number} + {second}",
                f"{first} * {second} % {number}",
            )
        )

    def test(self, *names: str) -> str:
        """A condition on numbers."""
        rng = self.rng
        name = rng.choice(names)
        simple = f"{name} {rng.choice(_COMPARE)} {self.number()}"
        if len(names) > 1 and rng.random() < 0.35:
            other = next(item for item in names if item != name)
            return rng.choice(
                (f"{simple} {rng.choice(('and', 'or'))} {other} > {self.number(6)}", f"{name} > {other}")
            )
        return rng.choice((simple, simple, simple, f"{name} % {rng.choice((2, 3))} == 0"))

    def integer(self) -> int:
        """A value of a number."""
        return self.rng.randint(1, 20)


def _pairs(draw: Draw) -> Sketch:
    """A loop over pairs that adds something up."""
    rng, many = draw.rng, draw.many()
    first, second, total = draw.amount(), draw.amount(), draw.name(_TOTALS)
    start = rng.choice((0, 0, 0, 1, 10))
    value = draw.join(first, second)
    operator = rng.choice(("+", "+", "+", "-"))
    zipped = rng.random() < 0.3
    source = many
    params: dict[str, Callable[[], Any]] = {
        many: lambda: [(draw.integer(), draw.integer()) for _ in range(rng.choice((2, 2, 3)))]
    }
    if zipped:
        other = draw.many()
        source = f"zip({many}, {other})"
        params = {name: lambda: [draw.integer() for _ in range(2)] for name in (many, other)}
    body = [f"    {total} = {start}", f"    for {first}, {second} in {source}:"]
    tested = ""
    if rng.random() < 0.35:
        test = draw.test(first, second)
        tested = f" where {test}"
        if rng.random() < 0.5:
            body += [f"        if {test}:", f"            {total} {operator}= {value}"]
        else:
            body += [
                f"        if not ({test}):",
                "            continue",
                f"        {total} {operator}= {value}",
            ]
    else:
        body.append(f"        {total} {operator}= {value}")
    end = rng.choice((total, total, total, f"{total} * {draw.number()}", f"{total} - {draw.number()}"))
    body.append(f"    return {end}")
    if not tested and operator == "+" and start == 0 and end == total and rng.random() < 0.35:
        body = [f"    return sum({value} for {first}, {second} in {source})"]
    return Sketch(
        params, body, f"{value} summed up over {many}{tested}", rng.choice(("total", "sum", "value"))
    )


def _records(draw: Draw) -> Sketch:
    """A loop over dicts."""
    rng, many, row = draw.rng, draw.many(), draw.name("row item entry record order")
    one, two, total = draw.amount(), draw.amount(), draw.name(_TOTALS)
    first, second = f"{row}['{one}']", f"{row}['{two}']"
    value = rng.choice((first, draw.join(first, second), draw.join(first, second)))
    test = draw.test(second, first)
    kept = rng.random() < 0.5
    start, step, what = (
        ("0", f"{total} += {value}", "summed up") if kept else ("[]", f"{total}.append({value})", "")
    )
    body = [
        f"    {total} = {start}",
        f"    for {row} in {many}:",
        f"        if {test}:",
        f"            {step}",
        f"    return {total}",
    ]
    if not kept and rng.random() < 0.4:
        body = [f"    return [{value} for {row} in {many} if {test}]"]
    made = {many: lambda: [{one: draw.integer(), two: draw.integer()} for _ in range(2)]}
    said = f"{value} {what or 'of each'} over {many} where {test}".replace("['", " ").replace("']", "")
    return Sketch(made, body, said, rng.choice(("total", "list", "report", "values")))


def _steps(draw: Draw) -> Sketch:
    """Numbers with limits: a fee, a grade, a discount."""
    rng, one, two = draw.rng, draw.amount(), draw.amount()
    low, high = sorted(rng.sample(range(2, 18), 2))
    results = [
        draw.join(one, two),
        str(draw.number(40)),
        f"{two} * {draw.number()}",
        f"{one} + {draw.number()}",
    ]
    rng.shuffle(results)
    over = rng.choice((">", ">="))
    body = [
        f"    if {one} {over} {high}:",
        f"        return {results[0]}",
        f"    if {one} {over} {low}:",
        f"        return {results[1]}",
        f"    return {results[2]}",
    ]
    if rng.random() < 0.4:
        local = draw.name(_TOTALS)
        body = [
            f"    {local} = {draw.join(one, two)}",
            f"    if {one} {over} {high}:",
            f"        {local} {rng.choice(('+', '-'))}= {draw.number()}",
            f"    return {local}",
        ]
        return Sketch({one: draw.integer, two: draw.integer}, body, f"the {local} for {one} and {two}", local)
    said = f"{results[0]} if {one} {over} {high}, {results[1]} if {one} {over} {low}, else {results[2]}"
    return Sketch(
        {one: draw.integer, two: draw.integer}, body, said, rng.choice(("fee", "level", "grade", "rate"))
    )


def _neighbours(draw: Draw) -> Sketch:
    """A loop over positions that compares neighbours."""
    rng, many, total = draw.rng, draw.many(), draw.name(_TOTALS)
    index = draw.name("i index pos k")
    here, before = f"{many}[{index}]", f"{many}[{index} - 1]"
    test = rng.choice(
        (f"{here} > {before}", f"{here} < {before}", f"{here} == {before}", f"{here} >= {before}")
    )
    value = rng.choice(("1", f"{here} - {before}", f"{here} * {before}", here, f"abs({here} - {before})"))
    body = [f"    {total} = 0", f"    for {index} in range(1, len({many})):"]
    if rng.random() < 0.65 or value == "1":
        body += [f"        if {test}:", f"            {total} += {value}"]
        said = f"{value} for each {index} with {test}, summed up"
    else:
        body.append(f"        {total} += {value}")
        said = f"{value} summed up over all {index} from 1"
    made = {many: lambda: [rng.randint(1, 9) for _ in range(rng.randint(3, 5))]}
    return Sketch(
        made, [*body, f"    return {total}"], said, rng.choice(("rises", "changes", "steps", "drift"))
    )


def _best(draw: Draw) -> Sketch:
    """The best of some pairs or numbers."""
    rng, many = draw.rng, draw.many()
    name, amount = draw.name("name label key item"), draw.amount()
    best = draw.name("best top winner chosen found")
    sign, word = rng.choice(((">", "largest"), ("<", "smallest"), (">=", "largest, the last of equal ones,")))
    shown = rng.choice((name, amount))
    body = [
        f"    {best} = None",
        f"    {many}_{amount} = None",
        f"    for {name}, {amount} in {many}.items():",
    ]
    held = f"{many}_{amount}" if rng.random() < 0.5 else draw.name("limit high edge mark")
    body[1] = f"    {held} = None"
    body += [
        f"        if {held} is None or {amount} {sign} {held}:",
        f"            {held} = {amount}",
        f"            {best} = {shown}",
        f"    return {best}",
    ]
    made = {many: lambda: {draw.words.noun(): draw.integer() for _ in range(rng.choice((2, 2, 3)))}}
    return Sketch(
        made, body, f"the {shown} of the {word} {amount} in {many}", rng.choice(("best", "extreme", "pick"))
    )


def _groups(draw: Draw) -> Sketch:
    """Counts or sums by name."""
    rng, many, found = draw.rng, draw.many(), draw.name("counts groups sums result table")
    name, amount = draw.name("name kind label city team"), draw.amount()
    step = rng.choice(("1", amount, f"{amount} * {draw.number()}", f"{amount} + {draw.number()}"))
    test = draw.test(amount)
    body = [f"    {found} = {{}}", f"    for {name}, {amount} in {many}:"]
    line = f"{found}[{name}] = {found}.get({name}, 0) + {step}"
    tested = rng.random() < 0.5
    body += [f"        if {test}:", f"            {line}"] if tested else [f"        {line}"]
    said = f"a dict of each {name} in {many} to its {step} summed up" + (f" where {test}" if tested else "")
    pool = [draw.words.noun() for _ in range(2)]
    made = {many: lambda: [(rng.choice(pool), draw.integer()) for _ in range(rng.choice((2, 2, 3)))]}
    return Sketch(
        made, [*body, f"    return {found}"], said, rng.choice(("by_name", "table", "sums", "counts"))
    )


def _texts(draw: Draw) -> Sketch:
    """Words that are kept, changed and joined."""
    rng, many = draw.rng, draw.many()
    word, found = (
        draw.name("word name term tag part"),
        draw.name("found kept out result"),
    )
    size = rng.randint(3, 6)
    test = rng.choice(
        (
            f"len({word}) > {size}",
            f"len({word}) <= {size}",
            f"{word} not in {found}",
            f"{word}[0] != {word}[-1]",
            f"'{rng.choice('aeio')}' in {word}",
            f"{word}.startswith('{rng.choice('abcs')}') or len({word}) == {size}",
        )
    )
    value = rng.choice(
        (
            f"{word}.upper()",
            f"{word}[:{size - 1}]",
            f"{word}[::-1]",
            f"{word} + str(len({word}))",
            word,
            f"{word}.title()",
        )
    )
    link = rng.choice((", ", "-", " ", "/"))
    end = rng.choice(
        (found, found, f"len({found})", f"'{link}'.join({found})", f"sorted({found})", f"{found}[::-1]")
    )
    body = [
        f"    {found} = []",
        f"    for {word} in {many}:",
        f"        if {test}:",
        f"            {found}.append({value})",
        f"    return {end}",
    ]
    made = {many: lambda: [draw.words.noun() for _ in range(rng.randint(2, 3))]}
    return Sketch(
        made, body, f"{end} of {value} for each {word} in {many} where {test}", rng.choice(("names", "tags"))
    )


def _plain(draw: Draw) -> Sketch:
    """A few lines of arithmetic."""
    rng, one, two, three = draw.rng, draw.amount(), draw.amount(), draw.amount()
    local, total = draw.name(_TOTALS), draw.name("net gross rest full final")
    first, second = draw.join(one, two), draw.join(two if rng.random() < 0.3 else one, three)
    body = [
        f"    {local} = {first}",
        f"    {total} = {local} {rng.choice('+-*')} {rng.choice((three, f'{three} * {draw.number()}'))}",
        rng.choice(
            (
                f"    return {total}",
                f"    return max({total}, {draw.number()})",
                f"    return {total} - {two}",
            )
        ),
    ]
    if rng.random() < 0.3:
        body = [f"    return ({first}) + {second}"]
    return Sketch(
        dict.fromkeys((one, two, three), draw.integer),
        body,
        f"the {total} of {one}, {two} and {three}",
        total,
    )


MAKERS: tuple[Maker, ...] = (
    _pairs,
    _pairs,
    _pairs,
    _records,
    _records,
    _steps,
    _neighbours,
    _best,
    _groups,
    _texts,
    _plain,
)


def routine_function(rng: random.Random, words: Words, cases: int = 3) -> Func:
    """A function put together at random, its cases computed by running it."""
    while True:
        draw = Draw(rng, words)
        sketch = rng.choice(MAKERS)(draw)
        ending = sketch.ending if sketch.ending not in draw.taken else f"{sketch.ending}_of"
        name = f"{words.noun()}_{ending}" if rng.random() < 0.6 else f"{words.verb()}_{words.noun()}_{ending}"
        if name in words.used or name in draw.taken or name in RESERVED or not name.isidentifier():
            continue
        said = sketch.description
        func = Func(name, list(sketch.params), sketch.body, said)
        if _fill(func, list(sketch.params.values()), cases):
            words.used.add(name)
            return func


def _fill(func: Func, makers: list[Callable[[], Any]], count: int) -> bool:
    """Compute cases; False where they say too little."""
    function = compile_function(func)
    for _ in range(count * 4):
        args = tuple(make() for make in makers)
        try:
            value = function(*[copy_value(arg) for arg in args])
        except (ArithmeticError, ValueError, LookupError, TypeError):
            continue
        if all(args != seen for seen, _ in func.cases):
            func.cases.append((args, value))
        if len(func.cases) == count:
            break
    return len({repr(value) for _, value in func.cases}) > 1
