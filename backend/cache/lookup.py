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


@dataclass(frozen=True, slots=True)
class _Page:
    saved: SavedPage
    node: RadixNode | None
    end: int


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
    pages, dead = _known_pages(tree, lower, match, token_ids)
    kv_len = pages[-1].end if pages else 0
    if dead is None:
        kv_len = max(kv_len, match.kv_len)
    exact_len = next((page.end - tree.page_size for page in pages if not page.saved.is_exact), kv_len)
    found = list(_device_states(match, dead, exact_len))
    if lower is not None:
        found += _saved_states(tree, lower, pages, token_ids, exact_len)
    found = [c for c in found if c.position <= limit]
    deepest = max((c.position for c in found), default=0)
    kv_len = max(kv_len, deepest)
    usable = [c for c in found if c.is_exact or not must_be_exact]
    best = max(usable, key=lambda c: (c.position, -c.nearness), default=None)
    state_len = best.position if best else 0
    num_whole = state_len // tree.page_size
    path = tuple(page.node for page in pages[:num_whole] if page.node is not None)
    checkpoint = best.state if best and isinstance(best.state, Checkpoint) else None
    if checkpoint is not None and checkpoint.offset < tree.page_size:
        path = (*path, checkpoint.node)
    return Prefix(
        kv_len=kv_len,
        state_len=state_len,
        path=path,
        pages=tuple(page.saved for page in pages[:num_whole]),
        checkpoint=checkpoint,
        saved_state=best.state if best and isinstance(best.state, SavedState) else None,
        node=path[-1] if path else None,
        is_background=False,
        is_exact=best is not None and best.is_exact,
        losses=_losses(tree, forgotten, match, token_ids, (state_len, deepest, kv_len)),
        dead=dead,
    )


def _known_pages(
    tree: RadixTree, lower: LowerTiers | None, match: Match, token_ids: Sequence[int]
) -> tuple[list[_Page], RadixNode | None]:
    """The whole pages that some tier has, from the first on, and the node at which the tree proved dead."""
    pages: list[_Page] = []
    for node in match.path:
        if not node.is_full or node.end > match.kv_len:
            break
        is_exact: bool | None = node.is_exact
        if node.page_id is None:
            is_exact = lower.page(node.key) if lower is not None else None
            if is_exact is None:
                return pages, node
        pages.append(_Page(SavedPage(node.key, node.token_ids, is_exact), node, node.end))
    if lower is None:
        return pages, None
    key, end = (pages[-1].saved.key, pages[-1].end) if pages else (tree.root.key, 0)
    while end + tree.page_size <= len(token_ids):
        tokens = tuple(token_ids[end : end + tree.page_size])
        key = chain_key(key, tokens)
        is_exact = lower.page(key)
        if is_exact is None:
            break
        end += tree.page_size
        pages.append(_Page(SavedPage(key, tokens, is_exact), None, end))
    return pages, None


def _device_states(match: Match, dead: RadixNode | None, exact_len: int) -> Iterator[_Candidate]:
    for checkpoint in match.checkpoints:
        position = checkpoint.position
        if dead is None or position <= dead.start:
            yield _Candidate(position, 0, checkpoint, checkpoint.is_exact and position <= exact_len)


def _saved_states(
    tree: RadixTree,
    lower: LowerTiers,
    pages: Sequence[_Page],
    token_ids: Sequence[int],
    exact_len: int,
) -> Iterator[_Candidate]:
    ends = [(tree.root.key, 0), *((page.saved.key, page.end) for page in pages)]
    for key, end in ends:
        for state in lower.states_at(key, end):
            if tuple(token_ids[end : state.position]) == state.tail and state.position > 0:
                is_exact = state.is_exact and state.position <= exact_len
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
    lost = [node.start + offset for node in match.path for offset in node.lost_states or ()]
    evicted_state = max([deepest, *(position for position in lost if position <= known)])
    full = [node for node in match.path if node.is_full and node.end <= known]
    key, end = (full[-1].key, full[-1].end) if full else (tree.root.key, 0)
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
