"""Step `graphs`: several ranks that replay CUDA graphs give the tokens of the same ranks without, and end
when one of them is killed.

What is compared runs at the same fixed shapes with the same kernels, so it must be equal to the bit, although
in bf16, for which there are kernels that a graph can hold. That these shapes give one rank's tokens, the step
`tokens` shows in float64. With `--sums symmetric` graphs hold small sums through symmetric memory, which
on two ranks are compared with sums by NCCL: two numbers have one sum.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from k3agent.backend.bench import rank_results as results
from k3agent.backend.bench.rank_server import Server, kill
from k3agent.backend.bench.rank_tokens import Lives, fitting, models, other_hits, play
from k3agent.backend.bench.widened import widen
from k3agent.backend.config import ModelConfig
from k3agent.backend.errors import BackendError

AT_ONCE, AT_ONCE_CPU = 2, 1
"""Ranks of several engines wait for each other by turns on the same GPUs."""
DTYPE = "bfloat16"
WITHOUT, WITH = "padded", "auto"
GIVEN_UP = "no CUDA graphs"
"""What a rank says that could not capture."""
_KILLED_AFTER_S = 0.3
"""Graphs are quick: a second later the answer is there."""


@dataclass(frozen=True)
class Job:
    """One model at one layout, with graphs or without."""

    name: str
    folder: Path
    ranks: int
    dealt: int
    graphs: str
    sums: str = "auto"

    @property
    def layout(self) -> str:
        return results.name_of(self.ranks, self.dealt)


def jobs(fixtures: Path, work: Path, ranks: int, sums: str = "auto") -> list[Job]:
    """Both ways of each layout side by side. Of models that differ in nothing but the type of their numbers
    or their encoder of images, which no prompt asks here, one is enough."""
    made: list[Job] = []
    seen: list[ModelConfig] = []
    for source in models(fixtures):
        folder = work / source.name
        config = widen(source, folder, ranks)
        text = replace(config, vision_config=None)
        if text in seen:
            continue
        seen.append(text)
        made += [
            Job(source.name, folder, *layout, *way)
            for layout in fitting(config, ranks)
            for way in ((WITHOUT, sums if ranks > 2 else "auto"), (WITH, sums))
        ]
    return made


def judge(table: results.Table, job: Job, without: Lives | str, found: Lives | str) -> None:
    """A row about a layout with graphs beside the same without; a text is what went wrong."""
    near = ", sums by symmetric memory" if job.sums == "symmetric" else ""
    what = f"{job.name}, tokens with graphs{near} beside those without"
    if isinstance(without, str) or isinstance(found, str):
        table.fail(what, job.layout, found if isinstance(found, str) else f"without: {without}")
        return
    if table.device != "cpu":
        used = [life["has_graphs"] for life in (*without, *found)]
        table.add(f"{job.name}, graphs", job.layout, f"{used}", used == [False, False, True, True])
        if near:
            used = [life["is_symmetric"] for life in found]
            table.add(f"{job.name}{near}", job.layout, f"{used}", all(used))
    pairs = [
        (ids, life["tokens"].get(name))
        for first, life in zip(without, found, strict=True)
        for name, ids in first["tokens"].items()
    ]
    num_same = sum(ids == others for ids, others in pairs)
    count, others = sum(len(ids) for ids, _ in pairs), other_hits(found, without)
    value = f"{num_same} of {len(pairs)} answers the same, {count} tokens{others}"
    table.add(what, job.layout, value, num_same == len(pairs) and not others)


def kill_in_replay(job: Job, folder: Path, options: argparse.Namespace, table: results.Table) -> None:
    """A server that replays graphs, and its last rank killed meanwhile."""
    flags = ("--dtype", DTYPE, "--graphs", WITH, "--sums", options.sums)
    try:
        with Server(job.folder, folder, options, job.ranks, job.dealt, flags) as server:
            server.name += ", with graphs"
            found = server.ask("hi", max_tokens=8, ignore_eos=True)["status"]
            has_failed = GIVEN_UP in server.messages
            value = f"status {found}, {'a' if has_failed else 'no'} capture failed"
            table.add(f"{job.name}, a request", server.name, value, found == 200 and not has_failed)
            kill(server, job.ranks - 1, table, _KILLED_AFTER_S)
    except (BackendError, httpx.HTTPError) as error:
        table.fail("server", f"{job.layout}, with graphs", error)


def main(arguments: list[str]) -> int:
    options = results.parser("graphs", __doc__).parse_args(arguments)
    deadline = time.monotonic() + options.limit_s
    table = results.Table("graphs", options.out, options.device)

    def run(job: Job) -> Lives | str:
        left = deadline - time.monotonic()
        if left <= 0:
            return "no time was left"
        try:
            ways = (job.graphs, DTYPE, job.sums)
            return play(job.folder, job.ranks, job.dealt, options.device, left, *ways)
        except subprocess.TimeoutExpired:
            return "not over when the time was"
        except (BackendError, ValueError) as error:
            return str(error)

    with tempfile.TemporaryDirectory() as work:
        several = jobs(options.fixtures, Path(work), options.ranks, options.sums)
        with ThreadPoolExecutor(AT_ONCE if options.device != "cpu" else AT_ONCE_CPU) as pool:
            killing = pool.submit(kill_in_replay, several[0], Path(work), options, table)
            found = pool.map(run, several)
            for job, without in zip(several[1::2], found, strict=False):
                judge(table, job, without, next(found))
            killing.result()
    return table.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
