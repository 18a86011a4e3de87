"""The budget's rules over compilers as nvcc runs them: most memory for a fifth of the time, then a long tail."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_build.resources import policy

STEP = 0.5  # seconds between two looks
EARLY, RAMP = 8.0, 25.0  # seconds: the host's part, the optimiser's way to its peak


@dataclass(eq=False)
class Compiler:
    """Measured on flash-attention's units: 0.5 GiB, up to 4.7 GiB, then a third of that for minutes."""

    peak: int
    tail: float
    ran: float = 0.0
    seen: int = 0
    going: bool = True

    @property
    def now(self) -> int:
        if self.ran < EARLY:
            return int(500 * self.ran / EARLY)
        if self.ran < EARLY + RAMP:
            return max(500, int(self.peak * (self.ran - EARLY) / RAMP))
        return self.peak // 3

    @property
    def over(self) -> bool:
        return self.ran >= EARLY + RAMP + self.tail


@dataclass
class Machine:
    """Tokens for all processors; what starts is stopped unless there is room, at the next sample at the latest."""

    cores: int
    limit: int
    waiting: list[Compiler]
    running: list[Compiler] = field(default_factory=list)
    per_job: int = 4700  # what the last builds' jobs took at most
    emergency: bool = True  # whether jobs are stopped when what was promised was not enough
    clock: float = 0.0
    peak: int = 0
    before: int = 0

    def sample(self) -> None:
        for one in self.running:
            one.seen = max(one.seen, one.now)
        self.per_job = max([self.per_job, *(one.seen for one in self.running)])
        growths = [
            policy.growth(now_mib=one.now, peak_mib=one.seen, per_job_mib=self.per_job)
            for one in self.running
        ]
        memory = sum(one.now for one in self.running)
        may = policy.may_run(growths, memory_mib=memory, limit_mib=self.limit)
        alarm = policy.must_stop(
            memory_mib=memory, growth_mib_s=(memory - self.before) / STEP, limit_mib=self.limit
        )
        runs = tuple(one.going for one in self.running)
        if (
            self.emergency
            and alarm
            and not any(now and not then for now, then in zip(runs, may, strict=True))
        ):
            may = policy.stop_some(runs, growths)
        self.before = memory
        for one, going in zip(self.running, may, strict=True):
            one.going = going

    def start(self) -> None:
        while self.waiting and len(self.running) < self.cores:
            self.running.append(self.waiting.pop())

    def run(self) -> None:
        self.start()
        while self.running:
            assert self.clock < 10_000, "nothing runs any more"
            self.sample()
            for one in self.running:
                one.ran += STEP if one.going else 0.0
            self.clock += STEP
            self.peak = max(self.peak, sum(one.now for one in self.running))
            left = [one for one in self.running if not one.over]
            if len(left) < len(self.running):
                self.running = left
                self.start()


def fixed(count: int, compilers: list[Compiler]) -> tuple[float, int]:
    """Seconds and peak of a fixed number of jobs."""
    waiting, running, clock, peak = list(compilers), list[Compiler](), 0.0, 0
    while waiting or running:
        while waiting and len(running) < count:
            running.append(waiting.pop())
        for one in running:
            one.ran += STEP
        clock += STEP
        peak = max(peak, sum(one.now for one in running))
        running = [one for one in running if not one.over]
    return clock, peak


COMPILERS = st.lists(st.tuples(st.integers(2500, 4700), st.floats(40, 130)), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None)
@given(sizes=COMPILERS, cores=st.integers(1, 20), limit=st.integers(5000, 60_000))
def test_compilers_whose_peaks_are_known_stay_within_the_budget_and_end(
    sizes: list[tuple[int, float]], cores: int, limit: int
) -> None:
    machine = Machine(cores=cores, limit=limit, waiting=[Compiler(peak, tail) for peak, tail in sizes])
    machine.run()
    assert machine.peak <= limit
    alone = sum(EARLY + RAMP + tail + STEP for _, tail in sizes)
    assert machine.clock <= alone + 1


@settings(max_examples=25, deadline=None)
@given(
    sizes=COMPILERS, cores=st.integers(1, 20), limit=st.integers(5000, 60_000), known=st.integers(500, 6000)
)
def test_compilers_end_whatever_is_thought_of_their_peaks(
    sizes: list[tuple[int, float]], cores: int, limit: int, known: int
) -> None:
    """No later than one after the other, also when most of them are stopped again and again."""
    waiting = [Compiler(peak, tail) for peak, tail in sizes]
    machine = Machine(cores=cores, limit=limit, waiting=waiting, per_job=known)
    machine.run()
    assert machine.clock <= sum(EARLY + RAMP + tail + STEP for _, tail in sizes) + 1


def test_stopping_some_keeps_those_that_surprise_nearer_to_the_budget() -> None:
    """On the whole: where others come to run side by side, a peak may also be higher by chance."""
    draw = random.Random(7)
    lower = higher = 0
    for _ in range(80):
        sizes = [(draw.randint(2500, 4700), draw.uniform(40, 130)) for _ in range(draw.randint(6, 12))]
        cores, limit, known = draw.randint(6, 20), draw.randint(6000, 25_000), draw.randint(500, 2500)
        peaks = []
        for emergency in (True, False):
            waiting = [Compiler(peak, tail) for peak, tail in sizes]
            machine = Machine(cores=cores, limit=limit, waiting=waiting, per_job=known, emergency=emergency)
            machine.run()
            peaks.append(machine.peak)
        lower += peaks[0] < peaks[1]
        higher += peaks[0] > peaks[1]
    assert lower > 4 * higher, (lower, higher)
    assert lower >= 5


def test_peaks_that_take_turns_beat_the_fixed_count_that_fits() -> None:
    """22 GiB hold four peaks of 4.7; six fixed jobs need more, and take longer."""
    sizes = [(2800 + 150 * n, 50.0 + 6 * n) for n in range(13)]
    machine = Machine(cores=16, limit=22_528, waiting=[Compiler(peak, tail) for peak, tail in sizes])
    machine.run()
    slow, _ = fixed(4, [Compiler(peak, tail) for peak, tail in sizes])
    six, peak = fixed(6, [Compiler(peak, tail) for peak, tail in sizes])
    assert machine.peak <= 22_528 < peak
    assert machine.clock < six < slow
