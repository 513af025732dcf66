"""The training loop: a schedule by the clock, a log, saved states, and an export however it ends.

Of several ranks, rank 0 has the clock, evaluates and writes everything; the others follow its plan.
"""

import argparse
import json
import logging
import math
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from k3agent.backend.parallel.processes import RankProcesses
from k3agent.backend.training import export, plots, variants
from k3agent.backend.training.balancing import imbalance
from k3agent.backend.training.compiled import pack_cache, trim_autotuners
from k3agent.backend.training.data import Feed, FeedError, HostBatch
from k3agent.backend.training.expert_batches import Batching
from k3agent.backend.training.network import Batch
from k3agent.backend.training.optimizer import Settings, rate_factor
from k3agent.backend.training.parameters import Parameters
from k3agent.backend.training.team import Plan, Team, join, lead
from k3agent.backend.training.trainer import (
    STATE_FILE,
    DeviceFeed,
    Measures,
    State,
    Trainer,
    to_device,
    write,
)

log = logging.getLogger(__name__)

NOT_FINITE = "a loss that is not finite"


@dataclass
class Clock:
    """Progress in 0..1 through the whole schedule, from the time that this command has."""

    end: float
    progress_from: float
    progress_to: float
    first_step: float | None = None

    def progress(self) -> float:
        """Counted from the first step, so that compiling does not eat the warm-up."""
        now = time.monotonic()
        if self.first_step is None:
            self.first_step = now
        share = (now - self.first_step) / max(self.end - self.first_step, 1e-3)
        return self.progress_from + (self.progress_to - self.progress_from) * min(share, 1.0)

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.end


class Journal:
    """log.jsonl and standard output, of rank 0 alone."""

    def __init__(self, file: Path, started: float, rank: int = 0) -> None:
        self.file, self._started, self._rank = file, started, rank
        self.records: list[dict[str, Any]] = []

    def write(self, **record: Any) -> None:
        if self._rank:
            return
        record = {"seconds": round(time.monotonic() - self._started, 1), **record}
        self.records.append(record)
        line = json.dumps(record)
        with self.file.open("a", encoding="utf-8") as out:
            out.write(line + "\n")
        print(line, flush=True)


def prepare_torch(device: torch.device) -> None:
    """Global settings of torch for training."""
    # The router's products are of bf16 values, which TF32 holds exactly.
    torch.set_float32_matmul_precision("high")
    if device.type == "cuda":
        torch._dynamo.config.recompile_limit = 64
        torch._dynamo.config.automatic_dynamic_shapes = False
        trim_autotuners()


def batching_of(options: argparse.Namespace) -> Batching | None:
    """How experts run: None for one wide product of all."""
    if options.experts == "wide" and not options.expert_parallel:
        return None
    return Batching(options.room, options.expert_parallel)


def make_trainer(options: argparse.Namespace, team: Team | None = None) -> tuple[Trainer, dict[str, Any]]:
    """The model that the options ask for, fresh, and its config.json."""
    device = torch.device(options.device)
    prepare_torch(device)
    on_gpu = device.type == "cuda"
    variant = variants.of_options(options)
    raw = variant.config(export.tiny_config(64) if options.tiny else export.nano_config())
    # What follows AGENTS.md is a family of the second edition.
    raw["k3agent"]["instructions"] = options.second_share != 0
    trainer = Trainer(
        export.model_config(raw),
        device,
        dtype=torch.bfloat16 if on_gpu else torch.float32,
        compiled=on_gpu,
        seed=options.seed,
        settings=Settings(muon_rate=options.muon_rate, adam_rate=options.adam_rate),
        team=team,
        variant=variant,
        batching=batching_of(options),
    )
    return trainer, raw


class Run:
    """One rank's training in one command. `train` and `follow` below are its life."""

    def __init__(
        self,
        options: argparse.Namespace,
        feeds: dict[str, Feed],
        started: float,
        team: Team | None = None,
    ) -> None:
        self.options = options
        self.team = team or Team()
        self._eval_feeds = {name: feed for name, feed in feeds.items() if name != "train"}
        self.journal = Journal(options.out / "log.jsonl", started, self.team.rank)
        self.trainer, self._raw_config = make_trainer(options, self.team)
        self.feed = DeviceFeed(feeds["train"], self.trainer.device)
        if options.resume:
            self.trainer.load(options.resume)
        elif options.init:
            whole = self.trainer.whole_on_cpu() if options.expert_parallel else self.trainer.parameters
            export.read_masters(options.init, whole, self.trainer.network.bias)
            self.trainer.take(whole)
        progress_from = self.trainer.progress if options.progress_from is None else options.progress_from
        end = started + options.minutes * 60 - options.reserve_s
        self.clock = Clock(end, progress_from, options.progress_to)
        self._rounds_weights = self.trainer.variant.round_weights
        self.rounded = self._rounds_weights and progress_from >= options.quantize_from
        self.trainer.refresh(rounded=self.rounded)
        self.trainer.align(rounded=self.rounded)
        self.stopped: str | None = None
        self._eval_batches: dict[str, list[Batch]] = {}
        now = time.monotonic()
        self._last: dict[str, float] = dict.fromkeys(("log", "eval", "save"), now)
        self._log_start = (now, self.trainer.num_tokens, 0.0)
        self._stages: dict[str, int] = {}

    def stop(self, signum: int, frame: FrameType | None) -> None:
        """Signal handler: end after the present step, and export."""
        self.stopped = signal.Signals(signum).name

    def _due(self, what: str, every_s: float) -> bool:
        now = time.monotonic()
        if now - self._last[what] < every_s:
            return False
        self._last[what] = now
        return True

    def sum_ms(self) -> dict[str, float]:
        """How long the gradients of all ranks take to add up, which is the price of a second GPU."""
        if self.team.world == 1:
            return {}
        return {"sum_ms": round(self.team.time_sum_ms(self.trainer.parameters.matrices.grad), 2)}

    def _fetch(self) -> tuple[HostBatch, Batch] | None:
        """The next batch; None, and the wish to stop, when there will be none."""
        try:
            return self.feed.next()
        except FeedError as error:
            self.stopped = str(error)
            log.exception("the feed has ended; exporting what there is")
            return None

    def _plan(self, host: HostBatch | None, is_first: bool) -> Plan:
        """What comes next, by rank 0's clock; nothing more if any rank has to stop."""
        options, team = self.options, self.team
        wish = Plan(
            progress=self.clock.progress(),
            is_logged=is_first or self._due("log", options.log_every_s),
            is_saved=self._due("save", options.save_every_s),
            is_over=self.stopped is not None or (team.rank == 0 and self.clock.is_over),
            weight=float(host.weights.sum(dtype="float64")) if host and team.world > 1 else 0.0,
        )
        plan = team.agree(wish)
        if plan.is_over and not wish.is_over and team.rank == 0:
            self.stopped = "another rank"
        return plan

    def steps(self) -> None:
        """Step until the clock, a signal or an ended feed says stop."""
        options, trainer, is_first = self.options, self.trainer, True
        ready = self._fetch()
        while not (plan := self._plan(ready and ready[0], is_first)).is_over:
            assert ready is not None
            host, batch = ready
            for stage, count in host.stages.items():
                self._stages[stage] = self._stages.get(stage, 0) + count
            trainer.progress = progress = plan.progress
            self.feed.feed.set_progress(progress)
            if self._rounds_weights and not self.rounded and progress >= options.quantize_from:
                self.rounded = True
                self.journal.write(
                    event="rounding on", tokens=trainer.num_tokens, progress=round(progress, 4)
                )
            factor = rate_factor(progress, options.warmup, options.fall_from)
            trainer.step(batch, factor, rounded=self.rounded, timed=plan.is_logged, share=plan.weight)
            # The device works on the step meanwhile.
            ready = self._fetch()
            if plan.is_logged:
                self.log_progress(factor)
            if is_first:
                is_first, self.clock.first_step = False, time.monotonic()
            if plan.is_saved:
                self.save()

    def log_progress(self, factor: float) -> None:
        """Read the measures of all ranks (waits for the device), evaluate when due, and write a record."""
        trainer, feed = self.trainer, self.feed.feed
        measures = trainer.read_measures()
        if not math.isfinite(measures.loss):
            self.stopped = NOT_FINITE
        counts = [feed.num_ready, feed.num_batches, feed.num_repeated, feed.num_failures]
        waited_s, *counts = self.team.sums([feed.waited_s, *counts])
        if self.team.rank:
            return
        queue, fresh, repeated, failures = map(int, counts)
        now, (then, tokens, waited) = time.monotonic(), self._log_start
        seconds = max(now - then, 1e-6)
        uneven = imbalance(measures.loads)
        record: dict[str, Any] = {
            "step": trainer.num_steps,
            "tokens": trainer.num_tokens,
            "progress": round(trainer.progress, 4),
            "factor": round(factor, 4),
            "rounded": self.rounded,
            "loss": round(measures.loss, 5),
            "assistant_loss": round(measures.assistant_loss, 5),
            "assistant_accuracy": round(measures.assistant_accuracy, 5),
            "assistant_error": round(1 - measures.assistant_accuracy, 6),
            "imbalance_max": round(float(uneven.max()), 3),
            "imbalance_mean": round(float(uneven.mean()), 3),
            **self.lost(measures),
            "tokens_per_s": round((trainer.num_tokens - tokens) / seconds),
            "starved_share": round((waited_s - waited) / seconds / self.team.world, 3),
            "queue": queue,
            "fresh_batches": fresh,
            "repeated_batches": repeated,
            "worker_failures": failures,
            "stages": self._stages,
            **trainer.split_ms(),
        }
        if trainer.device.type == "cuda":
            record["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
        if not self.options.expert_parallel and self._due("eval", self.options.eval_every_s):
            record.update(self.evaluate())
        self.journal.write(**record)
        self._stages = {}
        # After the evaluation, which is not to count as training time.
        self._log_start = (time.monotonic(), trainer.num_tokens, waited_s)

    def lost(self, measures: Measures) -> dict[str, float]:
        """The share of choices that found no place, where experts have places."""
        if batching_of(self.options) is None:
            return {}
        return {"lost_share": round(measures.num_lost / max(float(measures.loads.sum()), 1.0), 6)}

    def evaluate(self, state: State | None = None) -> dict[str, float]:
        """Measures on the evaluation batches, which are collected the first time. With dealt experts the
        whole model is needed.
        """
        found: dict[str, float] = {}
        for name, feed in list(self._eval_feeds.items()):
            if name not in self._eval_batches:
                try:
                    hosts = [feed.next() for _ in range(self.options.eval_batches)]
                except FeedError as error:
                    self.stopped = str(error)
                    log.exception("nothing to evaluate on")
                    del self._eval_feeds[name]
                    continue
                self._eval_batches[name] = [to_device(host, self.trainer.device) for host in hosts]
                feed.close()
            loss, accuracy = self.trainer.evaluate(self._eval_batches[name], state)
            found |= {f"{name}_loss": round(loss, 6), f"{name}_error": round(1 - accuracy, 6)}
        return found

    def save(self) -> None:
        """Write what there is by now."""
        state, apart = self.collect()
        if self.team.rank:
            return
        found = self.evaluate(state) if self.options.expert_parallel else {}
        self.write(state, **({"ranks_apart": apart} if self.team.world > 1 else {}), **found)

    def collect(self) -> tuple[State, float]:
        """The whole state, and how far ranks were apart before they were given rank 0's."""
        apart = self.trainer.align(rounded=self.rounded)
        return self.trainer.collect(), apart

    def write(self, state: State, **found: float) -> None:
        """The full state to the local disk, the weights to the output folder; `found` goes into the log."""
        start = time.monotonic()
        write(self.options.state, state)
        self.export(self.trainer.parameters_of(state))
        took_s = round(time.monotonic() - start, 2)
        self.journal.write(event="saved", tokens=self.trainer.num_tokens, took_s=took_s, **found)

    def export(self, parameters: Parameters) -> None:
        """Write the weights folder beside the state, and its files, long ones in parts, to the output."""
        folder, out = self.options.state / "weights", self.options.out
        export.write_folder(folder, self._raw_config, parameters, self.trainer.network.bias)
        for name in ("nano.tiktoken", "tokenizer_config.json"):
            if (self.options.tokenizer / name).is_file() and not self.options.tiny:
                shutil.copyfile(self.options.tokenizer / name, folder / name)
        (folder / "SHA256SUMS").write_text(export.checksums(folder), encoding="utf-8")
        for old in out.glob(f"{export.WEIGHTS_FILE}.part*"):
            old.unlink()
        export.split_file(folder / export.WEIGHTS_FILE, out)
        for name in ("config.json", "SHA256SUMS"):
            shutil.copyfile(folder / name, out / name)

    def end_steps(self) -> tuple[State, float]:
        """The last that all ranks do together."""
        self.log_progress(0.0)
        return self.collect()

    def finish(self, processes: RankProcesses | None = None) -> None:
        """Last measures, state, export, plot and a summary."""
        state, apart = self.end_steps()
        is_alone = processes is None
        if processes:
            processes.ask_to_stop()
            self.team.leave()
        final = self.evaluate(state)
        self.write(state, **({} if is_alone else {"ranks_apart": apart}))
        plots.draw(self.journal.records, self.options.out / "curves.png")
        records = [record for record in self.journal.records if record.get("tokens_per_s")]
        rates = sorted(record["tokens_per_s"] for record in records[1:]) or [0]
        report: Mapping[str, Any] = {
            "tokens": self.trainer.num_tokens,
            "steps": self.trainer.num_steps,
            "progress": round(self.trainer.progress, 4),
            "parameters": self.trainer.parameters.num_parameters,
            "median_tokens_per_s": rates[len(rates) // 2],
            "starved_share": max((record["starved_share"] for record in records[1:]), default=0.0),
            "stopped_by": self.stopped or "the clock",
            "join": f"cat {export.WEIGHTS_FILE}.part* > {export.WEIGHTS_FILE}",
            "options": {name: str(value) for name, value in vars(self.options).items()},
            "torch": torch.__version__,
            **final,
        }
        (self.options.out / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        self.journal.write(event="finished", **{k: v for k, v in report.items() if k != "options"})


def train(
    options: argparse.Namespace,
    feeds: dict[str, Feed],
    started: float,
    processes: RankProcesses | None = None,
) -> int:
    """Train as rank 0, beside those in `processes`, save and export; returns the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    team = lead(options, processes) if processes else Team()
    run = Run(options, feeds, started, team)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, run.stop)
    run.journal.write(
        event="started",
        tokens=run.trainer.num_tokens,
        progress=run.clock.progress_from,
        torch=torch.__version__,
        **({"ranks": team.world, "pids": processes.pids} if processes else {}),
        **run.sum_ms(),
    )
    run.steps()
    if run.stopped == NOT_FINITE:
        # The last saved state is sound; this one would overwrite it.
        run.journal.write(event="failed", reason=run.stopped, state=str(options.state / STATE_FILE))
        return 1
    run.finish(processes)
    if options.cache_to:
        pack_cache(options.cache, options.cache_to)
    return 0


def follow(options: argparse.Namespace, feeds: dict[str, Feed], started: float, commands: Connection) -> None:
    """Train as a rank above 0."""
    run = Run(options, feeds, started, join(options, commands))
    run.sum_ms()
    run.steps()
    if run.stopped != NOT_FINITE:
        run.end_steps()
    # Rank 0 says stop; until then this end would look like a death.
    commands.recv()
    run.team.leave()
