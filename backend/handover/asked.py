"""What is to be served on what: the question that the builders of commands answer."""

import json
import re
import shlex
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from k3agent.backend.errors import BackendError, ModelFilesError
from k3agent.backend.memory import Gpu
from k3agent.backend.released import RELEASED

K3_NAME = "moonshotai/Kimi-K3"
KIMI_LINEAR_NAME = "moonshotai/Kimi-Linear-48B-A3B-Instruct"
NO_MASTER = "HOST-0"
"""Stands in a command for the address of node 0."""
HUB_NAMES = {"k3": K3_NAME, "kimi-linear": KIMI_LINEAR_NAME}


class Family(StrEnum):
    K3 = "k3"
    KIMI_LINEAR = "kimi-linear"
    OTHER = "other"


class Split(StrEnum):
    """The half of a server whose prefill and decode run on different machines."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How all GPUs share the work: `tensor` x `pipeline` x `data` of them."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    has_expert_parallel: bool = False

    @property
    def num_gpus(self) -> int:
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A model: its name on the hub or its folder."""

    name: str
    family: Family
    config: dict[str, Any] = field(default_factory=dict)
    """config.json where it is at hand; empty for a name on the hub that is not known here."""
    weight_bytes: int | None = None
    """None: not known."""

    @property
    def is_folder(self) -> bool:
        return Path(self.name).is_absolute()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Everything that a command is made of. None: the engine's own default."""

    model: Served
    gpu: Gpu | None
    """None: a CPU."""
    layout: Layout
    nodes: int = 1
    context: int | None = None
    max_seqs: int | None = None
    chunk: int | None = None
    memory_share: float | None = None
    has_fp8_cache: bool = False
    is_text_only: bool = False
    draft: str | None = None
    """A DSpark draft model."""
    offload_bytes: int = 0
    """Host memory for cached prefixes."""
    split: Split | None = None
    connector: str = "nixl"
    """What carries prefixes between the halves of a split server: nixl or mooncake."""
    master: str = NO_MASTER
    """Where node 0 answers the others."""
    host: str = "127.0.0.1"
    port: int = 8333
    served_name: str | None = None
    tool_parser: str | None = None
    extra: tuple[str, ...] = ()
    """The user's own flags, behind all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A command for each node, the same environment for all, and what to know."""

    commands: list[list[str]]
    environ: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """A line for each node, with the environment, ready to be pasted."""
        environ = [f"{name}={shlex.quote(value)}" for name, value in self.environ.items()]
        return [" ".join([*environ, shlex.join(command)]) for command in self.commands]


def node_notes(asked: Asked) -> list[str]:
    """What to know about commands for several nodes."""
    if asked.nodes > 1 and asked.master == NO_MASTER:
        return [f"a command for each node: start all of them; {NO_MASTER} stands for the address of node 0"]
    return []


def find_model(name: str) -> Served:
    """A released model by any of its names, a folder, or a name on the hub. Raises BackendError."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _of_folder(folder.absolute())
    short = released_name(name)
    if short is not None:
        raw = RELEASED[short]
        return Served(name=HUB_NAMES[short], family=Family(short), config=dict(raw))
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith((".", "/")):
        return Served(name=name, family=Family.OTHER)
    raise BackendError(
        f"no model {name!r}; give {', '.join(RELEASED)}, a folder with config.json, or OWNER/NAME on the hub"
    )


def released_name(name: str) -> str | None:
    """`k3` for `kimi-k3` and for its name on the hub; None for others."""
    spellings = {"kimi-k3": "k3"}
    for short, full in HUB_NAMES.items():
        spellings |= {full.lower(): short, full.rpartition("/")[2].lower(): short, short: short}
    return spellings.get(name.lower())


def _of_folder(folder: Path) -> Served:
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFilesError(f"{file}: {error.strerror}; give a model folder") from error
    except ValueError as error:
        raise ModelFilesError(f"{file} is not JSON ({error}); fetch the model again") from error
    if not isinstance(config, dict):
        raise ModelFilesError(f"{file} holds no object; fetch the model again")
    sizes = [weights.stat().st_size for weights in folder.glob("*.safetensors")]
    kinds = {str(config.get("model_type")), *map(str, config.get("architectures") or [])}
    family = Family.OTHER
    if kinds & {"kimi_k3", "KimiK3ForConditionalGeneration"}:
        family = Family.K3
    elif kinds & {"kimi_linear", "KimiLinearForCausalLM"}:
        family = Family.KIMI_LINEAR
    return Served(name=str(folder), family=family, config=config, weight_bytes=sum(sizes) or None)
