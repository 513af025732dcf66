"""Step `tokens`: the tiny models through the real engine, on several ranks and on one, token for token.

Several ranks pad short passes to fixed shapes, one rank does not. Models that the ranks cannot divide are
made wider first (`widened.py`); one rank runs the same file, whose numbers are compared with those that came
with the model. Beside tokens, the hits of each tier must be equal.
"""

import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from k3agent.backend import parity
from k3agent.backend.bench import rank_results as results
from k3agent.backend.bench.widened import widen
from k3agent.backend.config import ModelConfig
from k3agent.backend.errors import BackendError
from k3agent.backend.model.weights import load_model
from k3agent.backend.parallel.shard import check_layout

AT_ONCE, AT_ONCE_CPU = 3, 1
DTYPE = "float64"
"""In which only a real difference changes a token."""
Lives = list[dict[str, Any]]


def models(fixtures: Path) -> list[Path]:
    """The folders that hold a model."""
    found = sorted(file.parent for file in fixtures.glob("*/config.json"))
    if not found:
        raise BackendError(f"{fixtures} holds no folder with a config.json; copy the tiny models there")
    return found


def deviation(source: Path, wide: Path) -> tuple[float, bool]:
    """Largest difference of logits from those that came with the model, and whether all likeliest tokens are
    the same. Always on a CPU.
    """
    expected = parity.read_oracle(source)
    model = load_model(wide, torch.float64, vision=False)
    found = parity.run(model, expected["input_ids"].long())["logits"]
    width = expected["logits"].shape[-1]
    difference = (found[:, :width] - expected["logits"].double()).abs().max()
    return float(difference), bool((found.argmax(-1) == expected["logits"].argmax(-1)).all())


def fitting(config: ModelConfig, ranks: int) -> list[tuple[int, int]]:
    """The layouts that this model can have."""
    found = []
    for layout in results.layouts(ranks):
        try:
            check_layout(config, *layout)
        except BackendError as error:
            print(f"left out: {error}", flush=True)
            continue
        found.append(layout)
    return found


def play(
    folder: Path,
    ranks: int,
    dealt: int,
    device: str,
    limit_s: float,
    graphs: str,
    dtype: str = DTYPE,
    sums: str = "auto",
) -> Lives:
    """Two lives of an engine in a process of its own."""
    with tempfile.TemporaryDirectory() as disk:
        flags = ["--tp", str(ranks), "--expert-parallel", str(dealt), "--device", device, "--dtype", dtype]
        flags += ["--graphs", graphs, "--sums", sums]
        ended = subprocess.run(
            [
                sys.executable,
                "-P",
                "-m",
                "k3agent.backend.bench.rank_play",
                str(folder),
                *flags,
                "--disk",
                disk,
            ],
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    if ended.returncode:
        raise BackendError(f"status {ended.returncode}: {ended.stderr[-1500:]}")
    return json.loads(ended.stdout.strip().splitlines()[-1])


def by_tier(lives: Lives) -> str:
    """Cached tokens of all requests."""
    total: dict[str, int] = {}
    for life in lives:
        for hit in life["cached"].values():
            for tier, count in hit.items():
                total[tier] = total.get(tier, 0) + count
    return ", ".join(f"{count} {tier}" for tier, count in total.items())


def other_hits(found: Lives, expected: Lives) -> str:
    """The requests whose cached tokens differ, the first ones by name; empty if none do."""
    others = [
        f"{name} of life {number}: {hits} instead of {life['cached'].get(name)}"
        for number, (own, life) in enumerate(zip(found, expected, strict=True), 1)
        for name, hits in own["cached"].items()
        if hits != life["cached"].get(name)
    ]
    return f"; {len(others)} requests found other prefixes: {', '.join(others[:3])}" if others else ""


def judge(table: results.Table, name: str, layout: str, found: Lives | str, expected: Lives | str) -> None:
    """Rows of one layout beside one rank; a text is what went wrong."""
    if isinstance(found, str) or isinstance(expected, str):
        table.fail(f"{name}, tokens", layout, found if isinstance(found, str) else f"one rank: {expected}")
        return
    tokens = [life["tokens"] for life in found]
    count = sum(len(ids) for life in tokens for ids in life.values())
    is_same = tokens == [life["tokens"] for life in expected]
    table.add(f"{name}, {count} tokens of 2 lives", layout, "the same" if is_same else "others", is_same)
    others = other_hits(found, expected)
    table.add(f"{name}, cached tokens", layout, f"{by_tier(found)}{others}", not others)


def main(arguments: list[str]) -> int:
    options = results.parser("tokens", __doc__).parse_args(arguments)
    deadline = time.monotonic() + options.limit_s
    table = results.Table("tokens", options.out, options.device)
    with tempfile.TemporaryDirectory() as work:
        jobs: list[tuple[Path, Path, int, int]] = []
        for source in models(options.fixtures):
            wide = Path(work) / source.name
            config = widen(source, wide, options.ranks)
            jobs += [(source, wide, *layout) for layout in [(1, 1), *fitting(config, options.ranks)]]

        def run(job: tuple[Path, Path, int, int]) -> Lives | str:
            _, wide, ranks, dealt = job
            try:
                left = deadline - time.monotonic()
                graphs = "padded" if ranks > 1 else "off"
                return (
                    play(wide, ranks, dealt, options.device, left, graphs) if left > 0 else "no time was left"
                )
            except subprocess.TimeoutExpired:
                return "not over when the time was"
            except (BackendError, ValueError) as error:
                return str(error)

        # each engine leaves a GPU idle most of the time
        with ThreadPoolExecutor(AT_ONCE if options.device != "cpu" else AT_ONCE_CPU) as pool:
            alone: Lives | str = ""
            for (source, wide, ranks, dealt), found in zip(jobs, pool.map(run, jobs), strict=True):
                layout = results.name_of(ranks, dealt)
                if ranks > 1:
                    judge(table, source.name, layout, found, alone)
                    continue
                alone = found
                largest, is_same = deviation(source, wide)
                value = f"{largest:.1e} at most, likeliest tokens {'the same' if is_same else 'others'}"
                table.add(f"{source.name}, logits beside its own", layout, value, is_same)
    return table.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
