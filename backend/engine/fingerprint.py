"""Names everything that the numbers in a saved cache depend on: weights, config, precision, grid, kernels.

A cache folder outlives the process and the installation. What was saved under another name is never used, so
the name may change too often, but must never stay when the numbers change.
"""

import hashlib
from pathlib import Path

import torch

from k3agent import __version__

_WHOLE_BYTES = 64 << 20
_SAMPLE_BYTES = 1 << 20


def fingerprint(
    model_dir: str | Path,
    dtype: torch.dtype,
    device: torch.device,
    grid: int,
    layout: str,
    kernels: str = "reference",
) -> str:
    """`layout` says how ranks share the model: other sums round in other ways. So do other `kernels`."""
    digest = hashlib.blake2b(digest_size=16)
    folder = Path(model_dir)
    files = [folder / name for name in ("config.json", "preprocessor_config.json")]
    for file in [*files, *sorted(folder.glob("*.safetensors"))]:
        if file.is_file():
            _add(digest, file)
    parts = [__version__, torch.__version__, str(dtype), _kind_of(device), f"grid{grid}", layout, kernels]
    return " ".join([digest.hexdigest(), *parts])


def _add(digest: "hashlib.blake2b", file: Path) -> None:
    """A small file counts whole; of a large one its age and pieces, because a terabyte takes minutes."""
    found = file.stat()
    size = found.st_size
    digest.update(f"{file.name} {size}\n".encode())
    with file.open("rb") as opened:
        if size <= _WHOLE_BYTES:
            digest.update(opened.read())
            return
        digest.update(f"{found.st_mtime_ns}\n".encode())
        for start in (0, size // 2, size - _SAMPLE_BYTES):
            opened.seek(start)
            digest.update(opened.read(_SAMPLE_BYTES))


def _kind_of(device: torch.device) -> str:
    """Other instructions, other sums, other rounding."""
    if device.type == "cpu":
        return f"cpu {torch.backends.cpu.get_cpu_capability()} threads{torch.get_num_threads()}"
    if device.type == "cuda":
        return f"cuda {torch.version.cuda} {torch.cuda.get_device_name(device)}"
    return device.type
