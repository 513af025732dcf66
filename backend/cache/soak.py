"""`python -m k3agent.backend.cache.soak`: random work on the cache as long as wanted, checked at each step.

Matches, chunks, decodes, checkpoints, ends, aborts, preemptions, evictions, idle work, restarts and damaged
files in any order, on a toy network whose every number shows a mistake.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from k3agent.backend.cache.interfaces import Exactness
from k3agent.backend.cache.record_file import SUFFIX
from k3agent.backend.cache.tiers import HostTier
from k3agent.backend.cache.tiers_disk import DiskTier
from k3agent.backend.cache.toy import ToyEngine, ToySequence

_NUM_PAGES, _NUM_SLOTS = 40, 9
_MAX_TOKENS = 60


class Soak:
    """One random run. `folder` is where its disk tier lies; None leaves the lower tiers out."""

    def __init__(self, seed: int, folder: Path | None, exactness: Exactness = "idle") -> None:
        self.random = random.Random(seed)
        self.folder = folder
        self.exactness: Exactness = exactness
        self.alive: list[ToySequence] = []
        self.background: ToySequence | None = None
        self.transcripts: list[list[int]] = [[0]]
        self.done: Counter[str] = Counter()
        self.engine = self._open()

    def _open(self) -> ToyEngine:
        host = disk = None
        if self.folder is not None:
            host = HostTier(self.random.choice([0, 400, 4000])) if self.random.random() < 0.8 else None
            disk = DiskTier(self.folder, "toy", quota_bytes=self.random.choice([4000, 40_000]))
        return ToyEngine.open(_NUM_PAGES, _NUM_SLOTS, self.exactness, host, disk)

    def step(self) -> None:
        """Do one random thing, then check everything."""
        actions: dict[Callable[[], None], int] = {
            self.start: 6,
            self.prefill: 14,
            self.decode: 14,
            self.file: 3,
            self.publish: 2,
            self.finish: 6,
            self.abort: 2,
            self.preempt: 2,
            self.idle: 6,
            self.look: 2,
            self.evict: 2,
            self.flush: 1,
        }
        action = self.random.choices(list(actions), list(actions.values()))[0]
        if self.random.random() < 0.004:
            action = self.random.choice([self.clear, self.restart])
        action()
        self.done[action.__name__] += 1
        self.check()

    def check(self) -> None:
        """Raise AssertionError if anything is wrong."""
        self.engine.cache.check()
        for sequence in self.alive:
            self.engine.check(sequence)
        if self.background is not None:
            self.engine.check(self.background)

    def end(self) -> None:
        """Release everything; nothing may be left held."""
        for sequence in list(self.alive):
            self._leave(sequence)
        self._leave_background()
        cache = self.engine.cache
        cache.clear()
        cache.check()
        ledger = cache.ledger()
        assert (ledger.tree_pages, ledger.private_pages, ledger.running_slots) == (0, 0, 0), ledger
        assert ledger.free_slots == _NUM_SLOTS and ledger.free_pages == _NUM_PAGES, ledger
        cache.close()

    # --- what can happen

    def start(self) -> None:
        base = self.random.choice(self.transcripts)
        kept = base[: self.random.randint(1, len(base))] if self.random.random() < 0.4 else base
        new = [self.random.randint(0, 1) for _ in range(self.random.randint(1, 14))]
        token_ids = [*kept, *new][:_MAX_TOKENS]
        sequence = self.engine.start(token_ids)
        if sequence is not None:
            assert sequence.num_computed < len(token_ids)
            self.alive.append(sequence)
            self._remember(token_ids)

    def _remember(self, token_ids: list[int]) -> None:
        self.transcripts.append(list(token_ids))
        if len(self.transcripts) > 12:
            del self.transcripts[self.random.randrange(12)]

    def _any(self) -> ToySequence | None:
        return self.random.choice(self.alive) if self.alive else None

    def prefill(self) -> None:
        sequence = self._any()
        if sequence is not None and sequence.num_computed < len(sequence.token_ids):
            stop = sequence.num_computed + self.random.randint(1, 8) if self.random.random() < 0.2 else None
            self.engine.prefill(sequence, stop)
            if self.random.random() < 0.5:
                self.engine.cache.checkpoint(sequence)

    def decode(self) -> None:
        sequence = self._any()
        if sequence is not None and sequence.num_computed == len(sequence.token_ids) < _MAX_TOKENS:
            self.engine.decode(sequence, self.random.randint(0, 1))

    def file(self) -> None:
        if sequence := self._any():
            self.engine.cache.checkpoint(sequence)

    def publish(self) -> None:
        if sequence := self._any():
            self.engine.cache.publish(sequence)

    def finish(self) -> None:
        if sequence := self._any():
            self.engine.cache.checkpoint(sequence, give_slot=True)
            self._remember(sequence.token_ids)
            self._leave(sequence)

    def abort(self) -> None:
        if sequence := self._any():
            self._leave(sequence)

    def preempt(self) -> None:
        """Publish and release, then an ordinary match: there is no other way back."""
        if sequence := self._any():
            self.engine.cache.checkpoint(sequence, give_slot=True)
            self._leave(sequence)
            again = self.engine.start(sequence.token_ids + [0] * (len(sequence.token_ids) == 0))
            if again is not None:
                self.alive.append(again)

    def _leave(self, sequence: ToySequence) -> None:
        self.engine.cache.release(sequence)
        self.engine.cache.release(sequence)
        self.alive.remove(sequence)

    def idle(self) -> None:
        """One chunk of idle work, or its end; it may be given up at any point."""
        cache = self.engine.cache
        if self.background is None:
            token_ids = cache.next_inexact()
            if token_ids is not None:
                self.background = self.engine.start(token_ids, exact_only=True)
                if self.background is None:
                    cache.skip_inexact(token_ids)
        elif self.background.num_computed < len(self.background.token_ids):
            if self.random.random() < 0.1 or not self.engine.prefill(self.background):
                self._leave_background()
        else:
            cache.checkpoint(self.background, give_slot=True)
            self._leave_background()

    def _leave_background(self) -> None:
        if self.background is not None:
            self.engine.cache.skip_inexact(self.background.token_ids)
            self.engine.cache.release(self.background)
            self.background = None

    def look(self) -> None:
        base = self.random.choice(self.transcripts)
        prefix = self.engine.cache.match(base)
        assert prefix.state_len <= prefix.kv_len <= len(base)
        assert prefix.state_len < len(base)
        self.engine.cache.check()
        if self.random.random() < 0.5:
            self.evict()
        self.engine.cache.drop(prefix)
        self.engine.cache.drop(prefix)

    def evict(self) -> None:
        resident = self.engine.cache.resident
        if self.random.random() < 0.5:
            resident.evict_page()
        else:
            resident.evict_state()

    def flush(self) -> None:
        assert self.engine.cache.flush(60)

    def clear(self) -> None:
        self.engine.cache.clear()

    def restart(self) -> None:
        """All sequences are gone; the disk is what was written, now and then with a damaged file."""
        self.alive, self.background = [], None
        self.engine.cache.close()
        if self.folder is not None:
            for path in sorted(self.folder.glob(f"*{SUFFIX}")):
                if self.random.random() < 0.05:
                    self._damage(path)
        self.engine = self._open()

    def _damage(self, path: Path) -> None:
        content = bytearray(path.read_bytes())
        kind = self.random.randrange(3)
        if kind == 0:
            content = content[: self.random.randrange(len(content))]
        elif kind == 1:
            content[self.random.randrange(len(content))] ^= 1 << self.random.randrange(8)
        else:
            content += b"more"
        path.write_bytes(content)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m k3agent.backend.cache.soak", description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--exactness", choices=["idle", "always", "off"], default="idle")
    parser.add_argument("--no-tiers", action="store_true", help="device memory alone")
    options = parser.parse_args(arguments)
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(options.seed, None if options.no_tiers else Path(folder), options.exactness)
        for number in range(options.steps):
            try:
                soak.step()
            except AssertionError as error:
                print(f"step {number} of seed {options.seed}: {error}", file=sys.stderr)
                return 1
        soak.end()
    seconds = time.perf_counter() - begun
    print(f"{options.steps} steps in {seconds:.1f} s, no fault: {dict(soak.done)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
