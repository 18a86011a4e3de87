"""Run the cases of one workload: prepare, warm up, time, and hold the figure against its bounds."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from ceilings import copy_rate, peaks
from findings import Finding, Unsupported, first_line, said, skipped, verdict
from surroundings import cache_bytes
from timing import batches_of, burst, next_tick, noting, single_calls, timed, warm_up
from torch.utils.flop_counter import FlopCounterMode
from workloads import Asked, Case, Run, Work

MOST_SINGLES = 1000  # calls whose own times are kept
TICKS = 40  # about as many parts of a window are kept
COUNTED = 0.02  # FLOPs of our formula and of torch's counter agree to that
# How far a figure may lie above what was measured as possible: clocks change, windows are no single batch.
ABOVE_PEAK = {"cpu": 1.5, "cuda": 1.2}
# Reading alone is faster than a copy, on a CPU by far, which reads what it overwrites.
ABOVE_COPY = {"cpu": 2.5, "cuda": 1.3}
TURN, TURNS = 0.02, 11  # seconds, and how often: of comparisons in turn
UNCACHED = 4  # times the last cache: so much cannot come from there


def asked_of(name: str, given: argparse.Namespace) -> Asked:
    faults = frozenset(fault for fault, where in given.inject if where == name)
    return Asked(device=given.device, quick=bool(given.quick), seed=given.seed, inject=faults)


def cases_of(name: str, given: argparse.Namespace) -> list[Case]:
    """Cases of a workload, in its order."""
    return list(importlib.import_module(f"workloads.{name}").cases(asked_of(name, given)))


def works_of(name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    return [{**asdict(case.work), "workload": name} for case in cases_of(name, given)]


def run_workload(
    name: str,
    given: argparse.Namespace,
    ceilings: dict[str, Any],
    tell: Callable[[dict[str, Any]], object],
    step: Callable[[int], None],
) -> None:
    """All cases; each tells a figure and checks, or why there is none."""
    torch.set_num_threads(given.threads)
    faults = asked_of(name, given).inject
    _break(faults)
    for place, case in enumerate(cases_of(name, given)):
        tell({"begins": case.work.name})
        step(place)
        try:
            if "memory" in faults:
                torch.empty(1 << 50, dtype=torch.uint8, device=given.device)
            tell(_measure(case, given, ceilings, faults))
        except Unsupported as reason:
            tell({"checks": [skipped(f"{case.work.name}.run", str(reason))]})
        except Exception as error:  # whatever one case does, the others go on
            traceback.print_exc()
            evidence = ("out of memory: " if _is_memory(error) else "") + first_line(error)
            tell({"checks": [verdict(f"{case.work.name}.run", good=False, evidence=evidence)]})
        _tidy()


def _break(faults: frozenset[str]) -> None:
    """Faults of a whole process, for tests."""
    if "hang" in faults:
        time.sleep(1e6)
    if "crash" in faults:
        os.abort()
    if "killed" in faults:
        os.kill(os.getpid(), signal.SIGKILL)


def _is_memory(error: Exception) -> bool:
    """Of a CPU torch has no kind of error for it."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def _release() -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _tidy() -> None:
    _release()
    if "torch._dynamo" in sys.modules:  # importing it takes seconds
        torch.compiler.reset()


def _measure(
    case: Case, given: argparse.Namespace, ceilings: dict[str, Any], faults: frozenset[str]
) -> dict[str, Any]:
    work, told = case.work, {}
    run = case.prepare()
    try:
        counted, by_kind = _count(work, run, wrong="flops" in faults)
        _release()  # attention as plain products takes far more memory than what is measured
        _reset_peaks(given.device)
        figure = _time(work, run, given)
        figure["peak"] = _peaks(given.device)
        checks = [*counted, *_bounds(work, run, figure["rate"], ceilings, given.device)]
        failed = any(check["status"] == "fail" for check in checks)
        if failed or _share(work, run, figure["rate"], ceilings) > run.peak:
            # A machine that was busy when the ceilings were measured makes them too low: look again.
            _raise_ceilings(ceilings, given)
            told = {"ceilings": ceilings}
            checks = [*counted, *_bounds(work, run, figure["rate"], ceilings, given.device)]
        checks += run.after()
    finally:
        run.close()
    figure["facts"] = {**run.facts, **({"flops_by": by_kind} if by_kind else {})}
    return {"figure": figure, "checks": checks, **told}


def _time(work: Work, run: Run, given: argparse.Namespace) -> dict[str, Any]:
    singles: list[float] = []
    batches = run.batches() if run.batches else batches_of(torch, given.device, run.step)
    batches = noting(batches, singles, MOST_SINGLES)
    begin = time.monotonic()
    _, steady = warm_up(batches, given.warmup, given.warmup / 4)
    singles.clear()
    start, cpu = time.monotonic(), run.cpu()
    ticks = timed(batches, given.window, given.window / TICKS)
    end, cpu = time.monotonic(), run.cpu() - cpu
    batches.close()
    seconds, calls = (sum(each) for each in zip(*ticks, strict=True))
    if not run.batches and given.device == "cuda":  # whose batches are of many calls
        singles[:] = single_calls(torch, run.step, given.window / 4, MOST_SINGLES, seconds / calls)
    return {
        "work": work.name,
        "rate": work.amount * calls / seconds,
        "calls": singles,
        "seconds": seconds,
        "count": calls,
        "steady": steady,
        "warmup": begin,
        "start": start,
        "end": end,
        "cpu_seconds": cpu,
    }


def _count(work: Work, run: Run, *, wrong: bool) -> tuple[list[Finding], dict[str, float]]:
    """Our FLOPs against torch's own counter; and how many of them are products, how many convolutions."""
    if not run.countable or work.flops is None:
        return [], {}
    with FlopCounterMode(display=False) as counter:
        (run.count or run.step)()
    expected = (run.counted or work.flops) * (2 if wrong else 1)
    found = run.parts * float(counter.get_total_flops())
    good = abs(found - expected) <= COUNTED * expected
    evidence = f"formula {expected:.6g}, torch counts {found:.6g}"
    by_kind = {"gemm": 0.0, "convolution": 0.0}
    for operation, flops in counter.get_flop_counts().get("Global", {}).items():
        by_kind["convolution" if "conv" in str(operation) else "gemm"] += run.parts * float(flops)
    return [verdict(f"{work.name}.flops", good, evidence)], by_kind


def _compare(work: Work, run: Run, rate: float, device: str) -> Finding:
    """The case and something plain of its kind in turn, so that a busy machine hits both alike."""
    low, high = run.share
    for turns in (TURNS, 3 * TURNS):  # a second, longer look before anything is called wrong
        ratio, plain = _in_turn(work, run, rate, device, turns)
        if low <= ratio <= high:
            break
    can = f"{low:.0%} to {high:.0%}" if low else f"at most {high:.0%}"
    evidence = f"{ratio:.0%} of the {said(plain, work.unit)} of a plain one; {can} can be"
    return verdict(f"{work.name}.bound", low <= ratio <= high, evidence)


def _in_turn(work: Work, run: Run, rate: float, device: str, turns: int) -> tuple[float, float]:
    """Median ratio of neighbours, and the plain one's median rate."""
    assert run.plain is not None
    batches = run.batches() if run.batches else None
    calls = max(1, round(TURN * rate / work.amount))
    ratios, plains = [], [run.plain()]
    for _ in range(turns):
        seconds, done = (
            (burst(torch, device, run.step, calls), calls) if batches is None else next_tick(batches, TURN)
        )
        plains.append(run.plain())
        beside = 2 / (1 / plains[-1] + 1 / plains[-2])
        ratios.append(work.amount * done / seconds / beside)
    return statistics.median(ratios), statistics.median(plains)


def _bounds(work: Work, run: Run, rate: float, ceilings: dict[str, Any], device: str) -> list[Finding]:
    """The figure against what was measured plainly, or against what the device can do at all."""
    found = [_compare(work, run, rate, device)] if run.plain else []
    calls = rate / work.amount
    if share := _share(work, run, rate, ceilings):
        peak, most = ceilings["flops"][work.dtype], ABOVE_PEAK[device] * run.peak
        evidence = (
            f"{share:.1%} of {said(peak, 'FLOP/s')}, the fastest plain products; at most {most:.0%} can be"
        )
        found.append(verdict(f"{work.name}.peak", share <= most, evidence))
    if work.moved and not run.plain and work.moved > UNCACHED * cache_bytes(torch, device):
        copied, most = ceilings["copy"], ABOVE_COPY[device]
        share = work.moved * calls / copied
        evidence = f"{share:.1%} of {said(copied, 'B/s')}, a plain copy; at most {most:.0%} can be"
        found.append(verdict(f"{work.name}.memory", share <= most, evidence))
    return found


def _share(work: Work, run: Run, rate: float, ceilings: dict[str, Any]) -> float:
    """Of the fastest plain products; 0 where that says nothing."""
    peak = ceilings["flops"].get(work.dtype)
    return work.flops * rate / work.amount / peak if work.flops and peak and run.countable else 0.0


def _raise_ceilings(ceilings: dict[str, Any], given: argparse.Namespace) -> None:
    with torch.inference_mode():
        ceilings["copy"] = max(ceilings["copy"], copy_rate(torch, given.device))
        for dtype, rate in peaks(torch, given).items():
            ceilings["flops"][dtype] = max(ceilings["flops"].get(dtype, 0.0), rate)


def _reset_peaks(device: str) -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _peaks(device: str) -> dict[str, float]:
    """Bytes at most: of this process, and of torch's allocator. What cannot be read is missing."""
    found: dict[str, float] = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            found["rss"] = float(line.split()[1]) * 1024
    if device == "cuda":
        found["allocated"] = float(torch.cuda.max_memory_allocated())
        found["reserved"] = float(torch.cuda.max_memory_reserved())
        free, total = torch.cuda.mem_get_info()
        found["device_used"] = float(total - free)
    return found
