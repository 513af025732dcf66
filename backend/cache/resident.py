"""Resident: what lies on the device, and which of it leaves first.

Pages and states are evicted apart. A page leaves when nothing on the device below it needs it; its states may
stay as long as a lower tier keeps the page. A state leaves by value alone and its pages stay. Everything that
can leave is in a heap, so no eviction looks through the tree.
"""

from collections.abc import Callable
from typing import Protocol

from k3agent.backend.cache.counters import CacheCounters
from k3agent.backend.cache.pages import PagePool
from k3agent.backend.cache.radix import Checkpoint, RadixNode, RadixTree
from k3agent.backend.cache.states import StatePool
from k3agent.backend.cache.values import STATELESS_CHANCE, SUPERSEDED_CHANCE, ValueHeap, score


class Below(Protocol):
    """The tiers below the device, as seen by what is evicted."""

    def take_page(self, node: RadixNode) -> bool:
        """Keep a copy of a page that leaves; True if any tier has it now."""
        ...

    def take_state(self, checkpoint: Checkpoint, saved_tokens: int) -> None:
        """Keep a copy of a state that leaves, if it is worth that."""
        ...


class Resident:
    """Tree, pages and slots with their heaps."""

    def __init__(
        self,
        pages: PagePool,
        states: StatePool,
        tree: RadixTree,
        counters: CacheCounters,
        on_removed: Callable[[RadixNode], None],
    ) -> None:
        self.pages = pages
        self.states = states
        self.tree = tree
        self.counters = counters
        self._on_removed = on_removed
        self.below: Below | None = None
        self.num_exact = 0
        self.num_inexact = 0
        """Checkpoints in slots, by class."""
        self._leaving_pages: ValueHeap[RadixNode] = ValueHeap()
        self._leaving_states: ValueHeap[Checkpoint] = ValueHeap()

    # --- nodes

    def lock(self, node: RadixNode) -> None:
        node.num_locks += 1
        self._refresh(node)

    def unlock(self, node: RadixNode) -> None:
        assert node.num_locks > 0
        node.num_locks -= 1
        self._refresh(node)

    def touch(self, node: RadixNode, now: int) -> None:
        node.last_used = now
        if node in self._leaving_pages:
            self._leaving_pages.put(node, self._page_value(node))

    def enter(
        self, parent: RadixNode, tokens: tuple[int, ...], page: int, is_exact: bool, now: int
    ) -> RadixNode:
        """The node of `tokens` below `parent`; holds `page` if it is new, lost its own or becomes exact."""
        node = self.tree.child_that_begins_with(parent, tokens)
        if node is None:
            node = self.tree.insert(parent, tokens, None, now)
            self._hold_page(node, page, is_exact)
            for child in self.tree.short_beginnings(parent, tokens):
                if child.num_locks == 0:
                    self._absorb(child, node)
        elif len(tokens) == len(node.token_ids) and (
            node.page_id is None or (is_exact and not node.is_exact)
        ):
            self._release_page(node)
            self._hold_page(node, page, is_exact)
        node.last_used = now
        self._refresh(node)
        return node

    def may_leave(self, node: RadixNode) -> bool:
        """Eviction could take this node's page now."""
        return node in self._leaving_pages

    def _hold_page(self, node: RadixNode, page: int, is_exact: bool) -> None:
        self.pages.retain(page, by_tree=True)
        node.page_id, node.is_exact = page, is_exact

    def _release_page(self, node: RadixNode) -> None:
        if node.page_id is not None:
            self.pages.release(node.page_id, by_tree=True)
            node.page_id = None

    def _absorb(self, shorter: RadixNode, node: RadixNode) -> None:
        """The page of `node` begins with all that the shorter one holds, so its checkpoints move over."""
        for checkpoint in list(shorter.checkpoints.values()):
            self.tree.detach(checkpoint)
            checkpoint.node = node
            self.tree.attach(checkpoint)
        self._drop_node(shorter)

    def _refresh(self, node: RadixNode) -> None:
        """After a change of page or locks: say so upwards, and enter or leave the heap."""
        current: RadixNode | None = node
        while current is not None and current is not self.tree.root:
            self._offer_page(current)
            is_pinned = current.page_id is not None or current.num_locks > 0 or current.num_pinned > 0
            if is_pinned == current.is_pinned:
                return
            current.is_pinned = is_pinned
            current = current.parent
            if current is not None:
                current.num_pinned += 1 if is_pinned else -1

    def _offer_page(self, node: RadixNode) -> None:
        if node.page_id is not None and node.num_locks == 0 and node.num_pinned == 0:
            self._leaving_pages.put(node, self._page_value(node))
        else:
            self._leaving_pages.discard(node)

    def _page_value(self, node: RadixNode) -> float:
        chance = 1.0 if node.checkpoints else STATELESS_CHANCE
        # of pages as old as each other the deeper one goes first
        return score(node.page_size, chance, node.last_used) - 1e-7 * node.start

    # --- checkpoints

    def attach(self, checkpoint: Checkpoint) -> None:
        """Hang a checkpoint that has a slot into the tree; the slot belongs to it from now on."""
        self.tree.attach(checkpoint)
        self._count(checkpoint, 1)
        self.value_again(checkpoint)
        self._refresh(checkpoint.node)

    def detach(self, checkpoint: Checkpoint) -> None:
        """Take a checkpoint out and free its slot."""
        assert checkpoint.slot is not None
        self.tree.detach(checkpoint)
        self._leaving_states.discard(checkpoint)
        self._count(checkpoint, -1)
        self.states.release(checkpoint.slot)
        checkpoint.slot = None

    def make_exact(self, checkpoint: Checkpoint) -> None:
        """The slot of a class-B checkpoint holds the class-A state of that position now."""
        self._count(checkpoint, -1)
        checkpoint.is_exact = True
        self._count(checkpoint, 1)

    def _count(self, checkpoint: Checkpoint, sign: int) -> None:
        if checkpoint.is_exact:
            self.num_exact += sign
        else:
            self.num_inexact += sign

    def value_again(self, checkpoint: Checkpoint) -> None:
        """Its use or rank changed."""
        if checkpoint.slot is not None:
            self._leaving_states.put(checkpoint, self._state_value(checkpoint))

    def _state_value(self, checkpoint: Checkpoint) -> float:
        chance = SUPERSEDED_CHANCE if checkpoint.is_superseded else 1.0
        return score(self.saved_tokens(checkpoint), chance, checkpoint.last_used)

    def saved_tokens(self, checkpoint: Checkpoint) -> int:
        """What would be computed again without it: the way from the checkpoint above."""
        return checkpoint.position - self._position_above(checkpoint)

    def _position_above(self, checkpoint: Checkpoint) -> int:
        node, below = checkpoint.node, checkpoint.offset
        while node is not self.tree.root:
            offsets = [offset for offset in node.checkpoints if offset < below]
            if offsets:
                return node.start + max(offsets)
            assert node.parent is not None
            node, below = node.parent, node.page_size + 1
        return 0

    # --- room

    def take_page(self) -> int | None:
        """A page, if need be one that eviction frees."""
        while self.pages.num_free == 0 and self.evict_page():
            pass
        return self.pages.allocate()

    def take_slot(self, keep: Checkpoint | None, zeroed: bool) -> int | None:
        """A free slot, else that of the least valuable checkpoint other than `keep`."""
        if self.states.num_free == 0:
            self.evict_state(keep)
        return self.states.allocate(zeroed)

    def evict_state(self, keep: Checkpoint | None = None) -> bool:
        """Drop the least valuable checkpoint other than `keep`; its pages stay."""
        victim = self._leaving_states.pop(lambda c: None if c is keep else self._state_value(c))
        if victim is None:
            return False
        node = victim.node
        self._lose_state(victim)
        self._prune(node)
        return True

    def evict_page(self) -> bool:
        """Let the least valuable page leave the device; False when all are needed."""
        node = self._leaving_pages.pop()
        if node is None:
            return False
        self.counters.evicted_pages += 1
        if self.below is not None and self.below.take_page(node):
            self._release_page(node)
            self._refresh(node)
            self._prune(node)
        else:
            self.drop_subtree(node)
        return True

    def drop_subtree(self, node: RadixNode) -> None:
        """Forget a node whose latents no tier has, and what hangs below it and is useless without."""
        stack, order = [node], []
        while stack:
            current = stack.pop()
            order.append(current)
            stack += current.children.values()
        for current in reversed(order):
            if current.num_locks == 0 and not current.children:
                for checkpoint in list(current.checkpoints.values()):
                    self._lose_state(checkpoint)
                self._drop_node(current)
        if node.parent is not None:
            self._prune(node.parent)

    def drop_all(self) -> None:
        """Forget all that is not locked, without a copy on any other tier."""
        below, self.below = self.below, None
        while self.evict_page():
            pass
        for child in list(self.tree.root.children.values()):
            self.drop_subtree(child)
        self.below = below

    def _lose_state(self, checkpoint: Checkpoint) -> None:
        node = checkpoint.node
        if self.below is not None:
            self.below.take_state(checkpoint, self.saved_tokens(checkpoint))
        self.detach(checkpoint)
        node.lost_states = (node.lost_states or set()) | {checkpoint.offset}
        self.counters.evicted_checkpoints += 1

    def _prune(self, node: RadixNode) -> None:
        """Remove nodes that hold nothing any more, from here upwards."""
        while node is not self.tree.root and not (
            node.children or node.checkpoints or node.num_locks or node.page_id is not None
        ):
            parent = node.parent
            assert parent is not None
            self._drop_node(node)
            node = parent

    def _drop_node(self, node: RadixNode) -> None:
        self._release_page(node)
        self._refresh(node)
        self._leaving_pages.discard(node)
        self.tree.remove(node)
        self._on_removed(node)
