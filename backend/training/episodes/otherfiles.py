"""Files that are not Python: settings, documents, lists, scripts and other languages."""

import json
import random
from collections.abc import Callable

from k3agent.backend.training.episodes import literals
from k3agent.backend.training.episodes.words import Words, camel, pascal, plural

File = tuple[str, str]


def _value(rng: random.Random, words: Words) -> object:
    """A value of a settings file."""
    if rng.random() < 0.35:
        return _odd_value(rng, words)
    return rng.choice(
        (
            rng.randint(1, 999),
            rng.randint(1, 60),
            rng.choice((True, False)),
            words.text_value(),
            words.noun(),
            rng.randint(1, 99) / 10,
        )
    )


def _odd_value(rng: random.Random, words: Words) -> object:
    """A version, date, address, path, small or negative number; texts need no quotes in any kind of file."""
    make = rng.choice(
        (literals.version, literals.date, literals.address, literals.place, literals.version, None)
    )
    if make is None:
        return rng.choice((-rng.randint(1, 90), rng.randint(1, 999) / 1000, rng.randint(10_000, 999_999)))
    text = make(rng, words)
    return text if text[0].isalnum() else f"{words.noun()}/{words.noun()}"


def _key(rng: random.Random, words: Words) -> str:
    """A key of a settings file."""
    return words.key()


def settings(rng: random.Random, words: Words) -> dict[str, object]:
    """Keys with values, sometimes grouped."""
    table: dict[str, object] = {_key(rng, words): _value(rng, words) for _ in range(rng.randint(2, 7))}
    if rng.random() < 0.4:
        table[_key(rng, words)] = {_key(rng, words): _value(rng, words) for _ in range(rng.randint(1, 4))}
    if rng.random() < 0.3:
        table[_key(rng, words)] = [words.noun() for _ in range(rng.randint(1, 4))]
    return table


def json_file(rng: random.Random, words: Words) -> File:
    """A JSON settings file, or a package.json."""
    indent = rng.choice((2, 2, 4))
    if rng.random() < 0.2:
        data: dict[str, object] = {
            "name": words.noun(),
            "version": f"{rng.randint(0, 4)}.{rng.randint(0, 9)}.{rng.randint(0, 9)}",
            "scripts": {"start": f"node {words.noun()}.js", "test": "jest"},
            "dependencies": {
                words.noun(): f"^{rng.randint(1, 9)}.0.{rng.randint(0, 9)}" for _ in range(rng.randint(1, 3))
            },
        }
        return "package.json", json.dumps(data, indent=indent) + "\n"
    name = rng.choice(("config", "settings", words.file_stem(), f"{words.noun()}_config", words.file_stem()))
    return f"{name}.json", json.dumps(settings(rng, words), indent=indent) + "\n"


def _scalar(value: object, quote: str = '"') -> str:
    """A value in TOML or YAML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(f"{quote}{item}{quote}" for item in value) + "]"
    return f"{quote}{value}{quote}" if isinstance(value, str) else str(value)


def toml_file(rng: random.Random, words: Words) -> File:
    """A TOML file."""
    lines = []
    if rng.random() < 0.25:
        lines = [
            "[project]",
            f'name = "{words.noun()}"',
            f'version = "0.{rng.randint(1, 9)}.{rng.randint(0, 9)}"',
            "",
        ]
        lines += ["dependencies = [", *(f'  "{words.noun()}>={rng.randint(1, 5)}",' for _ in range(2)), "]"]
        return "pyproject.toml", "\n".join(lines) + "\n"
    for section in range(rng.randint(1, 3)):
        if section or rng.random() < 0.6:
            lines += ([""] if lines else []) + [f"[{words.fresh(words.noun)}]"]
        lines += [f"{_key(rng, words)} = {_scalar(_value(rng, words))}" for _ in range(rng.randint(1, 4))]
        if rng.random() < 0.25:
            lines.append(
                f"{plural(_key(rng, words))} = {_scalar([words.noun() for _ in range(rng.randint(1, 4))])}"
            )
    return f"{rng.choice(('config', 'settings', words.noun()))}.toml", "\n".join(lines) + "\n"


def yaml_file(rng: random.Random, words: Words) -> File:
    """A YAML file."""
    lines: list[str] = []
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.6:
            lines.append(f"{_key(rng, words)}:")
            lines += [
                f"  {_key(rng, words)}: {_scalar(_value(rng, words), rng.choice(('', '')))}"
                for _ in range(rng.randint(1, 4))
            ]
        else:
            lines += [
                f"{_key(rng, words)}: {_scalar(_value(rng, words), '')}" for _ in range(rng.randint(1, 3))
            ]
        if rng.random() < 0.25:
            lead = rng.choice(("  ", ""))
            lines += [f"{plural(_key(rng, words))}:"]
            lines += [f"{lead}- {words.text_value()}" for _ in range(rng.randint(1, 4))]
    return f"{rng.choice(('config', 'settings', words.noun()))}.{rng.choice(('yaml', 'yml'))}", "\n".join(
        lines
    ) + "\n"


def ini_file(rng: random.Random, words: Words) -> File:
    """An INI file."""
    lines: list[str] = []
    for section in range(rng.randint(1, 3)):
        lines += ([""] if section else []) + [f"[{words.fresh(words.noun)}]"]
        lines += [f"{_key(rng, words)} = {_value(rng, words)}" for _ in range(rng.randint(1, 4))]
    return f"{rng.choice(('setup', 'config', words.noun()))}.{rng.choice(('ini', 'cfg'))}", "\n".join(
        lines
    ) + "\n"


def env_file(rng: random.Random, words: Words) -> File:
    """Shell-style assignments; not named `.env`, which the tools take for secrets."""
    lines = [f"{words.constant()}={_value(rng, words)}" for _ in range(rng.randint(2, 5))]
    return f"{words.file_stem()}.conf", "\n".join(lines) + "\n"


def bullets(rng: random.Random, words: Words, checkboxes: bool = False) -> list[str]:
    """List items, sometimes with checkboxes."""
    mark = rng.choice(("-", "-", "-", "*"))
    count = rng.randint(2, 5)
    if checkboxes:
        return [f"{mark} [{rng.choice(('x', ' ', ' '))}] {words.phrase()}" for _ in range(count)]
    return [f"{mark} {words.phrase()}" for _ in range(count)]


def details(rng: random.Random, words: Words) -> list[str]:
    """Lines with versions, links, addresses and code words, as documents have them."""
    pool = (
        f"Version: {literals.version(rng, words)}",
        f"**Version**: {literals.version(rng, words)}",
        f"Requires Python {rng.randint(2, 3)}.{rng.randint(6, 14)} or newer.",
        f"See the [{words.title()}](https://{words.noun()}.example.com/{words.noun()}) for more.",
        f"[{words.title()}](docs/{words.noun()}.md)",
        f"Released on {literals.date(rng, words)}.",
        f"Questions? Write to {words.noun()}@{words.noun()}.org.",
        f"The default port is {rng.randint(80, 9999)}.",
        f"Set `{words.constant()}` to `{literals.odd_number(rng)}`.",
        f"Logs go to {literals.place(rng, words)}.",
        f"It costs ${rng.randint(1, 99)}.{rng.randint(10, 99)} per {words.noun()} — {words.adjective()}!",
    )
    return rng.sample(pool, rng.randint(1, 4))


def markdown_file(rng: random.Random, words: Words, names: list[str]) -> File:
    """A document with headings, text, lists; it may name things of the code."""
    title = words.title()
    lines = [f"# {title}", "", words.phrase().capitalize() + "."]
    if names and rng.random() < 0.5:
        lines += ["", f"Call `{rng.choice(names)}` to {words.verb()} the {words.noun()}."]
    for _ in range(rng.randint(1, 4)):
        heading = rng.choice(
            (words.title(), "Install", "Usage", "License", "Notes", "Tasks", "Changes", "Ideas")
        )
        if f"## {heading}" in lines:
            continue
        lines += ["", f"## {heading}", ""]
        match rng.randrange(5):
            case 0:
                lines += bullets(rng, words)
            case 4:
                lines += details(rng, words)
            case 1:
                lines += bullets(rng, words, checkboxes=True)
            case 2:
                lines.append(words.phrase().capitalize() + ".")
            case _:
                lines += [
                    "```",
                    rng.choice((f"pip install {words.noun()}", f"python -m {words.noun()}", "make test")),
                    "```",
                ]
    name = rng.choice(
        (
            "README",
            "README",
            "README",
            "TODO",
            "CHANGELOG",
            "NOTES",
            words.noun(),
            f"docs/{words.file_stem()}",
            "docs/guide",
        )
    )
    return f"{name}.md", "\n".join(lines) + "\n"


def text_file(rng: random.Random, words: Words) -> File:
    """Plain lines, words or a table."""
    kind = rng.randrange(4)
    if kind == 0:
        return f"{words.file_stem()}.txt", "\n".join(
            words.phrase().capitalize() + "." for _ in range(rng.randint(2, 6))
        ) + "\n"
    if kind == 1:
        return f"{plural(words.noun())}.txt", "\n".join(words.noun() for _ in range(rng.randint(3, 9))) + "\n"
    if kind == 2:
        rows = [f"{words.noun()},{rng.randint(1, 500)},{words.adjective()}" for _ in range(rng.randint(2, 7))]
        return f"{'data/' if rng.random() < 0.5 else ''}{words.file_stem()}.csv", "\n".join(
            ["name,amount,kind", *rows]
        ) + "\n"
    levels = [
        f"{rng.choice(('INFO', 'WARNING', 'ERROR'))} {words.phrase()}" for _ in range(rng.randint(3, 8))
    ]
    return f"{words.file_stem()}.log", "\n".join(levels) + "\n"


def requirements(rng: random.Random, words: Words) -> File:
    """A requirements.txt."""
    real = (
        "requests",
        "flask",
        "numpy",
        "pandas",
        "click",
        "rich",
        "django",
        "pydantic",
        "httpx",
        "jinja2",
        "pyyaml",
        "attrs",
    )
    lines = []
    for name in rng.sample(real, rng.randint(1, 4)) + [words.noun() for _ in range(rng.randint(0, 2))]:
        lines.append(
            name
            + rng.choice(
                (
                    "",
                    f"=={rng.randint(1, 9)}.{rng.randint(0, 9)}.{rng.randint(0, 9)}",
                    f">={rng.randint(1, 9)}.{rng.randint(0, 9)}",
                )
            )
        )
    return "requirements.txt", "\n".join(lines) + "\n"


QUOTE = "'"
QUOTED = '"{}"'


def _js_body(rng: random.Random, words: Words, params: list[str]) -> list[str]:
    """Statements of a JavaScript function."""
    a = params[0] if params else f"'{words.noun()}'"
    b = params[-1] if params else str(rng.randint(1, 9))
    return rng.choice(
        (
            [f"return {a} + {b};"],
            [f"const {words.noun()}Value = {a} * {rng.randint(2, 9)};", f"return {b};"],
            [f"if (!{a}) {{", f"  return {rng.choice(('null', '0', 'false'))};", "}", f"return {b};"],
            [f"console.log({a});", f"return {a}.length;"],
            [f"return {a}.map((item) => item + {rng.randint(1, 9)});"],
            [f"return `{words.noun()}: ${{{a}}}`;"],
        )
    )


def script_file(rng: random.Random, words: Words) -> File:
    """JavaScript or TypeScript."""
    typed = rng.random() < 0.35
    lines: list[str] = []
    if rng.random() < 0.4:
        lines += [
            f"import {{ {words.function('camel')} }} from './{words.noun()}{'' if typed else '.js'}';",
            "",
        ]
    for _ in range(rng.randint(0, 3)):
        value = rng.choice(
            (
                str(rng.randint(1, 500)),
                f"'{words.text_value()}'",
                rng.choice(("true", "false")),
                f"'{literals.odd_text(rng, words).replace(QUOTE, '')}'",
                f"{rng.randint(1, 99) / 100}",
            )
        )
        name = words.constant() if rng.random() < 0.5 else words.fresh(lambda: words.variable("camel"))
        lines.append(
            f"{'export ' if rng.random() < 0.3 else ''}{rng.choice(('const', 'const', 'let'))} "
            f"{name} = {value};"
        )
    for _ in range(rng.randint(1, 4)):
        params = [words.variable("camel") for _ in range(rng.randint(0, 2))]
        name = words.function("camel")
        shown = (
            ", ".join(f"{p}: {rng.choice(('string', 'number'))}" for p in params)
            if typed
            else ", ".join(params)
        )
        body = _js_body(rng, words, params)
        lines += [""] if lines else []
        if rng.random() < 0.25:
            lines += [f"const {name} = ({shown}) => {{", *("  " + line for line in body), "};"]
        else:
            lines += [
                f"{'export ' if rng.random() < 0.4 else ''}function {name}({shown}) {{",
                *("  " + line for line in body),
                "}",
            ]
    if rng.random() < 0.3:
        lines += [
            "",
            f"class {words.class_name()} {{",
            "  constructor(name) {",
            "    this.name = name;",
            "  }",
        ]
        lines += ["", f"  {words.function('camel')}() {{", "    return this.name;", "  }", "}"]
    folder = rng.choice(("", "", "web/", "src/", "static/"))
    return f"{folder}{words.fresh(words.noun)}.{'ts' if typed else 'js'}", "\n".join(lines) + "\n"


def _exports(rng: random.Random, words: Words) -> list[str]:
    """Variables of a shell script with versions, paths and addresses."""
    lines = []
    for like in rng.sample(("1.0", "a/b", "10.0.0.1"), rng.choice((0, 1, 1, 2))):
        value = rng.choice((QUOTED, "{}")).format(literals.like_text(rng, words, like))
        lines.append(f"{rng.choice(('', '', 'export '))}{words.constant()}={value}")
    return lines


def shell_file(rng: random.Random, words: Words) -> File:
    """A shell script."""
    name = words.constant()
    lines = [
        "#!/bin/sh",
        "set -e",
        f"{name}={rng.choice((str(rng.randint(1, 90)), words.noun()))}",
        *_exports(rng, words),
        f'echo "{words.phrase()}"',
    ]
    if rng.random() < 0.5:
        function = words.function()
        lines += ["", f"{function}() {{", f'  echo "${name}"', "}", "", function]
    return f"{rng.choice(('', 'scripts/', 'bin/'))}{words.verb()}.sh", "\n".join(lines) + "\n"


def go_file(rng: random.Random, words: Words) -> File:
    """A Go file."""
    lines = [
        f"package {words.noun()}",
        "",
        f"const {pascal([words.adjective(), words.noun()])} = {rng.randint(1, 99)}",
    ]
    if rng.random() < 0.6:
        name, text = pascal([words.verb(), words.noun()]), literals.odd_text(rng, words)
        lines.append(f"{rng.choice(('const', 'var'))} {name} = {QUOTED.format(text)}")
    lines.append("")
    for _ in range(rng.randint(1, 3)):
        a, b = words.noun(), words.noun() + "Count"
        lines += [
            f"func {pascal(words.function_words())}({a} int, {b} int) int {{",
            f"\treturn {a} {rng.choice('+-*')} {b}",
            "}",
            "",
        ]
    return f"{words.fresh(words.noun)}.go", "\n".join(lines[:-1]) + "\n"


def css_file(rng: random.Random, words: Words) -> File:
    """A style sheet."""
    lines: list[str] = []
    for _ in range(rng.randint(2, 4)):
        lines += [
            f".{words.noun()}-{words.noun()} {{",
            f"  color: {rng.choice(('red', '#333', 'black', '#0a7', 'white'))};",
        ]
        lines += [f"  {rng.choice(('margin', 'padding', 'width'))}: {rng.randint(1, 40)}px;", "}", ""]
    return f"{rng.choice(('', 'static/', 'web/'))}{words.file_stem()}.css", "\n".join(lines[:-1]) + "\n"


def html_file(rng: random.Random, words: Words) -> File:
    """A page."""
    lines = ["<!DOCTYPE html>", "<html>", "<head>", f"  <title>{words.title()}</title>", "</head>", "<body>"]
    lines += [
        f"  <h1>{words.title()}</h1>",
        f'  <p id="{words.noun()}">{words.phrase().capitalize()}.</p>',
        "</body>",
        "</html>",
    ]
    return f"{rng.choice(('index', words.noun()))}.html", "\n".join(lines) + "\n"


def docker_file(rng: random.Random, words: Words) -> File:
    """A Dockerfile with arguments and variables."""
    base = rng.choice(("python", "node", "golang", "alpine"))
    lines = [f"FROM {base}:{rng.randint(3, 20)}.{rng.randint(0, 12)}", ""]
    for _ in range(rng.randint(1, 4)):
        value = rng.choice(
            (str(rng.randint(1, 9000)), literals.version(rng, words), words.noun(), "/srv/app")
        )
        lines.append(f"{rng.choice(('ARG', 'ENV'))} {words.constant()}={value}")
    lines += ["", "WORKDIR /app", "COPY . .", f"EXPOSE {rng.choice((80, 3000, 8000, 8080))}"]
    lines.append(f'CMD ["{base}", "{words.noun()}"]')
    return rng.choice(("Dockerfile", "Dockerfile", "docker/Dockerfile")), "\n".join(lines) + "\n"


def make_file(rng: random.Random, words: Words) -> File:
    """A Makefile."""
    return (
        "Makefile",
        f".PHONY: test\n\ntest:\n\tpython -m pytest -q\n\n{words.verb()}:\n\techo {words.noun()}\n",
    )


MAKERS: tuple[tuple[Callable[[random.Random, Words], File], int], ...] = (
    (json_file, 6),
    (toml_file, 3),
    (yaml_file, 3),
    (ini_file, 2),
    (env_file, 1),
    (text_file, 4),
    (requirements, 5),
    (script_file, 5),
    (shell_file, 2),
    (go_file, 1),
    (docker_file, 2),
    (css_file, 1),
    (html_file, 1),
    (make_file, 1),
)


def draw_file(rng: random.Random, words: Words, names: list[str]) -> File:
    """Any file that is not Python; `names` are things of the code that documents may mention."""
    if rng.random() < 0.25:
        return markdown_file(rng, words, names)
    makers, weights = zip(*MAKERS, strict=True)
    return rng.choices(makers, weights)[0](rng, words)


__all__ = ["bullets", "camel", "draw_file", "markdown_file", "settings"]
