"""What whole test runs of node and go print, as node 20 to 24 and go 1.22 do: each test with its result,
errors with all frames, those of node and go among them.
"""

import random
import re
from dataclasses import dataclass, field

from k3agent.backend.training.episodes.programs import ROOT

_SHORT, _LONG = 12, 80
"""Up to how many signs node shows two values beside each other, and marks the first sign that differs."""


@dataclass(slots=True)
class TestCase:
    """A failed test: its title, its file, the lines of its head and of its assertion, where the call is (the
    column; in Go the line); the values as code, or what was raised where: function, file, line, column.
    """

    __test__ = False  # pytest collects no tests from it

    title: str
    path: str
    head: int
    line: int
    column: int
    want: str
    have: str
    error: str = ""
    raised: tuple[str, str, int, int] | None = None
    passing: list[str] = field(default_factory=list)
    """The titles of the tests before it."""


def _milliseconds(rng: random.Random) -> str:
    return f"{rng.randint(0, 9)}.{rng.randint(100000, 999999)}"


def _frames(case: TestCase, common: bool) -> list[str]:
    """Function and place of each frame: those of the project, then node's own."""
    scheme = "" if common else "file://"
    column = case.column if case.raised else 10
    rows = [f"TestContext.<anonymous> ({scheme}{ROOT}/{case.path}:{case.line}:{column})"]
    if case.raised:
        name, path, line, at = case.raised
        rows.insert(0, f"{name} ({scheme}{ROOT}/{path}:{line}:{at})")
    rows += [
        "Test.runInAsyncScope (node:async_hooks:206:9)",
        "Test.run (node:internal/test_runner/test:796:25)",
    ]
    rows.append("Test.processPendingSubtests (node:internal/test_runner/test:526:18)")
    if case.passing:
        rows += ["Test.postRun (node:internal/test_runner/test:889:19)"]
        rows += ["Test.run (node:internal/test_runner/test:835:12)"]
        return [*rows, "async Test.processPendingSubtests (node:internal/test_runner/test:526:7)"]
    rows += ["node:internal/test_runner/harness:255:12", "node:internal/process/task_queues:140:7"]
    rows += ["AsyncResource.runInAsyncScope (node:async_hooks:206:9)"]
    return [*rows, "AsyncResource.runMicrotask (node:internal/process/task_queues:137:8)"]


def compared(have: str, want: str) -> list[str]:
    """How node shows two values that are not the same."""
    if len(have) + len(want) <= _SHORT:
        return ["", f"{have} !== {want}", ""]
    rows = ["+ actual - expected", "", f"+ {have}", f"- {want}"]
    same = next((n for n, (one, two) in enumerate(zip(have, want, strict=False)) if one != two), 0)
    return [*rows, f"  {' ' * same}^"] if same > 2 and len(have) + len(want) < _LONG else rows


def _numbers(case: TestCase, mark: str, failed: int, rng: random.Random) -> list[str]:
    count = len(case.passing) + 1
    rows = [("tests", count), ("suites", 0), ("pass", count - failed), ("fail", failed)]
    rows += [("cancelled", 0), ("skipped", 0), ("todo", 0)]
    shown = [f"{mark} {name} {number}" for name, number in rows]
    return [*shown, f"{mark} duration_ms {rng.randint(50, 200)}.{rng.randint(1000, 999999)}"]


def _tap_passed(number: int, title: str, rng: random.Random) -> list[str]:
    return [
        f"# Subtest: {title}",
        f"ok {number} - {title}",
        "  ---",
        f"  duration_ms: {_milliseconds(rng)}",
        "  ...",
    ]


def node_tap(case: TestCase, common: bool, failed: bool, rng: random.Random) -> str:
    """A run of node 20, whose output goes to a program."""
    rows = ["TAP version 13"]
    for number, title in enumerate(case.passing, 1):
        rows += _tap_passed(number, title, rng)
    number = len(case.passing) + 1
    if failed:
        rows += _tap_failed(number, case, common, rng)
    else:
        rows += _tap_passed(number, case.title, rng)
    return "\n".join([*rows, f"1..{number}", *_numbers(case, "#", int(failed), rng)])


def _tap_failed(number: int, case: TestCase, common: bool, rng: random.Random) -> list[str]:
    rows = [f"# Subtest: {case.title}", f"not ok {number} - {case.title}", "  ---"]
    rows += [f"  duration_ms: {_milliseconds(rng)}", f"  location: '{ROOT}/{case.path}:{case.head}:1'"]
    rows.append("  failureType: 'testCodeFailure'")
    if case.raised:
        kind, _, text = case.error.partition(": ")
        shown = f'"{text}"' if "'" in text else f"'{text}'"
        rows += [f"  error: {shown}", "  code: 'ERR_TEST_FAILURE'", f"  name: '{kind}'"]
    else:
        said = ["Expected values to be strictly equal:", *compared(case.have, case.want)]
        rows += ["  error: |-", *(f"    {row}" for row in said), "  code: 'ERR_ASSERTION'"]
        rows += ["  name: 'AssertionError'", f"  expected: {case.want}"]
        rows += [f"  actual: {case.have}"] if case.have != "undefined" else []
        rows.append("  operator: 'strictEqual'")
    return [*rows, "  stack: |-", *(f"    {row}" for row in _frames(case, common)), "  ..."]


def node_spec(case: TestCase, common: bool, failed: bool, rng: random.Random) -> str:
    """A run of node 22 or later: what failed stands at the end with its error."""
    mark = f"{'✖' if failed else '✔'} {case.title} ({_milliseconds(rng)}ms)"
    rows = [f"✔ {title} ({_milliseconds(rng)}ms)" for title in case.passing]
    rows += [mark, *_numbers(case, "ℹ", int(failed), rng)]
    if not failed:
        return "\n".join(rows)
    rows += ["", "✖ failing tests:", "", f"test at {case.path}:{case.head}:1", mark]
    frames = [f"at {row}" for row in _frames(case, common)]
    if case.raised:
        rows += [f"  {case.error.replace(':', ' [Error]:', 1)}" if rng.random() < 0.3 else f"  {case.error}"]
        return "\n".join([*rows, *(f"      {row}" for row in frames)])
    rows.append("  AssertionError [ERR_ASSERTION]: Expected values to be strictly equal:")
    rows += [f"  {row}" for row in compared(case.have, case.want)]
    rows += [f"      {row}" for row in frames]
    rows[-1] += " {"
    rows += ["    generatedMessage: true,", "    code: 'ERR_ASSERTION',", f"    actual: {case.have},"]
    return "\n".join([*rows, f"    expected: {case.want},", "    operator: 'strictEqual'", "  }"])


def go_run(case: TestCase, package: str, name: str, failed: bool, rng: random.Random) -> str:
    """A run of `go test ./...`; `name`: the function under test."""
    folder = case.path.rpartition("/")[0]
    module = f"example.com/{package}{f'/{folder}' if folder else ''}"
    seconds = f"0.00{rng.randint(2, 9)}s"
    if not failed:
        return f"ok  \t{module}\t{seconds}"
    if case.raised is None:
        base = case.path.rpartition("/")[2]
        rows = [
            f"--- FAIL: {case.title} (0.00s)",
            f"    {base}:{case.line}: {name} = {case.have}, want {case.want}",
        ]
        return "\n".join([*rows, "FAIL", f"FAIL\t{module}\t{seconds}", "FAIL"])
    _, path, line, column = case.raised
    if case.error.startswith("build: "):
        place = path if "/" in path else f"./{path}"
        rows = [f"# {module} [{module}.test]", f"{place}:{line}:{column}: {case.error[7:]}"]
        return "\n".join([*rows, f"FAIL\t{module} [build failed]", "FAIL"])
    return "\n".join([*_go_panic(case, module, name, rng), f"FAIL\t{module}\t{seconds}", "FAIL"])


def _go_panic(case: TestCase, module: str, name: str, rng: random.Random) -> list[str]:
    assert case.raised is not None
    _, path, line, _ = case.raised
    go, words = "/usr/local/go/src", [f"0xc0000{rng.randint(10000, 99999)}" for _ in range(3)]
    return [
        f"--- FAIL: {case.title} (0.00s)",
        f"{case.error} [recovered]",
        f"\t{case.error}",
        "",
        f"goroutine {rng.randint(6, 20)} [running]:",
        f"testing.tRunner.func1.2({{0x52a1e0, {words[0]}}})",
        f"\t{go}/testing/testing.go:1632 +0x230",
        f"panic({{0x52a1e0?, {words[0]}?}})",
        f"\t{go}/runtime/panic.go:785 +0x132",
        f"{module}.{name}(...)",
        f"\t{ROOT}/{path}:{line}",
        f"{module}.{case.title}({words[1]})",
        f"\t{ROOT}/{case.path}:{case.column} +0x{rng.randint(30, 99)}",
        f"testing.tRunner({words[1]}, 0x{rng.randint(540000, 549999)})",
        f"\t{go}/testing/testing.go:1690 +0xf4",
        "exit status 2",
    ]


@dataclass(slots=True)
class Told:
    """What the output of a run says of its first failure: of the test, and of the project's first frame."""

    title: str
    error: str
    path: str
    line: int
    function: str


_TITLE = re.compile(
    r"^(?:not ok \d+ - (.+)|✖ (.+) \([\d.]+ms\)|\s*● (.+)|--- FAIL: (\w+) \(.*)$", re.MULTILINE
)
_FRAME = re.compile(
    r"^\s*(?:at )?(?:(\S+) \()?(?:file://)?(?!node:|\S*node_modules|/usr/local/go/)"
    r"([\w./@-]+\.(?:js|go)):(\d+)(?::\d+\)?)?(?= |$|:)(.*)$",
    re.MULTILINE,
)
_SAID = re.compile(
    r"^\s*(?:error: |\w*(?:Error)\b[^:\n]*: |panic: )['\"]?(?!\|-|Expected values)(.+?)['\"]?$", re.MULTILINE
)


def read_run(text: str) -> Told | None:
    """The first failure of a run, or None where its output names no place in the project."""
    match = _TITLE.search(text)
    title = next((group for group in match.groups() if group), "") if match else ""
    frame = next(iter(_FRAME.finditer(text)), None)
    if frame is None:
        return None
    said = _SAID.search(text)
    values = re.search(r"^ *(\S.*) !== (.+)$", text, re.MULTILINE)
    long = re.search(r"^ *\+ (?!actual)(.+)\n *- (.+)$", text, re.MULTILINE)
    jest = re.search(r"Expected: (.+)\n *Received: (.+)", text)
    if values or long:
        have, want = (values or long).groups()  # type: ignore[union-attr]
        error = f"{have} came, {want} is wanted"
    elif jest:
        error = f"{jest[2]} came, {jest[1]} is wanted"
    elif frame[4].startswith(": "):
        error = frame[4][2:]
    else:
        error = said[1] if said else ""
    path = frame[2]
    inside = re.search(r"(?:^|/)((?:src|lib|test|internal)/.*)$", path) if path.startswith("/") else None
    path = (
        inside[1] if inside else path.rpartition("/")[2] if path.startswith("/") else path.removeprefix("./")
    )
    return Told(title, error, path, int(frame[3]), frame[1] or "")
