"""Run check scripts in an environment; whatever they do becomes checks, never an exception."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from spark_build.measure.model import Check
from spark_build.process import Completed, run
from spark_build.venv import clean_environment

LIMIT = 900  # seconds for one script
FATAL = "FATAL: kernel"  # what a CUDA kernel prints that was not built for this GPU, and writes nothing


def run_checks(*, python: Path, scripts: Sequence[Path], work: Path, package: str = "") -> tuple[Check, ...]:
    """Run each script with `python` in folder `work`; names get the script's name in front.

    A crash, a hang, a missing or malformed report and "FATAL: kernel" in the output are failures.
    """
    work.mkdir(parents=True, exist_ok=True)
    return tuple(
        replace(check, package=package) for script in scripts for check in _run(python, script, work)
    )


def _run(python: Path, script: Path, work: Path) -> list[Check]:
    name = script.stem
    out = work / f"{name}.checks.json"
    out.unlink(missing_ok=True)
    fatal: list[str] = []

    def watch(line: str) -> None:
        if FATAL in line:
            fatal.append(line)

    # Isolated: neither the script's folder nor the user's packages may stand in for what is tested.
    command = [str(python), "-I", "-B", "-X", "faulthandler", str(script), "--out", str(out)]
    guard = ["timeout", "--signal=ABRT", "--kill-after=10", str(LIMIT)]
    with (work / f"{name}.log").open("wb") as log:
        done = run([*guard, *command], cwd=work, env=clean_environment(), log=log, on_line=watch)
        fatal += _left(out.with_name(f"{out.name}.said"), log)
    checks = _report(name, out)
    problem = _problem(done, reported=bool(checks))
    if problem:
        checks.append(Check(name=f"{name}.run", status="fail", evidence=problem))
    if fatal and not any(FATAL in check.evidence for check in checks):
        evidence = f"{len(fatal)} times: {fatal[0].strip()[:200]}"
        checks.append(Check(name=f"{name}.kernels", status="fail", evidence=evidence))
    return checks


def _left(said: Path, log: BinaryIO) -> list[str]:
    """What the check printed during which the process ended goes to the log; its lines with FATAL."""
    try:
        text = said.read_bytes()
        said.unlink()
    except FileNotFoundError:
        return []
    log.write(text)
    return [line for line in text.decode(errors="replace").splitlines() if FATAL in line]


def _problem(done: Completed, *, reported: bool) -> str:
    last = done.output.strip().rpartition("\n")[2][:300]
    if done.returncode == 124:
        return f"hung: no end after {LIMIT} s"
    if done.returncode != 0:
        return f"crashed with exit status {done.returncode}: {last}"
    return "" if reported else f"left no checks: {last}"


def _report(name: str, out: Path) -> list[Check]:
    found: list[Check] = []
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        document: Any = json.loads(out.read_text())
        for each in document["checks"]:
            status = each["status"]
            if status not in ("ok", "fail", "skipped"):
                raise ValueError(status)
            found.append(Check(name=f"{name}.{each['name']}", status=status, evidence=str(each["evidence"])))
        return found
    return []
