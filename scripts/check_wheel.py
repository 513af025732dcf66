"""Builds the sdist, from it the wheel, installs that into an empty environment without extras, and runs it;
then once more with `uv tool` and with pipx.

An editable install sees every folder; only a wheel shows a package that is missing in pyproject.toml.
"""

import os
import subprocess
import sys
import tempfile
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = {"local", "vllm", "otel", "keyring", "images", "plots"}
IMPORTS = """
import k3agent, k3agent.backend, k3agent.prompts.loader as prompts, k3agent.tools as tools
assert all(prompts.load(f"tools/{name}") for name in tools.BUILTIN)
assert callable(k3agent.run)
"""
WEIGHTS = """
import pathlib, k3agent.backend
print(*sorted(path.name for path in (pathlib.Path(k3agent.backend.__path__[0]) / "weights/nano").iterdir()))
"""
# What needs an extra, and says which: (words, extra)
NEEDS = (
    (("serve",), "local"),
    (("bench", "model"), "local"),
    (("run", "hello", "--provider", "bundled"), "local"),
    (("plan", "k3", "--gpus", "H200", "--plot", "plan.png"), "plots"),
)


def run(*command: str | Path, **options: object) -> str:
    """Run a command; its output, or an exit that shows it."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


class Installed:
    """The wheel in an environment of its own, away from this repository and the user's settings."""

    def __init__(self, home: Path, wheel: Path) -> None:
        self.home = home
        self.bin = home / "venv" / "bin"
        run(sys.executable, "-m", "venv", home / "venv")
        lock = ROOT / "requirements.lock"
        self.run("python", "-m", "pip", "install", "--quiet", "--constraint", lock, wheel)

    def environ(self, **more: str) -> dict[str, str]:
        own = {"HOME": self.home, "K3AGENT_HOME": self.home / "data", "XDG_CONFIG_HOME": self.home / "config"}
        kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", *own}}
        return {**kept, **{name: str(folder) for name, folder in own.items()}, **more}

    def run(self, *words: str | Path) -> str:
        # pip keeps the caches and the index that the user's own settings name
        environ = None if "pip" in words else self.environ()
        return run(self.bin / words[0], *words[1:], env=environ, cwd=self.home)

    def refusal(self, *words: str, **more: str) -> str:
        """What k3agent says to a call that must fail, and must not crash."""
        done = subprocess.run(
            [self.bin / "k3agent", *words],
            capture_output=True,
            text=True,
            env=self.environ(**more),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )
        said = done.stdout + done.stderr
        if done.returncode == 0 or "Traceback" in said:
            sys.exit(
                f"k3agent {' '.join(words)} should say what is missing; it ended {done.returncode}:\n{said}"
            )
        return said


def check_installers(home: Path, wheel: Path) -> list[str]:
    """`uv tool install` and `pipx install`, as the page on installing has them; those that ran."""
    tools = home / "tools"
    run(sys.executable, "-m", "venv", tools)
    places = {
        "UV_TOOL_DIR": "uv",
        "UV_TOOL_BIN_DIR": "uv-bin",
        "PIPX_HOME": "pipx",
        "PIPX_BIN_DIR": "pipx-bin",
    }
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {name: str(home / folder) for name, folder in places.items()} | {
        "PIPX_MAN_DIR": str(home / "man")
    }
    installers = {
        "uv": ("tool", "install", "--python", sys.executable, wheel),
        "pipx": ("install", "--python", sys.executable, wheel),
    }
    for name, words in installers.items():
        run(tools / "bin" / "python", "-m", "pip", "install", "--quiet", name)
        run(tools / "bin" / name, *words, env=environ, cwd=home)
        program = home / f"{name}-bin" / "k3agent"
        if "k3agent" not in run(program, "--version", env=environ, cwd=home):
            sys.exit(f"{name} installs a k3agent that does not run")
        run(program, "plan", "k3", env=environ, cwd=home)
    return list(installers)


def build(folder: Path) -> Path:
    """The wheel, built from the sdist, as an installer does that finds no wheel."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def check_runs(installed: Installed) -> None:
    """What works without extras."""
    if "doctor" not in installed.run("k3agent", "--help"):
        sys.exit("k3agent --help does not list the commands")
    installed.run("python", "-P", "-c", IMPORTS)
    if "GPU" not in installed.run("k3agent", "plan", "k3"):
        sys.exit("k3agent plan k3 shows no plan")
    for shell in ("bash", "zsh", "fish"):
        if "--max-turns" not in installed.run("k3agent", "completions", shell).replace("-l max", "--max"):
            sys.exit(f"k3agent completions {shell} does not know the flags of k3agent run")
    page = installed.home / "venv" / "share" / "man" / "man1" / "k3agent.1"
    if not page.is_file():
        sys.exit(f"the wheel installs no manual page at {page}")
    for bare in ("backend", "tools", "prompts", "torch"):
        command = [installed.bin / "python", "-P", "-c", f"import {bare}"]
        if subprocess.run(command, capture_output=True, cwd=installed.home, check=False).returncode == 0:
            sys.exit(f"the wheel installs {bare!r}, which it must not")


def check_extras(installed: Installed) -> None:
    """All are there, and who needs one is told its name."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if missing := EXTRAS - set(listed["optional-dependencies"]):
        sys.exit(f"pyproject.toml lacks the extras {', '.join(sorted(missing))}")
    for words, extra in NEEDS:
        _check_named(installed.refusal(*words), words, extra)
    # A run looks for its server first: one that knows no address will do.
    with ThreadingHTTPServer(("127.0.0.1", 0), SilentHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        words = ("run", "hello", "--base-url", f"http://127.0.0.1:{server.server_port}/v1", "--model", "m")
        said = installed.refusal(*words, K3AGENT_TELEMETRY_OTLP="on", OPENAI_API_KEY="x")
        server.shutdown()
    _check_named(said, words, "otel")


class SilentHandler(BaseHTTPRequestHandler):
    """Answers 501 to everything, and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def _check_named(said: str, words: tuple[str, ...], extra: str) -> None:
    if f"k3agent[{extra}]" not in said:
        sys.exit(f"k3agent {' '.join(words)} does not name k3agent[{extra}]:\n{said}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        wheel = build(home / "dist")
        size_mb = wheel.stat().st_size / 1e6
        installed = Installed(home, wheel)
        version = installed.run("k3agent", "--version").strip()
        check_runs(installed)
        check_extras(installed)
        installers = ", ".join(check_installers(home, wheel))
        weights = installed.run("python", "-P", "-c", WEIGHTS).strip()
        print(f"wheel: {wheel.name}, {size_mb:.1f} MB, {version}, also by {installers}, weights {weights}")


if __name__ == "__main__":
    main()
