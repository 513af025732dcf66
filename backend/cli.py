"""`k3agent serve`: the bundled K3 backend behind one OpenAI-compatible HTTP server.

Prints one line with the URL when the model is loaded, and exits 0 on SIGTERM after running answers were
ended in a valid way. Neither this process nor its imports touch torch: that is the engine process's.
"""

import argparse
import asyncio
import difflib
import ipaddress
import json
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Coroutine, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from k3agent.backend.errors import (
    RANK_LOST_STATUS,
    BackendError,
    EngineUnavailableError,
    MissingPackageError,
    ModelFilesError,
    RankLostError,
)
from k3agent.backend.handover import flags

DEFAULT_PORT = 8333
DEFAULT_MAX_SEQS = 64
NANO_DIR = Path(__file__).resolve().parent / "weights" / "nano"
# Kimi's own models are served with the fixed sampling of the vendor's API
KIMI_VOCAB_SIZE = 163_840
# the second one is how the agent hands a fresh key to a server that it starts
_KEY_VARIABLES = ("K3AGENT_API_KEY", "K3AGENT_SERVER_TOKEN")


class Parser(argparse.ArgumentParser):
    """Unknown flags are an error that names the nearest one."""

    def error(self, message: str) -> NoReturn:
        found = re.match(r"unrecognized arguments: (--[^\s=]+)", message)
        near = difflib.get_close_matches(found[1], list(self._option_string_actions), 1) if found else []
        said = f"{message}; did you mean {near[0]}?" if near else f"{message}."
        print(f"{self.prog}: {said} See {self.prog} --help.", file=sys.stderr)
        sys.exit(2)


def byte_size(text: str) -> int:
    """A number of bytes, perhaps with K, M, G or T behind it."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write bytes, or 512M, 4G")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))


def _count(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return value


def _port(text: str) -> int:
    value = int(text) if text.isdecimal() else -1
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; give a number from 0 to 65535")
    return value


def _device(text: str) -> str:
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is none of cpu, cuda and cuda:N (GPU N, from 0)")
    return text


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds above 0")
    return value


def parser() -> argparse.ArgumentParser:
    """The flags of `k3agent serve`."""
    made = Parser(
        prog="k3agent serve",
        usage="k3agent serve [flags]",
        description="serve a model over HTTP",
        allow_abbrev=False,
    )
    _add_model_flags(made.add_argument_group("model"))
    _add_engine_flags(made.add_argument_group("engine"))
    _add_cache_flags(made.add_argument_group("prefix cache"))
    _add_server_flags(made.add_argument_group("server"))
    flags.add_flags(made)
    return made


def _add_model_flags(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add(
        "--model",
        default="nano",
        metavar="NAME|DIR",
        help="nano, or a folder with config.json and safetensors",
    )
    add(
        "--served-name",
        metavar="ID",
        help="the model id that clients use (default: nano, or the folder's name)",
    )
    add("--engine", choices=["bundled", "vllm"], help="which engine runs the model (default: bundled)")
    add("--device", type=_device, default="cpu", metavar="DEVICE", help="cpu, cuda, or cuda:N for GPU N")
    add("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    add(
        "--threads",
        type=_count,
        metavar="N",
        help="CPU threads, of all ranks together (default: 2 for small models, else all cores)",
    )
    add("--max-model-len", type=_count, metavar="N", help="longest prompt plus answer, in tokens")
    add(
        "--tp",
        "--tensor-parallel",
        type=_count,
        metavar="N",
        help="spread the model over N processes, each with a GPU of its own (default: 1; vLLM: by the GPUs)",
    )
    add(
        "--expert-parallel",
        type=_count,
        default=1,
        metavar="M",
        help="deal whole experts out to M groups of the N processes (default 1: all cut every expert)",
    )
    add("--collectives", choices=["gloo", "nccl"], help="how processes talk (default: by device)")
    add(
        "--sums",
        choices=["auto", "collectives", "symmetric"],
        default="auto",
        help="how processes add up small tensors; symmetric: on GPUs, through memory that all of them see (no"
        " GPU has run this yet); collectives: like the rest; auto: collectives (default: auto)",
    )


def _add_engine_flags(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add(
        "--max-seqs",
        type=_count,
        metavar="N",
        help=f"requests that may run or wait; more get status 429 (default: {DEFAULT_MAX_SEQS})",
    )
    add(
        "--max-running",
        type=_count,
        metavar="N",
        help="requests computed side by side; others wait (default: 16)",
    )
    add(
        "--max-step-tokens",
        type=_count,
        metavar="N",
        help="tokens of prefill beside one pass of decodes (default: 512, on a GPU 4096)",
    )
    add(
        "--speculation",
        choices=["auto", "off", "prompt-lookup"],
        default="auto",
        help="guess what follows from the text itself (default: auto)",
    )
    add(
        "--kernels",
        choices=["auto", "triton", "reference"],
        default="auto",
        help="who computes: PyTorch (reference) or Triton; auto: on a GPU Triton where it was measured to be"
        " faster (default: auto)",
    )
    add(
        "--graphs",
        choices=["auto", "off", "padded"],
        default="auto",
        help="run short passes as CUDA graphs; auto: on GPUs, with one rank or several, where all kernels"
        " allow it; padded: at the same fixed shapes, without graphs (default: auto)",
    )
    add("--no-grammar", action="store_true", help="do not force well-formed markup")


def _add_cache_flags(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add(
        "--cache-bytes",
        type=byte_size,
        metavar="BYTES",
        help="bytes for prefixes, latents and states together; of each rank",
    )
    add(
        "--host-cache-bytes",
        type=byte_size,
        metavar="BYTES",
        default=0,
        help="host memory for what the device cache evicts",
    )
    add(
        "--disk-cache",
        metavar="DIR|off",
        help="where prefixes outlive the server (default: $XDG_CACHE_HOME/k3agent/prefixes); they hold what"
        " was said: `off` keeps nothing",
    )
    add(
        "--disk-cache-bytes",
        type=byte_size,
        metavar="BYTES",
        default=4 << 30,
        help="quota of the disk cache (default: 4G)",
    )
    add(
        "--exactness",
        choices=["auto", "idle", "always", "off"],
        default="auto",
        help="always: resume only from states that a cold run passes through; idle: make the others exact"
        " when nothing else is to do; off: neither; auto: off for small models on a CPU, else idle",
    )


def _add_server_flags(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add(
        "--host",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on; others than loopback need a key",
    )
    add("--port", type=_port, metavar="N", default=DEFAULT_PORT, help="port; 0 picks a free one")
    add(
        "--api-key",
        metavar="KEY",
        help=f"key that clients must send (default: ${', $'.join(_KEY_VARIABLES)})",
    )
    add("--api-key-env", metavar="NAME", help="the environment variable that holds the key")
    add("--strict", action="store_true", help="refuse what the vendor's API refuses")
    add("--allow-no-thinking", action="store_true", help="accept thinking.type=disabled")
    add(
        "--sampling",
        choices=["auto", "request", "fixed"],
        default="auto",
        help="who sets temperature and top_p",
    )
    add("--emit-reasoning", action="store_true", help="also send the field `reasoning`")
    add(
        "--max-body-bytes",
        type=byte_size,
        metavar="BYTES",
        help="longest request (default: 100M with images, else 32M)",
    )
    add(
        "--client-timeout",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="seconds that a client may be slow in sending or reading",
    )
    add(
        "--state-file",
        type=Path,
        metavar="FILE",
        help="where to write URL, pid and key as JSON while serving",
    )
    add("--idle-timeout", type=_seconds, metavar="S", help="end S seconds after the last request")
    add("--json-logs", action="store_true", help="log JSON lines")
    add("-v", "--verbose", action="store_true", help="log each answer")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the server; the exit status."""
    own, extra = split_extra(sys.argv[1:] if argv is None else argv)
    made = parser()
    args = made.parse_args(own)
    _set_up_logs(args.json_logs, args.verbose)
    try:
        flags.check_together(made, args, extra)
        args.api_key = _api_key(args.api_key, args.api_key_env)
        check_exposure(args.host, args.api_key)
        if flags.is_for_others(made, args, extra) or args.probe is not None:
            # lazy: 0.2 s for the HTTP client
            from k3agent.backend.handover.command import handle

            return handle(args, extra)
        folder = resolve_model(args.model)
        if args.print:
            print(shown(made, args, folder), end="")
            return 0
    except EngineUnavailableError as error:
        print(f"k3agent serve: {error}", file=sys.stderr)
        return 1
    except BackendError as error:
        print(f"k3agent serve: {error}", file=sys.stderr)
        return 2
    try:
        return asyncio.run(_server()(args, folder))
    except BackendError as error:
        print(f"k3agent serve: {error}", file=sys.stderr)
        return RANK_LOST_STATUS if isinstance(error, RankLostError) else 1
    except KeyboardInterrupt:
        return 130


def shown(made: argparse.ArgumentParser, args: argparse.Namespace, folder: Path) -> str:
    """What `--print` says of the engine here: the command that starts it, without the key."""
    words = ["k3agent", "serve", "--model", args.model]
    for name, flag in flags.given_flags(made, args).items():
        value = getattr(args, name)
        if name not in {"print", "model", "api_key"}:
            words += [flag] if isinstance(value, bool) else [flag, str(value)]
    lines = [f"# {args.model} on k3agent's own engine ({args.device}), from {folder}"]
    if args.api_key and args.api_key_env is None:
        lines.append(f"# the key that clients need goes into the variable {_KEY_VARIABLES[0]}")
    return "\n".join([*lines, shlex.join(words)]) + "\n"


def _server() -> Callable[[argparse.Namespace, Path], Coroutine[None, None, int]]:
    try:
        if find_spec("torch") is None:
            # The engine process needs it; what the server needs often comes with other programs.
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        # lazy: 0.3 s, and `--help` and refusals do not need it
        from k3agent.backend.serve import serve
    except ModuleNotFoundError as error:
        raise MissingPackageError(error) from error
    return serve


def split_extra(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our flags, and those behind `--`, which are another engine's."""
    words = list(argv)
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _api_key(given: str | None, variable: str | None) -> str | None:
    if given is not None and not given.strip():
        raise BackendError("--api-key is empty; give a key, or leave the flag out")
    if given is None and variable is not None:
        given = os.environ.get(variable)
        if not given:
            raise BackendError(f"--api-key-env {variable}: that variable is not set, or empty")
    return given or next(filter(None, map(os.environ.get, _KEY_VARIABLES)), None)


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
    is_kimi = vocab_size >= KIMI_VOCAB_SIZE
    values: dict[str, Any] = {"temperature": 1.0 if is_kimi else 0.0, "top_p": 0.95 if is_kimi else 1.0}
    file = folder / "generation_config.json"
    if file.is_file():
        try:
            found = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise ModelFilesError(f"{file} is not JSON: {error}") from error
        values |= {name: found[name] for name in values if isinstance(found.get(name), int | float)}
    return float(values["temperature"]), float(values["top_p"])


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
    # how the start goes is always told
    for name in ("k3agent.backend.serve", "k3agent.backend.handover"):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
