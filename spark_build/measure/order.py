"""The order of rounds: mirrored blocks, so that a slow drift of the machine hits every arm alike."""

from __future__ import annotations

import random
from collections.abc import Sequence

from spark_build.measure.model import Slot


def block_order(arms: Sequence[str], pairs: int, seed: int) -> tuple[Slot, ...]:
    """`pairs` rounds of every arm. With two arms: a random ABBA or BAAB for every two pairs.

    More arms give a random permutation followed by its mirror image (ABCCBA). An odd number of
    pairs ends with half a block. The same seed gives the same order.
    """
    if len(set(arms)) != len(arms) or not arms:
        raise ValueError(f"arms must be distinct and at least one: {list(arms)}")
    chance = random.Random(seed)
    slots: list[Slot] = []
    for visit in range(0, pairs, 2):
        forward = list(arms)
        chance.shuffle(forward)
        halves = (forward, forward[::-1]) if visit + 1 < pairs else (forward,)
        for offset, half in enumerate(halves):
            for arm in half:
                slots.append(Slot(index=len(slots), visit=visit + offset, block=visit // 2, arm=arm))
    return tuple(slots)
