from __future__ import annotations

import heapq
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.resources import policy
from spark_build.resources.policy import JobDemand, Pressure, Throttle

MIB = st.integers(0, 100_000)
CORES = st.integers(1, 64)
PER_JOB = st.integers(1, 20_000)
DEMANDS = st.lists(
    st.builds(
        JobDemand,
        threads_per_job=st.integers(1, 4),
        wanted=st.integers(1, 64),
    ),
    min_size=1,
    max_size=6,
)


# --- one stage --------------------------------------------------------------------------------------


@given(cores=CORES, available=MIB, reserve=MIB, per_job=PER_JOB)
def test_allowed_is_bounded_and_never_starves(cores: int, available: int, reserve: int, per_job: int) -> None:
    slots = policy.allowed(
        cores=cores, available_mib=available, reserve_mib=reserve, memory_per_job_mib=per_job
    )
    assert 1 <= slots <= cores
    assert slots == 1 or slots * per_job <= available - reserve


@given(
    cores=CORES,
    available=MIB,
    reserve=MIB,
    per_job=PER_JOB,
    more=st.integers(0, 10_000),
)
def test_allowed_is_monotone(cores: int, available: int, reserve: int, per_job: int, more: int) -> None:
    def slots(*, c: int = cores, a: int = available, r: int = reserve, p: int = per_job) -> int:
        return policy.allowed(cores=c, available_mib=a, reserve_mib=r, memory_per_job_mib=p)

    assert slots(a=available + more) >= slots()
    assert slots(c=cores + more) >= slots()
    assert slots(r=reserve + more) <= slots()
    assert slots(p=per_job + more) <= slots()


# --- several stages ---------------------------------------------------------------------------------


@given(demands=DEMANDS, cores=CORES)
def test_shares_fit_and_leave_nothing_that_fits(demands: list[JobDemand], cores: int) -> None:
    slots = policy.share(demands, cores=cores)
    assert all(count >= 1 for count in slots)
    threads = sum(one.threads_per_job * count for one, count in zip(demands, slots, strict=True))
    if any(count > 1 for count in slots):
        assert threads <= cores
    for one, count in zip(demands, slots, strict=True):
        assert count >= one.wanted or threads + one.threads_per_job > cores


@given(count=st.integers(1, 5), cores=CORES)
def test_equals_get_equal_shares(count: int, cores: int) -> None:
    slots = policy.share([JobDemand(wanted=64)] * count, cores=cores)
    assert max(slots) - min(slots) <= 1


@given(budget_mib=MIB, available=MIB, reserve=MIB, running=MIB)
def test_room_is_within_the_budget(budget_mib: int, available: int, reserve: int, running: int) -> None:
    free = policy.room(budget_mib=None, available_mib=available, reserve_mib=reserve, running_mib=running)
    bound = policy.room(
        budget_mib=budget_mib, available_mib=available, reserve_mib=reserve, running_mib=running
    )
    assert 0 <= bound == min(budget_mib, free)


# --- a simulated machine ----------------------------------------------------------------------------


@dataclass(order=True)
class Running:
    ends: int
    stage: int
    needs: int


@given(
    stages=st.lists(
        st.lists(st.tuples(st.integers(1, 9), st.integers(1, 100)), min_size=1, max_size=12),
        min_size=1,
        max_size=4,
    ),
    cores=st.integers(1, 12),
    room=st.integers(0, 1500),
)
def test_a_machine_stays_within_its_budget_and_finishes(
    stages: list[list[tuple[int, int]]], cores: int, room: int
) -> None:
    """Jobs take up to what their stage was said to need; a slot is granted when it is really free."""
    per_job = [max(needs for _, needs in jobs) for jobs in stages]
    waiting = [list(jobs) for jobs in stages]
    running: list[Running] = []
    clock = 0
    while any(waiting) or running:
        alive = [
            index for index, jobs in enumerate(waiting) if jobs or any(r.stage == index for r in running)
        ]
        slots = policy.share([JobDemand(wanted=64)] * len(alive), cores=cores)
        for index, count in zip(alive, slots, strict=True):
            while waiting[index] and sum(r.stage == index for r in running) < count:
                claimed = sum(per_job[r.stage] for r in running) + per_job[index]
                if running and (claimed > room or len(running) >= cores):
                    break
                seconds, needs = waiting[index].pop()
                heapq.heappush(running, Running(clock + seconds, index, needs))
        assert running, "something always runs"
        assert len(running) <= cores
        assert len(running) == 1 or sum(r.needs for r in running) <= room
        clock = heapq.heappop(running).ends
    assert clock <= sum(seconds for jobs in stages for seconds, _ in jobs), "never slower than one by one"


# --- pressure ---------------------------------------------------------------------------------------

HIGH = Pressure(some=40.0, full=10.0, available_mib=5000, reserve_mib=1000)
CALM = Pressure(some=0.0, full=0.0, available_mib=5000, reserve_mib=1000)
BETWEEN = Pressure(some=10.0, full=2.0, available_mib=5000, reserve_mib=1000)


@pytest.mark.parametrize(
    ("pressure", "high", "low"),
    [
        (HIGH, True, False),
        (CALM, False, True),
        (BETWEEN, False, False),
        (replace(CALM, available_mib=999), True, False),
        (replace(CALM, available_mib=1050), False, False),
        (replace(CALM, full=5.0), True, False),
    ],
)
def test_high_and_low_pressure_have_a_gap(pressure: Pressure, high: bool, low: bool) -> None:
    assert (pressure.high, pressure.low) == (high, low)


def after(throttle: Throttle, pressure: Pressure, *, start: float, seconds: float, cores: int) -> Throttle:
    for tick in range(int(seconds * 5)):
        throttle = throttle.step(now=start + tick / 5, pressure=pressure, in_use=throttle.cap, cores=cores)
    return throttle


def test_slots_go_fast_and_come_back_slowly() -> None:
    throttle = Throttle(cap=16, changed=0.0)
    less = after(throttle, HIGH, start=10, seconds=1, cores=16)
    assert less.cap == 8, "at once, but not twice before it could show"
    least = after(less, HIGH, start=11, seconds=30, cores=16)
    assert least.cap == 1
    assert after(least, BETWEEN, start=41, seconds=60, cores=16).cap == 1
    assert after(least, CALM, start=41, seconds=2, cores=16).cap == 1
    assert after(least, CALM, start=41, seconds=10, cores=16).cap == 4
    assert after(least, CALM, start=41, seconds=100, cores=16).cap == 16


def test_what_is_used_is_halved_not_what_was_allowed() -> None:
    assert Throttle(cap=16, changed=0.0).step(now=9, pressure=HIGH, in_use=4, cores=16).cap == 2


@given(
    cores=CORES,
    seen=st.lists(
        st.builds(
            Pressure,
            some=st.floats(0, 100),
            full=st.floats(0, 100),
            available_mib=MIB,
            reserve_mib=MIB,
        ),
        max_size=60,
    ),
    in_use=CORES,
)
def test_the_cap_stays_between_one_and_all(cores: int, seen: list[Pressure], in_use: int) -> None:
    throttle = Throttle(cap=cores, changed=0.0)
    for number, pressure in enumerate(seen):
        before = throttle.cap
        throttle = throttle.step(now=float(number), pressure=pressure, in_use=in_use, cores=cores)
        assert 1 <= throttle.cap <= cores
        assert throttle.cap <= before + 1
        if pressure.high:
            assert throttle.cap <= before


# --- learning ---------------------------------------------------------------------------------------


@given(peaks=st.lists(st.integers(0, 50_000), max_size=40), declared=st.integers(0, 50_000))
def test_learned_covers_the_recent_peaks(peaks: list[int], declared: int) -> None:
    value = policy.learned(peaks, declared)
    assert value >= policy.FLOOR_MIB
    recent = peaks[-policy.RECENT :]
    assert all(value > peak for peak in recent if peak)
    assert value <= max([policy.FLOOR_MIB, declared, *(peak * 1.1 + 1 for peak in recent)])


def test_learned() -> None:
    assert policy.learned([], 4096) == 4096
    assert policy.learned([0, 0], 4096) == 4096
    assert policy.learned([300, 200], 4096) == 331
    assert policy.learned([9000, 1, 1, 1, 1, 1], 4096) == policy.FLOOR_MIB, "old ones are forgotten"


# --- emergencies ------------------------------------------------------------------------------------


@given(used=MIB, growth=st.floats(-500, 500), limit=st.integers(1, 100_000))
def test_stopping_looks_ahead(used: int, growth: float, limit: int) -> None:
    stop = policy.must_stop(memory_mib=used, growth_mib_s=growth, limit_mib=limit)
    assert stop or used <= limit
    assert not stop or used + max(0.0, growth) > 0.9 * limit


JOBS = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 20_000)), max_size=12)


@given(jobs=JOBS, limit=MIB)
def test_those_that_run_can_grow_and_one_always_does(jobs: list[tuple[int, int]], limit: int) -> None:
    used, growths = sum(now for now, _ in jobs), [more for _, more in jobs]
    may = policy.may_run(growths, memory_mib=used, limit_mib=limit)
    assert len(may) == len(jobs)
    assert all(may[:1]), "the oldest"
    if sum(may) > 1:
        assert used + sum(more for more, going in zip(growths, may, strict=True) if going and more) <= limit
    for going, more in zip(may, growths, strict=True):
        assert going or used + more + sum(g for g, m in zip(growths, may, strict=True) if m) > limit


@given(runs=st.lists(st.tuples(st.booleans(), st.integers(0, 3000)), max_size=12))
def test_an_alarm_stops_something_that_runs_but_never_the_oldest(runs: list[tuple[bool, int]]) -> None:
    before, growths = tuple(going for going, _ in runs), [more for _, more in runs]
    after = policy.stop_some(before, growths)
    assert all(after[:1]), "the oldest runs, also when it was stopped"
    assert all(was for was, now in zip(before[1:], after[1:], strict=True) if now), (
        "it lets nobody else go on"
    )
    assert sum(after[1:]) < sum(before[1:]) or not any(before[1:])


@pytest.mark.parametrize(
    ("now", "peak", "expected"),
    [
        (0, 0, 4700),  # just begun
        (600, 900, 4100),  # the host's part is over, nvcc's optimiser is still to come
        (4600, 4600, 100),  # at the peak
        (1500, 4600, 0),  # past it
        (4000, 4600, 700),  # it may turn again
        (4700, 4700, 2350),  # larger than any before: who knows
    ],
)
def test_growth_of_a_compiler(now: int, peak: int, expected: int) -> None:
    assert policy.growth(now_mib=now, peak_mib=peak, per_job_mib=4700) == expected
