"""LowerTiers: host memory and disk as the cache uses them, for what leaves the device and what comes back."""

from dataclasses import dataclass
from typing import NamedTuple

from k3agent.backend.cache.interfaces import Buffer, TieredStorage
from k3agent.backend.cache.radix import Checkpoint, RadixNode, Tokens
from k3agent.backend.cache.tiers import HostTier, LostRecordError, PageRecord, StateRecord, Tier, TierName
from k3agent.backend.cache.tiers_disk import DiskTier
from k3agent.backend.cache.values import SUPERSEDED_CHANCE, score


@dataclass(frozen=True, slots=True)
class SavedState:
    """A state on a lower tier: after the prefix `key` and the tokens of `tail`."""

    tier: TierName
    key: bytes
    tail: Tokens
    position: int
    is_exact: bool


class SavedPage(NamedTuple):
    """A page on a lower tier, to be loaded."""

    key: bytes
    tokens: Tokens
    is_exact: bool


def place_of(checkpoint: Checkpoint) -> tuple[bytes, Tokens]:
    """How a checkpoint is named on the lower tiers."""
    node = checkpoint.node
    if checkpoint.offset == node.page_size:
        return node.key, ()
    assert node.parent is not None
    return node.parent.key, node.token_ids[: checkpoint.offset]


class LowerTiers:
    """Both tiers, either of which may be absent. Host memory is asked first."""

    def __init__(self, storage: TieredStorage, host: HostTier | None, disk: DiskTier | None) -> None:
        self.host = host
        self.disk = disk
        self._storage = storage
        self._tiers: list[tuple[TierName, Tier]] = []
        if host is not None:
            self._tiers.append(("host", host))
        if disk is not None:
            self._tiers.append(("disk", disk))

    # --- what leaves the device

    def take_page(self, node: RadixNode) -> bool:
        """Keep a copy of a page that leaves; True if any tier has it now."""
        if not node.is_full or node.page_id is None:
            return False
        host = self.host
        if host is not None and host.page_is_exact(node.key) not in (True, node.is_exact):
            num_bytes = self._storage.page_bytes
            worth = score(node.page_size, 1.0, node.last_used, num_bytes)
            if host.accepts(worth, num_bytes):
                data = self._storage.read_page(node.page_id)
                record = PageRecord(node.key, node.start, node.token_ids, node.is_exact, data)
                host.put(record, node.last_used)
        return self.page(node.key) is not None

    def take_state(self, checkpoint: Checkpoint, saved_tokens: int) -> None:
        """Keep a copy of a state that leaves the device, if it is worth that."""
        key, tail = place_of(checkpoint)
        if self.host is None or self.host.states_at(key).get(tail) in (True, checkpoint.is_exact):
            return
        num_bytes = self._storage.state_bytes + (self._storage.page_bytes if tail else 0)
        chance = SUPERSEDED_CHANCE if checkpoint.is_superseded else 1.0
        if not self.host.accepts(score(saved_tokens, chance, checkpoint.last_used, num_bytes), num_bytes):
            return
        record = self._record(checkpoint, saved_tokens)
        if record is not None:
            self.host.put(record, checkpoint.last_used, chance)

    def _record(self, checkpoint: Checkpoint, saved_tokens: int) -> StateRecord | None:
        key, tail = place_of(checkpoint)
        page = checkpoint.node.page_id
        if checkpoint.slot is None or (tail and page is None):
            return None
        tail_page = self._storage.read_page(page) if tail and page is not None else None
        state = self._storage.read_state(checkpoint.slot)
        return StateRecord(
            key, checkpoint.position, tail, checkpoint.is_exact, saved_tokens, state, tail_page
        )

    # --- what is written through

    def save(self, checkpoint: Checkpoint, saved_tokens: int, now: int) -> None:
        """Queue a new checkpoint and the pages below it for the disk."""
        disk = self.disk
        if disk is None:
            return
        disk.poll(now)
        path: list[RadixNode] = []
        node: RadixNode | None = checkpoint.node
        while node is not None and node.parent is not None:
            if node.is_full and (node is not checkpoint.node or checkpoint.offset == node.page_size):
                path.append(node)
            node = node.parent
        path.reverse()
        disk.touch_path([node.key for node in path], now)
        key, tail = place_of(checkpoint)
        if not disk.lacks_state(key, tail, checkpoint.is_exact):
            return
        missing = [node for node in path if disk.lacks_page(node.key, node.is_exact)]
        num_bytes = (len(missing) + bool(tail)) * self._storage.page_bytes + self._storage.state_bytes
        if not disk.has_space(num_bytes):
            disk.counters.skipped_writes += 1
            return
        try:
            pages = self._page_records(missing, now)
        except LostRecordError:
            return
        record = self._record(checkpoint, saved_tokens)
        if record is not None:
            disk.save(pages, record, now, self._storage.settled())

    def _page_records(self, nodes: list[RadixNode], now: int) -> list[PageRecord]:
        """Copies of pages, in order: of most at once from the device, of some from host memory."""
        resident = [node.page_id for node in nodes if node.page_id is not None]
        copies = iter(self._storage.read_pages(resident) if resident else [])
        records: list[PageRecord] = []
        for node in nodes:
            if node.page_id is not None:
                data = next(copies)
            else:
                data = self.load_page(SavedPage(node.key, node.token_ids, node.is_exact), now)[0]
            records.append(PageRecord(node.key, node.start, node.token_ids, node.is_exact, data))
        return records

    def demote(self, key: bytes, tail: Tokens) -> None:
        """A deeper state of the same lineage exists."""
        for _, tier in self._tiers:
            tier.demote(key, tail)

    def forget(self, key: bytes, tail: Tokens) -> None:
        """A class-A state has taken the place of this one."""
        for _, tier in self._tiers:
            if tier.states_at(key).get(tail) is False:
                tier.forget_state(key, tail)

    # --- what comes back

    def page(self, key: bytes) -> bool | None:
        """Is the page exact? None: no tier has it."""
        known = [tier.page_is_exact(key) for _, tier in self._tiers]
        return True if True in known else False if False in known else None

    def states_at(self, key: bytes, position: int) -> list[SavedState]:
        """States that begin after the prefix `key`, which ends at `position`."""
        found: list[SavedState] = []
        for name, tier in self._tiers:
            states = tier.states_at(key)
            if states:
                found += [
                    SavedState(name, key, tail, position + len(tail), is_exact)
                    for tail, is_exact in states.items()
                ]
        return found

    def load_page(self, page: SavedPage, now: int) -> tuple[Buffer, TierName]:
        """The page's bytes and where they were; LostRecordError when no tier has them."""
        for name, tier in self._tiers:
            known = tier.page_is_exact(page.key)
            if known is not None and (known or not page.is_exact):
                data = tier.load_page(page.key, page.tokens, now)
                _check_size(data, self._storage.page_bytes)
                return data, name
        raise LostRecordError("a page left all tiers meanwhile; match again")

    def load_state(self, state: SavedState, now: int) -> tuple[Buffer, Buffer | None]:
        tier = dict(self._tiers)[state.tier]
        data, tail_page = tier.load_state(state.key, state.tail, now)
        _check_size(data, self._storage.state_bytes)
        if state.tail:
            _check_size(tail_page or b"", self._storage.page_bytes)
        return data, tail_page


def _check_size(data: Buffer, num_bytes: int) -> None:
    """A record of another geometry is no record."""
    if len(data) != num_bytes:
        raise LostRecordError(f"a record has {len(data)} bytes, the model wants {num_bytes}")
