"""Graphs on two ranks, for tests: `python -m support.ranks_graphs FOLDER FAULT` plays requests and prints
what came of them. Without a GPU a graph is feigned: it runs the step on what its buffers hold.

FAULT is `none`, or what goes wrong while the decode of 2 is made: `capture 0` and `capture 1` (the capture of
that rank), `warm-up` (the pass of rank 1 before it), `kill` (rank 1 ends in the first replay).

With `sums` small sums go through feigned symmetric memory, and float32 is compared with two ranks without it;
`sums meet`: rank 1 cannot have any; `sums kill 1`: rank 1 ends in a sum while rank 0 waits for it; `sums kill
0`: rank 0 ends, and rank 1 would wait if it freed its buffer, with no thread that ends it.
"""

# pyright: reportAttributeAccessIssue=none
# methods are replaced, and steps remember what they hold

import ctypes
import json
import os
import signal
import sys
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from k3agent.backend.chat.tokenizer import Tokenizer
from k3agent.backend.engine import runner as runners
from k3agent.backend.engine import worker
from k3agent.backend.engine.engine import Engine
from k3agent.backend.engine.messages import Add, EngineSettings, Generated, SamplingParams
from k3agent.backend.engine.ranks import Ranks
from k3agent.backend.engine.runner import Runner, load_part
from k3agent.backend.engine.static_steps import StaticStep
from k3agent.backend.parallel import groups
from k3agent.backend.parallel.shard import Shard

MODULE = "support.ranks_graphs"
FAULT, SEEN = "K3_TEST_FAULT", "K3_TEST_SEEN"
BROKEN = "decode of 2"


class Feigned:
    """What stands for a graph."""

    def __init__(self, step: StaticStep) -> None:
        self._step = step
        self.num_replays = 0

    def replay(self) -> None:
        if os.environ[FAULT] == "kill" and rank_of(self._step) == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        self.num_replays += 1
        step = self._step
        step._logits = step._model(step.held, step._cache)

    def reset(self) -> None:
        tell(self._step, f"released after {self.num_replays}")


class FeignedMemory:
    """What stands for symmetric memory: as a kernel it waits for all, and what lay in the buffer is gone."""

    is_in_place = False
    num_sums = 0

    def __init__(self, group: Any, device: torch.device) -> None:
        self._rank, self._fault = group.rank(), os.environ[FAULT]

    def allocate(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes // 4)

    def meet(self, buffer: torch.Tensor) -> None:
        if self._fault == "sums meet" and self._rank == 1:
            raise RuntimeError("the memory of a peer cannot be mapped")
        self._address = buffer.data_ptr()

    def add(self, x: torch.Tensor) -> torch.Tensor:
        assert x.is_contiguous() and x.data_ptr() == self._address
        FeignedMemory.num_sums += 1
        if self._fault == "sums kill 1" and self.num_sums > 50:
            if self._rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()
        parts = [torch.empty_like(x) for _ in range(2)]
        torch.distributed.all_gather(parts, x)
        x.fill_(float("nan"))
        return parts[0] + parts[1]

    def __del__(self) -> None:
        if self._fault == "sums kill 0" and self._rank == 1:
            # as the device would: no other thread gets a turn
            ctypes.PyDLL(None).sleep(100)


def rank_of(step: StaticStep) -> int:
    return step._model.shard.rank


def tell(step: StaticStep, what: str) -> None:
    """A line in the rank's own file."""
    with Path(os.environ[SEEN], str(rank_of(step))).open("a") as file:
        file.write(f"{step._shape}: {what}\n")


def breaks(step: StaticStep, fault: str) -> bool:
    return str(step._shape) == BROKEN and os.environ[FAULT] == fault


def warm_up(step: StaticStep) -> None:
    if breaks(step, "warm-up") and rank_of(step) == 1:
        raise RuntimeError("out of memory")
    step._model(step._fill([]), step._cache)
    tell(step, "warm")


def capture(step: StaticStep, pool: Any) -> Any:
    step._fill([])
    if breaks(step, f"capture {rank_of(step)}"):
        raise RuntimeError("operation not permitted when stream is capturing")
    step._graph = Feigned(step)
    tell(step, "captured")
    return "pool"


def feign() -> None:
    """Capture on a CPU."""
    fill = StaticStep._fill

    def filled(step: StaticStep, works: Any) -> Any:
        step.held = fill(step, works)
        return step.held

    StaticStep._fill, StaticStep.warm_up, StaticStep.capture = filled, warm_up, capture
    groups.TorchMemory = FeignedMemory
    if os.environ.get(FAULT) == "sums kill 0":
        worker.attach = lambda *fds: tuple(Connection(int(fd)) for fd in fds)
    runners.captures_graphs = lambda settings, model: settings.graphs == "auto"


def answers(settings: EngineSettings) -> tuple[dict[str, list[int]], bool]:
    """Tokens of a few requests side by side, and whether graphs were used."""
    is_one = settings.tensor_parallel == 1
    ranks = None if is_one else Ranks.start(settings, worker=MODULE)
    shard = Shard() if ranks is None else ranks.shard
    runner = Runner(load_part(settings, shard), settings, ranks)
    runner.prepare(lambda _done, _count, _what: None)
    engine = Engine(runner, Tokenizer.from_dir(settings.model_dir), settings)
    found: dict[str, list[int]] = {}
    for number, length in enumerate((3, 40)):
        params = SamplingParams(temperature=0.8 * number, seed=number, max_tokens=8 + number, ignore_eos=True)
        ids = [(7 * place + number) % 250 for place in range(length)]
        engine.add(Add(request_id=str(number), token_ids=ids, params=params))
    while engine.has_work:
        for report in engine.step():
            if isinstance(report, Generated):
                found.setdefault(report.request_id, []).extend(report.token_ids)
    has_graphs = runner.has_graphs
    if os.environ[FAULT] == "sums kill 0":
        os.kill(os.getpid(), signal.SIGKILL)
    engine.close()
    return found, has_graphs


def main() -> None:
    """Print whether two ranks answer as one does, as JSON."""
    folder, os.environ[FAULT] = sys.argv[1:]
    one = EngineSettings(
        model_dir=folder,
        dtype="float64",
        cache_bytes=8 << 20,
        max_model_len=256,
        max_running=2,
        speculation="off",
        exactness="off",
        graphs="off",
    )
    two = replace(one, threads=2, tensor_parallel=2, expert_parallel=2, graphs="auto")
    if os.environ[FAULT].startswith("sums"):
        two = replace(two, dtype="float32")
        found = answers(replace(two, sums="symmetric"))
        num_sums = FeignedMemory.num_sums
        is_same = found == answers(two)
        others = FeignedMemory.num_sums - num_sums
        print(json.dumps({"is_same": is_same, "num_sums": num_sums, "without": others}))
        return
    found, has_graphs = answers(two)
    print(json.dumps({"is_same": found == answers(one)[0], "has_graphs": has_graphs}))


if __name__ == "__main__":
    feign()
    if sys.argv[1].isdigit():
        sys.exit(worker.main(sys.argv[1:], load_part))
    main()
