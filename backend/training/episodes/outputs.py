"""What test runs print on other people's computers: other versions, plugins, warnings, coverage, times.

Works on the true output of a run; counts, names, places and errors stay as they are.
"""

import random
import re
from dataclasses import dataclass, field

_TIME = re.compile(r"\bin \d+\.\d+s\b")
_SUMMARY = re.compile(r"^=*\s*(?:\d+ \w+(?:, )?)+ in .*$|^=*\s*no tests ran in .*$")
_CARETS = re.compile(r"^\s*[~^]+\s*$")
_PYTHONS = ("3.8.10", "3.9.18", "3.10.12", "3.11.4", "3.11.9", "3.12.3", "3.12.7", "3.13.1")
_PYTESTS = ("5.4.3", "6.2.5", "7.1.2", "7.4.4", "8.0.0", "8.2.2", "8.3.4", "9.0.1")
_PLUGINS = (
    "anyio",
    "cov",
    "mock",
    "xdist",
    "timeout",
    "asyncio",
    "hypothesis",
    "django",
    "Faker",
    "randomly",
    "html",
)
_HOMES = (
    "/usr/lib/python3/dist-packages",
    "/opt/venv/lib/python3.11/site-packages",
    "/home/dev/.venv/lib/python3.12/site-packages",
)
_KINDS = (
    "DeprecationWarning",
    "PytestDeprecationWarning",
    "UserWarning",
    "FutureWarning",
    "PendingDeprecationWarning",
)
_COMPLAINTS = (
    'the option "{name}_scope" is not set.',
    "`{name}` is deprecated and will go away in version {n}.0; use `{other}`.",
    "The {name} plugin found no settings and falls back to its defaults.",
    "pkg_resources is old, prefer importlib.",
    "invalid escape sequence '\\d'",
    "{name} was built for another version of {other}.",
    "datetime.utcnow() is deprecated.",
)
_CONTINUED = (
    "The {name} scope of asynchronous fixtures is that of the fixture for now. Version {n} of it takes"
    ' "function" unless told otherwise. Say which one you want, so that nothing changes then. Known are:'
    ' "function", "class", "module", "package", "session".',
    "Both {name} and {other} want to report results; the one that was loaded last does. Leave one of them out"
    " with `-p no:{other}`.",
    "Python {n} knows this module under another name. The old one goes on to work until {name} is updated.",
    "Set it in the configuration file to keep today's behaviour when version {n} arrives.",
    'Later versions will treat this as an error. Allowed values: "function", "class", "module", "session".',
    "See the changelog of {name} for what to do; until then nothing changes for you.",
)


def _pick(rng: random.Random, items: tuple[str, ...]) -> str:
    return items[int(rng.random() * len(items))]


@dataclass(slots=True)
class Look:
    """How one computer's test runs look; the same for all runs of a session."""

    rng: random.Random
    flags: list[str] = field(default_factory=list)
    python: str = "3.11.4"
    pytest: str = "8.2.2"
    plugins: list[str] = field(default_factory=list)
    percents: str = "as is"
    carets: bool = True
    before: bool = False
    warned: bool = False
    coverage: bool = False
    slow: bool = False
    seed: bool = False
    nodes: int = 0
    config: str = ""

    @classmethod
    def draw(cls, rng: random.Random) -> "Look":
        """A random computer; half of them are plain."""
        own = random.Random(rng.random())
        look = cls(own, python=_pick(own, _PYTHONS), pytest=_pick(own, _PYTESTS), carets=own.random() < 0.6)
        if own.random() < 0.5:
            return look
        look.flags = own.choice(([], [], [], ["-v"], ["-v"], ["-vv"], ["-ra"], ["-rA"], ["-rfE"]))
        look.plugins = own.sample(_PLUGINS, own.choice((0, 1, 2, 4)))
        look.percents = own.choice(("as is", "as is", "none", "count"))
        look.before = own.random() < 0.35
        look.warned = own.random() < 0.2
        look.coverage = own.random() < 0.12
        look.slow = own.random() < 0.1
        look.seed = own.random() < 0.08
        look.nodes = own.choice((2, 4, 8)) if own.random() < 0.08 else 0
        look.config = own.choice(("", "", "pyproject.toml", "pytest.ini", "setup.cfg", "tox.ini"))
        return look

    @property
    def tokens(self) -> int:
        """About how many tokens a quiet run prints besides its own."""
        return (
            170 * (self.before + self.warned + self.coverage) + 200 * bool(self.flags) + 20 * bool(self.nodes)
        )

    def time(self) -> str:
        """How long it took."""
        rng = self.rng
        seconds = rng.choice((rng.random() / 10, rng.random(), rng.random() * 9, rng.random() * 70))
        text = f"in {seconds:.2f}s"
        return f"{text} (0:01:{int(seconds - 60):02d})" if seconds >= 60 else text

    def pytest_output(self, text: str, root: str) -> str:
        """The output of pytest as this computer shows it."""
        lines = text.rstrip("\n").split("\n")
        lines = self._header(lines)
        if not self.carets:
            lines = [line for line in lines if not _CARETS.match(line)]
        if self.percents != "as is":
            lines = [self._percent(line) for line in lines]
        at = next((index for index in range(len(lines) - 1, -1, -1) if _SUMMARY.match(lines[index])), None)
        if at is not None:
            lines = self._end(lines, at, root)
        if self.nodes:
            lines = self._workers(lines)
        if self.seed:
            lines.insert(0, f"Using --randomly-seed={self.rng.randrange(10**9)}")
        if self.before:
            lines = self.warning() + lines
        return _TIME.sub(lambda _: self.time(), "\n".join(lines))

    def _header(self, lines: list[str]) -> list[str]:
        """Versions, plugins and settings of this computer instead of those of the training machine."""
        found = []
        for line in lines:
            if line.startswith("platform "):
                system = self.rng.choice(("linux", "linux", "darwin"))
                line = f"platform {system} -- Python {self.python}, pytest-{self.pytest}, pluggy-1.4.0"
            if line.startswith(("plugins:", "hypothesis profile", "asyncio:")):
                continue
            found.append(line)
            if line.startswith("rootdir:"):
                if self.config:
                    found.append(f"configfile: {self.config}")
                if self.plugins:
                    names = ", ".join(
                        f"{name}-{self.rng.randint(0, 9)}.{self.rng.randint(0, 20)}.0"
                        for name in self.plugins
                    )
                    found.append(f"plugins: {names}")
        return found

    def _workers(self, lines: list[str]) -> list[str]:
        """What several processes that share the tests print before the first result."""
        at = next((index for index, line in enumerate(lines) if line.startswith("collected ")), -1)
        count = re.search(r"\d+", lines[at]) if at >= 0 else None
        items = f" [{count[0]} items]" if count else ""
        each = " / ".join(f"gw{number} I" for number in range(self.nodes))
        said = self.rng.choice(
            (["bringing up nodes..."], [f"{self.nodes} workers{items}"], [each, "bringing up nodes..."])
        )
        return [*lines[: max(at, 0)], *said, *lines[at + 1 if at >= 0 else 0 :]]

    def _percent(self, line: str) -> str:
        """The progress at a line's end left out, or as a count."""
        match = re.search(r"\s+\[\s*\d+%\]$", line)
        if match is None:
            return line
        head = line[: match.start()]
        if self.percents == "none":
            return head
        done = sum(head.count(sign) for sign in ".FEs") if re.fullmatch(r"[.FEsx]+", head) else 1
        return f"{head}  [{done}/{done}]"

    def _end(self, lines: list[str], at: int, root: str) -> list[str]:
        """Warnings, coverage and durations before the last line."""
        rng = self.rng
        extra: list[str] = []
        last = lines[at]
        if self.coverage:
            extra += self._coverage(lines)
        if self.slow:
            extra += ["============================= slowest 2 durations =============================="]
            extra += [
                f"{rng.random():.2f}s {kind:8} tests/test_{_pick(rng, _PLUGINS)}.py::test_{kind}"
                for kind in ("call", "setup")
            ]
        if rng.random() < 0.06:
            extra.append(f"- generated xml file: {root}/report.xml -")
        if self.warned and " warning" not in last:
            count = rng.choice((1, 1, 2, 3, 14))
            extra += self._summary_of_warnings()
            last = re.sub(r" in (\d)", f", {count} warning{'s' if count > 1 else ''} in \\1", last)
        start = next((index for index, line in enumerate(lines) if "short test summary info" in line), at)
        return [*lines[:start], *extra, *lines[start:at], last, *lines[at + 1 :]]

    def _coverage(self, lines: list[str]) -> list[str]:
        """A coverage table; its names are files of the run where some are seen."""
        rng = self.rng
        names = sorted({match for line in lines for match in re.findall(r"[\w/]+\.py", line)})[:4]
        names = names or [f"{_pick(rng, _PLUGINS).lower()}.py"]
        rows = []
        for name in names:
            count, missed = rng.randint(3, 90), rng.randint(0, 3)
            rows.append(f"{name:30} {count:5} {missed:6} {100 - missed * 100 // count:5}%")
        line = "-" * 50
        place = f"coverage: platform linux, python {self.python}-final-0"
        head = rng.choice(
            (
                f"---------- {place} -----------",
                f"{'=' * 31} tests coverage {'=' * 32}\n{'_' * 14} {place} {'_' * 15}\n",
            )
        )
        table = [
            head,
            f"{'Name':30} Stmts   Miss  Cover",
            line,
            *rows,
            line,
            f"{'TOTAL':30} {rng.randint(20, 200):5} {rng.randint(0, 9):6} {rng.randint(70, 100):5}%",
            "",
        ]
        if rng.random() < 0.3:
            wanted, total = rng.choice((60, 70, 80)), rng.randint(8100, 9900) / 100
            table.append(f"Required test coverage of {wanted}% reached. Total coverage: {total}%")
        return table

    def warning(self) -> list[str]:
        """A warning of some plugin on several lines, as it comes before everything else."""
        rng = self.rng
        name, other = _pick(rng, _PLUGINS).lower(), _pick(rng, _PLUGINS).lower()
        values = {"name": name, "other": other, "n": rng.randint(2, 9)}
        path = f"{_pick(rng, _HOMES)}/pytest_{name}/plugin.py"
        lines = [
            f"{path}:{rng.randint(10, 900)}: {_pick(rng, _KINDS)}: {_pick(rng, _COMPLAINTS).format(**values)}"
        ]
        if rng.random() < 0.6:
            lines += [_pick(rng, _CONTINUED).format(**values), ""]
        kind = lines[0].split(": ")[1]
        call = rng.choice(
            ("message", f"{name.upper()}_NOTE", "text, stacklevel=2", f"{kind}(_{name.upper()}_UNSET)")
        )
        return [*lines, f"  warnings.warn({call})"]

    def _summary_of_warnings(self) -> list[str]:
        rng = self.rng
        values = {
            "name": _pick(rng, _PLUGINS).lower(),
            "other": _pick(rng, _PLUGINS).lower(),
            "n": rng.randint(2, 9),
        }
        place = f"{_pick(rng, _HOMES)}/{values['name']}/__init__.py:{rng.randint(1, 99)}"
        return [
            "=============================== warnings summary ===============================",
            f"../..{place}",
            f"  {place}: {_pick(rng, _KINDS)}: {_pick(rng, _COMPLAINTS).format(**values)}",
            f"    {rng.choice(('import imp', 'from pkg_resources import parse_version', 'warnings.warn('))}",
            "",
            "-- Docs: https://docs.pytest.org/en/stable/how-to/capture-warnings.html",
        ]

    def unittest_output(self, text: str) -> str:
        """The output of unittest: other times, carets, a warning before the dots."""
        lines = text.split("\n")
        if not self.carets:
            lines = [line for line in lines if not _CARETS.match(line)]
        if self.before:
            lines = self.warning() + lines
        seconds = f"in {self.rng.choice((self.rng.random() / 100, self.rng.random() * 3)):.3f}s"
        return re.sub(r"\bin \d+\.\d+s", seconds, "\n".join(lines))
