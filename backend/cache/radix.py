"""RadixTree over token ids: an edge is one page of latents, and state checkpoints hang at positions of it.

Edges are compared token by token, never by a hash alone. An edge shorter than a page is always a leaf: the
end of a published sequence. A node may outlive its page (`page_id` None) while a lower tier still has it.
No call looks at more than one path and the neighbours of its end, however large the tree is.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from k3agent.backend.cache.keys import chain_key

Tokens = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Checkpoint:
    """A saved KDA state after `offset` tokens of its node."""

    node: "RadixNode"
    offset: int
    slot: int | None
    """None: evicted, or loaded from a lower tier and never on the device."""
    is_exact: bool
    """Class A: made by prefill on the grid alone, so equal to what a cold run passes through."""
    last_used: int
    num_uses: int = 0
    is_superseded: bool = False
    """A deeper checkpoint of the same lineage exists; this one is wanted again only by a retry or a fork."""

    @property
    def position(self) -> int:
        return self.node.start + self.offset

    @property
    def tail(self) -> Tokens:
        """Its tokens past the last whole page."""
        return () if self.offset % self.node.page_size == 0 else self.node.token_ids[: self.offset]


@dataclass(slots=True, eq=False)
class RadixNode:
    """One page: `token_ids` are its 1 to `page_size` tokens, which stand at positions from `start` on."""

    token_ids: Tokens
    page_id: int | None
    start: int
    parent: "RadixNode | None"
    page_size: int
    key: bytes
    """The content key of the prefix that ends with this node."""
    is_exact: bool = False
    """The page was computed by whole chunks of the grid."""
    last_used: int = 0
    num_locks: int = 0
    num_pinned: int = 0
    """Children below which something needs this node's page on the device."""
    is_pinned: bool = False
    num_short: int = 0
    """Children shorter than a page."""
    children: dict[Tokens, "RadixNode"] = field(default_factory=dict)
    order: list[Tokens] | None = None
    """The children's tokens, sorted; kept from the second child on."""
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    inner: dict[Tokens, Checkpoint] | None = None
    """Checkpoints inside the children's pages, by the tokens up to there."""
    lost_states: set[int] | None = None
    """Offsets at which a state once was and was evicted."""

    end: int = field(init=False)
    is_full: bool = field(init=False)

    def __post_init__(self) -> None:
        self.end = self.start + len(self.token_ids)
        self.is_full = len(self.token_ids) == self.page_size


@dataclass(frozen=True, slots=True)
class Match:
    """How far a list of ids is known to the tree."""

    kv_len: int
    """Tokens of latents."""
    path: tuple[RadixNode, ...]
    """Nodes that begin the list, as deep as the ids agree; the last may agree in part."""
    checkpoints: tuple[Checkpoint, ...]
    """Those on the path within the allowed length, ascending by position."""


class RadixTree:
    """Holds nodes; what a node owns (page, slots) is given back by the caller of `remove`."""

    def __init__(self, page_size: int, root: bytes) -> None:
        self.page_size = page_size
        self.root = RadixNode((), None, 0, None, page_size, root)
        self.num_nodes = 0

    def match(self, token_ids: Sequence[int], max_state_len: int) -> Match:
        """Walk as deep as the ids agree; collect the checkpoints at most `max_state_len` tokens in."""
        node, size = self.root, self.page_size
        path: list[RadixNode] = []
        found: list[Checkpoint] = []
        kv_len, num_tokens = 0, len(token_ids)
        while node.end + size <= num_tokens:
            child = node.children.get(tuple(token_ids[node.end : node.end + size]))
            if child is None:
                break
            path.append(child)
            node, kv_len = child, child.end
            if child.checkpoints:
                usable = sorted(o for o in child.checkpoints if child.start + o <= max_state_len)
                found += [child.checkpoints[offset] for offset in usable]
        rest = tuple(token_ids[node.end : node.end + size])
        inside = self._deepest_inside(node, rest, max_state_len - node.end)
        nearest, common = self._nearest(node, rest)
        kv_len += common
        if inside is not None:
            found.append(inside)
            path.append(inside.node)
        elif nearest is not None and common:
            path.append(nearest)
        return Match(kv_len, tuple(path), tuple(found))

    def _deepest_inside(self, node: RadixNode, rest: Tokens, limit: int) -> Checkpoint | None:
        """The deepest checkpoint inside a child's page after at most `limit` of the tokens `rest`."""
        if not node.inner:
            return None
        for length in range(min(len(rest), limit, self.page_size - 1), 0, -1):
            checkpoint = node.inner.get(rest[:length])
            if checkpoint is not None:
                return checkpoint
        return None

    def _nearest(self, node: RadixNode, rest: Tokens) -> tuple[RadixNode | None, int]:
        """The child that shares most leading tokens with `rest`, and how many: a neighbour in order."""
        if not rest or not node.children:
            return None, 0
        if node.order is None:
            near = list(node.children)
        else:
            place = bisect_left(node.order, rest)
            near = node.order[max(place - 1, 0) : place + 1]
        best = max(near, key=lambda tokens: common_length(tokens, rest))
        return node.children[best], common_length(best, rest)

    def child_that_begins_with(self, node: RadixNode, tokens: Tokens) -> RadixNode | None:
        """The child whose page is `tokens` or goes on after them."""
        known = node.children.get(tokens)
        if known is not None or len(tokens) == self.page_size:
            return known
        nearest, common = self._nearest(node, tokens)
        return nearest if common == len(tokens) else None

    def short_beginnings(self, node: RadixNode, tokens: Tokens) -> list[RadixNode]:
        """Children that hold fewer tokens than `tokens` and nothing else."""
        if not node.num_short:
            return []
        candidates = (node.children.get(tokens[:length]) for length in range(1, len(tokens)))
        return [child for child in candidates if child is not None]

    def insert(self, parent: RadixNode, token_ids: Tokens, page_id: int | None, now: int) -> RadixNode:
        """Hang a page below a full node."""
        assert parent is self.root or parent.is_full
        assert token_ids not in parent.children
        key = chain_key(parent.key, token_ids)
        node = RadixNode(token_ids, page_id, parent.end, parent, self.page_size, key, last_used=now)
        parent.children[token_ids] = node
        parent.num_short += not node.is_full
        if parent.order is not None:
            insort(parent.order, token_ids)
        elif len(parent.children) > 1:
            parent.order = sorted(parent.children)
        self.num_nodes += 1
        return node

    def remove(self, node: RadixNode) -> None:
        parent = node.parent
        assert parent is not None and not node.children and node.num_locks == 0 and not node.checkpoints
        del parent.children[node.token_ids]
        parent.num_short -= not node.is_full
        if parent.order is not None:
            if len(parent.children) < 2:
                parent.order = None
            else:
                del parent.order[bisect_left(parent.order, node.token_ids)]
        self.num_nodes -= 1

    def attach(self, checkpoint: Checkpoint) -> None:
        """Hang a checkpoint at its node's position, which must be empty."""
        node, offset = checkpoint.node, checkpoint.offset
        assert offset not in node.checkpoints and 1 <= offset <= len(node.token_ids)
        node.checkpoints[offset] = checkpoint
        if offset < self.page_size:
            parent = node.parent
            assert parent is not None
            if parent.inner is None:
                parent.inner = {}
            assert node.token_ids[:offset] not in parent.inner
            parent.inner[node.token_ids[:offset]] = checkpoint

    def detach(self, checkpoint: Checkpoint) -> None:
        node, offset = checkpoint.node, checkpoint.offset
        del node.checkpoints[offset]
        parent = node.parent
        if offset == self.page_size or parent is None or parent.inner is None:
            return
        del parent.inner[node.token_ids[:offset]]
        if not parent.inner:
            parent.inner = None

    def at(self, node: RadixNode, offset: int) -> Checkpoint | None:
        """The checkpoint after `offset` tokens of `node`, be it in a sibling that begins alike."""
        known = node.checkpoints.get(offset)
        if known is None and node.parent is not None and node.parent.inner:
            known = node.parent.inner.get(node.token_ids[:offset])
        return known

    def nodes(self) -> Iterator[RadixNode]:
        """All nodes but the root; for audits, never in the way of a request."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()


def common_length(a: Tokens, b: Tokens) -> int:
    """Number of equal tokens at the beginning."""
    if a == b:
        return len(a)
    for place, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return place
    return min(len(a), len(b))
