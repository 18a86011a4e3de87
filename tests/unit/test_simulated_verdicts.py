"""How often a verdict is wrong, over thousands of verifications of known truth.

A rate of 5% is seen as up to 6.5% in 2,000 draws; the control is left out where it could only help.
"""

import pytest

from tests.simulated import MACHINES, share

COUNT = 2000
EITHER = ("UPLIFT", "REGRESSION")


@pytest.mark.parametrize("machine", MACHINES)
def test_the_same_build_rarely_gets_a_claim(machine: str) -> None:
    assert share(MACHINES[machine], 0.0, EITHER, COUNT, control=False) <= 0.065


@pytest.mark.parametrize("effect", [0.03, -0.03])
def test_three_percent_at_one_percent_noise_is_found(effect: float) -> None:
    word = "UPLIFT" if effect > 0 else "REGRESSION"
    assert share(MACHINES["quiet"], effect, (word,), COUNT) >= 0.9


@pytest.mark.parametrize(
    ("machine", "effect"),
    [("quiet", 0.02), ("drifting", -0.02), ("bimodal", 0.02), ("outliers", -0.02)],
)
def test_two_percent_is_rarely_called_equivalent(machine: str, effect: float) -> None:
    assert share(MACHINES[machine], effect, ("EQUIVALENT",), COUNT, control=False) <= 0.065


def test_a_slow_drift_does_not_hide_three_percent() -> None:
    """Mirrored blocks: the drift costs power, it does not point anywhere."""
    assert share(MACHINES["drifting"], 0.03, ("REGRESSION",), COUNT // 4) == 0
