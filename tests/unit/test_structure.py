"""The rules of the house that a program can check: layers, sizes, the package list, what start-up imports."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    "k3agent": "k3agent",
    "backend": "k3agent.backend",
    "tools": "k3agent.tools",
    "prompts": "k3agent.prompts",
}
MAX_MODULE_LINES = 500
MAX_FUNCTION_LINES = 60

BASE = {
    "k3agent.types",
    "k3agent.events",
    "k3agent.codec",
    "k3agent.errors",
    "k3agent.jsonrpc",
    "k3agent.logs",
    "k3agent.safety",
    "k3agent.sarif",
    "k3agent.prompts",
}
FRONT_ENDS = {
    "k3agent.headless",
    "k3agent.tui",
    "k3agent.acp",
    "k3agent.sdk",
    "k3agent.ci",
    "k3agent.doctor",
    "k3agent.export",
    "k3agent.stats",
    "k3agent.soak",
}
MIDDLE = {"k3agent.tools", "k3agent.providers", "k3agent.store", "k3agent.config"}
COMMANDS = (
    FRONT_ENDS
    | {"k3agent.commands", "k3agent.agent"}
    | MIDDLE
    | BASE
    | {"k3agent.backend.cli", "k3agent.backend.plan", "k3agent.backend.bench"}
)
# part -> the parts it may import besides itself; the package root holds the version and is free for all
MAY_IMPORT: dict[str, set[str]] = {
    "k3agent.__main__": {"k3agent.cli"},
    "k3agent.cli": COMMANDS | {"k3agent.reference"},
    "k3agent.reference": COMMANDS | {"k3agent.cli"},
    "k3agent.commands": FRONT_ENDS | {"k3agent.agent"} | MIDDLE | BASE,
    **{front: {"k3agent.agent"} | MIDDLE | BASE for front in FRONT_ENDS},
    "k3agent.agent": MIDDLE | BASE,
    **{part: BASE for part in MIDDLE},
    "k3agent.types": set(),
    "k3agent.errors": set(),
    "k3agent.jsonrpc": {"k3agent.types", "k3agent.errors"},
    "k3agent.logs": {"k3agent.safety"},
    "k3agent.safety": set(),
    "k3agent.sarif": {"k3agent.types"},
    "k3agent.prompts": set(),
    "k3agent.events": {"k3agent.types"},
    "k3agent.codec": {"k3agent.types", "k3agent.events"},
    "k3agent.backend": set(),
    # development code: episodes are played with the product's own tools (docs/decisions)
    "k3agent.backend.training": {
        "k3agent.backend",
        "k3agent.tools",
        "k3agent.prompts",
        "k3agent.types",
        "k3agent.errors",
        # what the product says before and between the user's words is said by its own code
        "k3agent.agent",
    },
}
BACKEND_MAY_IMPORT: dict[str, set[str]] = {
    "cache": {"config", "errors"},
    "kernels": {"config", "errors"},
    "model": {"kernels", "parallel", "config", "errors"},
    "chat": {"config", "errors"},
    "engine": {"cache", "kernels", "model", "parallel", "chat", "config", "errors"},
    "server": {"chat", "engine", "config", "errors"},
}


def modules() -> list[tuple[str, Path]]:
    """Every product module as (import name, path)."""
    found = []
    for folder, prefix in SOURCES.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            relative = path.relative_to(ROOT / folder).with_suffix("")
            parts = [part for part in relative.parts if part != "__init__"]
            found.append((".".join([prefix, *parts]), path))
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports_of(path: Path) -> frozenset[str]:
    """The names that a module imports, `from a import b` as `a.b`."""
    names: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(name for name in names if name == "k3agent" or name.startswith("k3agent."))


def part_of(module: str, parts: set[str]) -> str | None:
    """The longest known part that `module` belongs to."""
    fitting = [part for part in parts if module == part or module.startswith(part + ".")]
    return max(fitting, key=len, default=None)


@pytest.mark.parametrize(
    ("module", "path"), modules(), ids=lambda value: str(value) if isinstance(value, str) else ""
)
def test_imports_point_down(module: str, path: Path) -> None:
    part = part_of(module, set(MAY_IMPORT))
    if part is None:
        assert module == "k3agent", f"{module} belongs to no known part: add it to MAY_IMPORT on purpose"
        return
    allowed = MAY_IMPORT[part] | {part}
    for name in imports_of(path):
        if name in {"k3agent", "k3agent.__version__"}:
            continue
        target = part_of(name, set(MAY_IMPORT) | allowed)
        assert target in allowed or part_of(name, allowed) is not None, f"{module} must not import {name}"
        if part == "k3agent.backend":
            assert target != "k3agent.backend.training", f"{module} must not import {name}"


@pytest.mark.parametrize(
    ("module", "path"), modules(), ids=lambda value: str(value) if isinstance(value, str) else ""
)
def test_backend_imports_point_down(module: str, path: Path) -> None:
    prefix = "k3agent.backend."
    inner = module.removeprefix(prefix).split(".")[0]
    if not module.startswith(prefix) or inner not in BACKEND_MAY_IMPORT:
        return
    allowed = BACKEND_MAY_IMPORT[inner] | {inner}
    for name in imports_of(path):
        if name.startswith(prefix):
            assert name.removeprefix(prefix).split(".")[0] in allowed, f"{module} must not import {name}"


def test_package_list_is_complete() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {module for module, path in modules() if path.name == "__init__.py"}
    assert listed == found


@pytest.mark.parametrize(
    ("module", "path"), modules(), ids=lambda value: str(value) if isinstance(value, str) else ""
)
def test_sizes_and_docstring(module: str, path: Path) -> None:
    text, tree = path.read_text(), tree_of(path)
    assert text.count("\n") <= MAX_MODULE_LINES, f"{module} is too long: find the natural seam"
    if path.name != "__init__.py":
        assert ast.get_docstring(tree), f"{module} does not say what it is for"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{module}.{node.name} has {length} lines"


def loaded_after(statement: str) -> set[str]:
    """Top-level modules loaded by a fresh interpreter after `statement`."""
    code = f"import sys\n{statement}\nprint(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_command_line_starts_light() -> None:
    heavy = {
        "torch",
        "numpy",
        "textual",
        "rich",
        "pydantic",
        "httpx",
        "sqlite_utils",
        "git",
        "jinja2",
        "asyncio",
    }
    assert not loaded_after("import k3agent.cli") & heavy


def test_agent_process_never_imports_torch() -> None:
    statement = (
        "import k3agent.agent.session, k3agent.headless.run, k3agent.providers.registry, k3agent.tools"
    )
    assert not loaded_after(statement) & {"torch", "numpy", "transformers", "vllm"}


def test_each_tool_has_a_prompt() -> None:
    from k3agent.tools import BUILTIN

    prompts = {path.stem for path in (ROOT / "prompts" / "tools").glob("*.md")}
    assert prompts == set(BUILTIN)
