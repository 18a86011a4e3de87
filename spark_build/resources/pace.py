"""How long a build will go on: from its own steps, and from the pace of an earlier build."""

from __future__ import annotations

from collections.abc import Sequence

from spark_build.events import Expected

POINTS = 10  # a curve has the seconds after each tenth of the steps
SIMILAR = 0.9  # share of steps from which on an earlier build says something about this one
BOUND = 5.0  # times as slow or as fast as the earlier build; beyond that it says nothing


def curve(times: Sequence[tuple[int, float]], total: int, seconds: float) -> tuple[float, ...]:
    """Seconds after each tenth of the steps. times: (steps done, seconds since the start), rising."""
    if total < POINTS:
        return ()
    points = []
    for tenth in range(1, POINTS):
        wanted = total * tenth / POINTS
        points.append(next((at for done, at in times if done >= wanted), seconds))
    return (*(round(one, 1) for one in points), round(seconds, 1))


def time_left(done: int, total: int, elapsed: float, expected: Expected | None) -> float | None:
    """Seconds that a stage will go on; None as long as nothing is known.

    With an earlier build of as many steps: what that one took from here on, at the ratio of the two
    paces so far.
    """
    if expected is None or expected.seconds is None or not expected.curve:
        return None
    if not SIMILAR <= total / max(1, expected.steps) <= 1 / SIMILAR:
        return None
    before = at(expected.curve, done / total if total else 1.0)
    ratio = 1.0 if before <= 0 else min(BOUND, max(1 / BOUND, elapsed / before))
    return max(0.0, expected.curve[-1] - before) * ratio


def at(points: Sequence[float], share: float) -> float:
    """Seconds after this share of the steps, between the points in a straight line."""
    known = [0.0, *points]
    place = min(1.0, max(0.0, share)) * (len(known) - 1)
    low = min(int(place), len(known) - 2)
    return known[low] + (known[low + 1] - known[low]) * (place - low)
