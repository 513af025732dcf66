"""DiskTier: pages and states that survive a restart, in a folder of content-addressed files.

One process writes to a folder; others that open it only read. An entry that is torn, of another model or
build, or gone is ignored and counted, never guessed at. Writing is by a thread; everything else, the index
too, belongs to the engine's thread.
"""

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from k3agent.backend.cache.disk_writer import DiskWriter, Write, at_once
from k3agent.backend.cache.interfaces import Buffer
from k3agent.backend.cache.keys import root_key
from k3agent.backend.cache.radix import Tokens
from k3agent.backend.cache.record_file import (
    SUFFIX,
    Header,
    TornFileError,
    encode_tokens,
    make_part,
    part_offsets,
    read_header,
    read_part,
)
from k3agent.backend.cache.tiers import NO_STATES, LostRecordError, PageRecord, StateRecord
from k3agent.backend.cache.values import SUPERSEDED_CHANCE, ValueHeap, score
from k3agent.backend.errors import BackendError

log = logging.getLogger(__name__)

RUN_PAGES = 64
"""Pages in one file at most."""
SECONDS_PER_REQUEST = 10.0
"""How the age of a file found at start compares with the age of one in use."""


@dataclass(slots=True)
class DiskCounters:
    """Sums since the folder was opened."""

    torn: int = 0
    """Entries that were damaged or cut off."""
    foreign: int = 0
    """Entries of another model, precision or build."""
    written_bytes: int = 0
    skipped_writes: int = 0
    """Not written: outdated before their turn, too large, or the queue was full."""
    failed_writes: int = 0
    evicted_files: int = 0


@dataclass(slots=True, eq=False)
class _File:
    path: Path
    header: Header
    num_bytes: int
    last_used: float
    chance: float = 1.0
    offsets: list[int] = field(default_factory=list)

    @property
    def value(self) -> float:
        header = self.header
        if header.kind == "state":
            return score(header.saved_tokens, self.chance, self.last_used, self.num_bytes)
        num_tokens = sum(part.num_tokens for part in header.parts)
        return score(num_tokens, self.chance, self.last_used, self.num_bytes) - 1e-7 * header.start

    def read(self, index: int) -> tuple[Tokens, bytearray]:
        if not self.offsets:
            self.offsets = part_offsets(self.header)
        return read_part(self.path, self.header.parts[index], self.offsets[index])


class DiskTier:
    """The folder's index, its quota and its writer. `fingerprint` names weights, precision, kernels, grid."""

    def __init__(
        self, folder: str | Path, fingerprint: str, quota_bytes: int, staging_bytes: int = 512 << 20
    ) -> None:
        self.folder = Path(folder)
        self.fingerprint = fingerprint
        self.quota_bytes = quota_bytes
        self.counters = DiskCounters()
        self.used_bytes = 0
        """Of files, those of other fingerprints included."""
        self.staged_bytes = 0
        """Of host copies that wait for the writer."""
        self._staging_limit = staging_bytes
        self._mark = root_key(fingerprint).hex()
        self._files: dict[Path, _File] = {}
        self._pages: dict[bytes, tuple[_File, int]] = {}
        self._states: dict[bytes, dict[Tokens, _File]] = {}
        self._waiting_pages: set[bytes] = set()
        self._waiting_states: dict[tuple[bytes, Tokens], Write] = {}
        self._leaving: ValueHeap[_File] = ValueHeap()
        self._writer = DiskWriter(self.folder)
        self._lock: int | None = None
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = self._take_lock()
            self._scan()
        except OSError as error:
            self.close()
            raise BackendError(
                f"the cache folder {self.folder} cannot be used: {error}; name another one or none"
            ) from error

    @property
    def is_writable(self) -> bool:
        return self._lock is not None

    def _take_lock(self) -> int | None:
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except PermissionError:
            log.warning("the cache in %s may not be written to; it is only read", self.folder)
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            log.warning("another process writes to the cache in %s; it is only read here", self.folder)
            return None
        return descriptor

    # --- the folder at start

    def _scan(self) -> None:
        now = time.time()
        for path in self.folder.iterdir():
            if path.name.startswith("tmp-") and self.is_writable:
                _unlink(path)
            if path.suffix != SUFFIX or not path.is_file():
                continue
            try:
                header = read_header(path)
                age = now - path.stat().st_mtime
                num_bytes = path.stat().st_size
            except FileNotFoundError:
                continue
            except (OSError, TornFileError) as error:
                log.info("a cache entry is ignored: %s", error)
                self.counters.torn += 1
                if self.is_writable:
                    _unlink(path)
                continue
            file = _File(path, header, num_bytes, -max(age, 0.0) / SECONDS_PER_REQUEST)
            if header.fingerprint != self._mark:
                self.counters.foreign += 1
            self._index(file)
        self._make_room(0)

    def _index(self, file: _File) -> None:
        header = file.header
        former = self._files.get(file.path)
        if former is not None:
            self._unindex(former)
        self._files[file.path] = file
        self.used_bytes += file.num_bytes
        self._leaving.put(file, file.value)
        if header.fingerprint != self._mark:
            return
        if header.kind == "state":
            tails = self._states.setdefault(bytes.fromhex(header.parts[0].key), {})
            known = tails.get(header.tail)
            if known is None or not known.header.is_exact[0]:
                tails[header.tail] = file
            return
        for index, part in enumerate(header.parts):
            key = bytes.fromhex(part.key)
            if not self.page_is_exact(key):
                self._pages[key] = (file, index)

    def _unindex(self, file: _File) -> None:
        del self._files[file.path]
        self.used_bytes -= file.num_bytes
        self._leaving.discard(file)
        for part in file.header.parts:
            key = bytes.fromhex(part.key)
            if self._pages.get(key, (None, 0))[0] is file:
                del self._pages[key]
            tails = self._states.get(key, {})
            if tails.get(file.header.tail) is file:
                del tails[file.header.tail]
                if not tails:
                    del self._states[key]

    def _remove(self, file: _File) -> None:
        self._unindex(file)
        if self.is_writable:
            _unlink(file.path)

    def _make_room(self, num_bytes: int) -> bool:
        """Evict until `num_bytes` more fit beside what is there and what waits."""
        while self.used_bytes + self.staged_bytes + num_bytes > self.quota_bytes:
            file = self._leaving.pop() if self.is_writable else None
            if file is None:
                return False
            self._remove(file)
            self.counters.evicted_files += 1
        return True

    # --- looking up

    def page_is_exact(self, key: bytes) -> bool | None:
        found = self._pages.get(key)
        return None if found is None else found[0].header.is_exact[found[1]]

    def states_at(self, key: bytes) -> Mapping[Tokens, bool]:
        found = self._states.get(key)
        return {tail: file.header.is_exact[0] for tail, file in found.items()} if found else NO_STATES

    def load_page(self, key: bytes, tokens: Tokens, now: int) -> Buffer:
        found = self._pages.get(key)
        if found is None:
            raise LostRecordError(f"a page left {self.folder} meanwhile; match again")
        file, index = found
        found_tokens, data = self._read(file, index, now)
        if found_tokens != tokens:
            self._lose(file, f"{file.path.name} holds other tokens than its name says")
        return data

    def load_state(self, key: bytes, tail: Tokens, now: int) -> tuple[Buffer, Buffer | None]:
        file = self._states.get(key, {}).get(tail)
        if file is None:
            raise LostRecordError(f"a state left {self.folder} meanwhile; match again")
        _, state = self._read(file, 0, now)
        tail_page = self._read(file, 1, now)[1] if tail and len(file.header.parts) > 1 else None
        return state, tail_page

    def _read(self, file: _File, index: int, now: int) -> tuple[Tokens, bytearray]:
        try:
            content = file.read(index)
        except (OSError, TornFileError) as error:
            self._lose(file, str(error))
        self._touch(file, now)
        return content

    def _lose(self, file: _File, why: str) -> NoReturn:
        self.counters.torn += 1
        self._remove(file)
        log.warning("a cache entry is ignored: %s", why)
        raise LostRecordError(why)

    def _touch(self, file: _File, now: int) -> None:
        if file.last_used != now:
            file.last_used = now
            self._leaving.put(file, file.value)
            if self.is_writable:
                try:
                    os.utime(file.path)
                except OSError:
                    log.info("the age of %s could not be set", file.path)

    # --- saving

    def lacks_page(self, key: bytes, is_exact: bool) -> bool:
        """Must a page be saved? Not if it is here or on its way, unless it is exact and that is not."""
        if key in self._waiting_pages:
            return False
        known = self.page_is_exact(key)
        return known is None or (is_exact and not known)

    def lacks_state(self, key: bytes, tail: Tokens, is_exact: bool) -> bool:
        known = self._states.get(key, {}).get(tail)
        return (key, tail) not in self._waiting_states and (
            known is None or (is_exact and not known.header.is_exact[0])
        )

    def has_space(self, num_bytes: int) -> bool:
        """Asked before host copies of that size are made."""
        if not self.is_writable or num_bytes > self.quota_bytes:
            return False
        return not self.staged_bytes or self.staged_bytes + num_bytes <= self._staging_limit

    def touch_path(self, keys: list[bytes], now: int) -> None:
        """These pages are in use above: they are worth as much here."""
        files = {self._pages[key][0]: None for key in keys if key in self._pages}
        for file in files:
            self._touch(file, now)

    def save(
        self,
        pages: list[PageRecord],
        state: StateRecord,
        now: int,
        settled: Callable[[], None] = at_once,
    ) -> bool:
        """Queue a state with the pages that are missing below it; False if there is no room for it. Their
        content is there once `settled` returns, which the writer calls."""
        writes = [self._run(run) for run in _runs(pages)]
        writes.append(self._state(state))
        if not self._make_room(sum(write.num_bytes for write in writes)):
            self.counters.skipped_writes += 1
            return False
        self._waiting_pages.update(page.key for page in pages)
        self._waiting_states[state.key, state.tail] = writes[-1]
        for write in writes:
            self.staged_bytes += write.num_bytes
            write.settled = settled
            self._writer.submit(write)
        return True

    def _run(self, pages: list[PageRecord]) -> Write:
        parts = [make_part(page.key.hex(), page.tokens, page.data) for page in pages]
        is_exact = [page.is_exact for page in pages]
        header = Header("pages", self._mark, pages[0].start, is_exact, parts)
        classes = sum(exact << place for place, exact in enumerate(is_exact))
        name = f"p-{pages[-1].key.hex()}-{len(pages)}-{classes:x}{SUFFIX}"
        contents = [(page.tokens, page.data) for page in pages]
        return Write(self.folder / name, header, contents, part_offsets(header)[-1])

    def _state(self, state: StateRecord) -> Write:
        parts = [make_part(state.key.hex(), (), state.state)]
        contents: list[tuple[Tokens, Buffer]] = [((), state.state)]
        if state.tail_page is not None:
            parts.append(make_part(state.key.hex(), (), state.tail_page))
            contents.append(((), state.tail_page))
        header = Header(
            "state", self._mark, state.position, [state.is_exact], parts, state.tail, state.saved_tokens
        )
        tail = hashlib.blake2b(encode_tokens(state.tail), digest_size=8).hexdigest()
        name = f"s-{state.key.hex()}-{tail}{'a' if state.is_exact else 'b'}{SUFFIX}"
        return Write(self.folder / name, header, contents, part_offsets(header)[-1])

    def poll(self, now: int) -> None:
        """Make visible what the writer has finished."""
        for write in self._writer.finished():
            self.staged_bytes -= write.num_bytes
            header = write.header
            keys = [bytes.fromhex(part.key) for part in header.parts]
            if header.kind == "pages":
                self._waiting_pages.difference_update(keys)
            else:
                self._waiting_states.pop((keys[0], header.tail), None)
            if write.outcome == "written":
                file = _File(write.path, header, write.num_bytes, now)
                file.chance = 1.0 if write.is_wanted else SUPERSEDED_CHANCE
                self.counters.written_bytes += write.num_bytes
                self._index(file)
            elif write.outcome == "skipped":
                self.counters.skipped_writes += 1
            else:
                self.counters.failed_writes += 1

    def demote(self, key: bytes, tail: Tokens) -> None:
        waiting = self._waiting_states.get((key, tail))
        if waiting is not None:
            waiting.is_wanted = False
        file = self._states.get(key, {}).get(tail)
        if file is not None:
            file.chance = SUPERSEDED_CHANCE
            self._leaving.put(file, file.value)

    def forget_state(self, key: bytes, tail: Tokens) -> None:
        self.demote(key, tail)
        file = self._states.get(key, {}).get(tail)
        if file is not None:
            self._remove(file)

    def flush(self, now: int = 0, timeout_s: float | None = None) -> bool:
        """Wait until all that was saved is on disk; False if that takes longer."""
        done = self._writer.flush(timeout_s)
        self.poll(now)
        return done

    def close(self) -> None:
        """Write what waits, and let another process write here."""
        self._writer.close()
        self.poll(0)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def check(self) -> None:
        """Raise AssertionError unless the index, its bytes and its quota agree."""
        total = sum(file.num_bytes for file in self._files.values())
        if total != self.used_bytes:
            raise AssertionError(f"disk tier: {total} bytes in files, {self.used_bytes} counted")
        if self.is_writable and self.used_bytes + self.staged_bytes > self.quota_bytes:
            raise AssertionError(f"disk tier: {self.used_bytes} bytes, {self.quota_bytes} allowed")
        if any(self._files.get(file.path) is not file for file, _ in self._pages.values()):
            raise AssertionError("disk tier: a page is listed in a file that is not")


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("the cache entry %s could not be removed: %s", path, error)


def _runs(pages: list[PageRecord]) -> list[list[PageRecord]]:
    """Neighbouring pages together, in files of at most RUN_PAGES."""
    runs: list[list[PageRecord]] = []
    for page in pages:
        last = runs[-1] if runs else None
        if last and len(last) < RUN_PAGES and last[-1].start + len(last[-1].tokens) == page.start:
            last.append(page)
        else:
            runs.append([page])
    return runs
