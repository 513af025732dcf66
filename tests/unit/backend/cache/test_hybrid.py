"""The cache on the device against a toy network whose latents and states depend on everything before them.

Whatever the order of starts, steps, checkpoints, ends and evictions, each sequence must see exactly what a
fresh engine would have computed, and every page and slot must be accounted for.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from k3agent.backend.cache.hybrid import HybridCache, split_budget
from k3agent.backend.cache.pages import PagePool
from k3agent.backend.cache.states import StatePool
from k3agent.backend.cache.toy import TOY_GRID, TOY_PAGE, ToyEngine, ToySequence, ToyStorage
from k3agent.backend.errors import CacheFullError

PAGE = TOY_PAGE


class Engine(ToyEngine):
    def __init__(self, num_pages: int = 24, num_slots: int = 6, exactness: str = "off") -> None:
        storage = ToyStorage(num_pages, num_slots)
        cache = HybridCache(
            num_pages,
            num_slots,
            storage,
            page_size=PAGE,
            grid=TOY_GRID,
            exactness=exactness,
            debug=True,
        )
        super().__init__(cache, storage)

    def compute(self, toy: ToySequence, count: int) -> bool:
        """`count` tokens at most, in one piece."""
        end = min(toy.num_computed + count, len(toy.token_ids))
        return toy.num_computed == end or self._compute(toy, end, False)

    def audit(self, running: list[ToySequence]) -> None:
        held = [holding.tenant for holding in self.cache.holdings.values()]
        assert all(any(toy is tenant for toy in running) for tenant in held)
        self.cache.check()


IDS = st.lists(st.integers(0, 1), min_size=1, max_size=30)


class AnyInterleaving(RuleBasedStateMachine):
    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine()
        self.alive: list[ToySequence] = []

    @rule(target=running, ids=IDS)
    def start(self, ids: list[int]) -> object:
        toy = self.engine.start(ids)
        if toy is None:
            return multiple()
        assert toy.num_computed < len(ids)
        self.engine.check(toy)
        self.alive.append(toy)
        return toy

    @rule(toy=running, count=st.integers(1, 12))
    def prefill(self, toy: ToySequence, count: int) -> None:
        self.engine.compute(toy, count)

    @rule(toy=running, token=st.integers(0, 1))
    def decode(self, toy: ToySequence, token: int) -> None:
        if toy.num_computed == len(toy.token_ids):
            toy.token_ids.append(token)
            if not self.engine.compute(toy, 1):
                toy.token_ids.pop()

    @rule(toy=running)
    def checkpoint(self, toy: ToySequence) -> None:
        self.engine.cache.checkpoint(toy)

    @rule(toy=running)
    def publish(self, toy: ToySequence) -> None:
        self.engine.cache.publish(toy)

    @rule(toy=consumes(running))
    def finish(self, toy: ToySequence) -> None:
        self.engine.cache.checkpoint(toy, give_slot=True)
        self.abort_now(toy)

    @rule(toy=consumes(running))
    def abort(self, toy: ToySequence) -> None:
        self.abort_now(toy)

    def abort_now(self, toy: ToySequence) -> None:
        self.engine.cache.release(toy)
        self.engine.cache.release(toy)
        self.alive.remove(toy)

    @rule(ids=IDS)
    def match_and_drop(self, ids: list[int]) -> None:
        prefix = self.engine.cache.match(ids)
        assert prefix.state_len <= prefix.kv_len <= len(ids)
        assert prefix.state_len < len(ids)
        self.engine.cache.drop(prefix)

    @rule()
    def clear(self) -> None:
        self.engine.cache.clear()

    @invariant()
    def all_is_true_and_accounted_for(self) -> None:
        for toy in self.alive:
            self.engine.check(toy)
        self.engine.audit(self.alive)

    def teardown(self) -> None:
        for toy in list(self.alive):
            self.abort_now(toy)
        self.engine.cache.clear()
        self.engine.audit([])
        assert self.engine.cache.pages.num_free == self.engine.cache.pages.num_pages
        assert self.engine.cache.states.num_free == self.engine.cache.states.num_slots


AnyInterleaving.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAnyInterleaving = AnyInterleaving.TestCase


def test_a_b_a() -> None:
    engine = Engine()
    a, b = [0, 1] * 5, [0, 1] * 3 + [1, 1, 1, 1, 1]
    assert engine.run(a) == 0
    assert engine.run(b) == 0  # the shared latents are known, but no state among them
    assert engine.cache.counters.lost_tokens["no_state"] == 6
    assert engine.run([*a, 0]) == len(a)
    assert engine.run([*b, 0]) == len(b)
    assert engine.run([*a, 0, 0]) == len(a) + 1
    engine.audit([])


def test_the_last_token_is_always_computed() -> None:
    engine = Engine()
    ids = [1] * (2 * PAGE)
    assert engine.run(ids) == 0
    prefix = engine.cache.match(ids)
    assert (prefix.kv_len, prefix.state_len) == (len(ids), 0)
    engine.cache.drop(prefix)
    assert engine.run([*ids, 1]) == len(ids)


def test_a_junction_checkpoint_serves_the_third() -> None:
    engine = Engine()
    common = [1, 0, 1, 0, 1, 0, 1, 0]
    engine.run([*common, 1, 1, 1])
    second = engine.start([*common, 0, 0, 0])
    assert second is not None
    engine.compute(second, len(common))
    assert engine.cache.checkpoint(second)
    engine.cache.release(second)
    assert engine.run([*common, 0, 1, 1]) == len(common)


def test_a_turn_extends_a_partial_page_in_place() -> None:
    engine = Engine()
    engine.run([1] * 6)
    engine.run([1] * 7)
    engine.run([1] * 9)
    assert engine.cache.tree.num_nodes == 3  # 4 + 4 + 1, no short page left beside a full one
    assert engine.run([*[1] * 6, 0]) == 6  # the state inside the page moved along
    engine.audit([])


def test_superseded_checkpoints_leave_first() -> None:
    engine = Engine(num_pages=40, num_slots=4)
    engine.run([0] * 3)
    for length in range(5, 30, 3):
        engine.run([1] * length)
    assert engine.run([0] * 4) == 3


def test_pages_leave_from_the_oldest_leaf() -> None:
    engine = Engine(num_pages=6)
    engine.run([0] * 8)
    engine.run([1] * 8)
    engine.run([0] * 9)
    long = engine.start([2] * 12)
    assert long is not None
    assert engine.compute(long, 12)
    assert engine.cache.match([1] * 9).kv_len < 8
    assert engine.cache.match([0] * 9).kv_len >= 8
    assert engine.cache.counters.evicted_pages > 0


def test_no_room_is_an_answer_not_a_crash() -> None:
    engine = Engine(num_pages=2, num_slots=1)
    first = engine.start([0] * 9)
    assert first is not None
    assert not engine.compute(first, 9)
    assert engine.compute(first, 8)
    assert not engine.cache.checkpoint(first)
    assert engine.start([1]) is None
    engine.audit([first])
    engine.cache.release(first)
    assert engine.start([1]) is not None


def test_no_slot_leaves_no_lock() -> None:
    engine = Engine(num_pages=8, num_slots=1)
    engine.run([1] * 8)
    assert engine.start([1] * 9) is None  # the only slot holds the checkpoint that it would start from
    engine.audit([])


def test_locked_nodes_survive() -> None:
    engine = Engine()
    engine.run([1] * 8)
    prefix = engine.cache.match([1] * 9)
    engine.cache.clear()
    assert engine.cache.tree.num_nodes == 2
    engine.cache.drop(prefix)
    engine.cache.clear()
    assert engine.cache.tree.num_nodes == 0


def test_pools_refuse_to_be_empty() -> None:
    with pytest.raises(CacheFullError):
        PagePool(0)
    with pytest.raises(CacheFullError):
        StatePool(0, lambda slot: None)


def test_slots_are_zeroed_when_handed_out() -> None:
    zeroed: list[int] = []
    pool = StatePool(2, zeroed.append)
    slot = pool.allocate()
    assert slot is not None
    pool.release(slot)
    pool.allocate()
    assert zeroed == [slot, slot]


def test_budget_is_kept() -> None:
    num_pages, num_slots = split_budget(1_000_000, page_bytes=1000, slot_bytes=20_000)
    assert num_pages * 1000 + num_slots * 20_000 <= 1_000_000
    assert (num_pages, num_slots) == (500, 25)
