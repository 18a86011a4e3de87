from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_build.events import ExpectedUsage
from spark_build.resources import policy

STEPS = 200
# An earlier build whose last tenth took as long as all the rest.
SLOW_END = ExpectedUsage(
    memory_per_job_mib=100,
    seconds=180.0,
    steps=STEPS,
    curve=(10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 180.0),
)


def test_an_earlier_build_knows_what_is_still_to_come() -> None:
    assert policy.time_left(180, STEPS, 90.0, SLOW_END) == pytest.approx(90.0)
    assert policy.time_left(180, STEPS, 180.0, SLOW_END) == pytest.approx(180.0), "at half its pace"
    assert policy.time_left(0, STEPS, 0.0, SLOW_END) == pytest.approx(180.0)
    assert policy.time_left(STEPS, STEPS, 170.0, SLOW_END) == 0


def test_a_build_of_other_size_says_nothing() -> None:
    assert policy.time_left(10, STEPS // 2, 5.0, SLOW_END) is None, "one that goes on after an interruption"
    assert policy.time_left(10, STEPS, 5.0, None) is None
    assert policy.time_left(10, STEPS, 5.0, ExpectedUsage(memory_per_job_mib=1)) is None


@given(st.lists(st.floats(0.01, 50.0), min_size=10, max_size=300))
def test_a_build_at_the_same_pace_ends_when_foretold(lengths: list[float]) -> None:
    times, now = [], 0.0
    for done, length in enumerate(lengths, start=1):
        now += length
        times.append((done, now))
    points = policy.pace_curve(times, len(lengths), now)
    assert len(points) == policy.POINTS
    assert list(points) == sorted(points)
    again = ExpectedUsage(memory_per_job_mib=1, seconds=now, steps=1000, curve=points)
    for tenth, point in enumerate(points[:-1], start=1):
        left = policy.time_left(tenth * 100, 1000, point, again)
        assert left == pytest.approx(points[-1] - point, abs=0.2)


@given(st.integers(0, 500), st.integers(0, 500), st.floats(0, 1e6))
def test_time_left_is_never_negative(done: int, total: int, elapsed: float) -> None:
    left = policy.time_left(done, total, elapsed, SLOW_END)
    assert left is None or 0 <= left <= 180 * policy.BOUND


@given(st.integers(3, 500), st.integers(0, 500), st.floats(2, 1e5))
def test_a_first_build_without_a_guess_goes_on_at_its_pace(done: int, left: int, elapsed: float) -> None:
    assert policy.time_left_of_first(done, left, elapsed, None) == pytest.approx(elapsed / done * left)


@given(st.integers(1, 500), st.integers(1, 500), st.floats(0, 1e5), st.floats(1, 1e5))
def test_the_time_left_lies_between_guess_and_pace(
    done: int, left: int, elapsed: float, guess: float
) -> None:
    found = policy.time_left_of_first(done, left, elapsed, guess)
    by_guess, by_pace = guess / (done + left) * left, elapsed / done * left
    assert found is not None
    assert min(by_guess, by_pace) * 0.999 <= found <= max(by_guess, by_pace) * 1.001


def test_quick_first_steps_do_not_promise_an_early_end() -> None:
    """ONNX by a cross compiler: 14 of its 74 steps are over after 6 s, the others take 121 s."""
    assert policy.time_left_of_first(14, 60, 6.0, None) == pytest.approx(25.7, abs=0.1)
    found = policy.time_left_of_first(14, 60, 6.0, 193.0)
    assert found is not None
    assert 60 < found < 121
    assert policy.time_left_of_first(0, 74, 0.0, 193.0) == pytest.approx(193.0)
    assert policy.time_left_of_first(0, 0, 0.0, 193.0) is None
    assert policy.time_left_of_first(2, 72, 9.0, None) is None


def test_too_few_steps_have_no_curve() -> None:
    assert policy.pace_curve([(1, 1.0), (2, 2.0)], 2, 2.0) == ()
    assert policy.pace_curve([], 0, 1.0) == ()
