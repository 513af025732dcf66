"""The tree: neighbours in order find what a look at every child would."""

import random
from collections.abc import Iterator

import pytest

from k3agent.backend.cache.keys import chain_key, root_key
from k3agent.backend.cache.radix import Checkpoint, RadixNode, RadixTree, common_length

PAGE = 4


def tree_of(*pages: tuple[int, ...]) -> RadixTree:
    tree = RadixTree(PAGE, root_key("test"))
    for page in pages:
        tree.insert(tree.root, page, 0, 0)
    return tree


def test_a_partial_agreement_counts_as_latents() -> None:
    tree = tree_of((1, 2, 3, 4), (1, 2, 5, 6), (7, 7))
    assert tree.match([1, 2, 5, 9, 9], 4).kv_len == 3
    assert tree.match([7, 7, 7], 2).kv_len == 2
    assert tree.match([9], 0).kv_len == 0
    assert tree.match([1, 2, 3, 4, 8], 4).kv_len == 4


def test_neighbours_in_order_are_the_nearest() -> None:
    rng = random.Random(0)
    pages = {tuple(rng.randint(0, 2) for _ in range(PAGE)) for _ in range(30)}
    tree = tree_of(*pages)
    for _ in range(300):
        ids = [rng.randint(0, 2) for _ in range(rng.randint(1, PAGE))]
        best = max(common_length(page, tuple(ids)) for page in pages)
        assert tree.match(ids, 0).kv_len == best
        longer = tree.child_that_begins_with(tree.root, tuple(ids))
        assert (longer is not None) == (best == len(ids))


def test_a_state_inside_a_page_is_found_by_who_goes_on_otherwise() -> None:
    tree = tree_of((1, 2, 3, 4))
    node = tree.root.children[1, 2, 3, 4]
    tree.attach(Checkpoint(node, 2, 0, False, 0))
    assert [c.offset for c in tree.match([1, 2, 9, 9], 3).checkpoints] == [2]
    assert [c.offset for c in tree.match([1, 2, 3], 2).checkpoints] == [2]
    assert tree.match([1, 2], 1).checkpoints == ()  # the last token is left to compute
    tree.detach(node.checkpoints[2])
    assert tree.match([1, 2, 9, 9], 3).checkpoints == ()
    assert tree.root.inner is None


def test_short_pages_are_leaves_and_are_found() -> None:
    tree = tree_of((1,), (1, 2, 9), (2, 2))
    assert {n.token_ids for n in tree.short_beginnings(tree.root, (1, 2, 9, 9))} == {(1,), (1, 2, 9)}
    with pytest.raises(AssertionError):
        tree.insert(tree.root.children[2, 2], (1,), 0, 0)


def test_removal_keeps_the_order() -> None:
    tree = tree_of((1, 1, 1, 1), (2, 2, 2, 2), (3,))
    tree.remove(tree.root.children[2, 2, 2, 2])
    assert tree.root.order == [(1, 1, 1, 1), (3,)]
    tree.remove(tree.root.children[3,])
    assert (tree.root.order, tree.root.num_short, tree.num_nodes) == (None, 0, 1)


def test_keys_name_the_whole_prefix() -> None:
    tree = tree_of((1, 2, 3, 4))
    node = tree.insert(tree.root.children[1, 2, 3, 4], (5, 6, 7, 8), 0, 0)
    assert node.key == chain_key(chain_key(root_key("test"), (1, 2, 3, 4)), (5, 6, 7, 8))
    assert node.key != chain_key(chain_key(root_key("other"), (1, 2, 3, 4)), (5, 6, 7, 8))
    assert chain_key(b"", (1 << 62,)) != chain_key(b"", (1,))  # images have ids of 63 bits


def test_a_match_never_walks_the_tree() -> None:
    class Walked(RadixTree):
        def nodes(self) -> Iterator[RadixNode]:
            raise AssertionError("a request looked at every node")

    tree = Walked(PAGE, b"")
    for first in range(2000):
        tree.insert(tree.root, (first, 0, 0, 0), 0, 0)
    assert tree.match([1500, 0, 9, 9], 3).kv_len == 2
