"""Which GPUs there are, asked of the drivers' own programs: no torch, no CUDA context."""

import csv
import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from k3agent.backend.errors import BackendError
from k3agent.backend.memory import GPUS, Gpu

LIMIT_S = 20.0
_NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits")
_AMD = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
FP8_LATENTS_FROM = (10, 0)
"""The compute capability from which attention kernels read an FP8 latent cache."""
# Longer names first: a GB200 is no B200, an H200 no H20.
_NAMES = sorted(GPUS, key=len, reverse=True)

Run = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class Machine:
    """GPUs of one type; `count` 0 is a machine without."""

    gpu: Gpu | None
    count: int

    def __str__(self) -> str:
        return f"{self.count} x {self.gpu.name}" if self.gpu else "no GPU"


def run(command: Sequence[str]) -> str | None:
    """What a program prints; None if it is not there or fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def find(ask: Run = run, environ: Mapping[str, str] = os.environ) -> Machine:
    """The GPUs of this machine that CUDA_VISIBLE_DEVICES shows. Raises BackendError if they are of several
    types.
    """
    found = _nvidia(ask(_NVIDIA) or "")
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if found and visible is not None:
        found = _visible(found, visible)
    found = found or _amd(ask(_AMD) or "")
    kinds = {gpu.name for gpu in found}
    if len(kinds) > 1:
        raise BackendError(
            f"GPUs of several types ({', '.join(sorted(kinds))}) cannot share a model; name those to use,"
            f" as in --gpus 2x{min(kinds)}, and show only them with CUDA_VISIBLE_DEVICES"
        )
    return Machine(found[0], len(found)) if found else Machine(None, 0)


def _visible(found: list[Gpu], visible: str) -> list[Gpu]:
    """Those listed, by number or, where all are alike, by name; none for an empty list or -1."""
    names = [part.strip() for part in visible.split(",") if part.strip()]
    if all(name.isdigit() for name in names):
        return [found[int(name)] for name in names if int(name) < len(found)]
    return [] if names == ["-1"] else found[: len(names)]


def _nvidia(text: str) -> list[Gpu]:
    found = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != 3 or not row[1].strip().isdigit():
            continue
        capability = tuple(int(part) for part in re.findall(r"\d+", row[2]))
        found.append(_known(row[0], int(row[1]) * 2**20, capability >= FP8_LATENTS_FROM))
    return found


def _amd(text: str) -> list[Gpu]:
    try:
        cards = json.loads(text)
    except ValueError:
        return []
    found = []
    for card in cards.values() if isinstance(cards, dict) else ():
        if not isinstance(card, dict):
            continue
        name = next(
            (str(card[key]) for key in ("Card Series", "Card series", "Card Model") if key in card), ""
        )
        size = str(card.get("VRAM Total Memory (B)", ""))
        if name and size.isdigit():
            found.append(_known(name, int(size), has_fp8_latents=True))
    return found


def _known(name: str, size_bytes: int, has_fp8_latents: bool) -> Gpu:
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    for known in _NAMES:
        if re.sub(r"[^a-z0-9]", "", known.lower()) in plain:
            return GPUS[known]
    label = re.sub(r"[^\w.-]+", "-", name).strip("-") or "GPU"
    # Vendors count 10^9 bytes, drivers tell a little less.
    return Gpu(label, round(size_bytes / 1e9), has_fp8_latents)


def parse(text: str) -> Machine:
    """`8xH200` or `2xNAME=GB`. Raises BackendError for what is none of these."""
    gpu, count = parse_type(text)
    if count is None:
        raise BackendError(
            f"--gpus {text!r}: say how many, as in 8x{text}; `k3agent plan MODEL --gpus {text}` tells how"
            " many a model needs"
        )
    return Machine(gpu, count)


def parse_type(text: str) -> tuple[Gpu, int | None]:
    """`8xH200`, `2xNAME=GB`, or a type without a number, which is None then. Raises BackendError for what is
    none of these.
    """
    found = re.fullmatch(r"(?:(\d{1,4}) ?[xX] ?)?([\w.-]+?)(?:=(\d{1,4}))?", text.strip())
    if found is None or (found[1] and not int(found[1])) or (found[3] and not int(found[3])):
        raise BackendError(f"--gpus {text!r}: give a number and a type, as in 8xH200 or 2xNAME=96 (GB each)")
    count = int(found[1]) if found[1] else None
    if found[3]:
        return Gpu(found[2], int(found[3]), has_fp8_latents=True), count
    known = next((gpu for name, gpu in GPUS.items() if name.lower() == found[2].lower()), None)
    if known is None:
        raise BackendError(
            f"--gpus {text!r}: no GPU type {found[2]!r}; give one of {', '.join(GPUS)}, or NAME=GB"
        )
    return known, count
