"""The installed UI in tmux: what a journey types and sees."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

PATIENCE_S = 90.0
PROGRAM = "import sys; from k3agent.cli import main; sys.exit(main())"


class Pane:
    """The UI in a tmux server of its own."""

    def __init__(self, root: Path, url: str) -> None:
        self.num_started = 0
        self.root, self.url = root, url
        self.workspace = root / "ws"
        self.workspace.mkdir(exist_ok=True)
        self.editor = root / "editor"
        self.editor.write_text('#!/bin/sh\nprintf "written in the editor" > "$1"\n')
        self.editor.chmod(0o755)

    def tmux(self, *words: str) -> str:
        argv = ["tmux", "-S", str(self.socket), "-f", "/dev/null", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, f"tmux {words}: {done.stderr}"
        return done.stdout

    @property
    def socket(self) -> Path:
        # A new server each time: one that is just ending would take the new session with it.
        return self.root / f"tmux{self.num_started}"

    def start(self, *words: str, size: tuple[int, int] = (100, 32), program: str = PROGRAM) -> None:
        self.num_started += 1
        environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root / "user"),
            "K3AGENT_HOME": str(self.root / "home"),
            "OPENAI_BASE_URL": self.url,
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "LANG": "C.UTF-8",
            "TERM": "tmux-256color",
            "VISUAL": str(self.editor),
        }
        command = ["env", "-i", *(f"{name}={value}" for name, value in environ.items())]
        command += [sys.executable, "-P", "-c", program, *words]
        width, height = map(str, size)
        # The shell stays, so that what is printed at the end can be read.
        line = f"{shlex.join(command)}; echo ended with $?; exec cat"
        self.tmux("new-session", "-d", "-x", width, "-y", height, "-c", str(self.workspace), line)
        self.tmux("set-option", "-g", "status", "off")

    @property
    def shown(self) -> str:
        return self.tmux("capture-pane", "-p")

    def until(self, *texts: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not all(text in self.shown for text in texts):
            assert time.monotonic() < deadline, f"{texts} did not come:\n{self.shown}"
            time.sleep(0.1)

    def until_gone(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while text in self.shown:
            assert time.monotonic() < deadline, f"{text} stayed:\n{self.shown}"
            time.sleep(0.1)

    def type(self, text: str) -> None:
        self.tmux("send-keys", "-l", text)

    def keys(self, *names: str) -> None:
        self.tmux("send-keys", *names)

    def stop(self) -> None:
        subprocess.run(["tmux", "-S", str(self.socket), "kill-server"], capture_output=True, check=False)

    def pid(self) -> int:
        """The UI's own process, a child of the pane's shell."""
        shell = int(self.tmux("display-message", "-p", "#{pane_pid}"))
        children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        return int(children[0])
