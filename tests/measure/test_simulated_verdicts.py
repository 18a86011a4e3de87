"""How often a verdict is wrong, over thousands of verifications of known truth.

A rate of 5% is seen as up to 6.5% in 2,000 draws, as up to 9.8% in 200; the control is left out where it could
only help.
"""

import math

import pytest

from tests.helpers.simulated import MACHINES, share

COUNTS = [200, pytest.param(2000, marks=pytest.mark.soak)]
EITHER = ("UPLIFT", "REGRESSION")

pytestmark = pytest.mark.parametrize("count", COUNTS)


def five_percent(count: int) -> float:
    """The most that a rate of 5% looks like, but for one time in a thousand."""
    return 0.05 + 3.09 * math.sqrt(0.05 * 0.95 / count)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_same_build_rarely_gets_a_claim(machine: str, count: int) -> None:
    assert share(MACHINES[machine], 0.0, EITHER, count, control=False) <= five_percent(count)


@pytest.mark.parametrize("effect", [0.03, -0.03])
def test_three_percent_at_one_percent_noise_is_found(effect: float, count: int) -> None:
    word = "UPLIFT" if effect > 0 else "REGRESSION"
    assert share(MACHINES["quiet"], effect, (word,), count) >= 0.9


@pytest.mark.parametrize(
    ("machine", "effect"),
    [("quiet", 0.02), ("drifting", -0.02), ("bimodal", 0.02), ("outliers", -0.02)],
)
def test_two_percent_is_rarely_called_equivalent(machine: str, effect: float, count: int) -> None:
    assert share(MACHINES[machine], effect, ("EQUIVALENT",), count, control=False) <= five_percent(count)


def test_a_slow_drift_does_not_hide_three_percent(count: int) -> None:
    """Mirrored blocks: the drift costs power, it does not point anywhere."""
    assert share(MACHINES["drifting"], 0.03, ("REGRESSION",), count // 4) == 0
