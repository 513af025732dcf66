"""Flags of `k3agent serve` that concern other engines, and which of all flags go together."""

import argparse

from k3agent.backend.errors import BackendError
from k3agent.backend.handover.asked import NO_MASTER, Split

COMMAND, SGLANG, KUBERNETES = "command", "sglang", "kubernetes"
DRAFT = "Inferact/Kimi-K3-DSpark"

_LOGS = {"json_logs", "verbose"}
_OF_A_PROBE = {"probe", "model", "api_key", "api_key_env", *_LOGS}
# What the bundled engine has in common with others. A GPU needs no naming there, but does no harm.
_OF_ALL = {
    *("model", "served_name", "engine", "device", "max_model_len", "tp", "max_seqs", "max_step_tokens"),
    *("host_cache_bytes", "host", "port", "api_key", "api_key_env", "state_file", *_LOGS),
}
OTHERS = "other engines, with --engine vllm or --print (their own flags go behind --)"


def check_together(parser: argparse.ArgumentParser, args: argparse.Namespace, extra: list[str]) -> None:
    """Raises BackendError for a flag that would have no effect beside the others."""
    given = given_flags(parser, args)
    if args.probe is not None:
        wrong = [flag for dest, flag in given.items() if dest not in _OF_A_PROBE] + (
            ["--", *extra] if extra else []
        )
        if wrong:
            raise BackendError(
                f"{' '.join(wrong)}: --probe asks a server that runs, it starts and shows nothing; only"
                " --model, --api-key and --api-key-env go with it"
            )
        return
    of_others = _of_others(parser)
    if is_for_others(parser, args, extra):
        wrong = [flag for dest, flag in given.items() if dest not in _OF_ALL | of_others | {"print"}]
        if wrong:
            raise BackendError(
                f"{', '.join(wrong)}: only the bundled engine has that; leave it out, and give flags of the"
                " other engine behind --"
            )
        return
    wrong = [flag for dest, flag in given.items() if dest in of_others]
    if wrong or extra:
        what = ", ".join(wrong) or f"-- {' '.join(extra)}"
        raise BackendError(
            f"{what}: that is for other engines; add --engine vllm or --print, or leave it out"
        )


def is_for_others(parser: argparse.ArgumentParser, args: argparse.Namespace, extra: list[str]) -> bool:
    """Whether the flags are about another engine; `--print` alone is about the one that would be started."""
    if args.engine == "vllm" or args.print in (SGLANG, KUBERNETES):
        return True
    if not args.print or args.engine == "bundled":
        return False
    return args.model != "nano" or bool(extra) or not _of_others(parser).isdisjoint(given_flags(parser, args))


def given_flags(parser: argparse.ArgumentParser, args: argparse.Namespace) -> dict[str, str]:
    """What differs from the defaults, each with its flag."""
    return {
        action.dest: action.option_strings[0]
        for action in parser._actions
        if action.option_strings and getattr(args, action.dest, action.default) != action.default
    }


def _of_others(parser: argparse.ArgumentParser) -> set[str]:
    groups = (group for group in parser._action_groups if group.title == OTHERS)
    return {action.dest for group in groups for action in group._group_actions}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Two groups: what to do instead of serving, and how another engine is to run."""
    group = parser.add_argument_group("instead of serving")
    group.add_argument(
        "--print",
        nargs="?",
        const=COMMAND,
        choices=[COMMAND, SGLANG, KUBERNETES],
        help="show the command, and end: for nano of the engine here, else of vLLM for the GPUs; or SGLang's,"
        " or a Kubernetes manifest",
    )
    group.add_argument(
        "--probe", metavar="URL", help="ask a running server what it can do: models, calls, reasoning, reuse"
    )
    group = parser.add_argument_group(OTHERS)
    add = group.add_argument
    add("--gpus", metavar="NxTYPE", help="GPUs of all nodes, e.g. 8xB300 or 2xNAME=96 (default: those here)")
    add("--nodes", type=int, metavar="N", help="machines that share the model (default: by the GPUs)")
    add("--node-rank", type=int, default=0, metavar="R", help="which of them this is, from 0")
    add("--master", default=NO_MASTER, metavar="HOST", help="address of node 0 for the others")
    add("--pp", type=int, metavar="N", help="pipeline stages")
    add("--dp", type=int, metavar="N", help="data-parallel groups; experts are dealt out among all")
    add("--cache-dtype", choices=["bf16", "fp8"], default="bf16", help="precision of the latent cache")
    add("--memory-share", type=float, metavar="X", help="part of a GPU's memory to use (default: 0.95)")
    add("--text-only", action="store_true", help="leave the image encoder out")
    add(
        "--draft", nargs="?", const=DRAFT, metavar="MODEL", help=f"guess ahead with a draft (default {DRAFT})"
    )
    add("--split", choices=[part.value for part in Split], help="only this half; the other runs elsewhere")
    add("--connector", choices=["nixl", "mooncake"], default="nixl", help="what joins the halves")
    add("--tool-parser", metavar="NAME", help="the engine's parser of tool calls (default: by model)")
    add(
        "--python",
        metavar="FILE",
        help="the Python that has vLLM (default: `vllm` on the path, else this one)",
    )
    add("--ready-timeout", type=float, default=3600.0, metavar="S", help="seconds that loading may take")
    add("--no-probe", action="store_true", help="do not try the server out when it is ready")
