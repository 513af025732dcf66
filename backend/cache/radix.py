"""RadixTree over token ids: an edge is one page of latents, and state checkpoints hang at positions of it.

Edges are compared token by token, never by a hash alone. An edge shorter than a page is always a leaf: the
end of a published sequence. Eviction takes leaves, so a locked node keeps its whole path.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Checkpoint:
    """A saved KDA state after `offset` tokens of its node."""

    slot: int
    offset: int
    last_used: int
    num_uses: int = 0
    is_superseded: bool = False
    """A deeper checkpoint of the same lineage exists; this one is wanted again only by a retry or a fork."""


@dataclass(slots=True, eq=False)
class RadixNode:
    """One page: `token_ids` are its 1 to `page_size` tokens, which stand at positions from `start` on."""

    token_ids: tuple[int, ...]
    page_id: int
    start: int
    parent: "RadixNode | None"
    last_used: int = 0
    num_locks: int = 0
    children: dict[tuple[int, ...], "RadixNode"] = field(default_factory=dict)
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Match:
    """How far a list of ids is known: `kv_len` tokens of latents, `state_len` tokens up to a checkpoint."""

    kv_len: int
    state_len: int
    path: tuple[RadixNode, ...]
    """Nodes that hold the first `state_len` tokens."""
    checkpoint: Checkpoint | None


class RadixTree:
    """Holds nodes; what a node owns (page, slots) is given back by the caller of `remove`."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.root = RadixNode((), -1, 0, None)
        self.num_nodes = 0

    def match(self, token_ids: Sequence[int], max_state_len: int) -> Match:
        """Walk as deep as the ids agree; take the deepest checkpoint at most `max_state_len` tokens in."""
        node = self.root
        path: list[RadixNode] = []
        kv_len = state_len = depth = 0
        checkpoint: Checkpoint | None = None
        while kv_len < len(token_ids):
            page = tuple(token_ids[node.end : node.end + self.page_size])
            child = node.children.get(page) or self._best_child(node, page, max_state_len - node.end)
            if child is None:
                break
            common = _common(child.token_ids, page)
            path.append(child)
            kv_len = child.start + common
            found = _deepest(child, min(common, max_state_len - child.start))
            if found is not None:
                checkpoint, state_len, depth = found, child.start + found.offset, len(path)
            if common < self.page_size:
                break
            node = child
        return Match(kv_len, state_len, tuple(path[:depth]), checkpoint)

    def _best_child(self, node: RadixNode, page: tuple[int, ...], limit: int) -> RadixNode | None:
        """The child that begins like `page`: the deepest usable state first, then most tokens."""
        best: tuple[int, int] = (0, 0)
        found = None
        for child in node.children.values():
            common = _common(child.token_ids, page)
            state = _deepest(child, min(common, limit))
            rank = (state.offset if state else 0, common)
            if rank > best:
                best, found = rank, child
        return found

    def insert(self, parent: RadixNode, token_ids: tuple[int, ...], page_id: int, now: int) -> RadixNode:
        """Hang a page below a full node."""
        assert parent is self.root or len(parent.token_ids) == self.page_size
        assert token_ids not in parent.children
        node = RadixNode(token_ids, page_id, parent.end, parent, now)
        parent.children[token_ids] = node
        self.num_nodes += 1
        return node

    def remove(self, node: RadixNode) -> None:
        assert node.parent is not None and not node.children and node.num_locks == 0
        del node.parent.children[node.token_ids]
        self.num_nodes -= 1

    def nodes(self) -> Iterator[RadixNode]:
        """All nodes but the root."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()

    def leaves_by_age(self) -> Iterator[RadixNode]:
        """Unlocked leaves, the longest unused first. The caller removes each before it asks for the next."""
        heap = [
            (node.last_used, id(node), node)
            for node in self.nodes()
            if not node.children and node.num_locks == 0
        ]
        heapq.heapify(heap)
        while heap:
            _, _, node = heapq.heappop(heap)
            parent = node.parent
            yield node
            if (
                parent is not None
                and parent is not self.root
                and not parent.children
                and parent.num_locks == 0
            ):
                heapq.heappush(heap, (parent.last_used, id(parent), parent))


def _common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Number of equal tokens at the beginning."""
    if a == b:
        return len(a)
    for place, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return place
    return min(len(a), len(b))


def _deepest(node: RadixNode, limit: int) -> Checkpoint | None:
    """The node's deepest checkpoint after at most `limit` of its tokens."""
    usable = [offset for offset in node.checkpoints if offset <= limit]
    return node.checkpoints[max(usable)] if usable else None
