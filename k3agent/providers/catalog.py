"""What `GET /models` says about a model and its server.

The window, the efforts and the kind of server are read from there; every field may be missing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from k3agent.providers.base import MAX_OUTPUT_TOKENS, ModelInfo, Profile
from k3agent.providers.dialects import BUNDLED, DIALECTS, OPEN, Dialect
from k3agent.types import Effort, JsonObject

_WINDOW_FIELDS = ("context_length", "max_model_len", "context_window", "max_context_length")


def read_catalog(
    info: ModelInfo,
    dialect: Dialect,
    data: JsonObject | None,
    props: JsonObject | None,
    has_fixed_window: bool,
) -> tuple[ModelInfo, Dialect]:
    """`info` and `dialect` with what the endpoint knows better. `props` is llama.cpp's own page."""
    entries = data.get("data") if data else None
    entries = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    if not entries:
        return info, dialect
    entry = next((entry for entry in entries if entry.get("id") == info.model), None)
    if not info.model:
        entry = entries[0]
        info = replace(info, model=str(entry.get("id", "")))
    dialect = _refined(dialect, entry or entries[0])
    if entry is None:
        return info, dialect
    window = _window(entry, props)
    if window and not has_fixed_window:
        info = replace(info, context_window=window)
    info = _with_efforts(info, entry.get("think_efforts"))
    return _with_profile(info, entry.get("k3agent")), dialect


def _refined(dialect: Dialect, entry: JsonObject) -> Dialect:
    if dialect is not OPEN:
        return dialect
    owner = str(entry.get("owned_by", "")).lower()
    if owner == "k3agent":
        return BUNDLED
    return DIALECTS[owner] if owner in {"vllm", "sglang", "llamacpp"} else dialect


def _window(entry: JsonObject, props: JsonObject | None) -> int | None:
    settings = props.get("default_generation_settings") if props else None
    meta = entry.get("meta")
    candidates: list[Any] = [settings.get("n_ctx") if isinstance(settings, dict) else None]
    candidates += [entry.get(name) for name in _WINDOW_FIELDS]
    candidates += [meta.get(name) if isinstance(meta, dict) else None for name in ("n_ctx", "n_ctx_train")]
    return next(
        (int(value) for value in candidates if isinstance(value, int | float) and value >= 1024), None
    )


def _with_efforts(info: ModelInfo, efforts: Any) -> ModelInfo:
    if not isinstance(efforts, dict):
        return info
    valid = tuple(Effort(name) for name in efforts.get("valid_efforts") or () if name in set(Effort))
    if not valid:
        return info
    default = efforts.get("default_effort")
    return replace(
        info, efforts=valid, default_effort=Effort(default) if default in valid else info.default_effort
    )


def _with_profile(info: ModelInfo, own: Any) -> ModelInfo:
    """`k3agent serve` says of weights that were trained on the compact prompt that they were."""
    if not isinstance(own, dict) or own.get("profile") != Profile.COMPACT.value:
        return info
    is_said = info.max_output_tokens != MAX_OUTPUT_TOKENS
    return replace(
        info,
        profile=Profile.COMPACT,
        efforts=(Effort.LOW,),
        default_effort=Effort.LOW,
        reads_instructions=own.get("instructions") is True,
        # An eighth of the window, as for the embedded model: it has no long answers to give.
        max_output_tokens=info.max_output_tokens if is_said else info.context_window // 8,
    )
