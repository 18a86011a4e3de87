"""Compare arms of the wider suite, with the evidence for each figure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple, TypeVar

from spark_build.errors import Hint, HintStep, InconclusiveError, UsageError, VerificationError, ours, shell
from spark_build.events import Gate
from spark_build.measure.bounds import kinds
from spark_build.measure.compare_runs import UNKNOWN, changed_scope
from spark_build.measure.gates import failures, machine_gates
from spark_build.measure.model import (
    Bench,
    CaseChange,
    ClassChange,
    Compared,
    Contrast,
    Kind,
    MemoryChange,
)
from spark_build.measure.statistics import MARGIN, contrast, finding, holm, summary

LEAST_MEMORY = 0.05  # relative difference that is worth a word
LEAST_BYTES = 16 * 2**20
Samples = tuple[list[float], list[float]]
K = TypeVar("K")


def compare(trial: Trial) -> Compared:
    """Return everything that a trial has enough launches for."""
    changes = [each for pair in trial.contrasts for each in _cases(trial, *pair)]
    left_out = [line for pair in trial.contrasts for line in _left_out(trial, *pair)]
    least = min((min(each.contrast.counts) for each in changes), default=0)
    return Compared(
        arms=trial.arms,
        paired=trial.paired,
        indicative=trial.quick or least < QUICK,
        changes=tuple(changes),
        classes=tuple(each for pair in trial.contrasts for each in _classes(trial, *pair)),
        memory=tuple(each for pair in trial.contrasts for each in _memory(trial, *pair, changes)),
        doubts=trial.doubts,
        left_out=tuple(dict.fromkeys((*trial.left_out, *left_out))),
        notes=trial.notes,
    )


def exit_code(compared: Compared, fail_over: float | None = None) -> tuple[int, str]:
    """0, 9 or 11, and why. `fail_over`: percent of overhead that is too much.

    9 only where the whole interval lies beyond it; 11 where it cannot be excluded, or nothing may be said.
    """
    if compared.doubts:
        return InconclusiveError.exit_code, "nothing may be claimed: " + "; ".join(compared.doubts)
    if compared.changes and all(each.finding == "unclear" for each in compared.changes):
        return InconclusiveError.exit_code, "nothing may be said: no case is shown to differ or to be equal"
    if fail_over is None:
        return 0, ""
    timed = [each for each in compared.changes if each.kind != "capacity"]
    if not timed:
        what = "capacity" if compared.changes else "memory"
        return InconclusiveError.exit_code, f"nothing may be said: there is no speed, only {what}"
    beyond = [each for each in timed if each.finding == "slower" and each.overhead95[0] > fail_over]
    if beyond:
        named = ", ".join(f"{each.case} ({each.overhead:.1f}%)" for each in beyond)
        return VerificationError.exit_code, f"slower by more than {fail_over:g}%: {named}"
    open_ = [each for each in timed if each.overhead95[1] > fail_over]
    if open_:
        named = ", ".join(f"{each.case} (up to {each.overhead95[1]:.1f}%)" for each in open_)
        return InconclusiveError.exit_code, f"more than {fail_over:g}% cannot be excluded: {named}"
    if compared.left_out:
        said = f"more than {fail_over:g}% cannot be excluded of what was left out: "
        return InconclusiveError.exit_code, said + "; ".join(compared.left_out)
    return 0, f"no case is slower by more than {fail_over:g}%"


def _samples(trial: Trial, first: dict[str, float], second: dict[str, float]) -> Samples | None:
    """Return launches in order, with pairs only complete ones; None for fewer than two of either."""
    keys = [key for key in first if key in second]
    a = [first[key] for key in keys] if trial.paired else list(first.values())
    b = [second[key] for key in keys] if trial.paired else list(second.values())
    return (a, b) if min(len(a), len(b)) >= 2 else None


def _left_out(trial: Trial, first: str, second: str) -> list[str]:
    """Return cases of either arm that were not compared, and why."""
    lines = []
    for case in trial.cases:
        own = [dict(trial.values.get((arm, case.name), {})) for arm in (first, second)]
        if not any(own) or _samples(trial, *own):
            continue
        counts = f"{len(own[0])} in {first}, {len(own[1])} in {second}"
        if not all(own):
            lines.append(f"{case.name}: not in {second if own[0] else first}")
        elif trial.paired and min(map(len, own)) >= 2:
            lines.append(f"{case.name}: two complete pairs are needed")
        else:
            lines.append(f"{case.name}: two launches of each are needed, not {counts}")
    return lines


def _tested(
    trial: Trial, found: Iterable[tuple[K, Launches, Launches, bool]]
) -> list[tuple[K, Samples, Samples, Contrast, float]]:
    """Return (what, values, speeds, contrast, corrected p) of what has launches enough.

    `found`: what, launches of either arm, whether lower values are better.
    """
    seen = []
    for what, first, second, lower in found:
        if values := _samples(trial, dict(first), dict(second)):
            a, b = ([1 / value for value in some] if lower else some for some in values)
            seen.append((what, values, (a, b), contrast(a, b, paired=trial.paired)))
    corrected = holm([held.p for *_, held in seen])
    return [(*each, p) for each, p in zip(seen, corrected, strict=True)]


def _cases(trial: Trial, first: str, second: str) -> list[CaseChange]:
    both = ((case, trial.values.get((first, case.name), {})) for case in trial.cases)
    found = [(case, own, trial.values.get((second, case.name), {}), case.lower) for case, own in both]
    changes = []
    for case, values, (a, b), held, p in _tested(trial, found):
        against = a if trial.paired else [statistics.geometric_mean(a)] * len(b)
        calls = [trial.calls.get((arm, case.name), ()) for arm in (first, second)]
        changes.append(
            CaseChange(
                case=case.name,
                unit=case.unit,
                lower=case.lower,
                kind=case.kind,
                first=first,
                second=second,
                values=(summary(values[0]), summary(values[1])),
                calls=(summary(calls[0]) if calls[0] else None, summary(calls[1]) if calls[1] else None),
                ratios=tuple(y / x for x, y in zip(against, b, strict=True)),
                contrast=held,
                holm_p=p,
                finding=finding(held, p),
                overhead=overhead(held.ratio),
                overhead95=(overhead(held.ci95[1]), overhead(held.ci95[0])),
                band=band_of(overhead(held.ratio)).name,
            )
        )
    return changes


def _classes(trial: Trial, first: str, second: str) -> list[ClassChange]:
    """Return changes by class; a launch is the sample, with the mean over the class's cases."""
    groups: dict[Kind, list[TrialCase]] = {}
    for case in trial.cases:
        both = (first, case.name) in trial.values and (second, case.name) in trial.values
        if case.kind not in (None, "capacity") and both:
            groups.setdefault(case.kind, []).append(case)
    found = (
        (kind, _means(trial, first, cases), _means(trial, second, cases), False)
        for kind, cases in groups.items()
    )
    return [
        ClassChange(
            kind=kind,
            first=first,
            second=second,
            cases=tuple(case.name for case in groups[kind]),
            contrast=held,
            holm_p=p,
            finding=finding(held, p),
        )
        for kind, _, _, held, p in _tested(trial, found)
    ]


def _means(trial: Trial, arm: str, cases: Sequence[TrialCase]) -> dict[str, float]:
    """Return geometric mean of the speeds of the cases, for every launch that has all of them."""
    columns = [trial.values[arm, case.name] for case in cases]
    whole = [key for key in columns[0] if all(key in column for column in columns)]
    signs = [-1 if case.lower else 1 for case in cases]
    return {
        key: math.exp(
            statistics.fmean(
                sign * math.log(column[key]) for sign, column in zip(signs, columns, strict=True)
            )
        )
        for key in whole
    }


def _memory(trial: Trial, first: str, second: str, changes: Sequence[CaseChange]) -> list[MemoryChange]:
    """Return changes of memory, and whether speed is shown to be the same."""
    works = {case.name: case.work for case in trial.cases}
    speeds: dict[str, set[str]] = {}
    for each in changes:
        if (each.first, each.second) == (first, second):
            speeds.setdefault(works[each.case], set()).add(each.finding)
    found = (
        ((case, what), own, trial.memory[second, case, what], False)
        for (arm, case, what), own in trial.memory.items()
        if arm == first and (second, case, what) in trial.memory
    )
    return [
        MemoryChange(
            case=case,
            what=what,
            first=first,
            second=second,
            values=means,
            holm_p=p,
            finding=(
                "same speed, different memory" if speeds.get(case) == {"equivalent"} else "different memory"
            ),
        )
        for (case, what), values, _, held, p in _tested(trial, found)
        for means in [(statistics.geometric_mean(values[0]), statistics.geometric_mean(values[1]))]
        if finding(held, p) in ("faster", "slower")
        and abs(held.ratio - 1) >= LEAST_MEMORY
        and abs(means[1] - means[0]) >= LEAST_BYTES
    ]


QUICK = 10  # launches of an arm below which everything is only indicative
LARGEST = 1e100  # of any value: beyond it, sums overflow
Launches = Mapping[str, float]  # launch -> its one value


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialCase:
    """A measured case; `lower`: lower values are better."""

    name: str
    work: str  # what ran: several metrics may be of one work
    unit: str
    lower: bool = False
    kind: Kind | None = None


MORE_ROUNDS = Hint("repeat the run with more rounds: ", ours("bench run --rounds 10"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """`contrasts` says which arm is held against which; if `paired`, launches of one name belong together."""

    arms: tuple[str, ...]
    cases: tuple[TrialCase, ...]
    values: Mapping[tuple[str, str], Launches]  # (arm, case); each above 0
    contrasts: tuple[tuple[str, str], ...]
    paired: bool
    calls: Mapping[tuple[str, str], tuple[float, ...]] = field(default_factory=dict)  # seconds
    memory: Mapping[tuple[str, str, str], Launches] = field(default_factory=dict)  # (arm, case, what), bytes
    more: Hint = MORE_ROUNDS
    quick: bool = False  # only indicative, whatever the counts
    doubts: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # cases that cannot be held against each other, and why
    notes: tuple[str, ...] = ()
    scope: Mapping[str, str] = field(default_factory=dict)
    # (arm, launch), as they are told -> seconds since 1970; NaN: not known
    when: Mapping[tuple[str, str], float] = field(default_factory=dict)


DRIFTED = 0.01  # p of Kendall's tau, shared by all series, below which values follow their order
LEAST_DRIFT = 5  # launches


def in_order(trial: Trial) -> tuple[list[str], list[str]]:
    """Return which arms were measured one after the other, and which values drift, in words.

    The order is that of the launches' times, else that in which they are told.
    """
    from scipy import stats

    dated = not any(map(math.isnan, trial.when.values()))
    told = sorted(trial.when, key=lambda key: trial.when[key]) if dated else list(trial.when)
    places = {arm: [at for at, key in enumerate(told) if key[0] == arm] for arm in trial.arms}
    verb = "were measured" if dated else "are told"
    apart = [
        f"all launches of {one} {verb} before all of {other}: a drift of the machine looks like a difference"
        for pair in trial.contrasts
        if min(len(places[arm]) for arm in pair) > 1 and not trial.paired
        for one, other in (pair, pair[::-1])
        if max(places[one]) < min(places[other])
    ]
    series = {
        key: values
        for key, found in trial.values.items()
        if len(values := [found[at] for arm, at in told if arm == key[0] and at in found]) >= LEAST_DRIFT
    }
    drifts = []
    for (arm, case), values in series.items():
        third = len(values) // 3
        change = statistics.fmean(values[-third:]) / statistics.fmean(values[:third]) - 1
        follows = stats.kendalltau(range(len(values)), values).pvalue < DRIFTED / len(series)
        if follows and abs(change) > MARGIN:
            drifts.append(f"{case} of {arm} drifts: {change:+.1%} from the first third of its launches on")
    return apart, drifts


def _in_turn(old: Trial, new: Trial) -> bool:
    """Return whether launches of the two are known to have been measured in turn: not only at the edges."""
    a, b = (list(each.when.values()) for each in (old, new))
    if not (a and b) or any(map(math.isnan, (*a, *b))):
        return False
    order = [arm for _, arm in sorted([*((at, 0) for at in a), *((at, 1) for at in b)])]
    changes = sum(one != other for one, other in pairwise(order))
    return max(a) > min(b) and max(b) > min(a) and changes >= min(len(a), len(b)) - 1


def from_bench(bench: Bench) -> Trial:
    """One run: every other arm against the first, by visit."""
    names = tuple(arm.name for arm in bench.arms)
    bounds = kinds(bench)
    values: dict[tuple[str, str], dict[str, float]] = {}
    calls: dict[tuple[str, str], tuple[float, ...]] = {}
    memory: dict[tuple[str, str, str], dict[str, float]] = {}
    for each in bench.rounds:
        arm, visit = each.slot.arm, str(each.slot.visit)
        for figure in each.figures if not each.problem else ():
            if not figure.rate > 0:
                continue
            key = (arm, figure.work)
            values.setdefault(key, {})[visit] = figure.rate
            calls[key] = calls.get(key, ()) + figure.calls
            for what, count in figure.peak.items():
                if count > 0:
                    memory.setdefault((*key, what), {})[visit] = count
    return Trial(
        arms=names,
        cases=tuple(
            TrialCase(name=work.name, work=work.name, unit=work.unit, kind=bounds[work.name])
            for work in bench.works
        ),
        values=values,
        contrasts=tuple((names[0], name) for name in names[1:]),
        paired=True,
        calls=calls,
        memory=memory,
        quick=bench.settings.mode == "quick",
        doubts=doubts_of(bench),
        notes=(*bench.notes, *bench.breaks),
        scope=bench.scope,
    )


def gates_of(bench: Bench) -> tuple[Gate, ...]:
    """Return the gates on the state of the machine."""
    good = [each for each in bench.rounds if not each.problem]
    return machine_gates(good, bench.settings.device, bench.breaks, bench.reference, bench.arms)


def doubts_of(bench: Bench) -> tuple[str, ...]:
    """Return the reasons why this run allows no claim."""
    found = [
        f"{check.name} failed in {each.slot.arm}: {check.evidence}" for each, check in failures(bench.rounds)
    ]
    found += [
        f"round {each.slot.index + 1} of {each.slot.arm}: {each.problem}"
        for each in bench.rounds
        if each.problem
    ]
    found += [f"{gate.name}: {gate.evidence}" for gate in gates_of(bench) if gate.status == "fail"]
    return tuple(dict.fromkeys(found))


def chosen(trial: Trial, arms: Sequence[str]) -> Trial:
    """Only these arms, the first of them as the baseline. Raises UsageError for unknown ones."""
    if not arms:
        return trial
    if unknown := [name for name in arms if name not in trial.arms]:
        raise UsageError(f"no arm {unknown[0]!r} here", hint=f"there are {', '.join(trial.arms)}")
    return replace(trial, arms=tuple(arms), contrasts=tuple((arms[0], name) for name in arms[1:]))


def joined(old: Trial, new: Trial) -> Trial:
    """Return two runs: arms of the same name, or the only ones. Launches of different runs are no pairs.

    Raises UsageError where it is not clear what belongs together.
    """
    shared = [name for name in new.arms if name in old.arms]
    pairs = [(name, name) for name in shared] or [_only_arms(old, new)]
    base = old.arms[0] if old.arms[0] == new.arms[0] and len(shared) > 1 else ""
    doubts = [] if base or _in_turn(old, new) else [UNKNOWN]
    level = {
        name: statistics.geometric_mean(list(found.values()))
        for (arm, name), found in old.values.items()
        if arm == base
    }
    old, new = (_held_against(run, base, level) for run in (old, new))
    held = [f"both runs are held against {base}, which both have"] if base else []
    then, now = _labelled(old, "old"), _labelled(new, "new")
    before, after = ({case.name: case for case in run.cases} for run in (old, new))
    alone = set(old.arms) ^ set(new.arms) if shared else set()
    left_out = [f"all of {name}: only in one of the two" for name in (*old.arms, *new.arms) if name in alone]
    cases = []
    # A case of one side alone stays: comparing says that the other lacks it.
    for name, case in (before | after).items():
        if difference := _difference(before.get(name, case), case):
            left_out.append(f"{name}: {difference}")
        else:
            cases.append(case)
    # As in one run: the class is told where it runs best.
    classes = {case.name: case.kind for case in old.cases if case.kind not in (None, "overhead")}
    return Trial(
        arms=(*then.arms, *now.arms),
        cases=tuple(replace(case, kind=classes.get(case.name, case.kind)) for case in cases),
        values={**then.values, **now.values},
        contrasts=tuple((f"{a}, old", f"{b}, new") for a, b in pairs if a != base),
        paired=False,
        calls={**then.calls, **now.calls},
        memory={**then.memory, **now.memory},
        more=old.more,
        quick=old.quick or new.quick,
        doubts=(*changed_scope(old.scope, new.scope), *then.doubts, *now.doubts, *doubts),
        left_out=tuple(left_out),
        notes=(*then.notes, *now.notes, *held),
    )


def _only_arms(old: Trial, new: Trial) -> tuple[str, str]:
    if len(old.arms) == len(new.arms) == 1:
        return old.arms[0], new.arms[0]
    there = f"{', '.join(old.arms)} in the first, {', '.join(new.arms)} in the second"
    raise UsageError(f"the two have no arm in common: {there}", hint="name one of each: --arm A --arm B")


def _held_against(trial: Trial, base: str, level: Mapping[str, float]) -> Trial:
    """Speeds as if the base had run at `level` in each launch: what a day does to all arms is taken out."""
    known = {name: trial.values.get((base, name), {}) for name in level} if base else {}
    held = {
        (arm, name): {
            at: value * (level[name] / own[at] if own else 1.0)
            for at, value in found.items()
            if not own or at in own
        }
        for (arm, name), found in trial.values.items()
        for own in [known.get(name, {})]
    }
    return replace(trial, values=held)


def _difference(old: TrialCase, new: TrialCase) -> str:
    """Return why two cases of one name differ; "" if they do not."""
    if old.unit != new.unit:
        return f"in {old.unit or 'no unit'}, then in {new.unit or 'no unit'}"
    return "" if old.lower == new.lower else "less is better in one of the two only"


def _labelled(trial: Trial, label: str) -> Trial:
    return replace(
        trial,
        arms=tuple(f"{name}, {label}" for name in trial.arms),
        values={(f"{arm}, {label}", case): found for (arm, case), found in trial.values.items()},
        calls={(f"{arm}, {label}", case): found for (arm, case), found in trial.calls.items()},
        memory={(f"{arm}, {label}", case, what): found for (arm, case, what), found in trial.memory.items()},
        doubts=tuple(f"{label} run: {doubt}" for doubt in trial.doubts),
        notes=tuple(f"{label} run: {note}" for note in trial.notes),
    )


class Next(NamedTuple):
    """Something to look at, and how."""

    name: str
    question: str
    step: HintStep


class Band(NamedTuple):
    """A range of overhead: what it means, and what to look at in which order."""

    name: str
    meaning: str
    checks: tuple[Next, ...] = ()


UTILISATION = Next("utilisation", "does the device wait for the processor?", shell("nvidia-smi dmon -s u"))
THERMAL = Next("thermal", "is it too hot to keep its clock?", shell("nvidia-smi -q -d PERFORMANCE"))
POWER = Next("power", "does a power limit hold it down?", shell("nvidia-smi -q -d POWER"))
DRIVER = Next("driver", "do driver and libraries of both fit together?", ours("doctor"))
SWAP = ours("verify --burn-in --swap cublas")
IMAGE = Next("image", "is it a release, with libraries as new as the other's?", SWAP)
DEVICE = (UTILISATION, THERMAL, POWER)
BANDS = (
    Band("below 10%", "the environment is not what makes it slow"),
    Band("10-20%", "worth a look", DEVICE),
    Band("20-40%", "something is set up wrongly", (*DEVICE, DRIVER)),
    Band("above 40%", "something is broken, or another library computes", (IMAGE, DRIVER, *DEVICE)),
)
EDGES = (10.0, 20.0, 40.0)  # 10 and 20 begin a band, 40 ends one


def overhead(ratio: float) -> float:
    """Return percent of time that takes longer at `ratio` times the speed; negative: it takes less."""
    # Rounded, so that 1.2 times the time is 20% and not a bit less.
    return round((1 / ratio - 1) * 100, 9)


def band_of(percent: float) -> Band:
    """Return the band of an overhead in percent: below 10, from 10, from 20, above 40."""
    if percent > EDGES[2]:
        return BANDS[3]
    return BANDS[sum(percent >= edge for edge in EDGES[:2])]


def band_text(change: CaseChange) -> str:
    """Return a band in words; two where the interval crosses an edge, "" where nothing is known."""
    if change.finding == "faster":
        return "none"
    low, high = (band_of(edge).name for edge in change.overhead95)
    if low == high:
        return low
    return f"{low} to {high}" if change.finding == "unclear" else f"{change.band} ({low} to {high})"


def evidence_of(bench: Bench, check: str, arm: str) -> str:
    """Of one check (see bands) in one arm; empty where nothing was read."""
    rounds = [each for each in bench.rounds if each.slot.arm == arm and not each.problem]

    def middle(form: str, name: str) -> str:
        known = [value for each in rounds if (value := getattr(each.telemetry, name)) is not None]
        return form.format(statistics.median(known)) if known else ""

    if check == "utilisation":
        said = [middle("{:.0%} of the device", "utilisation"), middle("other processes {:.1%}", "others")]
    elif check == "thermal":
        moved = [each.telemetry.throttled > 0 for each in rounds if each.telemetry.throttled is not None]
        counted = f"throttled in {sum(moved)} of {len(rounds)} rounds" if moved else ""
        said = [middle("{:.0f} °C", "celsius"), counted]
    elif check == "power":
        watts = f"{middle('{:.0f} W', 'watts')}{middle(' of {:.0f} W', 'limit_watts')}"
        said = [watts, middle("at the cap for {:.0%} of the time", "capped")]
    elif check == "driver":
        called = rounds[0].environment.get("called_versions") if rounds else None
        versions = called.items() if isinstance(called, dict) else ()
        said = [bench.scope.get("driver", ""), bench.scope.get("kernel", "")]
        said += [f"{name} {version}" for name, version in versions]
    else:
        own = next(each for each in bench.arms if each.name == arm)
        said = [own.image or own.origin, *(f"{name} {version}" for name, version in own.versions.items())]
    return ", ".join(filter(None, said))


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
