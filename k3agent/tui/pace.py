"""How fast the model answers, as the client sees it: up to the first piece of the answer, and after it."""

from __future__ import annotations

import time
from dataclasses import dataclass

# Shorter answers come in one piece: a speed of them would be a number without meaning.
MIN_STREAM_S = 0.05


@dataclass(slots=True)
class Pace:
    """Of the last request: `first_s` until something came, `rate` tokens a second after it; 0: not known.
    `prefill` is (done, total) tokens while the server reads the prompt and says so.
    """

    first_s: float = 0.0
    rate: float = 0.0
    prefill: tuple[int, int] | None = None
    _asked_at: float = 0.0
    _first_at: float = 0.0

    def asked(self) -> None:
        """A request is about to be sent, for the first time or again."""
        self._asked_at, self._first_at, self.prefill = time.monotonic(), 0.0, None

    def reads(self, done: int, total: int) -> None:
        self.prefill = (done, total)

    def streams(self) -> None:
        """Something of the answer came."""
        if not self._first_at:
            self._first_at = time.monotonic()
            self.prefill = None

    def ended(self, num_tokens: int) -> None:
        """The answer is complete with so many tokens."""
        self.prefill = None
        if not self._first_at or not self._asked_at:
            return
        lasted = time.monotonic() - self._first_at
        self.first_s = self._first_at - self._asked_at
        self.rate = num_tokens / lasted if lasted >= MIN_STREAM_S else 0.0
