"""What a session is told of servers: a list that is fixed at its start, and what is not in it, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from k3agent.tools.mcp import catalog
from k3agent.tools.mcp.fleet import Fleet, frozen_specs
from k3agent.tools.mcp.oauth import TokenStore
from k3agent.tools.mcp.server import State
from k3agent.types import ServerSpec, ToolSpec

GIT = ServerSpec(name="git", command="prog-git")
WEB = ServerSpec(name="web", url="https://example.org/mcp")
OFF = ServerSpec(name="off", command="prog", is_enabled=False)


def tool(name: str, text: str = "") -> dict[str, Any]:
    return {"name": name, "description": text, "inputSchema": {"type": "object", "properties": {}}}


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(
        (GIT, WEB, OFF),
        environ={},
        cwd=tmp_path,
        home=tmp_path,
        tokens=lambda name: TokenStore(load=lambda: "", save=lambda text: None),
    )


def come(fleet: Fleet, name: str, *tools: dict[str, Any]) -> None:
    """The server is there."""
    server = fleet.servers[name]
    server.tools = catalog.listed(name, tools)
    server.state = State.READY


def names(specs: list[ToolSpec]) -> list[str]:
    return [spec.name for spec in specs]


def test_without_servers_nothing_is_added(tmp_path: Path) -> None:
    assert frozen_specs((), tmp_path) == []
    assert frozen_specs((OFF,), tmp_path) == []


def test_the_list_of_a_session_holds_what_is_known_and_fits(tmp_path: Path) -> None:
    assert names(frozen_specs((GIT, WEB, OFF), tmp_path)) == ["mcp"]
    catalog.remember(tmp_path, GIT, [tool("status"), tool("log", "x" * 3000)])
    assert names(frozen_specs((GIT, WEB), tmp_path)) == ["mcp", "mcp__git__log", "mcp__git__status"]
    assert names(frozen_specs((GIT, WEB), tmp_path, 1000)) == ["mcp"]
    first = frozen_specs((GIT, WEB), tmp_path)
    assert first == frozen_specs((GIT, WEB), tmp_path)
    assert "git, web" in first[0].description


def test_late_tools_are_told_once_and_again_when_the_model_cannot_read_it_any_more(
    fleet: Fleet, tmp_path: Path
) -> None:
    catalog.remember(tmp_path, GIT, [tool("status"), tool("log")])
    specs = frozen_specs((GIT, WEB), tmp_path)
    assert fleet.late(specs, ()) == []
    come(fleet, "git", tool("status"), tool("log"))
    assert fleet.late(specs, ()) == []
    come(fleet, "git", tool("status"), tool("log", "now with words"), tool("push"))
    (told,) = fleet.late(specs, ())
    assert "push" in told and "now with words" in told and "\nstatus\n" not in told
    assert fleet.late(specs, {told}) == []
    assert fleet.late(specs, {"something else"}) == [told]
    come(fleet, "web", tool("search"))
    assert len(fleet.late(specs, {told})) == 1
    # A session that has no way to call them is not told.
    assert fleet.late([spec for spec in specs if spec.name != "mcp"], ()) == []


def test_very_many_late_tools_are_named_alone(fleet: Fleet, tmp_path: Path) -> None:
    come(fleet, "git", *(tool(f"tool{number}", "x" * 3000) for number in range(100)))
    (told,) = fleet.late(frozen_specs((GIT,), tmp_path), ())
    assert "tool99" in told and len(told) < 5000


def test_tools_of_servers_that_were_taken_away_say_so(fleet: Fleet) -> None:
    specs = [ToolSpec(name=name, description="", parameters={}) for name in ("mcp", "mcp__gone__x", "read")]
    assert set(fleet.tools_for(specs)) == {"mcp", "mcp__gone__x"}
    assert type(fleet.tools_for(specs)["mcp__gone__x"]).__name__ == "GoneTool"
