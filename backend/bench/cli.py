"""`k3agent bench`: how fast a served model is, and whether its server bears load.

`measure`, which flags alone stand for, too: prefill and decode apart, at several lengths and numbers of
users, cold, with a prefix hit and after a restart. A server is started, or one that runs is asked (`--url`).
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from k3agent.backend.cli import Parser
from k3agent.backend.errors import BackendError, MissingPackageError

if TYPE_CHECKING:
    from k3agent.backend.bench.client import BenchClient, Json
    from k3agent.backend.bench.load import Load
    from k3agent.backend.bench.local_server import LocalServer
    from k3agent.backend.bench.measure import Row

COMMANDS = {
    "measure": "prefill and decode apart (also with flags alone)",
    "replay": "sessions of an agent: what the prefix cache finds",
    "load": "many streams for a while, some of which hang up",
    "model": "the model alone, without engine and server",
}

RANDOM_NANO = "random-nano"
_USAGE = "k3agent bench COMMAND [flags] [-- flags of `k3agent serve`]"


def _commands() -> str:
    return "\n".join(f"  {name:8} {text}" for name, text in COMMANDS.items())


def main(argv: Sequence[str] | None = None) -> int:
    """Run a measurement; the exit status: 1 for a failed load, 2 for what cannot be run."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        # A measurement takes minutes: nobody should begin one to see what there is.
        print(f"usage: {_USAGE}\n\ncommands:\n{_commands()}\n\nk3agent bench COMMAND --help shows its flags.")
        return 2
    command = arguments.pop(0) if arguments[:1] and arguments[0] in COMMANDS else "measure"
    if command == "model":
        options = parser(command).parse_args(arguments)
        try:
            # lazy: imports torch, which the other commands leave to the server
            from k3agent.backend.bench.model import run as run_model
        except ModuleNotFoundError as error:
            print(f"k3agent bench model: {MissingPackageError(error)}", file=sys.stderr)
            return 2
        return run_model(options)
    args, flags = _parse(command, arguments)
    run = {"measure": _measure, "replay": _replay, "load": _load}[command]
    try:
        return run(args, flags)
    except BackendError as error:
        print(f"k3agent bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parse(command: str, arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags of a command, and those behind `--`, which go to the server."""
    flags: list[str] = []
    if "--" in arguments:
        place = arguments.index("--")
        arguments, flags = arguments[:place], arguments[place + 1 :]
    checked = parser(command)
    if arguments[:1] and not arguments[0].startswith("-"):
        checked.error(f"no measurement {arguments[0]!r}: give one of {', '.join(COMMANDS)}, or only flags")
    args = checked.parse_args(arguments)
    if args.url and flags:
        checked.error("flags behind -- are for a server that is started here, not for --url")
    return args, flags


def parser(command: str) -> argparse.ArgumentParser:
    """The flags of `k3agent bench COMMAND`."""
    if command == "model":
        return _model_parser()
    made = Parser(
        prog="k3agent bench" if command == "measure" else f"k3agent bench {command}",
        usage=_USAGE,
        description=COMMANDS[command],
        epilog=f"commands:\n{_commands()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--model", default="nano", metavar="NAME|DIR", help="what to serve (default: nano)")
    add("--url", help="measure a server that runs, instead of starting one")
    add("--api-key-env", metavar="NAME", help="the variable that holds the key of --url")
    add("--json", type=Path, metavar="FILE", help="write the figures; - for stdout instead of the table")
    _ADD_FLAGS[command](made)
    return made


def _model_parser() -> argparse.ArgumentParser:
    made = Parser(prog="k3agent bench model", description=COMMANDS["model"], allow_abbrev=False)
    add = made.add_argument
    add("--model", default=RANDOM_NANO, metavar="DIR", help=f"folder of a model, or {RANDOM_NANO}")
    add("--dtype", choices=["float32", "bfloat16"], default="float32", help="of weights (default: float32)")
    add("--threads", type=_positive, metavar="N", help="CPU threads (default: as PyTorch sees fit)")
    add("--context", type=int, default=2048, metavar="N", help="tokens of prompt (default: 2048)")
    add("--tokens", type=int, default=100, metavar="N", help="tokens to decode after it (default: 100)")
    add("--int8", action="store_true", help="decode through int8 where weights allow it")
    return made


def _add_measure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--contexts",
        type=_numbers,
        default=(512, 2048, 4096),
        metavar="N,N",
        help="tokens of prompt (default: 512,2048,4096)",
    )
    add(
        "--users",
        type=_numbers,
        default=(1, 4),
        metavar="N,N",
        help="users who ask at the same time (default: 1,4)",
    )
    add("--tokens", type=_positive, default=64, metavar="N", help="tokens to decode (default: 64)")
    add("--png", type=Path, metavar="FILE", help="draw the figures; needs matplotlib")


def _add_replay(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--sessions", type=_positive, default=4, metavar="N", help="sessions side by side (default: 4)")
    add("--turns", type=_positive, default=8, metavar="N", help="turns of each (default: 8)")
    add("--tokens", type=_positive, default=48, metavar="N", help="longest answer (default: 48)")
    add("--seed", type=int, default=0, metavar="N", help="of what is drawn (default: 0)")
    add("--trace", type=Path, metavar="FILE", help="recorded requests instead, one JSON body a line")


def _add_load(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--streams",
        type=_positive,
        default=64,
        metavar="N",
        help="requests open at the same time (default: 64)",
    )
    add("--seconds", type=float, default=600.0, metavar="S", help="how long (default: 600)")
    add("--tokens", type=_positive, default=120, metavar="N", help="longest answer (default: 120)")
    add(
        "--disconnects",
        type=float,
        default=0.2,
        metavar="X",
        help="share of requests that hang up early (default: 0.2)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of what is drawn (default: 0)")


_ADD_FLAGS = {"measure": _add_measure, "replay": _add_replay, "load": _add_load}


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return value


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _write(path: Path | None, text: str) -> None:
    if path is not None and str(path) != "-":
        path.write_text(text + "\n", "utf-8")


@contextmanager
def _served(args: argparse.Namespace, flags: Sequence[str]) -> Iterator["Target"]:
    # lazy: httpx, 0.1 s, and `--help` does not need it
    from k3agent.backend.bench.client import first_model
    from k3agent.backend.bench.local_server import KEY, LocalServer

    if args.url:
        key = os.environ.get(args.api_key_env) if args.api_key_env else None
        yield Target(args.url, key, asyncio.run(first_model(args.url, key)), None)
        return
    with LocalServer(args.model, flags) as server:
        yield Target(server.url, KEY, asyncio.run(first_model(server.url, KEY)), server)


class Target:
    """The server that is measured; `local` if it was started here."""

    def __init__(self, url: str, key: str | None, model: str, local: "LocalServer | None") -> None:
        self.model = model
        self.local = local
        self._url = url
        self._key = key

    def client(self) -> "BenchClient":
        from k3agent.backend.bench.client import BenchClient

        return BenchClient(self.local.url if self.local else self._url, self.model, self._key)


def _measure(args: argparse.Namespace, flags: Sequence[str]) -> int:
    from k3agent.backend.bench import report
    from k3agent.backend.bench.measure import Measurement

    measurement = Measurement(args.tokens, _tell)

    async def before(target: Target) -> "list[Row]":
        async with target.client() as client:
            return await measurement.before(client, args.contexts, args.users)

    async def after(target: Target) -> "list[Row]":
        async with target.client() as client:
            return await measurement.after(client)

    with _served(args, flags) as target:
        rows = asyncio.run(before(target))
        if target.local is not None:
            _tell("restarting the server")
            target.local.restart()
            rows += asyncio.run(after(target))
        text = report.as_json(target.model, rows, flags=list(flags), tokens=args.tokens)
        print(text if str(args.json) == "-" else report.table(rows))
        _write(args.json, text)
        if args.png:
            report.plot(rows, target.model, args.png)
    return 0


def _replay(args: argparse.Namespace, flags: Sequence[str]) -> int:
    from k3agent.backend.bench.replay import Script, recorded, replay, replay_recorded, told

    script = Script(sessions=args.sessions, turns=args.turns, max_tokens=args.tokens, seed=args.seed)

    bodies = recorded(args.trace) if args.trace else None

    async def play(target: Target) -> "Json":
        async with target.client() as client:
            if bodies is not None:
                return await replay_recorded(client, bodies, args.tokens)
            return await replay(client, script)

    with _served(args, flags) as target:
        summary = asyncio.run(play(target))
    text = json.dumps(summary, indent=2)
    print(text if str(args.json) == "-" else told(summary))
    _write(args.json, text)
    return 0


def _load(args: argparse.Namespace, flags: Sequence[str]) -> int:
    from k3agent.backend.bench.load import run_load

    # those who have just left may still be counted when the next ones ask; and a small disk is soon full, so
    # that what is known of it does not look like memory that grows
    limits = ["--max-seqs", str(2 * args.streams), "--disk-cache-bytes", "64M"]

    async def press(target: Target) -> "Load":
        async with target.client() as client:
            return await run_load(
                client,
                streams=args.streams,
                seconds=args.seconds,
                disconnects=args.disconnects,
                max_tokens=args.tokens,
                seed=args.seed,
                resident=target.local.resident_bytes if target.local else lambda: 0,
                tell=_tell,
            )

    with _served(args, [*limits, *flags] if not args.url else flags) as target:
        load = asyncio.run(press(target))
        if target.local is not None and not target.local.is_alive:
            load.problems.append("the server has ended")
    text = json.dumps(load.summary(), indent=2)
    print(text)
    _write(args.json, text)
    return 1 if load.problems else 0
