"""What transformers, with the kernels of fla where these are installed, needs for the same as a stand-in."""

import copy
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from k3agent.backend.bench import standins
from k3agent.backend.bench.standin_runs import Plan, Tell
from k3agent.backend.kernels.gpu import failures_of_trials

Note = Callable[[str, float], None]
"""Called with the name of a figure, that of ours, and its value."""
REPEATS, DECODE_STEPS = 8, 24
"""At most: it takes its time."""


def measure(
    name: str, plan: Plan, device: str, parts: Sequence[str], tell: Tell, note: Note, deadline: float
) -> None:
    """Note its figures, until the deadline; none where it has no such model or is not installed."""
    standin = standins.find(name)
    if standin.is_packed or importlib.util.find_spec("transformers") is None:
        return
    import transformers  # pyright: ignore[reportMissingImports]  # an optional peer

    if not hasattr(transformers, "KimiLinearForCausalLM"):
        tell("this transformers has no Kimi-Linear")
        return
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    model = _build(transformers, standin, torch.device(device))
    peer = Peer(model, torch.device(device), plan, note, deadline)
    makers = {"decode": peer.decodes, "first": peer.first_tokens, "prefill": peer.prefills}
    for part, maker in makers.items():
        if part in parts:
            try:
                maker()
            except failures_of_trials() as error:
                tell(f"transformers: {part} failed: {error}")


def _build(transformers: Any, standin: standins.Standin, device: torch.device) -> Any:
    config = transformers.KimiLinearConfig(**standin.raw())
    with torch.device("meta"):
        model = transformers.KimiLinearForCausalLM(config).to(torch.bfloat16)
    model = model.to_empty(device=device).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            columns = parameter.shape[-1] if parameter.dim() > 1 else 1
            parameter.normal_(std=columns**-0.5)
        for buffer in model.buffers():
            buffer.zero_()
    return model


class Peer:
    """One model of transformers."""

    def __init__(self, model: Any, device: torch.device, plan: Plan, note: Note, deadline: float) -> None:
        self._model, self._device, self._plan, self._note = model, device, plan, note
        self._deadline = deadline
        self._vocab_size: int = model.config.vocab_size

    def first_tokens(self) -> None:
        """Cold, and behind a prefix whose cache is copied before each try, outside of the time."""
        plan = self._plan
        prefix = self._run(self._ids(1, plan.context))
        cold = self._times(plan.cold_repeats, lambda: self._run(self._ids(1, plan.context)))
        self._note(f"cold TTFT, {plan.context} tokens", statistics.median(cold) * 1e3)
        for suffix in plan.suffixes:
            if self._is_over:
                return
            self._run(self._ids(1, suffix), copy.deepcopy(prefix))
            times = []
            for _ in range(min(plan.repeats, REPEATS)):
                cache, ids = copy.deepcopy(prefix), self._ids(1, suffix)
                times.append(self._timed(lambda ids=ids, cache=cache: self._run(ids, cache)))
                del cache
            self._note(f"warm TTFT, {plan.context} + {suffix}", statistics.median(times) * 1e3)

    def prefills(self) -> None:
        for length in self._plan.prefills:
            if self._is_over:
                return
            self._run(self._ids(1, length))
            times = self._times(3, lambda n=length: self._run(self._ids(1, n)))
            self._note(f"prefill {length}", length / statistics.median(times))

    def decodes(self) -> None:
        for users in self._plan.users:
            if self._is_over:
                return
            cache = self._run(self._ids(users, self._plan.decode_context))
            steps = min(self._plan.decode_tokens, DECODE_STEPS)
            times = self._times(steps, lambda n=users, cache=cache: self._run(self._ids(n, 1), cache))
            self._note(f"decode B={users}", users / statistics.median(times[len(times) // 4 :]))

    @property
    def _is_over(self) -> bool:
        return time.monotonic() > self._deadline

    def _times(self, count: int, call: Callable[[], Any]) -> list[float]:
        return [self._timed(call) for _ in range(count)]

    def _ids(self, users: int, length: int) -> Any:
        return torch.randint(3, self._vocab_size, (users, length), device=self._device)

    @torch.inference_mode()
    def _run(self, ids: Any, cache: Any = None) -> Any:
        """One pass, its tokens taken to the host; returns the cache."""
        out = self._model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        out.logits[:, -1].argmax(-1).tolist()
        return out.past_key_values

    def _timed(self, call: Callable[[], Any]) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        begun = time.perf_counter()
        call()
        return time.perf_counter() - begun
