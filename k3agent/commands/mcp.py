"""`k3agent mcp`: servers of foreign tools, listed with their state, tried, added, removed, signed in to."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3agent.agent import foreign
from k3agent.commands.actions import find_action
from k3agent.config.paths import data_home
from k3agent.config.servers import (
    Configured,
    check_name,
    load_servers,
    project_files,
    user_file,
    write_server,
)
from k3agent.config.settings import load_settings
from k3agent.errors import ConfigError, ToolError, did_you_mean
from k3agent.headless.arguments import Parser
from k3agent.logs import start_logging
from k3agent.safety.environment import child_environ
from k3agent.safety.visible import clean
from k3agent.types import JsonObject, ServerSpec

if TYPE_CHECKING:
    from k3agent.tools.mcp.server import Server


def mcp(argv: Sequence[str]) -> int:
    """`k3agent mcp list|test|add|remove|login|logout|serve`."""
    actions = {
        "list": _list,
        "test": _test,
        "add": _add,
        "remove": _remove,
        "login": _login,
        "logout": _logout,
        "serve": _serve,
    }
    action, rest = find_action("mcp", "servers of foreign tools (MCP)", argv, actions)
    return action(rest)


# --- looking ------------------------------------------------------------------------------------------------


def _list(argv: Sequence[str]) -> int:
    parser = Parser("mcp list", "The configured servers and their state: each is started, asked and ended.")
    parser.add_argument("--json", action="store_true", help="one JSON array")
    parser.add_argument("--offline", action="store_true", help="start none of them")
    args = parser.parse(argv)
    found = _configured()
    servers = asyncio.run(_connected(found.servers, offline=args.offline))
    if args.json:
        print(json.dumps([_row(server) for server in servers], ensure_ascii=False, indent=1))
        return 0
    for server in servers:
        spec = server.spec
        what = spec.url or " ".join((spec.command, *spec.args))
        state = "" if args.offline else f"  {server.explained}"
        count = len(server.tools)
        tools = f", {count} tool{'' if count == 1 else 's'}" if count else ""
        print(clean(f"{spec.name:<16}{state}{tools}  {what[:100]}  ({spec.origin})"))
    if not servers:
        print("No MCP servers. `k3agent mcp add NAME -- COMMAND` adds one.", file=sys.stderr)
    for path in found.untrusted:
        print(f"{path} is not obeyed: look at it, then `k3agent config trust`.")
    return 0


def _test(argv: Sequence[str]) -> int:
    parser = Parser("mcp test", "Start one server, or all, and show what each offers. 1 where one fails.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="default: all")
    parser.add_argument("--json", action="store_true", help="one JSON array, tools with their schemas")
    args = parser.parse(argv)
    servers = _configured().servers if args.name is None else (_named(args.name),)
    tested = asyncio.run(_connected(servers, offline=False))
    if args.json:
        rows = [{**_row(server), "tools": [_tool_row(item) for item in server.tools]} for server in tested]
        print(json.dumps(rows, ensure_ascii=False, indent=1))
    else:
        for server in tested:
            print(
                clean(f"{server.spec.name}: {server.explained}{f' ({server.info})' if server.info else ''}")
            )
            for item in server.tools:
                print(clean(f"  {item.spec.name}"))
    return int(any(server.state.value not in ("ready", "off") for server in tested))


def _row(server: Server) -> JsonObject:
    spec = server.spec
    return {
        "name": spec.name,
        "status": server.state.value,
        "detail": server.detail,
        "tools": len(server.tools),
        "server": server.info,
        "command": [spec.command, *spec.args] if spec.command else None,
        "url": spec.url or None,
        "origin": spec.origin,
    }


def _tool_row(item: Any) -> JsonObject:
    spec = item.spec
    return {"name": spec.name, "description": spec.description, "parameters": spec.parameters}


async def _connected(servers: Sequence[ServerSpec], *, offline: bool) -> list[Server]:
    """The servers after each had its time to start; all are ended."""
    from k3agent.tools.mcp.fleet import Fleet  # lazy: pydantic and the tools

    home = data_home(os.environ)
    start_logging(home, os.environ)
    fleet = Fleet(
        servers,
        environ=child_environ(os.environ),
        cwd=Path.cwd(),
        home=home,
        tokens=lambda name: foreign.token_store(home, name),
        with_disabled=True,
    )
    found = list(fleet.servers.values())
    if offline:
        return found
    fleet.start()
    try:
        for server in found:
            try:
                await server.ready()
            except ToolError:
                continue  # its state says why
        return found
    finally:
        await fleet.aclose()


def _configured() -> Configured:
    settings = load_settings()
    return load_servers(
        os.environ,
        Path.cwd().absolute(),
        data_home(os.environ),
        tables=settings.mcp,
        files=settings.mcp_files,
    )


def _named(name: str) -> ServerSpec:
    servers = {server.name: server for server in _configured().servers}
    if name not in servers:
        known = ", ".join(servers) or "none"
        raise ConfigError(f"no MCP server {name!r}.{did_you_mean(name, servers)} Configured: {known}.")
    return servers[name]


# --- changing -----------------------------------------------------------------------------------------------


def _add(argv: Sequence[str]) -> int:
    about = "Add a server: k3agent mcp add NAME -- COMMAND ARGS..., or k3agent mcp add NAME --url URL."
    parser = Parser("mcp add", about)
    add = parser.add_argument
    add("name", metavar="NAME", help="letters, digits, - and _")
    add("--url", metavar="URL", help="the server's address (streamable HTTP)")
    add("--sse", action="store_true", help="with --url: the transport from before 2025-03-26")
    add("--env", action="append", default=[], metavar="K=V", help="a variable for the program; repeatable")
    add("--header", action="append", default=[], metavar="K: V", help="a header for the address; repeatable")
    add("--client-id", metavar="ID", help="for servers where programs cannot register themselves")
    add("--project", action="store_true", help="into .mcp.json of this repository instead of your own file")
    words, command = list(argv), []
    if "--" in words:
        at = words.index("--")
        words, command = words[:at], words[at + 1 :]
    args = parser.parse(words)
    if bool(args.url) == bool(command):
        parser.error("give either -- COMMAND ARGS... or --url URL.")
    if args.sse and not args.url:
        parser.error("--sse is a kind of --url.")
    entry: JsonObject = {"command": command[0], "args": command[1:]} if command else {}
    if args.url:
        entry = {"type": "sse" if args.sse else "http", "url": args.url}
        if args.client_id:
            entry["client_id"] = args.client_id
    for key, given, sign in (("env", args.env, "="), ("headers", args.header, ":")):
        if given:
            entry[key] = _pairs(parser, given, sign)
    path = _file(is_project=args.project)
    check_name(args.name, str(path))
    if args.url and not args.url.startswith(("http://", "https://")):
        parser.error(f"--url {args.url}: it is no http or https address.")
    was_there = write_server(path, args.name, entry)
    done = "changed" if was_there else "added"
    print(f"{args.name} is {done} in {path}. `k3agent mcp test {args.name}` tries it.")
    if args.project:
        print("It counts here once the folder is trusted: `k3agent config trust`.")
    return 0


def _pairs(parser: Parser, given: Sequence[str], sign: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, has_sign, value = text.partition(sign)
        if not has_sign or not name.strip():
            parser.error(f"{text!r} must be NAME{sign}VALUE.")
        found[name.strip()] = value.strip() if sign == ":" else value
    return found


def _file(*, is_project: bool) -> Path:
    if not is_project:
        return user_file(os.environ)
    return project_files(Path.cwd().absolute())[0]


def _remove(argv: Sequence[str]) -> int:
    parser = Parser("mcp remove", "Remove a server from your own file, or from .mcp.json of this repository.")
    parser.add_argument("name", metavar="NAME", help="as k3agent mcp list shows it")
    parser.add_argument("--project", action="store_true", help="from .mcp.json of this repository")
    args = parser.parse(argv)
    path = _file(is_project=args.project)
    if not write_server(path, args.name, None):
        origin = _named(args.name).origin
        raise ConfigError(
            f"{path} has no server {args.name!r}; it is configured in {origin}: take it out there"
        )
    print(f"{args.name} is removed from {path}.")
    return 0


def _login(argv: Sequence[str]) -> int:
    parser = Parser("mcp login", "Sign in at a server with an address (OAuth): a browser page asks you.")
    parser.add_argument("name", metavar="NAME", help="as k3agent mcp list shows it")
    parser.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
    args = parser.parse(argv)
    spec = _named(args.name)
    if not spec.url:
        parser.error(f"{args.name} is a program, which has no login; give it its key with --env.")
    from k3agent.tools.mcp.oauth import login  # lazy: only here

    def show(address: str) -> None:
        print(f"Open this page to sign in:\n{address}", flush=True)
        if not args.no_browser:
            import webbrowser  # lazy: only here

            webbrowser.open(address)

    start_logging(data_home(os.environ), os.environ)
    asyncio.run(login(spec, foreign.token_store(data_home(os.environ), spec.name), show))
    print(f"Signed in to {spec.name}.")
    return 0


def _logout(argv: Sequence[str]) -> int:
    parser = Parser("mcp logout", "Forget the login at a server.")
    parser.add_argument("name", metavar="NAME", help="as k3agent mcp list shows it")
    args = parser.parse(argv)
    store = foreign.token_store(data_home(os.environ), args.name)
    if not store.load():
        parser.error(f"there is no login for {args.name!r}.")
    store.save("")
    print(f"The login at {args.name} is forgotten.")
    return 0


def _serve(argv: Sequence[str]) -> int:
    from k3agent.commands.mcp_serve import serve  # lazy: the agent

    return serve(argv)
