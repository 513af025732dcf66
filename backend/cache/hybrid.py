"""HybridCache: what is kept of finished work, and where a new sequence may resume.

K3 keeps latents per token in its MLA layers and one rolling state in its KDA layers. A state cannot be
rewound, so a prefix is worth only as much as its deepest checkpoint: latents and state lengths are matched
apart and a sequence resumes at the state's. A checkpoint inside a page costs a copy of that page, because two
sequences must never write to one.
"""

from dataclasses import dataclass
from typing import Protocol

from k3agent.backend.cache.pages import PagePool
from k3agent.backend.cache.radix import Checkpoint, Match, RadixNode, RadixTree
from k3agent.backend.cache.states import StatePool
from k3agent.backend.config import PAGE_SIZE


class Storage(Protocol):
    """The tensors behind the numbers."""

    def copy_page(self, src_page: int, dst_page: int) -> None: ...
    def copy_state(self, src_slot: int, dst_slot: int) -> None: ...
    def zero_state(self, slot: int) -> None: ...


class Tenant(Protocol):
    """What the cache reads and writes of a sequence. Fresh: no pages, `state_slot` and `node` None."""

    token_ids: list[int]
    num_computed: int
    page_ids: list[int]
    state_slot: int | None
    node: RadixNode | None
    resumed_from: Checkpoint | None


@dataclass(slots=True)
class Prefix:
    """A match whose path stays locked until it is adopted by a sequence or dropped."""

    match: Match
    node: RadixNode | None

    @property
    def kv_len(self) -> int:
        return self.match.kv_len

    @property
    def state_len(self) -> int:
        return self.match.state_len


@dataclass(slots=True)
class CacheCounters:
    """Sums since the start, in tokens, pages and checkpoints."""

    queried_tokens: int = 0
    hit_tokens: int = 0
    lost_without_state_tokens: int = 0
    evicted_pages: int = 0
    evicted_checkpoints: int = 0


def split_budget(
    budget_bytes: int, page_bytes: int, slot_bytes: int, state_share: float = 0.5
) -> tuple[int, int]:
    """Pages and slots that fit into `budget_bytes` when states get `state_share` of it; at least 1 and 4."""
    num_slots = max(4, int(budget_bytes * state_share) // max(slot_bytes, 1))
    num_pages = max(1, (budget_bytes - num_slots * slot_bytes) // max(page_bytes, 1))
    return num_pages, num_slots


class HybridCache:
    """The policy over pages, slots and tree. Not thread-safe: it lives in the engine's loop."""

    def __init__(self, num_pages: int, num_slots: int, storage: Storage, page_size: int = PAGE_SIZE) -> None:
        self.pages = PagePool(num_pages)
        self.states = StatePool(num_slots, storage.zero_state)
        self.tree = RadixTree(page_size)
        self.counters = CacheCounters()
        self._storage = storage
        self._page_size = page_size
        self._now = 0

    # --- a sequence begins

    def match(self, token_ids: list[int]) -> Prefix:
        """The longest resumable prefix; at least the last token is left to compute. Its path is locked."""
        self._now += 1
        match = self.tree.match(token_ids, len(token_ids) - 1)
        node = match.path[-1] if match.path else None
        if node is not None:
            node.num_locks += 1
        for touched in match.path:
            touched.last_used = self._now
        return Prefix(match, node)

    def drop(self, prefix: Prefix) -> None:
        """Unlock a prefix that no sequence adopted."""
        if prefix.node is not None:
            prefix.node.num_locks -= 1
            prefix.node = None

    def adopt(self, tenant: Tenant, prefix: Prefix) -> bool:
        """Give the sequence a slot and the pages of its prefix; False, and the prefix dropped, if none is
        left.
        """
        assert tenant.state_slot is None and not tenant.page_ids
        match = prefix.match
        checkpoint = match.checkpoint
        slot = self._take_slot(checkpoint, zeroed=checkpoint is None)
        if slot is None:
            self.drop(prefix)
            return False
        num_whole, rest = divmod(match.state_len, self._page_size)
        pages = [node.page_id for node in match.path[:num_whole]]
        for page in pages:
            self.pages.retain(page)
        if rest:
            copy = self._take_page()
            if copy is None:
                for page in pages:
                    self.pages.release(page)
                self.states.release(slot)
                self.drop(prefix)
                return False
            self._storage.copy_page(match.path[num_whole].page_id, copy)
            pages.append(copy)
        if checkpoint is not None:
            self._storage.copy_state(checkpoint.slot, slot)
            checkpoint.last_used = self._now
            checkpoint.num_uses += 1
        tenant.state_slot, tenant.page_ids, tenant.num_computed = slot, pages, match.state_len
        tenant.node, prefix.node = prefix.node, None
        tenant.resumed_from = checkpoint
        self.counters.queried_tokens += len(tenant.token_ids)
        self.counters.hit_tokens += match.state_len
        self.counters.lost_without_state_tokens += match.kv_len - match.state_len
        return True

    def reserve(self, tenant: Tenant, num_tokens: int) -> bool:
        """Make the sequence's pages reach `num_tokens`; False when not even eviction frees enough of them."""
        wanted = -(-num_tokens // self._page_size) - len(tenant.page_ids)
        if wanted > self.pages.num_free:
            self._evict_pages(wanted - self.pages.num_free)
        if wanted > self.pages.num_free:
            return False
        for _ in range(wanted):
            page = self.pages.allocate()
            assert page is not None
            tenant.page_ids.append(page)
        return True

    # --- it leaves something behind

    def publish(self, tenant: Tenant) -> RadixNode | None:
        """Enter the computed tokens into the tree; returns the node of the last one."""
        self._now += 1
        if tenant.node is not None:
            # unlocked first, so that the page it extends can absorb it; nothing is evicted in here
            tenant.node.num_locks -= 1
            tenant.node = None
        node = self.tree.root
        size = self._page_size
        for start in range(0, tenant.num_computed, size):
            end = min(start + size, tenant.num_computed)
            page = tuple(tenant.token_ids[start:end])
            node = self._enter(node, page, tenant.page_ids[start // size])
            node.last_used = self._now
        if node is self.tree.root:
            return None
        node.num_locks += 1
        tenant.node = node
        return node

    def _enter(self, parent: RadixNode, page: tuple[int, ...], page_id: int) -> RadixNode:
        known = parent.children.get(page)
        if known is not None:
            return known
        if len(page) < self._page_size:
            for child in parent.children.values():
                if child.token_ids[: len(page)] == page:
                    return child
        self.pages.retain(page_id)
        node = self.tree.insert(parent, page, page_id, self._now)
        shorter = [
            child
            for child in parent.children.values()
            if child is not node and child.num_locks == 0 and page[: len(child.token_ids)] == child.token_ids
        ]
        for child in shorter:
            # the new page begins with all that the shorter one holds, so its checkpoints move over
            for offset, checkpoint in child.checkpoints.items():
                if offset in node.checkpoints:
                    self.states.release(checkpoint.slot)
                else:
                    node.checkpoints[offset] = checkpoint
            child.checkpoints.clear()
            self._remove(child)
        return node

    def checkpoint(self, tenant: Tenant, give_slot: bool = False) -> bool:
        """Publish, and file the live state at the current token count; best effort.

        `give_slot`: the sequence is over, so its own slot becomes the checkpoint instead of a copy.
        """
        node = self.publish(tenant)
        if node is None or tenant.state_slot is None:
            return False
        offset = tenant.num_computed - node.start
        known = node.checkpoints.get(offset)
        if known is not None:
            known.last_used = self._now
            self._supersede(tenant, known)
            return True
        if give_slot:
            slot = tenant.state_slot
            tenant.state_slot = None
        else:
            taken = self._take_slot(tenant.resumed_from, zeroed=False)
            if taken is None:
                return False
            slot = taken
            self._storage.copy_state(tenant.state_slot, slot)
        made = Checkpoint(slot, offset, self._now)
        node.checkpoints[offset] = made
        self._supersede(tenant, made)
        return True

    def _supersede(self, tenant: Tenant, deeper: Checkpoint) -> None:
        """Mark the checkpoint that this turn extends as less worth, unless other turns began there too."""
        former = tenant.resumed_from
        if former is not None and former is not deeper and former.num_uses < 2:
            former.is_superseded = True
        tenant.resumed_from = deeper

    def release(self, tenant: Tenant) -> None:
        """Give back all that the sequence holds; a second call does nothing."""
        for page in tenant.page_ids:
            self.pages.release(page)
        tenant.page_ids = []
        if tenant.state_slot is not None:
            self.states.release(tenant.state_slot)
            tenant.state_slot = None
        if tenant.node is not None:
            tenant.node.num_locks -= 1
            tenant.node = None
        tenant.resumed_from = None

    # --- room

    def clear(self) -> None:
        """Forget everything that no running sequence holds."""
        self._evict_pages(self.tree.num_nodes)

    def _take_page(self) -> int | None:
        if self.pages.num_free == 0:
            self._evict_pages(1)
        return self.pages.allocate()

    def _take_slot(self, keep: Checkpoint | None, zeroed: bool) -> int | None:
        """A free slot, else that of the least useful checkpoint other than `keep`."""
        if self.states.num_free == 0:
            self._evict_checkpoint(keep)
        return self.states.allocate(zeroed)

    def _evict_checkpoint(self, keep: Checkpoint | None) -> None:
        candidates = [
            (not checkpoint.is_superseded, checkpoint.last_used, checkpoint.offset, node)
            for node in self.tree.nodes()
            for checkpoint in node.checkpoints.values()
            if checkpoint is not keep
        ]
        if not candidates:
            return
        _, _, offset, node = min(candidates, key=lambda item: item[:2])
        self.states.release(node.checkpoints.pop(offset).slot)
        self.counters.evicted_checkpoints += 1

    def _evict_pages(self, num_wanted: int) -> None:
        """Remove leaves, the longest unused first, until `num_wanted` pages became free or none is left."""
        goal = self.pages.num_free + num_wanted
        for leaf in self.tree.leaves_by_age():
            if self.pages.num_free >= goal:
                break
            self._remove(leaf)
            self.counters.evicted_pages += 1

    def _remove(self, node: RadixNode) -> None:
        for checkpoint in node.checkpoints.values():
            self.states.release(checkpoint.slot)
            self.counters.evicted_checkpoints += 1
        node.checkpoints.clear()
        self.pages.release(node.page_id)
        self.tree.remove(node)
