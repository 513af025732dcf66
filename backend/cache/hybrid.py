"""HybridCache: what is kept of finished work, and where a new sequence may resume.

K3 keeps latents per token in its MLA layers and one rolling state in its KDA layers. A state cannot be
rewound, so a prefix is worth only as much as its deepest checkpoint: latents and state lengths are matched
apart and a sequence resumes at the state's. A checkpoint inside a page costs a copy of that page, because two
sequences must never write to one. `docs/cache.md` has the whole of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from k3agent.backend.cache.audit import audit
from k3agent.backend.cache.counters import CacheCounters, Ledger
from k3agent.backend.cache.inexact import InexactPaths
from k3agent.backend.cache.interfaces import Exactness, Storage, Tenant, TieredStorage
from k3agent.backend.cache.keys import root_key
from k3agent.backend.cache.lookup import Forgotten, Prefix, look_up
from k3agent.backend.cache.lower import LowerTiers, SavedState, place_of
from k3agent.backend.cache.pages import PagePool
from k3agent.backend.cache.radix import Checkpoint, RadixNode, RadixTree
from k3agent.backend.cache.resident import Resident
from k3agent.backend.cache.restore import Restorer
from k3agent.backend.cache.states import StatePool
from k3agent.backend.cache.tiers import HostTier, LostRecordError
from k3agent.backend.cache.tiers_disk import DiskTier
from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.errors import BackendError, CacheFullError

__all__ = ["DiskTier", "HostTier", "HybridCache", "Prefix", "split_budget"]

_MAX_LOST_RECORDS = 8
"""Records that may prove unreadable in one resume before only the device is asked."""


@dataclass(slots=True)
class Holding:
    """A sequence that holds something of the cache."""

    tenant: Tenant
    is_background: bool
    saved_state: SavedState | None
    """What it was resumed from, if that lay on a lower tier."""


def split_budget(
    budget_bytes: int, page_bytes: int, slot_bytes: int, state_share: float = 0.5
) -> tuple[int, int]:
    """Pages and slots that fit into `budget_bytes` when states get `state_share` of it; at least 1 and 4."""
    num_slots = max(4, int(budget_bytes * state_share) // max(slot_bytes, 1))
    num_pages = max(1, (budget_bytes - num_slots * slot_bytes) // max(page_bytes, 1))
    return num_pages, num_slots


class HybridCache:
    """The policy over pages, slots and tree. Not thread-safe: it lives in the engine's loop."""

    def __init__(
        self,
        num_pages: int,
        num_slots: int,
        storage: Storage,
        *,
        page_size: int = PAGE_SIZE,
        grid: int = 512,
        exactness: Exactness = "idle",
        host: HostTier | None = None,
        disk: DiskTier | None = None,
        debug: bool = False,
    ) -> None:
        if grid % page_size:
            raise CacheFullError(f"a grid of {grid} tokens is no multiple of the page size {page_size}")
        self.counters = CacheCounters()
        self.pages = PagePool(num_pages)
        self.states = StatePool(num_slots, storage.zero_state, storage.poison_state if debug else None)
        self.tree = RadixTree(page_size, root_key(""))
        self.resident = Resident(self.pages, self.states, self.tree, self.counters, self._forget_node)
        self.exactness: Exactness = exactness
        self.holdings: dict[int, Holding] = {}
        self.prefixes: dict[int, Prefix] = {}
        self.lower: LowerTiers | None = None
        self._storage = storage
        self._restorer = Restorer(self.resident, storage)
        self._page_size = page_size
        self._grid = grid
        self._inexact = InexactPaths()
        self._forgotten = Forgotten()
        self._now = 0
        if host is not None or disk is not None:
            self.attach_tiers(host, disk)

    def attach_tiers(self, host: HostTier | None, disk: DiskTier | None) -> None:
        """From now on what leaves the device goes to `host`, and checkpoints are written through to `disk`.

        The tree must be empty: its keys are those of the disk's model from here on.
        """
        if self.tree.num_nodes or self.holdings:
            raise BackendError("tiers are attached to an empty cache; call clear() before")
        if not isinstance(self._storage, TieredStorage):
            raise BackendError("this storage cannot copy pages to the host; use no host or disk cache")
        self.tree.root.key = root_key(disk.fingerprint if disk is not None else "")
        self.lower = LowerTiers(self._storage, host, disk)
        self.resident.below = self._restorer.lower = self.lower

    @property
    def min_cacheable_tokens(self) -> int:
        """The shortest prefix that a later request can resume."""
        return self._grid if self.exactness == "always" else 1

    # --- a sequence begins

    def match(self, token_ids: Sequence[int], *, exact_only: bool | None = None) -> Prefix:
        """The longest resumable prefix; at least the last token is left to compute. Its path is locked.

        `exact_only` True is for the idle canonicaliser: such work resumes from class A alone and counts
        neither as a request nor as a use.
        """
        self._now += 1
        if self.lower is not None and self.lower.disk is not None:
            self.lower.disk.poll(self._now)
        must_be_exact = self.exactness == "always" if exact_only is None else exact_only
        return self._match(token_ids, must_be_exact, exact_only is True, self.lower)

    def _match(
        self, token_ids: Sequence[int], must_be_exact: bool, is_background: bool, lower: LowerTiers | None
    ) -> Prefix:
        prefix = look_up(self.tree, lower, self._forgotten, token_ids, must_be_exact)
        prefix.is_background = is_background
        if prefix.node is not None:
            self.resident.lock(prefix.node)
            self.prefixes[id(prefix)] = prefix
        for touched in prefix.path:
            self.resident.touch(touched, self._now)
        if prefix.dead is not None and lower is self.lower:
            self.resident.drop_subtree(prefix.dead)
        return prefix

    def plan(self, prefix: Prefix, num_prompt: int, anchors: Iterable[int] = ()) -> list[int]:
        """Positions at which the prefill should file a checkpoint: the prompt's end, where the latents are
        known deeper than the state (the second to pass there), the caller's anchors, and from spare slots a
        thin trail.
        """
        step = self._page_size if self.exactness == "off" else self._grid
        wanted = {num_prompt - 1, prefix.kv_len, *anchors}
        if self.states.num_free > self.states.num_slots // 2:
            wanted |= {num_prompt * (parts - 1) // parts for parts in (2, 4, 8)}
        floors = {position // step * step for position in wanted}
        return sorted(p for p in floors if prefix.state_len < p < num_prompt)

    def drop(self, prefix: Prefix) -> None:
        """Unlock a prefix that no sequence adopted."""
        if prefix.node is not None:
            self.resident.unlock(prefix.node)
            del self.prefixes[id(prefix)]
            prefix.node = None

    def adopt(self, tenant: Tenant, prefix: Prefix) -> bool:
        """Give the sequence a slot and the pages of its prefix, loading what is not on the device; False,
        and the prefix dropped, if there is no room.

        A record that proves unreadable shortens the prefix; see `tenant.num_computed` afterwards.
        """
        assert tenant.state_slot is None and not tenant.page_ids
        for attempt in range(_MAX_LOST_RECORDS + 1):
            try:
                return self._adopt(tenant, prefix)
            except LostRecordError:
                self.drop(prefix)
            must_be_exact = self.exactness == "always" or prefix.is_background
            lower = self.lower if attempt + 1 < _MAX_LOST_RECORDS else None
            prefix = self._match(tenant.token_ids, must_be_exact, prefix.is_background, lower)
        raise AssertionError("a resume from the device alone lost a record")

    def _adopt(self, tenant: Tenant, prefix: Prefix) -> bool:
        checkpoint = prefix.checkpoint
        if checkpoint is not None and checkpoint.slot is None:
            raise LostRecordError("the checkpoint was evicted after the match; match again")
        slot = self.resident.take_slot(checkpoint, zeroed=checkpoint is None)
        if slot is None:
            self.drop(prefix)
            return False
        try:
            restored = self._restorer.restore(prefix, slot, self._now)
        except LostRecordError:
            self.states.release(slot)
            raise
        if restored is None:
            self.states.release(slot)
            self.drop(prefix)
            return False
        if checkpoint is not None:
            checkpoint.last_used = self._now
            self.resident.value_again(checkpoint)
        if restored.node is not None:
            self.resident.lock(restored.node)
        self.drop(prefix)
        tenant.state_slot, tenant.page_ids, tenant.num_computed = slot, restored.pages, prefix.state_len
        tenant.num_exact = prefix.state_len if prefix.is_exact else 0
        tenant.node, tenant.resumed_from = restored.node, checkpoint
        self.holdings[id(tenant)] = Holding(tenant, prefix.is_background, prefix.saved_state)
        if not prefix.is_background:
            self._count(tenant, prefix, restored.tokens_by_tier)
        return True

    def _count(self, tenant: Tenant, prefix: Prefix, tokens_by_tier: dict[str, int]) -> None:
        counters = self.counters
        counters.queried_tokens += len(tenant.token_ids)
        counters.hit_tokens += prefix.state_len
        for tier, num_tokens in tokens_by_tier.items():
            counters.hit_tokens_by_tier[tier] += num_tokens
        for cause, num_tokens in prefix.losses.items():
            counters.lost_tokens[cause] += num_tokens

    def reserve(self, tenant: Tenant, num_tokens: int) -> bool:
        """Make the sequence's pages reach `num_tokens`; False when not even eviction frees enough of them."""
        wanted = -(-num_tokens // self._page_size) - len(tenant.page_ids)
        if wanted > self.pages.num_free + self.pages.num_idle:
            return False
        while self.pages.num_free < wanted:
            if not self.resident.evict_page():
                return False
        for _ in range(wanted):
            page = self.pages.allocate()
            assert page is not None
            tenant.page_ids.append(page)
        return True

    # --- it leaves something behind

    def publish(self, tenant: Tenant) -> RadixNode | None:
        """Enter the computed tokens into the tree; returns the node of the last one."""
        size = self._page_size
        node, former = self.tree.root, tenant.node
        if former is not None:
            # unlocked first, so that the page it extends can absorb it; nothing is evicted in here
            self.resident.unlock(former)
            tenant.node = None
            node = self._last_shared(tenant, former)
        exact = tenant.num_exact // self._grid * self._grid
        for start in range(node.end, tenant.num_computed, size):
            end = min(start + size, tenant.num_computed)
            tokens = tuple(tenant.token_ids[start:end])
            node = self.resident.enter(node, tokens, tenant.page_ids[start // size], end <= exact, self._now)
        if node is self.tree.root:
            return None
        self.resident.lock(node)
        tenant.node = node
        return node

    def _last_shared(self, tenant: Tenant, node: RadixNode) -> RadixNode:
        """From where on a sequence's pages are still to be entered, given its locked node."""
        if node.is_full and tuple(tenant.token_ids[node.start : node.end]) == node.token_ids:
            return node
        assert node.parent is not None
        return node.parent

    def checkpoint(self, tenant: Tenant, give_slot: bool = False) -> bool:
        """Publish, and file the live state at the current token count; True if it is on file then.

        `give_slot`: the sequence is over, so its own slot becomes the checkpoint instead of a copy.
        """
        node = self.publish(tenant)
        if node is None or tenant.state_slot is None:
            return False
        position, offset = tenant.num_computed, tenant.num_computed - node.start
        is_exact = position == tenant.num_exact and position % self._grid == 0
        if is_exact or self.exactness == "off":
            checkpoint = self._file(tenant, node, offset, is_exact, give_slot)
            if checkpoint is not None and is_exact:
                self._drop_inexact(node)
            return checkpoint is not None
        floor = self._floor(node, position)
        has_exact = floor is not None and self._has_exact(floor)
        checkpoint = None
        if self.exactness == "idle" and not has_exact:
            checkpoint = self._file(tenant, node, offset, is_exact, give_slot)
        if give_slot and floor is not None and not has_exact:
            self._inexact.add(floor, checkpoint)
        return checkpoint is not None

    def _file(
        self, tenant: Tenant, node: RadixNode, offset: int, is_exact: bool, give_slot: bool
    ) -> Checkpoint | None:
        """Put the live state into the tree; best effort."""
        known = self.tree.at(node, offset)
        assert tenant.state_slot is not None
        if known is not None:
            if is_exact and not known.is_exact:
                assert known.slot is not None
                self._storage.copy_state(tenant.state_slot, known.slot)
                self.resident.make_exact(known)
                self._save(known)
            known.last_used = self._now
            self._supersede(tenant, known)
            self.resident.value_again(known)
            return known
        if give_slot:
            slot = tenant.state_slot
            tenant.state_slot = None
        else:
            taken = self.resident.take_slot(tenant.resumed_from, zeroed=False)
            if taken is None:
                return None
            slot = taken
            self._storage.copy_state(tenant.state_slot, slot)
        made = Checkpoint(node, offset, slot, is_exact, self._now)
        # another sequence went on from here before: this is a branch point, not only a step of this lineage
        made.num_uses = int(bool(node.children) or len(node.token_ids) > offset)
        self.resident.attach(made)
        self._supersede(tenant, made)
        self._save(made)
        if is_exact:
            self.counters.filed_exact += 1
        else:
            self.counters.filed_inexact += 1
        return made

    def _supersede(self, tenant: Tenant, deeper: Checkpoint) -> None:
        """Mark the checkpoint that this turn extends as less worth, unless other turns began there too."""
        former = tenant.resumed_from
        tenant.resumed_from = deeper
        holding = self.holdings.get(id(tenant))
        if former is deeper:
            return
        if holding is not None and holding.is_background:
            # idle work goes where a turn went before; what only it came through is of no further use
            if former is not None and former.num_uses == 0:
                former.is_superseded = True
                self.resident.value_again(former)
            return
        if former is not None:
            former.num_uses += 1
            former.is_superseded = former.num_uses < 2
            self.resident.value_again(former)
            if self.lower is not None and former.is_superseded:
                self.lower.demote(*place_of(former))
        elif holding is not None and holding.saved_state is not None and self.lower is not None:
            self.lower.demote(holding.saved_state.key, holding.saved_state.tail)
            holding.saved_state = None

    def _save(self, checkpoint: Checkpoint) -> None:
        if self.lower is not None:
            self.lower.save(checkpoint, self.resident.saved_tokens(checkpoint), self._now)

    # --- class B gives way to class A

    def next_inexact(self) -> list[int] | None:
        """Token ids up to the last grid point of the latest ended turn that has no class-A state there.

        The engine prefills them on the grid when it has nothing else to do: `match` with `exact_only`, adopt,
        chunks, `checkpoint`, release.
        """
        return None if self.exactness == "off" else self._inexact.newest()

    def skip_inexact(self, token_ids: Sequence[int]) -> None:
        """Give up on one that `next_inexact` named."""
        path = self.tree.match(token_ids, 0).path
        if path:
            self._inexact.remove(path[-1])

    def _drop_inexact(self, floor: RadixNode) -> None:
        for checkpoint in self._inexact.remove(floor):
            if checkpoint.is_exact:
                continue
            if self.lower is not None:
                self.lower.forget(*place_of(checkpoint))
            if checkpoint.slot is not None:
                self.resident.detach(checkpoint)
                self.counters.replaced_inexact += 1

    def _floor(self, node: RadixNode, position: int) -> RadixNode | None:
        """The node that ends at the last grid point up to `position` on the path of `node`."""
        wanted = position // self._grid * self._grid
        current: RadixNode | None = node
        while current is not None and current.end > wanted:
            current = current.parent
        return current if current is not None and current is not self.tree.root else None

    def _has_exact(self, floor: RadixNode) -> bool:
        known = floor.checkpoints.get(floor.page_size)
        if known is None or not known.is_exact:
            return False
        node: RadixNode | None = floor
        while node is not None and node is not self.tree.root and node.is_exact:
            node = node.parent
        return node is self.tree.root

    # --- the end, and room

    def release(self, tenant: Tenant) -> None:
        """Give back all that the sequence holds; a second call does nothing."""
        for page in tenant.page_ids:
            self.pages.release(page)
        tenant.page_ids = []
        if tenant.state_slot is not None:
            self.states.release(tenant.state_slot)
            tenant.state_slot = None
        if tenant.node is not None:
            self.resident.unlock(tenant.node)
            tenant.node = None
        tenant.resumed_from = None
        self.holdings.pop(id(tenant), None)

    def clear(self) -> None:
        """Forget everything on the device and in host memory that no running sequence holds."""
        self.resident.drop_all()
        self._forgotten.clear()
        if self.lower is not None and self.lower.host is not None:
            self.lower.host.clear()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all checkpoints filed so far are on disk; False if that takes longer."""
        disk = self.lower.disk if self.lower is not None else None
        return disk is None or disk.flush(self._now, timeout_s)

    def close(self) -> None:
        """Write what waits for the disk and let go of its folder. The cache goes on without it."""
        if self.lower is not None and self.lower.disk is not None:
            self.lower.disk.close()

    def _forget_node(self, node: RadixNode) -> None:
        self._inexact.remove(node)
        if node.is_full:
            self._forgotten.add(node.key)

    # --- accounts

    def reset_counters(self) -> None:
        """Start all sums anew; levels and contents stay."""
        self.counters = self.resident.counters = CacheCounters()

    def ledger(self) -> Ledger:
        """Every byte, exact at this moment."""
        num_checkpoints = self.resident.num_exact + self.resident.num_inexact
        held_pages = self.pages.num_pages - self.pages.num_free
        host = self.lower.host if self.lower is not None else None
        disk = self.lower.disk if self.lower is not None else None
        return Ledger(
            page_bytes=self._storage.page_bytes,
            slot_bytes=self._storage.state_bytes,
            free_pages=self.pages.num_free,
            tree_pages=self.pages.num_in_tree,
            private_pages=held_pages - self.pages.num_in_tree,
            free_slots=self.states.num_free,
            running_slots=self.states.num_slots - self.states.num_free - num_checkpoints,
            exact_checkpoints=self.resident.num_exact,
            inexact_checkpoints=self.resident.num_inexact,
            host_bytes=host.used_bytes if host is not None else 0,
            disk_bytes=disk.used_bytes if disk is not None else 0,
            staging_bytes=disk.staged_bytes if disk is not None else 0,
        )

    def check(self) -> None:
        """Raise AssertionError if any count, lock, page or slot is not explained by who holds it."""
        holders = [*(holding.tenant for holding in self.holdings.values())]
        audit(self.resident, holders, list(self.prefixes.values()), self.ledger())
        for tier in (self.lower.host, self.lower.disk) if self.lower is not None else ():
            if tier is not None:
                tier.check()
