"""What works here, what does not, and the one command that mends each.

Looks, and changes nothing. Programs and packages are looked for, not run or imported where that would be
slow.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from k3agent import __version__
from k3agent.config.paths import data_home, prefix_cache, user_config
from k3agent.config.settings import Settings, load_settings
from k3agent.errors import ConfigError, K3AgentError, ProviderError
from k3agent.providers.bundled import (
    INSTALL_COMMAND,
    has_weights,
    missing_packages,
    running_servers,
    weights_folder,
)
from k3agent.providers.registry import choose
from k3agent.store.database import FILE_NAME, find_damage
from k3agent.tools.sandbox import choice
from k3agent.tools.sandbox.landlock import Landlock
from k3agent.tools.sandbox.policy import Bounds

NANO_CAN = (
    "nano lists, finds and explains files and functions, sets values, renames names and files, adds and"
    " removes lines, edits JSON and Markdown, makes small files and runs tests: small steps, also several in"
    " a row, in English, the main ones also in German and Chinese. It repairs bugs"
    " that a failing test shows: run repairs with --check. It is no general model."
)
REINSTALL_COMMAND = f"{Path(sys.executable).name} -m pip install --force-reinstall --no-deps k3agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`state`: ok, warning (something is missing that has a substitute) or problem. `mend`: one command."""

    name: str
    state: str
    text: str
    mend: str = ""


def examine(environ: Mapping[str, str], cwd: Path) -> list[Finding]:
    """All findings, in the order in which a newcomer would need them."""
    home = data_home(environ)
    return [
        _python(),
        _program("git", environ, "apt-get install git", "snapshots and diffs need it"),
        _ripgrep(environ),
        _sandbox(environ),
        _local_engine(),
        _embedded_model(),
        _home(home),
        *_session_store(home),
        *_servers(home, environ, cwd),
        *_prefix_cache(environ),
        *_configuration(environ, cwd),
    ]


def report(environ: Mapping[str, str], cwd: Path, *, as_json: bool) -> int:
    """Print the findings. 1 when there is a problem, else 0."""
    findings = examine(environ, cwd)
    has_problem = any(finding.state == "problem" for finding in findings)
    if as_json:
        entries = [asdict(finding) for finding in findings]
        print(json.dumps({"version": __version__, "ok": not has_problem, "findings": entries}, indent=1))
        return int(has_problem)
    marks = {"ok": "ok      ", "warning": "warning ", "problem": "PROBLEM "}
    for finding in findings:
        print(f"{marks[finding.state]} {finding.name}: {finding.text}")
        if finding.mend:
            print(f"          mend: {finding.mend}")
    return int(has_problem)


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info < (3, 11):  # noqa: UP036  # this program is what tells people so
        return Finding(
            name="python",
            state="problem",
            text=f"{version}; 3.11 is the least",
            mend="apt-get install python3.11",
        )
    return Finding(name="python", state="ok", text=f"{version} at {sys.executable}")


def _program(name: str, environ: Mapping[str, str], mend: str, why: str) -> Finding:
    path = shutil.which(name, path=environ.get("PATH"))
    if path is None:
        return Finding(name=name, state="problem", text=f"not found; {why}", mend=mend)
    return Finding(name=name, state="ok", text=path)


def _ripgrep(environ: Mapping[str, str]) -> Finding:
    path = shutil.which("rg", path=environ.get("PATH"))
    own = Path(sys.executable).parent / "rg"
    if path is None and own.exists():
        path = str(own)
    if path is None:
        text = "not found; searching falls back to a slower way"
        return Finding(name="ripgrep", state="warning", text=text, mend="python -m pip install ripgrep")
    return Finding(name="ripgrep", state="ok", text=path)


def _sandbox(environ: Mapping[str, str]) -> Finding:
    """Tries what a session would use; nothing but a folder in /tmp is written, and removed again."""
    home = Path(environ.get("HOME") or Path.home())
    found = choice.choose(Bounds(home=home), has_network=False, path=environ.get("PATH"))
    if found.name == "none":
        text = f"{found.status}, after the permission rules; --sandbox strict fails"
        return Finding(name="sandbox", state="warning", text=text, mend=choice.INSTALL)
    is_partial = isinstance(found, Landlock) and not found.has_namespaces
    mend = choice.INSTALL if is_partial else ""
    return Finding(name="sandbox", state="warning" if is_partial else "ok", text=found.status, mend=mend)


def _local_engine() -> Finding:
    missing = missing_packages()
    if missing:
        text = f"{', '.join(missing)} not installed; the bundled engine cannot run"
        return Finding(name="local engine", state="warning", text=text, mend=INSTALL_COMMAND)
    spec = importlib.util.find_spec("torch")
    where = Path(spec.origin).parent if spec and spec.origin else "installed"
    return Finding(name="local engine", state="ok", text=f"torch at {where}")


def _embedded_model() -> Finding:
    folder = weights_folder()
    if folder is None or not (folder / "config.json").is_file():
        return Finding(
            name="embedded model", state="warning", text=f"not found at {folder}", mend=REINSTALL_COMMAND
        )
    sums = folder / "SHA256SUMS"
    if not (folder / "model.safetensors").is_file():
        return Finding(
            name="embedded model",
            state="warning",
            text=f"the weights are not in {folder}",
            mend=REINSTALL_COMMAND,
        )
    if not sums.is_file():
        return Finding(
            name="embedded model", state="warning", text=f"{sums} is missing", mend=REINSTALL_COMMAND
        )
    for line in sums.read_text(encoding="utf-8").splitlines():
        wanted, _, name = line.partition(" ")
        path = folder / name.strip().lstrip("*")
        if not name.strip():
            continue
        if not path.is_file() or _sha256(path) != wanted:
            text = f"{path} is missing or damaged"
            return Finding(name="embedded model", state="problem", text=text, mend=REINSTALL_COMMAND)
    misfit = tokenizer_misfit(folder)
    if misfit:
        return Finding(name="embedded model", state="problem", text=misfit, mend=REINSTALL_COMMAND)
    text = f"{folder}, checksums agree, tokenizer fits. {NANO_CAN}"
    return Finding(name="embedded model", state="ok", text=text)


def tokenizer_misfit(folder: Path) -> str:
    """Why the model and its tokenizer do not belong together, or ''. Files are read, nothing is loaded."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tokenizer = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        vocab_size = int(config.get("text_config", config)["vocab_size"])
        specials = [int(number) for number in tokenizer["special_tokens"].values()]
        lines = (folder / tokenizer["ranks"]).read_text(encoding="ascii").split("\n")
        ranks = [int(line.rsplit(" ", 1)[1]) for line in lines if line.strip()]
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        return f"the files in {folder} cannot be read: {type(error).__name__}: {error}"
    known = sorted([*ranks, *specials])
    if known != list(range(len(known))):
        return f"the tokenizer in {folder} has gaps or doubles among its {len(known)} numbers"
    if len(known) != vocab_size:
        return f"the tokenizer in {folder} has {len(known)} entries, and the model {vocab_size}"
    return ""


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _home(home: Path) -> Finding:
    place = next(folder for folder in (home, *home.parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        text = f"{home} cannot be written: {error.strerror}"
        return Finding(
            name="data folder", state="problem", text=text, mend="export K3AGENT_HOME=$HOME/.k3agent-data"
        )
    free_mb = shutil.disk_usage(place).free // 2**20
    if free_mb < 100:
        text = f"{home}: only {free_mb} MB free"
        return Finding(name="data folder", state="problem", text=text, mend=f"du -sh {home}/*")
    return Finding(name="data folder", state="ok", text=f"{home}, {free_mb} MB free")


def _session_store(home: Path) -> list[Finding]:
    """The database, read as a whole and not changed. Nothing where there is none yet."""
    path = home / FILE_NAME
    if not path.exists():
        return []
    problem = find_damage(path)
    if not problem:
        return [Finding(name="session store", state="ok", text=f"{path}, whole")]
    if "newer k3agent" in problem:
        mend = f"{Path(sys.executable).name} -m pip install --upgrade k3agent"
        return [Finding(name="session store", state="problem", text=f"{path}: {problem}", mend=mend)]
    kept = path.with_name(f"{path.name}.damaged")
    moves = "; ".join(
        f"mv {shlex.quote(f'{path}{end}')} {shlex.quote(f'{kept}{end}')}"
        for end in ("", "-wal", "-shm")
        if Path(f"{path}{end}").exists()
    )
    text = (
        f"{path}: {problem}. Moved away, a new one is begun; `sqlite3 {kept.name} .recover` may save sessions"
    )
    return [Finding(name="session store", state="problem", text=text, mend=moves)]


def _servers(home: Path, environ: Mapping[str, str], cwd: Path) -> list[Finding]:
    """Local engines that stay loaded for the next run."""
    try:
        idle_s = load_settings(environ, cwd).server_idle_timeout_s
    except ConfigError:
        idle_s = Settings().server_idle_timeout_s
    return [
        Finding(
            name="running engine",
            state="ok",
            text=f"{model}, process {state.pid} at {state.url}{_memory(state.pid)}; it ends after"
            f" {idle_s:g} s without a request. To end it now: kill {state.pid}",
        )
        for model, state in running_servers(home)
    ]


def _prefix_cache(environ: Mapping[str, str]) -> list[Finding]:
    """What local servers keep on disk, so that the next one need not read a session again."""
    folder = prefix_cache(environ)
    if not folder.is_dir():
        return []
    size = sum(map(_size, folder.rglob("*")))
    text = f"{folder}, {size >> 20} MB of what was said to local models. To empty it: rm -r {folder}"
    return [Finding(name="prefix cache", state="ok", text=text)]


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except OSError:
        # A server has removed it meanwhile.
        return 0


def _memory(leader: int) -> str:
    """`, 812 MB` for the server and its engine processes, or nothing where the system does not tell."""
    total_kb = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            session = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[3]
            if int(session) == leader:
                total_kb += int((folder / "status").read_text(errors="replace").split("VmRSS:")[1].split()[0])
        except (OSError, IndexError, ValueError):
            # It has ended meanwhile, or is a thread of the kernel.
            continue
    return f", {total_kb // 1024} MB" if total_kb else ""


def _configuration(environ: Mapping[str, str], cwd: Path) -> list[Finding]:
    path = user_config(environ)
    try:
        settings = load_settings(environ, cwd)
    except ConfigError as error:
        editor = os.path.basename(environ.get("EDITOR", "vi"))  # noqa: PTH119  # a command line, not a path
        return [Finding(name="configuration", state="problem", text=str(error), mend=f"{editor} {path}")]
    found = [Finding(name="configuration", state="ok", text=str(path) if path.exists() else "defaults")]
    if settings.untrusted is not None:
        text = f"{settings.untrusted} is not obeyed"
        found.append(Finding(name="repository", state="warning", text=text, mend="k3agent config trust"))
    found += _mcp(settings, environ, cwd)
    try:
        choice = choose(settings, environ)
    except (ConfigError, ProviderError) as error:
        return [*found, _no_backend(error)]
    if choice.provider == "bundled" and choice.model == "nano" and not has_weights():
        text = f"bundled, nano: {choice.why}, and nano's weights are not installed"
        return [*found, Finding(name="backend", state="problem", text=text, mend=REINSTALL_COMMAND)]
    return [
        *found,
        Finding(name="backend", state="ok", text=f"{choice.provider}, {choice.model}: {choice.why}"),
    ]


def _mcp(settings: Settings, environ: Mapping[str, str], cwd: Path) -> list[Finding]:
    """Servers of foreign tools, as they are configured: none is started."""
    from k3agent.config.servers import load_servers  # lazy: only here

    try:
        configured = load_servers(environ, cwd.absolute(), data_home(environ), tables=settings.mcp)
    except ConfigError as error:
        return [
            Finding(name="MCP servers", state="problem", text=str(error), mend="k3agent mcp list --offline")
        ]
    found = [
        Finding(
            name="MCP servers", state="warning", text=f"{path} is not obeyed", mend="k3agent config trust"
        )
        for path in configured.untrusted
    ]
    path = environ.get("PATH")
    for server in configured.servers:
        problem = server.problem
        if server.command and shutil.which(server.command, path=path) is None:
            problem = f"the program {server.command} is not found"
        if problem and server.is_enabled:
            text = f"{server.name}: {problem} ({server.origin})"
            found.append(
                Finding(
                    name="MCP servers", state="warning", text=text, mend=f"k3agent mcp test {server.name}"
                )
            )
    if configured.servers and not found:
        names = ", ".join(server.name for server in configured.servers)
        found.append(
            Finding(
                name="MCP servers", state="ok", text=f"{names}; k3agent mcp list tries them (nano uses none)"
            )
        )
    return found


def _no_backend(error: K3AgentError) -> Finding:
    return Finding(
        name="backend", state="problem", text=str(error), mend="k3agent run --provider bundled 'hello'"
    )
