"""Compares this implementation with numbers of another: `python -m k3agent.backend.parity FOLDER`.

FOLDER holds config.json, safetensors and `oracle.npz`: inputs and what the released code made of them. With
`--chat FILE --tokenizer DIR` prompts are rendered instead, and their ids compared. Exit status: 0 all agree,
1 something differs, 2 something cannot be read.
"""

import argparse
import json
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from k3agent.backend.chat.images import ImageReader, ImageSettings
from k3agent.backend.chat.template import render
from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.errors import BackendError, ModelFilesError
from k3agent.backend.model.inputs import ForwardBatch, allocate_cache
from k3agent.backend.model.k3 import K3ForCausalLM
from k3agent.backend.model.weights import load_model

TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-3}
"""Largest absolute difference of logits of size 4; the wider one counts when either side is fp32. It is loose
because random miniatures are badly conditioned."""
_LOGITS_SIZE = 4.0
MIN_COSINE = 0.95
"""bf16 is compared statistically: the median cosine of rows, since single tokens take other experts."""
_VISION = ("vision_feats", "vision_tokens", "mm_logits")


@dataclass(frozen=True)
class Difference:
    """One array: largest absolute difference, and what it was measured by."""

    name: str
    largest: float
    tolerance: float | None
    """None in bf16."""
    median_cosine: float
    agrees: bool


def read_oracle(folder: Path) -> dict[str, Tensor]:
    """Arrays of `oracle.npz` by name."""
    file = folder / "oracle.npz"
    if not file.exists():
        raise ModelFilesError(f"{file} does not exist. Give a folder with expected numbers.")
    try:
        with np.load(file) as stored:
            found = {name: torch.from_numpy(stored[name]) for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ModelFilesError(f"{file} cannot be read ({error}). Make it again.") from error
    if "input_ids" not in found and "mm_input_ids" not in found and "pixel_values" not in found:
        raise ModelFilesError(f"{file} has no input_ids, mm_input_ids or pixel_values: nothing can be run.")
    return found


def compare(
    folder: str | Path,
    dtype: torch.dtype,
    pieces: list[int] | None = None,
    packed_experts: bool | None = None,
) -> list[Difference]:
    """Run the inputs of the oracle, in one piece or in the given ones; one entry for each array of it."""
    folder = Path(folder)
    expected = read_oracle(folder)
    has_vision = any(name in expected for name in _VISION)
    model = load_model(folder, dtype, packed_experts=packed_experts, vision=has_vision)
    if has_vision and model.vision_tower is None:
        raise ModelFilesError(f"{folder}: oracle.npz expects images, config.json has no vision_config.")
    _check_ids(expected, model, folder)
    found: dict[str, Tensor] = {}
    if "input_ids" in expected:
        found |= run(model, expected["input_ids"].long(), pieces)
    if "logits_cached" in expected:
        found["logits_cached"] = run_cached(model, expected["input_ids"].long())
    if has_vision:
        found |= run_vision(model, expected)
    return [difference(name, found[name], value, dtype) for name, value in expected.items() if name in found]


def _check_ids(expected: dict[str, Tensor], model: K3ForCausalLM, folder: Path) -> None:
    """Ids of a larger vocabulary mean that the numbers belong to another model."""
    for name in ("input_ids", "mm_input_ids"):
        ids = expected.get(name)
        size = model.config.vocab_size
        if ids is not None and len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < size:
            raise ModelFilesError(
                f"{folder / 'oracle.npz'}: {name} has the id {int(ids.max())}, config.json a vocab_size of"
                f" {size}. Do they belong together?"
            )


def difference(name: str, found: Tensor, expected: Tensor, dtype: torch.dtype) -> Difference:
    """Compare one array. Raises when it has another shape."""
    if found.shape != expected.shape:
        raise ModelFilesError(
            f"{name} has shape {list(expected.shape)}, the model gives {list(found.shape)}."
        )
    a, b = found.double(), expected.double()
    largest = (a - b).abs().max().item() if a.numel() else 0.0
    cosine = torch.nn.functional.cosine_similarity(a.flatten(0, -2), b.flatten(0, -2), dim=-1).median().item()
    if dtype == torch.bfloat16:
        return Difference(name, largest, None, cosine, cosine >= MIN_COSINE)
    known = [TOLERANCES[kind] for kind in (dtype, expected.dtype) if kind in TOLERANCES]
    tolerance = max(known, default=TOLERANCES[torch.float32])
    if name == "layer_out" and tolerance == TOLERANCES[torch.float32] and a.numel():
        # a running sum grows with depth, and its rounding errors with it; the last norm takes the size away
        tolerance *= max(1.0, b.abs().max().item() / _LOGITS_SIZE)
    return Difference(name, largest, tolerance, cosine, largest <= tolerance)


def run(model: K3ForCausalLM, ids: Tensor, pieces: list[int] | None = None) -> dict[str, Tensor]:
    """logits [T, vocab], layer_out [L, T, D] (the running sum after each layer) and kda_state_vk
    [KDA layers, H, V, K] after the last token."""
    num_pages = -(-len(ids) // PAGE_SIZE)
    cache = allocate_cache(model.config, num_pages, 1, model.dtype, model.device)
    logits, layers, done = [], [], 0
    for piece in ids.split(pieces or [len(ids)]):
        count = len(piece)
        taps: list[Tensor] = []
        logits.append(model(_batch(piece, done, num_pages), cache, taps))
        layers.append(torch.stack(taps))
        done += count
    found = {"logits": torch.cat(logits), "layer_out": torch.cat(layers, dim=1)}
    states = [cache.kda_states[i][0].transpose(-1, -2) for i in sorted(cache.kda_states)]
    return found | ({"kda_state_vk": torch.stack(states)} if states else {})


def run_cached(model: K3ForCausalLM, ids: Tensor) -> Tensor:
    """The same logits from the caches: the first half in one piece, the rest token by token."""
    first = -(-len(ids) // 2)
    return run(model, ids, [first, *[1] * (len(ids) - first)])["logits"]


def run_vision(model: K3ForCausalLM, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """Features of the images before and behind the projector, and logits of a text with the first of them in
    the place of its placeholders, as many as it has."""
    tower, projector = model.vision_tower, model.mm_projector
    assert tower is not None and projector is not None
    if "pixel_values" not in expected or "grid_thws" not in expected:
        raise ModelFilesError("oracle.npz expects images, but holds no pixel_values with grid_thws.")
    grids = [(int(t), int(h), int(w)) for t, h, w in expected["grid_thws"].tolist()]
    with torch.inference_mode():
        features = tower(expected["pixel_values"], grids)
        tokens = projector(features)
    found = {"vision_feats": features.flatten(0, 1), "vision_tokens": tokens}
    if "mm_logits" in expected and "mm_input_ids" in expected:
        ids = expected["mm_input_ids"].tolist()
        if len(ids) != len(expected["mm_logits"]):
            ids = _expanded(ids, model, grids)
        found["mm_logits"] = _mixed_logits(model, ids, tokens)
    return found


def _expanded(ids: Sequence[int], model: K3ForCausalLM, grids: Sequence[tuple[int, int, int]]) -> list[int]:
    """One placeholder stands for a whole image, as the released code expects it; give each token its own."""
    assert model.config.vision_config is not None
    high, wide = model.config.vision_config.merge_kernel_size
    counts = iter([h // high * (w // wide) for _, h, w in grids])
    placeholder = model.config.media_placeholder_token_id
    expanded: list[int] = []
    for token in ids:
        expanded += [token] * (next(counts, 1) if token == placeholder else 1)
    return expanded


def _mixed_logits(model: K3ForCausalLM, ids: Sequence[int], tokens: Tensor) -> Tensor:
    """Logits of a text with features in the place of its placeholders."""
    placeholder = model.config.media_placeholder_token_id
    text = torch.tensor(ids)
    rows = (text == placeholder).nonzero().flatten()
    if len(rows) > len(tokens):
        raise ModelFilesError(f"mm_input_ids have {len(rows)} placeholders, the images {len(tokens)} tokens.")
    batch = _batch(text, 0, -(-len(text) // PAGE_SIZE))
    batch.image_rows, batch.image_features = rows, tokens[: len(rows)]  # type: ignore[assignment]
    cache = allocate_cache(model.config, batch.page_table.shape[1], 1, model.dtype, model.device)
    return model(batch, cache)


def _batch(ids: Tensor, done: int, num_pages: int) -> ForwardBatch:
    """One sequence that has `done` tokens behind it, with the logits of all new ones."""
    pages = torch.arange(num_pages).unsqueeze(0)
    rows = torch.arange(len(ids))
    return ForwardBatch(ids, [0, len(ids)], [done], pages, [0], [done > 0], rows)  # type: ignore[arg-type]


# --- prompts


@dataclass(frozen=True)
class Prompt:
    """One prompt of a vector file: its ids in number, and where ours first differ."""

    name: str
    num_ids: int
    first_difference: int | None
    agrees: bool


def compare_prompts(file: Path, tokenizer_folder: Path) -> list[Prompt]:
    """Render every prompt of a chat-vector file."""
    try:
        cases = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"{file} cannot be read ({error}). Give a file of chat vectors.") from error
    tokenizer = Tokenizer.from_dir(tokenizer_folder)
    read_image = ImageReader(ImageSettings.from_dir(tokenizer_folder))
    if isinstance(cases, list):
        cases = {str(number): case for number, case in enumerate(cases)}
    if not isinstance(cases, dict):
        raise ModelFilesError(f"{file} holds a {type(cases).__name__}, not prompts by name.")
    return [_compare_prompt(tokenizer, read_image, name, case, file) for name, case in cases.items()]


def _compare_prompt(
    tokenizer: Tokenizer, read_image: ImageReader, name: str, case: dict[str, Any], file: Path
) -> Prompt:
    try:
        expected, messages = case["token_ids"], case["messages"]
    except (KeyError, TypeError) as error:
        raise ModelFilesError(f"{file}: the prompt {name} lacks {error}.") from error
    options = {key: case[key] for key in ("tool_choice", "response_format", "thinking") if key in case}
    effort = case.get("reasoning_effort", "max")
    try:
        found = render(
            tokenizer, messages, case.get("tools"), effort=effort, read_image=read_image, **options
        ).token_ids
    except BackendError as error:
        raise ModelFilesError(f"{file}: the prompt {name} cannot be rendered: {error}") from error
    place = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), None)
    if place is None and len(found) != len(expected):
        place = min(len(found), len(expected))
    return Prompt(name, len(expected), place, place is None)


# --- command


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line for each array or prompt; the exit status."""
    parser = argparse.ArgumentParser(prog="k3agent.backend.parity", description=__doc__)
    add = parser.add_argument
    add("folder", type=Path, nargs="?", help="config.json, safetensors and oracle.npz")
    add("--dtype", choices=["float32", "float64", "bfloat16"], default="float32", help="of weights and sums")
    add("--chat", type=Path, metavar="FILE", help="compare prompts of this vector file instead")
    add("--tokenizer", type=Path, metavar="DIR", help="folder of the tokenizer for --chat")
    add("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if (options.chat is None) != (options.tokenizer is None):
        parser.error("--chat and --tokenizer go together")
    if options.folder is None and options.chat is None:
        parser.error("give a folder, or --chat FILE --tokenizer DIR")
    try:
        report: dict[str, Any] = {}
        if options.folder is not None:
            arrays = compare(options.folder, getattr(torch, options.dtype))
            report |= {"folder": str(options.folder), "dtype": options.dtype}
            report["arrays"] = [asdict(one) for one in arrays]
        if options.chat is not None:
            report["chat"] = str(options.chat)
            report["prompts"] = [asdict(one) for one in compare_prompts(options.chat, options.tokenizer)]
    except BackendError as error:
        print(error, file=sys.stderr)
        return 2
    compared = [*report.get("arrays", []), *report.get("prompts", [])]
    report["agrees"] = bool(compared) and all(one["agrees"] for one in compared)
    print(json.dumps(report, indent=2) if options.json else _text(report))
    return 0 if report["agrees"] else 1


def _text(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = []
    for one in report.get("arrays", []):
        limit = f"median cosine {one['median_cosine']:.6f}, at least {MIN_COSINE}"
        if one["tolerance"] is not None:
            limit = f"tolerance {one['tolerance']:g}"
        mark = "" if one["agrees"] else "  DIFFERS"
        lines.append(f"{one['name']:16} {one['largest']:.3g}  {limit}{mark}")
    for one in report.get("prompts", []):
        place = one["first_difference"]
        verdict = "equal" if one["agrees"] else f"DIFFERS from id {place} on"
        lines.append(f"{one['name']:28} {one['num_ids']:6} ids  {verdict}")
    return "\n".join([*lines, "agrees" if report["agrees"] else "differs"])


if __name__ == "__main__":
    sys.exit(main())
