"""Burn-ins of different days compared, and a gate for CI; from their JSON documents.

A machine is not as fast on one day as on another, so two runs are compared by the ratios to an arm that both
have. Rounds of different runs are no pairs: Welch's interval and the Mann-Whitney test must agree on a claim.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spark_build.errors import UsageError
from spark_build.measure.gates import number_problem
from spark_build.measure.model import Case, Contrast, RateFinding
from spark_build.measure.statistics import ALPHA, contrast_of_logs, equivalent, holm, standard_error

SCHEMA = 1
DECIDING = ("device", "driver", "threads")  # of the scope: else two numbers are of different things
LEAST = 3  # rounds on either side; runs before a variance from day to day is told
UNKNOWN = "variance from day to day unknown: no other arm is the same in both runs"
HINT = "give the burn-in.json that `verify --burn-in` wrote"
NEEDED = (
    "claim", "explanation", "headline", "indicative", "ratio", "ci95", "arms", "gates", "scope",
    "round_results",
)  # fmt: skip
Decision = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RateChange:
    """One case then and now.

    Rates in FLOP/s (geometric means), ratio now/then (of the ratios to the arm that both runs share, if
    there is one), two-sided p.
    """

    case: str
    headline: bool
    rates: tuple[float, float]
    ratio: float
    ci95: tuple[float, float]
    p: float
    finding: RateFinding


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossRun:
    """All cases that both runs have, and what makes the comparison doubtful."""

    arms: tuple[str, str]
    changes: tuple[RateChange, ...]
    doubts: tuple[str, ...]
    shared: str = ""  # the arm through which the runs are compared

    @property
    def headline(self) -> RateChange | None:
        """The headline of the newer run, when the older has it too."""
        return next((each for each in self.changes if each.headline), None)


def check_document(raw: Any, where: str) -> dict[str, Any]:
    """Return a burn-in's JSON document. Raises UsageError for anything else."""
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
    try:
        problem = number_problem(
            *(one["rate"] for each in raw["round_results"] for one in each["measurements"])
        )
        if not problem:
            _read_through(raw)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        said = f"a damaged burn-in: {type(error).__name__}: {error}"
        raise UsageError(said, where=where, hint=HINT) from error
    if problem:
        raise UsageError(f"a rate of {problem}", where=where, hint=HINT)
    return raw


def _read_through(document: Mapping[str, Any]) -> None:
    """Read all that comparing, gating and history read, so that nothing of another shape ends them."""
    history_of([document])
    gate_run(document, 1.0)
    for arm in document["arms"]:
        _speeds(document, arm["name"])
        _identity(arm)
    _doubts(document, document)


def compare_runs(old: Mapping[str, Any], new: Mapping[str, Any], arm: str | None = None) -> CrossRun:
    """Compare one arm (default: the candidate, else the baseline) of two documents. Raises UsageError."""
    arms = _arm_of(old, arm), _arm_of(new, arm)
    shared = _shared(old, new, arms)
    then, now = _speeds(old, arms[0], shared), _speeds(new, arms[1], shared)
    cases = [case for case in now if min(len(then.get(case, ())), len(now[case])) >= LEAST]
    if not cases:
        raise UsageError(
            f"the two runs share no case with {LEAST} rounds or more",
            hint="repeat one of them with the other's --dtype, --size and --layout",
        )
    seen = {case: contrast_of_logs(then[case], now[case], paired=False) for case in cases}
    ps = {case: max(held.p, held.rank_p) for case, held in seen.items()}
    rest = [case for case in cases if case != new["headline"]]
    ps |= dict(zip(rest, holm([ps[case] for case in rest]), strict=True))
    rates = _speeds(old, arms[0]), _speeds(new, arms[1])
    changes = tuple(
        RateChange(
            case=case,
            headline=case == new["headline"],
            rates=(_mean(rates[0][case]), _mean(rates[1][case])),
            ratio=held.ratio,
            ci95=held.ci95,
            p=ps[case],
            finding=_finding(held, ps[case]) if shared else "unclear",
        )
        for case, held in seen.items()
    )
    doubts = (*_doubts(old, new), *(() if shared else (UNKNOWN,)))
    return CrossRun(arms=arms, changes=changes, doubts=doubts, shared=shared)


def gate_run(
    new: Mapping[str, Any], least: float, old: Mapping[str, Any] | None = None, *, every: bool = False
) -> tuple[Decision, str]:
    """Decide whether the headline is at least `least` times as fast as its baseline (or as in `old`).

    pass: its whole interval is; fail: none of it is, another case is slower, or results are wrong; else
    inconclusive, with `every` also where a case is left undecided.
    """
    if new["verdict"] == "FUNCTIONAL-FAIL":
        return "fail", f"{new['claim']}: {new['explanation']}"
    spoilt = [gate["name"] for gate in new["gates"] if gate["status"] == "fail"]
    if spoilt:
        return "inconclusive", f"validity gates failed: {', '.join(spoilt)}"
    if new["indicative"]:
        return "inconclusive", "a quick run is only indicative: repeat it with --full"
    if other := _other_cases(new, every=every):
        return other
    if old is None:
        if not any(arm["role"] == "candidate" for arm in new["arms"]) or new["ci95"] is None:
            return "inconclusive", "only one environment was measured: name two arms, or --against OLD.json"
        return _decide(new["ratio"], new["ci95"], least, f"{new['headline']}, against its baseline")
    crossed = compare_runs(old, new)
    if crossed.headline is None:
        return "inconclusive", f"the older run has no {new['headline']}"
    if crossed.doubts:
        return "inconclusive", "; ".join(crossed.doubts)
    if slower := [each.case for each in crossed.changes if each.finding == "slower" and not each.headline]:
        return "fail", f"slower than in the older run: {', '.join(slower)}"
    seen = crossed.headline
    return _decide(seen.ratio, seen.ci95, least, f"{seen.case}, against the older run")


def _other_cases(new: Mapping[str, Any], *, every: bool) -> tuple[Decision, str] | None:
    """Return the decision of the cases beside the headline; None where they leave it to that."""
    if slower := new.get("slower"):
        return "fail", f"slower than the baseline beyond the tolerance: {', '.join(slower)}"
    if every and (undecided := new.get("undecided")):
        return "inconclusive", f"not shown to be as fast as the baseline: {', '.join(undecided)}"
    return None


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


def _shared(old: Mapping[str, Any], new: Mapping[str, Any], arms: tuple[str, str]) -> str:
    """Return the baseline, if both runs have the same one and it is none of those compared; else ""."""
    there = {each["name"]: _identity(each) for each in old["arms"] if each["role"] == "baseline"}
    same = (each["name"] for each in new["arms"] if there.get(each["name"]) == _identity(each))
    return next((name for name in same if name not in arms), "")


def _identity(arm: Mapping[str, Any]) -> tuple[object, ...]:
    names = ("role", "origin", "versions", "threads", "env", "image", "swapped")
    return tuple(arm.get(name) or None for name in names)


def _speeds(document: Mapping[str, Any], arm: str, against: str = "") -> dict[str, list[float]]:
    """Return log rates of every case, or logs of their ratios to another arm in the same visit."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for each in document["round_results"]:
        for measured in each["measurements"] if not each["problem"] else ():
            own = found.setdefault(str(Case(**measured["case"])), {}).setdefault(each["slot"]["arm"], {})
            own[each["slot"]["visit"]] = math.log(measured["rate"])
    speeds = {}
    for case, arms in found.items():
        own, base = arms.get(arm, {}), arms.get(against, {})
        if logs := [own[at] - base.get(at, 0.0) for at in own if at in base or not against]:
            speeds[case] = logs
    return speeds


def _mean(logs: Sequence[float]) -> float:
    return math.exp(statistics.fmean(logs))


def _finding(seen: Contrast, p: float) -> RateFinding:
    if equivalent(seen):
        return "equivalent"
    return "unclear" if p >= ALPHA else "faster" if seen.ratio > 1 else "slower"


@dataclass(frozen=True, kw_only=True, slots=True)
class DayToDay:
    """One arm's headline over several runs: rates in FLOP/s, oldest first; `spread` is relative."""

    device: str
    headline: str
    arm: str
    started: tuple[str, ...]
    rates: tuple[float, ...]
    spread: float | None  # standard deviation from run to run beyond that of the rounds; None: too few runs


def history_of(documents: Sequence[Mapping[str, Any]]) -> tuple[DayToDay, ...]:
    """Group the runs by device, headline and arm, and estimate how much each arm varies from run to run."""
    groups: dict[tuple[object, ...], list[tuple[str, list[float]]]] = {}
    for document in documents:
        for arm in document["arms"]:
            logs = _speeds(document, arm["name"]).get(document["headline"], [])
            if len(logs) > 1 and arm["role"] != "control":
                where = document["scope"].get("device", ""), document["headline"], arm["name"]
                began = min(each["started"] for each in document["round_results"])
                key = (*where, json.dumps(_identity(arm), sort_keys=True))
                groups.setdefault(key, []).append((began, logs))
    for runs in groups.values():
        runs.sort(key=lambda run: run[0])
    return tuple(
        DayToDay(
            device=str(key[0]),
            headline=str(key[1]),
            arm=str(key[2]),
            started=tuple(began for began, _ in runs),
            rates=tuple(_mean(logs) for _, logs in runs),
            spread=_spread([logs for _, logs in runs]),
        )
        for key, runs in groups.items()
    )


def _spread(runs: Sequence[Sequence[float]]) -> float | None:
    """Return standard deviation of the runs' means beyond what their rounds explain."""
    if len(runs) < LEAST:
        return None
    between = statistics.variance(statistics.fmean(logs) for logs in runs)
    within = statistics.fmean(standard_error(logs) ** 2 for logs in runs)
    return math.sqrt(max(0.0, between - within))


def changed_scope(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return what differs between the machines of two runs, of what both documents hold."""
    return [
        f"another {name}: {old[name]}, now {new[name]}"
        for name in DECIDING
        if name in old and name in new and old[name] != new[name]
    ]


def _doubts(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return other changes between the runs, and runs that are not credible by themselves."""
    untold = dict.fromkeys(DECIDING, "unknown")
    found = changed_scope(untold | old["scope"], untold | new["scope"])
    for which, document in (("older", old), ("newer", new)):
        spoilt = [gate["name"] for gate in document["gates"] if gate["status"] == "fail"]
        if spoilt:
            found.append(f"gates of the {which} run failed: {', '.join(spoilt)}")
        if document["verdict"] == "FUNCTIONAL-FAIL":
            found.append(f"the {which} run computed wrong results")
    return found
