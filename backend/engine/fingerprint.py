"""Names everything that the numbers in a saved cache depend on: weights, config, precision, grid, kernels.

A cache folder outlives the process and the installation. What was saved under another name is never used, so
the name may change too often, but must never stay when the numbers change.
"""

import hashlib
from pathlib import Path

import torch

from k3agent import __version__

_SAMPLE_BYTES = 1 << 20


def fingerprint(
    model_dir: str | Path, dtype: torch.dtype, device: torch.device, grid: int, layout: str
) -> str:
    """`layout` says how ranks share the model: sums of other parts round in other ways.

    Of weight files the size, the ends and a piece of the middle are read: a terabyte takes minutes.
    """
    digest = hashlib.blake2b(digest_size=16)
    folder = Path(model_dir)
    for file in [folder / "config.json", *sorted(folder.glob("*.safetensors"))]:
        if not file.is_file():
            continue
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as opened:
            for start in (0, size // 2, size - _SAMPLE_BYTES):
                opened.seek(max(start, 0))
                digest.update(opened.read(_SAMPLE_BYTES))
    parts = [__version__, torch.__version__, str(dtype), device.type, f"grid{grid}", layout]
    if device.type == "cpu":
        # other instructions, other rounding
        parts.append(torch.backends.cpu.get_cpu_capability())
    return " ".join([digest.hexdigest(), *parts])
