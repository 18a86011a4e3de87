"""Which recipe is built, reused, skipped or blocked, in which order, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from typing import NamedTuple

from spark_build.core.key import digest, plan_inputs
from spark_build.model.machine import Machine
from spark_build.model.plan import Decision, Estimate, Plan, Step
from spark_build.model.recipe import Patch, Pin, Recipe, Source, Target, Train

BUILDABLE_KINDS = ("pep517",)
FETCHABLE_SOURCES = ("sdist", "archive")

# Answers for a step's plan key and its needs' build keys: (build key, in the store?).
Lookup = Callable[[Recipe, Pin, Mapping[str, object], Mapping[str, str]], tuple[str, bool]]


class _Verdict(NamedTuple):
    decision: Decision
    reasons: tuple[str, ...]


def closure_of(names: Iterable[str], recipes: Mapping[str, Recipe]) -> tuple[str, ...]:
    """The recipes asked for and all they need, needs first; alphabetical where free."""
    graph: dict[str, set[str]] = {}
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in graph:
            graph[name] = {need.name for need in recipes[name].needs}
            pending.extend(graph[name])
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    order: list[str] = []
    free: list[str] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heappush(free, name)
        order.append(heappop(free))
        sorter.done(order[-1])
    return tuple(order)


def choose_source(pin: Pin, target: Target) -> Source | None:
    """The first source in order of preference that can be fetched, for the target's platform."""
    fitting = [source for source in pin.sources if source.platform in ("", target.platform)]
    fetchable = [source for source in fitting if source.kind in FETCHABLE_SOURCES]
    return next(iter(fetchable or fitting), None)


def patches_for(recipe: Recipe, train: Train) -> tuple[Patch, ...]:
    """The patches that this train's version wants."""
    return tuple(patch for patch in recipe.patches if not patch.trains or train.name in patch.trains)


def jobs_for(recipe: Recipe, machine: Machine) -> int:
    """Compile jobs that fit both the cores and the memory that is free now; at least one."""
    by_memory = machine.available_mib // max(recipe.build.memory_per_job_mib, 1)
    return max(1, min(machine.cores, by_memory))


def make_plan(
    names: Iterable[str],
    recipes: Mapping[str, Recipe],
    train: Train,
    target: Target,
    machine: Machine,
    lookup: Lookup,
) -> Plan:
    """Decide every recipe asked for and every one it needs. `lookup` knows the store."""
    steps: dict[str, Step] = {}
    for name in closure_of(names, recipes):
        steps[name] = _step(recipes[name], train, target, machine, steps, lookup)
    return Plan(target=target, train=train, steps=tuple(steps.values()))


def _step(
    recipe: Recipe,
    train: Train,
    target: Target,
    machine: Machine,
    earlier: Mapping[str, Step],
    lookup: Lookup,
) -> Step:
    pin = train.components.get(recipe.name, Pin(version="", sources=()))
    source = choose_source(pin, target)
    patches = patches_for(recipe, train)
    needs = {need.name: earlier[need.name].key for need in recipe.needs}
    declared = plan_inputs(recipe, pin, source, patches, target, needs)
    build_key = ""
    verdict = _unfit(recipe, pin, source, train, target) or _blocked(recipe, source, earlier)
    if verdict is None:
        build_key, verdict = _build_or_reuse(recipe, pin, declared, earlier, lookup)
    return Step(
        recipe=recipe,
        pin=pin,
        decision=verdict.decision,
        reasons=verdict.reasons,
        key=digest(declared),
        declared=declared,
        needs=tuple(needs),
        source=source,
        patches=patches,
        estimate=_estimate(recipe, machine),
        build_key=build_key,
        warnings=_warnings(pin, patches, target, machine, verdict.decision),
    )


def _unfit(recipe: Recipe, pin: Pin, source: Source | None, train: Train, target: Target) -> _Verdict | None:
    if not pin.version:
        return _Verdict("SKIP", (f"train {train.name} has no version of it",))
    if recipe.requires.cuda and not target.cuda_architectures:
        needs = ", ".join(["a CUDA target such as gb10", *(need.name for need in recipe.needs)])
        return _Verdict("SKIP", (f"{target.name} has no GPU; it needs {needs}",))
    if target.platform not in recipe.requires.platforms:
        return _Verdict("SKIP", (f"is for {', '.join(recipe.requires.platforms)}, not {target.platform}",))
    if source is None:
        return _Verdict("BLOCKED", (f"train {train.name} names no source for {target.platform}",))
    return None


def _blocked(recipe: Recipe, source: Source | None, earlier: Mapping[str, Step]) -> _Verdict | None:
    reasons = [
        f"needs {name}, which is {earlier[name].decision}"
        for name in (need.name for need in recipe.needs)
        if earlier[name].decision in ("SKIP", "BLOCKED")
    ]
    if recipe.kind not in BUILDABLE_KINDS:
        reasons.append(f"recipes of kind {recipe.kind} cannot be built by this version yet")
    elif source is not None and source.kind not in FETCHABLE_SOURCES:
        reasons.append(f"{source.kind} sources cannot be fetched by this version yet")
    return _Verdict("BLOCKED", tuple(reasons)) if reasons else None


def _build_or_reuse(
    recipe: Recipe,
    pin: Pin,
    declared: Mapping[str, object],
    earlier: Mapping[str, Step],
    lookup: Lookup,
) -> tuple[str, _Verdict]:
    rebuilt = [need.name for need in recipe.needs if earlier[need.name].decision == "BUILD"]
    if rebuilt:
        return "", _Verdict("BUILD", tuple(f"needs {name}, which is built first" for name in rebuilt))
    needs = {need.name: earlier[need.name].build_key for need in recipe.needs}
    build_key, stored = lookup(recipe, pin, declared, needs)
    if stored:
        return build_key, _Verdict("REUSE", ("in the store with the same inputs and toolchain",))
    return build_key, _Verdict("BUILD", ("not in the store",))


def _estimate(recipe: Recipe, machine: Machine) -> Estimate:
    jobs = jobs_for(recipe, machine)
    return Estimate(
        seconds=recipe.build.core_minutes * 60 / jobs,
        memory_mib=jobs * recipe.build.memory_per_job_mib,
        disk_mib=recipe.build.disk_mib,
        jobs=jobs,
    )


def _warnings(
    pin: Pin, patches: Iterable[Patch], target: Target, machine: Machine, decision: Decision
) -> tuple[str, ...]:
    warnings = [f"not established: {entry}" for entry in pin.unestablished]
    warnings += [
        f"patch {patch.file} is unverified: {patch.unverified}" for patch in patches if patch.unverified
    ]
    if decision == "BUILD" and target.platform != machine.platform:
        warnings.append(f"builds on {target.platform} only; this machine is {machine.platform}")
    return tuple(warnings)
