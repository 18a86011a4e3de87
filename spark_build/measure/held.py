"""What holds a figure: the check beside it that tells most, or why there is no figure."""

from __future__ import annotations

from spark_build.measure.bench import Bench

BOUNDS = (".bound", ".peak", ".memory", ".flops")  # the most telling first
UNDER_MEMORY = (".bound", ".memory", ".peak", ".flops")


def held_by(bench: Bench, work: str, arm: str = "", *, roof: str = "") -> str:
    """One sentence over all rounds (of one arm): what failed in any, else the bound. "" without checks.

    `roof` is that of the case's place (see classes): what memory bounds is held against memory.
    """
    bounds = UNDER_MEMORY if roof == "memory" else BOUNDS
    checks = {
        check.name.removeprefix(work): check
        for fails in (False, True)
        for each in bench.rounds
        for check in each.checks
        if arm in ("", each.slot.arm)
        if check.name.startswith(f"{work}.") and (check.status == "fail") == fails
    }
    failed = next((check for check in checks.values() if check.status == "fail"), None)
    held = failed or next((checks[name] for name in (*bounds, *checks) if name in checks), None)
    if held is None:
        return ""
    return held.evidence if held.status == "ok" else f"{held.status}: {held.evidence}"
