"""Lookup: how far a list of token ids is known on any tier, where it may be resumed, and what was lost.

Latents and states are matched apart. A page counts wherever it lies; a state counts if every page below it
does. The answer is the deepest such state, on the nearest tier that has it.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from k3agent.backend.cache.keys import chain_key
from k3agent.backend.cache.lower import LowerTiers, SavedPage, SavedState
from k3agent.backend.cache.radix import Checkpoint, Match, RadixNode, RadixTree

_REMEMBERED_PAGES = 1 << 16
_NEARNESS = {"host": 1, "disk": 2}


@dataclass(slots=True)
class Prefix:
    """A match whose path stays locked until it is adopted by a sequence or dropped."""

    kv_len: int
    """Tokens of known latents."""
    state_len: int
    """Tokens up to the deepest usable state: where a sequence resumes."""
    path: tuple[RadixNode, ...]
    """Nodes of the tree that hold the first `state_len` tokens; some may have to be loaded."""
    pages: tuple[SavedPage, ...]
    """The whole pages among them, and those after the path."""
    checkpoint: Checkpoint | None
    saved_state: SavedState | None
    node: RadixNode | None
    is_background: bool
    is_exact: bool
    """What is resumed equals what a cold run passes through."""
    losses: dict[str, int]
    """Tokens past the hit, by why they are computed again."""
    dead: RadixNode | None = None
    """A node whose latents no tier has any more."""


@dataclass(slots=True)
class _Known:
    """The whole pages that some tier has, from the first on."""

    nodes: list[RadixNode]
    """Those in the tree."""
    pages: list[SavedPage]
    """All of them, those of the nodes first."""
    end: int
    exact_len: int
    """How far they are exact."""
    dead: RadixNode | None = None
    """Here the tree ends: no tier has this node's page any more."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    position: int
    nearness: int
    state: Checkpoint | SavedState
    is_exact: bool


class Forgotten:
    """Keys of pages that were evicted from everywhere, as far back as is worth remembering."""

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def add(self, key: bytes) -> None:
        self._keys[key] = None
        if len(self._keys) > _REMEMBERED_PAGES:
            self._keys.popitem(last=False)

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def clear(self) -> None:
        self._keys.clear()


def look_up(
    tree: RadixTree,
    lower: LowerTiers | None,
    forgotten: Forgotten,
    token_ids: Sequence[int],
    must_be_exact: bool,
) -> Prefix:
    """The longest resumable prefix that leaves at least the last token to compute."""
    limit = len(token_ids) - 1
    match = tree.match(token_ids, limit)
    known = _known_pages(tree, lower, match, token_ids)
    dead = known.dead
    kv_len = known.end if dead is not None else max(known.end, match.kv_len)
    found = list(_device_states(match, dead, known.exact_len))
    if lower is not None:
        found += _saved_states(tree, lower, known, token_ids)
    found = [c for c in found if c.position <= limit]
    deepest = max((c.position for c in found), default=0)
    kv_len = max(kv_len, deepest)
    usable = [c for c in found if c.is_exact or not must_be_exact]
    best = max(usable, key=lambda c: (c.position, -c.nearness), default=None)
    state_len = best.position if best else 0
    num_whole = state_len // tree.page_size
    path = tuple(known.nodes[:num_whole])
    checkpoint = best.state if best and isinstance(best.state, Checkpoint) else None
    if checkpoint is not None and checkpoint.offset < tree.page_size:
        path = (*path, checkpoint.node)
    return Prefix(
        kv_len=kv_len,
        state_len=state_len,
        path=path,
        pages=tuple(known.pages[:num_whole]),
        checkpoint=checkpoint,
        saved_state=best.state if best and isinstance(best.state, SavedState) else None,
        node=path[-1] if path else None,
        is_background=False,
        is_exact=best is not None and best.is_exact,
        losses=_losses(tree, forgotten, match, token_ids, (state_len, deepest, kv_len)),
        dead=dead,
    )


def _known_pages(tree: RadixTree, lower: LowerTiers | None, match: Match, token_ids: Sequence[int]) -> _Known:
    known = _Known([], [], 0, 0)
    key = tree.root.key
    for node in match.path:
        is_exact = _class_of(node, lower)
        if is_exact is None:
            known.dead = node
            return known
        if not node.is_full or node.end > match.kv_len:
            break
        known.nodes.append(node)
        key = node.key
        _add(known, SavedPage(key, node.token_ids, is_exact))
    while lower is not None and known.end + tree.page_size <= len(token_ids):
        tokens = tuple(token_ids[known.end : known.end + tree.page_size])
        key = chain_key(key, tokens)
        is_exact = lower.page(key)
        if is_exact is None:
            break
        _add(known, SavedPage(key, tokens, is_exact))
    return known


def _class_of(node: RadixNode, lower: LowerTiers | None) -> bool | None:
    """Is the node's page exact? None: it is nowhere."""
    if node.page_id is not None:
        return node.is_exact
    return lower.page(node.key) if lower is not None else None


def _add(known: _Known, page: SavedPage) -> None:
    if page.is_exact and known.exact_len == known.end:
        known.exact_len += len(page.tokens)
    known.end += len(page.tokens)
    known.pages.append(page)


def _device_states(match: Match, dead: RadixNode | None, exact_len: int) -> Iterator[_Candidate]:
    for checkpoint in match.checkpoints:
        position = checkpoint.position
        if dead is None or position <= dead.start:
            yield _Candidate(position, 0, checkpoint, checkpoint.is_exact and position <= exact_len)


def _saved_states(
    tree: RadixTree, lower: LowerTiers, known: _Known, token_ids: Sequence[int]
) -> Iterator[_Candidate]:
    key, end = tree.root.key, 0
    for page in (None, *known.pages):
        if page is not None:
            key, end = page.key, end + len(page.tokens)
        for state in lower.states_at(key, end):
            if tuple(token_ids[end : state.position]) == state.tail and state.position > 0:
                is_exact = state.is_exact and state.position <= known.exact_len
                yield _Candidate(state.position, _NEARNESS[state.tier], state, is_exact)


def _losses(
    tree: RadixTree,
    forgotten: Forgotten,
    match: Match,
    token_ids: Sequence[int],
    reached: tuple[int, int, int],
) -> dict[str, int]:
    """Why the tokens past the hit are computed again, given hit, deepest state of any class, and latents."""
    hit, deepest, known = reached
    losers = [node for node in match.path if node.lost_states]
    lost = [node.start + offset for node in losers for offset in node.lost_states or ()]
    evicted_state = max([deepest, *(position for position in lost if position <= known)])
    last = next((node for node in reversed(match.path) if node.is_full and node.end <= known), tree.root)
    key, end = last.key, last.end
    while end + tree.page_size <= len(token_ids):
        key = chain_key(key, token_ids[end : end + tree.page_size])
        if end >= known - known % tree.page_size and key not in forgotten:
            break
        end += tree.page_size
    evicted_pages = max(end - known, 0)
    return {
        "off_grid": deepest - hit,
        "evicted": evicted_state - deepest + evicted_pages,
        "no_state": known - evicted_state,
        "never_seen": len(token_ids) - known - evicted_pages,
    }
