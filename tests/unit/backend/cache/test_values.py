"""Scores keep their order over time; the heap hands out the least valuable thing and survives changes."""

from hypothesis import given
from hypothesis import strategies as st

from k3agent.backend.cache.values import HALF_LIFE, ValueHeap, score


def test_a_half_life_without_use_halves_the_value() -> None:
    assert abs(score(200, 1.0, 0) - score(100, 1.0, int(HALF_LIFE))) < 0.05


def test_bytes_and_chance_count() -> None:
    assert score(100, 1.0, 5, num_bytes=10) > score(100, 1.0, 5, num_bytes=20)
    assert score(100, 0.5, 5) < score(100, 1.0, 5)
    assert score(0, 1.0, 5) == score(1, 1.0, 5)  # nothing saved is no reason to divide by zero


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(-5, 5))))
def test_the_heap_is_a_sorted_dict(puts: list[tuple[int, float]]) -> None:
    heap: ValueHeap[int] = ValueHeap()
    expected: dict[int, float] = {}
    for thing, value in puts:
        heap.put(thing, value)
        expected[thing] = value
        if thing == 3:
            heap.discard(3)
            del expected[3]
        assert len(heap) == len(expected)
        assert heap.least() == min(expected.values(), default=None)
    found = [heap.pop() for _ in range(len(expected))]
    assert [expected[thing] for thing in found if thing is not None] == sorted(expected.values())
    assert heap.pop() is None


def test_what_became_worth_more_goes_back() -> None:
    heap: ValueHeap[str] = ValueHeap()
    now = {"a": 1.0, "b": 2.0}
    for name, value in now.items():
        heap.put(name, value)
    now["a"] = 3.0
    assert heap.pop(lambda name: now[name]) == "b"
    assert heap.pop(lambda name: now[name]) == "a"


def test_what_may_not_be_taken_stays() -> None:
    heap: ValueHeap[str] = ValueHeap()
    heap.put("kept", 1.0)
    heap.put("other", 2.0)
    assert heap.pop(lambda name: None if name == "kept" else 2.0) == "other"
    assert heap.pop(lambda name: None) is None
    assert heap.pop() == "kept"


def test_outdated_entries_do_not_pile_up() -> None:
    heap: ValueHeap[int] = ValueHeap()
    for value in range(100_000):
        heap.put(value % 10, float(value))
    assert len(heap._heap) < 1000
