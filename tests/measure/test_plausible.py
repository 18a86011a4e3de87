"""Rounds that tell what cannot be are invalid and say why; nothing of them is counted."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_build.measure.model import Reference
from spark_build.measure.rounds import read_round, read_suite_round

H200 = Reference(name="H200", device="H200", rates={}, nominal={"fp16": 989e12}, sources=("data sheet",))
FLOPS = 2 * 8192**3
Change = Callable[[dict[str, Any]], object]


def envelope(device: str, report: dict[str, Any]) -> dict[str, Any]:
    """What the parent writes around an arm's report; the process ran from 100 s to 130 s of its clock."""
    told = {"name": "NVIDIA H200", "multiprocessors": 132} if device == "cuda" else {"name": "x"}
    return {
        "slot": {"index": 0, "visit": 0, "block": 0, "arm": "a"}, "launch": "1", "problem": "", "killed": False,
        "started": "2026-01-01T00:00:00+00:00", "seconds": 30.0, "threads": 2, "device": device,
        "telemetry": [[100.0, {"load": 0.1}], [130.0, {"load": 0.2}]],
        "report": {"device": told, "torch": {"threads": 2}, **report},
    }  # fmt: skip


def burn_in(rate: float = 650e12, dtype: str = "fp16", device: str = "cuda") -> dict[str, Any]:
    """One window of 10 s in ticks of a second; `rate` in FLOP/s."""
    ticks = [[1.0, rate / FLOPS] for _ in range(10)]
    window = {"start": 110.0, "end": 120.05, "cpu_seconds": 20.0, "ticks": ticks}
    case = {"dtype": dtype, "size": 8192, "layout": "ab", "flops": FLOPS, "window": window,
            "warmup": {"start": 105.0, "ticks": copy.deepcopy(ticks[:5]), "steady": True}}  # fmt: skip
    return envelope(device, {"cases": [case]})


def suite(operation: str = "gemm") -> dict[str, Any]:
    """One figure of 10 s and 5,000 calls."""
    work = {"name": "w", "workload": "gemm", "unit": "FLOP/s", "amount": FLOPS, "dtype": "fp16", "flops": FLOPS,
            "operation": operation}  # fmt: skip
    figure = {"work": "w", "rate": FLOPS * 500, "calls": [0.002] * 5, "seconds": 10.0, "count": 5000, "steady": True,
              "warmup": 105.0, "start": 110.0, "end": 120.05, "cpu_seconds": 9.0, "peak": {"rss": 1e9}, "facts": {}}  # fmt: skip
    return envelope("cuda", {"works": [work], "figures": [figure]})


def window(raw: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = raw["report"]["cases"][0]["window"]
    return found


def figure(raw: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = raw["report"]["figures"][0]
    return found


def said(folder: Path, raw: dict[str, Any], change: Change = lambda _: None, reader: Any = read_round) -> str:
    """Why the round is invalid; "" where it is not."""
    change(raw)
    file = folder / "round.json"
    file.write_text(json.dumps(raw))
    done = reader(file, (H200,))
    measured = done.measurements if reader is read_round else done.figures
    assert done.invalid == bool(done.problem) == (not measured)
    return str(done.problem)


def test_what_can_be_is_valid(tmp_path: Path) -> None:
    assert said(tmp_path, burn_in()) == ""
    assert said(tmp_path, burn_in(1080e12)) == ""  # a margin for the clock
    assert said(tmp_path, burn_in(190e9, "fp32", "cpu")) == ""
    assert said(tmp_path, suite(), reader=read_suite_round) == ""


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (burn_in(3000e12), "FP16 8192^3 a@b: 3000.0 TFLOP/s is more than the 989.0 TFLOP/s of H200 on paper"),
        (burn_in(600e12, "fp32"), "of any such device on paper"),  # no reference knows this one
        (burn_in(3e12, "fp32", "cpu"), "of any such device on paper"),
    ],
)  # fmt: skip
def test_faster_than_paper(raw: dict[str, Any], why: str, tmp_path: Path) -> None:
    assert why in said(tmp_path, raw)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda raw: window(raw).update(ticks=window(raw)["ticks"][:8]), "add up to 8.000 s"),
        (lambda raw: window(raw).update(ticks=[[0.5, 300.0]] * 10), "add up to 5.000 s, and the window took 10.050 s"),
        (lambda raw: window(raw).update(ticks=[[2.0, 1200.0]] * 10), "add up to 20.000 s"),
        (lambda raw: window(raw).update(ticks=[]), "no ticks"),
        (lambda raw: window(raw).update(start=10.0, end=20.05), "by the parent's clock"),
        (lambda raw: window(raw).update(end=131.0), "by the parent's clock"),
        (lambda raw: window(raw).update(end=109.0), "by the parent's clock"),
        (lambda raw: window(raw).pop("end"), "is damaged"),
        (lambda raw: window(raw).update(ticks="many"), "is"),
        *((lambda raw, bad=bad: window(raw)["ticks"].append([bad, 1.0]), "must be") for bad in
          (math.nan, math.inf, 0.0, -1.0, None, "1", True)),
        *((lambda raw, bad=bad: window(raw)["ticks"].append([1.0, bad]), "must be") for bad in (math.nan, 0, -3)),
        (lambda raw: raw["report"]["cases"][0]["warmup"]["ticks"].append([math.nan, 1.0]), "must be"),
        (lambda raw: window(raw).update(cpu_seconds=math.nan), "must be"),
        (lambda raw: raw["report"]["cases"][0].update(flops=math.inf), "must be"),
    ],
)  # fmt: skip
def test_times_that_cannot_be(change: Change, why: str, tmp_path: Path) -> None:
    problem = said(tmp_path, burn_in(), change)
    assert problem.startswith("is invalid: ")
    assert why in problem


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda raw: figure(raw).update(rate=math.nan), "rate"),
        (lambda raw: figure(raw).update(rate=FLOPS * 800), "is not what was done in the time it took"),
        (lambda raw: figure(raw).update(rate=FLOPS * 250, seconds=20.0), "add up to 20.000 s"),
        (lambda raw: figure(raw).update(rate=FLOPS * 1000, seconds=5.0), "add up to 5.000 s"),
        (lambda raw: figure(raw).update(rate=FLOPS * 1500, count=15000), "1649.3 TFLOP/s is more than"),
        (lambda raw: figure(raw)["calls"].append(0.0), "must be"),
        (lambda raw: figure(raw)["peak"].update(rss=math.nan), "must be"),
        (lambda raw: figure(raw).update(work="other"), "is"),
    ],
)
def test_figures_of_the_suite_that_cannot_be(change: Change, why: str, tmp_path: Path) -> None:
    problem = said(tmp_path, suite(), change, read_suite_round)
    assert problem.startswith("is invalid: ")
    assert why in problem


def test_what_may_count_more_than_it_does_or_do_more_than_it_times(tmp_path: Path) -> None:
    """Winograd's convolutions do fewer products than their formula; transfers wait beside what is timed."""
    faster = {"rate": FLOPS * 1500, "count": 15000}
    assert (
        said(tmp_path, suite("convolution"), lambda raw: figure(raw).update(faster), read_suite_round) == ""
    )
    partly = {"rate": FLOPS * 500, "seconds": 5.0, "count": 2500}
    assert said(tmp_path, suite("collective"), lambda raw: figure(raw).update(partly), read_suite_round) == ""
