"""Safetensors to a ready model: loading is a comparison of the file's names with the model's destinations.

A matrix is packed MXFP4 exactly when the file has `<name>_packed` for it; the quantisation block of
config.json is not asked, since its ignore list does not match the released files. Everything is checked
before the first tensor is read; then files are read one after another, each rank only its part.
"""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from k3agent.backend.config import ModelConfig
from k3agent.backend.errors import ModelFilesError
from k3agent.backend.kernels import registry
from k3agent.backend.kernels.reference.mxfp4 import GROUP, mxfp4_dequantise
from k3agent.backend.model.files import INDEX_FILE, Reader, Stored, read_folder
from k3agent.backend.model.k3 import K3ForCausalLM
from k3agent.backend.parallel.shard import Shard, Split

log = logging.getLogger(__name__)

TEXT_PREFIX = "language_model."
VISION_PREFIXES = ("vision_tower.", "mm_projector.")
SMALL_EXPERTS_BYTES = 1 << 30
"""Experts that take no more than this unpacked are better unpacked at load: decoding gets much faster."""
_FLOATS = ("F64", "F32", "F16", "BF16")
_HINT = "Does config.json belong to these weights? Fetch both of one release."


def load_model(
    folder: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    packed_experts: bool | None = None,
    int8_decode: bool = False,
    shard: Shard | None = None,
    vision: bool = True,
    kernels: str = registry.AUTO,
) -> K3ForCausalLM:
    """Read config and weights of a folder.

    `packed_experts` None keeps experts as the file has them, False unpacks them here. `vision` False leaves
    the image encoder out. The other options are those of K3ForCausalLM.
    """
    folder = Path(folder)
    config = ModelConfig.from_dir(folder)
    stored = _by_short_name(read_folder(folder), folder)
    if packed_experts is None:
        # int8 reading is a form of unpacking, made at load
        packed_experts = has_packed_experts(stored) and not int8_decode
    if torch.device(device).type == "cpu":
        # Decayed states and masked scores are full of denormals, which the CPU handles many times slower than
        # zeros.
        torch.set_flush_denormal(True)
    with torch.device(device):
        model = K3ForCausalLM(
            config,
            dtype,
            packed_experts=packed_experts,
            int8_decode=int8_decode,
            shard=shard,
            vision=vision,
            kernels=kernels,
        )
    if not vision:
        skipped = [name for name in stored if name.startswith(VISION_PREFIXES)]
        for name in skipped:
            del stored[name]
        log.info("skipped %d tensors of the image encoder: text only", len(skipped))
    fill(model, stored, folder)
    return model.eval()


def unpacked_experts_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """What all routed experts take in `dtype`."""
    num_layers = sum(config.is_moe(i) for i in range(config.num_hidden_layers))
    values = 3 * (config.num_experts or 0) * config.expert_width * config.moe_intermediate_size
    return num_layers * values * dtype.itemsize


def has_packed_experts(stored: dict[str, Stored]) -> bool:
    """Are all matrices of routed experts MXFP4?"""
    names = [name for name in stored if ".experts." in name]
    return bool(names) and all(name.endswith(("_packed", "_scale")) for name in names)


def _by_short_name(stored: dict[str, Stored], folder: Path) -> dict[str, Stored]:
    """Without the prefix of the text model; raises for a tensor that is there with and without it."""
    found: dict[str, Stored] = {}
    for full, entry in stored.items():
        other = found.setdefault(full.removeprefix(TEXT_PREFIX), entry)
        if other is not entry:
            raise ModelFilesError(
                f"{folder}: {full} in {entry.file.name} and {other.name} in {other.file.name} are the same"
                " tensor of the model. Remove the one that does not belong to it."
            )
    return found


@dataclass(frozen=True, slots=True)
class _Copy:
    """One tensor of the file, or a packed one with its scales, and where it goes."""

    name: str
    target: Tensor
    sources: tuple[Stored, ...]
    split: Split | None
    """How ranks divide it."""
    experts: range | None = None
    """With a stack of all experts: those of this rank."""


def fill(model: K3ForCausalLM, stored: dict[str, Stored], folder: Path) -> None:
    """Copy every destination of the model; raise on the first name missing, extra or misshapen, before any is
    read."""
    copies = list(_copies(model, stored, folder))
    used = {source.name for copy in copies for source in copy.sources}
    extra = sorted(entry.name for entry in stored.values() if entry.name not in used)
    if model.shard.expert_parallel > 1:
        extra = [name for name in extra if not _is_of_other_ranks(name, model)]
    if extra:
        hint = _HINT
        if extra[0].startswith(VISION_PREFIXES):
            hint = "config.json has no vision_config for them. Fetch it again, or remove them."
        noun = "tensor has" if len(extra) == 1 else "tensors have"
        raise ModelFilesError(
            f"{_place(folder)}: {len(extra)} {noun} no place in the model, first {extra[0]}. {hint}"
        )
    for copy in copies:
        _check(copy, model, folder)
    copies.sort(key=lambda copy: copy.sources[0].file)
    with Reader() as reader:
        for copy in copies:
            _run(copy, reader)
    model.finish_loading()


def _copies(model: K3ForCausalLM, stored: dict[str, Stored], folder: Path) -> Iterator[_Copy]:
    """All copies, in the order of the model's names; raises for a name that the file lacks."""
    shard = model.shard
    numbers = shard.experts(model.config.num_experts or 0)
    for name, target in model.destinations().items():
        split = shard.split(name)
        if ".experts.w" not in name:
            yield _Copy(name, target, _sources(name, stored, folder), split)
        elif name in stored or f"{name}_packed" in stored:
            lifted = None if split is None else replace(split, dim=split.dim + 1)
            yield _Copy(name, target, _sources(name, stored, folder), lifted, numbers)
        else:
            for place, e in enumerate(numbers):
                one = name.replace(".experts.", f".experts.{e}.")
                yield _Copy(one, target[place], _sources(one, stored, folder), split)


def _sources(name: str, stored: dict[str, Stored], folder: Path) -> tuple[Stored, ...]:
    if name in stored:
        return (stored[name],)
    packed, scale = f"{name}_packed", f"{name}_scale"
    if name.endswith(".weight") and packed in stored:
        if scale not in stored:
            first = stored[packed]
            raise ModelFilesError(
                f"{first.file}: {first.name.removesuffix('_packed')}_scale is missing beside {first.name}."
                " Fetch the weights again."
            )
        return (stored[packed], stored[scale])
    raise ModelFilesError(f"{_place(folder)}: {_full_name(name, stored)} is missing. {_HINT}")


def _place(folder: Path) -> Path:
    """What ought to name all tensors: the index, the only file, or the folder."""
    index, files = folder / INDEX_FILE, sorted(folder.glob("*.safetensors"))
    if index.exists():
        return index
    return files[0] if len(files) == 1 else folder


def _full_name(name: str, stored: dict[str, Stored]) -> str:
    """The name as the files of this model spell it."""
    is_nested = any(entry.name.startswith(TEXT_PREFIX) for entry in stored.values())
    return f"{TEXT_PREFIX}{name}" if is_nested and not name.startswith(VISION_PREFIXES) else name


def _is_of_other_ranks(name: str, model: K3ForCausalLM) -> bool:
    _, found, rest = name.partition(".experts.")
    number = rest.partition(".")[0]
    return bool(found) and number.isdigit() and int(number) < (model.config.num_experts or 0)


# --- checks


def _check(copy: _Copy, model: K3ForCausalLM, folder: Path) -> None:
    """Shape and dtype of the stored tensors, by their headers alone."""
    first = copy.sources[0]
    where = f"{first.file}: {first.name}"
    if copy.name.endswith(".A_log"):
        heads = copy.target.shape[0] * model.shard.world
        if math.prod(first.shape) < heads:
            raise ModelFilesError(f"{where} holds {math.prod(first.shape)} values for {heads} heads. {_HINT}")
        _check_dtype(first, _FLOATS)
        return
    if len(copy.sources) == 2:
        _check_packed(copy, where)
    whole = _whole_shape(copy, model)
    shape = first.shape if len(copy.sources) == 1 else (*first.shape[:-1], 2 * first.shape[-1])
    if shape != whole:
        hint = _HINT
        if "embed_tokens" in copy.name or "lm_head" in copy.name:
            hint = f"Its vocab_size is {model.config.vocab_size}, its hidden_size {model.config.hidden_size}."
            hint = f"{hint} {_HINT}"
        raise ModelFilesError(
            f"{where} has shape {list(shape)}, {folder / 'config.json'} needs {list(whole)}. {hint}"
        )
    _check_dtype(first, _FLOATS if copy.target.is_floating_point() and len(copy.sources) == 1 else ("U8",))


def _check_dtype(stored: Stored, wanted: tuple[str, ...]) -> None:
    if stored.dtype not in wanted:
        raise ModelFilesError(
            f"{stored.file}: {stored.name} has dtype {stored.dtype}, the model needs {' or '.join(wanted)}."
            " Fetch the weights again."
        )


def _whole_shape(copy: _Copy, model: K3ForCausalLM) -> tuple[int, ...]:
    """Shape of the tensor over all ranks."""
    whole = list(copy.target.shape)
    if copy.split is not None:
        whole[copy.split.dim] *= copy.split.ways
    if copy.experts is not None:
        whole[0] = model.config.num_experts or 0
    return tuple(whole)


def _check_packed(copy: _Copy, where: str) -> None:
    packed, scale = copy.sources
    columns = packed.shape[-1] * 2 if packed.shape else 0
    if (packed.dtype, scale.dtype) != ("U8", "U8") or scale.shape != (*packed.shape[:-1], columns // GROUP):
        raise ModelFilesError(
            f"{where} is not MXFP4: {packed.dtype} {list(packed.shape)} with scale {scale.dtype}"
            f" {list(scale.shape)}; expected U8, and one scale for {GROUP} columns."
        )
    if copy.target.shape[-1] % GROUP:
        raise ModelFilesError(
            f"{where}: {copy.target.shape[-1]} columns for each rank are no whole groups of {GROUP}. Use"
            " fewer ranks, or deal out whole experts."
        )


# --- reading


def _run(copy: _Copy, reader: Reader) -> None:
    if copy.name.endswith(".A_log"):
        copy.target.copy_(_heads_of_a_log(copy, reader.read(copy.sources[0])))
        return
    parts = [_part(copy, source.shape) for source in copy.sources]
    if len(parts) == 1:
        copy.target.copy_(reader.read(copy.sources[0], parts[0]))
        return
    packed = reader.read(copy.sources[0], parts[0])
    if copy.sources[1].file != copy.sources[0].file:
        packed = packed.clone()
    scale = reader.read(copy.sources[1], parts[1])
    copy.target.copy_(mxfp4_dequantise(packed, scale, copy.target.dtype))


def _part(copy: _Copy, shape: tuple[int, ...]) -> tuple[slice, ...] | None:
    """What this rank reads of a stored tensor; None: all."""
    if copy.split is None and (copy.experts is None or len(copy.experts) == shape[0]):
        return None
    part = [slice(0, size) for size in shape]
    if copy.experts is not None:
        part[0] = slice(copy.experts.start, copy.experts.stop)
    if copy.split is not None:
        part[copy.split.dim] = copy.split.piece(shape[copy.split.dim])
    return tuple(part)


def _heads_of_a_log(copy: _Copy, value: Tensor) -> Tensor:
    """The released A_log is padded to head_dim entries (K3) or four-dimensional (Kimi-Linear); heads come
    first."""
    split = copy.split or Split(0, 1, 0)
    flat, heads = value.flatten(), copy.target.shape[0] * split.ways
    if flat[heads:].any():
        raise ModelFilesError(
            f"{copy.sources[0].file}: {copy.sources[0].name} holds {flat.numel()} values for {heads} heads;"
            " values after the heads must be zero."
        )
    return flat[split.piece(heads)]


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
