from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.measure.rounds import block_order

ARMS = ("public", "wheelhouse", "public-again")


@given(st.integers(1, 3), st.integers(1, 30), st.integers(0, 2**31))
def test_every_visit_has_every_arm_once(count: int, pairs: int, seed: int) -> None:
    slots = block_order(ARMS[:count], pairs, seed)
    assert [slot.index for slot in slots] == list(range(count * pairs))
    seen = Counter((slot.visit, slot.arm) for slot in slots)
    assert seen == {(visit, arm): 1 for visit in range(pairs) for arm in ARMS[:count]}


@given(st.integers(1, 3), st.integers(1, 15), st.integers(0, 2**31))
def test_blocks_mirror_so_that_linear_drift_cancels(count: int, blocks: int, seed: int) -> None:
    slots = block_order(ARMS[:count], 2 * blocks, seed)
    for block in range(blocks):
        arms = [slot.arm for slot in slots if slot.block == block]
        assert arms == arms[::-1]
    places = {arm: sum(slot.index for slot in slots if slot.arm == arm) for arm in ARMS[:count]}
    assert len(set(places.values())) == 1


def test_two_arms_give_abba_and_baab_by_chance() -> None:
    slots = block_order(("A", "B"), 400, seed=1)
    blocks = Counter("".join(s.arm for s in slots[at : at + 4]) for at in range(0, len(slots), 4))
    assert set(blocks) == {"ABBA", "BAAB"}
    assert 70 < blocks["ABBA"] < 130


def test_the_seed_decides() -> None:
    orders = [tuple(s.arm for s in block_order(("A", "B"), 20, seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def test_arms_must_differ() -> None:
    with pytest.raises(ValueError, match="distinct"):
        block_order(("A", "A"), 2, 0)
