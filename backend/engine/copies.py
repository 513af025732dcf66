"""Copies between a device and host memory: on a GPU on a stream of their own, beside the model's work.

What comes to the device arrives layer by layer, and a layer waits for its own part only. What leaves is
gathered in device memory first, in the order of the model's work, so that a page may be overwritten while it
still travels. On a CPU everything happens at once, through the same calls.
"""

from collections import deque
from collections.abc import Callable

import torch

Work = Callable[[], object]
_MOST_HELD = 32
"""Copies under way before the oldest is waited for: each holds memory of its size."""


class Copies:
    """Copies that are done when they are asked for."""

    def begin(self) -> None:
        """The copies that follow come after all that the device was given to do so far."""

    def upload(self, layer: int | None, work: Work) -> None:
        """Copy to the device; with `layer` that layer's part is there afterwards."""
        work()

    def download(self, work: Work) -> None:
        """Copy to the host. The content may be read after `settled`, or be uploaded again."""
        work()

    def await_layer(self, layer: int) -> None:
        """What the device is given to do from now on comes after this layer's part."""

    def await_all(self) -> None:
        """The same for all layers."""

    def settled(self) -> Callable[[], None]:
        """What waits, on any thread, until all copies asked for so far are done."""
        return lambda: None


class StreamCopies(Copies):
    """Copies on a CUDA stream, in the order in which they are asked for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._arriving: dict[int, torch.cuda.Event] = {}
        self._held: deque[tuple[torch.cuda.Event, Work]] = deque()
        """What a copy needs must live until it is done; its work refers to all of it."""

    def begin(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def upload(self, layer: int | None, work: Work) -> None:
        event = self._run(work)
        if layer is not None:
            self._arriving[layer] = event

    def download(self, work: Work) -> None:
        self._run(work)

    def _run(self, work: Work) -> torch.cuda.Event:
        with torch.cuda.stream(self._stream):
            work()
            event = torch.cuda.Event()
            event.record(self._stream)
        self._held.append((event, work))
        if len(self._held) > _MOST_HELD:
            self._held[0][0].synchronize()
        while self._held and self._held[0][0].query():
            self._held.popleft()
        return event

    def await_layer(self, layer: int) -> None:
        event = self._arriving.pop(layer, None)
        if event is not None:
            torch.cuda.current_stream(self._device).wait_event(event)

    def await_all(self) -> None:
        for layer in list(self._arriving):
            self.await_layer(layer)

    def settled(self) -> Callable[[], None]:
        event = torch.cuda.Event()
        event.record(self._stream)
        return event.synchronize


def copies_for(device: torch.device) -> Copies:
    """The kind that a device takes."""
    return StreamCopies(device) if device.type == "cuda" else Copies()
