"""Decide how many jobs may run: budget, pace and the usage of earlier builds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_build.events import ExpectedUsage

FLOOR_MIB = 64  # no compiler is smaller; a measured peak below it was sampled badly
MARGIN = 1.1  # peaks are sampled, so the true one is somewhat higher
RECENT = 5  # earlier runs that count: sources grow and shrink

PRESSED_SOME, PRESSED_FULL = 20.0, 5.0  # PSI avg10 in percent of time
CALM_SOME, CALM_FULL, CALM_RESERVE = 5.0, 1.0, 1.1
WITHDRAW_SECONDS = 2.0  # between two halvings: avg10 needs time to show what the last one did
RETURN_SECONDS = 3.0  # calm before one slot comes back

STOP_SHARE = 0.97  # of the limit, where jobs are stopped
HORIZON_SECONDS = 0.25  # of growth that must still fit: a busy machine looks late
# nvcc's optimiser takes most, for a fifth of a job's time; what comes after it takes a third. A job that had
# PEAKED of what its stage needs at most, and has less than FALLEN of its own peak, is past it.
PEAKED, FALLEN = 0.4, 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class JobDemand:
    """Demand of one running stage."""

    threads_per_job: int = 1
    wanted: int  # slots it could use now


@dataclass(frozen=True, kw_only=True, slots=True)
class Pressure:
    """Shortage of memory: PSI averages over 10 s in percent, MemAvailable in MiB."""

    some: float
    full: float
    available_mib: int
    reserve_mib: int

    @property
    def high(self) -> bool:
        """True when fewer jobs must run."""
        return self.some >= PRESSED_SOME or self.full >= PRESSED_FULL or self.available_mib < self.reserve_mib

    @property
    def low(self) -> bool:
        """True when more jobs may run; between high and low nothing changes."""
        enough = self.available_mib >= self.reserve_mib * CALM_RESERVE
        return self.some < CALM_SOME and self.full < CALM_FULL and enough


@dataclass(frozen=True, kw_only=True, slots=True)
class Throttle:
    """Cap on all slots together under pressure; `changed` is a time on the clock of `step`."""

    cap: int
    changed: float

    def step(self, *, now: float, pressure: Pressure, in_use: int, cores: int) -> Throttle:
        """Halve the slots in use under high pressure; add one after a while of low pressure."""
        if pressure.high:
            if self.cap > 1 and now - self.changed >= WITHDRAW_SECONDS:
                return Throttle(cap=max(1, min(self.cap, in_use) // 2), changed=now)
            # Pressure that goes on puts off the return.
            return self if self.cap > 1 else replace(self, changed=now)
        if self.cap >= cores:
            return self
        if not pressure.low:
            return replace(self, changed=now)
        if now - self.changed >= RETURN_SECONDS:
            return Throttle(cap=self.cap + 1, changed=now)
        return self


def reserve_mib(total_mib: int, *, unified: bool) -> int:
    """Return the memory that builds leave free, so that the machine stays usable.

    More where the GPU lives on the same memory: such a machine freezes instead of killing somebody.
    """
    return max(4096, total_mib * 8 // 100) if unified else max(512, total_mib * 5 // 100)


def room(*, budget_mib: int | None, available_mib: int, reserve_mib: int, running_mib: int) -> int:
    """Return the memory for everything that runs, including what it uses already."""
    free = max(0, available_mib - reserve_mib + running_mib)
    return free if budget_mib is None else min(budget_mib, free)


def share(demands: Sequence[JobDemand], *, cores: int) -> tuple[int, ...]:
    """Return each running stage's slots: one each, the rest one by one to the stage with fewest that fits."""
    slots = [1] * len(demands)
    threads = sum(demand.threads_per_job for demand in demands)
    while True:
        hungry = [
            index
            for index, one in enumerate(demands)
            if slots[index] < one.wanted and threads + one.threads_per_job <= cores
        ]
        if not hungry:
            return tuple(slots)
        chosen = min(hungry, key=lambda index: (slots[index], index))
        threads += demands[chosen].threads_per_job
        slots[chosen] += 1


def allowed(
    *,
    cores: int,
    available_mib: int,
    reserve_mib: int,
    memory_per_job_mib: int,
    budget_mib: int | None = None,
) -> int:
    """Return the slots of a stage that runs alone, at least one."""
    space = room(budget_mib=budget_mib, available_mib=available_mib, reserve_mib=reserve_mib, running_mib=0)
    return max(1, min(cores, space // max(1, memory_per_job_mib)))


def learned(peaks: Sequence[int], declared: int) -> int:
    """Return the memory per job to plan with: the largest recent peak (newest last) and a margin."""
    recent = [peak for peak in peaks[-RECENT:] if peak > 0]
    if not recent:
        return max(FLOOR_MIB, declared)
    return max(FLOOR_MIB, int(max(recent) * MARGIN) + 1)


def must_stop(*, memory_mib: int, growth_mib_s: float, limit_mib: int) -> bool:
    """Return whether jobs must be stopped now, because their growth would soon pass the limit."""
    return memory_mib + max(0.0, growth_mib_s) * HORIZON_SECONDS > limit_mib * STOP_SHARE


def growth(*, now_mib: int, peak_mib: int, per_job_mib: int) -> int:
    """Return how much a job may still grow: nothing when it is past its peak.

    Else what its stage's jobs need at most, or half as much again where it is at that already.
    """
    if peak_mib >= per_job_mib * PEAKED and now_mib < peak_mib * FALLEN:
        return 0
    return per_job_mib - now_mib if now_mib < per_job_mib else now_mib // 2


def may_run(growths: Sequence[int], *, memory_mib: int, limit_mib: int) -> tuple[bool, ...]:
    """Return which of the jobs, oldest first, may run; always the oldest one.

    All together have `memory_mib`, stopped or not; those that run keep room for their `growth`.
    """
    promised, found = memory_mib, []
    for index, more in enumerate(growths):
        found.append(index == 0 or promised + more <= limit_mib)
        promised += more if found[-1] else 0
    return tuple(found)


def stop_some(runs: Sequence[bool], growths: Sequence[int]) -> tuple[bool, ...]:
    """Return which of the jobs, oldest first, go on when memory ran out all the same.

    The newer half of those that run and grow is stopped; of all where only the oldest grows. The oldest
    runs in any case, or nothing would ever end.
    """
    running = [index for index, going in enumerate(runs) if going]
    growing = [index for index in running if growths[index] > 0]
    stopped = growing[len(growing) // 2 :]
    if stopped in ([], [0]):
        stopped = running[len(running) // 2 :]
    return tuple(index == 0 or (going and index not in stopped) for index, going in enumerate(runs))


POINTS = 10  # a curve has the seconds after each tenth of the steps
SIMILAR = 0.9  # share of steps from which on an earlier build says something about this one
BOUND = 5.0  # times as slow or as fast as the earlier build; beyond that it says nothing


def pace_curve(times: Sequence[tuple[int, float]], total: int, seconds: float) -> tuple[float, ...]:
    """Return the seconds after each tenth of the steps; `times`: rising (steps done, seconds since start)."""
    if total < POINTS:
        return ()
    points = []
    for tenth in range(1, POINTS):
        wanted = total * tenth / POINTS
        points.append(next((at for done, at in times if done >= wanted), seconds))
    return (*(round(point, 1) for point in points), round(seconds, 1))


def time_left(done: int, total: int, elapsed: float, expected: ExpectedUsage | None) -> float | None:
    """Return the seconds that a stage has left; None while unknown.

    With an earlier build of as many steps: what that one took from here on, at the ratio of the two
    paces so far.
    """
    if expected is None or expected.seconds is None or not expected.curve:
        return None
    if not SIMILAR <= total / max(1, expected.steps) <= 1 / SIMILAR:
        return None
    before = pace_at(expected.curve, done / total if total else 1.0)
    ratio = 1.0 if before <= 0 else min(BOUND, max(1 / BOUND, elapsed / before))
    return max(0.0, expected.curve[-1] - before) * ratio


GUESSED = 0.25  # share of the steps that a guess counts for, when a build begins


def time_left_of_first(done: int, left: int, elapsed: float, guess: float | None) -> float | None:
    """Return the seconds that the first build of its kind has left; None while unknown.

    `done` steps took `elapsed` seconds; `guess`: seconds for all. The first steps are often the quickest
    (generated tables, objects from the cache), and their pace alone promises far too much: two minutes for
    Triton at step 127 of 442, which took 90. The guess counts as a fourth of the steps at first, as none at
    the end.
    """
    total = done + left
    if not total or (not guess and (done < 3 or elapsed < 2)):
        return None
    weight = GUESSED * total * (left / total) ** 2 if guess else 0.0
    return (elapsed + weight * (guess or 0.0) / total) / max(1e-9, done + weight) * left


def pace_at(points: Sequence[float], share: float) -> float:
    """Return the seconds at this share of the steps, interpolated linearly."""
    known = [0.0, *points]
    place = min(1.0, max(0.0, share)) * (len(known) - 1)
    low = min(int(place), len(known) - 2)
    return known[low] + (known[low + 1] - known[low]) * (place - low)


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildUsage:
    """Usage of one build: memory in MiB, seconds of the build stage, most slots granted.

    seconds is 0 where they say nothing about the next build: one that went on after an interruption, or
    came out of the compiler cache. curve: seconds after each tenth of the compile steps.
    """

    peak_mib_per_job: int
    seconds: float
    target: str = ""  # architectures decide how much a CUDA compiler needs
    steps: int = 0
    curve: tuple[float, ...] = ()
