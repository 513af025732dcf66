"""What `GET /models` says about a model and its server.

The window, the efforts and the kind of server are read from there; every field may be missing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from k3agent.providers.base import ModelInfo
from k3agent.providers.dialects import DIALECTS, OPEN, Dialect
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
    return _with_efforts(info, entry.get("think_efforts")), dialect


def _refined(dialect: Dialect, entry: JsonObject) -> Dialect:
    owner = str(entry.get("owned_by", "")).lower()
    return (
        DIALECTS.get(owner, dialect)
        if dialect is OPEN and owner in {"vllm", "sglang", "llamacpp"}
        else dialect
    )


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
