"""Parameters, network, optimizer and balancing as one object that takes steps, measures and remembers its
state.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from k3agent.backend.config import ModelConfig
from k3agent.backend.errors import BackendError
from k3agent.backend.training.balancing import step_bias, update_bias
from k3agent.backend.training.data import Feed, HostBatch
from k3agent.backend.training.expert_batches import Batching
from k3agent.backend.training.network import Batch, Network, Outcome
from k3agent.backend.training.optimizer import Optimizer, Settings
from k3agent.backend.training.parameters import Parameters
from k3agent.backend.training.quantize import refresh
from k3agent.backend.training.recurrence import Documents
from k3agent.backend.training.shares import Shares, experts_of
from k3agent.backend.training.team import Team
from k3agent.backend.training.variants import QUANTILE, SIGN, Variant

STATE_FILE = "state.pt"
SIGN_RATE = 1e-3
"""Step of the bias where balancing goes by sign, as DeepSeek-V3 has it."""
OF_MATRICES = ("momentum", "second_of_matrices")
"""State of the optimizer that lies as the matrices do."""
KEEP_BIAS = 0.8
"""Share of the balancing bias that a step keeps: a batch's quantile is noisy, routing changes slowly."""


State = Mapping[str, Any]
"""What a training goes on from, of the whole model whatever the number of ranks."""


def write(folder: Path, state: State) -> None:
    """Write a state; the old one stays until the new one is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{STATE_FILE}.partial"
    torch.save(state, partial)
    partial.replace(folder / STATE_FILE)


def to_device(host: HostBatch, device: torch.device) -> Batch:
    """Copy a batch on the current stream; from pinned memory, so that a GPU's copy waits for nobody."""
    names = ("token_ids", "labels", "weights", "position", "offsets")
    arrays = {name: getattr(host, name) for name in names}
    for name in ("token_ids", "labels"):
        arrays[name] = arrays[name].astype("int64")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if device.type == "cuda":
        tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
    moved = {name: tensors[name].to(device, non_blocking=True) for name in names[:4]}
    documents = Documents.of(tensors["offsets"], device, host.shared)
    documents.prepare()
    position = moved["position"][:, None]
    return Batch(moved["token_ids"], moved["labels"], moved["weights"], position, documents)


def refresh_all(parameters: Parameters, *, rounded: bool) -> None:
    """Make the compute copies those of the masters, matrices rounded to MXFP4 if asked."""
    with torch.no_grad():
        refresh(parameters.matrices.compute, parameters.matrices.master, rounded=rounded)
        refresh(parameters.vectors.compute, parameters.vectors.master, rounded=False)


class DeviceFeed:
    """Batches on the device, copied one ahead on a stream of their own."""

    def __init__(self, feed: Feed, device: torch.device) -> None:
        self.feed, self.device = feed, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ahead: tuple[HostBatch, Batch] | None = None
        # Memory of a batch is reused by the copying stream: keep it until its step is surely over.
        self._kept: deque[Batch] = deque(maxlen=16)

    def prefetch(self) -> None:
        """Fetch the next batch unless it is here already. Waits for the workers, never for the device."""
        if self._ahead is not None:
            return
        host = self.feed.next()
        if self._stream is None:
            self._ahead = (host, to_device(host, self.device))
            return
        with torch.cuda.stream(self._stream):
            self._ahead = (host, to_device(host, self.device))

    def next(self) -> tuple[HostBatch, Batch]:
        self.prefetch()
        assert self._ahead is not None
        ahead, self._ahead = self._ahead, None
        if self._stream is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._stream)
        self._kept.append(ahead[1])
        return ahead


@dataclass
class Measures:
    """Sums over steps since they were last read."""

    steps: int
    loss: float
    assistant_loss: float
    assistant_accuracy: float
    loads: Tensor
    num_lost: int = 0
    """Choices of experts that found no place."""


class Trainer:
    """One model in training on one device; with a team, the same model on the devices of all ranks."""

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        *,
        dtype: torch.dtype,
        compiled: bool,
        seed: int,
        settings: Settings | None = None,
        team: Team | None = None,
        variant: Variant | None = None,
        batching: Batching | None = None,
    ) -> None:
        self.config, self.device, self.variant = config, device, variant or Variant()
        self.team = team or Team()
        is_dealt = batching is not None and batching.is_parallel
        self._shares = Shares(config, self.team) if is_dealt else None
        experts = experts_of(config, self.team.rank, self.team.world) if is_dealt else None
        self.parameters = Parameters(config, dtype, device, experts)
        self._dtype = dtype
        self._initialise(seed)
        self.network = Network(config, self.parameters, compiled=compiled, batching=batching, team=self.team)
        settings = replace(settings or Settings(), matrices=self.variant.matrices)
        self.optimizer = Optimizer(self.parameters, settings, compiled=compiled, team=self.team)
        self.num_steps = 0
        self.num_tokens = 0
        self.progress = 0.0
        self._sums = torch.zeros(6, dtype=torch.float64, device=device)
        self._loads = torch.zeros_like(self.network.bias)
        self.marks: list[torch.cuda.Event] = []

    def _initialise(self, seed: int) -> None:
        if self._shares is None:
            self.parameters.initialise(seed)
            return
        whole = self.whole_on_cpu()
        whole.initialise(seed)
        self.take(whole)

    def whole_on_cpu(self) -> Parameters:
        """Parameters of the whole model, unset, in host memory."""
        return Parameters(self.config, self._dtype, torch.device("cpu"))

    def take(self, whole: Parameters) -> None:
        """Set the masters, and the plain compute copies, to what this rank has of the whole."""
        matrices, vectors = whole.matrices.master, whole.vectors.master
        self.parameters.matrices.master.copy_(self._shares.own(matrices) if self._shares else matrices)
        self.parameters.vectors.master.copy_(vectors)
        self.refresh(rounded=False)

    def _mark(self, wanted: bool) -> None:
        if wanted and self.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)

    def step(
        self, batch: Batch, factor: float, *, rounded: bool, timed: bool = False, share: float = 1.0
    ) -> None:
        """One optimizer step. `rounded`: the compute copy for the next step is rounded to MXFP4. `share`:
        this batch's part of the loss weights of all ranks, which makes the step that of one large batch.
        """
        self.marks = []
        self.network.is_rounding = rounded and self.variant.round_inputs
        self._mark(timed)
        outcome = self.network.forward(batch)
        self._mark(timed)
        loss = outcome.loss if self.team.world == 1 else outcome.loss * share
        loss.backward()
        self._mark(timed)
        self.optimizer.step(factor, rounded=rounded)
        with torch.no_grad():
            self._balance(outcome)
            self._sums[0] += 1
            self._sums[1] += loss.detach()
            self._sums[2:5] += outcome.stats
            self._sums[5] += outcome.num_lost
            self._loads += outcome.loads
        self._mark(timed)
        self.num_steps += 1
        self.num_tokens += batch.token_ids.shape[0] * self.team.world

    def _balance(self, outcome: Outcome) -> None:
        """Set the bias for the next step from this one's routing, on all ranks alike."""
        if self.variant.balancing == QUANTILE:
            margins = self.team.gather(outcome.margins)
            update_bias(self.network.bias, margins, self.config.num_experts_per_token, KEEP_BIAS)
        elif self.variant.balancing == SIGN:
            loads = outcome.loads.clone()
            self.team.add_up(loads)
            step_bias(self.network.bias, loads, SIGN_RATE)

    def split_ms(self) -> dict[str, float]:
        """Milliseconds of the parts of the last timed step. Waits for the device."""
        if len(self.marks) != 4:
            return {}
        torch.cuda.synchronize(self.device)
        names = ("forward_ms", "backward_ms", "optimizer_ms")
        pairs = zip(names, self.marks[:-1], self.marks[1:], strict=True)
        return {name: round(start.elapsed_time(end), 2) for name, start, end in pairs}

    def read_measures(self) -> Measures:
        """Means over all ranks since the last reading. Waits for the device."""
        self.team.add_up(self._sums, self._loads)
        count, loss, total, right, tokens, lost = self._sums.tolist()
        count /= self.team.world
        loads = self._loads.cpu().clone()
        self._sums.zero_()
        self._loads.zero_()
        tokens = max(tokens, 1.0)
        return Measures(int(count), loss / max(count, 1.0), total / tokens, right / tokens, loads, int(lost))

    def evaluate(self, batches: list[Batch], state: State | None = None) -> tuple[float, float]:
        """Loss and accuracy over assistant tokens. Where this rank has only some experts, `state` is that of
        the whole. Runs with gradients on: without, all units would compile anew.
        """
        network = self.network
        if self._shares is not None:
            assert state is not None
            network = self._whole_network(state)
        sums = torch.zeros(3, dtype=torch.float64, device=self.device)
        for batch in batches:
            sums += network.forward(batch).stats
        total, right, tokens = sums.tolist()
        return total / max(tokens, 1.0), right / max(tokens, 1.0)

    def _whole_network(self, state: State) -> Network:
        """The model with all experts on this rank's device, rounded as the file has it."""
        whole = Parameters(self.config, self._dtype, self.device)
        whole.matrices.master.copy_(state["matrices"])
        whole.vectors.master.copy_(state["vectors"])
        refresh_all(whole, rounded=self.variant.round_weights)
        network = Network(self.config, whole)
        network.bias.copy_(self.network.bias)
        return network

    def refresh(self, *, rounded: bool) -> None:
        """Make the compute copies those of the masters."""
        refresh_all(self.parameters, rounded=rounded)

    def align(self, *, rounded: bool) -> float:
        """Give all ranks the state of rank 0; returns how far they were apart, ideally 0."""
        p, optimizer = self.parameters, self.optimizer
        with torch.no_grad():
            apart = self.team.align(
                p.matrices.common(p.matrices.master),
                p.vectors.master,
                p.matrices.common(optimizer.momentum),
                optimizer.first,
                optimizer.second,
                self.network.bias,
            )
        if apart != 0:
            self.refresh(rounded=rounded)
        return apart

    def collect(self) -> State:
        """The whole state, for `write`. With dealt experts all ranks are to call this together."""
        optimizer = {
            name: self._whole(value) if name in OF_MATRICES and isinstance(value, Tensor) else value
            for name, value in self.optimizer.state().items()
        }
        return {
            "variant": asdict(self.variant),
            "matrices": self._whole(self.parameters.matrices.master),
            "vectors": self.parameters.vectors.master,
            "optimizer": optimizer,
            "bias": self.network.bias,
            "num_steps": self.num_steps,
            "num_tokens": self.num_tokens,
            "progress": self.progress,
        }

    def parameters_of(self, state: State) -> Parameters:
        """Parameters of the whole model: this rank's own, or, where it has only some experts, a copy in host
        memory.
        """
        if self._shares is None:
            return self.parameters
        whole = self.whole_on_cpu()
        whole.matrices.master.copy_(state["matrices"])
        whole.vectors.master.copy_(state["vectors"])
        return whole

    def save(self, folder: Path) -> None:
        """Write the whole state of a single rank."""
        write(folder, self.collect())

    def _whole(self, flat: Tensor) -> Tensor:
        return flat if self._shares is None else self._shares.whole(flat)

    def _own(self, whole: Tensor) -> Tensor:
        return whole if self._shares is None else self._shares.own(whole)

    def load(self, folder: Path) -> None:
        """Go on from a saved state. Call `refresh` afterwards."""
        state = torch.load(folder / STATE_FILE, map_location=self.device, weights_only=True)
        saved = state.get("variant", asdict(Variant()))
        if saved != asdict(self.variant):
            raise BackendError(
                f"{folder / STATE_FILE} was trained with {saved}, not with {asdict(self.variant)}. Give the"
                " same switches, or start anew from its exported weights with --init."
            )
        self.parameters.matrices.master.copy_(self._own(state["matrices"]))
        self.parameters.vectors.master.copy_(state["vectors"])
        moments = state["optimizer"]
        own = {name: self._own(moments[name]) for name in OF_MATRICES if name in moments}
        self.optimizer.load_state(moments | own)
        self.network.bias.copy_(state["bias"])
        self.num_steps, self.num_tokens = int(state["num_steps"]), int(state["num_tokens"])
        self.progress = float(state["progress"])
