"""Builds the wheel, installs it into an empty environment without extras, and runs it there.

An editable install sees every folder; only a wheel shows a package that is missing in pyproject.toml.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
IMPORTS = """
import k3agent.backend, k3agent.prompts.loader as prompts, k3agent.tools as tools
assert all(prompts.load(f"tools/{name}") for name in tools.BUILTIN)
"""
WEIGHTS = """
import pathlib, k3agent.backend
print(*sorted(path.name for path in (pathlib.Path(k3agent.backend.__path__[0]) / "weights/nano").iterdir()))
"""


def run(*command: str | Path, **options: object) -> str:
    """Run a command; its output, or an exit that shows it."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        run(sys.executable, "-m", "build", "--wheel", "--outdir", home / "dist", ROOT)
        (wheel,) = (home / "dist").glob("*.whl")
        size_mb = wheel.stat().st_size / 1e6
        run(sys.executable, "-m", "venv", home / "venv")
        python = home / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "requirements.lock", wheel)
        environment = {**os.environ, "K3AGENT_HOME": str(home / "data")}
        environment.pop("PYTHONPATH", None)
        version = run(home / "venv" / "bin" / "k3agent", "--version", env=environment, cwd=home).strip()
        run(python, "-P", "-c", IMPORTS, env=environment, cwd=home)
        weights = run(python, "-P", "-c", WEIGHTS, env=environment, cwd=home).strip()
        for bare in ("backend", "tools", "prompts"):
            lost = subprocess.run(
                [python, "-P", "-c", f"import {bare}"], capture_output=True, cwd=home, check=False
            )
            if lost.returncode == 0:
                sys.exit(f"the wheel installs a stray top-level package {bare!r}")
        print(f"wheel: {wheel.name}, {size_mb:.1f} MB, {version}, weights {weights}")


if __name__ == "__main__":
    main()
