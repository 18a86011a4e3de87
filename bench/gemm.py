"""Measure matrix products in this environment and prove that they are right.

Runs inside an arm, as its own process, with nothing but torch and the standard library. One JSON
report comes out, with every tick; judging it is the parent's business. Times are CLOCK_MONOTONIC
seconds, so that the parent can lay its telemetry over them.
"""

from __future__ import annotations

import argparse
import faulthandler
import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # isolated mode leaves it out

from ceilings import copy_rate
from findings import SCALED_REFUSED, Finding, Unsupported, recognised, skipped, verdict
from operands import DTYPES, LAYOUTS, SCALED, Operands
from surroundings import surroundings, write_report
from ticks import tell
from timing import Tick, batches_of, timed, warm_up

SCHEMA = 1
REPEATS = 4
SAMPLED_ROWS = 16


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--cases", default="fp32:1024:ab", help="DTYPE:SIZE:LAYOUT,...: of "
                        + ", ".join(DTYPES) + "; of " + ", ".join(LAYOUTS))  # fmt: skip
    parser.add_argument("--profile", action="store_true", help="name the kernels; no time is taken")
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds, at least")
    parser.add_argument("--window", type=float, default=3.0, help="seconds that count")
    parser.add_argument("--tick", type=float, default=0.5, help="seconds of one recorded rate")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--inject", choices=("tile", "nan", "repeat"), help="plant an error, for tests")
    given = parser.parse_args()
    given.cases = [tuple(text.split(":")) for text in given.cases.split(",")]
    for dtype, size, layout in given.cases:
        right = layout == "scaled" if dtype in SCALED else layout in ("ab", "linear")
        if dtype not in DTYPES or not size.isdecimal() or not right:
            parser.error(f"unknown case: {dtype}:{size}:{layout}")
    if given.device == "cpu" and {"fp16", "tf32"} & {dtype for dtype, _, _ in given.cases}:
        parser.error("no fp16 or tf32 on a CPU: fp16 runs at 1 GFLOP/s or less there, tf32 does not exist")
    return given


def check_product(
    operands: Operands, layout: str, seed: int, inject: str | None
) -> tuple[Any, list[Finding]]:
    """Freivalds on the whole product, FP64 on some rows, finite everywhere, bitwise repeats."""
    torch, size = operands.torch, operands.size
    operands.poison()
    product = operands.product(layout, 0).clone()
    if inject == "tile":
        product[:16, :16] = 0
    if inject == "nan":
        product[size // 2, size // 3] = math.nan
    left, right = operands.exact(layout)
    unit = operands.tolerance()
    signs = torch.randint(0, 2, (size, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    signs = (signs * 2 - 1).to(left.device)
    expected = left @ (right @ signs)
    freivalds = (product.double() @ signs - expected).abs().max().item() / (6 * unit * math.sqrt(size))
    rows = torch.linspace(0, size - 1, min(size, SAMPLED_ROWS)).long().to(left.device)
    exact = left[rows] @ right
    element = (product[rows].double() - exact).abs().max().item() / (8 * unit)
    wild = int((~torch.isfinite(product)).sum().item())
    equal = 0
    for number in range(REPEATS):
        operands.poison()
        again = operands.product(layout, 0)
        if inject == "repeat" and number == 1:
            again[0, 0] += 1
        equal += int(torch.equal(again, product))
    name = f"gemm.{operands.dtype}.{size}.{layout}"
    sound = freivalds <= 1 and element <= 1 and wild == 0  # NaN compares false: a failure
    return product, [
        verdict(f"{name}.product", sound, f"largest error / tolerance: Freivalds {freivalds:.3f}, "
                f"{len(rows)} rows in FP64 {element:.3f}; {wild} elements not finite"),
        # NaN never equals itself: the product check has already told that story.
        verdict(f"{name}.repeats", wild > 0 or equal == REPEATS, f"{equal} of {REPEATS} bitwise equal"),
    ]  # fmt: skip


def measure(torch: Any, given: argparse.Namespace, operands: Operands, layout: str) -> dict[str, Any]:
    """Warm up until the rate stands still, then time one window; all ticks are kept."""
    turn, flops = 0, 2 * operands.size**3

    def step() -> None:
        nonlocal turn
        turn += 1
        operands.product(layout, turn, turn % 2)

    def told(part: str) -> Callable[[list[Tick]], None]:
        case = f"{operands.dtype}:{operands.size}:{layout}"
        return lambda ticks: tell(
            case, part, sum(seconds for seconds, _ in ticks), flops * ticks[-1][1] / ticks[-1][0]
        )

    batches = batches_of(torch, given.device, step)
    warm_start = time.monotonic()
    warm, steady = warm_up(batches, given.warmup, given.tick, told("warm-up"))
    start, cpu = time.monotonic(), time.process_time()
    window = timed(batches, given.window, given.tick, told("window"))
    end, cpu = time.monotonic(), time.process_time() - cpu
    batches.close()
    return {
        "dtype": operands.dtype, "size": operands.size, "layout": layout, "flops": flops,
        "buffers": {"sets": operands.count, "bytes": operands.bytes, "cache": operands.cache},
        "warmup": {"start": warm_start, "ticks": warm, "steady": steady},
        "window": {"start": start, "end": end, "cpu_seconds": cpu, "ticks": window},
    }  # fmt: skip


def run_cases(torch: Any, given: argparse.Namespace) -> tuple[list[dict[str, Any]], list[Finding]]:
    cases: list[dict[str, Any]] = []
    checks: list[Finding] = []
    for dtype, size in dict.fromkeys((dtype, int(size)) for dtype, size, _ in given.cases):
        if given.device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        wanted = [layout for d, s, layout in given.cases if (d, int(s)) == (dtype, size)]
        try:
            timed, found = run_operands(torch, given, Operands(torch, given, dtype, size), wanted)
        except Unsupported as reason:
            timed, found = [], [skipped(f"gemm.{dtype}.{size}", str(reason))]
        cases += timed
        checks += found
    return cases, checks


def run_operands(
    torch: Any, given: argparse.Namespace, operands: Operands, wanted: list[str]
) -> tuple[list[dict[str, Any]], list[Finding]]:
    """Check all layouts of one dtype and size, then time those that are wanted."""
    products, cases, checks = {}, [], []
    for layout in ("scaled",) if operands.dtype in SCALED else ("ab", "linear"):
        try:
            operands.product(layout, 0)
        except RuntimeError as error:
            raise recognised(error, SCALED_REFUSED if operands.dtype in SCALED else ()) from error
        products[layout], found = check_product(operands, layout, given.seed, given.inject)
        checks += found
    for layout in wanted:
        cases.append(measure(torch, given, operands, layout))
        operands.poison()
        same = torch.equal(operands.product(layout, 0), products[layout])
        name = f"gemm.{operands.dtype}.{operands.size}.{layout}.after"
        checks.append(verdict(name, same, "the product after the window, bit for bit: " + "=≠"[not same]))
    return cases, checks


def names_of(events: Iterable[Any], device: str) -> list[str]:
    """What ran on the device: on a GPU the profiler also lists the calls that started it."""
    return sorted({each.key for each in events if each.device_type.name.lower() == device})


def kernels(torch: Any, given: argparse.Namespace) -> dict[str, list[str]]:
    """Names of what really ran for each case, by the profiler: a name is not a speed."""
    from torch.profiler import ProfilerActivity, profile

    cuda = given.device == "cuda"
    found: dict[str, list[str]] = {}
    for dtype, size, layout in given.cases:
        if cuda:
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        try:
            operands = Operands(torch, given, dtype, int(size))
            operands.product(layout, 0)
            with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
                operands.product(layout, 0)
                if cuda:
                    torch.cuda.synchronize()
        except (Unsupported, RuntimeError):
            continue
        found[f"{dtype}:{size}:{layout}"] = names_of(seen.key_averages(), given.device)
    return found


def main() -> int:
    faulthandler.enable()  # a parent that loses patience sends SIGABRT and reads where we stood
    given = arguments()
    begin = time.monotonic()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(given.threads)
    import torch

    torch.set_num_threads(given.threads)
    with torch.inference_mode():
        if given.profile:
            write_report(given.out, {"schema": SCHEMA, "kernels": kernels(torch, given)})
            return 0
        copied = copy_rate(torch, given.device)
        cases, checks = run_cases(torch, given)
    kept = {name: str(value) if name == "out" else value for name, value in vars(given).items()}
    report = {"schema": SCHEMA, "arguments": kept, "begin": begin, "end": time.monotonic(), "copy": copied,
              "cases": cases, "checks": checks, **surroundings(torch, given.device)}  # fmt: skip
    write_report(given.out, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
