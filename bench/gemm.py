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
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # isolated mode leaves it out

from surroundings import cache_bytes, free_bytes, surroundings, write_report

Finding = dict[str, str]
Step = Callable[[], None]
Batches = Generator[tuple[float, int], None, None]  # seconds, calls

SCHEMA = 1
STEADY_DRIFT = 0.005  # over three ticks
WARMUP_CAP = 3.0  # times the asked warm-up
BATCH_SECONDS = 0.05  # device time of one event-timed batch
REPEATS = 4
SAMPLED_ROWS = 16
# name: (torch type, unit roundoff of inputs as multiplied, of the accumulator, of the output)
DTYPES = {
    "fp32": ("float32", 0.0, 2.0**-24, 2.0**-24),
    "tf32": ("float32", 2.0**-11, 2.0**-24, 2.0**-24),
    "bf16": ("bfloat16", 0.0, 2.0**-24, 2.0**-8),
    "fp16": ("float16", 0.0, 2.0**-24, 2.0**-11),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--dtypes", default="fp32,bf16", help="of " + ", ".join(DTYPES))
    parser.add_argument("--sizes", default="1024")
    parser.add_argument("--layouts", default="ab", help="timed layouts: ab, linear (both are checked)")
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds, at least")
    parser.add_argument("--window", type=float, default=3.0, help="seconds that count")
    parser.add_argument("--tick", type=float, default=0.5, help="seconds of one recorded rate")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--inject-error", choices=("tile", "nan", "repeat"), help="plant an error, for tests")
    given = parser.parse_args()
    dtypes = given.dtypes.split(",")
    if unknown := set(dtypes) - set(DTYPES):
        parser.error(f"unknown dtypes: {', '.join(sorted(unknown))}")
    if given.device == "cpu" and {"fp16", "tf32"} & set(dtypes):
        parser.error("no fp16 or tf32 on a CPU: fp16 runs at 1 GFLOP/s or less there, tf32 does not exist")
    return given


class Operands:
    """Input sets of one dtype and size: at least two, more than twice the cache, at most 1/4 of memory."""

    def __init__(self, torch: Any, given: argparse.Namespace, dtype: str, size: int) -> None:
        self.torch, self.size, self.dtype = torch, size, dtype
        kind = getattr(torch, DTYPES[dtype][0])
        generator = torch.Generator(device=given.device).manual_seed(given.seed)
        pair = 2 * size * size * torch.empty(0, dtype=kind).element_size()
        self.cache = cache_bytes(torch, given.device)
        self.count = max(
            2, min(math.ceil(2 * self.cache / pair), free_bytes(torch, given.device) // (4 * pair))
        )
        self.bytes = self.count * pair

        def uniform() -> Any:
            values = torch.empty(size, size, device=given.device)
            return values.uniform_(-1, 1, generator=generator).to(kind)

        self.sets = [(uniform(), uniform()) for _ in range(self.count)]
        self.outs = [torch.empty(size, size, dtype=kind, device=given.device) for _ in range(2)]

    def poison(self) -> None:
        """NaN in every output, and in the freed block that F.linear will probably be given."""
        for out in self.outs:
            out.fill_(math.nan)
        spare = self.torch.full_like(self.outs[0], math.nan)
        del spare

    def product(self, layout: str, index: int, out: int = 0) -> Any:
        a, b = self.sets[index % self.count]
        if layout == "linear":
            return self.torch.nn.functional.linear(a, b)
        return self.torch.mm(a, b, out=self.outs[out])

    def right(self, layout: str) -> Any:
        return self.sets[0][1].t() if layout == "linear" else self.sets[0][1]


def tolerance(dtype: str, size: int) -> float:
    """Expected error of one element for uniform [-1,1] data: its own size is sqrt(K)/3."""
    _, inputs, accumulator, output = DTYPES[dtype]
    return math.sqrt(size) / 3 * (output + math.sqrt(size) * accumulator / 2 + 2 * inputs)


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
    left, right = operands.sets[0][0], operands.right(layout)
    unit = tolerance(operands.dtype, size)
    signs = torch.randint(0, 2, (size, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    signs = (signs * 2 - 1).to(left.device)
    expected = left.double() @ (right.double() @ signs)
    freivalds = (product.double() @ signs - expected).abs().max().item() / (6 * unit * math.sqrt(size))
    rows = torch.linspace(0, size - 1, min(size, SAMPLED_ROWS)).long().to(left.device)
    exact = left[rows].double() @ right.double()
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


def verdict(name: str, good: bool, evidence: str) -> Finding:
    return {"name": name, "status": "ok" if good else "fail", "evidence": evidence}


def cpu_batches(step: Step) -> Batches:
    """Seconds and calls; every product is complete when its call returns."""
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


def next_tick(batches: Batches, length: float) -> tuple[float, int]:
    """Seconds and calls of at least `length` seconds of work."""
    seconds, calls = 0.0, 0
    while seconds < length:
        took, done = next(batches)
        seconds, calls = seconds + took, calls + done
    return seconds, calls


def drift(ticks: list[tuple[float, int]]) -> float:
    """Relative change of the rate over the last three ticks; infinite before there are three."""
    if len(ticks) < 3:
        return math.inf
    rates = [calls / seconds for seconds, calls in ticks[-3:]]
    return abs(rates[2] - rates[0]) * 3 / sum(rates)


def measure(torch: Any, given: argparse.Namespace, operands: Operands, layout: str) -> dict[str, Any]:
    """Warm up until the rate stands still, then time one window; all ticks are kept."""
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        operands.product(layout, turn, turn % 2)

    batches = cpu_batches(step) if given.device == "cpu" else cuda_batches(torch, step)
    warm: list[tuple[float, int]] = []
    window: list[tuple[float, int]] = []
    warm_start = time.monotonic()
    while True:
        spent = sum(seconds for seconds, _ in warm)
        steady = drift(warm) < STEADY_DRIFT
        if (spent >= given.warmup and steady) or spent >= given.warmup * WARMUP_CAP:
            break
        warm.append(next_tick(batches, given.tick))
    start, cpu = time.monotonic(), time.process_time()
    while sum(seconds for seconds, _ in window) < given.window:
        window.append(next_tick(batches, given.tick))
    end, cpu = time.monotonic(), time.process_time() - cpu
    batches.close()
    return {
        "dtype": operands.dtype, "size": operands.size, "layout": layout, "flops": 2 * operands.size**3,
        "buffers": {"sets": operands.count, "bytes": operands.bytes, "cache": operands.cache},
        "warmup": {"start": warm_start, "ticks": warm, "steady": steady},
        "window": {"start": start, "end": end, "cpu_seconds": cpu, "ticks": window},
    }  # fmt: skip


def run_cases(torch: Any, given: argparse.Namespace) -> tuple[list[dict[str, Any]], list[Finding]]:
    cases: list[dict[str, Any]] = []
    checks: list[Finding] = []
    for dtype in given.dtypes.split(","):
        if given.device == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        for size in map(int, given.sizes.split(",")):
            operands = Operands(torch, given, dtype, size)
            products = {}
            for layout in ("ab", "linear"):
                products[layout], found = check_product(operands, layout, given.seed, given.inject_error)
                checks += found
            for layout in given.layouts.split(","):
                cases.append(measure(torch, given, operands, layout))
                operands.poison()
                same = torch.equal(operands.product(layout, 0), products[layout])
                name = f"gemm.{dtype}.{size}.{layout}.after"
                checks.append(
                    verdict(name, same, "the product after the window, bit for bit: " + "=≠"[not same])
                )
            del operands, products
    return cases, checks


def main() -> int:
    faulthandler.enable()  # a parent that loses patience sends SIGABRT and reads where we stood
    given = arguments()
    begin = time.monotonic()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(given.threads)
    import torch

    torch.set_num_threads(given.threads)
    with torch.inference_mode():
        cases, checks = run_cases(torch, given)
    kept = {name: str(value) if name == "out" else value for name, value in vars(given).items()}
    report = {"schema": SCHEMA, "arguments": kept, "begin": begin, "end": time.monotonic(),
              "cases": cases, "checks": checks, **surroundings(torch, given.device)}  # fmt: skip
    write_report(given.out, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
