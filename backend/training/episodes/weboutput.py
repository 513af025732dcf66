"""What node, jest and go print when a test fails or a name is wrong, in the form in which people paste it."""

import random

from k3agent.backend.training.episodes.webcode import WebFunc
from k3agent.backend.training.episodes.webproject import WebProject
from k3agent.backend.training.episodes.words import Words


def home(rng: random.Random, words: Words, project: WebProject) -> str:
    """Where the project lies on the user's computer."""
    user = words.noun()
    return rng.choice(
        (f"/home/{user}/{project.package}", f"/Users/{user}/code/{project.package}", "/app", "/work")
    )


def _milliseconds(rng: random.Random) -> str:
    return f"{rng.randint(0, 9)}.{rng.randint(10, 999999)}ms"


def node_failure(
    func: WebFunc, facts: tuple[str, str, str], path: str, line: int, root: str, rng: random.Random
) -> str:
    """A failed test of node's own runner."""
    _, want, have = facts
    short = len(want) + len(have) < 16 and "[" not in want
    rows = [f"✖ {func.name} ({_milliseconds(rng)})"]
    kind = "loosely deep-equal" if "[" in want and rng.random() < 0.2 else "strictly equal"
    kind = "strictly deep-equal" if "[" in want else kind
    rows.append(f"  AssertionError [ERR_ASSERTION]: Expected values to be {kind}:")
    if short:
        rows += ["  ", f"  {have} !== {want}", "  "]
    else:
        rows += ["  + actual - expected", "  ", f"  + {have}", f"  - {want}", "  "]
    rows.append(f"      at TestContext.<anonymous> (file://{root}/{path}:{line}:10)")
    if rng.random() < 0.6:
        rows.append("      at Test.runInAsyncScope (node:async_hooks:206:9)")
        rows.append("      at Test.run (node:internal/test_runner/test:796:25)")
    if rng.random() < 0.5:
        count = rng.randint(1, 9)
        rows += [f"ℹ tests {count}", f"ℹ pass {count - 1}", "ℹ fail 1"]
    return "\n".join(rows)


def jest_failure(
    func: WebFunc,
    facts: tuple[str, str, str],
    path: str,
    line: int,
    text: str,
    rng: random.Random,
    title: str = "",
) -> str:
    """A failed test of jest."""
    shown, want, have = facts
    deep = "[" in want
    method = "toEqual" if deep else "toBe"
    note = "deep equality" if deep else "Object.is equality"
    rows = [f"FAIL {path}", f"  ● {title or func.name}", ""]
    rows += [f"    expect(received).{method}(expected) // {note}", ""]
    quoted = (value.replace("'", '"') for value in (want, have))
    rows += [f"    Expected: {next(quoted)}", f"    Received: {next(quoted)}", ""]
    lines = text.splitlines()
    for at in range(max(1, line - 1), min(len(lines), line + 1) + 1):
        mark = ">" if at == line else " "
        rows.append(f"    {mark} {at} | {lines[at - 1]}".rstrip())
        if at == line:
            place = lines[at - 1].find(f".{method}") + 1
            rows.append(f"      {' ' * len(str(at))} | {' ' * place}^")
    rows += ["", f"      at Object.<anonymous> ({path}:{line}:{lines[line - 1].find(shown) + 1})"]
    if rng.random() < 0.5:
        count = rng.randint(1, 9)
        rows += ["", f"Tests:       1 failed, {count} passed, {count + 1} total"]
    return "\n".join(rows)


def go_failure(
    func: WebFunc, facts: tuple[str, str, str], path: str, line: int, project: WebProject, rng: random.Random
) -> str:
    """A failed Go test."""
    _, want, have = facts
    shown = [value.partition("{")[2].rstrip("}").replace(",", "") for value in (have, want)]
    got, wanted = (f"[{shown[0]}]", f"[{shown[1]}]") if want.startswith("[]") else (have, want)
    base = path.rsplit("/", 1)[-1]
    rows = [f"--- FAIL: Test{func.name} (0.00s)", f"    {base}:{line}: {func.name} = {got}, want {wanted}"]
    folder = path.rsplit("/", 1)[0] if "/" in path else ""
    module = f"example.com/{project.package}{'/' + folder if folder else ''}"
    rows += ["FAIL", f"FAIL\t{module}\t0.00{rng.randint(1, 9)}s"]
    return "\n".join(rows + (["FAIL"] if rng.random() < 0.5 else []))


def reference_error(
    name: str, func: WebFunc, path: str, line: int, row: str, root: str, rng: random.Random
) -> str:
    """A name that JavaScript or Go does not know, on several lines."""
    column = row.find(name) + 1
    if func.language == "go":
        folder = path.rsplit("/", 1)[0] if "/" in path else "."
        place = path if "/" in path else f"./{path}"
        rows = [f"# example.com/{root.rsplit('/', 1)[-1]}", f"{place}:{line}:{column}: undefined: {name}"]
        return "\n".join([*rows, f"FAIL\t{folder} [build failed]"] if rng.random() < 0.5 else rows)
    rows = [
        f"{root}/{path}:{line}",
        row,
        " " * (column - 1) + "^",
        "",
        f"ReferenceError: {name} is not defined",
    ]
    rows.append(f"    at {func.name} ({root}/{path}:{line}:{column})")
    if rng.random() < 0.6:
        rows.append("    at Object.<anonymous> (node:internal/main/run_main_module:28:49)")
        rows += ["", f"Node.js v{rng.choice((18, 20, 22))}.{rng.randint(0, 19)}.{rng.randint(0, 3)}"]
    return "\n".join(rows)


def short_error(name: str, func: WebFunc, path: str, line: int, row: str, rng: random.Random) -> str:
    """The same on one line."""
    column = row.find(name) + 1
    if func.language == "go":
        return f"{path}:{line}:{column}: undefined: {name}"
    return rng.choice(
        (
            f"ReferenceError: {name} is not defined at {func.name} ({path}:{line}:{column})",
            f"{path}:{line} ReferenceError: {name} is not defined",
            f"Uncaught ReferenceError: {name} is not defined ({path}:{line})",
        )
    )
