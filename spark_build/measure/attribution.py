"""What a difference comes from, told by arms into which one library of the other arm was swapped.

The library's effect is (baseline + the candidate's library) / baseline; what remains, candidate /
(baseline + the candidate's library), is the build's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_build.measure.model import Arm, Attribution, Case, CaseResult, Comparison, Round
from spark_build.measure.statistics import differs, equivalent, geometric_mean


@dataclass(frozen=True, kw_only=True, slots=True)
class Effects:
    """The two factors whose product is the ratio of candidate to baseline; "" or why there are none."""

    library: Comparison | None = None
    build: Comparison | None = None
    problem: str = ""


def attribute(effects: Effects) -> tuple[Attribution, str]:
    """The cause of a proven difference, and one sentence of evidence."""
    if effects.library is None or effects.build is None:
        return "unresolved", effects.problem or "no library was swapped, so the cause is unresolved"
    library, build = effects.library, effects.build
    said = f"with cuBLAS swapped alone {_seen(library)}; what the build adds to that {_seen(build)}"
    if _moves(library) and equivalent(build):
        return "cublas", f"it comes from cuBLAS: {said}"
    if _moves(build) and equivalent(library):
        return "build", f"it comes from the build: {said}"
    return "unresolved", f"the swap does not settle the cause: {said}"


def swap_problem(derived: Arm, donor: str, rounds: Sequence[Round]) -> str:
    """Why the swap proves nothing: the derived arm did not load the donor's library. "" when it did.

    What was loaded counts, not what was asked for.
    """
    for each in rounds:
        if each.slot.arm != derived.name or not each.environment:
            continue
        loaded = set(each.environment.get("libraries", ()))
        if absent := [path for path in derived.swapped if path not in loaded]:
            return f"{derived.name} did not load {absent[0]} of {donor}, so the cause is unresolved"
        return ""
    return f"{derived.name} has no finished round, so the cause is unresolved"


def one_environment(base: Arm, candidate: Arm) -> str:
    """What differs between two arms of one environment; "" for two environments, or none that differ.

    No cause is named: a variable may change what is loaded (PYTHONPATH) as well as how it computes.
    """
    if (base.python, base.image, base.swapped) != (candidate.python, candidate.image, candidate.swapped):
        return ""
    before, after = ({**arm.env, "threads": str(arm.threads or "default")} for arm in (base, candidate))
    changes = (
        (name, before.get(name, "unset"), after.get(name, "unset")) for name in sorted({*before, *after})
    )
    differing = ", ".join(f"{name} ({old}, {new})" for name, old, new in changes if old != new)
    return f"both are one environment, and what differs is {differing}" if differing else ""


def ratio_per_clock(case: Case, first: str, second: str, rounds: Sequence[Round]) -> float | None:
    """Ratio of the rates for each GHz of their windows' clocks, over complete pairs; None without clocks.

    What is faster only because its clock was higher has 1 here.
    """
    found: dict[tuple[str, int], float] = {}
    for each in rounds:
        for one in each.measurements:
            if one.case == case and one.clock_mhz and not each.problem:
                found[each.slot.arm, each.slot.visit] = one.rate / one.clock_mhz
    ratios = [
        rate / found[first, visit]
        for (arm, visit), rate in found.items()
        if arm == second and (first, visit) in found
    ]
    return geometric_mean(ratios) if ratios else None


def headline_of(cases: Sequence[CaseResult], arm: str) -> CaseResult | None:
    """The headline case of one arm."""
    return next((each for each in cases if each.headline and each.second == arm), None)


def _moves(effect: Comparison) -> bool:
    """Whether an effect is proven, and worth a word."""
    return differs(effect) and not equivalent(effect)


def _seen(effect: Comparison) -> str:
    return f"{effect.ratio:.3f} [{effect.ci95[0]:.3f}, {effect.ci95[1]:.3f}]"
