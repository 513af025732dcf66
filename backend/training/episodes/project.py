"""Random projects: a dictionary of files with code that imports and calls itself, tests, settings,
documents and decoys.
"""

import random
from dataclasses import dataclass, field

from k3agent.backend.training.episodes.concepts import Func
from k3agent.backend.training.episodes.openwords import TAKEN
from k3agent.backend.training.episodes.otherfiles import draw_file, markdown_file
from k3agent.backend.training.episodes.pycode import Module, Style, draw_const, draw_module
from k3agent.backend.training.episodes.stdlib import excerpt
from k3agent.backend.training.episodes.testforms import Target, write_tests
from k3agent.backend.training.episodes.words import Words, importable

OTHER_FORMS = 0.3
"""Of all test files, those with tables of cases, classes and other assertions."""


@dataclass(slots=True)
class Project:
    """Files by path, and the modules they were made from."""

    files: dict[str, str]
    modules: list[Module] = field(default_factory=list)
    style: Style = field(default_factory=Style)
    test_root: str = ""


def literal(value: object, style: Style) -> str:
    """A value as Python source in the project's quotes."""
    text = repr(value)
    return text.replace("'", '"') if style.quote == '"' and '"' not in text and "\\" not in text else text


def call_text(func: Func, args: tuple[object, ...], style: Style, prefix: str = "") -> str:
    """A call of the function with literal arguments."""
    return f"{prefix}{func.name}({', '.join(literal(arg, style) for arg in args)})"


def _other_forms(
    rng: random.Random,
    words: Words,
    style: Style,
    module: Module,
    funcs: list[Func],
    how: tuple[str, str, str],
) -> tuple[str, list[str]]:
    """A test module with a class, a table of cases or other assertions."""
    head, prefix, kind = how
    targets = [
        Target(
            func.name,
            func.params,
            "",
            f"{prefix}{func.name}({', '.join(f'{{{param}}}' for param in func.params)})",
            func.cases,
        )
        for func in funcs
    ]
    chosen = kind if kind == "unittest" else rng.choice(("functions", "class", "table", "table"))
    title = "".join(part.capitalize() for part in module.stem.split("_"))
    text, written = write_tests(rng, words, targets, [head], title, chosen, exact=True)
    return "\n".join(style.dress(text.split("\n"))), written.names


def test_file(
    rng: random.Random, words: Words, style: Style, module: Module, funcs: list[Func], dotted: str, kind: str
) -> tuple[str, list[str]]:
    """A test module for functions with cases: text and the test names."""
    lines: list[str] = []
    names: list[str] = []
    by_module = rng.random() < 0.25
    stem = dotted.rsplit(".", 1)[-1]
    prefix = f"{stem}." if by_module else ""
    if by_module:
        head = f"from {dotted.rsplit('.', 1)[0]} import {stem}" if "." in dotted else f"import {stem}"
    else:
        head = f"from {dotted} import {', '.join(func.name for func in funcs)}"
    if rng.random() < OTHER_FORMS:
        return _other_forms(rng, words, style, module, funcs, (head, prefix, kind))
    lines += ["import unittest", "", head, "", ""] if kind == "unittest" else [head, ""]
    indent = "    " if kind == "unittest" else ""
    if kind == "unittest":
        lines.append(
            f"class Test{''.join(part.capitalize() for part in module.stem.split('_'))}(unittest.TestCase):"
        )
    for func in funcs:
        groups = [func.cases] if rng.random() < 0.6 else [[case] for case in func.cases[:2]]
        for number, group in enumerate(groups):
            suffix = "" if not number else rng.choice(("_again", f"_{number + 1}", "_more", "_other"))
            name = f"test_{func.name}{suffix}"
            if len(groups) == 1 and rng.random() < 0.15:
                name += "_" + words.noun()
            names.append(name)
            body = [_assertion(rng, func, args, value, style, prefix, kind) for args, value in group]
            if rng.random() < 0.15:
                args, value = group[0]
                body = [f"result = {call_text(func, args, style, prefix)}"]
                shown = literal(value, style)
                body.append(
                    f"self.assertEqual(result, {shown})"
                    if kind == "unittest"
                    else f"assert result == {shown}"
                )
            gap = [""] if kind == "unittest" else ["", ""]
            if lines[-1].startswith("class "):
                gap = []
            lines += [
                *gap,
                f"{indent}def {name}({'self' if indent else ''}):",
                *(f"{indent}    {line}" for line in body),
            ]
    if kind == "unittest" and rng.random() < 0.6:
        lines += ["", "", 'if __name__ == "__main__":', "    unittest.main()"]
    return "\n".join(lines) + "\n", names


def _assertion(
    rng: random.Random,
    func: Func,
    args: tuple[object, ...],
    value: object,
    style: Style,
    prefix: str,
    kind: str,
) -> str:
    """One assertion about a case."""
    call, shown = call_text(func, args, style, prefix), literal(value, style)
    if kind == "unittest":
        if isinstance(value, bool) and rng.random() < 0.6:
            return f"self.assert{value}({call})"
        if value is None:
            return f"self.assertIsNone({call})"
        return f"self.assertEqual({call}, {shown})"
    if isinstance(value, bool) and rng.random() < 0.7:
        return f"assert {call}" if value else f"assert not {call}"
    if value is None or isinstance(value, bool):
        return f"assert {call} is {shown}"
    return f"assert {call} == {shown}"


def layout(rng: random.Random, words: Words) -> tuple[str, str, str]:
    """(folder of the code, prefix of imports, folder of the tests)."""
    kind = rng.random()
    if kind < 0.35:
        return "", "", rng.choice(("", "", "tests/"))
    package = (
        words.fresh(words.noun) if rng.random() < 0.6 else rng.choice(("app", "lib", "core", "shop", "tool"))
    )
    package = f"{package}_app" if package in TAKEN else importable(package, "_app")
    if kind < 0.85:
        return f"{package}/", f"{package}.", rng.choice(("tests/", "tests/", "", f"{package}/"))
    return "src/", "src.", rng.choice(("tests/", ""))


def add_tests(project: Project, rng: random.Random, words: Words, tests: str, kind: str) -> None:
    """A test file for every module with functions that have cases (most of them)."""
    for module in project.modules:
        funcs = [
            func for func in module.functions if func.cases and not func.is_async and not func.decorators
        ]
        funcs = [
            func
            for func in funcs
            if all(len(repr(case)) < 130 and "inf" not in repr(case) for case in func.cases)
        ]
        if funcs and rng.random() < 0.8:
            chosen = funcs if len(funcs) < 4 else rng.sample(funcs, 3)
            text, _ = test_file(rng, words, project.style, module, chosen, module.dotted, kind)
            project.files[f"{tests}test_{module.stem}.py"] = text
            project.test_root = tests


def cross_use(project: Project, rng: random.Random, words: Words) -> None:
    """Let modules import and call each other, and repeat names as decoys."""
    modules = project.modules
    for index, module in enumerate(modules):
        other = rng.choice(modules[: index + 1])
        if other is module or rng.random() < 0.3:
            continue
        names = [func.name for func in other.functions if not func.is_async][:3] + [
            const.name for const in other.consts
        ][:2]
        if not names:
            continue
        chosen = rng.sample(names, min(len(names), rng.choice((1, 1, 2))))
        module.imports.append(f"from {other.dotted} import {', '.join(chosen)}")
        for name in chosen:
            func = next((func for func in other.functions if func.name == name), None)
            user = Func(words.function(project.style.naming), [words.noun()], [], "")
            if func is None:
                user.body = rng.choice(
                    (
                        [f"    return {name}"],
                        [f"    if {user.params[0]} == {name}:", "        return True", "    return False"],
                    )
                )
            else:
                args = ", ".join(rng.choice((user.params[0], "1", f"'{words.noun()}'")) for _ in func.params)
                local = words.noun() + "_result"
                user.body = rng.choice(
                    (
                        [f"    return {name}({args})"],
                        [f"    {local} = {name}({args})", f"    print({local})", f"    return {local}"],
                    )
                )
            module.functions.append(user)
    repeat_names(project, rng, words)


def repeat_names(project: Project, rng: random.Random, words: Words) -> None:
    """Decoys: names that nearly or wholly repeat those of the project."""
    for module in project.modules:
        if module.consts and rng.random() < 0.3:
            const = rng.choice(module.consts)
            decoy = draw_const(rng, words, project.style)
            decoy.name = (
                f"{const.name}_{rng.choice(('MB', 'OLD', 'SECONDS', 'V2', 'TEXT'))}"
                if const.name.isupper()
                else const.name + "_old"
            )
            module.consts.insert(rng.randrange(len(module.consts) + 1), decoy)
        if module.consts and rng.random() < 0.35:
            const = rng.choice(module.consts)
            user = Func(words.function(project.style.naming), [], [f"    return {const.name}"], "")
            module.functions.append(user)
        if len(project.modules) > 1 and module.functions and rng.random() < 0.12:
            other = rng.choice(project.modules)
            func = rng.choice(module.functions)
            if other is not module and all(item.name != func.name for item in other.functions):
                twin = Func(func.name, list(func.params), ["    return None"], "")
                other.functions.append(twin)
        if module.functions and rng.random() < 0.15:
            func = rng.choice(module.functions)
            twin = Func(
                f"{func.name}_{rng.choice(('all', 'fast', 'old', 'v2', 'many'))}",
                list(func.params),
                ["    pass"],
                "",
            )
            module.functions.append(twin)


def draw_project(rng: random.Random, words: Words, *, size: int | None = None) -> Project:
    """A project of about `size` code modules and some other files."""
    style = Style.draw(rng)
    folder, _, tests = layout(rng, words)
    count = size or rng.choice((1, 2, 2, 3, 3, 4, 5))
    project = Project({}, style=style)
    for _ in range(count):
        sub = f"{words.fresh(words.noun)}/" if folder and rng.random() < 0.12 else ""
        path = f"{folder}{sub}{words.module()}.py"
        project.modules.append(
            draw_module(
                rng,
                words,
                style,
                path,
                size=rng.choice((1, 2, 2, 3, 4, 6)) if rng.random() < 0.97 else rng.randint(14, 24),
            )
        )
    cross_use(project, rng, words)
    if rng.random() < 0.35:
        entry = project.modules[-1]
        entry.main = ['if __name__ == "__main__":', f'    print("{words.phrase()}")']
        entry.shebang = rng.random() < 0.3
    for module in project.modules:
        project.files[module.path] = module.text(style)
        if folder and rng.random() < 0.7:
            project.files.setdefault(f"{module.path.rsplit('/', 1)[0]}/__init__.py", "")
    if rng.random() < 0.7:
        add_tests(project, rng, words, tests, rng.choice(("pytest", "pytest", "unittest")))
    names = [func.name for module in project.modules for func in module.functions]
    for _ in range(rng.choice((0, 1, 2, 3, 4, 6))):
        path, text = draw_file(rng, words, names)
        project.files.setdefault(path, text)
    if rng.random() < 0.45:
        path, text = markdown_file(rng, words, names)
        project.files.setdefault(path, text)
    if rng.random() < 0.15:
        name, text = excerpt(rng, words.held_out)
        project.files.setdefault(f"{folder}{name}", text)
    _oddities(project, rng)
    return project


def _oddities(project: Project, rng: random.Random) -> None:
    """Windows line ends, a missing last newline, blank lines at the end."""
    for path in list(project.files):
        text = project.files[path]
        kind = rng.random()
        if not text:
            continue
        if kind < 0.02:
            project.files[path] = text.replace("\n", "\r\n")
        elif kind < 0.06:
            project.files[path] = text.rstrip("\n")
        elif kind < 0.08:
            project.files[path] = text + "\n"
