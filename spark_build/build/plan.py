"""Decide which recipes are built, reused, skipped or blocked, in which order, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from typing import Literal, NamedTuple

from spark_build.build.keys import plan_inputs
from spark_build.events import ExpectedUsage
from spark_build.machine import Limits, Machine
from spark_build.recipes.evaluation import evaluate, for_target, patches_for, pin_hint, sources_for
from spark_build.recipes.model import (
    Decision,
    Download,
    Estimate,
    Need,
    Patch,
    Pin,
    Plan,
    Provider,
    Provision,
    Recipe,
    Source,
    Step,
    Target,
    Train,
)
from spark_build.recipes.parse import Lock
from spark_build.recipes.toml_positions import allows, version_of
from spark_build.resources import policy
from spark_build.text import digest

DOWNLOAD_RATE = 12_500_000  # bytes a second, 100 Mbit/s: an assumption that plans print


class StoredResult(NamedTuple):
    """The store's result for a step.

    missing: why it does not have it, what changed since the last build; stale: why what it has must be
    audited again; stored_as: its key in the store, where that is an older one or an import's; imported:
    who signed that; remote: the remote store that has it, where this one does not.
    """

    key: str
    stored: bool
    missing: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    stored_as: str = ""
    imported: str = ""
    remote: str = ""


Lookup = Callable[[Step, Mapping[str, str]], StoredResult]  # a step and the keys of its needs in the store


class _Verdict(NamedTuple):
    decision: Decision
    reasons: tuple[str, ...]


def closure_of(
    names: Iterable[str], recipes: Mapping[str, Recipe], elsewhere: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the recipes asked for and all they need, needs first, else alphabetical.

    What comes from `elsewhere` is not built for others, so its own needs do not matter.
    """
    graph: dict[str, set[str]] = {}
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in graph:
            graph[name] = {need.name for need in recipes[name].needs if need.name not in elsewhere}
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
    """Return the preferred pinned source for the target's platform."""
    return next((source for source in sources_for(pin, target) if source.is_pinned), None)


def unpinned_source(pin: Pin, target: Target) -> Source | None:
    """Return the source without a commit that blocks a component, an extra one last; None for none."""
    if choose_source(pin, target) is None:
        return next(iter(sources_for(pin, target)), None)
    extras = (one for one in pin.extra_sources.values() if one.platform in ("", target.platform))
    return next((one for one in extras if not one.is_pinned), None)


def limits_of(machine: Machine, target: Target, *, jobs: int | None, memory_mib: int | None) -> Limits:
    """Return the machine's limits for builds; `jobs`, `memory_mib`: the user's."""
    reserve = policy.reserve_mib(machine.memory_mib, unified=target.unified_memory)
    return Limits(cores=jobs or machine.cores, reserve_mib=reserve, memory_mib=memory_mib)


def jobs_for(recipe: Recipe, machine: Machine, limits: Limits, memory_per_job_mib: int = 0) -> int:
    """Return the compile jobs that fit cores and free memory when it builds alone, at least one."""
    most = (recipe.build.most_jobs or limits.cores) if recipe.is_compiled else 1  # a wheel is unpacked by one
    return policy.allowed(
        cores=min(most, limits.cores // recipe.build.threads_per_job),
        available_mib=machine.available_mib,
        reserve_mib=limits.reserve_mib,
        memory_per_job_mib=memory_per_job_mib or recipe.build.memory_per_job_mib,
        budget_mib=limits.memory_mib,
    )


def make_plan(  # noqa: PLR0913 - what a plan depends on, most of it with defaults
    names: Iterable[str],
    recipes: Mapping[str, Recipe],
    train: Train,
    target: Target,
    machine: Machine,
    lookup: Lookup,
    provide: Mapping[str, str] | None = None,
    *,
    others: Iterable[str] = (),
    limits: Limits | None = None,
    history: Callable[[Recipe], ExpectedUsage | None] = lambda _: None,
    lock_of: Callable[[str], Lock | None] = lambda _: None,
    builder: Machine | None = None,
    downloads_of: Callable[[Step], tuple[Download, ...]] = lambda _: (),
) -> Plan:
    """Decide every recipe asked for and every one it needs. `lookup` knows the store, `lock_of` the locks.

    provide: need -> "store", "public" or a path, where it is to come from; others: recipes that are
    decided as well, but built only where their `default` says so; limits: default, all of the machine;
    history: what a recipe will probably take; builder: another machine, which the estimates are for;
    downloads_of: what a step to build fetches there. What is needed with "public" as its usual provider is
    in the plan only where the store's is used.
    """
    wished, names, others = provide or {}, tuple(names), tuple(others)
    if limits is None or builder is not None:
        limits = limits_of(builder or machine, target, jobs=None, memory_mib=None)
    elsewhere = {name for name, wish in wished.items() if wish != "store"}
    recipes = {name: for_target(recipe, target, train) for name, recipe in recipes.items()}
    named = {*names, *(wished.keys() - elsewhere)}
    around = _Surroundings(recipes, train, target, machine, wished, lock_of)
    steps: dict[str, Step] = {}
    order = closure_of([*names, *others], recipes, elsewhere)
    wanted, needless = _wanted(order, recipes, named, others, elsewhere)
    optional = _optional(order, recipes, elsewhere) - wanted - {*others}
    for name in order:
        draft = _draft(recipes[name], around, steps)
        past = history(recipes[name])
        if past is not None and builder is not None:
            past = replace(past, seconds=None)  # a time of this machine
        how: _How = "build" if name in wanted else "reuse" if name in optional else "skip"
        step = _decided(draft, train, target, steps, lookup, how, needless.get(name, ""))
        fetched = downloads_of(step) if step.decision == "BUILD" else ()
        estimate = _estimate(recipes[name], builder or machine, limits, past, fetched)
        steps[name] = replace(step, estimate=estimate, downloads=fetched)
    return Plan(target=target, train=train, steps=_used(steps, optional), machine=builder or machine)


def _used(steps: Mapping[str, Step], optional: Collection[str]) -> tuple[Step, ...]:
    """Return the steps, in their order, less the optional ones whose wheel no other takes from the store."""
    used = {name for name in steps if name not in optional}
    for name in reversed([*steps]):
        if name in used:
            used.update(steps[name].from_store)
    return tuple(step for name, step in steps.items() if name in used)


_How = Literal["build", "reuse", "skip"]  # reuse: only where the store has it


def _wanted(
    order: Sequence[str],
    recipes: Mapping[str, Recipe],
    named: Collection[str],
    others: Iterable[str],
    elsewhere: Collection[str],
) -> tuple[set[str], dict[str, str]]:
    """Return the recipes to build, and why nobody needs some others: what comes from `elsewhere`.

    To build are named ones, default ones of the others, and what these need built.
    """
    asked = {*named, *(name for name in others if recipes[name].default)}
    wanted: set[str] = set()
    needless: dict[str, str] = {}
    users: dict[str, set[str]] = {}
    for name in reversed(order):
        gone = users.get(name, set()) & needless.keys()
        if name in elsewhere and name not in named:
            needless[name] = "comes from elsewhere (--provide)"
        elif gone and name not in named and not users[name] & wanted:
            needless[name] = f"only {', '.join(sorted(gone))} would need it (--provide)"
        elif name in asked:
            wanted.add(name)
            asked |= {
                one.name
                for one in recipes[name].needs
                if "public" not in one.providers
                or (one.providers[0] != "public" and recipes[one.name].default)
            }
        for need in recipes[name].needs:
            users.setdefault(need.name, set()).add(name)
    return wanted, needless


def _optional(order: Iterable[str], recipes: Mapping[str, Recipe], elsewhere: Collection[str]) -> set[str]:
    """Return what is needed with "public" as its usual provider, and its own needs."""
    usually = (
        one.name
        for name in order
        for one in recipes[name].needs
        if one.providers[0] == "public" and one.name not in elsewhere
    )
    return set(closure_of(usually, recipes, elsewhere))


class _Surroundings(NamedTuple):
    """Values that all steps of a plan share."""

    recipes: Mapping[str, Recipe]
    train: Train
    target: Target
    machine: Machine
    wished: Mapping[str, str]
    lock_of: Callable[[str], Lock | None]


def _draft(recipe: Recipe, around: _Surroundings, earlier: Mapping[str, Step]) -> Step:
    """Return a step without its decision; `earlier`: those before it."""
    recipes, train, target, machine, wished, lock_of = around
    pin = train.components.get(recipe.name, Pin(version="", sources=()))
    source = choose_source(pin, target)
    # A folder that the user names is taken as it is.
    patches = () if source and source.kind == "local" else patches_for(recipe, train)
    evaluated = evaluate(recipe, pin, target, train)
    lock = lock_of(recipe.name) if recipe.is_compiled and pin.version else None
    if lock is not None:
        evaluated = replace(evaluated, hashes=lock.hashes(evaluated.requires, target.platform))
    drafts = (
        _provision(
            need, recipes[need.name], train, machine, earlier.get(need.name), wished.get(need.name, "")
        )
        for need in recipe.needs
    )
    provisions = tuple(_held(one, around) for one in drafts)
    keys = {one.need: earlier[one.need].key for one in provisions if one.provider == "store"}
    declared = plan_inputs(recipe, evaluated, pin, source, patches, target, provisions, keys)
    return Step(
        recipe=recipe,
        pin=pin,
        evaluated=evaluated,
        decision="BUILD",
        reasons=(),
        key=digest(declared),
        declared=declared,
        provisions=provisions,
        source=source,
        patches=patches,
        warnings=(
            *_warnings(recipe, pin, source, patches, target, machine),
            *_unlocked(lock is None and bool(evaluated.requires), provisions),
        ),
    )


def _held(one: Provision, around: _Surroundings) -> Provision:
    """Return a public wheel with what the train's lock allows of it; others as they are."""
    if (one.provider, one.coupling) != ("public", "content"):
        return one
    lock, pin = around.lock_of(f"trains/{around.train.name}"), f"{one.distribution}=={one.version}"
    return replace(one, locked=lock.hashes([pin], around.target.platform)[pin]) if lock else one


def _unlocked(requirements: bool, provisions: Iterable[Provision]) -> tuple[str, ...]:
    """Return the warning of what a build takes without a lock; `requirements`: what it needs to build."""
    free = ["build requirements"] if requirements else []
    free += [
        f"public {one.distribution}"
        for one in provisions
        if (one.provider, one.coupling, one.locked) == ("public", "content", ())
    ]
    return (f"held by no lock: {', '.join(free)} (`recipes pin` writes locks)",) if free else ()


# What --provide may say instead of a path.
_WORDS: dict[str, Provider] = {"store": "store", "public": "public"}


def _provision(
    need: Need, recipe: Recipe, train: Train, machine: Machine, step: Step | None, wish: str
) -> Provision:
    """Return the provider asked for, else the usual one.

    Where the store cannot have it, the system's own prefix or the public wheel will do if it is allowed.
    Where the public wheel is the usual one, the store's is taken when it is there or built in this plan.
    """
    provider: Provider = need.providers[0]
    found = machine.prefixes.get(need.name, "")
    lost = provider == "store" and step is not None and step.decision in ("SKIP", "BLOCKED")
    if wish:
        provider, found = _WORDS.get(wish, "path"), wish
    elif provider == "public" and "store" in need.providers and step and step.decision in ("BUILD", "REUSE"):
        provider = "store"
    elif lost and "path" in need.providers and found:
        provider = "path"
    elif lost and "public" in need.providers and step is not None and step.decision == "SKIP":
        provider = "public"
    return Provision(
        need=need.name,
        distribution=recipe.distribution,
        provider=provider,
        coupling=need.coupling,
        version=train.components[need.name].version if need.name in train.components else "",
        path=found if provider == "path" else "",
    )


def _decided(
    draft: Step,
    train: Train,
    target: Target,
    earlier: Mapping[str, Step],
    lookup: Lookup,
    how: _How,
    needless: str,
) -> Step:
    verdict = _unsupported(draft.recipe, draft.pin, draft.source, train, target)
    if needless and (verdict is None or verdict.decision == "BLOCKED"):
        verdict = _Verdict("SKIP", (needless,))
    elif verdict is None and how == "skip":
        reason = f"not built for {target.name} unless named (--with {draft.recipe.name})"
        verdict = _Verdict("SKIP", (reason,))
    verdict = verdict or _blocked(draft, earlier)
    found = StoredResult("", stored=False)
    if verdict is None:
        found, verdict = _build_or_reuse(draft, earlier, lookup)
    if how == "reuse" and verdict.decision == "BUILD":
        verdict = _Verdict("SKIP", ("not in the store",))
    return replace(
        draft,
        decision=verdict.decision,
        reasons=verdict.reasons,
        build_key=found.key,
        stale=found.stale,
        stored_as=found.stored_as or found.key if found.stored and not found.remote else "",
        remote=found.remote,
        warnings=draft.warnings if verdict.decision != "SKIP" else (),
    )


def _unsupported(
    recipe: Recipe, pin: Pin, source: Source | None, train: Train, target: Target
) -> _Verdict | None:
    if not pin.version:
        return _Verdict("SKIP", (f"train {train.name} has no version of it",))
    if recipe.requires.cuda and not target.cuda_architectures:
        needs = f" (and {', '.join(need.name for need in recipe.needs)})" if recipe.needs else ""
        return _Verdict("SKIP", (f"{target.name} has no GPU; it needs a CUDA target such as gb10{needs}",))
    if target.platform not in recipe.requires.platforms:
        return _Verdict("SKIP", (f"is for {', '.join(recipe.requires.platforms)}, not {target.platform}",))
    if (lacking := unpinned_source(pin, target)) is not None:
        return _Verdict("BLOCKED", (f"not pinned yet: {pin_hint(recipe.name, lacking, train.name)}",))
    if source is None:
        return _Verdict("BLOCKED", (f"train {train.name} names no source for {target.platform}",))
    return None


def _blocked(step: Step, earlier: Mapping[str, Step]) -> _Verdict | None:
    allowed = {need.name: need.providers for need in step.recipe.needs}
    reasons = [
        f"needs {name}, which is {earlier[name].decision}"
        + (f" (--provide {name}=public would do)" if "public" in allowed[name] else "")
        for name in step.from_store
        if earlier[name].decision in ("SKIP", "BLOCKED")
    ]
    reasons += [
        f"{one.need} may come from {' or '.join(allowed[one.need])}, not from {one.provider}"
        for one in step.provisions
        if one.provider not in allowed[one.need]
    ]
    wanted = {need.name: need.versions for need in step.recipe.needs}
    reasons += [
        f"it takes {one.need} {wanted[one.need]}, and the train has {one.version}"
        for one in step.provisions
        if (version := version_of(one.version)) and not allows(wanted[one.need], version)
    ]
    return _Verdict("BLOCKED", tuple(reasons)) if reasons else None


def _build_or_reuse(step: Step, earlier: Mapping[str, Step], lookup: Lookup) -> tuple[StoredResult, _Verdict]:
    rebuilt = [name for name in step.from_store if earlier[name].decision == "BUILD"]
    usual = {need.name: need.providers[0] for need in step.recipe.needs}
    others = tuple(
        str(one)
        for one in step.provisions
        if one.provider != "store" or (usual[one.need] == "public" and one.need not in rebuilt)
    )
    first = _preflight(step.recipe)
    if rebuilt:
        names = " and ".join(filter(None, (", ".join(rebuilt[:-1]), rebuilt[-1])))
        waits = f"needs {names}, which {'are' if rebuilt[1:] else 'is'} built first"
        reasons = (waits, *others, *first)
        return StoredResult("", stored=False), _Verdict("BUILD", reasons)
    found = lookup(step, {name: earlier[name].stored_as for name in step.from_store})
    if found.remote:
        reason = f"in the remote store {found.remote} with the same inputs and toolchain"
        return found, _Verdict("REUSE", (reason, f"imported ({found.imported})", *others))
    if found.stored:
        older = ("under the key that an older spark-build gave it",) if found.stored_as else ()
        if found.imported:
            older = (f"imported ({found.imported})",)
        again = tuple(f"to be audited again: {reason}" for reason in found.stale)
        reasons = ("in the store with the same inputs and toolchain", *older, *again, *others)
        return found, _Verdict("REUSE", reasons)
    count = 1 + len(step.evaluated.extra_sources)
    if step.recipe.kind == "assemble":
        others += (
            f"from {count} of the vendor's wheels; stays on this machine: others make it from the pins",
        )
    return found, _Verdict("BUILD", (*(found.missing or ("not in the store",)), *others, *first))


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanTotal:
    """Costs and prerequisites of all that a plan builds.

    seconds: one recipe after the other, with the downloads of known size; memory_mib: of the recipe that
    takes most; `here`: recipes that this machine itself can build. What several recipes need is downloaded
    once: `git`, `files`, `wheels`, `public` are numbers of downloads, `downloads_unknown` that of those
    without a size, `download_bytes` the sum of the others.
    """

    seconds: float
    memory_mib: int
    disk_mib: int
    git: int
    files: int
    wheels: int
    public: int
    downloads_unknown: int
    download_bytes: int
    download_seconds: float  # at DOWNLOAD_RATE
    makespan_seconds: dict[int, float]  # by the number of machines of a farm
    packages: tuple[str, ...]  # of the system, as apt calls them
    here: tuple[str, ...]


def total(planned: Plan, machine: Machine) -> PlanTotal:
    """Return the total of a plan's steps to build."""
    building = [step for step in planned.steps if step.decision == "BUILD"]
    estimates = [step.estimate for step in building if step.estimate]
    fetched = {(one.kind, one.name): one.size for step in building for one in step.downloads}
    count = Counter(kind for kind, _ in fetched)
    size = sum(filter(None, fetched.values()))
    target = planned.target
    return PlanTotal(
        seconds=sum(one.seconds for one in estimates) + size / DOWNLOAD_RATE,
        memory_mib=max((one.memory_mib for one in estimates), default=0),
        disk_mib=sum(one.disk_mib for one in estimates),
        git=count["git"],
        files=count["file"],
        wheels=count["wheel"],
        public=count["public"],
        downloads_unknown=sum(one is None for one in fetched.values()),
        download_bytes=size,
        download_seconds=size / DOWNLOAD_RATE,
        packages=tuple(sorted({name for step in building for name in step.evaluated.apt})),
        makespan_seconds={machines: makespan(planned, machines) for machines in (1, 2, 4)},
        here=tuple(
            step.recipe.name
            for step in building
            if not step.recipe.is_compiled
            or (
                target.platform == machine.platform
                and (step.recipe.kind != "pep517" or target.python == machine.python)
            )
        ),
    )


def critical_paths(planned: Plan) -> dict[str, float]:
    """Return the seconds from each step's start to the end of the longest chain that needs it."""
    ahead: dict[str, float] = {}
    after: dict[str, float] = {}
    for step in reversed(planned.steps):
        name = step.recipe.name
        own = step.estimate.seconds if step.estimate and step.decision == "BUILD" else 0.0
        ahead[name] = own + after.get(name, 0.0)
        for need in step.from_store:
            after[need] = max(after.get(need, 0.0), ahead[name])
    return ahead


def makes_prefix(step: Step) -> bool:
    """Return whether others build against a prefix of this step: no export and no remote store has one."""
    return step.recipe.kind in ("cmake", "scons", "assemble") or bool(step.recipe.prefix.copy)


def makespan(planned: Plan, machines: int) -> float:
    """Return the seconds in which that many equal machines build the plan, each recipe on one of them.

    The longest chain first, each where it ends first. Prefixes travel to no other machine: each makes those
    that its recipes need, at their cost; one that is to be reused here counts as there already.
    """
    steps = {step.recipe.name: step for step in planned.steps}
    cost = {
        name: step.estimate.seconds + step.estimate.download_seconds
        for name, step in steps.items()
        if step.decision == "BUILD" and step.estimate
    }
    below: dict[str, set[str]] = {}  # what a step needs from the store, also through others
    for name, step in steps.items():
        below[name] = set(step.from_store).union(*(below[need] for need in step.from_store))
    prefixes = {name for name in cost if makes_prefix(steps[name])}
    needed = {name for name in cost if any(name in below[other] for other in cost)}
    ahead = critical_paths(planned)
    free, made, ends = [0.0] * machines, [set[str]() for _ in range(machines)], dict[str, float]()
    waiting = {name: None for name in cost if name not in prefixes or name not in needed}
    while waiting:
        able = (name for name in waiting if waiting.keys().isdisjoint(below[name]))
        name = max(able, key=ahead.__getitem__)
        del waiting[name]
        own = (below[name] | {name}) & prefixes
        ready = max((ends[need] for need in below[name] if need in ends), default=0.0)
        finish = [
            max(free[at], ready) + sum(cost[one] for one in (own - made[at]) | {name})
            for at in range(machines)
        ]
        at = finish.index(min(finish))
        free[at] = ends[name] = finish[at]
        made[at] |= own
    return max(free)


def _preflight(recipe: Recipe) -> tuple[str, ...]:
    """Return the plan's line about the preflight."""
    count = len(recipe.preflight.libraries)
    what = "a library" if count == 1 else f"{count} libraries"
    return (f"preflight first: a stub of {what} is linked, repaired, audited, imported",) if count else ()


def _estimate(
    recipe: Recipe,
    machine: Machine,
    limits: Limits,
    past: ExpectedUsage | None,
    downloads: Iterable[Download],
) -> Estimate:
    """Return the estimate from earlier builds here, else from the recipe's declaration."""
    per_job = past.memory_per_job_mib if past else recipe.build.memory_per_job_mib
    jobs = jobs_for(recipe, machine, limits, per_job)
    known = past.seconds if past else None
    return Estimate(
        seconds=recipe.build.core_minutes * 60 / jobs if known is None else known,
        memory_mib=jobs * per_job,
        memory_per_job_mib=per_job,
        disk_mib=recipe.build.disk_mib,
        jobs=jobs,
        measured=known is not None,
        download_seconds=sum(one.size or 0 for one in downloads) / DOWNLOAD_RATE,
    )


def _warnings(
    recipe: Recipe,
    pin: Pin,
    source: Source | None,
    patches: Iterable[Patch],
    target: Target,
    machine: Machine,
) -> tuple[str, ...]:
    if source is not None and source.kind == "local":
        named = f"called {pin.version} whatever it is (a train of your own calls it otherwise)"
        return (f"built from {source.url} as it is, without patches: not the pinned source, {named}",)
    warnings = [f"not established: {entry}" for entry in pin.unestablished]
    warnings += [
        f"patch {patch.file} is unverified: {patch.unverified}" for patch in patches if patch.unverified
    ]
    if recipe.build.network:
        warnings.append("its build may use the network")
    if recipe.is_compiled and target.platform != machine.platform:
        warnings.append(f"builds on {target.platform} only; this machine is {machine.platform}")
    elif recipe.kind == "pep517" and target.python != machine.python:
        warnings.append(f"builds with {target.python} only; this is {machine.python}")
    return tuple(warnings)
