"""Which of library and build a difference comes from, by the real verdict code on made-up rates."""

import dataclasses
import math
import random

import pytest

from spark_build.measure.model import Arm, Round, Settings, Verdict
from spark_build.measure.statistics import balanced_order
from spark_build.measure.verdict import assess
from tests.helpers.simulated import ARMS, settings_of, simulated_round

LIBRARY = "/w/libcublas.so.13"
DERIVED = Arm(
    name="public+cublas-of-wheelhouse", role="variant", python="p", swapped=(LIBRARY,),
    origin="public with cublas of wheelhouse",
)  # fmt: skip


def judged(library: float, build: float, *, loaded: str = LIBRARY, noise: float = 0.004) -> Verdict:
    """Verdict when the library alone makes it `library` times as fast, and the build `build` times."""
    arms = (ARMS[0], ARMS[1], DERIVED, ARMS[2])
    gain = {"wheelhouse": library * build, DERIVED.name: library}
    given: Settings = settings_of(10, 3)
    order = balanced_order([arm.name for arm in arms], 10, 3)
    chance = random.Random(5)
    rounds: list[Round] = []
    for slot in order:
        made = simulated_round(slot, gain.get(slot.arm, 1.0) * math.exp(chance.gauss(0, noise)))
        rounds.append(dataclasses.replace(made, environment={"libraries": [loaded]}))
    return assess(given, arms, len(order), rounds, ())[0]


@pytest.mark.parametrize(
    ("library", "build", "cause"),
    [
        (1.5, 1.0, "cublas"),
        (1.0, 1.3, "build"),
        (0.8, 1.0, "cublas"),
        (1.2, 1.2, "unresolved"),
        (1.5, 0.8, "unresolved"),
    ],
)
def test_the_cause(library: float, build: float, cause: str) -> None:
    verdict = judged(library, build)
    assert verdict.word in ("UPLIFT", "REGRESSION")
    assert verdict.attribution == cause
    assert verdict.claim.endswith(f"attributed to {cause}")
    assert f"{library:.1f}" in verdict.explanation


def test_what_was_loaded_counts_not_what_was_asked_for() -> None:
    verdict = judged(1.5, 1.0, loaded="/p/libcublas.so.13")
    assert verdict.attribution == "unresolved"
    assert f"did not load {LIBRARY}" in verdict.explanation


def test_too_much_noise_leaves_it_open() -> None:
    assert judged(1.5, 1.0, noise=0.08).attribution == "unresolved"


def test_without_a_difference_there_is_no_cause() -> None:
    assert judged(1.0, 1.0).attribution is None


def test_one_environment_under_two_settings_is_no_question_of_the_build() -> None:
    base = dataclasses.replace(ARMS[0], env={"SAME": "1"})
    again = dataclasses.replace(ARMS[2], env=base.env)
    other = dataclasses.replace(
        base, name="wheelhouse", role="candidate", env={"SAME": "1", "NVIDIA_TF32_OVERRIDE": "0"}, threads=1
    )
    order = balanced_order([base.name, other.name, again.name], 10, 3)
    rounds = [
        simulated_round(slot, (1 + slot.index / 1e5) / (1 + (slot.arm == other.name))) for slot in order
    ]
    verdict = assess(settings_of(10, 3), (base, other, again), len(order), rounds, ())[0]
    assert (verdict.word, verdict.attribution) == ("REGRESSION", "unresolved")
    assert verdict.explanation.endswith(
        "both are one environment, and what differs is NVIDIA_TF32_OVERRIDE (unset, 0), threads (default, 1)."
    )
