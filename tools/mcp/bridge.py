"""Foreign tools as tools of ours. A call is an access of its own kind, which asks unless a rule allows it.

Tools that are known when a session starts are in its list under names of their own. All others, also those of
a server that comes later, are reached through the one tool `mcp`: a session's list never changes.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any, Protocol

from pydantic import ConfigDict, Field

from k3agent.errors import ToolError
from k3agent.prompts.loader import load
from k3agent.safety.images import COMMON, image_type
from k3agent.safety.visible import reveal
from k3agent.tools.base import Access, Args, ToolContext, ToolOutput
from k3agent.tools.mcp.catalog import Listed, tool_name
from k3agent.tools.specs import schema
from k3agent.tools.support.truncate import one_line
from k3agent.types import ImagePart, JsonObject, ToolSpec

MAX_TEXT_CHARS = 400_000
MAX_IMAGES = 8
MAX_IMAGE_BYTES = 8 * 1024 * 1024
BRIDGE = "mcp"


class Servers(Protocol):
    """What the tools need of the servers (fleet.py)."""

    def names(self) -> list[str]: ...

    async def tools_of(self, server: str) -> tuple[Listed, ...]: ...

    async def call(self, server: str, tool: str, arguments: JsonObject, ctx: ToolContext) -> JsonObject: ...


class AnyArgs(Args):
    """The server checks its own arguments."""

    model_config = ConfigDict(extra="allow", frozen=True)


class ForeignTool:
    """A tool of a server, under its own name."""

    args: type[Args] = AnyArgs
    # What it does is not known: calls wait for each other, and files are saved before.
    is_read_only = False

    def __init__(self, listed: Listed, servers: Servers) -> None:
        self.name = listed.spec.name
        self._listed = listed
        self._servers = servers

    def describe(self, args: AnyArgs) -> str:
        return _described(self._listed.server, self._listed.tool, _values(args))

    def access(self, args: AnyArgs, ctx: ToolContext) -> Access:
        return Access(calls=self.name)

    async def run(self, args: AnyArgs, ctx: ToolContext) -> ToolOutput:
        found = self._listed
        return output_of(await self._servers.call(found.server, found.tool, _values(args), ctx))


class GoneTool:
    """A tool that a session was started with, of a server that is not configured any more."""

    args: type[Args] = AnyArgs
    is_read_only = True

    def __init__(self, name: str) -> None:
        self.name = name

    def describe(self, args: AnyArgs) -> str:
        return self.name

    def access(self, args: AnyArgs, ctx: ToolContext) -> Access:
        return Access()

    async def run(self, args: AnyArgs, ctx: ToolContext) -> ToolOutput:
        raise ToolError(f"{self.name} is not here any more: its MCP server is not configured. Do without it.")


class BridgeArgs(Args):
    server: str = Field(description="The MCP server.")
    tool: str = Field(default="", description="The server's own name of the tool. Empty: list its tools.")
    arguments: str = Field(default="{}", description="The tool's arguments, a JSON object as text.")


class BridgeTool:
    """Any tool of any configured server, by name."""

    name = BRIDGE
    args: type[Args] = BridgeArgs
    is_read_only = False

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def describe(self, args: BridgeArgs) -> str:
        if not args.tool:
            return one_line(f"list the tools of the MCP server {args.server}")
        return _described(args.server, args.tool, args.arguments)

    def access(self, args: BridgeArgs, ctx: ToolContext) -> Access:
        if args.server not in self._servers.names():
            known = ", ".join(self._servers.names()) or "none"
            raise ToolError(f"there is no MCP server {args.server!r:.80}. Configured: {known}.")
        return Access(calls=tool_name(args.server, args.tool)) if args.tool else Access()

    async def run(self, args: BridgeArgs, ctx: ToolContext) -> ToolOutput:
        if not args.tool:
            return ToolOutput(text=listing(await self._servers.tools_of(args.server)))
        try:
            arguments = json.loads(args.arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise ToolError(f"arguments is no JSON: {error}. Give an object as text.") from error
        if not isinstance(arguments, dict):
            raise ToolError("arguments must be a JSON object as text.")
        return output_of(await self._servers.call(args.server, args.tool, arguments, ctx))


def bridge_spec(servers: list[str]) -> ToolSpec:
    """The bridge as the model is told of it: fixed when a session starts."""
    text = load("mcp/bridge").strip().replace("{servers}", ", ".join(servers))
    return ToolSpec(name=BRIDGE, description=text, parameters=schema(BridgeArgs, False))


def listing(tools: tuple[Listed, ...]) -> str:
    """Tools with their schemas, for a model that was not told of them before."""
    rows = [
        f"{item.tool}\n{item.spec.description}\narguments: "
        + json.dumps(item.spec.parameters, ensure_ascii=False)
        for item in tools
    ]
    return "\n\n".join(rows) or "The server has no tools."


def _values(args: AnyArgs) -> JsonObject:
    return dict(args.model_extra or {})


def _described(server: str, tool: str, arguments: Any) -> str:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return one_line(f"{server}: {tool} {text}")


# --- results ------------------------------------------------------------------------------------------------


def output_of(result: JsonObject) -> ToolOutput:
    """A result of `tools/call`, bounded. Raises ToolError where it is an error."""
    texts: list[str] = []
    images: list[ImagePart] = []
    content = result.get("content")
    for block in content if isinstance(content, list) else []:
        if not isinstance(block, dict):
            continue
        image = _image(block) if block.get("type") == "image" and len(images) < MAX_IMAGES else None
        if image is not None:
            images.append(image)
        else:
            texts.append(_text(block))
    if not texts and not images and result.get("structuredContent") is not None:
        texts.append(json.dumps(result["structuredContent"], ensure_ascii=False, indent=1))
    text = reveal("\n".join(part for part in texts if part))
    if len(text) > MAX_TEXT_CHARS:
        text = f"{text[:MAX_TEXT_CHARS]}\n[... {len(text) - MAX_TEXT_CHARS} characters left out]"
    text = text.encode("utf-8", "replace").decode()
    if result.get("isError") is True:
        raise ToolError(text or "the tool reports an error and says nothing of it")
    return ToolOutput(text=text, images=tuple(images))


def _text(block: JsonObject) -> str:
    """A part of a result in words."""
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind == "resource":
        resource = block.get("resource")
        resource = resource if isinstance(resource, dict) else {}
        place = str(resource.get("uri", ""))[:300]
        if isinstance(resource.get("text"), str):
            return f"[resource {place}]\n{resource['text']}"
        return f"[resource {place}: {len(str(resource.get('blob', '')))} characters of base64, not shown]"
    if kind == "resource_link":
        return f"[resource {str(block.get('uri', ''))[:300]}: {str(block.get('name', ''))[:200]}]"
    return f"[{str(kind)[:40]} content, not shown]"


def _image(block: JsonObject) -> ImagePart | None:
    mime, data = block.get("mimeType"), block.get("data")
    if not isinstance(mime, str) or not isinstance(data, str) or len(data) > MAX_IMAGE_BYTES * 4 // 3 + 4:
        return None
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    return ImagePart(mime=mime, data=content) if mime in COMMON and image_type(content) == mime else None
