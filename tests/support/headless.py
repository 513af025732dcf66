"""Runs `k3agent` as a process, away from the user's own settings, data and keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEPT = ("PATH", "PYTHONPATH", "PYTHONSAFEPATH", "LANG", "OMP_NUM_THREADS", "VIRTUAL_ENV")


@dataclass(slots=True)
class Ran:
    """A finished process. `lines` are its JSON lines."""

    code: int
    out: str
    err: str
    took_s: float

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def result(self) -> dict[str, Any]:
        """The result line: there is exactly one, and it is the last."""
        lines = self.lines
        results = [line for line in lines if line["type"] == "result"]
        assert len(results) == 1, self.out
        assert lines[-1] is results[0] or lines[-1] == results[0]
        assert results[0]["exit_code"] == self.code
        return results[0]


@dataclass(slots=True)
class Bench:
    """A workspace and the isolated environment of its runs."""

    root: Path
    url: str = ""
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def home(self) -> Path:
        return self.root / "data"

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        if "PYTHONPATH" in kept:
            folders = kept["PYTHONPATH"].split(os.pathsep)
            kept["PYTHONPATH"] = os.pathsep.join(str(Path(folder).absolute()) for folder in folders)
        return {
            **kept,
            "HOME": str(self.root / "home"),
            "XDG_CONFIG_HOME": str(self.root / "config"),
            "K3AGENT_HOME": str(self.home),
            **self.extra,
        }

    def command(self, *flags: str) -> list[str]:
        url = ["--base-url", self.url] if self.url and flags[:1] == ("run",) else []
        return [sys.executable, "-m", "k3agent.cli", *flags, *url]

    def start(self, *flags: str, **options: Any) -> subprocess.Popen[str]:
        options = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **options,
        }
        return subprocess.Popen(
            self.command(*flags), cwd=self.workspace, env=self.environ, text=True, **options
        )

    def run(self, *flags: str, timeout_s: float = 60, **options: Any) -> Ran:
        began = time.monotonic()
        given = options.pop("input", None)
        if given is not None:
            options["stdin"] = subprocess.PIPE
        process = self.start(*flags, **options)
        try:
            out, err = process.communicate(given, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"still running after {timeout_s} s: {out[-2000:]}\n{err[-2000:]}") from None
        return Ran(code=process.returncode, out=out, err=err, took_s=time.monotonic() - began)

    def stream(self, prompt: str, *flags: str, **options: Any) -> Ran:
        return self.run("run", prompt, "--output-format", "stream-json", *flags, **options)


def make_bench(root: Path) -> Bench:
    """A workspace with a few files in a git repository."""
    bench = Bench(root)
    for folder in (bench.workspace, root / "home", root / "config"):
        folder.mkdir(parents=True)
    (bench.workspace / "a.txt").write_text("one\ntwo\nthree\n")
    subprocess.run(["git", "init", "--quiet"], cwd=bench.workspace, check=True)
    return bench
