"""Servers of foreign tools (MCP) that an editor hands to a session, in the protocol's form."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from k3agent.acp.fields import invalid, list_of, text_of
from k3agent.config.servers import server_of
from k3agent.errors import ConfigError
from k3agent.types import JsonObject, ServerSpec

ORIGIN = "the editor"
_ODD = re.compile(r"[^A-Za-z0-9-]+")


def read_servers(entries: Sequence[Any], environ: Mapping[str, str]) -> list[ServerSpec]:
    """The servers. Their names are for people: what cannot be part of a tool's goes."""
    found: dict[str, ServerSpec] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            raise invalid(f"an MCP server must be an object, not {entry!r:.80}")
        name = _ODD.sub("-", text_of(entry, "name")).strip("-")[:39].strip("-") or "server"
        try:
            # What it says is meant as it stands: no variables are put in.
            found[name] = server_of(name, _table(entry), ORIGIN, environ, expands=False)
        except ConfigError as error:
            raise invalid(str(error)) from error
    return list(found.values())


def merged(configured: Sequence[ServerSpec], handed: Sequence[ServerSpec]) -> tuple[ServerSpec, ...]:
    """Those of the editor count where both have one name."""
    found = {server.name: server for server in (*configured, *handed)}
    return tuple(found[name] for name in sorted(found))


def _table(entry: JsonObject) -> JsonObject:
    """The same in the form of a file."""
    kind = entry.get("type")
    if kind in ("http", "sse"):
        return {"type": kind, "url": text_of(entry, "url"), "headers": _pairs(entry, "headers")}
    return {"command": text_of(entry, "command"), "args": list_of(entry, "args"), "env": _pairs(entry, "env")}


def _pairs(entry: JsonObject, key: str) -> dict[str, str]:
    pairs = list_of(entry, key)
    if not all(isinstance(pair, dict) for pair in pairs):
        raise invalid(f"{key} of an MCP server must be a list of objects with name and value")
    return {text_of(pair, "name"): text_of(pair, "value") for pair in pairs}
