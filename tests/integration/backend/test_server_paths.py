"""No text of a request is ever taken for a path: the server opens nothing that a request names."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.serving import Running

NAMES = ("/etc/passwd", "../../../../etc/passwd", "file:///etc/passwd", "%2e%2e%2fetc%2fpasswd", "~/.netrc")
SERVER = Path(__file__).resolve().parents[3] / "backend" / "server"
# What could open a file or start a program; text goes in and out by the event loop alone.
DOORS = {
    "os",
    "io",
    "pathlib",
    "shutil",
    "tempfile",
    "subprocess",
    "glob",
    "sqlite3",
    "mmap",
    "fileinput",
    "socket",
}


def chat(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, **more}


def image(url: str) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": url}}
    return chat(messages=[{"role": "user", "content": [part]}])


@pytest.mark.parametrize("name", NAMES)
def test_names_of_files_are_only_names(server: Running, name: str) -> None:
    client = httpx.Client(base_url=server.url, headers=server.headers, timeout=60)
    model = client.get("/v1/models").json()["data"][0]["id"]
    said = [
        client.post("/v1/chat/completions", json={**image(name), "model": model}),
        client.post("/v1/chat/completions", json=chat(model=name)),
        client.get(f"/v1/files/{name}"),
        client.get(f"/v1/files/{name}/content"),
        client.delete(f"/v1/files/{name}"),
        client.get(f"/v1/{name}"),
        client.post("/v1/files", files={"file": (name, b"text of mine")}, data={"purpose": "file-extract"}),
    ]
    *refused, kept = said
    assert all(400 <= response.status_code < 500 for response in refused), [r.text[:200] for r in refused]
    assert not any("root:" in response.text for response in said)
    if kept.status_code == 200:
        number = kept.json()["id"]
        assert client.get(f"/v1/files/{number}/content").text == "text of mine"
        client.delete(f"/v1/files/{number}")


@pytest.mark.parametrize("path", sorted(SERVER.glob("*.py")), ids=lambda path: path.stem)
def test_the_routes_have_no_door_to_the_disk(path: Path) -> None:
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    allowed = {"socket"} if path.stem == "connection" else set()
    assert not {name.partition(".")[0] for name in names} & (DOORS - allowed)
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not {call.id for call in called if isinstance(call, ast.Name)} & {
        "open",
        "exec",
        "eval",
        "compile",
        "__import__",
    }
