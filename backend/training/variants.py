"""What can be switched in training: the choices of K3 and, for each, what it is compared with.

A switch changes either how steps are taken (balancing, optimizer, rounding) or the shape of the model
(residuals, KDA to MLA); the latter is written into config.json, so that what was trained can be loaded.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from k3agent.backend.errors import BackendError

QUANTILE, SIGN, NONE = "quantile", "sign", "none"
HEADS, WHOLE, ADAMW = "muon-heads", "muon-whole", "adamw"
ATTENTION, PLAIN = "attention", "plain"


@dataclass(frozen=True)
class Variant:
    """One way to train. The defaults are K3's."""

    balancing: str = QUANTILE
    """quantile: the bias is a quantile of margins. sign: it moves by a fixed step. none: it stays zero."""
    matrices: str = HEADS
    """muon-heads: Muon with Q, K and V cut into heads. muon-whole: Muon on whole matrices. adamw."""
    residuals: str = ATTENTION
    """attention: attention residuals over blocks. plain: each sublayer adds to one stream."""
    mla_every: int | None = None
    """One layer of so many is MLA, the others KDA. None: as the configuration has it (4)."""
    round_weights: bool = True
    """Matrices as MXFP4 from some point on. False: never, so that a file is rounded after training."""
    round_inputs: bool = False
    """Inputs of routed experts as MXFP8, from when weights are rounded."""

    def config(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """config.json of the model to train, from the one of K3's shape."""
        text = dict(raw["text_config"])
        if self.residuals == PLAIN:
            text["attn_res_block_size"] = None
        if self.mla_every is not None:
            layers = range(1, text["num_hidden_layers"] + 1)
            text["linear_attn_config"] = text["linear_attn_config"] | {
                "kda_layers": [i for i in layers if i % self.mla_every],
                "full_attn_layers": [i for i in layers if i % self.mla_every == 0],
            }
        return {**raw, "text_config": text}


CHOICES = {
    "balancing": (QUANTILE, SIGN, NONE),
    "matrices": (HEADS, WHOLE, ADAMW),
    "residuals": (ATTENTION, PLAIN),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The switches as options of a command."""
    group = parser.add_argument_group("switches, each with K3's choice as its default")
    group.add_argument("--balancing", choices=CHOICES["balancing"], default=QUANTILE)
    group.add_argument("--matrices", choices=CHOICES["matrices"], default=HEADS, help="who trains matrices")
    group.add_argument("--residuals", choices=CHOICES["residuals"], default=ATTENTION)
    group.add_argument(
        "--mla-every", type=int, metavar="N", help="one layer of N is MLA, others KDA; default 4"
    )
    group.add_argument(
        "--round-weights",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="matrices as MXFP4, from --quantize-from on",
    )
    group.add_argument("--round-inputs", action="store_true", help="inputs of routed experts as MXFP8")


def of_options(options: argparse.Namespace) -> Variant:
    """Raises BackendError for a number of layers that leaves no KDA or no MLA layer."""
    return checked(Variant(**{field.name: getattr(options, field.name) for field in fields(Variant)}))


def checked(variant: Variant) -> Variant:
    """The same variant. Raises BackendError if a switch stands where it cannot."""
    for name, known in CHOICES.items():
        if (value := getattr(variant, name)) not in known:
            raise BackendError(f"{name} {value!r} is not one of {', '.join(known)}")
    if variant.mla_every is not None and variant.mla_every < 2:
        raise BackendError(f"--mla-every {variant.mla_every}: give 2 or more, for at least one KDA layer")
    return variant


BASE = Variant(round_inputs=True)
K3, UNROUNDED = "k3", "never rounded"
ABLATIONS: dict[str, Variant] = {
    K3: BASE,
    "balancing by sign": replace(BASE, balancing=SIGN),
    "no balancing": replace(BASE, balancing=NONE),
    "Muon on whole matrices": replace(BASE, matrices=WHOLE),
    "AdamW": replace(BASE, matrices=ADAMW),
    "plain residuals": replace(BASE, residuals=PLAIN),
    "KDA to MLA 1:1": replace(BASE, mla_every=2),
    "KDA to MLA 5:1": replace(BASE, mla_every=6),
    "inputs never rounded": replace(BASE, round_inputs=False),
    UNROUNDED: replace(BASE, round_inputs=False, round_weights=False),
}
"""Rows of the small table: everything as K3 has it, then one switch at a time."""
