"""From a trial to what may be said: case by case, class by class, and of memory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from spark_build.errors import InconclusiveError, VerificationError
from spark_build.measure.bands import band_of, overhead
from spark_build.measure.bench import Kind
from spark_build.measure.comparing import CaseChange, ClassChange, Compared, Contrast, MemoryChange
from spark_build.measure.contrast import contrast, finding, summary
from spark_build.measure.statistics import geometric_mean, holm
from spark_build.measure.trial import QUICK, Trial, TrialCase

LEAST_MEMORY = 0.05  # relative difference that is worth a word
LEAST_BYTES = 16 * 2**20
Samples = tuple[list[float], list[float]]


def compare(trial: Trial) -> Compared:
    """Everything that a trial has enough launches for."""
    changes: list[CaseChange] = []
    classes: list[ClassChange] = []
    memory: list[MemoryChange] = []
    for first, second in trial.contrasts:
        own = _cases(trial, first, second)
        changes += own
        classes += _classes(trial, first, second)
        memory += _memory(trial, first, second, own)
    left_out = [line for pair in trial.contrasts for line in _left_out(trial, *pair)]
    least = min((min(each.contrast.counts) for each in changes), default=0)
    return Compared(
        arms=trial.arms,
        paired=trial.paired,
        indicative=trial.quick or least < QUICK,
        changes=tuple(changes),
        classes=tuple(classes),
        memory=tuple(memory),
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
    if not compared.changes:
        return InconclusiveError.exit_code, "nothing may be said: there is no speed, only memory"
    beyond = [
        each for each in compared.changes if each.finding == "slower" and each.overhead95[0] > fail_over
    ]
    if beyond:
        named = ", ".join(f"{each.case} ({each.overhead:.1f}%)" for each in beyond)
        return VerificationError.exit_code, f"slower by more than {fail_over:g}%: {named}"
    open_ = [each for each in compared.changes if each.overhead95[1] > fail_over]
    if open_:
        named = ", ".join(f"{each.case} (up to {each.overhead95[1]:.1f}%)" for each in open_)
        return InconclusiveError.exit_code, f"more than {fail_over:g}% cannot be excluded: {named}"
    if compared.left_out:
        said = f"more than {fail_over:g}% cannot be excluded of what was left out: "
        return InconclusiveError.exit_code, said + "; ".join(compared.left_out)
    return 0, f"no case is slower by more than {fail_over:g}%"


def _samples(trial: Trial, first: dict[str, float], second: dict[str, float]) -> Samples | None:
    """Launches in order; with pairs only whole ones. None for fewer than two of either."""
    keys = [key for key in first if key in second]
    a = [first[key] for key in keys] if trial.paired else list(first.values())
    b = [second[key] for key in keys] if trial.paired else list(second.values())
    return (a, b) if min(len(a), len(b)) >= 2 else None


def _left_out(trial: Trial, first: str, second: str) -> list[str]:
    """Cases of either arm that were not compared, and why."""
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


def _speeds(values: Sequence[float], *, lower: bool) -> list[float]:
    return [1 / value for value in values] if lower else list(values)


def _cases(trial: Trial, first: str, second: str) -> list[CaseChange]:
    seen: list[tuple[TrialCase, Samples, Contrast]] = []
    for case in trial.cases:
        found = trial.values.get((first, case.name), {}), trial.values.get((second, case.name), {})
        samples = _samples(trial, dict(found[0]), dict(found[1]))
        if samples:
            a, b = (_speeds(some, lower=case.lower) for some in samples)
            seen.append((case, samples, contrast(a, b, paired=trial.paired)))
    corrected = holm([each.p for _, _, each in seen])
    return [
        _change(trial, (first, second), case, samples, held, p)
        for (case, samples, held), p in zip(seen, corrected, strict=True)
    ]


def _change(
    trial: Trial, arms: tuple[str, str], case: TrialCase, samples: Samples, held: Contrast, holm_p: float
) -> CaseChange:
    a, b = (_speeds(some, lower=case.lower) for some in samples)
    against = a if trial.paired else [geometric_mean(a)] * len(b)
    calls = [trial.calls.get((arm, case.name), ()) for arm in arms]
    percent = overhead(held.ratio)
    return CaseChange(
        case=case.name,
        unit=case.unit,
        lower=case.lower,
        kind=case.kind,
        first=arms[0],
        second=arms[1],
        values=(summary(samples[0]), summary(samples[1])),
        calls=(summary(calls[0]) if calls[0] else None, summary(calls[1]) if calls[1] else None),
        ratios=tuple(y / x for x, y in zip(against, b, strict=True)),
        contrast=held,
        holm_p=holm_p,
        finding=finding(held, holm_p),
        overhead=percent,
        overhead95=(overhead(held.ci95[1]), overhead(held.ci95[0])),
        band=band_of(percent).name,
    )


def _classes(trial: Trial, first: str, second: str) -> list[ClassChange]:
    """The launch is the sample: each has one number per class, the mean over the class's cases."""
    groups: dict[Kind, list[TrialCase]] = {}
    for case in trial.cases:
        both = (first, case.name) in trial.values and (second, case.name) in trial.values
        if case.kind is not None and both:
            groups.setdefault(case.kind, []).append(case)
    seen: list[tuple[Kind, tuple[str, ...], Contrast]] = []
    for kind, cases in groups.items():
        samples = _samples(trial, _means(trial, first, cases), _means(trial, second, cases))
        if samples:
            names = tuple(case.name for case in cases)
            seen.append((kind, names, contrast(*samples, paired=trial.paired)))
    corrected = holm([held.p for _, _, held in seen])
    return [
        ClassChange(
            kind=kind,
            first=first,
            second=second,
            cases=names,
            contrast=held,
            holm_p=p,
            finding=finding(held, p),
        )
        for (kind, names, held), p in zip(seen, corrected, strict=True)
    ]


def _means(trial: Trial, arm: str, cases: Sequence[TrialCase]) -> dict[str, float]:
    """Geometric mean of the speeds of the cases, for every launch that has all of them."""
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
    """What needs another amount of memory, and whether its speed is shown to be the same."""
    works = {case.name: case.work for case in trial.cases}
    speeds: dict[str, set[str]] = {}
    for each in changes:
        speeds.setdefault(works[each.case], set()).add(each.finding)
    seen: list[tuple[str, str, tuple[float, float], Contrast]] = []
    for arm, case, what in trial.memory:
        other = trial.memory.get((second, case, what))
        if arm != first or other is None:
            continue
        samples = _samples(trial, dict(trial.memory[arm, case, what]), dict(other))
        if samples:
            means = geometric_mean(samples[0]), geometric_mean(samples[1])
            seen.append((case, what, means, contrast(*samples, paired=trial.paired)))
    corrected = holm([held.p for *_, held in seen])
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
        for (case, what, means, held), p in zip(seen, corrected, strict=True)
        if finding(held, p) in ("faster", "slower")
        and abs(held.ratio - 1) >= LEAST_MEMORY
        and abs(means[1] - means[0]) >= LEAST_BYTES
    ]
