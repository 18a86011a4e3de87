"""Verifications that never happened: rates drawn from known distributions, judged by the real code."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

from spark_build.measure.model import (
    Arm,
    Case,
    CaseResult,
    Measurement,
    Round,
    Settings,
    Slot,
    Telemetry,
    Verdict,
)
from spark_build.measure.rounds import balanced_order
from spark_build.measure.verdict import assess

CASE = Case(dtype="fp32", size=2048, layout="ab")
ARMS = (
    Arm(name="public", role="baseline", python="p", origin=""),
    Arm(name="wheelhouse", role="candidate", python="w", origin=""),
    Arm(name="public-again", role="control", python="p", origin=""),
)
# A machine on which every gate holds: what is judged here is the statistics alone.
CALM = Telemetry(others=0.0, steal=0.0, clock_mhz=2600, clock_cv=0.0, throttled=0, free_mib=9000)
PAIRS = 10
# The log of the machine's speed in each of so many rounds, whichever arm runs.
Machine = Callable[[random.Random, int], list[float]]


def quiet(chance: random.Random, rounds: int) -> list[float]:
    """1% of noise and nothing else."""
    return [chance.gauss(0, 0.01) for _ in range(rounds)]


def noisy(chance: random.Random, rounds: int) -> list[float]:
    """5% of noise: a shared machine."""
    return [chance.gauss(0, 0.05) for _ in range(rounds)]


def drifting(chance: random.Random, rounds: int) -> list[float]:
    """It warms up: 10% slower at the end, by a straight line and a random walk."""
    speed, walk = quiet(chance, rounds), 0.0
    for at in range(rounds):
        walk += chance.gauss(0, 0.005)
        speed[at] += walk - 0.1 * at / rounds
    return speed


def bimodal(chance: random.Random, rounds: int) -> list[float]:
    """Two power states, 8% apart; a state lasts for five rounds on average."""
    speed, slow = quiet(chance, rounds), chance.random() < 0.5
    for at in range(rounds):
        slow = slow != (chance.random() < 0.2)
        speed[at] -= 0.08 * slow
    return speed


def flipping(chance: random.Random, rounds: int) -> list[float]:
    """Every launch lands in one of two power states, 8% apart; three of ten in the slow one."""
    return [value - 0.08 * (chance.random() < 0.3) for value in quiet(chance, rounds)]


def outliers(chance: random.Random, rounds: int) -> list[float]:
    """One round of ten loses up to a third: something else ran."""
    return [value - chance.uniform(0, 0.4) * (chance.random() < 0.1) for value in quiet(chance, rounds)]


MACHINES: dict[str, Machine] = {
    "quiet": quiet,
    "noisy": noisy,
    "drifting": drifting,
    "bimodal": bimodal,
    "flipping": flipping,
    "outliers": outliers,
}


def settings_of(pairs: int, seed: int) -> Settings:
    """Those of a full run of one case."""
    return Settings(
        mode="full", device="cpu", cases=(CASE,), headline=CASE, pairs=pairs, seed=seed, threads=2,
        warmup=1, window=1, tick=0.1, script="gemm.py",
    )  # fmt: skip


def verification(
    machine: Machine, effect: float, seed: int, *, pairs: int = PAIRS, control: bool = True
) -> tuple[Verdict, CaseResult]:
    """Verdict and headline case when the wheelhouse really is 1 + `effect` times as fast."""
    arms = ARMS if control else ARMS[:2]
    settings = settings_of(pairs, seed)
    order = balanced_order([arm.name for arm in arms], pairs, seed)
    chance = random.Random(seed + 1)
    speeds = machine(chance, len(order))
    gain = {"wheelhouse": math.log1p(effect)}
    rounds = [
        simulated_round(slot, math.exp(speed + gain.get(slot.arm, 0.0)))
        for slot, speed in zip(order, speeds, strict=True)
    ]
    verdict, cases, _ = assess(settings, arms, len(order), rounds, ())
    return verdict, next(each for each in cases if each.role == "candidate")


def simulated_round(slot: Slot, speed: float) -> Round:
    """A round in which the machine ran at `speed` times 100 GFLOP/s."""
    measured = Measurement(case=CASE, rate=1e11 * speed, cv=0.01, drop=0, steady=True, busy=0.99)
    return Round(
        slot=slot,
        launch="1",
        started="2026-01-01T00:00:00+00:00",
        seconds=1,
        measurements=(measured,),
        telemetry=CALM,
    )


def share(
    machine: Machine, effect: float, words: Sequence[str], count: int, *, control: bool = True
) -> float:
    """Share of `count` simulated verifications that end with one of `words`."""
    seen = [verification(machine, effect, 7 * seed, control=control)[0].word for seed in range(count)]
    return sum(word in words for word in seen) / count
