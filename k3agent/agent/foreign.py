"""Servers of foreign tools (MCP) of a session: what of them is fixed at its start, and what comes later.

Without a configured server nothing of it is imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3agent.agent.instructions import SMALL_WINDOW
from k3agent.config.keys import read_key, remove_key, store_key
from k3agent.errors import ConfigError
from k3agent.events import Noticed
from k3agent.providers.base import Profile
from k3agent.safety.environment import child_environ, is_secret_variable
from k3agent.types import JsonObject, Message, Origin, ServerSpec, ToolSpec

if TYPE_CHECKING:
    from k3agent.agent.context import Context
    from k3agent.agent.emitter import Emitter
    from k3agent.agent.options import SessionOptions
    from k3agent.config.settings import Settings
    from k3agent.tools.mcp.fleet import Fleet
    from k3agent.tools.mcp.oauth import TokenStore

# Of the model's window, what tools of servers may take when a session starts.
SHARE = 0.1
# With which the names of foreign tools, and of the one that reaches all others, begin.
PREFIX = "mcp"
# With which prompts/mcp/late.md begins.
LATE_HEAD = "Tools of the MCP server "
SIGNING_HEADERS = ("authorization", "proxy-authorization", "cookie")
CHARS_PER_TOKEN = 3


def servers_of(
    settings: Settings, environ: Mapping[str, str], cwd: Path, home: Path
) -> tuple[tuple[ServerSpec, ...], tuple[str, ...]]:
    """The configured servers, and what to tell the user of those that are not used. Raises ConfigError."""
    from k3agent.config.servers import load_servers  # lazy: json and hashlib, which a plain start has not

    found = load_servers(environ, cwd, home, tables=settings.mcp, files=settings.mcp_files)
    words = tuple(
        f"{path} is not obeyed: look at it, then trust it with `k3agent config trust`"
        for path in found.untrusted
    )
    return found.servers, words


def frozen_specs(options: SessionOptions) -> list[ToolSpec]:
    """What a new session's list of tools gets of servers."""
    info = options.client.info
    if info.profile is Profile.COMPACT:
        return []
    is_alone = options.subtask is not None and options.fleet is None
    if not options.servers or is_alone or info.context_window <= SMALL_WINDOW:
        return []
    from k3agent.tools.mcp.fleet import frozen_specs  # lazy: only with servers

    limit = int(info.context_window * SHARE * CHARS_PER_TOKEN)
    return frozen_specs(options.servers, options.user_home or options.home, limit)


def has_servers(specs: Sequence[ToolSpec]) -> bool:
    """Whether a session's list of tools knows of servers."""
    return any(spec.name.startswith(PREFIX) for spec in specs)


def secret_environ(options: SessionOptions) -> Mapping[str, str]:
    """The environment, with what is secret in the configuration of servers under names that say so: for
    masking.
    """
    found = dict(options.environ)
    for server in options.servers:
        found |= {name: value for name, value in server.env.items() if is_secret_variable(name, value)}
        for name, value in server.headers.items():
            variable = name.replace("-", "_")
            if name.casefold() in SIGNING_HEADERS or is_secret_variable(variable, value):
                # `Bearer TOKEN`: what is said elsewhere is the token alone.
                found[f"{server.name}_{variable}_TOKEN".upper()] = value.rpartition(" ")[2]
    return found


def with_servers(options: SessionOptions, specs: Sequence[ToolSpec], emitter: Emitter) -> SessionOptions:
    """The options with the servers of a session whose list of tools knows of servers. A subagent has those
    of the session that it works for.
    """
    if options.subtask is not None:
        return options
    if not has_servers(specs) or not any(server.is_enabled for server in options.servers):
        return options
    from k3agent.tools.mcp.fleet import Fleet  # lazy: only with servers

    home = options.user_home or options.home
    fleet = Fleet(
        options.servers,
        environ=child_environ(options.environ),
        cwd=options.cwd.resolve(),
        home=home,
        keeps_lists=home == options.home,
        tokens=lambda name: token_store(home, name),
        notify=lambda level, text: emitter.emit(Noticed, level=level, text=text),
    )
    return dataclasses.replace(options, fleet=fleet)


def begin(options: SessionOptions) -> None:
    """Start the servers, in the background: somebody is there to be told of those that fail."""
    if options.fleet is not None:
        options.fleet.start()


def tools_of(fleet: Fleet | None, specs: Sequence[ToolSpec]) -> dict[str, Any]:
    """The tools behind a session's list that are not built in."""
    if fleet is not None:
        return fleet.tools_for(specs)
    gone = [spec.name for spec in specs if spec.name.startswith(PREFIX)]
    if not gone:
        return {}
    from k3agent.tools.mcp.bridge import GoneTool  # lazy: only after servers were taken away

    return {name: GoneTool(name) for name in gone}


def late_tools(fleet: Fleet | None, context: Context, messages: Sequence[Message]) -> list[str]:
    """What the model is to be told of tools that came after the session's start, unless it still reads it: it
    is said again after a compaction, a rewind or a change.
    """
    if fleet is None:
        return []
    fleet.start()
    said = {message.text for message in context.view(messages) if message.origin is Origin.HARNESS}
    return fleet.late(context.tools, said)


def brief_of(text: str) -> str:
    """For people: the first words of what the model is told of late tools; '' for another text."""
    return text.partition(" (")[0] + " are there now" if text.startswith(LATE_HEAD) else ""


async def close(options: SessionOptions) -> None:
    """End the servers that this session has started."""
    if options.fleet is not None and options.subtask is None:
        await options.fleet.aclose()


def states_of(fleet: Fleet | None) -> list[JsonObject]:
    return [] if fleet is None else fleet.states()


def token_store(home: Path, server: str) -> TokenStore:
    """The logins of a server, kept as keys of providers are: in the keyring, or in a file (0600)."""
    from k3agent.tools.mcp.oauth import TokenStore  # lazy: only with servers that want a login

    name = f"mcp:{server}"

    def save(text: str) -> None:
        if text:
            store_key(home, name, "", text)
        else:
            remove_key(home, name)

    def load() -> str:
        try:
            return read_key(home, name)
        except ConfigError:
            return ""

    return TokenStore(load=load, save=save)
