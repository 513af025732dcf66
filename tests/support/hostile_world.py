"""A throw-away home with a workspace, secrets, sockets and a neighbour: what hostile commands are after."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from k3agent.tools.sandbox import later

SECRET = "very secret"
SECRET_FILES = (
    *(".ssh/id", ".aws/credentials", ".netrc", ".git-credentials", ".pypirc", ".config/gh/hosts.yml"),
    *(".docker/config.json", ".kube/config", ".gnupg/key", ".npmrc", ".cargo/credentials.toml"),
    *(".config/pip/pip.conf", ".bash_history", ".python_history", ".zsh_history", ".k3agent-home/auth.json"),
    *(".mozilla/firefox/x/logins.json", ".config/google-chrome/Default/Cookies"),
)
HOME_FILES = {
    "outside/file": "old\n",
    "outside/empty/.keep": "",
    ".bashrc": "# start\n",
    ".profile": "# start\n",
    ".gitconfig": "[user]\n\tname = a\n\temail = a@b\n[init]\n\tdefaultBranch = main\n",
}
WORKSPACE_FILES = {
    "a.py": "x = 1\n",
    "src/b.py": "y = 2\n",
    ".github/workflows/ci.yml": "on: push\n",
}
# What a person does who comes back to the workspace, here and in every folder below.
RETURN = """
exec < /dev/null
for d in . $(find . -path ./.git -prune -o -type d -print | head -60); do
  [ $d = . ] || [ -e $d/.git ] || [ -e $d/HEAD ] || continue
  (cd $d; git status; git diff; git add -A; git commit -qm back; git checkout -qb back-$$; git log -1)
done
bash -ic true; bash -lc true
"""
LATER = (
    *(".envrc", ".k3agent", ".vscode", ".idea", ".devcontainer", ".devcontainer.json", ".github/workflows"),
    *(".github/actions", ".gitlab-ci.yml", ".circleci", "azure-pipelines.yml", "Jenkinsfile", ".travis.yml"),
    *(".drone.yml", ".woodpecker", ".buildkite", "bitbucket-pipelines.yml", "appveyor.yml", ".cirrus.yml"),
    *(".gitea/workflows", ".forgejo/workflows", ".pre-commit-config.yaml", ".husky", "lefthook.yml"),
    *(".claude", ".mcp.json", ".cursor", ".gemini", ".codex", ".nvim.lua", ".exrc", ".vimrc"),
    *(".dir-locals.el", ".gdbinit", ".lldbinit", "mise.toml", ".mise.toml"),
    *(".git/hooks", ".git/config", ".git/config.worktree", ".git/commondir"),
)
# Settings of the kernel that run a program or open a door; root may write them. They are put back at once.
KERNEL = tuple(Path("/proc/sys/kernel") / name for name in ("core_pattern", "modprobe", "sysrq"))


class World:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.workspace = self.home / "ws"
        self.environ = {
            "HOME": str(self.home),
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "USER": "a",
            "SSH_AUTH_SOCK": str(self.home / "agent.sock"),
            "SOME_API_TOKEN": SECRET,
            "LANG": "C.UTF-8",
        }
        self._before: dict[str, str] = {}
        self._later: dict[str, str] = {}
        self._kernel: dict[Path, str] = {}
        self._servers: list[socket.socket] = []
        self._template = root / "template" / "home"

    def __enter__(self) -> World:
        self._make_template()
        self._abstract = f"k3agent-hostile-{os.getpid()}"
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            server = socket.socket(socket.AF_INET, kind)
            server.bind(("127.0.0.1", self._servers[0].getsockname()[1] if self._servers else 0))
            self._servers.append(server)
        self._port = self._servers[0].getsockname()[1]
        abstract = socket.socket(socket.AF_UNIX)
        abstract.bind(f"\0{self._abstract}")
        self._servers.append(abstract)
        for server in self._servers:
            self._ready(server)
        self._pathed: list[socket.socket] = []
        self.victim = self._new_victim()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.victim.kill()
        self.victim.wait()
        for server in (*self._servers, *self._pathed):
            server.close()

    def _new_victim(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["bash", "-c", "exec -a k3agent-victim sleep 100000"], start_new_session=True)

    def _ready(self, server: socket.socket) -> None:
        server.setblocking(False)
        if server.type == socket.SOCK_STREAM:
            server.listen()

    def _make_template(self) -> None:
        for name in SECRET_FILES:
            self._write(self._template / name, SECRET + "\n")
        for name, text in HOME_FILES.items():
            self._write(self._template / name, text)
        for name, text in WORKSPACE_FILES.items():
            self._write(self._template / "ws" / name, text)
        (self._template / "outside/empty/.keep").unlink()
        (self._template / ".docker/run").mkdir()
        environ = {**self.environ, "HOME": str(self._template)}
        for words in (("init", "-q", "--template="), ("add", "-A"), ("commit", "-qm", "first")):
            subprocess.run(["git", *words], cwd=self._template / "ws", env=environ, check=True)
        (self._template / "ws/.git/hooks").mkdir()

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def renew(self) -> None:
        """The home and the workspace as at the start."""
        if self.home.exists():
            for folder in (self.home, self.home / "outside"):
                if folder.is_dir() and not folder.is_symlink():
                    folder.chmod(0o700)
            shutil.rmtree(self.home)
        shutil.copytree(self._template, self.home, symlinks=True)
        for server in getattr(self, "_pathed", ()):
            server.close()
        self._pathed = []
        for name in (".docker/run/docker.sock", "agent.sock"):
            server = socket.socket(socket.AF_UNIX)
            server.bind(str(self.home / name))
            self._ready(server)
            self._pathed.append(server)
        if self.victim.poll() is not None:
            self.victim = self._new_victim()

    def filled(self, command: str) -> str:
        values = {
            "AGENT": os.getpid(),
            "VICTIM": self.victim.pid,
            "PORT": self._port,
            "ABSTRACT": self._abstract,
        }
        for name, value in values.items():
            command = command.replace(f"@{name}@", str(value))
        return command

    def as_user(self, script: str) -> None:
        """Run a script of the test itself in the workspace."""
        subprocess.run(
            ["bash", "-c", script],
            cwd=self.workspace,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=False,
        )

    def remember(self, kind: str) -> None:
        self._kernel = {path: path.read_text() for path in KERNEL if path.exists()}
        self._before = self._outside()
        self._later = self._protected() if kind in ("git", "later") else {}

    def _outside(self) -> dict[str, str]:
        return _prints(self.home, skip=self.workspace)

    def _protected(self) -> dict[str, str]:
        """Without times: what was brought back is as it was."""
        found: dict[str, str] = {}
        for name in LATER:
            path = self.workspace / name
            if path.is_symlink() or path.exists():
                found[name] = _print(path, with_time=False)
                if path.is_dir():
                    inner = _prints(path, with_time=False).items()
                    # What was put aside has no effect; it is kept for the user to look at.
                    found |= {f"{name}/{key}": value for key, value in inner if later.REFUSED not in key}
        return found

    def proofs(self, kind: str, output: str) -> list[str]:
        """What the command has reached: each a short sentence."""
        changed = [path for path, text in self._kernel.items() if path.read_text() != text]
        for path in changed:
            path.write_text(self._kernel[path])
        if changed:
            return [f"{path} was changed" for path in changed]
        for folder in (self.home, self.home / "outside"):
            if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
                return [f"{folder} was closed"]
        found = [f"outside: {name}" for name in _differences(self._before, self._outside())]
        if kind in ("git", "later"):
            found += [f"later: {name}" for name in _differences(self._later, self._protected())]
            if not found:
                self.as_user(RETURN)
                new = _differences(self._before, self._outside())
                found += [f"after return: {name}" for name in new if "lesshst" not in name]
        elif kind == "secrets":
            found += ["a secret in the output"] if SECRET in output else []
            found += [f"a secret in {path}" for path in self._with_secret()]
        elif kind == "limits" or kind == "limit":
            found += ["it ate what it wanted"] if "ate" in output.split() else []
        found += [f"a connection to {server.getsockname()!r}" for server in self._reached()]
        state = Path(f"/proc/{self.victim.pid}/stat")
        if self.victim.poll() is not None or state.read_text().rpartition(")")[2].split()[0] == "T":
            found.append("the neighbour was ended or stopped")
            self.victim.send_signal(signal.SIGCONT)
            self.victim.kill()
            self.victim.wait()
        return found

    def _with_secret(self) -> list[str]:
        found = []
        for folder, _, names in os.walk(self.workspace):
            for name in names:
                path = Path(folder) / name
                if path.is_file() and not path.is_symlink() and SECRET.encode() in path.read_bytes():
                    found.append(str(path.relative_to(self.workspace)))
        return found

    def _reached(self) -> list[socket.socket]:
        found = []
        for server in (*self._servers, *self._pathed):
            try:
                while True:
                    if server.type == socket.SOCK_STREAM:
                        server.accept()[0].close()
                    else:
                        server.recv(1000)
                    if server not in found:
                        found.append(server)
            except BlockingIOError:
                continue
        return found


def _print(path: Path, *, with_time: bool = True) -> str:
    info = path.lstat()
    text = f"{info.st_mode:o} {info.st_uid}"
    if stat.S_ISLNK(info.st_mode):
        return f"{text} {path.readlink()}"
    if stat.S_ISREG(info.st_mode):
        return f"{text} {info.st_mtime_ns if with_time else 0} {hashlib.sha1(path.read_bytes()).hexdigest()}"
    return text


def _prints(root: Path, skip: Path | None = None, *, with_time: bool = True) -> dict[str, str]:
    found: dict[str, str] = {}
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = [name for name in folders if here / name != skip]
        for name in (*folders, *names):
            path = here / name
            found[str(path.relative_to(root))] = _print(path, with_time=with_time)
    return found


def _differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
