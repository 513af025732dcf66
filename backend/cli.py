"""`k3agent serve`: the bundled K3 backend behind one OpenAI-compatible HTTP server.

Prints one line with the URL when the model is loaded, and exits 0 on SIGTERM after running answers were
ended in a valid way. Neither this process nor its imports touch torch: that is the engine process's.
"""

import argparse
import asyncio
import contextlib
import ipaddress
import json
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from k3agent import __version__
from k3agent.backend.errors import RANK_LOST_STATUS, BackendError, ModelFilesError, RankLostError

log = logging.getLogger(__name__)

DEFAULT_PORT = 8333
NANO_DIR = Path(__file__).resolve().parent / "weights" / "nano"
# Kimi's own models are served with the fixed sampling of the vendor's API
_KIMI_VOCAB_SIZE = 163_840
# the second one is how the agent hands a fresh key to a server that it starts
_KEY_VARIABLES = ("K3AGENT_API_KEY", "K3AGENT_SERVER_TOKEN")
_LINGER_S = 5.0


def parser() -> argparse.ArgumentParser:
    """The flags of `k3agent serve`."""
    made = argparse.ArgumentParser(
        prog="k3agent serve", description="serve a model over HTTP", allow_abbrev=False
    )
    add = made.add_argument
    add(
        "--model",
        default="nano",
        metavar="NAME|DIR",
        help="nano, or a folder with config.json and safetensors",
    )
    add("--served-name", help="the model id that clients use (default: nano, or the folder's name)")
    add("--engine", choices=["bundled", "vllm"], default="bundled", help="which engine runs the model")
    add("--host", default="127.0.0.1", help="address to listen on; others than loopback need --api-key")
    add("--port", type=int, default=DEFAULT_PORT, help="port; 0 picks a free one")
    add("--api-key", help=f"key that clients must send (default: ${', $'.join(_KEY_VARIABLES)})")
    add("--max-model-len", type=int, help="longest prompt plus answer, in tokens")
    add("--max-seqs", type=int, default=64, help="requests that may run or wait; more get status 429")
    add(
        "--cache-bytes", type=int, help="bytes for cached prefixes, latents and states together; of each rank"
    )
    add("--device", default="cpu", help="cpu or cuda")
    add("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    _add_ranks(made)
    add(
        "--threads",
        type=int,
        help="CPU threads, of all ranks together (default: 2 for small models, else all cores)",
    )
    add("--strict", action="store_true", help="refuse what the vendor's API refuses")
    add("--allow-no-thinking", action="store_true", help="accept thinking.type=disabled")
    add(
        "--sampling",
        choices=["auto", "request", "fixed"],
        default="auto",
        help="who sets temperature and top_p",
    )
    add("--no-grammar", action="store_true", help="do not force well-formed markup")
    add("--emit-reasoning", action="store_true", help="also send the field `reasoning` in streams")
    add("--state-file", type=Path, help="where to write URL, pid and key as JSON while serving")
    add("--idle-timeout", type=float, metavar="S", help="end S seconds after the last request")
    add("--json-logs", action="store_true", help="log JSON lines")
    add("-v", "--verbose", action="store_true", help="log each answer")
    return made


def _add_ranks(made: argparse.ArgumentParser) -> None:
    add = made.add_argument
    add(
        "--tp",
        "--tensor-parallel",
        type=_ranks,
        default=1,
        metavar="N",
        help="spread the model over N processes, each with a GPU of its own",
    )
    add(
        "--expert-parallel",
        type=_ranks,
        default=1,
        metavar="M",
        help="deal whole experts out to M groups of the N processes (default 1: all cut every expert)",
    )


def _ranks(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is no number of processes; give 1 or more")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server; the exit status."""
    args = parser().parse_args(argv)
    args.api_key = args.api_key or next(filter(None, map(os.environ.get, _KEY_VARIABLES)), None)
    _set_up_logs(args.json_logs, args.verbose)
    try:
        check_exposure(args.host, args.api_key)
        if args.engine == "vllm":
            raise BackendError("--engine vllm is not part of this build; use --engine bundled")
        folder = resolve_model(args.model)
    except BackendError as error:
        print(f"k3agent serve: {error}", file=sys.stderr)
        return 2
    try:
        return asyncio.run(_serve(args, folder))
    except BackendError as error:
        print(f"k3agent serve: {error}", file=sys.stderr)
        return RANK_LOST_STATUS if isinstance(error, RankLostError) else 1
    except KeyboardInterrupt:
        return 130


def check_exposure(host: str, api_key: str | None) -> None:
    """Refuse to serve the network without a key."""
    if host == "localhost" or api_key:
        return
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise BackendError(f"--host {host} is reachable from other machines; give --api-key too")


def resolve_model(name: str) -> Path:
    """The folder of a model: `nano`, or a path."""
    if name == "nano":
        for file in ("config.json", "model.safetensors"):
            if not (NANO_DIR / file).is_file():
                raise ModelFilesError(
                    f"the embedded model nano is not installed: {NANO_DIR / file} is missing;"
                    " reinstall k3agent, or give --model DIR"
                )
        return NANO_DIR
    folder = Path(name).expanduser()
    if not (folder / "config.json").is_file():
        raise ModelFilesError(
            f"--model {name}: no config.json in {folder.absolute()}; give nano or a model folder"
        )
    return folder.absolute()


def default_sampling(folder: Path, vocab_size: int) -> tuple[float, float]:
    """Temperature and top_p where a request says nothing: the folder's generation_config.json, else by
    model.
    """
    is_kimi = vocab_size >= _KIMI_VOCAB_SIZE
    values: dict[str, Any] = {"temperature": 1.0 if is_kimi else 0.0, "top_p": 0.95 if is_kimi else 1.0}
    file = folder / "generation_config.json"
    if file.is_file():
        try:
            found = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise ModelFilesError(f"{file} is not JSON: {error}") from error
        values |= {name: found[name] for name in values if isinstance(found.get(name), int | float)}
    return float(values["temperature"]), float(values["top_p"])


def _image_reader(folder: Path) -> Any:
    """What turns image URLs into pixels for this model; None for one without vision."""
    # lazy: not needed for `--help` and refusals
    from k3agent.backend.chat.images import ImageReader, ImageSettings
    from k3agent.backend.config import ModelConfig

    if ModelConfig.from_dir(folder).vision_config is None:
        return None
    return ImageReader(ImageSettings.from_dir(folder))


def _engine_settings(args: argparse.Namespace, folder: Path) -> Any:
    # lazy: see `_serve`
    from k3agent.backend.engine.messages import EngineSettings

    return EngineSettings(
        model_dir=str(folder),
        device=args.device,
        dtype=args.dtype,
        max_model_len=args.max_model_len,
        cache_bytes=args.cache_bytes,
        threads=args.threads,
        tensor_parallel=args.tp,
        expert_parallel=args.expert_parallel,
        max_waiting=args.max_seqs,
    )


async def _serve(args: argparse.Namespace, folder: Path) -> int:
    # lazy: 0.3 s, and `--help` and refusals do not need them
    from k3agent.backend.chat.tokenizer import Tokenizer
    from k3agent.backend.engine.client import EngineClient
    from k3agent.backend.server.answer import ChatService
    from k3agent.backend.server.app import ServerState, build_app
    from k3agent.backend.server.schema import Profile

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with _listening_socket(args.host, args.port) as listener:
        engine = EngineClient(_engine_settings(args, folder))
        starting = asyncio.create_task(engine.start())
        try:
            tokenizer, read_image = await asyncio.to_thread(Tokenizer.from_dir, folder), _image_reader(folder)
            if not await _first(starting, stop):
                return 0
            ready = starting.result()
            temperature, top_p = default_sampling(folder, tokenizer.vocab_size)
            is_free = args.sampling == "request" or (
                args.sampling == "auto" and tokenizer.vocab_size < _KIMI_VOCAB_SIZE and not args.strict
            )
            state = ServerState(
                model=args.served_name or ("nano" if folder == NANO_DIR else folder.name),
                version=__version__,
                service=ChatService(tokenizer, engine, ready.max_model_len, not args.no_grammar, read_image),
                engine=engine,
                profile=Profile(
                    is_strict=args.strict,
                    may_disable_thinking=args.allow_no_thinking,
                    takes_sampling=is_free,
                    temperature=temperature,
                    top_p=top_p,
                ),
                # a state file tells the key to whoever may read it, so the server is never open to other
                # users
                api_key=args.api_key or (secrets.token_urlsafe(24) if args.state_file else None),
                max_active=args.max_seqs,
                also_reasoning=args.emit_reasoning,
            )
            stopped = asyncio.create_task(_stop_when_dead(engine, stop))
            await _run(build_app(state), state, listener, stop, args)
            stopped.cancel()
        finally:
            starting.cancel()
            await engine.stop()
    return engine.exit_status if engine.is_lost.is_set() else 0


async def _run(
    app: Any, state: Any, listener: socket.socket, stop: asyncio.Event, args: argparse.Namespace
) -> None:
    """Serve until `stop`; then end the running answers and wait for them."""
    import uvicorn

    config = uvicorn.Config(
        app,
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
            _write_state(args.state_file, url, state)
        print(url, flush=True)
        idle = asyncio.create_task(_stop_when_idle(state, args.idle_timeout, stop))
        await _first(serving, stop)
        idle.cancel()
    finally:
        if args.state_file:
            _remove_state(args.state_file)
    state.service.stopping.set()
    server.should_exit = True
    await serving


async def _first(task: "asyncio.Task[Any]", stop: asyncio.Event) -> bool:
    """Wait for the task or for `stop`; whether the task ended."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    return task.done()


async def _stop_when_dead(engine: Any, stop: asyncio.Event) -> None:
    """An engine that does not come back ends the server, so that a new one can be started.

    It lingers, to give a clear error to those who ask just then.
    """
    await engine.is_lost.wait()
    await asyncio.sleep(_LINGER_S)
    stop.set()


async def _stop_when_idle(state: Any, timeout_s: float | None, stop: asyncio.Event) -> None:
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


def _write_state(path: Path, url: str, state: Any) -> None:
    """Tell other processes of this user how to join; complete or not there at all."""
    content = {
        "url": url,
        "base_url": f"{url}/v1",
        "pid": os.getpid(),
        "model": state.model,
        "version": state.version,
        "token": state.api_key,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file)
    draft.replace(path)


def _remove_state(path: Path) -> None:
    """Remove the file unless another server has written its own meanwhile."""
    with contextlib.suppress(OSError, ValueError):
        if json.loads(path.read_text("utf-8")).get("pid") == os.getpid():
            path.unlink()


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"at": record.created, "level": record.levelname.lower(), "name": record.name}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _set_up_logs(is_json: bool, is_verbose: bool) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(
        _JsonLines() if is_json else logging.Formatter("%(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.INFO if is_verbose or is_json else logging.WARNING, handlers=[handler])


if __name__ == "__main__":
    sys.exit(main())
