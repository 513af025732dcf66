"""The bundled engine as a model: starts the local server or joins the one that runs, then is a chat client.

The server is a process of its own that outlives this one and ends when nobody has asked it for a while. A
lock keeps two agents from starting two; the state file says where it listens. The key travels by
environment, never by argument.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from k3agent import __version__
from k3agent.errors import ConfigError, ProviderError, ProviderErrorKind
from k3agent.providers.base import ModelInfo
from k3agent.providers.chat import ChatClient, Endpoint, Timeouts
from k3agent.providers.dialects import BUNDLED, LOCAL_PACKAGES
from k3agent.providers.retry import RetryPolicy
from k3agent.types import Delta, Request

log = logging.getLogger(__name__)

INSTALL_COMMAND = f"{Path(sys.executable).name} -m pip install 'k3agent[local]'"
TOKEN_VARIABLE = "K3AGENT_API_KEY"
_START_LIMIT_S = 300.0
_POLL_S = 0.05
_FIRST_NOTICE_S = 2.0
_USAGE_EXIT = 2
_TAIL_LINES = 15
_RESTART_PAUSE_S = 60.0

Notify = Callable[[str], None]


class ServerStartError(ProviderError):
    """The server did not come up; trying again would only repeat it."""

    @property
    def is_retryable(self) -> bool:
        return False


def missing_packages() -> list[str]:
    """The packages of the local engine that are not installed; nothing is imported."""
    return [name for name in LOCAL_PACKAGES if importlib.util.find_spec(name) is None]


def weights_folder(model: str = "nano") -> Path | None:
    """Where the embedded model's files are, found without importing the backend."""
    spec = importlib.util.find_spec("k3agent.backend")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "weights" / model


def reads_instructions(model: str = "nano") -> bool:
    """Whether the embedded model was trained to follow AGENTS.md; its config.json says so."""
    folder = weights_folder(model)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8")) if folder else {}
    except (OSError, ValueError):
        return False
    own = config.get("k3agent") if isinstance(config, dict) else None
    return isinstance(own, dict) and own.get("instructions") is True


def has_weights(model: str = "nano") -> bool:
    folder = weights_folder(model)
    return folder is not None and (folder / "model.safetensors").is_file()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The state file's content."""

    url: str
    pid: int
    token: str

    @property
    def base_url(self) -> str:
        url = self.url.rstrip("/")
        return url if url.endswith("/v1") else f"{url}/v1"


class LocalServer:
    """The server for one model. `notify` is told in words what is being waited for."""

    def __init__(
        self, home: Path, model: str, environ: Mapping[str, str], idle_timeout_s: float, notify: Notify
    ) -> None:
        name = f"{model.replace('/', '_')[-40:]}-{_fingerprint(model)}"
        self.state_file = home / "run" / f"{name}.json"
        self.log_file = home / "logs" / f"server-{name}.log"
        self._lock_file = home / "run" / f"{name}.lock"
        self._model = model
        self._environ = environ
        self._idle_timeout_s = idle_timeout_s
        self._notify = notify
        self._process: subprocess.Popen[bytes] | None = None
        self._state: ServerState | None = None
        self._restarted_at: float | None = None

    @property
    def state(self) -> ServerState | None:
        """The server that was joined or started last; it may have ended since."""
        return self._state

    async def endpoint(self) -> Endpoint:
        """Where to ask now; starts the server again when it has died since the last request, but not twice
        within a minute.
        """
        if self._state is not None and not self._is_alive(self._state):
            log.warning("the local server (process %d) has ended", self._state.pid)
            self._notify("The local engine has ended; starting it again.")
            self._state = None
            now = time.monotonic()
            if self._restarted_at is not None and now - self._restarted_at < _RESTART_PAUSE_S:
                raise self._start_error("The local engine ends again right after it was started again")
            self._restarted_at = now
        if self._state is None:
            self._state = await self._join_or_start()
        return Endpoint(base_url=self._state.base_url, api_key=self._state.token)

    async def _join_or_start(self) -> ServerState:
        state = await self._running()
        if state is not None:
            return state
        missing = missing_packages()
        if missing:
            raise ConfigError(
                f"The bundled engine needs {', '.join(missing)}, not installed here. Run: {INSTALL_COMMAND}"
                "   (or name a provider: see `k3agent run --help`)"
            )
        for folder in (self.state_file.parent, self.log_file.parent):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._lock_file.open("a") as lock:
            began = time.monotonic()
            while not _try_lock(lock.fileno()):
                # Another agent is starting it; the lock is free again when it is up or has failed.
                await asyncio.sleep(_POLL_S)
                if time.monotonic() - began > _START_LIMIT_S:
                    raise self._start_error("Another process has been starting the local engine for too long")
            state = await self._running()
            return state if state is not None else await self._start()

    async def _start(self) -> ServerState:
        log.info("starting the local engine with %s", self._model)
        self.state_file.unlink(missing_ok=True)
        process = self._process = self._spawn()
        try:
            return await self._ready(process)
        except asyncio.CancelledError:
            # Nobody waits for it any more; who else needs one holds the lock next and starts their own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            raise

    async def _ready(self, process: subprocess.Popen[bytes]) -> ServerState:
        """Wait until the new server answers. A start of a second or two is not worth a word."""
        began = time.monotonic()
        next_notice_s = _FIRST_NOTICE_S
        while True:
            await asyncio.sleep(_POLL_S)
            waited_s = time.monotonic() - began
            state = await self._running()
            if state is not None:
                log.info("the local engine is ready after %.1f s at %s", waited_s, state.url)
                return state
            code = process.poll()
            if code is not None:
                error = self._start_error(f"The local engine ended with exit code {code} while starting")
                if code == _USAGE_EXIT:
                    # It was asked for something that is not there: trying again later does not help.
                    raise ConfigError(str(error))
                raise error
            if waited_s > _START_LIMIT_S:
                process.terminate()
                raise self._start_error(f"The local engine was not ready within {_START_LIMIT_S:g} s")
            if waited_s > next_notice_s:
                self._notify(f"The local engine is loading ({waited_s:.0f} s).")
                next_notice_s *= 2

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [
            sys.executable, "-m", "k3agent.backend.cli", "--model", self._model, "--port", "0",
            "--state-file", str(self.state_file), "--idle-timeout", f"{self._idle_timeout_s:g}",
        ]  # fmt: skip
        with self.log_file.open("wb") as output:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_server_environ(self._environ),
                # Its own session: a signal to the agent's group must not end what other agents use.
                start_new_session=True,
                cwd="/",
            )

    async def _running(self) -> ServerState | None:
        """The server of the state file, if it lives and answers."""
        state = _read_state(self.state_file)
        return state if state is not None and self._is_alive(state) and await _is_healthy(state) else None

    def _is_alive(self, state: ServerState) -> bool:
        if self._process is not None and self._process.pid == state.pid:
            return self._process.poll() is None
        return _has_process(state.pid)

    def _start_error(self, what: str) -> ServerStartError:
        try:
            lines = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
        except OSError:
            lines = []
        tail = "".join(f"\n  | {line}" for line in lines)
        return ServerStartError(
            f"{what}. Its log, {self.log_file}, ends with:{tail or ' (nothing)'}\nSee `k3agent doctor`.",
            kind=ProviderErrorKind.SERVER,
        )


def running_servers(home: Path) -> list[tuple[str, ServerState]]:
    """(model, state) of every local server of this data folder that is alive and answers."""
    found: list[tuple[str, ServerState]] = []
    for file in sorted((home / "run").glob("*.json")):
        state = _read_state(file)
        if state is not None and _has_process(state.pid) and asyncio.run(_is_healthy(state)):
            found.append((file.stem.rpartition("-")[0], state))
    return found


def _read_state(file: Path) -> ServerState | None:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return ServerState(url=str(data["url"]), pid=int(data["pid"]), token=str(data.get("token") or ""))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _has_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _fingerprint(model: str) -> str:
    """Servers of another version, installation or set of weights are not joined. An installation's folder has
    its interpreter under several names."""
    folder = weights_folder(model)
    parts = [__version__, str(Path(sys.executable).parent), str(folder)]
    weights = folder / "model.safetensors" if folder is not None else None
    if weights is not None and weights.is_file():
        stat = weights.stat()
        parts += [str(stat.st_mtime_ns), str(stat.st_size)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def _server_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without other people's keys, and with a fresh one of our own."""
    kept = {
        name: value for name, value in environ.items() if not name.endswith(("_API_KEY", "_TOKEN", "_SECRET"))
    }
    if kept.get("PYTHONPATH"):
        # The server runs in another folder, where a relative entry would be lost.
        folders = kept["PYTHONPATH"].split(os.pathsep)
        kept["PYTHONPATH"] = os.pathsep.join(str(Path(folder).absolute()) for folder in folders)
    return {**kept, TOKEN_VARIABLE: secrets.token_urlsafe(24)}


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _is_healthy(state: ServerState) -> bool:
    """`GET /health` by hand: the HTTP client is not needed for one line."""
    address = state.url.split("://", 1)[-1].split("/", 1)[0]
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                head = (
                    f"GET /health HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {state.token}\r\n\r\n"
                )
                writer.write(head.encode())
                await writer.drain()
                line = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False
    return b" 200 " in line


class BundledClient:
    """`ModelClient` on the local server. `model` is what the server is started with (a name or a folder);
    `info.model` is what requests ask for.
    """

    def __init__(
        self,
        info: ModelInfo,
        home: Path,
        environ: Mapping[str, str],
        *,
        model: str = "",
        idle_timeout_s: float = 180.0,
        notify: Notify | None = None,
        retry: RetryPolicy | None = None,
        timeouts: Timeouts | None = None,
    ) -> None:
        told = notify or (lambda _: None)
        self.server = LocalServer(home, model or info.model, environ, idle_timeout_s, told)
        self._chat = ChatClient(info, BUNDLED, self.server.endpoint, retry=retry, timeouts=timeouts)

    @property
    def info(self) -> ModelInfo:
        return self._chat.info

    async def connect(self) -> None:
        await self._chat.connect()

    def stream(self, request: Request) -> AsyncIterator[Delta]:
        return self._chat.stream(request)

    async def aclose(self) -> None:
        """Closes the connection; the server stays for the next one and ends by itself."""
        await self._chat.aclose()
