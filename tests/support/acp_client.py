"""An editor for tests: the protocol's own Python client, talking to a real `k3agent acp` process."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acp import PROTOCOL_VERSION, RequestError, spawn_agent_process
from acp.connection import StreamEvent
from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
    FileSystemCapabilities,
    ReadTextFileResponse,
    RequestPermissionResponse,
    WriteTextFileResponse,
)

from support.headless import Bench


@dataclass
class Editor:
    """`buffers` are unsaved texts by path; `choose` picks an option's id for a permission, None cancels."""

    choose: Callable[[Any, list[Any]], str | None] = lambda call, options: options[0].option_id
    buffers: dict[str, str] = field(default_factory=dict)
    saves: bool = True
    words: str = ""
    updates: list[Any] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    read_paths: list[str] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)
    on_update: Callable[[Any], None] = lambda update: None

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        self.updates.append(update)
        self.on_update(update)

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **kwargs: Any
    ) -> RequestPermissionResponse:
        self.asked.append((tool_call, options))
        chosen = self.choose(tool_call, options)
        if chosen is None:
            await asyncio.sleep(3600)
        if chosen == "":
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen))

    async def read_text_file(self, session_id: str, path: str, **kwargs: Any) -> ReadTextFileResponse:
        self.read_paths.append(path)
        if path in self.buffers:
            return ReadTextFileResponse(content=self.buffers[path])
        try:
            return ReadTextFileResponse(content=read(path))
        except OSError as error:
            raise RequestError.resource_not_found(path) from error

    async def write_text_file(
        self, session_id: str, path: str, content: str, **kwargs: Any
    ) -> WriteTextFileResponse:
        self.written[path] = content
        self.buffers.pop(path, None)
        if self.saves:
            write(path, content)
        return WriteTextFileResponse()

    async def create_elicitation(self, message: str, mode: Any, **kwargs: Any) -> Any:
        self.asked.append((message, mode))
        return AcceptElicitationResponse(action="accept", content={"answer": self.words})

    def on_connect(self, conn: Any) -> None:
        pass

    # --- what was seen ---

    def kinds(self) -> list[str]:
        return [update.session_update for update in self.updates]

    def of(self, kind: str) -> list[Any]:
        return [update for update in self.updates if update.session_update == kind]

    def text(self, kind: str = "agent_message_chunk") -> str:
        return "".join(update.content.text for update in self.of(kind))


def read(path: str) -> str:
    return Path(path).read_text()


def write(path: str, content: str) -> None:
    Path(path).write_text(content)


@dataclass
class Line:
    """An open connection."""

    agent: Any
    process: Any
    editor: Editor
    hello: Any


@contextlib.asynccontextmanager
async def connected(
    bench: Bench,
    editor: Editor,
    *flags: str,
    has_files: bool = False,
    has_forms: bool = False,
    has_terminals: bool = False,
    observers: Sequence[Callable[[StreamEvent], None]] = (),
) -> AsyncIterator[Line]:
    """`k3agent acp` with the editor at its other end, initialised."""
    command = [sys.executable, "-m", "k3agent.cli", "acp", "--base-url", bench.url, *flags]
    errors = (bench.root / "acp.err").open("wb")
    with errors:
        async with spawn_agent_process(
            editor,
            command[0],
            *command[1:],
            env=bench.environ,
            cwd=bench.root,
            transport_kwargs={"stderr": errors, "limit": 1 << 26},
            use_unstable_protocol=True,
            observers=list(observers),
        ) as (agent, process):
            hello = await agent.initialize(
                protocol_version=PROTOCOL_VERSION,
                client_capabilities=ClientCapabilities(
                    field_meta={"terminal_output": True} if has_terminals else None,
                    fs=FileSystemCapabilities(read_text_file=has_files, write_text_file=has_files),
                    elicitation=ElicitationCapabilities(form=ElicitationFormCapabilities())
                    if has_forms
                    else None,
                ),
            )
            yield Line(agent, process, editor, hello)
