"""The processes of ranks 1 and up, as rank 0 sees them: started, spoken to, watched, ended.

Two socket pairs lead to each: commands go down the first and answers come back; the second carries nothing
but an error, and says by closing that the process at its other end is gone. So no death of any rank, in
whatever call, leaves another one waiting: a rank without rank 0 ends itself, and rank 0 without a rank calls
`on_loss`.
"""

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from k3agent.backend.errors import RANK_LOST_STATUS

_BLAME_S = 1.0
"""How long to look, after the first bad news, for the rank that caused it."""
_STOP_S = 3.0


@dataclass(frozen=True, slots=True)
class Raised:
    """Last words of a rank. `by_peer`: what it did together with others broke off, so it is not to blame."""

    text: str
    by_peer: bool


@dataclass(slots=True)
class _Rank:
    number: int
    process: "subprocess.Popen[bytes]"
    commands: Connection
    life: Connection


class RankProcesses:
    """Ranks 1 to world-1, each `python -m module RANK COMMANDS_FD LIFE_FD`.

    `on_loss` gets a sentence when a rank is gone and must not return; it may be called in any thread.
    """

    def __init__(self, module: str, world: int, on_loss: Callable[[str], NoReturn]) -> None:
        self._on_loss = on_loss
        self._is_closing = False
        self._lock = threading.Lock()
        self._ranks = [_start(module, number) for number in range(1, world)]
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    @property
    def pids(self) -> list[int]:
        """Of ranks 1 and up."""
        return [rank.process.pid for rank in self._ranks]

    def tell(self, *command: Any) -> None:
        """Send one command to all; it is pickled once."""
        data = pickle.dumps(command, protocol=pickle.HIGHEST_PROTOCOL)
        for rank in self._ranks:
            self._send(rank, data)

    def tell_one(self, number: int, *command: Any) -> None:
        """Send a command to rank `number`."""
        self._send(self._ranks[number - 1], pickle.dumps(command, protocol=pickle.HIGHEST_PROTOCOL))

    def answers(self) -> list[Any]:
        """One answer of each rank to the last command that has answers, in the order of ranks."""
        found = []
        for rank in self._ranks:
            try:
                found.append(rank.commands.recv())
            except (EOFError, OSError):
                self.lose(f"rank {rank.number} closed its pipe")
        return found

    def lose(self, what: str) -> NoReturn:
        """Bad news: find out which rank caused it, end the others, and tell. Does not return."""
        # the first thread to come here speaks for all; a second one waits for the end of the process
        with self._lock:
            blame = self._blame(what)
            self._signal()
            self._on_loss(blame)

    def fail(self, error: Exception) -> NoReturn:
        """Rank 0 itself cannot go on. The others may wait for it for ever, so this is the end too."""
        with self._lock:
            self._signal()
            self._on_loss(f"rank 0 failed: {error}")

    def ask_to_stop(self) -> None:
        """From here on no end of a rank is a loss."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self.tell("stop")

    def close(self) -> None:
        """Ask all to end, if that has not been done, then see to it."""
        if not self._is_closing:
            self.ask_to_stop()
        deadline = time.monotonic() + _STOP_S
        for rank in self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                rank.process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """End what still runs, and wait for it."""
        self._signal()
        for rank in self._ranks:
            rank.process.wait()

    def _signal(self) -> None:
        self._is_closing = True
        for rank in self._ranks:
            rank.process.kill()

    def _send(self, rank: _Rank, data: bytes) -> None:
        try:
            rank.commands.send_bytes(data)
        except OSError:
            if self._is_closing:
                raise
            self.lose(f"rank {rank.number} closed its pipe")

    def _watch(self) -> None:
        """A thread: returns when the ranks are being closed, else at the first bad news."""
        wait([rank.life for rank in self._ranks])
        if not self._is_closing:
            self.lose("a rank ended")

    def _blame(self, what: str) -> str:
        """The rank that died or raised by itself, if one shows within a moment; else the first one that says
        something."""
        victims: list[str] = []
        open_ranks = {rank.life: rank for rank in self._ranks}
        deadline = time.monotonic() + _BLAME_S
        while open_ranks and (rest := deadline - time.monotonic()) > 0:
            for life in wait(list(open_ranks), rest):
                rank = open_ranks.pop(life)  # pyright: ignore[reportArgumentType]  # only our Connections were given
                words = _last_words(rank)
                if words is None:
                    return f"rank {rank.number} {_end_of(rank.process)}"
                if not words.by_peer:
                    return f"rank {rank.number} failed: {words.text}"
                victims.append(f"rank {rank.number}: {words.text}")
        return victims[0] if victims else what


def _start(module: str, number: int) -> _Rank:
    commands, their_commands = socket.socketpair()
    life, their_life = socket.socketpair()
    with their_commands, their_life:
        fds = their_commands.fileno(), their_life.fileno()
        process = subprocess.Popen(
            # -P: a folder called k3agent where the user stands must not be imported
            [sys.executable, "-P", "-m", module, str(number), *map(str, fds)],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
        )
    return _Rank(number, process, Connection(commands.detach()), Connection(life.detach()))


def _last_words(rank: _Rank) -> Raised | None:
    try:
        words = rank.life.recv()
    except (EOFError, OSError):
        return None
    return words if isinstance(words, Raised) else None


def _end_of(process: "subprocess.Popen[bytes]") -> str:
    """How a process that closed its sockets ended."""
    try:
        status = process.wait(_BLAME_S)
    except subprocess.TimeoutExpired:
        return f"(process {process.pid}) hangs"
    if status >= 0:
        return f"(process {process.pid}) ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"(process {process.pid}) was ended by {name}"


def end_process(message: str) -> NoReturn:
    """What to do about a lost rank when nobody else has to know: say it and leave. Locks that a stuck call
    holds, the interpreter's exit would wait for."""
    sys.stderr.write(f"k3agent: {message}\n")
    sys.stderr.flush()
    os._exit(RANK_LOST_STATUS)


# --- in the process of a rank


def attach(commands_fd: str, life_fd: str) -> tuple[Connection, Connection]:
    """Both ends in a rank's process. From here on the process ends itself when rank 0 is gone."""
    commands, life = Connection(int(commands_fd)), Connection(int(life_fd))

    def follow() -> None:
        # nothing is ever sent this way: the only news is that rank 0 is gone
        wait([life])
        os._exit(0)

    threading.Thread(target=follow, name="rank 0", daemon=True).start()
    return commands, life
