"""Explaining code from its lines: parameters, documentation, what it checks, loops over, calls and
returns.
"""

import ast
import re
import textwrap
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Explanation:
    """Sentences about a definition, and its return expressions."""

    sentences: list[str]
    returns: list[str]
    params: list[str]


def _parse(lines: list[str]) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None:
    text = textwrap.dedent("\n".join(lines).expandtabs(4)) + "\n"
    try:
        node = ast.parse(text).body[0]
    except (SyntaxError, ValueError, IndexError):
        return None
    return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else None


def _source(node: ast.AST, text: str) -> str:
    """The source of a node on one line."""
    segment = ast.get_source_segment(text, node) or ast.unparse(node)
    return re.sub(r"\s*\n\s*", " ", segment).strip()


def params_of(args: ast.arguments, text: str, is_method: bool) -> list[str]:
    """Parameters as written, without self."""
    found: list[str] = []
    plain = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    for arg, default in zip(plain, defaults, strict=True):
        if is_method and arg.arg in ("self", "cls") and arg is plain[0]:
            continue
        found.append(arg.arg + (f"={_source(default, text)}" if default is not None else ""))
    if args.vararg:
        found.append("*" + args.vararg.arg)
    for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        found.append(arg.arg + (f"={_source(default, text)}" if default is not None else ""))
    if args.kwarg:
        found.append("**" + args.kwarg.arg)
    return found


def own_returns(node: ast.AST) -> list[ast.Return]:
    """Return statements of a function, not of functions inside it."""
    found: list[ast.Return] = []

    def visit(item: ast.AST) -> None:
        for child in ast.iter_child_nodes(item):
            if isinstance(child, ast.Return):
                found.append(child)
            elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
                visit(child)

    visit(node)
    return found


def explain_python(lines: list[str]) -> Explanation | None:
    """The explanation of the function or class that these lines are."""
    node = _parse(lines)
    if node is None:
        return None
    text = textwrap.dedent("\n".join(lines).expandtabs(4)) + "\n"
    if isinstance(node, ast.ClassDef):
        return _class(node, text)
    params = params_of(node.args, text, True)
    sentences: list[str] = []
    doc = ast.get_docstring(node)
    if doc:
        first = doc.strip().splitlines()[0].strip().rstrip(".")
        sentences.append(f"Its docstring says: {first}.")
    sentences.append(f"It takes {_listing(params)}." if params else "It takes no arguments.")
    body = node.body[1:] if doc else node.body
    steps = [step for item in body if (step := _step(item, text))]
    sentences += steps[:5]
    returns = [_source(item.value, text) if item.value else "None" for item in own_returns(node)]
    if not returns and not any(isinstance(item, ast.Raise) for item in body):
        sentences.append("It returns nothing.")
    return Explanation(sentences, returns, params)


def _listing(items: list[str]) -> str:
    shown = [f"`{item}`" for item in items]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _class(node: ast.ClassDef, text: str) -> Explanation:
    """A class by its base, fields and methods."""
    sentences: list[str] = []
    doc = ast.get_docstring(node)
    if doc:
        sentences.append(f"Its docstring says: {doc.strip().splitlines()[0].strip().rstrip('.')}.")
    if node.bases:
        sentences.append(f"It is a kind of {_listing([_source(base, text) for base in node.bases])}.")
    fields = [_source(item.target, text) for item in node.body if isinstance(item, ast.AnnAssign)]
    fields += [_source(item.targets[0], text) for item in node.body if isinstance(item, ast.Assign)]
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    start = next((item for item in methods if item.name == "__init__"), None)
    if fields:
        sentences.append(f"It has {_listing(fields[:6])}.")
    if start is not None:
        params = params_of(start.args, text, True)
        sentences.append(
            f"It is made with {_listing(params)}." if params else "It is made without arguments."
        )
    others = [item.name for item in methods if item.name != "__init__"]
    if others:
        word = "Its method is" if len(others) == 1 else "Its methods are"
        sentences.append(f"{word} {_listing(others[:8])}.")
    return Explanation(sentences, [], [])


def _step(node: ast.stmt, text: str) -> str:
    """One statement as a sentence."""
    match node:
        case ast.Return(value=None):
            return "It returns nothing."
        case ast.Return(value=value) if value is not None:
            return f"It returns `{_source(value, text)}`."
        case ast.If(test=test, body=[first, *_]):
            inner = _short(first, text)
            return f"If `{_source(test, text)}`, it {inner}."
        case ast.For(target=target, iter=source, body=[first, *_]):
            return (
                f"For each `{_source(target, text)}` in `{_source(source, text)}` it {_short(first, text)}."
            )
        case ast.While(test=test, body=[first, *_]):
            return f"While `{_source(test, text)}` it {_short(first, text)}."
        case ast.Assign(targets=[target], value=value):
            return f"It sets `{_source(target, text)}` to `{_source(value, text)}`."
        case ast.AugAssign():
            return f"It does `{_source(node, text)}`."
        case ast.Raise():
            return f"It does `{_source(node, text)}`."
        case ast.With(items=[item, *_]):
            return f"It works with `{_source(item, text)}`."
        case ast.Try(body=[first, *_]):
            return f"It tries this and handles errors: it {_short(first, text)}."
        case ast.Expr(value=ast.Call()):
            return f"It calls `{_source(node.value, text)}`."
    return ""


def _short(node: ast.stmt, text: str) -> str:
    """A statement inside another, as a verb phrase."""
    match node:
        case ast.Return(value=None):
            return "returns nothing"
        case ast.Return(value=value) if value is not None:
            return f"returns `{_source(value, text)}`"
        case ast.Raise():
            return f"raises `{_source(node.exc, text)}`" if node.exc else "raises again"
        case ast.Assign(targets=[target], value=value):
            return f"sets `{_source(target, text)}` to `{_source(value, text)}`"
        case ast.If(test=test, body=[first, *_]):
            return f"checks `{_source(test, text)}` and then {_short(first, text)}"
        case ast.For(target=target, iter=source):
            return f"goes through `{_source(source, text)}`"
        case ast.Expr(value=ast.Call() as call):
            return f"calls `{_source(call, text)}`"
        case ast.Continue():
            return "goes on with the next"
        case ast.Break():
            return "stops"
        case ast.Pass():
            return "does nothing"
    line = _source(node, text)
    return f"does `{line}`" if len(line) < 80 else "goes on"
