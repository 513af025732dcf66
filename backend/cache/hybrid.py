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
from k3agent.backend.cache.interfaces import Exactness, Storage, Tenant
from k3agent.backend.cache.keys import root_key
from k3agent.backend.cache.pages import PagePool
from k3agent.backend.cache.radix import Checkpoint, Match, RadixNode, RadixTree
from k3agent.backend.cache.resident import Resident
from k3agent.backend.cache.states import StatePool
from k3agent.backend.config import PAGE_SIZE
from k3agent.backend.errors import CacheFullError


@dataclass(slots=True)
class Prefix:
    """A match whose path stays locked until it is adopted by a sequence or dropped."""

    kv_len: int
    state_len: int
    path: tuple[RadixNode, ...]
    """Nodes that hold the first `state_len` tokens."""
    checkpoint: Checkpoint | None
    node: RadixNode | None
    is_background: bool
    is_exact: bool
    """What is resumed equals what a cold run passes through."""
    losses: dict[str, int]
    """Tokens past the hit, by why they are computed again."""


@dataclass(slots=True)
class Holding:
    """A sequence that holds something of the cache."""

    tenant: Tenant
    is_background: bool


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
        self._storage = storage
        self._page_size = page_size
        self._grid = grid
        self._inexact = InexactPaths()
        self._now = 0

    # --- a sequence begins

    def match(self, token_ids: Sequence[int], *, exact_only: bool | None = None) -> Prefix:
        """The longest resumable prefix; at least the last token is left to compute. Its path is locked.

        `exact_only` True is for the idle canonicaliser: such work resumes from class A alone and counts
        neither as a request nor as a use.
        """
        self._now += 1
        must_be_exact = self.exactness == "always" if exact_only is None else exact_only
        match = self.tree.match(token_ids, len(token_ids) - 1)
        exact_len = _exact_len(match.path)
        usable = [
            c for c in match.checkpoints if not must_be_exact or (c.is_exact and c.position <= exact_len)
        ]
        checkpoint = usable[-1] if usable else None
        path: tuple[RadixNode, ...] = ()
        if checkpoint is not None:
            depth = next(i for i, node in enumerate(match.path) if node is checkpoint.node)
            path = match.path[: depth + 1]
        node = path[-1] if path else None
        state_len = checkpoint.position if checkpoint else 0
        prefix = Prefix(
            kv_len=match.kv_len,
            state_len=state_len,
            path=path,
            checkpoint=checkpoint,
            node=node,
            is_background=exact_only is True,
            is_exact=checkpoint is not None and checkpoint.is_exact and state_len <= exact_len,
            losses=_losses(match, state_len, len(token_ids)),
        )
        if node is not None:
            self.resident.lock(node)
            self.prefixes[id(prefix)] = prefix
        for touched in path:
            self.resident.touch(touched, self._now)
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
        """Give the sequence a slot and the pages of its prefix; False, and the prefix dropped, if none is
        left.
        """
        assert tenant.state_slot is None and not tenant.page_ids
        checkpoint = prefix.checkpoint
        slot = self.resident.take_slot(checkpoint, zeroed=checkpoint is None)
        if slot is None:
            self.drop(prefix)
            return False
        pages = self._pages_of(prefix)
        if pages is None:
            self.states.release(slot)
            self.drop(prefix)
            return False
        if checkpoint is not None:
            assert checkpoint.slot is not None
            self._storage.copy_state(checkpoint.slot, slot)
            checkpoint.last_used = self._now
            self.resident.value_again(checkpoint)
        tenant.state_slot, tenant.page_ids, tenant.num_computed = slot, pages, prefix.state_len
        tenant.num_exact = prefix.state_len if prefix.is_exact else 0
        tenant.node, prefix.node = prefix.node, None
        self.prefixes.pop(id(prefix), None)
        tenant.resumed_from = checkpoint
        self.holdings[id(tenant)] = Holding(tenant, prefix.is_background)
        if not prefix.is_background:
            self.counters.queried_tokens += len(tenant.token_ids)
            self.counters.hit_tokens += prefix.state_len
            self.counters.hit_tokens_by_tier["device"] += prefix.state_len
            for cause, num_tokens in prefix.losses.items():
                self.counters.lost_tokens[cause] += num_tokens
        return True

    def _pages_of(self, prefix: Prefix) -> list[int] | None:
        """The pages of a prefix, held once more; the one it ends in is copied."""
        num_whole, rest = divmod(prefix.state_len, self._page_size)
        pages: list[int] = []
        for node in prefix.path[:num_whole]:
            assert node.page_id is not None
            self.pages.retain(node.page_id)
            pages.append(node.page_id)
        if rest:
            copy = self.resident.take_page()
            source = prefix.path[num_whole].page_id
            if copy is None or source is None:
                for page in pages:
                    self.pages.release(page)
                return None
            self._storage.copy_page(source, copy)
            pages.append(copy)
        return pages

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
        if former is None or former is deeper or (holding is not None and holding.is_background):
            return
        former.num_uses += 1
        former.is_superseded = former.num_uses < 2
        self.resident.value_again(former)

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
            if checkpoint.slot is not None and not checkpoint.is_exact:
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
        """Forget everything that no running sequence holds."""
        while self.resident.evict_page():
            pass

    def _forget_node(self, node: RadixNode) -> None:
        self._inexact.remove(node)

    # --- accounts

    def reset_counters(self) -> None:
        """Start all sums anew; levels and contents stay."""
        self.counters = self.resident.counters = CacheCounters()

    def ledger(self) -> Ledger:
        """Every byte, exact at this moment."""
        num_checkpoints = self.resident.num_exact + self.resident.num_inexact
        held_pages = self.pages.num_pages - self.pages.num_free
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
        )

    def check(self) -> None:
        """Raise AssertionError if any count, lock, page or slot is not explained by who holds it."""
        holders = [*(holding.tenant for holding in self.holdings.values())]
        audit(self.resident, holders, list(self.prefixes.values()), self.ledger())


def _exact_len(path: Sequence[RadixNode]) -> int:
    """How far the pages of a path are exact."""
    length = 0
    for node in path:
        if not node.is_exact:
            break
        length = node.end
    return length


def _losses(match: Match, hit: int, num_tokens: int) -> dict[str, int]:
    """Why the tokens past the hit are computed again."""
    known = max(match.kv_len, hit)
    off_grid = max([hit, *(c.position for c in match.checkpoints)])
    lost = [node.start + offset for node in match.path for offset in node.lost_states or ()]
    evicted = max([off_grid, *(position for position in lost if position <= known)])
    return {
        "off_grid": off_grid - hit,
        "evicted": evicted - off_grid,
        "no_state": known - evicted,
        "never_seen": num_tokens - known,
    }
