"""The rules of the sandbox: what is writable, protected, hidden; the filter; what the model is told."""

import base64
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from k3agent.tools.sandbox import choice, guarded, landlock, rules, seccomp
from k3agent.tools.sandbox.bubblewrap import Bubblewrap
from k3agent.tools.sandbox.explaining import explain
from k3agent.tools.sandbox.guarded import PrivateFolder
from k3agent.tools.sandbox.none import NoSandbox
from k3agent.tools.sandbox.policy import Bounds, git_folders

ALLOW, KILL = seccomp.ALLOW, seccomp.KILL


def git(cwd: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *identity, *words], cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path.resolve() / "main"
    root.mkdir()
    git(root, "init", "-q")
    git(root, "commit", "-q", "--allow-empty", "-m", "first")
    return root


def shown_by_git(cwd: Path) -> set[Path]:
    rows = git(cwd, "rev-parse", "--git-dir", "--git-common-dir").splitlines()
    return {(cwd / row).resolve() for row in rows}


def test_git_folders_are_what_git_says(repository: Path) -> None:
    assert git_folders(repository) == ()
    below = repository / "a" / "b"
    below.mkdir(parents=True)
    assert set(git_folders(below)) == shown_by_git(below) == {repository / ".git"}
    tree = repository.parent / "tree"
    git(repository, "worktree", "add", "-q", str(tree))
    assert set(git_folders(tree)) == shown_by_git(tree)
    assert len(git_folders(tree)) == 2
    outer = repository.parent / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "submodule", "--quiet", "add", str(repository), "deep/inner")
    inner = outer / "deep" / "inner"
    assert set(git_folders(inner)) == shown_by_git(inner) == {outer / ".git/modules/deep/inner"}


def test_a_git_file_that_leads_elsewhere_is_not_believed(repository: Path) -> None:
    hostile = repository.parent / "hostile"
    hostile.mkdir()
    (hostile / ".git").write_text(f"gitdir: {repository / '.git'}\n")
    assert git_folders(hostile) == ()
    tree = repository.parent / "tree"
    git(repository, "worktree", "add", "-q", str(tree))
    (hostile / ".git").write_text((tree / ".git").read_text())
    assert git_folders(hostile) == ()


def test_what_runs_later_is_protected(repository: Path) -> None:
    (repository / ".github" / "workflows").mkdir(parents=True)
    (repository / ".envrc").touch()
    (repository / ".gitlab-ci.yml").touch()
    module = repository / ".git/modules/group/name"
    (module / "hooks").mkdir(parents=True)
    (module / "config").touch()
    policy = Bounds(home=repository.parent).policy((repository,), ())
    for name in (".git/hooks", ".git/hooks/pre-commit", ".git/config", ".envrc", ".github/workflows/new.yml"):
        assert not policy.may_write(repository / name), name
    assert not policy.may_write(module / "hooks" / "post-checkout")
    assert not policy.may_write(module / "config")
    for name in (".git/index", ".git/objects/ab", ".github/README.md", "src/a.py"):
        assert policy.may_write(repository / name), name
    assert {repository / ".git", repository / ".github"} <= set(policy.pinned)
    assert not policy.may_write(repository.parent / "other")


def test_secrets_are_hidden(tmp_path: Path) -> None:
    home = tmp_path.resolve()
    (home / ".ssh").mkdir()
    (home / ".netrc").touch()
    store = home / "store"
    store.mkdir()
    policy = Bounds(home=home, private=(store,)).policy((home / "ws",), ())
    assert {home / ".ssh", home / ".netrc", store} <= set(policy.hidden)
    around = landlock.readable_around(policy.hidden)
    assert not any(path in (*hidden.parents, hidden) for path in around for hidden in policy.hidden)
    assert not any(hidden in path.parents for path in around for hidden in policy.hidden)
    (home / "open").mkdir()
    assert home / "open" in landlock.readable_around(policy.hidden)


def run_filter(code: bytes, number: int, audit: int, *arguments: int) -> int:
    """The verdict of a filter, by the rules of classic BPF."""
    data = struct.pack("IIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    rows = list(struct.iter_unpack("HBBI", code))
    at, value = 0, 0
    while True:
        operation, if_true, if_false, operand = rows[at]
        at += 1
        if operation == seccomp.LOAD:
            (value,) = struct.unpack_from("I", data, operand)
        elif operation == seccomp.RETURN:
            return operand
        else:
            holds = {
                seccomp.JUMP_EQUAL: value == operand,
                seccomp.JUMP_GREATER_EQUAL: value >= operand,
                seccomp.JUMP_ANY_BIT: bool(value & operand),
            }[operation]
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_the_filter(machine: str) -> None:
    known = seccomp.MACHINES[machine]
    code = seccomp.program(machine, (1, 2))

    def verdict(number: int, *arguments: int, audit: int = known.audit) -> int:
        return run_filter(code, number, audit, *arguments)

    for numbers in seccomp.DENIED.values():
        assert verdict(numbers[known.column]) == seccomp.FAIL | seccomp.EPERM
    for numbers in seccomp.ABSENT.values():
        assert verdict(numbers[known.column]) == seccomp.FAIL | seccomp.ENOSYS
    clone, unshare, socket, ioctl = (
        row[known.column] for row in (seccomp.CLONE, seccomp.UNSHARE, seccomp.SOCKET, seccomp.IOCTL)
    )
    for number in (clone, unshare):
        assert verdict(number, 0x10000000) == seccomp.FAIL | seccomp.EPERM
        assert verdict(number, 0x3D0F00) == ALLOW  # what a thread is made with
    assert [verdict(socket, family) for family in (1, 2)] == [ALLOW, ALLOW]
    assert [verdict(socket, family) for family in (0, 10, 40)] == [seccomp.FAIL | seccomp.EACCES] * 3
    for typing in (seccomp.TIOCSTI, seccomp.TIOCLINUX):
        assert verdict(ioctl, 0, typing) == seccomp.FAIL | seccomp.EPERM
    assert verdict(ioctl, 0, 0x5401) == ALLOW
    assert verdict(0 if machine == "x86_64" else 63) == ALLOW  # read
    assert verdict(0, audit=0x40000003) == KILL
    if machine == "x86_64":
        assert verdict(seccomp.X32 | 1) == seccomp.FAIL | seccomp.ENOSYS
    nothing = seccomp.program(machine, ())
    assert run_filter(nothing, socket, known.audit, 1) == seccomp.FAIL | seccomp.EACCES


def test_the_command_line_of_bubblewrap(repository: Path) -> None:
    sandbox = Bubblewrap(Bounds(home=repository.parent), has_network=False, program="/usr/bin/bwrap")
    argv = sandbox.wrap(["/bin/sh", "-c", "true; 'x"], repository, (repository,))
    assert argv[0] == "/usr/bin/bwrap" and argv[-3:] == ["/bin/sh", "-c", "true; 'x"]
    assert "--unshare-net" in argv and "--unshare-pid" in argv
    joined = " ".join(argv)
    root = argv.index(str(repository))
    assert argv[root - 1] == "--bind"
    assert joined.index(f"--bind {repository} ") < joined.index(f"--ro-bind {repository}/.git/hooks ")
    assert "--unshare-net" not in Bubblewrap(Bounds(home=repository), has_network=True).wrap(
        ["/bin/true"], repository, (repository,)
    )


def test_a_home_that_the_private_tmp_hides_is_told() -> None:
    def statuses(home: str) -> list[str]:
        bounds = Bounds(home=Path(home))
        walls = [
            landlock.Landlock(bounds, has_network=False, abi=6, has_namespaces=has_namespaces)
            for has_namespaces in (True, False)
        ]
        return [Bubblewrap(bounds, has_network=False).status, *(wall.status for wall in walls)]

    # Without namespaces there is no private /tmp.
    assert ["hides your home" in status for status in statuses("/tmp/home")] == [True, True, False]
    assert not any("hides" in status for status in statuses("/home/somebody"))


def test_the_plan_of_landlock(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    for abi, size, tcp, scoped in ((3, 8, 0, 0), (4, 16, 3, 0), (6, 24, 3, 3)):
        sandbox = landlock.Landlock(Bounds(home=root), has_network=False, abi=abi, has_namespaces=False)
        argv = sandbox.wrap(["/bin/true"], root, (root,))
        plan = json.loads(argv[-2])
        given = plan["landlock"]
        assert (given["size"], given["tcp"], given["scoped"]) == (size, tcp, scoped)
        assert bool(given["files"] & rules.IOCTL_DEV) == (abi >= 5)
        granted = {path: rights for path, rights in given["paths"] if rights & rules.MAKE_REG}
        files = {path for path in granted if not path.startswith("/dev/")}
        assert files == {str(root), str(sandbox.temporary)}
        assert not any(rights & (rules.MAKE_BLOCK | rules.MAKE_CHAR) for rights in granted.values())
        assert len(base64.b64decode(plan["seccomp"])) % 8 == 0
        assert "not guarded" in sandbox.status


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("touch: cannot touch '/etc/x': Read-only file system", "/etc/x"),
        ("bash: line 1: /etc/x: Permission denied", "/etc/x"),
        ("PermissionError: [Errno 13] Permission denied: '/etc/x'", "/etc/x"),
        ("Error: EACCES: permission denied, open '/etc/x'", "/etc/x"),
        ("error: could not write config file .git/config: Device or resource busy", ".git/config"),
        ("bash: line 1: .envrc: Read-only file system", ".envrc"),
        ("curl: (6) Could not resolve host: example.org", "no network"),
        ("cat: HOME/.ssh/id: No such file or directory", "hidden"),
        ("touch: cannot touch 'src/a': Permission denied", ""),
        ("cat: src/a: No such file or directory", ""),
        ("all good, wrote /etc/x", ""),
        (f"bash: line 1: {'x' * 300}/{'y' * 300}/z: Permission denied", ""),
    ],
)
def test_what_the_model_is_told(repository: Path, line: str, told: str) -> None:
    (repository / ".envrc").touch()
    (repository / "src").mkdir()
    home = repository.parent
    (home / ".ssh").mkdir()
    policy = Bounds(home=home).policy((repository,), ())
    text = explain(f"first\n{line.replace('HOME', str(home))}\n", repository, policy, has_network=False)
    assert told in text and bool(text) == bool(told)
    assert not text or (text.startswith("[sandbox: ") and "\n" not in text)


def test_what_does_not_work_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A bwrap that fails and a kernel without Landlock: none, with the reason."""
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(rules, "abi_version", lambda: 0)
    found = choice.choose(Bounds(home=tmp_path), has_network=False, path=str(tmp_path))
    assert isinstance(found, NoSandbox)
    assert "bwrap does not work here" in found.status or "none for" in found.status
    # One that lets everything through is found out as well.
    broken.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift 6; exec "$@"\n')
    assert not choice.works(Bubblewrap(Bounds(home=tmp_path), has_network=False, program=str(broken)))


def test_the_private_folder_goes_with_the_sandbox(tmp_path: Path) -> None:
    sandbox = Bubblewrap(Bounds(home=tmp_path), has_network=False)
    folder = sandbox.temporary
    assert folder.is_dir() and folder.stat().st_mode & 0o777 == 0o700
    sandbox.close()
    sandbox.close()
    assert not folder.exists()
    folder = sandbox.temporary
    del sandbox
    assert not folder.exists()


def test_folders_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = (
        "import os, signal, sys, tempfile; tempfile.tempdir = sys.argv[1];"
        "from k3agent.tools.sandbox.guarded import PrivateFolder;"
        "made = PrivateFolder(); (made.path / 'x').write_text('x'); print(made.path, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", program, str(tmp_path)], capture_output=True, text=True, check=False
    )
    left = Path(ran.stdout.strip())
    assert (left / "x").exists()
    held = PrivateFolder()
    foreign = tmp_path / "k3agent-tmp-link"
    foreign.symlink_to(tmp_path)
    for path in (left, held.path):
        os.utime(path, (1, 1))
    young = tmp_path / "k3agent-tmp-young"
    young.mkdir()
    guarded.remove_left()
    assert not left.exists()
    assert held.path.exists() and young.exists() and foreign.is_symlink()
    held.close()
    assert not held.path.exists()
