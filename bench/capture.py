"""Name what the device does: a few calls of each case under a profiler. No time is taken from here."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from casework import cases_of
from findings import Unsupported
from torch.profiler import ProfilerActivity, profile

WARM, CALLS = 3, 5
ROWS = 12
ELSEWHERE = ("collectives",)  # their work is done by other processes


def capture(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Each case: its trace beside the report and its costliest operations, or why there is none.

    With nsys, which looks at the whole process, each case is only marked.
    """
    torch.set_num_threads(given.threads)
    found: list[dict[str, Any]] = []
    total = sum(len(cases_of(name, given)) for name in given.workloads if name not in ELSEWHERE)
    for name in given.workloads:
        if name in ELSEWHERE:
            found.append({"work": name, "left_out": "its work is done by other processes"})
            continue
        for case in cases_of(name, given):
            print(f"@step {len(found)} {total} {case.work.name}", flush=True)
            try:
                found.append({"work": case.work.name, **_capture(case, given)})
            except (Unsupported, RuntimeError) as reason:
                told = (str(reason).strip() or "?").splitlines()[0][:300]
                found.append({"work": case.work.name, "left_out": told})
    return found


def _capture(case: Any, given: argparse.Namespace) -> dict[str, Any]:
    cuda = given.device == "cuda"
    run = case.prepare()
    try:
        for _ in range(WARM):
            run.step()
        if given.profile == "nsys":
            with torch.cuda.nvtx.range(case.work.name) if cuda else nullcontext():
                for _ in range(CALLS):
                    run.step()
                _wait(cuda)
            return {"calls": CALLS}
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
        with profile(activities=kinds) as seen:
            for _ in range(CALLS):
                run.step()
            _wait(cuda)
    finally:
        run.close()
    trace = Path(given.out).with_name(f"{case.work.name}.trace.json")
    seen.export_chrome_trace(str(trace))
    return {"trace": str(trace), "calls": CALLS, "top": _top(seen, cuda)}


def _top(seen: Any, cuda: bool) -> list[dict[str, Any]]:
    """The costliest operations, by the time of their own: of the device, where there is one."""
    times = [(event.self_device_time_total if cuda else event.self_cpu_time_total, event)
             for event in seen.key_averages()]  # fmt: skip
    whole = sum(time for time, _ in times) or 1
    first = sorted(times, key=lambda each: -each[0])[:ROWS]
    return [
        {"name": event.key, "seconds": time / 1e6, "share": time / whole, "calls": event.count}
        for time, event in first
        if time > 0
    ]


def _wait(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()
