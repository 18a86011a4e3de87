"""Verifications that never happened: rates drawn from known distributions, judged by the real code.

`python -m tests.helpers.simulated [COUNT]` prints the first table of docs/verdict.md, with `--suite` the second.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from spark_build.measure import statistics
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
from spark_build.measure.statistics import balanced_order, contrast, drawn_order, finding
from spark_build.measure.verdict import assess, narrow_enough

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


def autocorrelated(chance: random.Random, rounds: int) -> list[float]:
    """Each round resembles the one before it (0.8 of it), with 2% of noise anew."""
    speed = [chance.gauss(0, 0.03)]
    while len(speed) < rounds:
        speed.append(0.8 * speed[-1] + chance.gauss(0, 0.02))
    return speed


def heavy_tails(chance: random.Random, rounds: int) -> list[float]:
    """Student's t with two degrees of freedom, scaled by 1%: no variance exists."""
    return [0.01 * chance.gauss(0, 1) / math.sqrt(chance.expovariate(1)) for _ in range(rounds)]


def thermal(chance: random.Random, rounds: int) -> list[float]:
    """It loses 10% while it heats up, most of it in the first ten rounds."""
    return [value - 0.1 * (1 - math.exp(-at / 5)) for at, value in enumerate(quiet(chance, rounds))]


def one_slow(chance: random.Random, rounds: int) -> list[float]:
    """One round of the first thirty loses a third."""
    slow = chance.randrange(30)
    return [value - 0.4 * (at == slow) for at, value in enumerate(quiet(chance, rounds))]


def periodic(period: int, *, wave: bool) -> Machine:
    """A wave of 3%, or every so many rounds one that is 5% slower."""

    def machine(chance: random.Random, rounds: int) -> list[float]:
        phase = chance.random() * period
        return [
            value + 0.03 * math.sin(math.tau * (at + phase) / period)
            if wave
            else value - 0.05 * ((at + int(phase)) % period == 0)
            for at, value in enumerate(quiet(chance, rounds))
        ]

    return machine


MACHINES: dict[str, Machine] = {
    "quiet": quiet,
    "noisy": noisy,
    "drifting": drifting,
    "bimodal": bimodal,
    "flipping": flipping,
    "outliers": outliers,
    "autocorrelated": autocorrelated,
    "heavy tails": heavy_tails,
    "thermal": thermal,
    "one slow round": one_slow,
    **{f"wave of {period} rounds": periodic(period, wave=True) for period in (3, 4, 5, 6)},
    **{f"dip every {period} rounds": periodic(period, wave=False) for period in (3, 4, 5, 6)},
}


def settings_of(pairs: int, seed: int, most: int = 0, cases: int = 1) -> Settings:
    """Those of a full run; `most` pairs where the interval is not narrow before."""
    every = tuple(Case(dtype="fp32", size=2048 + at, layout="ab") for at in range(cases))
    return Settings(
        mode="full", device="cpu", cases=every, headline=CASE, pairs=pairs, seed=seed, threads=2,
        warmup=1, window=1, tick=0.1, script="gemm.py", most=most,
    )  # fmt: skip


def verification(
    machine: Machine,
    effect: float,
    seed: int,
    *,
    pairs: int = PAIRS,
    control: bool = True,
    most: int = 0,
    carry: float = 0.0,
    cases: int = 1,
    other: float = 0.0,
) -> tuple[Verdict, CaseResult]:
    """Verdict and headline case when the wheelhouse really is 1 + `effect` times as fast.

    `carry`: what a round of the wheelhouse takes from the speed of the next one. `other`: as `effect`, of the
    last of several cases; cases that are not the headline have 1% of noise of their own. `control`: whether it
    may take a claim away.
    """
    settings = settings_of(pairs, seed, most, cases)
    order = balanced_order([arm.name for arm in ARMS], pairs, seed, most)
    chance = random.Random(seed + 1)
    speeds = machine(chance, len(order))
    rounds: list[Round] = []
    for slot, speed in zip(order, speeds, strict=True):
        gain = math.log1p(effect) if slot.arm == "wheelhouse" else 0.0
        own = [speed + gain - carry * bool(rounds and rounds[-1].slot.arm == "wheelhouse")]
        for at in range(1, cases):
            lost = math.log1p(other) if slot.arm == "wheelhouse" and at == cases - 1 else 0.0
            own.append(speed + lost + chance.gauss(0, 0.01))
        rounds.append(simulated_round(slot, *map(math.exp, own)))
        if most and narrow_enough(settings, ARMS, rounds):
            break
    arms = ARMS if control else ARMS[:2]  # measured, but nothing is judged by it
    judged = [each for each in rounds if control or each.slot.arm != ARMS[2].name]
    verdict, results, _ = assess(settings, arms, len(judged), judged, ())
    return verdict, next(each for each in results if each.role == "candidate" and each.headline)


def simulated_round(slot: Slot, *speeds: float) -> Round:
    """A round in which the machine ran each case at so many times 100 GFLOP/s."""
    measured = tuple(
        Measurement(
            case=Case(dtype="fp32", size=2048 + at, layout="ab"),
            rate=1e11 * speed, cv=0.01, drop=0, steady=True, busy=0.99,
        )
        for at, speed in enumerate(speeds)
    )  # fmt: skip
    return Round(
        slot=slot,
        launch="1",
        started="2026-01-01T00:00:00+00:00",
        seconds=1,
        measurements=measured,
        telemetry=CALM,
    )


@contextlib.contextmanager
def judged_only() -> Iterator[None]:
    """Leave out the tests of pairs that reports show and nothing decides: they take most of the time."""
    shown: dict[str, Any] = {"wilcoxon": 1.0, "mann_whitney": 1.0, "normality": None, "power_to_find": 0.0}
    with contextlib.ExitStack() as stack:
        for name, told in shown.items():
            stack.enter_context(mock.patch.object(statistics, name, lambda *_, told=told: told))
        yield


def suite_finding(machine: Machine, pairs: int, seed: int) -> str:
    """Finding for a case that is the same in two arms, in the order that the suite draws."""
    order, chance = drawn_order("ab", pairs, seed), random.Random(f"{pairs} {seed}")
    speeds: dict[tuple[str, int], float] = {}
    for slot, speed in zip(order, machine(chance, 2 * pairs), strict=True):
        speeds[slot.arm, slot.visit] = math.exp(speed)
    seen = contrast(*([speeds[arm, visit] for visit in range(pairs)] for arm in "ab"), paired=True)
    return finding(seen, seen.p)


def suite_share(machine: Machine, pairs: int, count: int) -> float:
    """Share of `count` simulated comparisons of the suite that call the same build faster or slower."""
    with judged_only():
        return (
            sum(suite_finding(machine, pairs, seed) in ("faster", "slower") for seed in range(count)) / count
        )


def share(machine: Machine, effect: float, words: Sequence[str], count: int, **given: Any) -> float:
    """Share of `count` simulated verifications that end with one of `words`; the rest as `verification`."""
    with judged_only():
        seen = [verification(machine, effect, 7 * seed, **given)[0].word for seed in range(count)]
    return sum(word in words for word in seen) / count


def upper(part: float, count: int) -> float:
    """The upper end of Clopper and Pearson's 95% interval of a share."""
    from scipy import special

    hits = round(part * count)
    return 1.0 if hits == count else float(special.betaincinv(hits + 1, count - hits, 0.975))


CLAIMS = ("UPLIFT", "REGRESSION", "MIXED")
# What is asked, how the machine is, and the words that are wrong (or right, for a true effect).
QUESTIONS: dict[str, tuple[Machine, float, Sequence[str], dict[str, Any]]] = {
    **{f"the same build, {name}": (machine, 0.0, CLAIMS, {"control": False, "most": 20}) for name, machine in
       MACHINES.items()},
    "the same build, each round of one arm takes 0.5% from the next": (quiet, 0.0, CLAIMS, {"carry": 0.005, "most": 20}),
    "the same build, each round of one arm takes 1% from the next": (quiet, 0.0, CLAIMS, {"carry": 0.01, "most": 20}),
    "the same build, 26 cases": (quiet, 0.0, CLAIMS, {"cases": 26}),
    "2% slower, called equivalent": (quiet, 1 / 1.02 - 1, ("EQUIVALENT",), {"control": False}),
    "2% faster, called equivalent": (quiet, 0.02, ("EQUIVALENT",), {"control": False}),
    "3% faster, found in ten pairs": (quiet, 0.03, ("UPLIFT",), {}),
    "3% slower, found in ten pairs": (quiet, 1 / 1.03 - 1, ("REGRESSION",), {}),
    "3% faster, found in ten pairs with one slow round": (one_slow, 0.03, ("UPLIFT",), {}),
    "one of 26 cases 7% slower, found in ten pairs": (quiet, 0.0, ("REGRESSION",), {"cases": 26, "other": -0.07}),
}  # fmt: skip


def main(count: int) -> None:
    """Print a row for each question: the share, the upper end of its 95% interval, and of how many."""
    print("| simulated verifications | share | at most (95%) | of |\n|---|---|---|---|")
    for name, (machine, effect, words, given) in QUESTIONS.items():
        part = share(machine, effect, words, count, **given)
        print(f"| {name} | {part:.1%} | {upper(part, count):.1%} | {count:,} |", flush=True)


def suite(count: int) -> None:
    """Print a row for each machine: the number of pairs from 3 to 10 with most false claims, and their share."""
    print("| the same build | share | at most (95%) | in comparisons of | of |\n|---|---|---|---|---|")
    for name, machine in MACHINES.items():
        part, pairs = max((suite_share(machine, pairs, count), pairs) for pairs in range(3, 11))
        print(f"| {name} | {part:.1%} | {upper(part, count):.1%} | {pairs} pairs | {count:,} |", flush=True)


if __name__ == "__main__":
    asked = [int(each) for each in sys.argv[1:] if each.isdecimal()]
    (suite if "--suite" in sys.argv else main)(*asked or [2000])
