"""Failure classes seen in other engines' prefix caches, as far as the cache alone can show them.

The numbers are those of docs/failure-classes.md; the engine's tests have the others.
"""

from pathlib import Path

import pytest

from k3agent.backend.cache.tiers import HostTier, LostRecordError
from k3agent.backend.cache.tiers_disk import DiskTier
from k3agent.backend.cache.toy import TOY_GRID, TOY_PAGE, ToyEngine, ToySequence

SHARED = [5, *range(100, 139)]  # 40 tokens: ten pages, five grid steps


def make(
    num_pages: int = 80,
    num_slots: int = 12,
    exactness: str = "idle",
    host: HostTier | None = None,
    disk: DiskTier | None = None,
) -> ToyEngine:
    return ToyEngine.open(num_pages, num_slots, exactness, host, disk)


def serve(toy: ToyEngine, token_ids: list[int], answer: list[int] | None = None) -> int:
    """A request as the engine runs it, with checkpoints where the cache plans them; returns the hit."""
    sequence = ToySequence(list(token_ids))
    prefix = toy.cache.match(sequence.token_ids)
    stops = toy.cache.plan(prefix, len(token_ids))
    assert toy.cache.adopt(sequence, prefix)
    hit = sequence.num_computed
    toy.check(sequence)
    while sequence.num_computed < len(token_ids):
        stop = min([s for s in stops if s > sequence.num_computed], default=None)
        assert toy.prefill(sequence, stop)
        if sequence.num_computed in stops:
            toy.cache.checkpoint(sequence)
    for token in answer or []:
        assert toy.decode(sequence, token)
    toy.check(sequence)
    toy.cache.checkpoint(sequence, give_slot=True)
    toy.cache.release(sequence)
    toy.cache.check()
    return hit


# --- silent zero hits


def test_t01_a_prefix_shorter_than_a_page_hits() -> None:
    toy = make(exactness="off")
    serve(toy, [1, 2])
    assert serve(toy, [1, 2, 3]) == 2


@pytest.mark.parametrize("exactness", ["off", "idle", "always"])
def test_t02_a_prompt_of_whole_units_hits(exactness: str) -> None:
    toy = make(exactness=exactness)
    serve(toy, SHARED)
    while toy.canonicalise():
        pass
    # the last token must be computed, so the step before the end is what a repeat can have
    assert serve(toy, SHARED) == len(SHARED) - (TOY_PAGE if exactness == "off" else TOY_GRID)


def test_t03_a_second_visitor_leaves_a_state_at_the_junction() -> None:
    toy = make(num_slots=5, exactness="off")
    serve(toy, [*SHARED, *range(30)])
    while toy.cache.resident.evict_state():
        pass
    assert serve(toy, [*SHARED, *range(200, 230)]) == 0
    assert serve(toy, [*SHARED, *range(300, 330)]) == len(SHARED)


def test_t06_salt_is_the_fingerprint_and_nothing_else(tmp_path: Path) -> None:
    first = make(disk=DiskTier(tmp_path, "weights-1", 1 << 20))
    serve(first, SHARED)
    first.cache.close()
    again = make(disk=DiskTier(tmp_path, "weights-1", 1 << 20))
    assert serve(again, [*SHARED, 1]) > 0
    again.cache.close()
    assert serve(make(disk=DiskTier(tmp_path, "weights-2", 1 << 20)), [*SHARED, 1]) == 0


def test_t07_the_state_is_not_a_turn_behind() -> None:
    toy = make()
    transcript = list(SHARED)
    for turn in range(4):
        serve(toy, transcript, answer=list(range(500 + 50 * turn, 519 + 50 * turn)))
        transcript += range(500 + 50 * turn, 519 + 50 * turn)
        while toy.canonicalise():
            pass
        prefix = toy.cache.match([*transcript, 1])
        assert prefix.state_len == len(transcript) // TOY_GRID * TOY_GRID
        assert prefix.is_exact
        toy.cache.drop(prefix)
        transcript += range(900 + 20 * turn, 905 + 20 * turn)


def test_t08_a_request_does_not_spoil_the_checkpoints_of_others() -> None:
    toy = make(exactness="off")
    serve(toy, SHARED)
    for other in range(5):
        serve(toy, [other, 1, 2, 3])
        assert serve(toy, [*SHARED, other]) >= len(SHARED)


def test_t09_states_survive_a_restart_with_the_pages(tmp_path: Path) -> None:
    toy = make(disk=DiskTier(tmp_path, "one", 1 << 20))
    serve(toy, SHARED, answer=[1, 2, 3])
    toy.cache.close()
    assert serve(make(disk=DiskTier(tmp_path, "one", 1 << 20)), [*SHARED, 1, 2, 3, 4]) == len(SHARED) + 3


# --- wrong output after a hit


def test_t10_a_checkpoint_holds_the_state_of_its_position() -> None:
    toy = make(exactness="off")
    sequence = toy.start(SHARED)
    assert sequence is not None
    while sequence.num_computed < len(SHARED):
        toy.prefill(sequence)
        toy.cache.checkpoint(sequence)
    toy.cache.release(sequence)
    for length in range(TOY_GRID + 1, len(SHARED), TOY_GRID):
        again = toy.start([*SHARED[: length - 1], 7, 7])
        assert again is not None
        assert again.num_computed == length - 1
        toy.check(again)
        toy.cache.release(again)


def test_t12_latents_without_a_state_are_no_hit() -> None:
    toy = make(exactness="off")
    serve(toy, SHARED)
    while toy.cache.resident.evict_state():
        pass
    prefix = toy.cache.match([*SHARED, 1])
    assert (prefix.kv_len, prefix.state_len) == (len(SHARED), 0)
    sequence = ToySequence([*SHARED, 1])
    assert toy.cache.adopt(sequence, prefix)
    assert (sequence.num_computed, sequence.page_ids) == (0, [])
    toy.check(sequence)


def test_t13_a_slot_is_zeroed_when_it_is_handed_out() -> None:
    toy = make(num_slots=2)
    first = toy.start(SHARED)
    assert first is not None and first.state_slot is not None
    toy.prefill(first)
    slot = first.state_slot
    toy.cache.release(first)
    assert toy.storage.states[slot] != 0  # spoiled, so that a slot that is not cleared would show
    second = toy.start([9, 9])
    assert second is not None
    assert second.state_slot == slot
    assert toy.storage.states[slot] == 0


@pytest.mark.parametrize("unit", ["state_bytes", "page_bytes"])
def test_t15_a_record_of_another_geometry_is_no_hit(tmp_path: Path, unit: str) -> None:
    toy = make(disk=DiskTier(tmp_path, "one", 1 << 20))
    serve(toy, SHARED)
    toy.cache.close()
    other = make(disk=DiskTier(tmp_path, "one", 1 << 20))
    setattr(other.storage, unit, 2 * getattr(other.storage, unit))
    assert serve(other, [*SHARED, 1]) == 0


def test_t16_a_b_a() -> None:
    for exactness in ("off", "idle", "always"):
        toy = make(num_slots=4, exactness=exactness)
        a, b = [*SHARED, *range(20)], [*SHARED, *range(60, 80)]
        for token_ids in (a, b, a, b, [*a, 1], [*b, 1], a):
            serve(toy, token_ids, answer=[3, 4])


def test_t18_a_hit_is_the_least_of_what_all_groups_have() -> None:
    host = HostTier(1 << 20)
    toy = make(exactness="off", host=host)
    sequence = toy.start(SHARED)
    assert sequence is not None
    while sequence.num_computed < len(SHARED):
        toy.prefill(sequence)
        toy.cache.checkpoint(sequence)
    toy.cache.release(sequence)
    while toy.cache.resident.evict_page():
        pass
    nodes = sorted(toy.cache.tree.nodes(), key=lambda node: node.start)
    host._discard(host._pages[nodes[5].key])  # the sixth page is nowhere now; states after it are worthless
    prefix = toy.cache.match([*SHARED, 1])
    assert prefix.kv_len == 5 * TOY_PAGE
    assert prefix.state_len == 2 * TOY_GRID
    toy.cache.drop(prefix)
    toy.cache.check()


def test_t19_a_record_is_visible_only_when_all_of_it_is_there(tmp_path: Path) -> None:
    disk = DiskTier(tmp_path, "one", 1 << 20)
    toy = make(exactness="off", disk=disk)
    serve(toy, SHARED)
    toy.cache.flush()
    for path in tmp_path.glob("p-*"):
        path.unlink()
    toy.cache.close()
    again = make(exactness="off", disk=DiskTier(tmp_path, "one", 1 << 20))
    prefix = again.cache.match([*SHARED, 1])
    assert (prefix.kv_len, prefix.state_len) == (0, 0)


def test_t20_what_is_written_is_what_the_page_held_then(tmp_path: Path) -> None:
    toy = make(num_pages=12, num_slots=3, exactness="off", disk=DiskTier(tmp_path, "one", 1 << 20))
    serve(toy, SHARED)
    # the writer may still be at work while the pages and the slot get new tenants
    toy.cache.resident.drop_all()
    for other in range(4):
        serve(toy, [other] * 40)
    toy.cache.close()
    assert serve(make(disk=DiskTier(tmp_path, "one", 1 << 20), exactness="off"), [*SHARED, 1]) == len(SHARED)


@pytest.mark.parametrize("broken", ["load_page", "load_state"])
def test_t22_half_of_a_restore_is_none(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host = HostTier(1 << 20)
    toy = make(num_pages=14, num_slots=3, exactness="off", host=host)
    serve(toy, SHARED)
    for other in range(4):
        serve(toy, [other] * 40)
    calls = []

    def lose(*arguments: object, **named: object) -> None:
        calls.append(arguments)
        raise LostRecordError("gone")

    prefix = toy.cache.match([*SHARED, 1])
    assert prefix.state_len == len(SHARED)
    monkeypatch.setattr(host, broken, lose)
    sequence = ToySequence([*SHARED, 1])
    assert toy.cache.adopt(sequence, prefix)
    assert calls
    assert sequence.num_computed < len(SHARED)
    toy.check(sequence)
    toy.cache.check()
    toy.cache.release(sequence)


def test_t24_the_warm_path_cuts_where_the_cold_one_does() -> None:
    toy = make()
    serve(toy, [*SHARED, *range(30)])
    prefix = toy.cache.match([*SHARED, 1, *range(200, 230)])  # parts in the middle of a grid step
    plan = toy.cache.plan(prefix, len(SHARED) + 31)
    assert plan
    assert all(position % TOY_GRID == 0 for position in plan)
    toy.cache.drop(prefix)


def test_t27_a_hit_needs_no_further_cut() -> None:
    toy = make()
    serve(toy, SHARED)
    while toy.canonicalise():
        pass
    prefix = toy.cache.match([*SHARED, 1, 2, 3])
    assert prefix.state_len == len(SHARED)
    assert toy.cache.plan(prefix, len(SHARED) + 3) == []
    toy.cache.drop(prefix)


# --- only committed tokens are remembered


def test_t28_t31_tokens_that_are_not_computed_are_not_published() -> None:
    toy = make(exactness="off")
    sequence = toy.start(SHARED[:10])
    assert sequence is not None
    while sequence.num_computed < 10:
        toy.prefill(sequence)
    sequence.token_ids += [1, 2, 3]  # drafted, not verified: the watermark is `num_computed`
    toy.cache.checkpoint(sequence, give_slot=True)
    toy.cache.release(sequence)
    prefix = toy.cache.match([*SHARED[:10], 1, 2, 3, 4])
    assert (prefix.kv_len, prefix.state_len) == (10, 10)
    toy.cache.drop(prefix)


# --- lifetime


def test_t33_an_abort_between_match_and_adoption_leaves_nothing() -> None:
    toy = make()
    serve(toy, SHARED)
    before = toy.cache.ledger()
    prefix = toy.cache.match([*SHARED, 1])
    toy.cache.drop(prefix)
    toy.cache.drop(prefix)
    assert toy.cache.ledger() == before
    toy.cache.check()


def test_t34_a_failed_admission_gives_its_slot_back() -> None:
    toy = make(num_pages=3, num_slots=4, exactness="off")
    serve(toy, [1] * 10)
    # it would resume inside the third page, and there is no fourth for the copy
    before = toy.cache.ledger()
    assert toy.start([1] * 11) is None
    toy.cache.check()
    assert toy.cache.ledger() == before


def test_t36_an_abort_within_a_chunk_leaks_nothing() -> None:
    toy = make()
    sequence = toy.start(SHARED)
    assert sequence is not None
    toy.prefill(sequence)
    assert toy.cache.reserve(sequence, 2 * TOY_GRID)  # the next chunk has its pages and is broken off
    toy.cache.release(sequence)
    toy.cache.check()
    ledger = toy.cache.ledger()
    assert (ledger.private_pages, ledger.running_slots) == (0, 0)


def test_t37_all_slots_in_use_is_an_answer() -> None:
    toy = make(num_slots=3)
    running = [toy.start([n, 1, 2]) for n in range(3)]
    assert all(sequence is not None for sequence in running)
    assert toy.start([9]) is None
    for sequence in running:
        assert sequence is not None
        toy.prefill(sequence)
        assert not toy.cache.checkpoint(sequence)
    toy.cache.check()


def test_t38_a_preempted_sequence_comes_back_by_an_ordinary_match() -> None:
    toy = make(exactness="off", num_slots=4)
    sequence = toy.start(SHARED)
    assert sequence is not None
    toy.prefill(sequence)
    toy.prefill(sequence)
    toy.cache.checkpoint(sequence, give_slot=True)
    toy.cache.release(sequence)
    serve(toy, [8] * 30)  # takes the slot that was given back
    again = toy.start(SHARED)
    assert again is not None
    assert again.num_computed == 2 * TOY_GRID
    toy.check(again)


def test_t39_what_cannot_fit_evicts_nothing() -> None:
    toy = make(num_pages=12)
    serve(toy, SHARED)
    before = toy.cache.ledger()
    sequence = toy.start([9] * 100)
    assert sequence is not None
    assert not toy.cache.reserve(sequence, 100)
    assert toy.cache.ledger().tree_pages == before.tree_pages
    toy.cache.release(sequence)
    assert toy.cache.ledger() == before


def test_t40_four_agents_at_once_stay_apart() -> None:
    toy = make(num_slots=9)
    agents = [toy.start([*SHARED, agent]) for agent in range(4)]
    for step in range(60):
        sequence = agents[step % 4]
        assert sequence is not None
        if sequence.num_computed < len(sequence.token_ids):
            assert toy.prefill(sequence)
        else:
            assert toy.decode(sequence, step)
        if step % 7 == 0:
            toy.cache.checkpoint(sequence)
        for other in agents:
            assert other is not None
            toy.check(other)
        toy.cache.check()


def test_t41_release_is_final_and_may_be_repeated() -> None:
    toy = make()
    for _ in range(50):
        sequence = toy.start(SHARED)
        assert sequence is not None
        toy.prefill(sequence)
        toy.cache.release(sequence)
        toy.cache.release(sequence)
    ledger = toy.cache.ledger()
    assert (ledger.running_slots, ledger.private_pages, ledger.free_slots) == (0, 0, 12)


def test_t42_the_order_of_eviction_stays_whole() -> None:
    toy = make(num_pages=30, num_slots=5, exactness="off")
    for number in range(60):
        serve(toy, [number % 7, *range(number % 11, 20)])
    freed = 0
    while toy.cache.resident.evict_page():
        freed += 1
        toy.cache.check()
    assert freed > 0
    assert toy.cache.ledger().tree_pages == 0


def test_t44_what_is_equal_is_held_once() -> None:
    toy = make()
    serve(toy, SHARED)
    one = toy.cache.ledger()
    for _ in range(5):
        serve(toy, SHARED)
    again = toy.cache.ledger()
    assert (again.tree_pages, again.private_pages) == (one.tree_pages, 0)
