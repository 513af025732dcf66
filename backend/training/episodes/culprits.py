"""Which part of a line an error's types belong to."""

import ast
import re
from collections.abc import Iterator

Part = tuple[str, str]
"""An expression as text, and its type."""
_MET = re.compile(r"unsupported operand type\(s\) for (\S+?):? '(\w+)' and '(\w+)'")
_COMPARED = re.compile(r"'(\S+)' not supported between instances of '(\w+)' and '(\w+)'")
_JOINED = re.compile(r'can only concatenate (\w+) \(not "(\w+)"\) to')
_NOT_SO = re.compile(r"'(\w+)' object is not (iterable|subscriptable|callable)")
_NOT_IN = re.compile(r"argument of type '(\w+)' is not")
_NO_LENGTH = re.compile(r"object of type '(\w+)' has no len\(\)")
_NOT_WHOLE = re.compile(r"'(\w+)' object cannot be interpreted as an integer")
_WRONG_INDEX = re.compile(r"(list|tuple|string|str) indices must be integers(?: or slices)?, not '?(\w+)'?")
_NO_KEY = re.compile(r"unhashable type: '(\w+)'")
ATTRIBUTE = re.compile(r"AttributeError: '(\w+)' object has no attribute '(\w+)'")
_OPERATORS: dict[str, type[ast.operator]] = {
    "+": ast.Add,
    "-": ast.Sub,
    "*": ast.Mult,
    "/": ast.Div,
    "//": ast.FloorDiv,
    "%": ast.Mod,
}
_COMPARISONS: dict[str, type[ast.cmpop]] = {"<": ast.Lt, "<=": ast.LtE, ">": ast.Gt, ">=": ast.GtE}
_NUMBERS = ("int", "float")
_GOES_THROUGH = frozenset(
    "all any dict enumerate extend join list max min reversed set sorted sum tuple update".split()  # noqa: SIM905
)
"""Functions and methods that run over their first argument."""


def statement(text: str) -> ast.AST | None:
    """A line alone as a tree, or None."""
    text = re.sub(r"^elif ", "if ", text.split("  #")[0])
    for code in (text, f"{text} pass", f"try:\n    pass\n{text} pass"):
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError):
            continue
    return None


def culprits(line: str, error: str) -> Iterator[Part]:
    """The parts of a line that an error's types may belong to, the odd types first."""
    tree = statement(line)
    if tree is None:
        return
    found = [*_sides(tree, error), *_not_so(tree, error), *_arguments(tree, error), *_indices(tree, error)]
    for node, part in ((node, node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)):
        if (match := ATTRIBUTE.search(error)) and node.attr == match[2]:
            found.append((ast.unparse(part), match[1]))
    yield from sorted(found, key=lambda item: item[1] in _NUMBERS)


def _sides(tree: ast.AST, error: str) -> Iterator[Part]:
    """Both sides of the operation or comparison that two types do not allow."""
    match = _MET.search(error) or _COMPARED.search(error)
    joined = _JOINED.search(error)
    if match is None and joined is None:
        return
    sign, one, two = match.groups() if match else ("+", joined[1], joined[2]) if joined else ("", "", "")
    compared = _COMPARISONS.get(sign)
    kind = None if compared else _OPERATORS.get(sign.removesuffix("=") or sign)
    for node in ast.walk(tree):
        match node:
            case ast.BinOp(left=left, op=op, right=right) if kind and isinstance(op, kind):
                yield from ((ast.unparse(left), one), (ast.unparse(right), two))
            case ast.AugAssign(target=left, op=op, value=right) if kind and isinstance(op, kind):
                yield from ((ast.unparse(left), one), (ast.unparse(right), two))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if compared and isinstance(
                op, compared
            ):
                yield from ((ast.unparse(left), one), (ast.unparse(right), two))
            case ast.Call(func=ast.Name(id="min" | "max"), args=[first, second]) if compared:
                # the second is compared with the first
                yield from ((ast.unparse(second), one), (ast.unparse(first), two))
            case _:
                continue


def _not_so(tree: ast.AST, error: str) -> Iterator[Part]:
    """What is run over, looked into, indexed or called, and cannot be."""
    match, not_in = _NOT_SO.search(error), _NOT_IN.search(error)
    if match is None and not_in is None:
        return
    kind, what = match.groups() if match else (not_in[1] if not_in else "", "a container")
    for node in ast.walk(tree):
        match node:
            case ast.For(iter=part) | ast.comprehension(iter=part) if what == "iterable":
                yield ast.unparse(part), kind
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[part, *_]) if (
                what == "iterable" and name in _GOES_THROUGH
            ):
                yield ast.unparse(part), kind
            case ast.AugAssign(value=part) if what == "iterable":
                yield ast.unparse(part), kind
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[part]) if what == "a container":
                yield ast.unparse(part), kind
            case ast.Subscript(value=part) if what == "subscriptable":
                yield ast.unparse(part), kind
            case ast.Call(func=part) if what == "callable":
                yield ast.unparse(part), kind
            case _:
                continue


def _arguments(tree: ast.AST, error: str) -> Iterator[Part]:
    """What a call cannot take, or what cannot be a key."""
    length, whole, key = (pattern.search(error) for pattern in (_NO_LENGTH, _NOT_WHOLE, _NO_KEY))
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="len"), args=[part]) if length:
                yield ast.unparse(part), length[1]
            case ast.Call(func=ast.Name(id="range"), args=args) if whole:
                yield from ((ast.unparse(arg), whole[1]) for arg in args)
            case ast.Call(func=ast.Attribute(), args=[part, *_]) if key:
                yield ast.unparse(part), key[1]
            case ast.Subscript(slice=part) if key:
                yield ast.unparse(part), key[1]
            case _:
                continue


def _indices(tree: ast.AST, error: str) -> Iterator[Part]:
    """An index of the wrong type, and what it is an index of."""
    match = _WRONG_INDEX.search(error)
    is_slice = "slice indices must be integers" in error
    for node in ast.walk(tree):
        if not isinstance(node, ast.Subscript):
            continue
        if isinstance(node.slice, ast.Slice) and is_slice:
            bounds = (node.slice.lower, node.slice.upper)
            yield from ((ast.unparse(bound), "") for bound in bounds if bound is not None)
        elif match:
            yield ast.unparse(node.value), match[1]
            yield ast.unparse(node.slice), match[2]
