"""JavaScript and Go projects: modules that use each other, a manifest, tests, a document."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from k3agent.backend.training.episodes import literals
from k3agent.backend.training.episodes.otherfiles import json_file, markdown_file, yaml_file
from k3agent.backend.training.episodes.webcode import WebFunc, call, draw_arguments, draw_func, literal
from k3agent.backend.training.episodes.words import Words, camel, pascal


@dataclass(slots=True)
class WebModule:
    """A source file."""

    path: str
    functions: list[WebFunc]
    consts: list[tuple[str, str]]
    uses: list[str] = field(default_factory=list)
    """Lines of functions that call others."""
    imports: dict[str, list[str]] = field(default_factory=dict)
    """Names by the path of the module that they come from."""

    @property
    def stem(self) -> str:
        """The name without folder and extension."""
        return self.path.rsplit("/", 1)[-1].rsplit(".", 1)[0]


@dataclass(slots=True)
class WebProject:
    """A project: files by path, its modules, and how it is written."""

    language: str
    files: dict[str, str]
    modules: list[WebModule]
    package: str
    common: bool = False
    """Whether JavaScript modules are required rather than imported."""
    runner: str = "node"

    def text(self, module: WebModule, broken: WebFunc | None = None) -> str:
        """A module's text, with one function's wrong line if it is asked for."""
        return (_js if self.language == "js" else _go)(self, module, broken)


def _const(rng: random.Random, words: Words, language: str) -> tuple[str, str]:
    value = rng.choice(
        (
            str(rng.randint(1, 900)),
            str(rng.randint(1, 90)),
            rng.choice(("true", "false")),
            f'"{words.text_value()}"',
            f'"{literals.version(rng, words)}"',
            f"{rng.randint(1, 99) / 100}",
        )
    ).replace("'", "")
    if language == "go":
        return words.fresh(lambda: pascal([words.adjective(), words.noun()])), value
    name = (
        words.constant()
        if rng.random() < 0.6
        else words.fresh(lambda: camel([words.adjective(), words.noun()]))
    )
    return name, value.replace('"', "'")


def draw_web_project(rng: random.Random, words: Words, language: str = "") -> WebProject:
    """A project of two to four modules."""
    language = language or rng.choice(("js", "js", "go"))
    folder = (
        rng.choice(("", "src/", "lib/", "src/")) if language == "js" else rng.choice(("", "", "internal/"))
    )
    package = words.fresh(words.noun)
    if language == "go" and folder:
        folder += f"{package}/"
    project = WebProject(language, {}, [], package, rng.random() < 0.3, rng.choice(("node", "node", "jest")))
    for _ in range(rng.choice((2, 2, 3, 4))):
        functions = [draw_func(rng, words, language) for _ in range(rng.choice((1, 2, 2, 3)))]
        consts = [_const(rng, words, language) for _ in range(rng.choice((0, 1, 1, 2)))]
        path = f"{folder}{words.module()}.{language}"
        if language == "go" and path.endswith("_test.go"):
            continue
        project.modules.append(WebModule(path, functions, consts))
    for index, module in enumerate(project.modules[1:], 1):
        other = project.modules[rng.randrange(index)]
        if rng.random() < 0.75:
            _use(project, module, other, rng, words)
    for module in project.modules:
        project.files[module.path] = project.text(module)
    project.files |= _manifest(project, rng, words)
    if rng.random() < 0.6:
        project.files |= test_file(project, rng.choice(project.modules), rng, words)[0]
    names = [func.name for module in project.modules for func in module.functions]
    for make in (json_file, yaml_file):
        if rng.random() < 0.25:
            path, text = make(rng, words)
            project.files.setdefault(path, text)
    if rng.random() < 0.6:
        path, text = markdown_file(rng, words, names)
        project.files.setdefault(path, text)
    return project


def _use(project: WebProject, module: WebModule, other: WebModule, rng: random.Random, words: Words) -> None:
    """Let a module call a function of another one."""
    func = rng.choice(other.functions)
    module.imports.setdefault(other.path, []).append(func.name)
    given = ", ".join(func.params)
    name = words.fresh(lambda: camel([words.verb(), words.noun()]))
    if project.language == "js":
        head = f"{'' if project.common else 'export '}function {name}({given}) {{"
        module.uses += ["", head, f"  return {func.name}({given});", "}"]
        return
    typed = func.signature[len(func.name) :]
    module.uses += ["", f"func {name[0].upper()}{name[1:]}{typed} {{"]
    module.uses += [f"\treturn {func.name}({given})", "}"]


def _js(project: WebProject, module: WebModule, broken: WebFunc | None) -> str:
    lines: list[str] = []
    for path, names in module.imports.items():
        target = f"./{path.rsplit('/', 1)[-1]}"
        shown = ", ".join(dict.fromkeys(names))
        if project.common:
            lines.append(f"const {{ {shown} }} = require('{target.removesuffix('.js')}');")
        else:
            lines.append(f"import {{ {shown} }} from '{target}';")
    lines += [""] if lines and module.consts else []
    export = "" if project.common else "export "
    lines += [f"{export}const {name} = {value};" for name, value in module.consts]
    for func in module.functions:
        lines += [""] if lines else []
        lines += func.source(wrong=func is broken, export=not project.common)
    lines += module.uses
    if project.common:
        names = [func.name for func in module.functions] + [name for name, _ in module.consts]
        lines += ["", f"module.exports = {{ {', '.join(names)} }};"]
    return "\n".join(lines) + "\n"


def _go(project: WebProject, module: WebModule, broken: WebFunc | None) -> str:
    lines = [f"package {project.package if '/' in module.path else 'main'}"]
    needed = sorted({func.needs() for func in module.functions} - {""})
    if len(needed) == 1:
        lines += ["", f'import "{needed[0]}"']
    elif needed:
        lines += ["", "import (", *(f'\t"{name}"' for name in needed), ")"]
    lines += [""] if module.consts else []
    lines += [f"const {name} = {value}" for name, value in module.consts]
    for func in module.functions:
        lines += ["", *func.source(wrong=func is broken)]
    return "\n".join([*lines, *module.uses]) + "\n"


def _manifest(project: WebProject, rng: random.Random, words: Words) -> dict[str, str]:
    """package.json or go.mod."""
    if project.language == "go":
        return {"go.mod": f"module example.com/{project.package}\n\ngo 1.{rng.randint(18, 24)}\n"}
    data: dict[str, object] = {
        "name": project.package,
        "version": f"{rng.randint(0, 4)}.{rng.randint(0, 9)}.0",
    }
    if not project.common:
        data["type"] = "module"
    data["scripts"] = {"test": "jest" if project.runner == "jest" else "node --test"}
    if rng.random() < 0.6:
        data["dependencies"] = {words.noun(): f"^{rng.randint(1, 9)}.{rng.randint(0, 9)}.0"}
    return {"package.json": json.dumps(data, indent=2) + "\n"}


def test_file(
    project: WebProject,
    module: WebModule,
    rng: random.Random,
    words: Words,
    only: WebFunc | None = None,
    before: Sequence[WebFunc] = (),
) -> tuple[dict[str, str], int, tuple[str, str, str]]:
    """The test file of a module, the line of the last assertion in it, and that call with what it should and
    would give with the wrong line. `before`: what is tested besides `only`.
    """
    funcs = [*before, only] if only is not None else module.functions
    drawn = [(func, found) for func in funcs if (found := draw_arguments(func, rng, words))]
    if not drawn or (only is not None and drawn[-1][0] is not only):
        return {}, 0, ("", "", "")
    if project.language == "go":
        path, lines = _go_test(project, module, drawn)
    else:
        path, lines = _js_test(project, module, drawn)
    number = max(at for at, row in enumerate(lines, 1) if row.strip().startswith(ASSERTS))
    func, (args, want, have) = drawn[-1]
    facts = (call(func, args), literal(want, project.language), literal(have, project.language))
    return {path: "\n".join(lines) + "\n"}, number, facts


ASSERTS = ("assert.", "expect(", "t.Errorf")


def _js_test(project: WebProject, module: WebModule, drawn: list) -> tuple[str, list[str]]:
    folder = "test/" if project.runner == "node" else ""
    up = "../" if folder and "/" not in module.path else "./"
    if folder and "/" in module.path:
        up = f"../{module.path.rsplit('/', 1)[0]}/"
    if not folder and "/" in module.path:
        folder = f"{module.path.rsplit('/', 1)[0]}/"
    names = ", ".join(func.name for func, _ in drawn)
    base = module.stem if project.common else f"{module.stem}.js"
    take = (
        (lambda name, place: f"const {name} = require('{place}');")
        if project.common
        else (lambda name, place: f"import {name} from '{place}';")
    )
    lines: list[str] = []
    if project.runner == "node":
        lines += [take("test", "node:test"), take("assert", "node:assert")]
    lines += [take(f"{{ {names} }}", f"{up}{base}")]
    for func, (args, want, _) in drawn:
        shown, wanted = call(func, args), literal(want, "js")
        deep = isinstance(want, list)
        lines += ["", f"test('{func.title or func.name}', () => {{"]
        if project.runner == "node":
            lines.append(f"  assert.{'deepStrictEqual' if deep else 'strictEqual'}({shown}, {wanted});")
        else:
            lines.append(f"  expect({shown}).{'toEqual' if deep else 'toBe'}({wanted});")
        lines.append("});")
    return f"{folder}{module.stem}.test.js", lines


def _go_test(project: WebProject, module: WebModule, drawn: list) -> tuple[str, list[str]]:
    lines = [f"package {project.package if '/' in module.path else 'main'}", ""]
    deep = any(isinstance(want, list) for _, (_, want, _) in drawn)
    lines += ["import (", '\t"reflect"', '\t"testing"', ")"] if deep else ['import "testing"']
    for func, (args, want, _) in drawn:
        shown, wanted = call(func, args), literal(want, "go")
        mark = {"text": "%q", "bool": "%t", "num": "%d"}.get(func.idea.result, "%v")
        test = f"!reflect.DeepEqual(got, {wanted})" if isinstance(want, list) else f"got != {wanted}"
        lines += ["", f"func Test{func.name}(t *testing.T) {{", f"\tif got := {shown}; {test} {{"]
        lines += [f'\t\tt.Errorf("{func.name} = {mark}, want {mark}", got, {wanted})', "\t}", "}"]
    return f"{module.path.removesuffix('.go')}_test.go", lines
