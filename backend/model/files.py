"""Safetensors files of a folder: what they hold, checked before anything is read, one of them open at a time.

A mapped file counts as memory as far as it was read, so a file is closed before the next one is opened:
loading takes the model and one file.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from k3agent.backend.errors import ModelFilesError

if TYPE_CHECKING:
    # the annotation alone: headers are also read where torch is not loaded
    from torch import Tensor

INDEX_FILE = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100_000_000
_DTYPE_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "U8": 8, "I8": 8, "I64": 64, "I32": 32, "I16": 16}
_DTYPE_BITS |= {"BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "U16": 16, "U32": 32, "U64": 64}


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a file."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]


def read_folder(folder: Path) -> dict[str, Stored]:
    """All tensors of the folder by their full names. Raises ModelFilesError for what is not whole."""
    index = folder / INDEX_FILE
    places = _read_index(index) if index.exists() else None
    if places is None:
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise ModelFilesError(f"{folder} has no .safetensors file. Give the folder of a model.")
    else:
        first_names = {shard: name for name, shard in reversed(places.items())}
        files = [folder / shard for shard in sorted(first_names)]
        for file in files:
            if not file.is_file():
                raise ModelFilesError(
                    f"{file} is missing; {INDEX_FILE} names it, first for {first_names[file.name]}. Fetch it."
                )
    found: dict[str, Stored] = {}
    for file in files:
        for stored in read_header(file):
            if stored.name in found:
                raise ModelFilesError(
                    f"{stored.name} is in two files of {folder}, {found[stored.name].file.name} and"
                    f" {file.name}. Remove the one that does not belong to the model."
                )
            found[stored.name] = stored
    for name, shard in (places or {}).items():
        if name not in found or found[name].file.name != shard:
            raise ModelFilesError(f"{folder / shard} lacks {name}, which {INDEX_FILE} names. Fetch it again.")
    return found


def _read_index(file: Path) -> dict[str, str]:
    """Names of tensors to names of files."""
    try:
        places = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFilesError(
            f"{file} cannot be used: {type(error).__name__} {error}. Fetch it again."
        ) from error
    is_plain = isinstance(places, dict) and all(
        isinstance(shard, str) and shard == Path(shard).name for shard in places.values()
    )
    if not is_plain or not places:
        raise ModelFilesError(f"{file}: weight_map must give each tensor the name of a file. Fetch it again.")
    return places


def read_header(file: Path) -> list[Stored]:
    """The tensors that a file says it holds; raises when the file is shorter or longer than they need."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
                raise ModelFilesError(
                    f"{file} cannot be read: it has {size} bytes, its header asks for {length}. Fetch again."
                )
            header = json.loads(stream.read(length))
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"{file} cannot be read ({error}). Fetch it again.") from error
    if not isinstance(header, dict):
        raise ModelFilesError(f"{file} cannot be read: its header is no object. Fetch it again.")
    header.pop("__metadata__", None)
    entries = [_entry(file, name, entry) for name, entry in header.items()]
    needed = 8 + length + max((end for _, end in entries), default=0)
    if size != needed:
        what = "truncated" if size < needed else "too long"
        raise ModelFilesError(
            f"{file} is {what}: {size} bytes, its header asks for {needed}. Fetch it again."
        )
    return [stored for stored, _ in entries]


def _entry(file: Path, name: str, entry: Any) -> tuple[Stored, int]:
    """One tensor of a header, and where its bytes end."""
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if (
            dtype in _DTYPE_BITS and all(type(n) is int and n >= 0 for n in shape) and 0 <= begin <= end
        ):
            if (end - begin) * 8 == math.prod(shape) * _DTYPE_BITS[dtype]:
                return Stored(file, name, dtype, tuple(shape)), end
    raise ModelFilesError(
        f"{file}: the header's entry of {name} is damaged: {entry!r}. Fetch the file again."
    )


class Reader:
    """Reads tensors or parts of them; use as a context manager. Fast when requests come file by file."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._handle: safe_open | None = None

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def read(self, stored: Stored, part: tuple[slice, ...] | None = None) -> "Tensor":
        """The tensor, or a part of it; valid until another file is read."""
        handle = self._handle if stored.file == self._file else None
        if handle is None:
            self._close()
            try:
                handle = safe_open(stored.file, framework="pt").__enter__()
            except (OSError, SafetensorError) as error:
                raise ModelFilesError(f"{stored.file} cannot be read ({error}). Fetch it again.") from error
            self._file, self._handle = stored.file, handle
        if part is None:
            return handle.get_tensor(stored.name)
        return handle.get_slice(stored.name)[part]

    def _close(self) -> None:
        if self._handle is not None:
            self._handle.__exit__(None, None, None)
        self._file, self._handle = None, None
