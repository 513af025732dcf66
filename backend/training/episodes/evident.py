"""What is evidently odd in a function by its text alone, without a test or a failure."""

import ast
import builtins
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

ALONE = "stands nowhere else"
"""What is said of a name that is written wrongly."""
SHORTEST = 4
"""Letters of a name that can be told from a slip of it."""
_CALLED = frozenset(
    "strip lstrip rstrip lower upper title capitalize split rsplit splitlines keys items values copy".split()  # noqa: SIM905
    + "isdigit isalpha read readline readlines close popitem encode decode casefold".split()  # noqa: SIM905
)
"""Methods without which a program gets the method and not what it gives."""
_IN_PLACE = frozenset("append extend sort reverse insert update clear discard".split())  # noqa: SIM905
_OF_LISTS = frozenset(("append", "extend", "insert", "sort", "reverse"))
_OF_DICTS = frozenset(("items", "keys", "values", "setdefault", "update", "get"))
_WORD = re.compile(r"[A-Za-z_]\w{2,}")


@dataclass(frozen=True, slots=True)
class Oddity:
    """A line that is odd, and what is odd about it, as a thought says it."""

    line: int
    said: str


Function = ast.FunctionDef | ast.AsyncFunctionDef


def oddities(text: str, name: str) -> list[Oddity]:
    """All that is evidently odd in a function of a text, each line once. Raises SyntaxError."""
    tree = ast.parse(text)
    nodes = [node for node in ast.walk(tree) if isinstance(node, Function) and node.name == name]
    found: dict[int, Oddity] = {}
    for node in nodes:
        for rule in _RULES:
            for item in rule(node, text):
                found.setdefault(item.line, item)
    return sorted(found.values(), key=lambda item: item.line)


def is_slip(wrong: str, right: str) -> bool:
    """Whether a name is another one with a letter lost, twice or in the wrong order, not at its ends."""
    if len(right) < SHORTEST or wrong == right:
        return False
    inner = range(1, len(right) - 1)
    lost = {right[:at] + right[at + 1 :] for at in inner}
    twice = {right[:at] + right[at] + right[at:] for at in range(1, len(right))}
    turned = {right[:at] + right[at + 1] + right[at] + right[at + 2 :] for at in inner}
    return wrong in lost | twice | turned


def _names(node: Function) -> tuple[list[ast.Name], set[str]]:
    """The names that a function reads, and those that it binds itself."""
    read: list[ast.Name] = []
    bound: set[str] = set()
    for item in ast.walk(node):
        if isinstance(item, ast.Name):
            if isinstance(item.ctx, ast.Load):
                read.append(item)
            else:
                bound.add(item.id)
        elif isinstance(item, ast.arg):
            bound.add(item.arg)
        elif isinstance(item, ast.alias):
            bound.add((item.asname or item.name).split(".")[0])
        elif isinstance(item, Function | ast.ClassDef | ast.ExceptHandler):
            bound.add(item.name or "")
        elif isinstance(item, ast.Global | ast.Nonlocal):
            bound.update(item.names)
    return read, bound


def _misspelled(node: Function, text: str) -> Iterator[Oddity]:
    """A name or an attribute that stands nowhere else, and a much used one that is nearly the same."""
    read, bound = _names(node)
    for item in read:
        if item.id not in bound and not hasattr(builtins, item.id) and _once(item.id, text):
            like = next((other for other in sorted(bound) if is_slip(item.id, other)), "")
            if like:
                yield Oddity(item.lineno, f"{item.id} {ALONE}")
    for item in ast.walk(node):
        if not isinstance(item, ast.Attribute) or not _once(item.attr, text):
            continue
        others = re.findall(rf"{re.escape(ast.unparse(item.value))}\.(\w+)", text)
        like = next((other for other in others if is_slip(item.attr, other)), "")
        if like:
            yield Oddity(item.lineno, f"{item.attr} {ALONE}")


def _once(name: str, text: str) -> bool:
    return len(re.findall(rf"\b{re.escape(name)}\b", text)) == 1


def _unused(node: Function, text: str) -> Iterator[Oddity]:
    """A local name that gets a value which nothing reads: said of the line that gives it."""
    read, _ = _names(node)
    used = {item.id for item in read}
    if "locals()" in text or any(isinstance(item, ast.Global | ast.Nonlocal) for item in ast.walk(node)):
        return
    for item in ast.walk(node):
        if isinstance(item, ast.Assign) and len(item.targets) == 1 and isinstance(item.targets[0], ast.Name):
            name = item.targets[0].id
            if name not in used and not name.startswith("_"):
                if f"self.{name}" in text:
                    yield Oddity(item.lineno, f"nothing reads {name}: it must be self.{name}")
                else:
                    yield Oddity(item.lineno, f"nothing reads {name}")


def _lost(node: Function, _: str) -> Iterator[Oddity]:
    """A value that is computed and lost: a comparison or sum as a statement, a last call without return."""
    for item in ast.walk(node):
        if not isinstance(item, ast.Expr):
            continue
        value = item.value
        if isinstance(value, ast.Compare) and isinstance(value.ops[0], ast.Eq):
            yield Oddity(item.lineno, "it compares and nothing takes the result: = is meant")
        elif isinstance(value, ast.BinOp | ast.Compare | ast.BoolOp | ast.Subscript | ast.Name | ast.Tuple):
            yield Oddity(item.lineno, "its value is lost: a return is missing")
        elif isinstance(value, ast.Attribute):
            yield Oddity(item.lineno, f"{value.attr} alone does nothing")
    last, doc = node.body[-1], ast.get_docstring(node) or ""
    has_value = any(isinstance(item, ast.Return) and item.value is not None for item in ast.walk(node))
    yields = any(isinstance(item, ast.Yield | ast.YieldFrom) for item in ast.walk(node))
    is_lost = isinstance(last, ast.Expr) and isinstance(last.value, ast.Call) and not has_value and not yields
    if is_lost and re.match(r"Returns? (?!None|nothing)", doc):
        yield Oddity(last.lineno, "the docstring tells of a value: a return is missing")


def _uncalled(node: Function, _: str) -> Iterator[Oddity]:
    """A method that is named and not called."""
    called = {id(item.func) for item in ast.walk(node) if isinstance(item, ast.Call)}
    for item in ast.walk(node):
        if isinstance(item, ast.Attribute) and isinstance(item.ctx, ast.Load) and id(item) not in called:
            is_own = isinstance(item.value, ast.Name) and item.value.id in ("self", "cls")
            if item.attr in _CALLED and not is_own:
                yield Oddity(item.lineno, f"{item.attr} is not called")


def _in_place(node: Function, _: str) -> Iterator[Oddity]:
    """The result of a method that has none, given to what it changes."""
    for item in ast.walk(node):
        match item:
            case ast.Assign(targets=[target], value=ast.Call(func=ast.Attribute(value=owner, attr=attr))):
                if attr in _IN_PLACE and ast.unparse(target) == ast.unparse(owner):
                    yield Oddity(item.lineno, f"{attr} gives None")


def _raised(node: Function, _: str) -> Iterator[Oddity]:
    """An exception that is returned, or made and left."""
    for item in ast.walk(node):
        if isinstance(item, ast.Return | ast.Expr) and isinstance(item.value, ast.Call):
            func = item.value.func
            if isinstance(func, ast.Name) and re.search(r"[a-z](Error|Exception)$", func.id):
                yield Oddity(item.lineno, f"{func.id} is not raised")


def _guards(node: Function, _: str) -> Iterator[Oddity]:
    """A guard the wrong way round: it replaces what is there, or uses what is not."""
    for item in ast.walk(node):
        if not isinstance(item, ast.If):
            continue
        name, is_there = _guarded(item.test)
        if not name:
            continue
        match item.body:
            case [ast.Assign(targets=[target], value=ast.Constant() | ast.List() | ast.Dict())]:
                if is_there and not item.orelse and ast.unparse(target) == name:
                    yield Oddity(item.lineno, f"the default replaces a {name} that is there")
        if not is_there and _is_used(item.body[0], name):
            yield Oddity(item.lineno, f"{name} is used where it is None")


def _guarded(test: ast.expr) -> tuple[str, bool]:
    """The name that a condition compares with None, and whether it must be there."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Is | ast.IsNot):
        right = test.comparators[0]
        if isinstance(right, ast.Constant) and right.value is None:
            return ast.unparse(test.left), isinstance(test.ops[0], ast.IsNot)
    return "", False


def _is_used(statement: ast.stmt, name: str) -> bool:
    """Whether an attribute, an item or a call of a name is used."""
    for item in ast.walk(statement):
        inner = item.func if isinstance(item, ast.Call) else None
        if isinstance(item, ast.Attribute | ast.Subscript):
            inner = item.value
        if inner is not None and ast.unparse(inner) == name:
            return True
    return False


def _kinds(node: Function, _: str) -> Iterator[Oddity]:
    """An empty list that is used as a dict, or the other way round."""
    used: dict[str, set[str]] = {}
    for item in ast.walk(node):
        if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name):
            used.setdefault(item.value.id, set()).add(item.attr)
    for item in ast.walk(node):
        if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            name, methods = item.targets[0].id, used.get(item.targets[0].id, set())
            if isinstance(item.value, ast.Dict) and not item.value.keys and methods & _OF_LISTS:
                yield Oddity(item.lineno, f"{name} is a dict, but {min(methods & _OF_LISTS)} is of lists")
            if isinstance(item.value, ast.List) and not item.value.elts and methods & _OF_DICTS:
                yield Oddity(item.lineno, f"{name} is a list, but {min(methods & _OF_DICTS)} is of dicts")


def _texts(node: Function, _: str) -> Iterator[Oddity]:
    """A text with a name in braces and no f in front."""
    bound = _names(node)[1]
    inside = {
        id(part)
        for item in ast.walk(node)
        if isinstance(item, ast.JoinedStr | ast.Attribute)
        for part in ast.walk(item)
    }
    doc = node.body[0].value if isinstance(node.body[0], ast.Expr) else None
    for item in ast.walk(node):
        if isinstance(item, ast.Constant) and isinstance(item.value, str) and id(item) not in inside:
            names = re.findall(r"\{(\w+)(?:![rs])?\}", item.value)
            if item is not doc and names and all(name in bound for name in names):
                yield Oddity(item.lineno, "the f in front of the text is missing")


def _loops(node: Function, _: str) -> Iterator[Oddity]:
    """A loop that always ends in its first round with a value."""
    for item in ast.walk(node):
        if isinstance(item, ast.For | ast.While) and not any(
            isinstance(part, ast.Continue) for part in ast.walk(item)
        ):
            last = item.body[-1]
            if isinstance(last, ast.Return) and last.value is not None:
                yield Oddity(last.lineno, "it ends the loop in the first round")


def _alike(node: Function, _: str) -> Iterator[Oddity]:
    """All returns give the same truth."""
    returns = [item for item in ast.walk(node) if isinstance(item, ast.Return)]
    values = {item.value.value if isinstance(item.value, ast.Constant) else None for item in returns}
    if len(returns) > 1 and len(values) == 1 and values <= {True, False} and None not in values:
        last = max(returns, key=lambda item: item.lineno)
        if isinstance(node.body[-1], ast.Return):
            yield Oddity(last.lineno, f"all returns give {values.pop()}")


def _documented(node: Function, _: str) -> Iterator[Oddity]:
    """A return of one name where the docstring tells of another."""
    doc = (ast.get_docstring(node) or "").split("\n\n")[0]
    bound = _names(node)[1] - {"self", "cls"}
    said = [word for word in _WORD.findall(doc) if word in bound]
    returns = [item for item in ast.walk(node) if isinstance(item, ast.Return) and item.value is not None]
    if not re.match(r"Returns? ", doc) or len(returns) != 1 or len(set(said)) != 1:
        return
    value = returns[0].value
    is_other = isinstance(value, ast.Name) and value.id in bound and value.id != said[0]
    if is_other and re.match(rf"Returns? (?:the |a |an )?`*{said[0]}\b", doc):
        yield Oddity(returns[0].lineno, f"the docstring says that it returns {said[0]}")


_RULES: tuple[Callable[[Function, str], Iterator[Oddity]], ...] = (
    _misspelled,
    _lost,
    _uncalled,
    _in_place,
    _raised,
    _guards,
    _kinds,
    _texts,
    _loops,
    _alike,
    _documented,
    _unused,
)
