"""Reading what test runs print: which tests failed, where, and why."""

import re
from dataclasses import dataclass, field

PYTEST = "python -m pytest -q --tb=short -rN"
"""Without the summary of failures, which only repeats what stands above it."""
STOP = " -x"
"""Where one failure after the other is repaired: what comes after the first would only fill the context."""
QUIET = "python -m pytest -q --tb=no -rf -x"
"""Where it matters only whether the same test fails as before."""
UNITTEST = "python -m unittest"
STOP_UNITTEST = " -f"


@dataclass(slots=True)
class Failure:
    """One failed test (or a file that could not be loaded): its name, the places of the traceback,
    the error.
    """

    name: str
    places: list[tuple[str, int, str, str]] = field(default_factory=list)  # path, line, function, code
    error: str = ""

    @property
    def test_code(self) -> str:
        """The line of a test that failed; empty where none is named."""
        return next((code for path, _, _, code in self.places if "test" in path), "")


@dataclass(slots=True)
class Run:
    """A test run: the last words, and the failures in order."""

    summary: str
    failures: list[Failure]
    ok: bool


_CALLED = re.compile(r"(?<![\w'\"])(?:\w+\.)*(?<!def )([A-Za-z_]\w*)\(|(?<=\))\.(\w+)\(")
_HELPERS_TEXT = """
    len sorted list set dict tuple str int float sum max min abs round any all bool repr isinstance type
    approx startswith endswith upper lower strip split join keys values items get fixture raises range next
    iter zip map
"""
_HELPERS = frozenset(_HELPERS_TEXT.split())
"""What tests wrap around the call under test."""
PLACE = re.compile(r"^(\S+\.py):(\d+): in (\S+)$")
LONG_PLACE = re.compile(r"^(\S+\.py):(\d+): ?\w*$")
SUMMARY = re.compile(r"\d+ (passed|failed|error|deselected)|no tests ran")
FILE = re.compile(r'^\s*File "(.+?)", line (\d+)(?:, in (\S+))?$')


def parse_run(text: str) -> Run:
    """What the output of pytest or unittest says."""
    lines = text.split("\n")
    body, last = lines[:-1], lines[-1]
    ok = last == "[exit code 0]"
    if any(line.startswith("Ran ") for line in body):
        return _unittest(body, ok)
    summary = next((line for line in reversed(body) if SUMMARY.search(line)), body[-1] if body else "")
    failures: list[Failure] = []
    current: Failure | None = None
    marked = inside = ""
    for index, line in enumerate(body):
        if match := re.match(r"^_+ (?:ERROR (?:collecting|at setup of) )?([^\s\[]+(?:\[.*\])?) _+$", line):
            current = Failure(match[1])
            failures.append(current)
            marked = inside = ""
        elif line.startswith("=") and ("short test summary" in line or SUMMARY.search(line)):
            failures = failures or _listed(body[index:])
            break
        elif current is not None and (match := PLACE.match(line)):
            code = body[index + 1].strip() if index + 1 < len(body) else ""
            current.places.append((match[1], int(match[2]), match[3], code))
        elif current is not None and (match := LONG_PLACE.match(line)) and marked:
            # In pytest's long form the code stands above its place.
            current.places.append((match[1], int(match[2]), inside, marked))
            marked = ""
        elif current is not None and (match := re.match(r'^E\s+File "(.+?)", line (\d+)', line)):
            current.places.append((match[1], int(match[2]), "<module>", ""))
        elif current is not None and line.startswith("E   ") and not current.error:
            current.error = line[4:].strip()
        elif line.startswith(">"):
            marked = line[1:].strip()
        elif match := re.match(r"^ +(?:async )?def (\w+)\(", line):
            inside = match[1]
        if current is not None and line.startswith("E   ") and re.match(r"E\s+\w*(Error|Exception)\b", line):
            current.error = line[4:].strip()
    return Run(without_time(re.sub(r"^=+ | =+$", "", summary)), failures, ok)


def _listed(lines: list[str]) -> list[Failure]:
    """The failures that the summary names, where nothing is told of them."""
    name = r"[^\s:\[][^\s\[]*(?:\[.*?\])?"
    found = [re.match(rf"^FAILED (?:[^\s\[]+::)?({name})(?: - (.*))?$", line) for line in lines]
    return [Failure(match[1], error=match[2] or "") for match in found if match]


def without_time(summary: str) -> str:
    """The counts alone: how long it took is nobody's question."""
    return re.sub(r" in \d[\d.]*( ?s| seconds).*$", "", summary)


def _unittest(body: list[str], ok: bool) -> Run:
    ran = next(line for line in body if line.startswith("Ran "))
    end = next((line for line in reversed(body) if line.startswith(("OK", "FAILED", "NO TESTS"))), "")
    failures: list[Failure] = []
    current: Failure | None = None
    for index, line in enumerate(body):
        if match := re.match(r"^(FAIL|ERROR): (\S+)", line):
            current = Failure(match[2])
            failures.append(current)
        elif current is not None and (match := FILE.match(line)):
            code = body[index + 1].strip() if index + 1 < len(body) else ""
            current.places.append((match[1], int(match[2]), match[3] or "<module>", code))
        elif current is not None and not current.error and re.match(r"^\w*(Error|Exception)\b", line):
            current.error = line.strip()
    return Run(f"{re.sub(r' in [0-9.]+s$', '', ran)}: {end}", failures, ok)


def name_under_test(code: str) -> str:
    """The function or method that a line of a test calls."""
    text = re.sub(r"^(?:self\.assert\w+|with pytest\.raises|with self\.assertRaises)\(", "", code.strip())
    text = re.sub(r"^\w+Error(?:, |\):?$)", "", text)
    if text.startswith(("@", "def ", "class ", "from ", "import ")):
        return ""
    names = [match[1] or match[2] for match in _CALLED.finditer(text)]
    calls = [name for name in names if name not in _HELPERS]
    made = [name for name in calls if name[:1].isupper()]
    return next((name for name in calls if name not in made), made[0] if made else "")
