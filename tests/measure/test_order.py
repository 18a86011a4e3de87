import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.measure.statistics import balanced_order, drawn_order

ARMS = ("public", "wheelhouse", "public-again")


@given(st.integers(1, 3), st.integers(1, 30), st.integers(0, 2**31))
def test_every_visit_has_every_arm_once(count: int, pairs: int, seed: int) -> None:
    slots = balanced_order(ARMS[:count], pairs, seed)
    assert [slot.index for slot in slots] == list(range(count * pairs))
    seen = Counter((slot.visit, slot.arm) for slot in slots)
    assert seen == {(visit, arm): 1 for visit in range(pairs) for arm in ARMS[:count]}


@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("seed", range(5))
def test_in_a_set_every_arm_has_every_place_and_follows_every_other(count: int, seed: int) -> None:
    """So drift along the rows cancels, and what a round leaves behind for the next."""
    arms = "ABCDE"[:count]
    rows = count if count % 2 == 0 else 2 * count
    slots = balanced_order(arms, rows, seed)
    assert {slot.block for slot in slots} == {0}
    visits = ["".join(s.arm for s in slots[at : at + count]) for at in range(0, len(slots), count)]
    places = Counter((at, arm) for row in visits for at, arm in enumerate(row))
    assert set(places.values()) == {rows // count}
    follows = Counter(pair for row in visits for pair in itertools.pairwise(row))
    assert len(follows) == count * (count - 1)
    assert len(set(follows.values())) == 1


@given(st.integers(2, 4), st.integers(1, 6), st.integers(0, 2**31))
def test_rows_come_with_their_reverse(count: int, half: int, seed: int) -> None:
    """Whatever the number of rounds: a straight drift favours no arm."""
    slots = balanced_order("ABCD"[:count], 2 * half, seed)
    places = Counter(dict.fromkeys("ABCD"[:count], 0))
    for slot in slots:
        places[slot.arm] += slot.index % count
    assert len(set(places.values())) == 1


def test_what_comes_after_the_first_rounds_changes_nothing_in_them() -> None:
    assert balanced_order("ABC", 10, 3, 20)[:30] == balanced_order("ABC", 10, 3)
    assert len(balanced_order("ABC", 10, 3, 20)) == 60
    assert balanced_order("ABC", 10, 3, 4) == balanced_order("ABC", 10, 3)


def test_the_order_is_left_to_chance() -> None:
    firsts = Counter(slot.arm for seed in range(300) for slot in balanced_order("AB", 10, seed)[:1])
    assert 110 < firsts["A"] < 190
    rows = {"".join(slot.arm for slot in balanced_order("AB", 10, seed)) for seed in range(50)}
    assert len(rows) > 20  # not ABBA over and over


def test_the_seed_decides() -> None:
    orders = [tuple(s.arm for s in balanced_order(("A", "B"), 20, seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_arms_must_differ() -> None:
    with pytest.raises(ValueError, match="distinct"):
        balanced_order(("A", "A"), 2, 0)


def test_a_drawn_order_owes_nothing_to_the_round_before() -> None:
    """Of two rounds each combination of orders comes as often; a balanced order has no two alike in a set."""
    seen: Counter[str] = Counter()
    for seed in range(400):
        slots = drawn_order("ab", 2, seed)
        assert [(slot.index, slot.visit) for slot in slots] == [(0, 0), (1, 0), (2, 1), (3, 1)]
        seen["".join(slot.arm for slot in slots)] += 1
    assert set(seen) == {"abab", "abba", "baab", "baba"}
    assert min(seen.values()) > 70
