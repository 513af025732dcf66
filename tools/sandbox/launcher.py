"""Binds itself as its first argument (JSON) says, then becomes the command in the rest.

Run as a script by `python -I -S`, so that nothing is imported but what stands here. Everything happens in
this one process before `execve`: no code runs between a fork and an exec of the agent.
"""

# pathlib costs start-up time, and this starts with every command.
# ruff: noqa: PTH102, PTH103, PTH109, PTH110, PTH112, PTH118, PTH120, PTH123, PTH211
from __future__ import annotations

import base64
import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND = 1, 2, 4, 32, 4096
MS_REC, MS_SLAVE = 1 << 14, 1 << 19
CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWNET = 0x20000, 0x8000000, 0x10000000, 0x40000000
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 24, 38, 22, 2
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT, LANDLOCK_PATH_BENEATH = 444, 445, 446, 1
# What a rule on a file, not a folder, may grant: execute, write, read, truncate, ioctl.
FILE_RIGHTS = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
WRITE_ONE_FILE = 1 << 1 | 1 << 14
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
MOUNT_SETATTR, MOUNT_ATTR_RDONLY, AT_FDCWD, AT_RECURSIVE = 442, 1, -100, 0x8000
OPENAT2, RESOLVE_NO_SYMLINKS = 437, 4
FAILED = 125
PR_SET_PDEATHSIG = 1
PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> int:
    """A function of the C library that gives -1 for an error; raises OSError naming it."""
    result = int(getattr(libc, name)(*arguments))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    texts = [text.encode() if text is not None else None for text in (source, target, kind, data)]
    call("mount", texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])


def bind(source: str, target: str, *, is_readonly: bool = False) -> None:
    mount(source, target, None, MS_BIND | MS_REC)
    if is_readonly:
        # Flags that the mount has already must be named again: in a user namespace they are locked.
        kept = os.statvfs(target).f_flag & 0xF
        mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def enter_namespaces(plan: dict[str, Any]) -> None:
    """Own users, mounts and network (loopback only); then the view of the files that `plan` describes."""
    uid, gid = os.geteuid(), os.getegid()
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWIPC | (0 if plan["network"] else CLONE_NEWNET)
    call("unshare", flags)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as stream:
            stream.write(text)
    mount("none", "/", None, MS_REC | MS_SLAVE)
    # Held open, because a private /tmp may soon lie over them.
    readonly = set(plan["readonly"])
    held = [
        (path, os.open(path, os.O_PATH) if path in readonly else open_exact(path)) for path in plan["bound"]
    ]
    for path in plan["hidden"]:
        hide(path)
    bind(plan["temporary"], "/tmp")
    make_devices(plan["devices"], plan["shared_memory"])
    for path, fd in held:
        os.makedirs(path, exist_ok=True)
        bind(f"/proc/self/fd/{fd}", path, is_readonly=path in readonly)
        os.close(fd)
    for path in (*plan["pinned"], *plan["protected"]):
        fd = open_exact(path)
        bind(f"/proc/self/fd/{fd}", path, is_readonly=path in plan["protected"])
        os.close(fd)
    # Landlock knows no right to change modes, owners and times: elsewhere all is read-only for that.
    set_readonly("/", is_deep=True)
    for path in ("/tmp", "/dev/shm", *plan["bound"], *plan["pinned"]):
        if path not in readonly:
            # With the mounts inside; where one of them was read-only before, that is refused.
            set_readonly(path, is_on=False)
            set_readonly(path, is_on=False, is_deep=True)
    for path in plan["protected"]:
        set_readonly(path)
    if not plan["network"]:
        raise_loopback()


def make_devices(paths: list[str], shared_memory: int) -> None:
    """A /dev of its own: without disks, and with terminals of its own only."""
    held = [(path, os.open(path, os.O_PATH), os.path.isdir(path)) for path in paths if os.path.exists(path)]
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=0755,size=1m")
    for path, fd, is_folder in held:
        if is_folder:
            os.makedirs(path)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
        bind(f"/proc/self/fd/{fd}", path)
        os.close(fd)
    for name, data in (
        ("pts", "newinstance,ptmxmode=0666,mode=0620"),
        ("shm", f"mode=1777,size={shared_memory}"),
    ):
        os.mkdir(f"/dev/{name}")
        kind = "devpts" if name == "pts" else "tmpfs"
        mount(kind, f"/dev/{name}", kind, MS_NOSUID | (0 if name == "pts" else MS_NODEV), data)
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "core": "/proc/kcore"}
    links |= {name: f"/proc/self/fd/{number}" for number, name in enumerate(("stdin", "stdout", "stderr"))}
    for name, target in links.items():
        os.symlink(target, f"/dev/{name}")


def set_readonly(path: str, *, is_on: bool = True, is_deep: bool = False) -> None:
    attributes = struct.pack("QQQQ", MOUNT_ATTR_RDONLY * is_on, MOUNT_ATTR_RDONLY * (not is_on), 0, 0)
    flags = AT_RECURSIVE if is_deep else 0
    try:
        call("syscall", MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, attributes, len(attributes))
    except OSError as error:
        if is_on or error.errno != errno.EPERM:  # what was read-only before stays so
            raise


def open_exact(path: str) -> int:
    """Open a path that held no link when it was judged; one that was put there since is an error."""
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, RESOLVE_NO_SYMLINKS)
    return call("syscall", OPENAT2, AT_FDCWD, path.encode(), how, len(how))


def check_mounts(paths: list[str]) -> None:
    """Each of `paths` must be a mount of its own, and of what lies there: a link that was put in its place
    while bwrap bound it would have led elsewhere. Raises OSError.
    """
    roots: dict[str, tuple[str, str]] = {}
    with open("/proc/self/mountinfo", "rb") as stream:
        for row in stream:
            device, root, point = (field.decode("utf-8", "surrogateescape") for field in row.split(b" ")[2:5])
            roots[unescaped(point)] = (device, unescaped(root))
    for path in paths:
        above = os.path.dirname(path)
        while above not in roots and above != "/":
            above = os.path.dirname(above)
        device, root = roots.get(above, ("", ""))
        expected = (device, os.path.join(root, os.path.relpath(path, above)))
        if roots.get(path) != expected:
            raise OSError(errno.ELOOP, f"{path} was exchanged for a link")


def unescaped(text: str) -> str:
    for code in ("040", "011", "012"):
        text = text.replace(f"\\{code}", chr(int(code, 8)))
    return text.replace("\\134", "\\")


def hide(path: str) -> None:
    if os.path.isdir(path):
        mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    elif os.path.exists(path):
        bind("/dev/null", path)


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = bytearray(struct.pack("16sH22x", b"lo", 0))
        fcntl.ioctl(probe, SIOCGIFFLAGS, request)
        (flags,) = struct.unpack_from("H", request, 16)
        fcntl.ioctl(probe, SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", flags | IFF_UP))


def drop_rights() -> None:
    """No capability is left or can come back, and no program gives new ones."""
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = struct.pack("Ii", 0x20080522, 0)
    call("capset", header, bytes(24))
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def restrict_files(rules: dict[str, Any]) -> None:
    """Landlock: what `rules` handles is denied but below the paths that it names."""
    attributes = struct.pack("QQQ", rules["files"], rules["tcp"], rules["scoped"])[: rules["size"]]
    ruleset = call("syscall", LANDLOCK_CREATE, attributes, len(attributes), 0)
    outputs = [(f"/proc/self/fd/{fd}", WRITE_ONE_FILE) for fd in (1, 2)]
    for path, rights in [*rules["paths"], *outputs]:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # gone since the plan was made: nothing is allowed there
        allowed = rights & rules["files"]
        if not os.path.isdir(path):
            allowed &= FILE_RIGHTS
        rule = struct.pack("=Qi", allowed, fd)
        # Pipes have no place among files and take no rule; they need none either.
        libc.syscall(LANDLOCK_ADD, ruleset, LANDLOCK_PATH_BENEATH, rule, 0)
        os.close(fd)
    call("syscall", LANDLOCK_RESTRICT, ruleset, 0)
    os.close(ruleset)


def filter_calls(program: bytes) -> None:
    """Install a seccomp filter: `program` is the BPF code, eight bytes an instruction."""
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0)


def limit(limits: dict[str, int]) -> None:
    for name, wanted in limits.items():
        number = getattr(resource, name)
        _, hard = resource.getrlimit(number)
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(number, (value, value))
    try:
        # When memory runs out the command goes first, not the agent or the desktop.
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
            stream.write("800")
    except OSError:
        pass


def relay(path: str) -> int:
    """Start a process that passes connections to a port of the sandbox on to the proxy at `path`; the port.
    It ends with the command.
    """
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    port = int(listener.getsockname()[1])
    parent = os.getpid()
    if os.fork():
        listener.close()
        return port
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    nowhere = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    if os.getppid() == parent:
        pass_on(listener, path)
    os._exit(0)


def pass_on(listener: socket.socket, path: str) -> None:
    from threading import Thread  # late: only this process needs it

    while True:
        client, _ = listener.accept()
        proxy = socket.socket(socket.AF_UNIX)
        try:
            proxy.connect(path)
        except OSError:
            client.close()
            continue
        for source, target in ((client, proxy), (proxy, client)):
            Thread(target=copy, args=(source, target), daemon=True).start()


def copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        target.close()


def original_environ() -> dict[bytes, bytes]:
    """The environment as it was given: this interpreter may have added a locale to its own."""
    with open("/proc/self/environ", "rb") as stream:
        rows = [row.partition(b"=") for row in stream.read().split(b"\0") if row]
    return {name: value for name, _, value in rows}


def main() -> None:
    plan: dict[str, Any] = json.loads(sys.argv[1])
    argv = sys.argv[2:]
    try:
        environ = original_environ() | {n.encode(): v.encode() for n, v in plan["environ"].items()}
        folder = os.getcwd()
        limit(plan["limits"])
        if plan["namespaces"]:
            enter_namespaces(plan["namespaces"])
            os.chdir(folder)
        check_mounts(plan["kept"])
        drop_rights()
        if plan["landlock"]:
            restrict_files(plan["landlock"])
        filter_calls(base64.b64decode(plan["seccomp"]))
        if plan["proxy"]:
            url = f"http://127.0.0.1:{relay(plan['proxy'])}".encode()
            environ |= {name.encode(): url for name in PROXY_NAMES}
            environ |= {name: b"localhost,127.0.0.1,::1" for name in (b"NO_PROXY", b"no_proxy")}
        # Python ignores these two; commands expect them to end a writer nobody reads.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    except OSError as error:
        print(f"k3agent: the sandbox could not be set up: {error}; nothing was run", file=sys.stderr)
        sys.exit(FAILED)
    try:
        os.execve(argv[0], argv, environ)
    except OSError as error:
        print(f"k3agent: {argv[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
