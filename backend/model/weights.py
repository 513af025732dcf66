"""Safetensors to a ready model: loading is a comparison of the file's names with the model's destinations.

A matrix is packed MXFP4 exactly when the file has `<name>_packed` for it; the quantisation block of
config.json is not asked, since its ignore list does not match the released files.
"""

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from k3agent.backend.config import ModelConfig
from k3agent.backend.errors import BackendError
from k3agent.backend.kernels.reference.mxfp4 import GROUP, mxfp4_dequantise
from k3agent.backend.model.k3 import K3ForCausalLM

log = logging.getLogger(__name__)

INDEX_FILE = "model.safetensors.index.json"
TEXT_PREFIX = "language_model."
VISION_PREFIXES = ("vision_tower.", "mm_projector.")


class Source:
    """All tensors of a weights folder by name, without the prefix of the text model. Use as a context
    manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._files: dict[str, tuple[safe_open, str]] = {}
        self.vision_names: list[str] = []

    def __enter__(self) -> "Source":
        for file in self._shards():
            try:
                handle = self._stack.enter_context(safe_open(file, framework="pt"))
            except (OSError, SafetensorError) as error:
                raise BackendError(f"{file} cannot be read ({error}). Fetch it again.") from error
            for name in handle.keys():  # noqa: SIM118 (not a dict)
                if name.startswith(VISION_PREFIXES):
                    self.vision_names.append(name)
                else:
                    self._files[name.removeprefix(TEXT_PREFIX)] = (handle, name)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def names(self) -> Iterable[str]:
        return self._files.keys()

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def get(self, name: str) -> Tensor:
        handle, stored_name = self._files[name]
        return handle.get_tensor(stored_name)

    def _shards(self) -> list[Path]:
        index = self._folder / INDEX_FILE
        if index.exists():
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
            return [self._folder / name for name in names]
        files = sorted(self._folder.glob("*.safetensors"))
        if not files:
            raise BackendError(f"{self._folder} has no .safetensors file. Give the folder of a model.")
        return files


def load_model(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    packed_experts: bool = False,
    int8_decode: bool = False,
) -> K3ForCausalLM:
    """Read config and weights of a folder. The two options are those of K3ForCausalLM."""
    folder = Path(folder)
    config = ModelConfig.from_dir(folder)
    if torch.device(device).type == "cpu":
        # Decayed states and masked scores are full of denormals, which the CPU handles many times slower than
        # zeros.
        torch.set_flush_denormal(True)
    with torch.device(device):
        model = K3ForCausalLM(config, dtype, packed_experts=packed_experts, int8_decode=int8_decode)
    with Source(folder) as source:
        if source.vision_names:
            log.info("skipped %d tensors of the image encoder: text only", len(source.vision_names))
        fill(model, source)
    return model.eval()


def fill(model: K3ForCausalLM, source: Source) -> None:
    """Copy every destination of the model from the source; raise on the first name missing, extra or
    misshapen."""
    used: set[str] = set()
    num_experts = model.config.num_experts or 0
    for name, target in model.destinations().items():
        if ".experts.w" in name and not _stored_as(source, name):
            for e in range(num_experts):
                used |= _copy(source, name.replace(".experts.", f".experts.{e}."), target[e])
        else:
            used |= _copy(source, name, target)
    extra = sorted(set(source.names()) - used)
    if extra:
        raise BackendError(
            f"{len(extra)} tensors of the file have no place in the model, first {extra[0]}. Does config.json"
            " belong to these weights?"
        )
    model.finish_loading()


def _stored_as(source: Source, name: str) -> bool:
    return name in source or f"{name}_packed" in source


def _copy(source: Source, name: str, target: Tensor) -> set[str]:
    """Fill one target; returns the names that were read."""
    if name in source:
        read = {name}
        value = source.get(name)
        if name.endswith(".A_log"):
            value = _heads_of_a_log(name, value, target.shape[0])
    elif name.endswith(".weight") and f"{name}_packed" in source:
        packed_name, scale_name = f"{name}_packed", f"{name}_scale"
        if scale_name not in source:
            raise BackendError(f"{scale_name} is missing beside {packed_name}. Fetch the weights again.")
        read = {packed_name, scale_name}
        value = _unpack(packed_name, source.get(packed_name), source.get(scale_name), target.dtype)
    else:
        raise BackendError(f"{name} is missing from the weights. Does config.json belong to these weights?")
    if value.shape != target.shape:
        raise BackendError(
            f"{name} has shape {list(value.shape)}, the model needs {list(target.shape)}. Does config.json"
            " belong to these weights?"
        )
    if value.is_floating_point() != target.is_floating_point():
        raise BackendError(f"{name} has dtype {value.dtype}, the model needs {target.dtype}.")
    target.copy_(value)
    return read


def _heads_of_a_log(name: str, value: Tensor, num_heads: int) -> Tensor:
    """The released A_log is padded to head_dim entries (K3) or four-dimensional (Kimi-Linear); heads come
    first."""
    flat = value.flatten()
    if flat.numel() < num_heads or flat[num_heads:].any():
        raise BackendError(
            f"{name} holds {flat.numel()} values for {num_heads} heads; values after the heads must be zero."
        )
    return flat[:num_heads]


def _unpack(name: str, packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    columns = packed.shape[-1] * 2
    if packed.dtype != torch.uint8 or scale.dtype != torch.uint8 or scale.shape[-1] * GROUP != columns:
        raise BackendError(
            f"{name} is not MXFP4: {packed.dtype} {list(packed.shape)} with scale {scale.dtype}"
            f" {list(scale.shape)}; expected uint8, and one scale for {GROUP} columns."
        )
    return mxfp4_dequantise(packed, scale, dtype)


def expected_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Released names (without prefix) and shapes of all unpacked tensors, expert by expert; A_log by
    heads."""
    with torch.device("meta"):
        model = K3ForCausalLM(config)
    for name, target in model.destinations().items():
        if ".experts.w" in name:
            for e in range(target.shape[0]):
                yield name.replace(".experts.", f".experts.{e}."), tuple(target.shape[1:])
        else:
            yield name, tuple(target.shape)
