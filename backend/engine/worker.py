"""The process of a rank above 0: loads its part of the model and does what rank 0 tells it.

Started as `python -m k3agent.backend.engine.worker RANK COMMANDS_FD LIFE_FD`. It ends when told to, when rank
0 is gone, and at the first error, whose text it leaves behind: ranks that no longer do the same have nothing
to do together.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch
from torch import Tensor

from k3agent.backend.engine.messages import EngineSettings
from k3agent.backend.engine.ranks import StepPlan, backend_of
from k3agent.backend.engine.runner import Runner, load_part
from k3agent.backend.engine.static_steps import no_progress
from k3agent.backend.errors import BackendError, PeerLostError
from k3agent.backend.model.k3 import K3ForCausalLM
from k3agent.backend.parallel import groups
from k3agent.backend.parallel.comm import GroupComm
from k3agent.backend.parallel.processes import Raised, attach
from k3agent.backend.parallel.shard import Shard

log = logging.getLogger(__name__)

Load = Callable[[EngineSettings, Shard], K3ForCausalLM]
"""Makes what one rank has of the model."""
_RANK_0_FIRST_S = 3.0


class Worker:
    """One rank's model and cache tensors, and what can be done to them."""

    def __init__(self, settings: EngineSettings, comm: GroupComm, load: Load) -> None:
        self._comm = comm
        model = load(settings, Shard(comm, settings.expert_parallel))
        runner = self._runner = Runner(model, settings)
        storage = self._storage = runner.storage
        self._model, self._tensors, self._width = model, storage.tensors, model.config.hidden_size
        self._operations = {
            "forward": self._forward,
            "prepare": partial(runner.prepare, no_progress),
            "static": runner.run_static,
            "copy_page": storage.copy_page,
            "copy_state": storage.copy_state,
            "zero_state": storage.zero_state,
            "poison_state": storage.poison_state,
            "write_pages": storage.write_pages,
            "write_state": storage.write_state,
        }

    def serve(self, commands: Connection) -> None:
        """Obey until told to stop."""
        while True:
            name, *arguments = commands.recv()
            if name == "stop":
                self._runner.release()
                return
            if name == "read_state":
                state = self._storage.read_state(*arguments)
                self._storage.settled()()
                commands.send(bytes(state))
            else:
                self._operations[name](*arguments)

    def _forward(self, plan: StepPlan) -> None:
        self._model(plan.batch(self._model.device, self._features), self._tensors)

    def _features(self, count: int) -> Tensor:
        empty = torch.empty(count, self._width, dtype=self._model.dtype, device=self._model.device)
        return self._comm.broadcast(empty)


def work(rank: int, commands: Connection, load: Load) -> None:
    """Meet the others, load, and obey."""
    first: tuple[EngineSettings, int] = commands.recv()
    settings, port = first
    world = settings.tensor_parallel
    device = groups.device_of(rank, world, settings.device)
    groups.set_environment()
    store = groups.join_store(world, port)
    is_symmetric = settings.sums == "symmetric"
    comm = groups.join_group(store, rank, world, backend_of(settings), device, is_symmetric=is_symmetric)
    Worker(settings, comm, load).serve(commands)
    groups.leave_group()


def main(arguments: list[str], load: Load = load_part) -> int:
    """The exit status: 1 after an error, which rank 0 has been told. Measurements have their own `load`."""
    # terminals and service managers signal the whole group; when to stop is rank 0's decision
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    rank, commands, life = int(arguments[0]), *attach(*arguments[1:])
    logging.basicConfig(level=logging.WARNING, format=f"%(levelname)s rank {rank}: %(message)s")
    try:
        work(rank, commands, load)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        log.info("rank 0 is gone")
        _leave(0)
    except Exception as error:
        _leave(_last_words(life, error))
    return 0


def _leave(status: int) -> NoReturn:
    """End with nothing freed: a buffer of symmetric memory that is freed waits for the device, and that may
    wait for a rank that is gone."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)


def _last_words(life: Connection, error: Exception) -> int:
    by_peer = isinstance(error, PeerLostError)
    if isinstance(error, BackendError) and not by_peer:
        # a fault of the files is rank 0's to report: it finds the same, and this process ends with it
        time.sleep(_RANK_0_FIRST_S)
    if not by_peer:
        log.error("cannot go on", exc_info=error)
    words: Any = Raised(f"{type(error).__name__}: {error}", by_peer)
    try:
        life.send(words)
    except OSError:
        log.info("rank 0 is gone")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
