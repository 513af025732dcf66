"""Builds the documentation site into build/site: the pages as they lie in the repository, and a reference of
what `--help`, docstrings and the settings say.

Pages keep their places, so that a link which works on the site works in the repository. A broken link is an
error.
"""

import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE, SITE = ROOT / "build" / "site-source", ROOT / "build" / "site"
PAGES = ("README.md", "CHANGELOG.md", "AGENTS.md", "CONTRIBUTING.md", "backend/AGENTS.md")
TREES = ("docs", "backend/training", "backend/weights/nano")
NAVIGATION: dict[str, list[str]] = {
    "Guide": ["docs/guide"],
    "Reference": ["reference"],
    "About": ["docs/architecture.md", "docs/measurements.md", "docs/security.md", "docs/comparison.md"],
    "The engine": ["docs", "backend/training", "backend/weights/nano"],
    "Contributing": ["AGENTS.md", "CONTRIBUTING.md", "backend/AGENTS.md", "docs/decisions", "CHANGELOG.md"],
}


def gather() -> None:
    """The pages, at their places."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for name in PAGES:
        if (ROOT / name).is_file():
            (SOURCE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, SOURCE / name)
    for tree in TREES:
        for file in (ROOT / tree).rglob("*"):
            if file.suffix in {".md", ".svg", ".png", ".yml"} and file.is_file():
                target = SOURCE / file.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


def commands() -> Iterator[str]:
    from k3agent.reference.tree import places

    os.environ["COLUMNS"] = "100"  # argparse asks for it
    yield "# Commands\n\n"
    yield "Exit codes: 0 done, 1 error, 2 usage, 3 blocked, 4 a check says no, 5 a limit, 6 interrupted,"
    yield " 41 authentication, 44 a sandbox was required, 52 configuration,"
    yield " 75 the provider is failing for now.\n"
    for place in places():
        level = "###" if len(place.words) > 1 else "##"
        title = f"{level} k3agent {place.path}".rstrip()
        yield f"\n{title}\n\n{place.summary}\n\n"
        yield from (f"- `{name}`: {text}\n" for name, text in place.actions.items())
        yield f"\n```text\n{place.parser.format_help().rstrip()}\n```\n"


def settings() -> Iterator[str]:
    from k3agent.config.settings import SPECS

    yield "# Settings\n\n`k3agent config set KEY VALUE`, or the environment: `limits.max_turns` is"
    yield " `K3AGENT_LIMITS_MAX_TURNS`.\n\n| key | default | |\n| --- | --- | --- |\n"
    for key, field in SPECS.items():
        default = "" if field.default in (None, "", ()) else f"`{field.default}`"
        choices = f" ({', '.join(field.metadata['choices'])})" if field.metadata["choices"] else ""
        yield f"| `{key}` | {default} | {field.metadata['help']}{choices} |\n"


def python() -> Iterator[str]:
    import k3agent

    yield "# Python\n\nSee also [the guide](../docs/guide/python.md).\n"
    for name in k3agent.__all__:
        thing = getattr(k3agent, name)
        if not inspect.isclass(thing) and not inspect.isfunction(thing):
            continue
        signature = "" if issubclass_safe(thing, BaseException) else str(inspect.signature(thing))
        yield f"\n## {name}\n\n```python\n{name}{signature}\n```\n\n```text\n{inspect.getdoc(thing)}\n```\n"
        if inspect.isclass(thing):
            for inner, member in vars(thing).items():
                if not inner.startswith("_") and inspect.isfunction(member):
                    yield f"\n### {name}.{inner}\n\n```python\n{inner}{inspect.signature(member)}\n```\n\n"
                    yield f"```text\n{inspect.getdoc(member)}\n```\n"


def issubclass_safe(thing: object, kind: type) -> bool:
    return inspect.isclass(thing) and issubclass(thing, kind)


def title_of(page: Path) -> str:
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            return line.removeprefix("# ").strip().replace('"', "'")
    return page.stem


def navigation() -> Iterator[str]:
    """`nav` of mkdocs.yml, each page once. JSON strings are YAML."""
    seen: set[str] = set()
    yield '  - "Home": "README.md"\n'
    for area, places in NAVIGATION.items():
        yield f"  - {json.dumps(area)}:\n"
        for place in places:
            target = SOURCE / place
            for page in [target] if target.is_file() else sorted(target.glob("*.md")):
                name = page.relative_to(SOURCE).as_posix()
                if name in seen:
                    continue
                seen.add(name)
                yield f"      - {json.dumps(title_of(page))}: {json.dumps(name)}\n"


def main() -> None:
    gather()
    (SOURCE / "reference").mkdir()
    for name, made in (("commands", commands()), ("settings", settings()), ("python", python())):
        (SOURCE / "reference" / f"{name}.md").write_text("".join(made), encoding="utf-8")
    config = SOURCE.with_suffix(".yml")
    config.write_text(
        "site_name: k3agent\n"
        f"docs_dir: {SOURCE.name}\nsite_dir: {SITE.name}\n"
        "theme: { name: mkdocs, navigation_depth: 3 }\n"
        "use_directory_urls: false\n"
        "validation: { links: { not_found: warn, anchors: warn, unrecognized_links: warn } }\n"
        "markdown_extensions: [tables, fenced_code, { toc: { permalink: true } }]\n"
        f"nav:\n{''.join(navigation())}",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(config)]
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit("the site has faults, see above")
    print(f"{sum(1 for _ in SITE.rglob('*.html'))} pages: {SITE / 'README.html'}")


if __name__ == "__main__":
    main()
