"""A rehearsal on the GPU: compile everything, check against a CPU, time ten steps, and pack the compiled
kernels.

The check runs the whole batch through the compiled network but scores only its first documents, which a CPU
can afford: documents do not see each other, so logits, loss and gradients of the rest drop out.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from k3agent.backend.training import export
from k3agent.backend.training.compiled import pack_cache, start_compiling, wait_all
from k3agent.backend.training.data import HostBatch, StagePlan, pack, synthetic_stream
from k3agent.backend.training.loop import make_trainer
from k3agent.backend.training.network import Batch, Network
from k3agent.backend.training.parameters import Parameters
from k3agent.backend.training.recurrence import Documents
from k3agent.backend.training.run import constant_beginning
from k3agent.backend.training.trainer import Trainer, to_device

NUM_STEPS = 10
CHECKED_TOKENS = 1024
NUM_COMPILERS = 10
LOGIT_LIMIT = 0.05
GRADIENT_LIMIT = 0.15
"""Largest relative errors of bf16 against fp32 that pass; a wrong term gives 0.5 and more."""


class Report:
    """Prints each finding when it is there, and keeps all for report.json."""

    def __init__(self, started: float) -> None:
        self._started = started
        self.findings: dict[str, Any] = {}

    def add(self, **findings: Any) -> None:
        self.findings.update(findings)
        print(json.dumps({"seconds": round(time.monotonic() - self._started, 1), **findings}), flush=True)


def shared_beginning(options: argparse.Namespace) -> np.ndarray:
    return constant_beginning() if options.shared_beginning else np.zeros(0, np.uint16)


def fake_batch(options: argparse.Namespace, vocab: int, seed: int) -> HostBatch:
    """Documents of the usual lengths that repeat themselves: the loss falls when copying is learnt."""
    rng = np.random.default_rng(seed)
    stage = str(vocab)

    def documents() -> Any:
        for document in synthetic_stream(seed, 0, stage=stage):
            repeats = int(rng.integers(3, 60))
            document.token_ids = np.tile(document.token_ids, repeats)
            document.loss_weight = np.tile(document.loss_weight, repeats)
            yield stage, document

    def with_beginning() -> Any:
        for name, document in documents():
            document.token_ids = np.concatenate((beginning, document.token_ids))
            document.loss_weight = np.concatenate((np.zeros(len(beginning)), document.loss_weight))
            yield name, document

    beginning = shared_beginning(options)
    return pack(with_beginning(), options.tokens, options.max_length, vocab - 5, beginning)


def score_only(host: HostBatch, num_tokens: int) -> int:
    """Give loss to the first documents only, about `num_tokens` tokens; returns where they end."""
    end = int(host.offsets[np.searchsorted(host.offsets, host.shared + num_tokens)])
    host.weights[end:] = 0.0
    return end


def cpu_reference(trainer: Trainer, batch: Batch, end: int) -> tuple[float, Tensor, dict[str, Tensor]]:
    """Loss, logits and gradients of the first `end` tokens in fp32 on the CPU, with the same rounded
    weights.
    """
    cpu = torch.device("cpu")
    torch.set_num_threads(12)
    parameters = Parameters(trainer.config, torch.float32, cpu)
    for mine, theirs in (
        (parameters.matrices, trainer.parameters.matrices),
        (parameters.vectors, trainer.parameters.vectors),
    ):
        mine.compute.copy_(theirs.compute.float())
        mine.master.copy_(theirs.master)
    network = Network(trainer.config, parameters)
    network.bias.copy_(trainer.network.bias)
    offsets = batch.documents.offsets_cpu
    first = Batch(
        batch.token_ids[:end].cpu(),
        batch.labels[:end].cpu(),
        batch.weights[:end].cpu(),
        batch.position[:end].cpu(),
        Documents.of(offsets[offsets <= end], cpu, batch.documents.shared),
    )
    with torch.no_grad():
        logits = network.logits(first)
    loss = network.forward(first).loss
    loss.backward()
    grads = {name: leaf.grad for name, leaf in parameters.leaves.items() if leaf.grad is not None}
    return float(loss.detach()), logits, grads


def relative(a: Tensor, b: Tensor) -> float:
    a, b = a.detach().double().cpu(), b.detach().double().cpu()
    return float((a - b).norm() / b.norm().clamp_min(1e-30))


def check(trainer: Trainer, options: argparse.Namespace, report: Report) -> bool:
    """Compare the compiled bf16 network with the fp32 one on a CPU. True: within the limits."""
    host = fake_batch(options, trainer.config.vocab_size, 77)
    end = score_only(host, CHECKED_TOKENS)
    batch = to_device(host, trainer.device)
    start = time.monotonic()
    loss, logits, grads = cpu_reference(trainer, batch, end)
    report.add(cpu_reference_s=round(time.monotonic() - start, 1), checked_tokens=end)
    outcome = trainer.network.forward(batch)
    outcome.loss.backward()
    errors = {
        name: relative(leaf.grad, grads[name])
        for name, leaf in trainer.parameters.leaves.items()
        if leaf.grad is not None and name in grads and grads[name].norm() > 1e-6
    }
    for leaf in trainer.parameters.leaves.values():
        leaf.grad = None
    got = trainer.network.logits(batch)[:end]
    worst = sorted(errors.items(), key=lambda item: -item[1])[:8]
    median = sorted(errors.values())[len(errors) // 2]
    logit_error = relative(got, logits)
    passed = logit_error < LOGIT_LIMIT and median < GRADIENT_LIMIT
    report.add(
        logit_error=round(logit_error, 5),
        loss_gpu=round(float(outcome.loss.detach()), 5),
        loss_cpu=round(loss, 5),
        gradient_error_median=round(median, 5),
        gradient_errors_worst={name: round(error, 4) for name, error in worst},
        num_gradients=len(errors),
        agrees=passed,
    )
    return passed


def stand_in(
    q: Tensor, k: Tensor, v: Tensor, z: Tensor, b: Tensor, A_log: Tensor, dt_bias: Tensor, *rest: Any
) -> Tensor:
    """Has KDA's shapes and gradients, and needs no compiling: lets the rest compile while KDA does
    elsewhere.
    """
    scale = (A_log.sum() + dt_bias.sum()).to(v.dtype) * 0
    return v + (q + k + z) * b[..., None] * 1e-3 + scale


def compile_all(trainer: Trainer, batch: Batch, options: argparse.Namespace, report: Report) -> None:
    """Compile the KDA kernels in processes of their own and the rest meanwhile here."""
    linear = trainer.config.linear_attn_config
    start = time.monotonic()
    processes = start_compiling(
        NUM_COMPILERS, options.tokens, batch.documents.shared, linear.num_heads, linear.head_dim
    )
    real: Callable = trainer.network.mixer
    trainer.network.mixer = stand_in
    trainer.step(batch, 0.0, rounded=False)
    torch.cuda.synchronize()
    report.add(compile_units_s=round(time.monotonic() - start, 1))
    trainer.network.mixer = real
    failed = wait_all(processes)
    report.add(compile_kernels_s=round(time.monotonic() - start, 1), compilers_failed=failed)


def time_steps(trainer: Trainer, options: argparse.Namespace, report: Report) -> None:
    batches = [
        to_device(fake_batch(options, trainer.config.vocab_size, seed), trainer.device) for seed in range(4)
    ]
    start = time.monotonic()
    trainer.step(batches[0], 0.1, rounded=True)
    torch.cuda.synchronize()
    report.add(first_step_s=round(time.monotonic() - start, 1))
    losses, splits = [trainer.read_measures().loss], []
    for i in range(3):
        trainer.step(batches[i], 0.3, rounded=True, timed=True)
        splits.append(trainer.split_ms())
    losses.append(trainer.read_measures().loss)
    start = time.monotonic()
    for i in range(NUM_STEPS):
        trainer.step(batches[i % 4], 1.0, rounded=i % 2 == 0)
    queued_s = time.monotonic() - start
    torch.cuda.synchronize()
    seconds = time.monotonic() - start
    measures = trainer.read_measures()
    report.add(
        losses=[round(loss, 4) for loss in (*losses, measures.loss)],
        step_ms=round(seconds / NUM_STEPS * 1e3, 1),
        host_ms=round(queued_s / NUM_STEPS * 1e3, 1),
        tokens_per_s=round(options.tokens * NUM_STEPS / seconds),
        split=splits[-1],
        peak_gib=round(torch.cuda.max_memory_allocated() / 2**30, 1),
        loads=[int(x) for x in measures.loads[0].tolist()],
    )


def profile(trainer: Trainer, options: argparse.Namespace, report: Report) -> None:
    """The kernels that take longest in one step."""
    batch = to_device(fake_batch(options, trainer.config.vocab_size, 5), trainer.device)
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as seen:
        trainer.step(batch, 1.0, rounded=True)
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda row: -row.self_device_time_total)[:25]
    report.add(
        kernels={f"{row.key[:70]} x{row.count}": round(row.self_device_time_total / 1e3, 2) for row in rows},
        num_launches=sum(row.count for row in seen.key_averages()),
    )


def preflight(options: argparse.Namespace, started: float) -> int:
    """Run the rehearsal; returns 0 when the network agrees with the CPU."""
    report = Report(started)
    StagePlan.parse(options.stage_plan)
    trainer, _ = make_trainer(options)
    import fla  # lazy: only where there is a GPU  # pyright: ignore[reportMissingImports]
    import triton  # pyright: ignore[reportMissingImports]

    report.add(
        python=platform.python_version(),
        torch=torch.__version__,
        triton=triton.__version__,
        fla=fla.__version__,
        device=torch.cuda.get_device_name(),
        parameters=trainer.parameters.num_parameters,
    )
    trainer.refresh(rounded=False)
    batch = to_device(fake_batch(options, trainer.config.vocab_size, 0), trainer.device)
    compile_all(trainer, batch, options, report)
    fresh, _ = make_trainer(options)
    # The rehearsal's steps with the stand-in are undone, its compiled units kept.
    trainer.parameters.matrices.master.copy_(fresh.parameters.matrices.master)
    trainer.parameters.vectors.master.copy_(fresh.parameters.vectors.master)
    trainer.optimizer.load_state(fresh.optimizer.state())
    del fresh
    trainer.network.bias.zero_()
    trainer.refresh(rounded=True)
    time_steps(trainer, options, report)
    passed = check(trainer, options, report)
    profile(trainer, options, report)
    if options.cache_to:
        parts = pack_cache(options.cache, options.cache_to)
        report.add(cache_parts={part.name: part.stat().st_size for part in parts})
    export_check(trainer, options.out, report)
    (options.out / "preflight.json").write_text(
        json.dumps(report.findings, indent=2) + "\n", encoding="utf-8"
    )
    return 0 if passed else 1


def export_check(trainer: Trainer, out: Path, report: Report) -> None:
    """The file's rounding and the kernel's are one: exported matrices equal the compute copy bit for bit."""
    start = time.monotonic()
    trainer.refresh(rounded=True)
    before = trainer.parameters.matrices.compute.clone()
    export.compute_as_exported(trainer.parameters)
    differing = int((before != trainer.parameters.matrices.compute).sum())
    folder = out.parent / "preflight-weights"
    export.write_folder(folder, export.nano_config(), trainer.parameters, trainer.network.bias)
    size = (folder / export.WEIGHTS_FILE).stat().st_size
    report.add(rounding_differs=differing, file_bytes=size, export_s=round(time.monotonic() - start, 1))
