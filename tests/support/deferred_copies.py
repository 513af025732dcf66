"""Copies that wait as long as they may, as on a busy GPU: who does not wait for them reads old content."""

from collections import deque
from collections.abc import Callable

import torch

from k3agent.backend.engine.copies import Copies, Work


class DeferredCopies(Copies):
    """One queue, run in its order up to what somebody waits for."""

    def __init__(self) -> None:
        self._queue: deque[tuple[int | None, Work]] = deque()
        self.num_deferred = 0

    def upload(self, layer: int | None, work: Work) -> None:
        self._queue.append((layer, work))
        self.num_deferred += 1

    def download(self, work: Work) -> None:
        self.upload(None, work)

    def await_layer(self, layer: int) -> None:
        if any(waiting == layer for waiting, _ in self._queue):
            last = max(place for place, (waiting, _) in enumerate(self._queue) if waiting == layer)
            self._run(last + 1)

    def await_all(self) -> None:
        layers = [place for place, (layer, _) in enumerate(self._queue) if layer is not None]
        self._run(layers[-1] + 1 if layers else 0)

    def settled(self) -> Callable[[], None]:
        """The writer's thread calls it; the content must be whole then."""
        self._run(len(self._queue))
        return lambda: None

    @torch.inference_mode()
    def _run(self, count: int) -> None:
        for _ in range(count):
            self._queue.popleft()[1]()
