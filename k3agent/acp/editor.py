"""Files through the editor, so that buffers which are not saved yet count.

The tools `read`, `edit`, `write` and `patch` are wrapped: before a call the editor is asked for the files
that it touches, and what the call writes is given to the editor, which changes its buffer and saves. What an
editor does not answer is done on the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from k3agent.errors import ToolError
from k3agent.jsonrpc import Peer, RpcClosed, RpcError
from k3agent.tools.base import Access, Args, Tool, ToolContext, ToolOutput
from k3agent.tools.support import textio
from k3agent.tools.support.freshness import digest
from k3agent.types import JsonObject, SessionId

log = logging.getLogger(__name__)

WRAPPED = ("read", "edit", "write", "patch")
MAX_FILE_BYTES = 4 * 1024 * 1024
ANSWER_S = 15.0


@dataclass(slots=True)
class Held:
    """What the editor holds during one call: `texts` by path where they differ from the disk; `written`
    waits to be given to it.
    """

    can_write: bool
    texts: dict[Path, bytes] = field(default_factory=dict)
    written: dict[Path, bytes] = field(default_factory=dict)

    def read(self, path: Path) -> bytes | None:
        return self.written.get(path, self.texts.get(path))

    def write(self, path: Path, data: bytes) -> bool:
        if not self.can_write or len(data) > MAX_FILE_BYTES:
            return False
        try:
            data.decode("utf-8")
        except UnicodeDecodeError:
            return False
        # The protocol carries text: a mark of byte order would be lost on the way.
        if data.startswith(b"\xef\xbb\xbf"):
            return False
        self.written[path] = data
        return True


class Editor:
    """The files of one session's editor. `session` is known when the first call runs."""

    def __init__(self, peer: Peer, *, can_read: bool, can_write: bool) -> None:
        self._peer = peer
        self._can_read = can_read
        self._can_write = can_write
        self.session_id = SessionId("")

    def wrap(self, tools: Mapping[str, Tool[Any]]) -> dict[str, Tool[Any]]:
        """The tools, those for files through the editor."""
        if not (self._can_read or self._can_write):
            return dict(tools)
        return {name: ThroughEditor(tool, self) if name in WRAPPED else tool for name, tool in tools.items()}

    async def hold(self, paths: Iterable[Path]) -> Held:
        held = Held(can_write=self._can_write)
        for path in paths if self._can_read else ():
            data = await self._unsaved(path)
            if data is not None:
                held.texts[path] = data
        return held

    async def _unsaved(self, path: Path) -> bytes | None:
        """The file as the editor has it, in its encoding; None where that is what is on the disk."""
        disk = _disk_text(path)
        if disk is None:
            return None
        params: JsonObject = {"sessionId": self.session_id, "path": str(path)}
        answer = await self._request("fs/read_text_file", params)
        text = answer.get("content") if answer is not None else None
        if not isinstance(text, str) or textio.normalise(text) == disk.view:
            return None
        if "\r\n" in disk.text and "\r" not in text:
            text = text.replace("\n", "\r\n")
        try:
            return textio.encode(text, disk, str(path))
        except ToolError:
            return text.encode("utf-8", "replace")

    async def give(self, held: Held) -> list[Path]:
        """Hand over what was written. The files that the editor has changed on saving, by a formatter say."""
        changed: list[Path] = []
        for path, data in held.written.items():
            before = _bytes_of(path)
            params: JsonObject = {
                "sessionId": self.session_id,
                "path": str(path),
                "content": data.decode("utf-8"),
            }
            await self._request("fs/write_text_file", params)
            after = _bytes_of(path)
            if after == data:
                continue
            if after == before:
                # It was refused, or stands in a buffer alone: commands would not see it.
                textio.write_atomic(path, data, str(path))
            else:
                changed.append(path)
        return changed

    async def _request(self, method: str, params: JsonObject) -> JsonObject | None:
        try:
            answer = await self._peer.request(method, params, timeout_s=ANSWER_S)
        except (RpcClosed, RpcError, TimeoutError) as error:
            log.info("%s of %s failed, the disk is used: %r", method, params["path"], error)
            return None
        return answer if isinstance(answer, dict) else {}


class ThroughEditor:
    """A tool whose files are read from and written through the editor."""

    def __init__(self, tool: Tool[Any], editor: Editor) -> None:
        self.name: str = tool.name
        self.args: type[Args] = tool.args
        self.is_read_only: bool = tool.is_read_only
        self._tool = tool
        self._editor = editor

    def describe(self, args: Any) -> str:
        return self._tool.describe(args)

    def access(self, args: Any, ctx: ToolContext) -> Access:
        return self._tool.access(args, ctx)

    async def run(self, args: Any, ctx: ToolContext) -> ToolOutput:
        access = self._tool.access(args, ctx)
        held = await self._editor.hold((*access.reads, *access.writes, *access.more))
        token = textio.buffers.set(held)
        try:
            output = await self._tool.run(args, ctx)
        finally:
            textio.buffers.reset(token)
        changed = await self._editor.give(held)
        for path in changed:
            ctx.freshness.forget(path)
        for path in held.written:
            if path not in changed:
                ctx.freshness.record(path, digest(held.written[path]))
        notes = [
            f"[the editor changed {path.name} on saving: read it again before the next edit]"
            for path in changed
        ]
        if not notes:
            return output
        return replace(output, text="\n".join([output.text, *notes]))


def _bytes_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _disk_text(path: Path) -> textio.TextFile | None:
    try:
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            return None
        return textio.load(path, str(path))
    except (OSError, ToolError):
        return None
