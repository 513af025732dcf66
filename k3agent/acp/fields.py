"""Reads fields of a message from outside; what is missing or of another kind is an error that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from k3agent.jsonrpc import INVALID_PARAMS, RpcError
from k3agent.safety.paths import is_folder
from k3agent.types import JsonObject


def invalid(message: str) -> RpcError:
    return RpcError(INVALID_PARAMS, message)


def text_of(params: JsonObject, name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise invalid(f"{name} must be a string, not {value!r:.80}")
    return value


def optional_text(params: JsonObject, name: str) -> str | None:
    return None if params.get(name) is None else text_of(params, name)


def list_of(params: JsonObject, name: str) -> list[Any]:
    value = params.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise invalid(f"{name} must be a list, not {value!r:.80}")
    return value


def object_of(params: JsonObject, name: str) -> JsonObject:
    """Lenient on purpose: capabilities that cannot be read are not there."""
    value = params.get(name)
    return value if isinstance(value, dict) else {}


def folder_of(params: JsonObject, name: str) -> Path:
    """An absolute path of a folder that exists."""
    return existing_folder(text_of(params, name), name)


def existing_folder(text: str, name: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise invalid(f"{name} {text!r} must be an absolute path")
    if not is_folder(path):
        raise invalid(f"{name} {text!r} is not a folder")
    return path
