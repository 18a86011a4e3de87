"""Two burn-ins of different days compared, and a gate for CI; from their JSON documents.

Rounds of different runs are no pairs: Welch's interval and the Mann-Whitney test, both needed for a claim.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spark_build.errors import UsageError
from spark_build.measure.gates import number_problem
from spark_build.measure.model import Case
from spark_build.measure.statistics import ALPHA, MARGIN, holm, mann_whitney, unpaired_interval, welch

SCHEMA = 1
DECIDING = ("device", "driver", "threads")  # of the scope: else two numbers are of different things
LEAST = 3  # rounds on either side
HINT = "give the burn-in.json that `spark-build verify --burn-in` wrote"
NEEDED = (
    "claim",
    "explanation",
    "headline",
    "indicative",
    "ratio",
    "ci95",
    "arms",
    "gates",
    "scope",
    "round_results",
)
Finding = Literal["faster", "slower", "equivalent", "unclear"]
Decision = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RateChange:
    """One case then and now: rates in FLOP/s (geometric means), ratio now/then, two-sided p."""

    case: str
    headline: bool
    rates: tuple[float, float]
    ratio: float
    ci95: tuple[float, float]
    p: float
    finding: Finding


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossRun:
    """All cases that both runs have, and what makes the comparison doubtful."""

    arms: tuple[str, str]
    changes: tuple[RateChange, ...]
    doubts: tuple[str, ...]

    @property
    def headline(self) -> RateChange | None:
        """The headline of the newer run, when the older has it too."""
        return next((each for each in self.changes if each.headline), None)


def check_document(raw: Any, where: str) -> dict[str, Any]:
    """A burn-in's JSON document. Raises UsageError for anything else."""
    if not isinstance(raw, dict) or not {"schema", "verdict"} <= raw.keys():
        raise UsageError("this is no burn-in", where=where, hint=HINT)
    if raw["schema"] != SCHEMA:
        raise UsageError(
            f"a burn-in of schema {raw['schema']}; this program knows {SCHEMA}",
            where=where,
            hint="use the version that wrote it",
        )
    if missing := [name for name in NEEDED if name not in raw]:
        raise UsageError(f"a burn-in without {', '.join(missing)}", where=where, hint=HINT)
    rates = (one["rate"] for each in raw["round_results"] for one in each["measurements"])
    if problem := number_problem(*rates):
        raise UsageError(f"a rate of {problem}", where=where, hint=HINT)
    return raw


def compare_runs(old: Mapping[str, Any], new: Mapping[str, Any], arm: str | None = None) -> CrossRun:
    """Compare one arm (default: the candidate, else the baseline) of two documents. Raises UsageError."""
    arms = _arm_of(old, arm), _arm_of(new, arm)
    then, now = _rates(old, arms[0]), _rates(new, arms[1])
    shared = [case for case in now if min(len(then.get(case, ())), len(now[case])) >= LEAST]
    if not shared:
        raise UsageError(
            f"the two runs share no case with {LEAST} rounds or more",
            hint="repeat one of them with the other's --dtype, --size and --layout",
        )
    rest = [case for case in shared if case != new["headline"]]
    ps = {case: _claim_p(then[case], now[case]) for case in shared}
    corrected = dict(zip(rest, holm([ps[case] for case in rest]), strict=True))
    changes = tuple(
        _change(case, case == new["headline"], then[case], now[case], corrected.get(case, ps[case]))
        for case in shared
    )
    return CrossRun(arms=arms, changes=changes, doubts=tuple(_doubts(old, new)))


def gate_run(
    new: Mapping[str, Any], least: float, old: Mapping[str, Any] | None = None
) -> tuple[Decision, str]:
    """Is the headline at least `least` times as fast as its baseline (or as in `old`)?

    pass: its whole interval is; fail: none of it is, or it computes wrong results; else inconclusive.
    """
    if new["verdict"] == "FUNCTIONAL-FAIL":
        return "fail", f"{new['claim']}: {new['explanation']}"
    spoilt = [gate["name"] for gate in new["gates"] if gate["status"] == "fail"]
    if spoilt:
        return "inconclusive", f"validity gates failed: {', '.join(spoilt)}"
    if new["indicative"]:
        return "inconclusive", "a quick run is only indicative: repeat it with --full"
    if old is None:
        if not any(arm["role"] == "candidate" for arm in new["arms"]) or new["ci95"] is None:
            return "inconclusive", "only one environment was measured: name two arms, or --against OLD.json"
        return _decide(new["ratio"], new["ci95"], least, f"{new['headline']}, against its baseline")
    crossed = compare_runs(old, new)
    if crossed.headline is None:
        return "inconclusive", f"the older run has no {new['headline']}"
    if crossed.doubts:
        return "inconclusive", "; ".join(crossed.doubts)
    seen = crossed.headline
    return _decide(seen.ratio, seen.ci95, least, f"{seen.case}, against the older run")


def _decide(ratio: float, interval: Sequence[float], least: float, what: str) -> tuple[Decision, str]:
    low, high = interval
    seen = f"{what}: ratio {ratio:.3f} [{low:.3f}, {high:.3f}], wanted {least:g} or more"
    if low >= least:
        return "pass", seen
    return ("fail", seen) if high < least else ("inconclusive", seen)


def _arm_of(document: Mapping[str, Any], wanted: str | None) -> str:
    arms: dict[str, str] = {each["name"]: each["role"] for each in document["arms"]}
    if wanted is not None:
        if wanted not in arms:
            raise UsageError(f"no arm {wanted!r} in this run", hint=f"there are {', '.join(arms)}")
        return wanted
    found = [name for role in ("candidate", "baseline") for name, own in arms.items() if own == role]
    return found[0]


def _rates(document: Mapping[str, Any], arm: str) -> dict[str, list[float]]:
    """Logarithms of the rates of every case."""
    found: dict[str, list[float]] = {}
    for each in document["round_results"]:
        if each["slot"]["arm"] == arm and not each["problem"]:
            for measured in each["measurements"]:
                found.setdefault(str(Case(**measured["case"])), []).append(math.log(measured["rate"]))
    return found


def _claim_p(then: Sequence[float], now: Sequence[float]) -> float:
    return max(welch(then, now), mann_whitney(then, now))


def _change(case: str, headline: bool, then: Sequence[float], now: Sequence[float], p: float) -> RateChange:
    low, high = unpaired_interval(then, now)
    within = unpaired_interval(then, now, 1 - 2 * ALPHA)
    finding: Finding = "unclear"
    if math.log1p(-MARGIN) < within[0] and within[1] < math.log1p(MARGIN):
        finding = "equivalent"
    elif p < ALPHA:
        finding = "faster" if low > 0 else "slower"
    means = statistics.fmean(then), statistics.fmean(now)
    return RateChange(
        case=case,
        headline=headline,
        rates=(math.exp(means[0]), math.exp(means[1])),
        ratio=math.exp(means[1] - means[0]),
        ci95=(math.exp(low), math.exp(high)),
        p=p,
        finding=finding,
    )


def _doubts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What else changed between the runs, and which of them may not be believed by itself."""
    found = [
        f"another {name}: {old['scope'].get(name, 'unknown')}, now {new['scope'].get(name, 'unknown')}"
        for name in DECIDING
        if old["scope"].get(name) != new["scope"].get(name)
    ]
    for which, document in (("older", old), ("newer", new)):
        spoilt = [gate["name"] for gate in document["gates"] if gate["status"] == "fail"]
        if spoilt:
            found.append(f"gates of the {which} run failed: {', '.join(spoilt)}")
        if document["verdict"] == "FUNCTIONAL-FAIL":
            found.append(f"the {which} run computed wrong results")
    return found
