"""Restorer: puts a matched prefix under a sequence, its pages and then its state, from wherever they lie."""

from dataclasses import dataclass, field

from k3agent.backend.cache.counters import TIERS
from k3agent.backend.cache.interfaces import Buffer, Storage, TieredStorage
from k3agent.backend.cache.lookup import Prefix
from k3agent.backend.cache.lower import LowerTiers, SavedPage
from k3agent.backend.cache.radix import RadixNode
from k3agent.backend.cache.resident import Resident
from k3agent.backend.cache.tiers import LostRecordError

_AT_ONCE = 128
"""Loaded pages that are written to the device together."""


@dataclass(slots=True)
class Restored:
    """What a sequence holds after a resume: a holder's count on each page, and the node to lock."""

    pages: list[int] = field(default_factory=list)
    node: RadixNode | None = None
    tokens_by_tier: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TIERS, 0))
    loaded: list[tuple[int, Buffer]] = field(default_factory=list)
    """Pages whose content is still to be written."""


class Restorer:
    """All or nothing: when a page or the state cannot be had, what was taken is given back."""

    def __init__(self, resident: Resident, storage: Storage) -> None:
        self.lower: LowerTiers | None = None
        self._resident = resident
        self._storage = storage

    def restore(self, prefix: Prefix, slot: int, now: int) -> Restored | None:
        """Fill `slot` and gather the pages; None when there is no room, LostRecordError when a record that
        was matched is gone.
        """
        restored = Restored()
        try:
            # the state first: the layers that need it come before those that need pages
            tail_page = self._fill_state(prefix, slot, now)
            if self._gather(prefix, restored, now) and self._fill_tail(prefix, tail_page, restored, now):
                self._write(restored)
                self._enter(prefix, restored, now)
                return restored
        except LostRecordError:
            self._give_back(restored)
            raise
        self._give_back(restored)
        return None

    def _give_back(self, restored: Restored) -> None:
        for page in restored.pages:
            self._resident.pages.release(page)

    def _gather(self, prefix: Prefix, restored: Restored, now: int) -> bool:
        size = self._resident.tree.page_size
        for index in range(prefix.state_len // size):
            node = prefix.path[index] if index < len(prefix.path) else None
            if node is not None and node.page_id is not None:
                self._resident.pages.retain(node.page_id)
                restored.pages.append(node.page_id)
                restored.tokens_by_tier["device"] += size
            elif not self._load(prefix.pages[index], size, restored, now):
                return False
        return True

    def _load(self, page: SavedPage, num_tokens: int, restored: Restored, now: int) -> bool:
        """Bring a page onto the device; False when there is no room."""
        data, tier = self._lower()[0].load_page(page, now)
        target = self._resident.take_page()
        if target is None:
            return False
        restored.pages.append(target)
        restored.loaded.append((target, data))
        if len(restored.loaded) == _AT_ONCE:
            self._write(restored)
        restored.tokens_by_tier[tier] += num_tokens
        return True

    def _write(self, restored: Restored) -> None:
        if restored.loaded:
            pages, data = zip(*restored.loaded, strict=True)
            self._lower()[1].write_pages(pages, data)
            restored.loaded = []

    def _lower(self) -> tuple[LowerTiers, TieredStorage]:
        if self.lower is None or not isinstance(self._storage, TieredStorage):
            raise LostRecordError("a page left the device after the match; match again")
        return self.lower, self._storage

    def _fill_state(self, prefix: Prefix, slot: int, now: int) -> Buffer | None:
        """The state; returns the page that it ends in if that is saved with it."""
        if prefix.saved_state is not None:
            lower, storage = self._lower()
            state, tail_page = lower.load_state(prefix.saved_state, now)
            storage.write_state(slot, state)
            return tail_page
        if prefix.checkpoint is not None:
            assert prefix.checkpoint.slot is not None
            self._storage.copy_state(prefix.checkpoint.slot, slot)
        return None

    def _fill_tail(self, prefix: Prefix, tail_page: Buffer | None, restored: Restored, now: int) -> bool:
        """A private copy of the page that the state ends in; False when there is no room."""
        rest = prefix.state_len % self._resident.tree.page_size
        saved = prefix.saved_state
        if saved is not None and rest:
            target = self._resident.take_page()
            if target is None or tail_page is None:
                return False
            restored.pages.append(target)
            restored.loaded.append((target, tail_page))
            restored.tokens_by_tier[saved.tier] += rest
        elif prefix.checkpoint is not None and rest:
            return self._copy_last(prefix.path[-1], rest, restored, now)
        return True

    def _copy_last(self, node: RadixNode, rest: int, restored: Restored, now: int) -> bool:
        if node.page_id is None:
            return self._load(SavedPage(node.key, node.token_ids, False), rest, restored, now)
        target = self._resident.take_page()
        if target is None:
            return False
        restored.pages.append(target)
        self._storage.copy_page(node.page_id, target)
        restored.tokens_by_tier["device"] += rest
        return True

    def _enter(self, prefix: Prefix, restored: Restored, now: int) -> None:
        """Loaded pages join the tree; the deepest node is what the sequence will lock."""
        tree = self._resident.tree
        node = tree.root
        for index in range(prefix.state_len // tree.page_size):
            known = prefix.path[index] if index < len(prefix.path) else None
            if known is not None and known.page_id is not None:
                node = known
            else:
                page = prefix.pages[index]
                node = self._resident.enter(node, page.tokens, restored.pages[index], page.is_exact, now)
        if prefix.checkpoint is not None and prefix.path:
            node = prefix.path[-1]
        restored.node = None if node is tree.root else node
