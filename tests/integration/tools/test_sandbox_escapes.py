"""Commands that try to get out of the sandbox, for each backend that works on this machine.

`BWRAP` names a bwrap that is not on PATH. A backend that does not work here is skipped with a message.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.sandboxes import BACKENDS, Real, make

from k3agent.tools.sandbox import choice, rules
from k3agent.tools.sandbox.policy import Bounds

TIMEOUT_S = 120


@dataclass(frozen=True, slots=True)
class Cage:
    backend: str
    sandbox: Real
    home: Path
    workspace: Path

    @property
    def outside(self) -> Path:
        return self.home / "outside"

    def run(self, command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        argv = self.sandbox.wrap(["/bin/bash", "-c", command], self.workspace, (self.workspace,))
        return subprocess.run(
            argv,
            cwd=self.workspace,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            start_new_session=True,
        )

    def python(self, source: str, **environ: str) -> subprocess.CompletedProcess[str]:
        (self.workspace / "attempt.py").write_text(source)
        return self.run(f"{sys.executable} -S attempt.py", **environ)


@pytest.fixture(params=BACKENDS)
def cage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cage]:
    # Not in /tmp: there a command may write, in a folder of its own.
    home = Path.cwd().resolve() / "build" / "cages" / f"{os.getpid()}-{request.param}"
    workspace = home / "ws"
    (home / "outside").mkdir(parents=True)
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id").write_text("very secret")
    workspace.mkdir()
    (home / "outside" / "file").write_text("old")
    subprocess.run(["git", "init", "-q"], cwd=workspace, check=True)
    for name in (".envrc", ".github/workflows/ci.yml", ".gitlab-ci.yml"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text("old")
    sandbox = make(request.param, Bounds(home=home))
    try:
        if not choice.works(sandbox):
            pytest.skip(f"{request.param} does not work on this machine")
        yield Cage(request.param, sandbox, home, workspace)
    finally:
        shutil.rmtree(home)


def test_ordinary_work(cage: Cage) -> None:
    done = cage.run(
        "set -e; echo a > a; mkdir d; mv a d/b; cat d/b; echo t > $TMPDIR/t; cat $TMPDIR/t;"
        " echo e > /dev/stderr; echo o > /dev/stdout; echo n > /dev/null;"
        " git add d; git -c user.name=a -c user.email=b commit -qm c;"
        " git log --oneline | wc -l; ls / > listing; sort -R listing | head -1 > /dev/null; id -u"
    )
    assert (done.returncode, done.stderr.strip()) == (0, "e")
    assert done.stdout.split() == ["a", "t", "o", "1", str(os.getuid())]


def test_the_environment_comes_through_and_signals_work(cage: Cage) -> None:
    done = cage.run('echo "[$X][$LC_CTYPE]"; yes | head -1; kill -9 $$', X="a b\n=c", LC_ALL="C")
    assert done.stdout == "[a b\n=c][]\ny\n" and done.returncode in (-9, 137)
    assert "Broken pipe" not in done.stderr
    assert cage.run("exit 7").returncode == 7


def test_modes_and_times_outside_are_kept(cage: Cage) -> None:
    if cage.backend == "landlock":
        pytest.skip("Landlock has no right for them")
    path = cage.outside / "file"
    before = path.stat()
    cage.run(
        "chmod 000 ../outside/file; touch -d 2001-01-01 ../outside/file; chmod 777 ../outside; chmod 700 /tmp"
    )
    after = path.stat()
    assert (after.st_mode, after.st_mtime_ns) == (before.st_mode, before.st_mtime_ns)
    assert cage.run("touch a; chmod 600 a; touch -d 2001-01-01 a; stat -c %a%Y a").stdout.startswith("60097")


@pytest.mark.parametrize(
    "attempt",
    [
        "echo new > $HOME/outside/file",
        "echo new >> ../outside/file",
        ": > $HOME/outside/file",
        "rm -f $HOME/outside/file",
        "mv $HOME/outside/file .",
        "ln $HOME/outside/file linked && echo new > linked",
        "ln -s $HOME/outside/file link && echo new > link",
        "truncate -s 0 $HOME/outside/file",
        "chmod 000 $HOME && touch $HOME/outside/new",
        "mkdir $HOME/outside/d",
        "ln -s $HOME/outside d && touch d/new",
        "echo new > /proc/self/root$HOME/outside/file",
        "echo new > /proc/self/cwd/../outside/file",
        "echo new > /proc/$PPID/root$HOME/outside/file",
        "echo new > /proc/$AGENT/root$HOME/outside/file",
        "unshare -Urm sh -c 'mount -o remount,rw,bind / / ; echo new > $HOME/outside/file'",
        "mount -o remount,rw,bind / ; umount -l $HOME ; echo new > $HOME/outside/file",
        "(setsid sh -c 'sleep 0.1; echo new > $HOME/outside/file' &) ; sleep 0.4",
        "mknod disk b 8 0 ; mknod mem c 1 1 ; [ ! -e disk ] && [ ! -e mem ] || echo new > $HOME/outside/file",
        "cp /bin/sh suid && chmod u+s suid && ./suid -pc 'echo new > $HOME/outside/file'",
        "sudo -n sh -c 'echo new > $HOME/outside/file'",
    ],
)
def test_nothing_outside_is_changed(cage: Cage, attempt: str) -> None:
    before = sorted(path.name for path in cage.outside.iterdir())
    cage.run(attempt, AGENT=str(os.getpid()))
    cage.home.chmod(0o755)
    assert (cage.outside / "file").read_text() == "old"
    assert sorted(path.name for path in cage.outside.iterdir()) == before
    assert not list(cage.workspace.glob("disk")) and not list(cage.workspace.glob("mem"))


@pytest.mark.parametrize(
    "attempt",
    [
        "echo x > .git/hooks/pre-commit",
        "git config core.fsmonitor ./evil",
        "git config core.hooksPath .",
        "mv .git gone; git init -q; git config core.fsmonitor ./evil",
        "rm -rf .git; mkdir .git",
        "echo x >> .envrc",
        "rm -f .envrc; echo x > .envrc",
        "mv .envrc o; echo x > .envrc",
        "ln -sf /bin/true .envrc",
        "echo x > .github/workflows/evil.yml",
        "mv .github gh; mkdir -p .github/workflows; echo x > .github/workflows/ci.yml",
        "echo x > .gitlab-ci.yml",
    ],
)
def test_what_runs_later_is_protected(cage: Cage, attempt: str) -> None:
    if cage.backend == "landlock":
        pytest.skip("Landlock alone cannot protect a path inside a writable folder")
    config = (cage.workspace / ".git/config").read_text()
    hooks = sorted((cage.workspace / ".git/hooks").iterdir())
    done = cage.run(attempt)
    assert (cage.workspace / ".git/config").read_text() == config
    assert sorted((cage.workspace / ".git/hooks").iterdir()) == hooks
    for name in (".envrc", ".github/workflows/ci.yml", ".gitlab-ci.yml"):
        path = cage.workspace / name
        assert path.read_text() == "old" and not path.is_symlink()
    assert [path.name for path in (cage.workspace / ".github/workflows").iterdir()] == ["ci.yml"]
    told = cage.sandbox.explain(done.stderr, cage.workspace, (cage.workspace,))
    assert told.startswith("[sandbox: writing ") and "protected" in told, done.stderr


def test_the_real_git_folder_of_a_linked_work_tree(cage: Cage) -> None:
    if cage.backend == "landlock":
        pytest.skip("as above: hooks in it are not protected")
    identity = ["git", "-c", "user.name=a", "-c", "user.email=b"]
    subprocess.run([*identity, "commit", "-qm", "a", "--allow-empty"], cwd=cage.workspace, check=True)
    tree = cage.home / "tree"
    subprocess.run(["git", "worktree", "add", "-q", str(tree)], cwd=cage.workspace, check=True)
    inside = Cage(cage.backend, make(cage.backend, Bounds(home=cage.home)), cage.home, tree)
    done = inside.run(
        "echo a > a && git add a && git -c user.name=a -c user.email=b commit -qm b && git status"
    )
    assert done.returncode == 0, done.stderr
    hook = cage.workspace / ".git/hooks/post-commit"
    inside.run(f"echo evil > {hook}; echo 'gitdir: /nowhere' > .git; git config core.fsmonitor ./evil")
    assert not hook.exists() and "nowhere" not in (tree / ".git").read_text()
    assert "evil" not in (cage.workspace / ".git/config").read_text()


def test_secrets_cannot_be_read(cage: Cage) -> None:
    done = cage.run("cat $HOME/.ssh/id; cat /proc/self/root$HOME/.ssh/id; ln $HOME/.ssh/id x; cat x")
    assert "very secret" not in done.stdout + done.stderr
    told = cage.sandbox.explain(done.stderr, cage.workspace, (cage.workspace,))
    assert ".ssh" in told
    done = cage.run(
        f"cat /proc/{os.getpid()}/environ; cat /proc/{os.getpid()}/mem | head -c 10; cat /etc/shadow"
    )
    assert not done.stdout.strip("\0")


def test_no_network(cage: Cage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reached: list[object] = []
        server.settimeout(0.5)

        def accept() -> None:
            with contextlib.suppress(TimeoutError):
                reached.append(server.accept())

        waiting = threading.Thread(target=accept)
        waiting.start()
        done = cage.run(f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached")
        waiting.join()
    assert "reached" not in done.stdout and not reached
    source = (
        "import socket as s; a=s.socket(s.AF_INET,s.SOCK_DGRAM)\n"
        "a.sendto(b'x',('192.0.2.1',53)); print('sent')"
    )
    assert "sent" not in cage.python(source).stdout


def test_a_server_of_its_own_can_be_reached(cage: Cage) -> None:
    if cage.backend == "landlock":
        pytest.skip("without a network namespace there is no loopback of its own")
    source = (
        "import socket as s; a=s.create_server(('127.0.0.1',0))\n"
        "s.create_connection(a.getsockname()); print('yes')"
    )
    assert cage.python(source).stdout == "yes\n"


def test_sockets_of_other_programs(cage: Cage) -> None:
    """A key agent's socket: below a hidden folder, and an abstract one."""
    agent = cage.home / ".ssh" / "agent"
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        os.chdir(agent.parent)
        try:
            first.bind("agent")  # a whole path may be too long
        finally:
            os.chdir(Path(__file__).parents[3])
        first.listen()
        second.bind(f"\0k3agent-test-{os.getpid()}")
        second.listen()
        source = (
            "import socket, os\n"
            "def attempt(path):\n"
            "    try:\n"
            "        socket.socket(socket.AF_UNIX).connect(path); print('reached', path)\n"
            "    except OSError: pass\n"
            f"attempt('\\0k3agent-test-{os.getpid()}')\n"
            "try: os.chdir(os.environ['HOME'] + '/.ssh')\n"
            "except OSError: pass\n"
            "attempt('agent')\n"
        )
        assert cage.python(source).stdout == ""


def test_other_processes_are_out_of_reach(cage: Cage) -> None:
    if cage.backend != "bubblewrap" and rules.abi_version() < 6:
        pytest.skip("Landlock guards signals from version 6 on")
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        try:
            cage.run(f"kill -9 {other.pid}")
            assert other.poll() is None
        finally:
            other.kill()


def test_denied_system_calls_and_no_rights(cage: Cage) -> None:
    source = (
        "import ctypes; l=ctypes.CDLL(None, use_errno=True)\n"
        "print(l.ptrace(0,0,0,0), l.unshare(0x10000000), l.syscall(425,1,0))\n"
        "rows=dict(r.split(':\\t') for r in open('/proc/self/status').read().splitlines() if ':\\t' in r)\n"
        "print(*(rows[n] for n in ('CapPrm','CapEff','CapBnd','NoNewPrivs','Seccomp')))\n"
    )
    done = cage.python(source)
    none = "0" * 16
    assert done.stdout.splitlines() == ["-1 -1 -1", f"{none} {none} {none} 1 2"], done.stderr


def test_limits(cage: Cage) -> None:
    done = cage.run("ulimit -c; ulimit -f; cat /proc/self/oom_score_adj")
    assert done.stdout.split() == ["0", str(16 << 20), "800"]


def test_tmp_is_private_and_lasts(cage: Cage) -> None:
    if cage.backend == "landlock":
        pytest.skip("without mounts of its own a command has $TMPDIR only")
    cage.run("echo kept > /tmp/k3agent-private")
    assert cage.run("cat /tmp/k3agent-private").stdout == "kept\n"
    assert not Path("/tmp/k3agent-private").exists()
    assert (cage.sandbox.temporary / "k3agent-private").read_text() == "kept\n"


def test_settings_of_the_kernel_are_out_of_reach(cage: Cage) -> None:
    """Root may write some of them without any capability; what core_pattern names runs outside, as root."""
    settings = [Path("/proc/sys/kernel") / name for name in ("core_pattern", "modprobe", "domainname")]
    before = {path: path.read_text() for path in settings if path.exists()}
    done = cage.run(
        f"for f in {' '.join(map(str, before))}; do cat $f > before; cat before > $f && echo wrote; done"
    )
    assert "wrote" not in done.stdout and done.stderr.count("line 1: /proc/sys") == len(before)


def test_named_hosts_are_reached_through_the_proxy(cage: Cage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(65536)
                        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes")

        threading.Thread(target=serve, daemon=True).start()
        bounds = Bounds(home=cage.home, hosts=(f"127.0.0.1:{port}",))
        named = Cage(cage.backend, make(cage.backend, bounds), cage.home, cage.workspace)
        fetch = "curl -s -m 20 --noproxy '' "
        done = named.run(f"{fetch} http://127.0.0.1:{port}/; exit 3")
        if cage.backend == "landlock":
            assert "yes" not in done.stdout and "named hosts" in named.sandbox.status
            return
        assert (done.stdout, done.returncode) == ("yes", 3), done.stderr
        done = named.run(
            f"{fetch} -v http://example.invalid/; {fetch} --noproxy '*' http://127.0.0.1:{port}/"
        )
        assert "yes" not in done.stdout and "403" in done.stderr
        told = named.sandbox.explain(done.stderr, cage.workspace, (cage.workspace,))
        assert told.startswith("[sandbox: no connection to example.invalid:80;"), told
        named.sandbox.close()
        server.shutdown(socket.SHUT_RDWR)


def test_disks_and_terminals_are_out_of_reach(cage: Cage) -> None:
    """Root may read disks, and everybody the terminals of the same user."""
    first, second = os.openpty()
    try:
        name = os.ttyname(second)
        done = cage.run(
            f"ls -l /dev | grep -c ^b; echo typed > {name}; head -c 1 {name} < /dev/null;"
            f" for d in /sys/block/*; do head -c 1 /dev/${{d##*/}} && echo read; done"
        )
        os.set_blocking(first, False)
        with pytest.raises(BlockingIOError):
            os.read(first, 100)
        assert "read" not in done.stdout.split()
    finally:
        os.close(first)
        os.close(second)
    if cage.backend != "landlock":
        assert done.stdout.split()[0] == "0"
        source = (
            "import os, pty; a, b = pty.openpty(); os.write(b, b'x'); print(os.read(a, 9), os.ttyname(b))"
        )
        assert cage.python(source).stdout.startswith("b'x' /dev/pts/"), cage.python(source).stderr


def test_programs_of_the_agent_in_the_workspace_are_kept(cage: Cage) -> None:
    if cage.backend == "landlock":
        pytest.skip("as above")
    program = cage.workspace / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text("old")
    (cage.workspace / "link").symlink_to(".venv")
    bounds = Bounds(home=cage.home, own=(cage.workspace / "link" / "bin",))
    inside = Cage(cage.backend, make(cage.backend, bounds), cage.home, cage.workspace)
    assert inside.run("echo evil > .venv/bin/python; mv .venv old; rm -rf .venv; echo ran").stdout == "ran\n"
    assert program.read_text() == "old"


@pytest.mark.parametrize("target", ["../.ssh/id", "HOME/.ssh/id"])
def test_a_protected_file_that_becomes_a_link_shows_nothing(cage: Cage, target: str) -> None:
    """Between the plan and its start, by what an earlier command has left running."""
    argv = ["/bin/bash", "-c", "cat .envrc $HOME/.ssh/id; echo evil > $HOME/.ssh/new"]
    guarded = cage.sandbox.wrap(argv, cage.workspace, (cage.workspace,))
    (cage.workspace / ".envrc").unlink()
    (cage.workspace / ".envrc").symlink_to(target.replace("HOME", str(cage.home)))
    environ = {"PATH": os.environ["PATH"], "HOME": str(cage.home)}
    done = subprocess.run(
        guarded,
        cwd=cage.workspace,
        env=environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert "very secret" not in done.stdout
    assert not (cage.home / ".ssh" / "new").exists()
