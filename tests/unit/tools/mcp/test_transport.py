"""Programs that end in other ways than they should."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from k3agent.tools.mcp import transport
from k3agent.tools.support.processes import SessionLog
from k3agent.types import ServerSpec


async def test_a_program_that_closes_its_output_and_stays_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "SILENT_END_S", 0.2)
    ended: asyncio.Queue[str] = asyncio.Queue()
    spec = ServerSpec(name="odd", command="sh", args=("-c", "exec >&-; exec sleep 600"))
    program = transport.ProgramTransport(
        spec, os.environ, tmp_path, lambda _: None, ended.put_nowait, SessionLog(tmp_path)
    )
    await program.start()
    assert "closed its output" in await asyncio.wait_for(ended.get(), 60)
    await program.aclose()
