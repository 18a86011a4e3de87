"""The common form of what is compared: values by arm, case and launch, whoever measured them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from spark_build.errors import UsageError
from spark_build.events import Gate
from spark_build.measure.bench import Bench, Kind
from spark_build.measure.bounds import kinds
from spark_build.measure.compare_runs import DECIDING
from spark_build.measure.gates import machine_gates

QUICK = 10  # launches of an arm below which everything is only indicative
LARGEST = 1e100  # of any value: beyond it, sums overflow
Launches = Mapping[str, float]  # launch -> its one value


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialCase:
    """What is measured; `lower`: a lower value is better."""

    name: str
    work: str  # what ran: several metrics may be of one work
    unit: str
    lower: bool = False
    kind: Kind | None = None


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
    more: str = "repeat the run with more rounds: spark-build bench run --rounds 10"  # a hint
    quick: bool = False  # only indicative, whatever the counts
    doubts: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # cases that cannot be held against each other, and why
    notes: tuple[str, ...] = ()
    scope: Mapping[str, str] = field(default_factory=dict)


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
    """Was the machine in a state in which numbers mean something?"""
    good = [each for each in bench.rounds if not each.problem]
    return machine_gates(good, bench.settings.device, bench.breaks, bench.reference)


def doubts_of(bench: Bench) -> tuple[str, ...]:
    """Why nothing may be claimed from this run."""
    found = [
        f"{check.name} failed in {each.slot.arm}: {check.evidence}"
        for each in bench.rounds
        for check in each.checks
        if check.status == "fail"
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
    """Two runs: arms of the same name, or the only ones. Launches of different runs are no pairs.

    Raises UsageError where it is not clear what belongs together.
    """
    shared = [name for name in new.arms if name in old.arms]
    pairs = [(name, name) for name in shared]
    if not pairs and len(old.arms) == len(new.arms) == 1:
        pairs = [(old.arms[0], new.arms[0])]
    if not pairs:
        there = f"{', '.join(old.arms)} in the first, {', '.join(new.arms)} in the second"
        raise UsageError(f"the two have no arm in common: {there}", hint="name one of each: --arm A --arm B")
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
        contrasts=tuple((f"{a}, old", f"{b}, new") for a, b in pairs),
        paired=False,
        calls={**then.calls, **now.calls},
        memory={**then.memory, **now.memory},
        more=old.more,
        quick=old.quick or new.quick,
        doubts=(*_elsewhere(old, new), *then.doubts, *now.doubts),
        left_out=tuple(left_out),
        notes=(*then.notes, *now.notes),
    )


def _difference(old: TrialCase, new: TrialCase) -> str:
    """Why two cases of one name are not the same case; empty if they are."""
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


def _elsewhere(old: Trial, new: Trial) -> list[str]:
    return [
        f"another {name}: {old.scope[name]}, then {new.scope[name]}"
        for name in DECIDING
        if name in old.scope and name in new.scope and old.scope[name] != new.scope[name]
    ]
