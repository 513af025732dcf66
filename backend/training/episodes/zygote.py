"""Runs `python ...` commands fast: a process with pytest and unittest loaded forks a child for each command.

The output equals what the same command prints in a shell, except for times. One zygote serves one worker
process.
"""

import contextlib
import gc
import io
import math
import os
import pickle
import resource
import runpy
import select
import shlex
import signal
import struct
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, ClassVar

from k3agent.backend.training.episodes.memory import room

HEADER = struct.Struct("<I")
TIMEOUT_S = 10
CPU_S = 2
"""What a command may compute: the longest of 200 test runs took a sixth of it; a slow machine gets more."""
LOOP, LOOP_S = 100_000, 0.002
"""Rounds of a loop, and what they take on a machine on which `CPU_S` is enough."""
SLACK_S = 0.1
"""By so much the times of a process that is killed for its limit may be short of it."""
STOPPED_CODE = 124
MAX_OUTPUT_BYTES = 4 << 20
"""Beyond it the program is stopped: it prints without end, and its tail would fill the memory."""
UNUSED = (
    "cacheprovider faulthandler unraisableexception threadexception doctest junitxml pastebin "
    "logging recwarn stepwise"
    " legacypath setuponly setupplan tmpdir monkeypatch"
)
"""Plugins of pytest that the generated tests never need and whose absence does not show in the output."""


def _without_unused() -> list[str]:
    return [part for name in UNUSED.split() for part in ("-p", f"no:{name}")]


def _send(fd: int, value: object) -> None:
    data = pickle.dumps(value)
    data = HEADER.pack(len(data)) + data
    while data:
        data = data[os.write(fd, data) :]


def _receive(fd: int) -> Any:
    head = _read_exactly(fd, HEADER.size)
    return pickle.loads(_read_exactly(fd, HEADER.unpack(head)[0]))


def _read_exactly(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(fd, size - len(data))
        if not piece:
            raise EOFError("the zygote has ended")
        data += piece
    return data


class Zygote:
    """The parent's handle. `run` gives (output, exit code)."""

    _handles: ClassVar[set[int]] = set()
    """Open ends of all zygotes of this process: a new one that kept them would keep the others alive."""

    def __init__(self) -> None:
        ask_read, self._ask = os.pipe()
        self._answer, answer_write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                for handle in (self._ask, self._answer, *self._handles):
                    os.close(handle)
                _serve(ask_read, answer_write)
            except (BrokenPipeError, EOFError):
                pass  # the parent has ended, perhaps in the middle of a command: nobody is left to tell
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(ask_read)
        os.close(answer_write)
        self._handles.update((self._ask, self._answer))

    def run(self, folder: str, argv: list[str]) -> tuple[str, int]:
        """Run `python argv...` in a folder."""
        _send(self._ask, (folder, argv))
        return _receive(self._answer)

    def close(self) -> None:
        """End the zygote."""
        self._handles.difference_update((self._ask, self._answer))
        os.close(self._ask)
        os.close(self._answer)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _loop_s() -> float:
    """What the loop takes here, undisturbed."""
    taken: list[float] = []
    for _ in range(3):
        begin = time.process_time()
        for _ in range(LOOP):
            pass
        taken.append(time.process_time() - begin)
    return min(taken)


def cpu_seconds(loop_s: float) -> int:
    """What a command may compute on a machine where the loop takes so long."""
    return max(CPU_S, int(min(TIMEOUT_S, math.ceil(CPU_S * loop_s / LOOP_S))))


def _cpu_limits(seconds: int) -> tuple[int, int]:
    """The soft and hard limit of what a command computes: what a lower one that is there leaves."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    wanted = (seconds, seconds + 1)
    return wanted if hard == resource.RLIM_INFINITY else (min(wanted[0], hard), min(wanted[1], hard))


def _serve(ask: int, answer: int) -> None:
    """The zygote's loop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in ("COLUMNS", "PYTEST_ADDOPTS", "FORCE_COLOR", "CI"):
        os.environ.pop(name, None)
    sys.dont_write_bytecode = True
    import unittest  # noqa: F401 - loaded here so that children need not

    import pytest

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        os.chdir(folder)
        (Path(folder) / "test_warm.py").write_text("def test_a():\n    assert 1 == 2\n", encoding="utf-8")
        with contextlib.suppress(SystemExit):
            pytest.main(["-q", *_without_unused()])
        for name in [name for name in sys.modules if name == "test_warm"]:
            del sys.modules[name]
        os.chdir("/")
    # Children live too briefly for garbage to matter, and a collection would copy all shared pages.
    gc.collect()
    gc.freeze()
    gc.disable()
    seconds = cpu_seconds(_loop_s())
    while True:
        try:
            folder, argv = _receive(ask)
        except EOFError:
            return
        _send(answer, _fork_and_run(folder, argv, _cpu_limits(seconds)))


def _fork_and_run(folder: str, argv: list[str], limits: tuple[int, int]) -> tuple[str, int]:
    """One command in a child, with limits of what it computes."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            os.dup2(writer, 1)
            os.dup2(writer, 2)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, room())
            resource.setrlimit(resource.RLIMIT_CPU, limits)
            code = _child(folder, argv)
        except BaseException as error:
            # The frames of this module are no part of what a shell would show.
            inner = error.__traceback__
            while inner is not None and inner.tb_frame.f_code.co_filename == __file__:
                inner = inner.tb_next
            traceback.print_exception(type(error), error, inner)
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    output, ended = _collect(reader, time.monotonic() + TIMEOUT_S)
    os.close(reader)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    _, wait_status, used = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(wait_status)
    # Who lets the signal of the first limit pass is killed at the second.
    is_spent = code == -signal.SIGKILL and used.ru_utime + used.ru_stime > limits[0] - SLACK_S
    code = STOPPED_CODE if not ended or code == -signal.SIGXCPU or is_spent else code
    return output.decode("utf-8", "replace"), code


def _collect(reader: int, end: float) -> tuple[bytes, bool]:
    """What comes out of a pipe, and whether it ended before the time `end` and within the size allowed."""
    pieces: list[bytes] = []
    size = 0
    while size < MAX_OUTPUT_BYTES:
        left = end - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return b"".join(pieces), False
        piece = os.read(reader, 65536)
        if not piece:
            return b"".join(pieces), True
        pieces.append(piece)
        size += len(piece)
    return b"".join(pieces), False


def _child(folder: str, argv: list[str]) -> int:
    """Act as the interpreter with these arguments."""
    os.chdir(folder)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding="utf-8", write_through=True)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    sys.path[:] = [folder, *(item for item in sys.path if item and "build/tree" not in item)]
    for name in [name for name in sys.modules if name.startswith("k3agent")]:
        del sys.modules[name]
    try:
        if argv[:2] == ["-m", "pytest"]:
            import pytest

            sys.argv = ["pytest", *argv[2:]]
            return int(pytest.main([*argv[2:], *_without_unused()]))
        if argv[:2] == ["-m", "unittest"]:
            import unittest

            sys.argv = ["python -m unittest", *argv[2:]]
            unittest.TestProgram(module=None, argv=list(sys.argv), testLoader=unittest.TestLoader())
            return 0
        if argv[:1] == ["-m"]:
            sys.argv = argv[1:]
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
            return 0
        return _script(folder, argv)
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
            return 1
        return int(stop.code or 0)


def _script(folder: str, argv: list[str]) -> int:
    """`python file args` or `python -c code`."""
    if argv[0] == "-c":
        text, name = argv[1], "<string>"
        sys.argv = ["-c", *argv[2:]]
    else:
        path = Path(folder) / argv[0]
        if not path.is_file():
            print(f"python: can't open file '{path}': [Errno 2] No such file or directory", file=sys.stderr)
            return 2
        text, name = path.read_text(encoding="utf-8"), str(path)
        sys.argv = list(argv)
        sys.path[0] = str(path.parent)
    import types

    main = types.ModuleType("__main__")
    main.__dict__["__file__"] = name
    sys.modules["__main__"] = main
    try:
        exec(compile(text, name, "exec"), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__.tb_next if error.__traceback__ else None
        if isinstance(error, SyntaxError):
            trace = None if error.filename == name else trace
        traceback.print_exception(type(error), error, trace)
        return 1
    return 0


def parse_python(command: str) -> list[str] | None:
    """The arguments after `python`, if the command is one plain call of it."""
    if any(sign in command for sign in "`$\n*"):
        return None
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars="|;&<>")
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return None
    if any(word and not word.strip("|;&<>") for word in words):
        return None
    return words[1:] if len(words) > 1 and words[0] in ("python", "python3") else None
