"""Steady-state timing: wall clock on a CPU, device events with at most two batches in flight on a GPU.

For scripts that run inside an arm. Times are CLOCK_MONOTONIC seconds, so that the parent can lay its
telemetry over them.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Generator
from typing import Any

Step = Callable[[], Any]
Batches = Generator[tuple[float, int], None, None]  # seconds, calls
Tick = tuple[float, int]  # the same, of several batches
Told = Callable[
    [list[Tick]], None
]  # called with all ticks so far, while a GPU has the next batch to do already

STEADY_DRIFT = 0.005  # over three ticks
WARMUP_CAP = 3.0  # times the asked warm-up
IN_FLIGHT = 32  # calls between two looks at single ones
BATCH_SECONDS = 0.05  # device time of one event-timed batch


def silent(_: list[Tick]) -> None:
    """Tell nobody."""


def batches_of(torch: Any, device: str, step: Step) -> Batches:
    """The device's own way to time `step`."""
    return cpu_batches(step) if device == "cpu" else cuda_batches(torch, step)


def cpu_batches(step: Step) -> Batches:
    """Seconds and calls; every call is complete when it returns."""
    while True:
        start = time.perf_counter()
        step()
        yield time.perf_counter() - start, 1


def cuda_batches(torch: Any, step: Step) -> Batches:
    """Device time between events, never with more than two batches in flight."""
    step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    calls = max(1, round(3 * BATCH_SECONDS / (time.perf_counter() - start)))
    marks = [torch.cuda.Event(enable_timing=True)]
    marks[0].record()
    try:
        while True:
            for _ in range(calls):
                step()
            marks.append(torch.cuda.Event(enable_timing=True))
            marks[-1].record()
            if len(marks) == 3:
                marks[1].synchronize()
                yield marks[0].elapsed_time(marks[1]) / 1000, calls
                del marks[0]
    finally:
        torch.cuda.synchronize()


def single_calls(torch: Any, step: Step, seconds: float, most: int, each: float) -> list[float]:
    """Device seconds of single calls, with an event between two and the next always waiting.

    `each`: about the seconds of one; so many calls go at once as fit into `seconds`, at least two.
    """
    found: list[float] = []
    spent, calls = 0.0, max(2, min(IN_FLIGHT, int(seconds / each)))
    while spent < seconds and len(found) < most:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
        marks[0].record()
        for mark in marks[1:]:
            step()
            mark.record()
        marks[-1].synchronize()
        # The first call of a chunk may have waited for the processor.
        found += [a.elapsed_time(b) / 1000 for a, b in itertools.pairwise(marks[1:])]
        spent += marks[0].elapsed_time(marks[-1]) / 1000
    return found[:most]


def noting(batches: Batches, singles: list[float], most: int) -> Batches:
    """The same batches; of those of one call the seconds are kept, of `most` by chance.

    Chance hits or misses nothing periodic. An emptied list begins anew.
    """
    chance, seen = random.Random(0), 0
    try:
        for seconds, calls in batches:
            if calls == 1:
                seen = seen + 1 if singles else 1
                place = chance.randrange(seen)
                if len(singles) < most:
                    singles.append(seconds)
                elif place < most:
                    singles[place] = seconds
            yield seconds, calls
    finally:
        batches.close()


def next_tick(batches: Batches, length: float) -> Tick:
    """Seconds and calls of at least `length` seconds of work."""
    seconds, calls = 0.0, 0
    while seconds < length:
        took, done = next(batches)
        seconds, calls = seconds + took, calls + done
    return seconds, calls


def drift(ticks: list[Tick]) -> float:
    """Relative change of the rate over the last three ticks; infinite before there are three."""
    if len(ticks) < 3:
        return math.inf
    rates = [calls / seconds for seconds, calls in ticks[-3:]]
    return abs(rates[2] - rates[0]) * 3 / sum(rates)


def warm_up(batches: Batches, least: float, tick: float, told: Told = silent) -> tuple[list[Tick], bool]:
    """Work until the rate stands still; the ticks, and whether it did before the patience ended."""
    ticks: list[Tick] = []
    while True:
        spent = sum(seconds for seconds, _ in ticks)
        steady = drift(ticks) < STEADY_DRIFT
        if (spent >= least and steady) or spent >= least * WARMUP_CAP:
            return ticks, steady
        ticks.append(next_tick(batches, tick))
        told(ticks)


def timed(batches: Batches, window: float, tick: float, told: Told = silent) -> list[Tick]:
    """Ticks of at least `window` seconds together."""
    ticks: list[Tick] = []
    while sum(seconds for seconds, _ in ticks) < window:
        ticks.append(next_tick(batches, tick))
        told(ticks)
    return ticks


def best_rate(batches: Batches, amount: float, seconds: float) -> float:
    """The fastest batch within `seconds`, as units of `amount` per second: what is possible here."""
    best = spent = 0.0
    next(batches)
    while spent < seconds:
        took, calls = next(batches)
        spent += took
        best = max(best, amount * calls / took)
    batches.close()
    return best


def burst(torch: Any, device: str, step: Step, calls: int) -> float:
    """Seconds of a few calls with nothing else in flight, to compare two things in turn."""
    if device == "cpu":
        start = time.perf_counter()
        for _ in range(calls):
            step()
        return time.perf_counter() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(calls):
        step()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1000
