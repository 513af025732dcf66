"""The server process: starts the engine, serves until told to stop, and ends running answers in a valid way.

How the start goes is told on stderr; stdout carries one line, the URL, when the model is loaded.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import secrets
import signal
import socket
import time
from pathlib import Path
from typing import Any

import uvicorn

from k3agent import __version__
from k3agent.backend import state_file
from k3agent.backend.chat.answers import SampledAnswers
from k3agent.backend.chat.images import ImageReader, ImageSettings
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.cli import DEFAULT_MAX_SEQS, KIMI_VOCAB_SIZE, NANO_DIR, default_sampling
from k3agent.backend.config import ModelConfig
from k3agent.backend.disk_cache import DiskCache, kernels_folder
from k3agent.backend.engine.client import EngineClient
from k3agent.backend.engine.messages import EngineSettings, Ready, WarmingUp
from k3agent.backend.errors import BackendError
from k3agent.backend.server.access import is_loopback
from k3agent.backend.server.answer import ChatService
from k3agent.backend.server.app import MAX_BODY_BYTES, MAX_TEXT_BODY_BYTES, ServerState, build_app
from k3agent.backend.server.connection import MAX_HEAD_BYTES, Connection
from k3agent.backend.server.metrics import Metrics
from k3agent.backend.server.sampling import Profile

log = logging.getLogger(__name__)

_LINGER_S = 5.0
_PATIENCE_S = 10.0


async def serve(args: argparse.Namespace, folder: Path) -> int:
    """Serve the model of `folder` as the flags say; the exit status."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # nohup ignores SIGHUP: that is to be kept.
    hang_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    for number in (signal.SIGTERM, signal.SIGINT, *hang_up):
        loop.add_signal_handler(number, stop.set)
    begun = time.monotonic()
    with _listening_socket(args.host, args.port) as listener:
        disk = DiskCache.of_flag(args.disk_cache, args.disk_cache_bytes)
        engine = EngineClient(_settings(args, folder, disk))
        engine.on_progress = _tell_progress
        log.info("loading %s on %s", folder, args.device)
        starting = asyncio.create_task(engine.start())
        waiting = asyncio.create_task(_tell_patience(begun))
        try:
            tokenizer = await asyncio.to_thread(Tokenizer.from_dir, folder)
            answers = await asyncio.to_thread(SampledAnswers, tokenizer, file=disk and disk.answers_file)
            if not await _first(starting, stop):
                return 0
            waiting.cancel()
            _tell_ready(starting.result(), disk, time.monotonic() - begun)
            state = _state(args, folder, engine, tokenizer, answers)
            stopped = asyncio.create_task(_stop_when_dead(engine, stop))
            await _run(state, listener, stop, args)
            stopped.cancel()
        finally:
            waiting.cancel()
            starting.cancel()
            await engine.stop()
    return engine.exit_status if engine.is_lost.is_set() else 0


def _settings(args: argparse.Namespace, folder: Path, disk: DiskCache | None) -> EngineSettings:
    # None: the engine's own default
    chosen = {name: getattr(args, name) for name in ("max_running", "max_step_tokens")}
    return EngineSettings(
        model_dir=str(folder),
        device=args.device,
        dtype=args.dtype,
        max_model_len=args.max_model_len,
        cache_bytes=args.cache_bytes,
        threads=args.threads,
        max_waiting=args.max_seqs or DEFAULT_MAX_SEQS,
        exactness=args.exactness,
        host_cache_bytes=args.host_cache_bytes,
        disk_cache_dir=str(disk.prefixes_dir) if disk else None,
        disk_cache_bytes=args.disk_cache_bytes,
        speculation=args.speculation,
        kernels=args.kernels,
        graphs=args.graphs,
        compile_cache_dir=str(kernels_folder()) if args.device.startswith("cuda") else None,
        tensor_parallel=args.tp or 1,
        expert_parallel=args.expert_parallel,
        backend=args.collectives,
        sums=args.sums,
        **{name: value for name, value in chosen.items() if value is not None},
    )


def _state(
    args: argparse.Namespace,
    folder: Path,
    engine: EngineClient,
    tokenizer: Tokenizer,
    answers: SampledAnswers,
) -> ServerState:
    """What the routes work with."""
    assert engine.ready is not None
    temperature, top_p = default_sampling(folder, tokenizer.vocab_size)
    is_free = args.sampling == "request" or (
        args.sampling == "auto" and tokenizer.vocab_size < KIMI_VOCAB_SIZE and not args.strict
    )
    metrics = Metrics()
    read_image = _image_reader(folder)
    service = ChatService(
        tokenizer,
        engine,
        engine.ready.max_model_len,
        use_grammar=not args.no_grammar,
        read_image=read_image,
        answers=answers,
        metrics=metrics,
    )
    return ServerState(
        model=args.served_name or ("nano" if folder == NANO_DIR else folder.name),
        version=__version__,
        service=service,
        engine=engine,
        profile=Profile(
            is_strict=args.strict,
            may_disable_thinking=args.allow_no_thinking,
            takes_sampling=is_free,
            temperature=temperature,
            top_p=top_p,
        ),
        # a state file tells the key to whoever may read it, so the server is never open to other users
        api_key=args.api_key or (secrets.token_urlsafe(24) if args.state_file else None),
        max_active=args.max_seqs or DEFAULT_MAX_SEQS,
        max_body_bytes=args.max_body_bytes or (MAX_BODY_BYTES if read_image else MAX_TEXT_BODY_BYTES),
        client_timeout_s=args.client_timeout,
        also_reasoning=args.emit_reasoning,
        agent=agent_facts(folder),
        metrics=metrics,
    )


def agent_facts(folder: Path) -> dict[str, Any] | None:
    """`k3agent` in a config.json is written by this repository's training: such weights know the compact
    prompt alone, and follow instruction files only if they say so.
    """
    own = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("k3agent")
    if not isinstance(own, dict):
        return None
    return {"profile": "compact", "instructions": own.get("instructions") is True}


async def _tell_patience(begun: float) -> None:
    while True:
        await asyncio.sleep(_PATIENCE_S)
        log.info("still loading after %.0f s", time.monotonic() - begun)


def _tell_progress(step: WarmingUp) -> None:
    """What the engine prepares once the weights are there: minutes where kernels are compiled for the first
    time."""
    if step.what:
        log.info("warming up, %d of %d: %s", step.num_done + 1, step.num_steps, step.what)


def _tell_ready(ready: Ready, disk: DiskCache | None, waited_s: float) -> None:
    """`waited_s`: since the command began; `ready.load_s` leaves out what the imports of the engine took."""
    log.info(
        "ready after %.1f s: %s in %s, %.0f MB of weights, window %d tokens, %.0f MB for cached prefixes",
        waited_s,
        ready.device,
        ready.dtype,
        ready.weights_bytes / 1e6,
        ready.max_model_len,
        ready.cache_bytes / 1e6,
    )
    if disk is not None:
        log.info("prefixes on disk: %s, at most %.1f GB", disk.folder, disk.quota_bytes / 1e9)


def _image_reader(folder: Path) -> ImageReader | None:
    """What turns image URLs into pixels for this model; None for one without vision."""
    if ModelConfig.from_dir(folder).vision_config is None:
        return None
    return ImageReader(ImageSettings.from_dir(folder))


async def _run(
    state: ServerState, listener: socket.socket, stop: asyncio.Event, args: argparse.Namespace
) -> None:
    """Serve until `stop`; then end the running answers and wait for them."""
    config = uvicorn.Config(
        build_app(state),
        http=type("Connection", (Connection,), {"head_s": state.client_timeout_s}),
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=15,
        server_header=False,
    )

    began = asyncio.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            began.set()

        @contextlib.contextmanager
        def capture_signals(self) -> Any:
            # signals belong to `_serve`: the default would end the process by the signal instead of with 0
            yield

    server = Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await _first(serving, began)
    host = f"[{args.host}]" if ":" in args.host else args.host
    url = f"http://{host}:{listener.getsockname()[1]}"
    try:
        if args.state_file:
            about = {"model": state.model, "version": state.version, "token": state.api_key}
            state_file.write(args.state_file, url, **about)
        if not is_loopback(args.host):
            log.warning("other machines can reach this server, and nothing on the way is encrypted")
        print(url, flush=True)
        idle = asyncio.create_task(_stop_when_idle(state, args.idle_timeout, stop))
        await _first(serving, stop)
        idle.cancel()
    finally:
        if args.state_file:
            state_file.remove(args.state_file)
    state.service.stopping.set()
    server.should_exit = True
    await serving


async def _first(task: "asyncio.Task[Any]", stop: asyncio.Event) -> bool:
    """Wait for the task or for `stop`; whether the task ended."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    return task.done()


async def _stop_when_dead(engine: EngineClient, stop: asyncio.Event) -> None:
    """An engine that does not come back ends the server, so that a new one can be started.

    It lingers, to give a clear error to those who ask just then.
    """
    await engine.is_lost.wait()
    await asyncio.sleep(_LINGER_S)
    stop.set()


async def _stop_when_idle(state: ServerState, timeout_s: float | None, stop: asyncio.Event) -> None:
    while timeout_s is not None:
        rest = state.last_request + timeout_s - time.monotonic()
        if state.metrics.active:
            rest = timeout_s
        if rest <= 0:
            log.info("no request for %g s", timeout_s)
            stop.set()
            return
        await asyncio.sleep(rest)


def _listening_socket(host: str, port: int) -> socket.socket:
    """Bound before the model is loaded, so that a taken port is known at once; it listens only later."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise BackendError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port"
        ) from error
    return made
