"""The verdict of a burn-in: attribution, reference rates, gates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

from spark_build.errors import InconclusiveError, UsageError, VerificationError
from spark_build.events import Gate
from spark_build.measure.gates import failures, judge, same_environment
from spark_build.measure.model import (
    Arm,
    Attribution,
    Case,
    CaseResult,
    Check,
    Contrast,
    Device,
    Measurement,
    RateFinding,
    Reference,
    Round,
    Settings,
    Verdict,
    VerdictWord,
)
from spark_build.measure.statistics import (
    ALPHA,
    MARGIN,
    RANK_PAIRS,
    contrast,
    differs,
    equivalent,
    holm,
    interval,
    paired_effect,
)

LEAST_PAIRS = 10  # below, one slow round decides, and the sign-flip test hardly can say anything
NARROW = math.log1p(MARGIN) / 2  # half of an interval that needs no more pairs
TOO_FEW = (
    f"no difference can be claimed from fewer than {RANK_PAIRS} pairs (sign-flip test): "
    f"--rounds {LEAST_PAIRS}"
)


def name_headline(device: Device, cases: Sequence[Case]) -> Case:
    """Return the case that decides, named before measuring.

    FP32 at the largest size on a CPU, FP16 at 8192 (else the largest) on a GPU; the first dtype where that
    one is not measured.
    """
    wanted = "fp32" if device == "cpu" else "fp16"
    pool = [case for case in cases if case.dtype == wanted] or [c for c in cases if c.dtype == cases[0].dtype]
    if device == "cuda" and any(case.size == 8192 for case in pool):
        pool = [case for case in pool if case.size == 8192]
    largest = max(case.size for case in pool)
    return next(case for case in pool if case.size == largest)


def compare_cases(settings: Settings, arms: Sequence[Arm], rounds: Sequence[Round]) -> tuple[CaseResult, ...]:
    """Compare every case of every other arm with the baseline, except cases without two whole pairs."""
    base = next(arm for arm in arms if arm.role == "baseline")
    results: list[CaseResult] = []
    for arm in (each for each in arms if each is not base):
        found = {case: _pairs(case, base.name, arm.name, rounds) for case in settings.cases}
        seen = {case: contrast(*two, paired=True) for case, two in found.items() if len(two[0]) >= 2}
        rest = [case for case in seen if case != settings.headline]
        slower = dict(zip(rest, holm([seen[case].slower_p for case in rest]), strict=True))
        not_slower = dict(zip(rest, holm([seen[case].not_slower_p for case in rest]), strict=True))
        differing = dict(zip(rest, holm([seen[case].p for case in rest]), strict=True))
        for case, held in seen.items():
            first, second = found[case]
            word = _finding(held, differing.get(case))
            shown = case in rest and slower[case] < ALPHA and held.counts[0] >= RANK_PAIRS
            results.append(
                CaseResult(
                    case=case,
                    first=base.name,
                    second=arm.name,
                    role=arm.role,
                    headline=case == settings.headline,
                    comparison=held,
                    rates=(geometric_mean(first), geometric_mean(second)),
                    ratios=tuple(b / a for a, b in zip(first, second, strict=True)),
                    holm_p=slower.get(case),
                    finding="slower" if shown else "unclear" if case in rest and word == "slower" else word,
                    undecided=case in rest and not shown and not_slower[case] >= ALPHA,
                    per_clock=ratio_per_clock(case, base.name, arm.name, rounds),
                )
            )
    return tuple(results)


def decide(
    settings: Settings,
    arms: Sequence[Arm],
    rounds: Sequence[Round],
    cases: Sequence[CaseResult],
    gates: Sequence[Gate],
    checks: Sequence[Check] = (),
) -> Verdict:
    """Return the verdict: function first, then validity, then the headline case."""
    indicative = settings.mode == "quick" or settings.pairs < LEAST_PAIRS
    wrong = broken(rounds, checks) + _unequal(settings, arms, rounds)
    second = "candidate" if any(arm.role == "candidate" for arm in arms) else "control"
    headline = next((each for each in cases if each.headline and each.role == second), None)
    if wrong:
        text = f"{wrong[0]}{f' (and {len(wrong) - 1} more)' if len(wrong) > 1 else ''}."
        return _verdict("FUNCTIONAL-FAIL", "", f"Speed does not matter: {text}", False, headline)
    failed = [gate for gate in gates if gate.status == "fail"]
    if failed or headline is None:
        why = "; ".join(f"{gate.name}: {gate.evidence}" for gate in failed) or "too few complete pairs"
        text = f"Nothing may be claimed from this run: {why}."
        names_of = ", ".join(gate.name for gate in failed) or "too few pairs"
        return _verdict("INCONCLUSIVE", f" ({names_of})", text, indicative, headline)
    if second == "control":
        return _of_control(headline, indicative)
    claimed = _of_candidate(headline, indicative, attribute(arms, rounds, cases, headline))
    return _over_all(claimed, [each for each in cases if each.role == second and not each.headline])


def _over_all(claimed: Verdict, others: Sequence[CaseResult]) -> Verdict:
    """Return the headline's verdict, unless another case is shown to be slower; names undecided cases."""
    slower = [each for each in others if each.finding == "slower"]
    undecided = tuple(str(each.case) for each in others if each.undecided)
    text = claimed.explanation
    if undecided:
        text += f" Not shown to be within {MARGIN:.0%} of the baseline, nor slower: {', '.join(undecided)}."
    found = replace(
        claimed, explanation=text, undecided=undecided, slower=tuple(str(one.case) for one in slower)
    )
    if not slower:
        return found
    named = ", ".join(f"{one.case} {one.comparison.ratio:.3f}x" for one in slower)
    word: VerdictWord = "MIXED" if claimed.word == "UPLIFT" else "REGRESSION"
    claim = f"{claimed.claim}; slower on {named}" if word == claimed.word else f"{word} (slower on {named})"
    text += f" Slower by more than {MARGIN:.0%} (one-sided t tests with Holm's correction): {named}."
    return replace(found, word=word, claim=claim, explanation=text)


def _unequal(settings: Settings, arms: Sequence[Arm], rounds: Sequence[Round]) -> list[str]:
    """Return what the baseline measures and another environment does not, in words."""
    done = [each for each in rounds if not each.problem]
    has = {(one.slot.arm, each.case) for one in done for each in one.measurements}
    base = next(arm for arm in arms if arm.role == "baseline")
    lacking = [
        (arm.name, case)
        for arm in arms
        if arm is not base and any(one.slot.arm == arm.name for one in done)
        for case in settings.cases
        if (base.name, case) in has and (arm.name, case) not in has
    ]
    said = {
        (one.slot.arm, check.name): check.evidence
        for one in done
        for check in one.checks
        if check.status == "skipped"
    }
    return [
        f"{case} works in {base.name} and not in {name} "
        f"({said.get((name, f'gemm.{case.dtype}.{case.size}'), 'no reason is told')})"
        for name, case in lacking
    ]


def attribute(
    arms: Sequence[Arm], rounds: Sequence[Round], cases: Sequence[CaseResult], headline: CaseResult
) -> tuple[Attribution, str]:
    """Return the cause of a difference, by the shares of a swapped library and of the rest, and why."""
    start = f"{headline.first} with "
    derived = next((arm for arm in arms if arm.swapped and arm.origin.startswith(start)), None)
    swapped = next((one for one in cases if derived and one.headline and one.second == derived.name), None)
    if derived is None or swapped is None:
        base, candidate = (
            next(arm for arm in arms if arm.name == name) for name in (headline.first, headline.second)
        )
        return "unresolved", one_environment(base, candidate) or (
            "no library was swapped, so the cause is unresolved"
        )
    if problem := swap_problem(derived, headline.second, rounds):
        return "unresolved", problem
    pairs = _pairs(headline.case, derived.name, headline.second, rounds)
    if len(pairs[0]) < 2:
        return "unresolved", "too few pairs with a swapped library, so the cause is unresolved"
    library, build = swapped.comparison, contrast(*pairs, paired=True)
    said = f"with cuBLAS swapped alone {library}; what the build adds to that {build}"
    if _moves(library) and equivalent(build):
        return "cublas", f"it comes from cuBLAS: {said}"
    if _moves(build) and equivalent(library):
        return "build", f"it comes from the build: {said}"
    return "unresolved", f"the swap does not settle the cause: {said}"


def assess(
    settings: Settings,
    arms: Sequence[Arm],
    planned: int,
    rounds: Sequence[Round],
    breaks: Sequence[str],
    checks: Sequence[Check] = (),
    reference: Reference | None = None,
) -> tuple[Verdict, tuple[CaseResult, ...], tuple[Gate, ...]]:
    """Return cases, gates and verdict of what was measured; `checks` are those of the operator battery."""
    cases = compare_cases(settings, arms, rounds)
    gates = judge(settings, planned, rounds, cases, breaks, reference, arms)
    return decide(settings, arms, rounds, cases, gates, checks), cases, gates


def exit_code(verdict: Verdict) -> int:
    """0; 9 for a regression, mixed findings or a functional failure; 11 when nothing can be said.

    What is only indicative exits 0. A wrong product is wrong after one round: never indicative.
    """
    if verdict.word == "FUNCTIONAL-FAIL":
        return VerificationError.exit_code
    if verdict.indicative:
        return 0
    if verdict.word in ("REGRESSION", "MIXED"):
        return VerificationError.exit_code
    return InconclusiveError.exit_code if verdict.word == "INCONCLUSIVE" else 0


def _pairs(
    case: Case,
    first: str,
    second: str,
    rounds: Sequence[Round],
    value: Callable[[Measurement], float | None] = lambda one: one.rate,
) -> tuple[list[float], list[float]]:
    """Return the values of two arms in the visits in which both have one."""
    found: dict[str, dict[int, float]] = {first: {}, second: {}}
    for each in rounds:
        for one in each.measurements:
            if one.case == case and not each.problem and each.slot.arm in found and (seen := value(one)):
                found[each.slot.arm][each.slot.visit] = seen
    whole = sorted(found[first].keys() & found[second].keys())
    return [found[first][visit] for visit in whole], [found[second][visit] for visit in whole]


def _finding(seen: Contrast, holm_p: float | None) -> RateFinding:
    if equivalent(seen):
        return "equivalent"
    if differs(seen) and (holm_p is None or holm_p < ALPHA):
        return "faster" if seen.ratio > 1 else "slower"
    return "unclear"


def broken(rounds: Sequence[Round], checks: Sequence[Check]) -> list[str]:
    """Return functional failures in words: checks, wrong products, then rounds that crashed or hung."""
    failed = [f"{check.name} failed ({check.evidence})" for check in checks if check.status == "fail"]
    wrong = [f"{check.name} failed in {each.slot.arm} ({check.evidence})" for each, check in failures(rounds)]
    crashed = [
        f"round {each.slot.index + 1} of {each.slot.arm} {each.problem}"
        for each in rounds
        if each.problem and not (each.killed or each.invalid)
    ]
    return failed + wrong + crashed


def _verdict(
    word: VerdictWord,
    detail: str,
    text: str,
    indicative: bool,
    headline: CaseResult | None,
    cause: Attribution | None = None,
) -> Verdict:
    start = "Only indicative (short rounds, few pairs): " if indicative else ""
    return Verdict(
        word=word,
        claim=f"{word}{detail}",
        explanation=start + (text[0].lower() + text[1:] if start else text),
        indicative=indicative,
        attribution=cause,
        headline=headline,
    )


def _interval(comparison: Contrast) -> str:
    low, high = comparison.ci95
    return f"95% interval {low:.3f} to {high:.3f}, {comparison.counts[0]} pairs"


def _of_control(headline: CaseResult, indicative: bool) -> Verdict:
    """Never a claim about a build: how small a difference could be seen."""
    seen = headline.comparison
    could = f"this machine could tell differences of about {seen.detectable:.1%} or more"
    text = (
        f"One environment was measured against itself (A/A control), so this says nothing about a build; "
        f"on {headline.case} {TOO_FEW if seen.counts[0] < RANK_PAIRS else could} ({_interval(seen)})."
    )
    if equivalent(seen):
        return _verdict("EQUIVALENT", f" +-{MARGIN:.0%}", text, indicative, headline)
    return _verdict("INCONCLUSIVE", f" (interval wider than +-{MARGIN:.0%})", text, indicative, headline)


def _undecided(seen: Contrast) -> tuple[str, str]:
    """Return why neither a difference nor its absence may be claimed: a short form, the sentence's rest."""
    low, high = seen.ci95
    looks = "" if low <= 1 <= high else f"looks {'faster' if seen.ratio > 1 else 'slower'}, but "
    if seen.counts[0] < RANK_PAIRS:
        return "too few pairs", f"{looks or 'decides nothing: '}{TOO_FEW}"
    if not looks:
        could = f"about {seen.detectable:.1%} could have been told"
        return "neither different nor equivalent", f"proves neither a difference nor its absence; {could}"
    return "two tests disagree", f"{looks}the sign-flip test does not agree (p = {seen.flip_p:.2f})"


def _of_candidate(headline: CaseResult, indicative: bool, caused: tuple[Attribution, str]) -> Verdict:
    seen = headline.comparison
    low, high = seen.ci95
    subject = f"On {headline.case}, {headline.second} against {headline.first}:"
    scale = f" {seen.ratio:.3f}x [{low:.3f}, {high:.3f}]"
    if equivalent(seen):
        text = f"{subject} no difference beyond {MARGIN:.0%} (ratio {seen.ratio:.3f}, {_interval(seen)})."
        return _verdict("EQUIVALENT", f" +-{MARGIN:.0%}", text, indicative, headline)
    if not differs(seen):
        detail, why = _undecided(seen)
        text = f"{subject} ratio {seen.ratio:.3f} ({_interval(seen)}) {why}."
        return _verdict("INCONCLUSIVE", f" ({detail})", text, indicative, headline)
    word: VerdictWord = "UPLIFT" if seen.ratio > 1 else "REGRESSION"
    how = (
        f"{seen.ratio:.3f} times as fast" if word == "UPLIFT" else f"slower, {seen.ratio:.3f} times the rate"
    )
    cause, why = caused
    clocks = "" if headline.per_clock is None else f"; for each GHz of clock {headline.per_clock:.3f}"
    text = f"{subject} {how} ({_interval(seen)}){clocks}; {why}."
    return _verdict(word, f"{scale}, attributed to {cause}", text, indicative, headline, cause)


def swap_problem(derived: Arm, donor: str, rounds: Sequence[Round]) -> str:
    """Return why the swap proves nothing, as when the arm did not load the donor's library; "" otherwise.

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
    """Return the variable that differs between two arms of one environment; "" for none or two environments.

    No cause is named: a variable may change what is loaded (PYTHONPATH) as well as how it computes.
    """
    if not same_environment(base, candidate):
        return ""
    before, after = ({**arm.env, "threads": str(arm.threads or "default")} for arm in (base, candidate))
    changes = (
        (name, before.get(name, "unset"), after.get(name, "unset")) for name in sorted({*before, *after})
    )
    differing = ", ".join(f"{name} ({old}, {new})" for name, old, new in changes if old != new)
    return f"both are one environment, and what differs is {differing}" if differing else ""


def ratio_per_clock(case: Case, first: str, second: str, rounds: Sequence[Round]) -> float | None:
    """Return the ratio of the rates per GHz of their clocks, over complete pairs; None without clocks.

    What is faster only because its clock was higher has 1 here.
    """
    before, after = _pairs(
        case, first, second, rounds, lambda one: one.clock_mhz and one.rate / one.clock_mhz
    )
    return geometric_mean(after) / geometric_mean(before) if before else None


def narrow_enough(settings: Settings, arms: Sequence[Arm], rounds: Sequence[Round]) -> bool:
    """Return whether the headline's interval is narrow enough; asked after whole visits, from `pairs` on."""
    if len(rounds) % len(arms) or len(rounds) < settings.pairs * len(arms):
        return False
    role = "candidate" if any(arm.role == "candidate" for arm in arms) else "control"
    one, other = (next(arm.name for arm in arms if arm.role == wanted) for wanted in ("baseline", role))
    first, second = _pairs(settings.headline, one, other, rounds)
    if len(first) < 2:
        return True
    low, high = interval(paired_effect([math.log(b / a) for a, b in zip(first, second, strict=True)]))
    return (high - low) / 2 <= NARROW


def _moves(effect: Contrast) -> bool:
    """Return whether an effect is proven, and worth mentioning."""
    return differs(effect) and not equivalent(effect)


SCHEMA = 1
TERA, GIGA = 1e12, 1e9


def parse_reference(raw: Mapping[str, Any], where: str) -> Reference:
    """Parse a reference (TFLOP/s, GB/s) from its TOML document. Raises UsageError."""
    try:
        if raw["schema"] != SCHEMA:
            raise ValueError(f"schema is not {SCHEMA}")
        rates = {name: _range(f"tflops.{name}", pair, TERA) for name, pair in raw["tflops"].items()}
        re.compile(raw["device"])
        bandwidth, clock = raw.get("bandwidth_gbs"), raw.get("least_clock_mhz")
        return Reference(
            name=str(raw["name"]),
            device=str(raw["device"]),
            rates=rates,
            nominal={name: float(value) * TERA for name, value in raw.get("nominal_tflops", {}).items()},
            least_size=int(raw.get("least_size", 0)),
            bandwidth=None if bandwidth is None else float(bandwidth) * GIGA,
            least_clock=None if clock is None else float(clock),
            bus=_range("bus_bandwidth_gbs", raw["bus_bandwidth_gbs"], GIGA)
            if "bus_bandwidth_gbs" in raw
            else None,
            sources=tuple(str(each) for each in raw["sources"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, re.error) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(
            f"not a reference of this schema: {what}",
            where=where,
            hint="name, device, sources, [tflops] dtype = [low, high]; docs/verdict.md has an example",
        ) from error


def _range(name: str, pair: Sequence[float], scale: float) -> tuple[float, float]:
    low, high = (float(value) * scale for value in pair)
    if not 0 < low <= high:
        raise ValueError(f"{name}: low, then high")
    return low, high


def reference_for(references: Sequence[Reference], device: str) -> Reference | None:
    """Return the first reference whose pattern occurs in the device's name."""
    return next((each for each in references if re.search(each.device, device)), None)


def place_in_reference(reference: Reference | None, case: Case, rate: float) -> str:
    """Return a rate's place (FLOP/s): "as known", "15% below what is known"; "" without a reference."""
    if reference is None or case.dtype not in reference.rates or case.size < reference.least_size:
        return ""
    low, high = reference.rates[case.dtype]
    if rate < low:
        return f"{1 - rate / low:.0%} below what {reference.name} is known for"
    if rate > high:
        return f"{rate / high - 1:.0%} above what {reference.name} is known for"
    return f"as known of {reference.name}"
