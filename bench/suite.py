"""Run workloads in this environment, each in a process of its own, and prove their figures.

Runs inside an arm, with nothing but torch and the standard library. One JSON report comes out; what follows
from it is the parent's business. A workload that fails, hangs or takes all memory is a failed check; the
others go on. Times are CLOCK_MONOTONIC seconds, so that the parent can lay its telemetry over them.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # isolated mode leaves it out

from apart import Apart
from findings import Finding, verdict
from surroundings import surroundings, write_report

SCHEMA = 1
WORKLOADS = Path(__file__).resolve().parent / "workloads"
INJECTIONS = ("train", "dtype", "result", "formula", "flops", "collective",
              "hang", "crash", "killed", "memory")  # fmt: skip


def arguments() -> argparse.Namespace:
    known = sorted(file.stem for file in WORKLOADS.glob("[!_]*.py"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--workloads", default=",".join(known), help="NAME,...: of " + ", ".join(known))
    parser.add_argument("--quick", type=int, choices=(0, 1), default=1, help="smaller cases")
    parser.add_argument("--warmup", type=float, default=0.2, help="seconds, at least")
    parser.add_argument("--window", type=float, default=0.4, help="seconds that count")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--patience", type=float, default=300.0, help="seconds of one case after which it hangs"
    )
    parser.add_argument("--profile", choices=("torch", "nsys"), help="name the kernels; no time is taken")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--inject", default="", help="FAULT:WORKLOAD,... to plant, for tests: "
                        + ", ".join(INJECTIONS))  # fmt: skip
    given = parser.parse_args()
    given.workloads = given.workloads.split(",")
    if unknown := sorted(set(given.workloads) - set(known)):
        parser.error(f"unknown workload: {', '.join(unknown)}")
    given.inject = [part.split(":") for part in given.inject.split(",") if part]
    if any(len(part) != 2 or part[0] not in INJECTIONS for part in given.inject):
        parser.error(f"unknown fault: {given.inject}")
    return given


def prelude(given: argparse.Namespace) -> dict[str, Any]:
    """Surroundings, what the device can do at best, and all cases, without taking memory for them."""
    import torch
    from casework import works_of
    from ceilings import copy_rate, peaks

    torch.set_num_threads(given.threads)
    works = {name: works_of(name, given) for name in given.workloads}
    with torch.inference_mode():
        ceilings = {"copy": copy_rate(torch, given.device), "flops": peaks(torch, given)}
    return {"works": works, "ceilings": ceilings, **surroundings(torch, given.device)}


def run_all(given: argparse.Namespace) -> dict[str, Any]:
    """The prelude, then one workload after the other; what any of them left is kept."""
    import torch  # noqa: F401 - once, here: the processes to come share it

    report: dict[str, Any] = {"works": [], "figures": [], "checks": [], "began": time.monotonic()}
    first, problem = Apart(given.patience).call(lambda tell: [tell({}), tell(prelude(given))])
    if problem:
        return {**report, "checks": [verdict("prelude.run", good=False, evidence=problem)]}
    report |= {key: value for key, value in first[-1].items() if key != "works"}
    known = first[-1]["works"]
    total, done = sum(map(len, known.values())), 0
    for name in given.workloads:
        print(f"@step {done} {total} {name}", flush=True)
        left, problem = Apart(given.patience).call(_workload(name, given, report["ceilings"], done, total))
        report["figures"] += [part["figure"] for part in left if part.get("figure")]
        report["checks"] += [check for part in left for check in part.get("checks", [])]
        for part in left:  # raised, and the next workload need not find that out again
            report["ceilings"] = part.get("ceilings", report["ceilings"])
        if problem:
            reached = [part["begins"] for part in left if "begins" in part]
            evidence = f"{problem}, in {reached[-1]}" if reached else problem
            report["checks"].append(verdict(f"{name}.run", good=False, evidence=evidence))
        done += len(known[name])
    print(f"@step {done} {total}", flush=True)
    report["works"] = [work for works in known.values() for work in works]
    report["checks"] += maxima(report)
    return {**report, "ended": time.monotonic()}


def _workload(name: str, given: argparse.Namespace, ceilings: dict[str, Any], done: int, total: int) -> Any:
    """What is to be done in a process of its own."""

    def body(tell: Any) -> None:
        from casework import run_workload

        def step(place: int) -> None:
            print(f"@step {done + place} {total} {name}", flush=True)

        run_workload(name, given, ceilings, tell, step)

    return body


def maxima(report: dict[str, Any]) -> list[Finding]:
    """The fastest product of each number format, as something to read."""
    works = {work["name"]: work for work in report["works"] if work["operation"] == "gemm"}
    best: dict[str, tuple[float, int]] = {}
    for figure in report["figures"]:
        if work := works.get(figure["work"]):
            found = (figure["rate"], work["size"])
            best[work["dtype"]] = max(best.get(work["dtype"], (0.0, 0)), found)
    return [
        verdict(f"gemm.{dtype}.maximum", rate > 0, f"{rate / 1e12:.4g} TFLOP/s at {size}")
        for dtype, (rate, size) in best.items()
    ]


def main() -> int:
    faulthandler.enable()  # a parent that loses patience sends SIGABRT and reads where we stood
    given = arguments()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(given.threads)
    if given.profile:
        from capture import capture

        write_report(given.out, {"schema": SCHEMA, "profiles": capture(given)})
        return 0
    kept = {name: str(value) if name == "out" else value for name, value in vars(given).items()}
    write_report(given.out, {"schema": SCHEMA, "arguments": kept, **run_all(given)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
